//! Connections over HTTP/1.1 and HTTP/2: passes requests to a front and sends its responses.
//!
//! What a peer can make the server buffer before a front has its request is bounded here: the size
//! of a request head, the streams of an HTTP/2 connection, the bytes read per poll. Bodies are
//! bounded in `request_body.rs`.

use std::future::{Future, poll_fn};
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
use tracing::field::Empty;
use tracing::{debug, debug_span, warn};

use super::{Front, FrontCall, ResponseFuture};
use crate::connections::{
    ConnCommand, ConnectionProgress, ConnectionStream, Protocol, READ_PER_POLL, Stream,
};
use crate::logs::LogThrottle;
use crate::server_state::{FrontName, ServerState};

/// The maximum size of a request head, and of the buffer it is read into. Gateways pass on the
/// headers of their clients: nginx up to 32 KiB, Envoy up to 60 KiB. A larger head is rejected with
/// 431.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// The maximum size of a decoded head over HTTP/2.
const MAX_HEADER_LIST_BYTES: u32 = 64 * 1024;

/// The maximum number of concurrent requests on one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;

/// The maximum number of concurrent requests on one connection to the gRPC front. Envoy sends up to
/// 1,024 by default (`max_requests` of its circuit breakers), even before it has received this
/// setting, and a refused call may let a request pass.
const MAX_GRPC_STREAMS: u32 = 1_024;

/// The size of the shortest request and its reset: two frames with headers of 9 bytes, two header
/// fields from a table of HPACK, and an error code.
const SHORTEST_RESET_BYTES: usize = 9 + 2 + 9 + 4;

/// The maximum number of requests that were reset before h2 handed them over. h2 closes the
/// connection above it, so it exceeds what the bytes of one poll can hold, including what was left
/// over from the poll before.
const MAX_PENDING_RESETS: usize = READ_PER_POLL / SHORTEST_RESET_BYTES + 2;

/// The maximum size of the responses buffered per HTTP/2 stream. The responses of tidegate are far
/// smaller.
const MAX_SEND_BYTES: usize = 64 * 1024;

/// The interval of pings on an HTTP/2 connection, and how long the peer may take to reply. Without
/// pings, a connection to a host that is gone would stay open forever.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Checks the `Host` fields of a request (RFC 9112, section 3.2) and returns an error message if
/// they are invalid. HTTP/1.0 requests need no `Host`, and HTTP/2 has `:authority` instead.
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

type Builder = auto::Builder<InlineExecutor>;

/// Polls each response of an HTTP/2 connection once, in place, which completes nearly all of them.
/// Only the others become tasks: a task costs more than a decision, and responses that are ready
/// when the connection writes are sent together.
#[derive(Clone, Copy, Debug)]
struct InlineExecutor;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for InlineExecutor {
    fn execute(&self, answer: F) {
        let mut answer = Box::pin(answer);
        // The spawned task polls the response again, and registers a real waker.
        if answer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            tokio::spawn(answer);
        }
    }
}

/// Creates a builder that detects HTTP/1.1 or HTTP/2 by the first bytes of the client.
fn builder(front: FrontName) -> Builder {
    let streams = if front == FrontName::Grpc { MAX_GRPC_STREAMS } else { MAX_STREAMS };
    let mut builder = auto::Builder::new(InlineExecutor);
    // Writing head and body from one buffer costs the kernel less than a vectored write of two.
    builder.http1().header_read_timeout(None).max_buf_size(MAX_HEAD_BYTES).writev(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .max_concurrent_streams(streams)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        // h2 counts these resets over the whole life of a connection, which a gateway shares
        // between its clients. A paced stream bounds how many can wait to be sent.
        .max_local_error_reset_streams(None)
        .max_send_buf_size(MAX_SEND_BYTES);
    builder
}

/// The connections of a front over HTTP.
pub struct HttpProtocol<F> {
    front: Arc<F>,
    name: FrontName,
    server_state: Arc<ServerState>,
    builder: Builder,
    /// Throttles the log of connections that were closed with GOAWAY.
    goaways: LogThrottle,
}

impl<F: Front> HttpProtocol<F> {
    pub fn new(front: Arc<F>, name: FrontName, server_state: &Arc<ServerState>) -> Self {
        let (server_state, goaways) = (Arc::clone(server_state), LogThrottle::default());
        HttpProtocol { front, name, server_state, builder: builder(name), goaways }
    }

    /// Logs why a connection ended early, and counts it if the server closed it with GOAWAY.
    fn failed(&self, peer: SocketAddr, error: &(dyn std::error::Error + 'static)) {
        let Some(reason) = goaway(error) else {
            debug!(%peer, %error, "a connection ended early");
            return;
        };
        self.server_state.count_goaway(self.name);
        if let Some(suppressed) = self.goaways.should_log(Instant::now()) {
            warn!(
                front = self.name.name(),
                %peer,
                %reason,
                suppressed,
                "closed a connection for an HTTP/2 error of the client"
            );
        }
    }
}

impl<F: Front> Protocol for HttpProtocol<F> {
    async fn serve<S: Stream>(
        self: Arc<Self>,
        stream: ConnectionStream<S>,
        peer: SocketAddr,
        progress: Arc<ConnectionProgress>,
    ) {
        let (front, request_progress, name) =
            (Arc::clone(&self.front), Arc::clone(&progress), self.name);
        let service = service_fn(move |request: Request<Incoming>| {
            let (method, path) = (request.method(), request.uri().path());
            if request.version() == Version::HTTP_2 {
                request_progress.set_http2();
            }
            let span = debug_span!(
                "request",
                front = name.name(),
                %method,
                path = without_key(path),
                status = Empty
            );
            let call = FrontCall { request, peer, in_flight: request_progress.begin() };
            ResponseFuture::new(Arc::clone(&front), call, span)
        });
        let io = TokioIo::new(stream.paced(name, Arc::clone(&self.server_state)));
        let mut served = pin!(self.builder.serve_connection(io, service));
        let (mut has_waker, mut draining) = (false, false);
        let ended = poll_fn(|context| {
            if !has_waker {
                progress.set_waker(context.waker());
                has_waker = true;
            }
            match progress.command() {
                ConnCommand::Serve => {}
                ConnCommand::Drain | ConnCommand::EndStreams if draining => {}
                ConnCommand::Drain | ConnCommand::EndStreams => {
                    draining = true;
                    served.as_mut().graceful_shutdown();
                }
                ConnCommand::Close => return Poll::Ready(Ok(())),
            }
            progress.begin_poll(READ_PER_POLL);
            served.as_mut().poll(context)
        });
        if let Err(error) = ended.await {
            self.failed(peer, &*error);
        }
    }
}

/// The reason of the GOAWAY that the server closed a connection with, if it did.
fn goaway(error: &(dyn std::error::Error + 'static)) -> Option<h2::Reason> {
    let errors = std::iter::successors(Some(error), |error| error.source());
    let error = errors.into_iter().find_map(|error| error.downcast_ref::<h2::Error>())?;
    error.reason().filter(|_| error.is_go_away() && error.is_library())
}

/// The path without a key or permit token. A key may be a credential, and the token of a shared
/// permit contains its key.
fn without_key(path: &str) -> &str {
    let is_of = |start: &&str| path.starts_with(start);
    match ["/admin/v1/policies/", "/v1/permits/"].into_iter().find(is_of) {
        Some("/v1/permits/") => "/v1/permits/",
        Some(_) => path.find("/keys/").map_or(path, |at| &path[..at + "/keys/".len()]),
        None => path,
    }
}
