//! The errors that prevent the server from starting.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use tidegate::OutOfMemory;
use tidegate::redis::ConnectError;

use super::args::ParseListenAddrError;
use super::config_source::ConfigSourceError;
use super::settings::{FrontName, secret_of};
use super::tls::TlsError;
use crate::access::SecretError;
use crate::logs::LogError;

/// Why the server cannot start.
#[derive(Debug)]
pub enum ServeError {
    Log(LogError),
    Config(ConfigSourceError),
    Store(ConnectError),
    Memory(OutOfMemory),
    Secret(SecretError),
    Tls(TlsError),
    Address {
        front: FrontName,
        error: ParseListenAddrError,
    },
    /// All fronts are off.
    NothingToServe,
    /// Other machines could reach the front without a secret.
    Exposed {
        front: FrontName,
        address: SocketAddr,
    },
    Bind {
        front: FrontName,
        address: SocketAddr,
        error: io::Error,
    },
    /// The limit on open files is too low for these fronts.
    TooFewFiles {
        limit: usize,
        needed: usize,
    },
    /// The operating system refused threads, signal handlers or another resource.
    System(io::Error),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::Log(error) => error.fmt(f),
            ServeError::Config(errors) => errors.fmt(f),
            ServeError::Store(error) => write!(f, "store: {error}"),
            ServeError::Memory(error) => error.fmt(f),
            ServeError::Secret(error) => error.fmt(f),
            ServeError::Tls(error) => error.fmt(f),
            ServeError::Address { front, error } => write!(f, "{}: {error}", front.name()),
            ServeError::NothingToServe => f.write_str("every front is off: leave at least one on"),
            ServeError::Exposed { front, address } => write!(
                f,
                "--{front} {address} can be reached by others, and {secret} is not set: set it \
                 (`{secret}=$(openssl rand -hex 32)`), listen on 127.0.0.1, or insist with \
                 --insecure-no-auth",
                front = front.name(),
                secret = secret_of(*front),
            ),
            ServeError::Bind { front, address, error } => {
                let front = front.name();
                write!(f, "--{front} {address}: ")?;
                match error.kind() {
                    io::ErrorKind::AddrInUse => write!(
                        f,
                        "something listens there already: stop it, or choose another port \
                         (--{front} {}:0 takes a free one)",
                        Host(address),
                    ),
                    io::ErrorKind::PermissionDenied => {
                        write!(f, "{error}: ports below 1024 need a privilege, use a higher one")
                    }
                    io::ErrorKind::AddrNotAvailable => {
                        write!(f, "this machine does not have that address")
                    }
                    _ => error.fmt(f),
                }
            }
            ServeError::TooFewFiles { limit, needed } => write!(
                f,
                "the limit on open files is {limit}, and these fronts need at least {needed}: raise \
                 it (`ulimit -n 1024`; `LimitNOFILE=` in a systemd unit; `--ulimit nofile=` in \
                 Docker), or turn fronts off"
            ),
            ServeError::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ServeError {}

/// An address without its port, in the form that may be followed by one.
struct Host<'a>(&'a SocketAddr);

impl fmt::Display for Host<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            SocketAddr::V4(address) => address.ip().fmt(f),
            SocketAddr::V6(address) => write!(f, "[{}]", address.ip()),
        }
    }
}

impl From<LogError> for ServeError {
    fn from(error: LogError) -> Self {
        ServeError::Log(error)
    }
}

impl From<OutOfMemory> for ServeError {
    fn from(error: OutOfMemory) -> Self {
        ServeError::Memory(error)
    }
}

impl From<ConnectError> for ServeError {
    fn from(error: ConnectError) -> Self {
        ServeError::Store(error)
    }
}

impl From<SecretError> for ServeError {
    fn from(error: SecretError) -> Self {
        ServeError::Secret(error)
    }
}

impl From<TlsError> for ServeError {
    fn from(error: TlsError) -> Self {
        ServeError::Tls(error)
    }
}
