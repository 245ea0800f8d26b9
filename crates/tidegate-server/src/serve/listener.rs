//! The accept loop of all fronts: accept, TLS handshake, serve.
//!
//! The number of connections and the duration of a TLS handshake are bounded here; [`Connections`]
//! has all later deadlines.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use super::connections::{ConnGuard, ConnectionProgress, Connections, MaxAge};
use super::settings::FrontName;
use super::tracked_stream::TrackedStream;
use crate::admin::ServerState;
use crate::logs::LogThrottle;

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
        stream: TrackedStream<S>,
        peer: SocketAddr,
        progress: Arc<ConnectionProgress>,
    ) -> impl Future<Output = ()> + Send;
}

/// Binds a socket and listens on it.
///
/// # Errors
/// When the address cannot be bound.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A socket, and the protocol that it serves.
pub struct Listener<P> {
    pub socket: TcpListener,
    pub name: FrontName,
    pub protocol: Arc<P>,
    pub tls: Option<TlsAcceptor>,
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
        loop {
            let (stream, peer, slot) = acceptor.next().await;
            if let Some(silence) = P::TCP_KEEPALIVE {
                let keepalive = TcpKeepalive::new().with_time(silence);
                let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
            }
            let guard = self.connections.enter();
            let aging = self.bounds.age.map(|age| guard.close_after(age));
            let connected = self.server_state.count_connection(self.name);
            let accepted = Accepted { protocol: Arc::clone(&self.protocol), peer, guard };
            let tls = self.tls.clone();
            tokio::spawn(async move {
                match tls {
                    None => accepted.serve(stream).await,
                    // Boxed, so that connections without TLS do not reserve memory for it.
                    Some(tls) => Box::pin(accepted.secure(stream, tls)).await,
                }
                drop((connected, slot, aging));
            });
        }
    }
}

struct Accepted<P> {
    protocol: Arc<P>,
    peer: SocketAddr,
    guard: ConnGuard,
}

impl<P: Protocol> Accepted<P> {
    async fn secure(self, stream: TcpStream, tls: TlsAcceptor) {
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.serve(stream).await,
            Ok(Err(error)) => debug!(peer = %self.peer, %error, "a TLS handshake failed"),
            Err(_) => debug!(peer = %self.peer, "a TLS handshake took too long"),
        }
    }

    async fn serve(self, stream: impl Stream) {
        let progress = self.guard.progress();
        let stream = TrackedStream::new(stream, Arc::clone(progress));
        self.protocol.serve(stream, self.peer, Arc::clone(progress)).await;
    }
}

/// How long to wait after an error such as "too many open files", which would otherwise recur
/// immediately.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A socket that limits the number of open connections.
pub struct Acceptor {
    socket: TcpListener,
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
    pub fn new(socket: TcpListener, front: FrontName, most: usize) -> Self {
        let slots = Arc::new(Semaphore::new(most));
        let (full, failed) = (LogThrottle::default(), LogThrottle::default());
        Acceptor { socket, front, most, slots, full, failed }
    }

    /// Waits for the next connection and its slot.
    pub async fn next(&self) -> (TcpStream, SocketAddr, ConnectionSlot) {
        let slot = self.slot().await;
        loop {
            match self.socket.accept().await {
                Ok((stream, address)) => {
                    // A response is one small packet. Nagle's algorithm would only delay it.
                    let _ = stream.set_nodelay(true);
                    return (stream, address, slot);
                }
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
