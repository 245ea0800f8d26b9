//! Listening: connections in, requests to a front, answers out.
//!
//! Everything a peer could do without end has a bound here: how many connections
//! there are, how large a head is, how many streams an HTTP/2 connection opens, how
//! much is read per poll, how long a TLS handshake takes. Deadlines are enforced by
//! [`Connections`](super::connections::Connections).

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::header::HOST;
use hyper::rt::Executor;
use hyper::service::service_fn;
use hyper::{Request, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;
use tracing::field::Empty;
use tracing::{debug, debug_span, warn};

use super::accepting::Accepting;
use super::bursts::Bursts;
use super::connections::{Connections, Entered, Order};
use super::io::Watched;
use super::paced::{Paced, READ_PER_POLL};
use super::settings::FrontName;
use crate::admin::Facts;
use crate::response_future::{Call, Front, ResponseFuture};

/// Connections the kernel may hold before they are accepted: room for a burst of
/// reconnects after a restart.
const BACKLOG: u32 = 4096;

/// How long a TLS handshake may take.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest head, and the most read ahead of what is asked for. Gateways copy the
/// client's: nginx passes on up to 32 KiB, Envoy 60 KiB. Larger ones get a 431.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// The largest decoded head over HTTP/2.
const MAX_HEADER_LIST_BYTES: u32 = 64 * 1024;

/// Concurrent requests on one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;

/// Concurrent requests on one connection to the gRPC front. Envoy has up to 1,024 in flight
/// by default (`max_requests` of its circuit breakers), also before it knows our limit, and a
/// refused call may let a request pass.
const MAX_GRPC_STREAMS: u32 = 1_024;

/// The shortest request and its reset: two frames with heads of 9 bytes, two fields from a
/// table of HPACK's, an error code.
const SHORTEST_RESET_BYTES: usize = 9 + 2 + 9 + 4;

/// Requests that were reset before they are handed over. h2 closes the connection beyond
/// this, so it is more than the bytes of one poll can hold, with what was left of the poll
/// before.
const MAX_PENDING_RESETS: usize = READ_PER_POLL / SHORTEST_RESET_BYTES + 2;

/// Answers waiting to be sent per HTTP/2 stream; ours are far smaller.
const MAX_SEND_BYTES: usize = 64 * 1024;

/// How often the other side of an HTTP/2 connection is asked whether it is still there, and
/// how long it may take to say so. A host that is gone keeps a connection half open for ever.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Checks the `Host` fields of a request (RFC 9112, section 3.2) and returns the error, if
/// there is one. HTTP/1.0 requests need no `Host`, and HTTP/2 has `:authority` instead.
pub fn host_error<B>(request: &Request<B>) -> Option<&'static str> {
    if request.version() > Version::HTTP_11 {
        return None;
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(_), None) => None,
        (None, _) if request.version() < Version::HTTP_11 => None,
        (None, _) => Some("an HTTP/1.1 request needs a `Host` header: send one"),
        (Some(_), Some(_)) => Some("the request has more than one `Host` header: send one"),
    }
}

/// A bound socket.
///
/// # Errors
/// When the address cannot be had.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// What is served on one socket.
pub struct Listener<F> {
    pub socket: TcpListener,
    pub name: FrontName,
    pub front: Arc<F>,
    pub tls: Option<TlsAcceptor>,
    pub facts: Arc<Facts>,
    pub connections: Arc<Connections>,
    pub bounds: Bounds,
}

/// How many there may be, and how long each.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The most connections at once; further ones wait in the kernel.
    pub connections: usize,
    /// How old a connection gets before it is asked to go, about; `None` for any age.
    /// Clients that keep theirs for ever never find out that there are more servers now.
    pub age: Option<Duration>,
}

impl<F: Front> Listener<F> {
    /// Accepts until dropped. Connections live on.
    pub async fn run(self) {
        let accepting = Accepting::new(self.socket, self.name, self.bounds.connections);
        let protocol = Arc::new(protocol(self.name));
        let goaways = Arc::new(Bursts::default());
        loop {
            let (stream, address, place) = accepting.next().await;
            let serving = Serving {
                front: Arc::clone(&self.front),
                protocol: Arc::clone(&protocol),
                name: self.name,
                facts: Arc::clone(&self.facts),
                goaways: Arc::clone(&goaways),
                entered: self.connections.enter(),
                address,
            };
            let aging = self.bounds.age.map(|age| serving.entered.age_out(age));
            let tls = self.tls.clone();
            let connected = self.facts.connected(self.name);
            tokio::spawn(async move {
                serving.accept(stream, tls).await;
                drop((connected, place, aging));
            });
        }
    }
}

