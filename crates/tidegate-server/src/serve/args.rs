//! The arguments of `tidegate serve`, and the addresses in them.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use clap::builder::UnknownArgumentValueParser;
use tidegate::Algorithm;
use tidegate_replay::rate_algorithm;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::envoy_ratelimit::XdsAddress;
use crate::logs::LogFormat;

/// Decide requests over HTTP, gRPC and RESP, and for gateways
///
/// Without a config: a memory store and one policy, `default`, that allows every
/// client address 100 requests per minute.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = SERVE_HELP)]
pub struct ServeArgs {
    /// The policies and settings; reloaded when it changes and on SIGHUP
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CONFIG")]
    pub config: Option<PathBuf>,

    /// Files of envoyproxy/ratelimit, one per domain: a directory of *.yaml, or one file;
    /// reloaded like --config, whose settings apply and whose policies come first
    #[arg(long, value_name = "DIR", env = "TIDEGATE_ENVOY_CONFIG")]
    pub envoy_config: Option<PathBuf>,

    /// The xDS control plane that sends configs of envoyproxy/ratelimit, as host:port, in place of
    /// the files of --envoy-config; CONFIG_GRPC_XDS_* and XDS_CLIENT_* set the other options
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "TIDEGATE_ENVOY_XDS",
        conflicts_with = "envoy_config"
    )]
    pub envoy_xds: Option<XdsAddress>,

    /// Take the place of envoyproxy/ratelimit: read its environment variables, listen on its
    /// ports, and reply as it does; also set if the program is started as `ratelimit`
    #[arg(long, env = "TIDEGATE_AS_ENVOY_RATELIMIT", value_parser = clap::builder::FalseyValueParser::new())]
    pub as_envoy_ratelimit: bool,

    /// The algorithm of limits from --envoy-config or --envoy-xds, and of limits that come with a request;
    /// `fixed-window` has the windows of envoyproxy/ratelimit [default: sliding-window, or
    /// fixed-window with --as-envoy-ratelimit]
    #[arg(long, value_name = "NAME", env = "TIDEGATE_ALGORITHM", value_parser = rate_algorithm)]
    pub algorithm: Option<Algorithm>,

    /// Allow several files of --envoy-config to have the same domain
    #[arg(long, env = "TIDEGATE_MERGE_DOMAINS", value_parser = clap::builder::FalseyValueParser::new())]
    pub merge_domains: bool,

    /// The address of the HTTP API [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR|off", env = "TIDEGATE_HTTP")]
    pub http: Option<ListenAddr>,

    /// The address of Envoy's rate limit service, over gRPC [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDR|unix:PATH|off", env = "TIDEGATE_GRPC")]
    pub grpc: Option<ListenAddr>,

    /// The address for Redis clients (RESP) [default: 127.0.0.1:6380]
    #[arg(long, value_name = "ADDR|off", env = "TIDEGATE_RESP")]
    pub resp: Option<ListenAddr>,

    /// The address of health, metrics and the admin API [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDR|off", env = "TIDEGATE_ADMIN")]
    pub admin: Option<ListenAddr>,

    /// Rejected with a suggestion, because other servers have it
    #[arg(long = "port", value_name = "PORT", hide = true, value_parser = UnknownArgumentValueParser::suggest_arg("--http").and_suggest("an example: `--http 127.0.0.1:8080`"))]
    pub unknown_port: Option<String>,

    /// The format of the log on standard error; RUST_LOG selects what is logged
    #[arg(long, value_enum, value_name = "FORMAT", env = "TIDEGATE_LOG_FORMAT", default_value_t)]
    pub log_format: LogFormat,

    /// Serve other machines without authentication: anyone who can connect can use
    /// up the limits of others
    #[arg(long, env = "TIDEGATE_INSECURE_NO_AUTH", value_parser = clap::builder::FalseyValueParser::new())]
    pub insecure_no_auth: bool,

    /// The name that client certificates of the gRPC front must have. Only a variable of
    /// envoyproxy/ratelimit sets it.
    #[arg(skip)]
    pub grpc_client_name: Option<ServerName<'static>>,
}

const SERVE_HELP: &str = "\
Precedence: flag, environment variable, config file, default.

