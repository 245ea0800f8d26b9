//! The sockets of all fronts: listen, accept, TLS handshake, serve.
//!
//! The number of connections and the duration of a TLS handshake are bounded here; [`Connections`]
//! has all later timeouts.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixSocket, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{self, InvalidMessage};
use tracing::{debug, warn};

use super::stream::ConnectionStream;
use super::timeouts::{ConnGuard, ConnectionProgress, Connections, MaxAge};
use super::tls::FrontTls;
use crate::logs::LogThrottle;
use crate::server_state::{FrontName, ServerState};

/// The backlog of connections that wait in the kernel to be accepted: room for a burst of
/// reconnects after a restart.
const BACKLOG: u32 = 4096;

/// The timeout of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection as a stream of bytes, with or without TLS.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// The protocol of a front.
pub trait Protocol: Send + Sync + 'static {
    /// The idle time after which the kernel probes whether the peer is still reachable.
    const TCP_KEEPALIVE: Option<Duration> = None;

    /// Whether connections may be idle without a time limit.
    const KEEPS_IDLE: bool = false;

    /// Serves a connection until it ends, or until `progress` has the command to drain or close.
    fn serve<S: Stream>(
        self: Arc<Self>,
        stream: ConnectionStream<S>,
        peer: SocketAddr,
        progress: Arc<ConnectionProgress>,
    ) -> impl Future<Output = ()> + Send;
}

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
    #[error("the host `{0}` has no address: write an IP address such as 127.0.0.1")]
    UnknownHost(String),
    #[error("`{0}` is not a port: write a number up to 65535")]
    NotAPort(String),
    #[error("`unix:` has no path: write unix:/run/tidegate.sock")]
    NoPath,
}

impl ListenAddr {
    /// Whether sockets at both addresses would receive the same connections.
    pub fn overlaps(&self, other: &ListenAddr) -> bool {
        match (self, other) {
            (ListenAddr::At(one), ListenAddr::At(other)) => {
                // `[::]` has every address of both families. Port 0 takes a free port.
                let has = |one: &SocketAddr, other: &SocketAddr| {
                    one.ip().is_unspecified() && (one.is_ipv6() || other.is_ipv4())
                };
                let is_same = one.ip() == other.ip() || has(one, other) || has(other, one);
                one.port() == other.port() && one.port() != 0 && is_same
            }
            _ => false,
        }
    }
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
        if let Ok(port) = text.strip_prefix(':').unwrap_or(text).parse() {
            return Err(ParseListenAddrError::NoHost { text: text.to_owned(), port });
        }
        let named = text.rsplit_once(':').filter(|(host, port)| {
            let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
            !host.is_empty() && is_number
        });
        let Some((host, port)) = named else {
            return Err(ParseListenAddrError::NotAnAddress(text.to_owned()));
        };
        if port.parse::<u16>().is_err() {
            return Err(ParseListenAddrError::NotAPort(port.to_owned()));
        }
        // A host name such as `localhost`.
        let first = text.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
        first.map(ListenAddr::At).ok_or_else(|| ParseListenAddrError::UnknownHost(host.to_owned()))
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

/// The longest path of a unix socket that every system accepts: 104 bytes with a zero byte.
const MAX_SOCKET_PATH_BYTES: usize = 103;

/// A socket that listens.
#[derive(Debug)]
pub enum ListenSocket {
    Tcp(TcpListener),
    Unix(UnixListenSocket),
}

/// A unix socket. Dropping it removes its file.
#[derive(Debug)]
pub struct UnixListenSocket {
    listener: UnixListener,
    path: PathBuf,
    /// The device and inode of the file. Another server may have replaced it.
    file: Option<(u64, u64)>,
}

/// A connection that was accepted.
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl ListenSocket {
    /// Binds a socket and listens on it.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub fn bind(address: &ListenAddr) -> io::Result<Self> {
        match address {
            ListenAddr::Off => Err(io::ErrorKind::InvalidInput.into()),
            ListenAddr::At(address) => listen_tcp(*address).map(ListenSocket::Tcp),
            ListenAddr::Unix(path) => UnixListenSocket::bind(path).map(ListenSocket::Unix),
        }
    }