type Protocol = auto::Builder<AtOnce>;

/// Runs the answers of an HTTP/2 connection: once right away, because nearly all are
/// finished then, and only those that are not as tasks of their own. A task costs more than
/// a decision, and answers that are there when the connection writes go out together.
#[derive(Clone, Copy, Debug)]
struct AtOnce;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for AtOnce {
    fn execute(&self, answer: F) {
        let mut answer = Box::pin(answer);
        // Whoever is polled again, by its task, tells that one when to wake.
        if answer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            tokio::spawn(answer);
        }
    }
}

/// HTTP/1.1 and HTTP/2, whichever the client speaks.
fn protocol(front: FrontName) -> Protocol {
    let streams = if front == FrontName::Grpc { MAX_GRPC_STREAMS } else { MAX_STREAMS };
    let mut builder = auto::Builder::new(AtOnce);
    // One buffer for head and body costs the kernel less than a list of two.
    builder.http1().header_read_timeout(None).max_buf_size(MAX_HEAD_BYTES).writev(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .max_concurrent_streams(streams)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        // h2 counts them over the whole life of a connection, which a gateway shares between
        // its clients. `Paced` bounds how many can wait to be sent.
        .max_local_error_reset_streams(None)
        .max_send_buf_size(MAX_SEND_BYTES);
    builder
}

/// One connection being served.
struct Serving<F> {
    front: Arc<F>,
    protocol: Arc<Protocol>,
    name: FrontName,
    facts: Arc<Facts>,
    /// Connections of this front that were closed for an error.
    goaways: Arc<Bursts>,
    entered: Entered,
    address: SocketAddr,
}

impl<F: Front> Serving<F> {
    async fn accept(self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        let Some(tls) = tls else { return self.serve(stream).await };
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.serve(stream).await,
            Ok(Err(error)) => debug!(peer = %self.address, %error, "a TLS handshake failed"),
            Err(_) => debug!(peer = %self.address, "a TLS handshake took too long"),
        }
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let connection = self.entered.connection();
        let (front, marks, peer) = (self.front, Arc::clone(connection), self.address);
        let name = self.name;
        let service = service_fn(move |request: Request<Incoming>| {
            let (method, path) = (request.method(), request.uri().path());
            if request.version() == Version::HTTP_2 {
                marks.speaks_in_frames();
            }
            let span = debug_span!(
                "request",
                front = name.name(),
                %method,
                path = without_key(path),
                status = Empty
            );
            let call = Call { request, peer, in_flight: marks.begin() };
            ResponseFuture::new(Arc::clone(&front), call, span)
        });
        let stream = Watched::new(stream, Arc::clone(connection));
        let stream = Paced::new(stream, Arc::clone(connection), name, Arc::clone(&self.facts));
        let io = TokioIo::new(stream);
        let mut served = pin!(self.protocol.serve_connection(io, service));
        let (mut known, mut draining) = (false, false);
        let ended = poll_fn(|context| {
            if !known {
                connection.listen(context.waker());
                known = true;
            }
            match connection.order() {
                Order::Serve => {}
                Order::Drain if draining => {}
                Order::Drain => {
                    draining = true;
                    served.as_mut().graceful_shutdown();
                }
                Order::Close => return Poll::Ready(Ok(())),
            }
            connection.begin_poll(READ_PER_POLL);
            served.as_mut().poll(context)
        });
        let Err(error) = ended.await else { return };
        let Some(reason) = goaway(&*error) else {
            debug!(peer = %peer, %error, "a connection ended early");
            return;
        };
        self.facts.went_away(name);
        if let Some(suppressed) = self.goaways.note(Instant::now()) {
            warn!(
                front = name.name(),
                %peer,
                %reason,
                suppressed,
                "closed a connection for an HTTP/2 error of the client"
            );
        }
    }
}

/// Why we closed a connection with GOAWAY, if that is why it ended.
fn goaway(error: &(dyn std::error::Error + 'static)) -> Option<h2::Reason> {
    let errors = std::iter::successors(Some(error), |error| error.source());
    let error = errors.into_iter().find_map(|error| error.downcast_ref::<h2::Error>())?;
    error.reason().filter(|_| error.is_go_away() && error.is_library())
}

/// A path without the key or permit in it: a key may be a credential, and the name of a shared
/// permit holds its key.
fn without_key(path: &str) -> &str {
    let is_of = |start: &&str| path.starts_with(start);
    match ["/admin/v1/policies/", "/v1/permits/"].into_iter().find(is_of) {
        Some("/v1/permits/") => "/v1/permits/",
        Some(_) => path.find("/keys/").map_or(path, |at| &path[..at + "/keys/".len()]),
        None => path,
    }
}