Secrets come from the environment, or from files it names:
  TIDEGATE_TOKENS        secrets that clients of --http, --grpc and --resp send, separated by
                         commas
  TIDEGATE_ADMIN_TOKEN   secret of the admin API; /healthz, /readyz and /metrics need none
  TIDEGATE_STORE         URL of the store that nodes share; overrides `store` of the config
  TIDEGATE_MASK_SECRET   masks keys the same way on all nodes; overrides `mask_secret`
  TIDEGATE_TOKENS_FILE, TIDEGATE_ADMIN_TOKEN_FILE, TIDEGATE_STORE_FILE,
  TIDEGATE_MASK_SECRET_FILE
An address that other machines can reach needs its secret. TLS is set in the config (tls:).
RUST_LOG selects what is logged, e.g. RUST_LOG=debug.

Examples:
  tidegate serve
  tidegate serve --envoy-config /etc/ratelimit/config --algorithm fixed-window
  tidegate serve --config tidegate.yaml --http 127.0.0.1:9000 --admin off
  TIDEGATE_TOKENS=$(openssl rand -hex 32) tidegate serve --http 0.0.0.0:8080";

/// The address on which a front listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddr {
    /// The front is disabled.
    Off,
    At(SocketAddr),
    /// The path of a unix socket, which only the gRPC front can have.
    Unix(PathBuf),
}

/// The text is not a listen address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseListenAddrError {
    #[error(
        "`{text}` has no host: write 127.0.0.1:{port} for this machine, 0.0.0.0:{port} for all"
    )]
    NoHost { text: String, port: u16 },
    #[error("`{0}` is not an address: write host:port such as 127.0.0.1:8080, or off")]
    NotAnAddress(String),
    #[error("`unix:` has no path: write unix:/run/tidegate.sock")]
    NoPath,
}

impl FromStr for ListenAddr {
    type Err = ParseListenAddrError;

    fn from_str(text: &str) -> Result<Self, ParseListenAddrError> {
        if text == "off" {
            return Ok(ListenAddr::Off);
        }
        match text.strip_prefix("unix:") {
            Some("") => return Err(ParseListenAddrError::NoPath),
            Some(path) => return Ok(ListenAddr::Unix(path.into())),
            None => {}
        }
        if let Ok(address) = text.parse() {
            return Ok(ListenAddr::At(address));
        }
        let error = || match text.strip_prefix(':').unwrap_or(text).parse() {
            Ok(port) => ParseListenAddrError::NoHost { text: text.to_owned(), port },
            Err(_) => ParseListenAddrError::NotAnAddress(text.to_owned()),
        };
        // A host name such as `localhost`. A port without a host is rejected.
        let named = text.rsplit_once(':').is_some_and(|(host, _)| !host.is_empty());
        let first = named.then(|| text.to_socket_addrs().ok()?.next()).flatten();
        first.map(ListenAddr::At).ok_or_else(error)
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddr::Off => f.write_str("off"),
            ListenAddr::At(address) => address.fmt(f),
            ListenAddr::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_listen_addresses() {
        let rows = [
            ("off", Ok("off")),
            ("127.0.0.1:0", Ok("127.0.0.1:0")),
            ("[::1]:8080", Ok("[::1]:8080")),
            ("unix:/run/a:1.sock", Ok("unix:/run/a:1.sock")),
            ("unix:", Err("`unix:` has no path: write unix:/run/tidegate.sock")),
            (
                "8080",
                Err(
                    "`8080` has no host: write 127.0.0.1:8080 for this machine, 0.0.0.0:8080 for all",
                ),
            ),
            (
                ":81",
                Err("`:81` has no host: write 127.0.0.1:81 for this machine, 0.0.0.0:81 for all"),
            ),
            (
                "127.0.0.1",
                Err(
                    "`127.0.0.1` is not an address: write host:port such as 127.0.0.1:8080, or off",
                ),
            ),
            (
                "1.2.3.4:99999",
                Err(
                    "`1.2.3.4:99999` is not an address: write host:port such as 127.0.0.1:8080, or off",
                ),
            ),
            ("", Err("`` is not an address: write host:port such as 127.0.0.1:8080, or off")),
        ];
        for (text, expected) in rows {
            let got = text.parse::<ListenAddr>();
            let got = got.map(|choice| choice.to_string()).map_err(|error| error.to_string());
            assert_eq!(got, expected.map(str::to_owned).map_err(str::to_owned), "{text}");
        }
        assert!(matches!("localhost:80".parse(), Ok(ListenAddr::At(at)) if at.ip().is_loopback()));
    }
}