    /// The address of a TCP socket.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            ListenSocket::Tcp(socket) => socket.local_addr().ok(),
            ListenSocket::Unix(_) => None,
        }
    }

    /// Accepts a connection. The peer of a unix socket is a process of this machine.
    async fn accept(&self) -> io::Result<(Socket, SocketAddr)> {
        match self {
            ListenSocket::Tcp(socket) => {
                let (stream, peer) = socket.accept().await?;
                // A response is one small packet. Nagle's algorithm would only delay it.
                let _ = stream.set_nodelay(true);
                Ok((Socket::Tcp(stream), peer))
            }
            ListenSocket::Unix(socket) => {
                let (stream, _) = socket.listener.accept().await?;
                Ok((Socket::Unix(stream), (Ipv4Addr::LOCALHOST, 0).into()))
            }
        }
    }
}

/// Listens on an address. `[::]` is every address of both families, whatever the system's default,
/// and every IPv4 address if the system has no IPv6.
fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let is_any = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let listen = |address: SocketAddr| {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        if is_any && address.is_ipv6() {
            SockRef::from(&socket).set_only_v6(false)?;
        }
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    match listen(address) {
        // A system has the family and no address of it, or lacks the family.
        Err(error) if is_any && error.kind() != io::ErrorKind::AddrInUse => {
            listen((Ipv4Addr::UNSPECIFIED, address.port()).into()).map_err(|_| error)
        }
        listening => listening,
    }
}

impl UnixListenSocket {
    fn bind(path: &Path) -> io::Result<Self> {
        let bytes = path.as_os_str().len();
        if bytes > MAX_SOCKET_PATH_BYTES {
            return Err(io::Error::other(format!(
                "the path has {bytes} bytes, and that of a unix socket may have \
                 {MAX_SOCKET_PATH_BYTES}: use a shorter one"
            )));
        }
        remove_stale(path)?;
        let socket = UnixSocket::new_stream()?;
        socket.bind(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                io::Error::other("the directory does not exist: create it, or use another path")
            }
            io::ErrorKind::PermissionDenied => {
                let help = "allow this user to write to the directory, or use another path";
                io::Error::other(format!("{error}: {help}"))
            }
            _ => error,
        })?;
        let listener = socket.listen(BACKLOG)?;
        Ok(UnixListenSocket { listener, path: path.to_owned(), file: identity(path) })
    }
}

impl Drop for UnixListenSocket {
    fn drop(&mut self) {
        if self.file.is_some() && identity(&self.path) == self.file {
            // A file that stays is replaced at the next start.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes the file of a socket on which nobody listens, left by a server that was killed.
fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(metadata) = path.symlink_metadata() else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::other(
            "the path exists and is not a socket: remove it, or use another path",
        ));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(io::Error::other(
            "another program listens on this socket: stop it, or use another path",
        )),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
                .map_err(|error| io::Error::other(format!("cannot remove the old socket: {error}")))
        }
        Err(error) => Err(error),
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    path.symlink_metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// A socket, and the protocol that it serves.
pub struct Listener<P> {
    pub socket: ListenSocket,
    pub name: FrontName,
    pub protocol: Arc<P>,
    pub tls: Option<Arc<FrontTls>>,
    pub server_state: Arc<ServerState>,
    pub connections: Arc<Connections>,
    pub bounds: Bounds,
}

/// Bounds on the number of connections and on their age.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The maximum number of open connections; further ones wait in the kernel.
    pub connections: usize,
    /// The maximum age of a connection, if there is one.
    pub age: Option<MaxAge>,
}

impl<P: Protocol> Listener<P> {
    /// Accepts connections until the future is dropped. Open connections are not closed then.
    pub async fn run(self) {
        let acceptor = Acceptor::new(self.socket, self.name, self.bounds.connections);
        let plaintext = Arc::new(LogThrottle::default());
        loop {
            let (stream, peer, slot) = acceptor.next().await;
            if let (Some(silence), Socket::Tcp(stream)) = (P::TCP_KEEPALIVE, &stream) {
                let keepalive = TcpKeepalive::new().with_time(silence);
                let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
            }
            let guard = self.connections.enter();
            let aging = self.bounds.age.map(|age| guard.close_after(age));
            let connected = self.server_state.count_connection(self.name);
            let accepted = Accepted { protocol: Arc::clone(&self.protocol), peer, guard };
            let tls = self.tls.as_ref().map(|tls| (tls.acceptor(), Arc::clone(&plaintext)));
            tokio::spawn(async move {
                // Boxed, so that plain connections over TCP do not reserve memory for the others.
                match (stream, tls) {
                    (Socket::Tcp(stream), None) => accepted.serve(stream).await,
                    (Socket::Unix(stream), None) => Box::pin(accepted.erased(stream)).await,
                    (Socket::Tcp(stream), Some(tls)) => {
                        Box::pin(accepted.secure(stream, tls)).await;
                    }
                    (Socket::Unix(stream), Some(tls)) => {
                        Box::pin(accepted.secure(stream, tls)).await;
                    }
                }
                drop((connected, slot, aging));
            });
        }
    }
}

