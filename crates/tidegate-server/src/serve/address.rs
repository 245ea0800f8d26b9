//! Where a front listens, if it does.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// What a user says about a front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// It is not served.
    Off,
    /// It is served here.
    At(SocketAddr),
}

/// A text that is no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoAddress(String);

impl fmt::Display for NoAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.0;
        match text.strip_prefix(':').unwrap_or(text).parse::<u16>() {
            Ok(port) => write!(
                f,
                "`{text}` names no host: write 127.0.0.1:{port} for this machine, 0.0.0.0:{port} for all"
            ),
            Err(_) => {
                write!(f, "`{text}` is no address: write host:port such as 127.0.0.1:8080, or off")
            }
        }
    }
}

impl std::error::Error for NoAddress {}

impl FromStr for Choice {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Self, NoAddress> {
        if text == "off" {
            return Ok(Choice::Off);
        }
        if let Ok(address) = text.parse() {
            return Ok(Choice::At(address));
        }
        let error = || NoAddress(text.to_owned());
        // A name such as `localhost`; without a host it would not be one.
        let named = text.rsplit_once(':').is_some_and(|(host, _)| !host.is_empty());
        let first = named.then(|| text.to_socket_addrs().ok()?.next()).flatten();
        first.map(Choice::At).ok_or_else(error)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Off => f.write_str("off"),
            Choice::At(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_or_what_to_write_instead() {
        let rows = [
            ("off", Ok("off")),
            ("127.0.0.1:0", Ok("127.0.0.1:0")),
            ("[::1]:8080", Ok("[::1]:8080")),
            (
                "8080",
                Err(
                    "`8080` names no host: write 127.0.0.1:8080 for this machine, 0.0.0.0:8080 for all",
                ),
            ),
            (
                ":81",
                Err("`:81` names no host: write 127.0.0.1:81 for this machine, 0.0.0.0:81 for all"),
            ),
            (
                "127.0.0.1",
                Err("`127.0.0.1` is no address: write host:port such as 127.0.0.1:8080, or off"),
            ),
            (
                "1.2.3.4:99999",
                Err(
                    "`1.2.3.4:99999` is no address: write host:port such as 127.0.0.1:8080, or off",
                ),
            ),
            ("", Err("`` is no address: write host:port such as 127.0.0.1:8080, or off")),
        ];
        for (text, expected) in rows {
            let got = text.parse::<Choice>();
            let got = got.map(|choice| choice.to_string()).map_err(|error| error.to_string());
            assert_eq!(got, expected.map(str::to_owned).map_err(str::to_owned), "{text}");
        }
        assert!(matches!("localhost:80".parse(), Ok(Choice::At(at)) if at.ip().is_loopback()));
    }
}
