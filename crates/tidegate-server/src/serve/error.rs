//! The errors that prevent the server from starting.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use tidegate::OutOfMemory;
use tidegate::redis::ConnectError;

use super::config_source::ConfigSourceError;
use super::settings::secret_of;
use crate::authentication::SecretError;
use crate::connections::{ListenAddr, ParseListenAddrError, TlsError};
use crate::envoy_ratelimit::VariableError;
use crate::logs::LogError;
use crate::server_state::FrontName;

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Config(ConfigSourceError),
    #[error(transparent)]
    Variable(#[from] VariableError),
    #[error("store: {0}")]
    Store(#[from] ConnectError),
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("tls.{}.{error}{}", .front.name(), .error.path_hint())]
    Tls { front: FrontName, error: TlsError },
    #[error("{}: {error}", .front.name())]
    Address { front: FrontName, error: ParseListenAddrError },
    /// All fronts are off.
    #[error("all fronts are off: enable at least one")]
    NothingToServe,
    /// Other machines could reach the front without a secret.
    #[error(
        "{setting} is reachable from other machines, and {secret} is not set: set it \
         (`{secret}=$(openssl rand -hex 32)`), listen on 127.0.0.1, or serve without \
         authentication with --insecure-no-auth",
        secret = secret_of(*.front)
    )]
    Exposed { front: FrontName, setting: String },
    #[error(
        "--{name}: only --grpc can listen on a unix socket: write --{name} 127.0.0.1:8080, or off",
        name = .front.name()
    )]
    UnixSocket { front: FrontName },
    #[error(fmt = write_bind_error)]
    Bind { bound: FrontAddress, error: io::Error },
    /// Two fronts of this server have the same address.
    #[error(fmt = write_same_address)]
    SameAddress { fronts: Box<[FrontAddress; 2]> },
    #[error("PROMETHEUS_ADDR={address}: {error}")]
    BindPrometheus { address: SocketAddr, error: io::Error },
    /// The limit on open files is too low for these fronts.
    #[error(
        "the limit on open files is {limit}, and these fronts need at least {needed}: raise it \
         (`ulimit -n 1024`; `LimitNOFILE=` in a systemd unit; `--ulimit nofile=` in Docker), or \
         turn fronts off"
    )]
    TooFewFiles { limit: usize, needed: usize },
    /// The operating system refused threads, signal handlers or another resource.
    #[error(transparent)]
    System(io::Error),
}

/// The address of a front.
#[derive(Clone, Debug)]
pub struct FrontAddress {
    pub front: FrontName,
    pub address: ListenAddr,
    /// What sets the address: a flag, variables or the config.
    pub setting: String,
}

fn write_bind_error(
    FrontAddress { front, address, setting }: &FrontAddress,
    error: &io::Error,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let front = front.name();
    write!(f, "{setting}: ")?;
    let ListenAddr::At(address) = address else { return write!(f, "{error}") };
    match error.kind() {
        io::ErrorKind::AddrInUse => write!(
            f,
            "the address is in use: stop the other program, or choose another port (--{front} {}:0 \
             takes a free one)",
            Host(address),
        ),
        io::ErrorKind::PermissionDenied => {
            write!(f, "{error}: ports below 1024 need a privilege; use a higher port")
        }
        io::ErrorKind::AddrNotAvailable => f.write_str("this machine does not have that address"),
        _ => write!(f, "{error}"),
    }
}

fn write_same_address(
    [first, second]: &[FrontAddress; 2],
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(
        f,
        "{} and {}: two fronts of this server have the same address; choose another port for one \
         of them",
        first.setting, second.setting
    )?;
    let front = second.front.name();
    match &second.address {
        ListenAddr::At(address) => {
            write!(f, " (--{front} {}:0 takes a free one), or --{front} off", Host(address))
        }
        _ => Ok(()),
    }
}

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