/// Whether a TLS handshake failed because the client did not begin one.
fn is_plaintext(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref());
    let plaintext = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
    error.is_some_and(|error: &rustls::Error| *error == plaintext)
}

struct Accepted<P> {
    protocol: Arc<P>,
    peer: SocketAddr,
    guard: ConnGuard,
}

impl<P: Protocol> Accepted<P> {
    async fn secure(self, stream: impl Stream, (tls, plaintext): (TlsAcceptor, Arc<LogThrottle>)) {
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.erased(stream).await,
            Ok(Err(error)) if is_plaintext(&error) => {
                if let Some(suppressed) = plaintext.should_log(Instant::now()) {
                    warn!(
                        peer = %self.peer,
                        suppressed,
                        "a client connected without TLS to a front with TLS: use https:// or \
                         rediss://"
                    );
                }
            }
            Ok(Err(error)) => debug!(peer = %self.peer, %error, "a TLS handshake failed"),
            Err(_) => debug!(peer = %self.peer, "a TLS handshake took too long"),
        }
    }

    /// Serves a connection without regard to its type, so that the protocol is not compiled for
    /// each.
    async fn erased(self, stream: impl Stream) {
        let stream: Box<dyn Stream> = Box::new(stream);
        self.serve(stream).await;
    }

    async fn serve(self, stream: impl Stream) {
        let progress = self.guard.progress();
        let stream = ConnectionStream::new(stream, Arc::clone(progress));
        self.protocol.serve(stream, self.peer, Arc::clone(progress)).await;
    }
}

/// How long to wait after an error such as "too many open files", which would otherwise recur
/// immediately.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A socket that limits the number of open connections.
pub struct Acceptor {
    socket: ListenSocket,
    front: FrontName,
    most: usize,
    slots: Arc<Semaphore>,
    full: LogThrottle,
    failed: LogThrottle,
}

/// The slot of a connection on its front. Dropping it frees the slot.
pub type ConnectionSlot = Option<OwnedSemaphorePermit>;

impl Acceptor {
    /// Accepts connections while fewer than `most` are open; further ones wait in the kernel.
    pub fn new(socket: ListenSocket, front: FrontName, most: usize) -> Self {
        let slots = Arc::new(Semaphore::new(most));
        let (full, failed) = (LogThrottle::default(), LogThrottle::default());
        Acceptor { socket, front, most, slots, full, failed }
    }

    /// Waits for the next connection and its slot.
    async fn next(&self) -> (Socket, SocketAddr, ConnectionSlot) {
        let slot = self.slot().await;
        loop {
            match self.socket.accept().await {
                Ok((stream, address)) => return (stream, address, slot),
                Err(error) if is_peer_error(&error) => {}
                Err(error) => {
                    if let Some(suppressed) = self.failed.should_log(Instant::now()) {
                        let front = self.front.name();
                        warn!(front, %error, suppressed, "cannot accept connections; retrying");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Waits for a free slot.
    async fn slot(&self) -> ConnectionSlot {
        if let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() {
            return Some(slot);
        }
        if let Some(suppressed) = self.full.should_log(Instant::now()) {
            warn!(
                front = self.front.name(),
                connections = self.most,
                suppressed,
                "connection limit reached: new connections wait until others close"
            );
        }
        // The semaphore is never closed, so this does not fail.
        Arc::clone(&self.slots).acquire_owned().await.ok()
    }
}

/// Whether an error of `accept` is about one peer, and not about the server.
fn is_peer_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
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
            ("1.2.3.4:99999", Err("`99999` is not a port: write a number up to 65535")),
            (
                "nowhere.invalid:80",
                Err(
                    "the host `nowhere.invalid` has no address: write an IP address such as 127.0.0.1",
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
