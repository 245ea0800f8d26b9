//! Connections of any protocol: sockets, TLS, and what a client may keep the server waiting for.
//!
//! ```text
//!   listener.rs   sockets -> TLS (tls.rs) -> connections, which a `Protocol` serves
//!   stream.rs     records the progress of a connection; bounds the bytes read per poll
//!   timeouts.rs   open connections; those without progress are closed
//! ```
//!
//! The protocols are in `fronts/`: `http_protocol.rs` and `resp/connection.rs`.

mod listener;
mod stream;
mod timeouts;
mod tls;

pub use self::listener::{
    Bounds, ListenAddr, ListenSocket, Listener, ParseListenAddrError, Protocol, Stream,
};
pub use self::stream::{ConnectionStream, READ_PER_POLL};
pub use self::timeouts::{ConnCommand, ConnectionProgress, Connections, InFlight, MaxAge, TICK};
pub use self::tls::{FrontTls, TlsError, TlsFiles, tls_warnings};
