//! Connections over HTTP/1.1 and HTTP/2: requests to a front, responses back.
//!
//! Everything a peer can make the server buffer has a bound here: the size of a head, the
//! streams of an HTTP/2 connection, the bytes read per poll.

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

use super::connections::{ConnCommand, Connection};
use super::listener::{Protocol, Stream};
use super::paced_stream::{PacedStream, READ_PER_POLL};
use super::settings::FrontName;
use super::tracked_stream::TrackedStream;
use crate::admin::ServerState;
use crate::fronts::response_future::{Call, Front, ResponseFuture};
use crate::logs::LogThrottle;

/// The largest head, and the most that is read ahead of a request. Gateways copy the
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

/// The interval of pings on an HTTP/2 connection, and how long the peer may take to answer one.
/// Without them a host that is gone keeps a connection half open for ever.
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

type Builder = auto::Builder<InlineExecutor>;

/// Polls each response of an HTTP/2 connection once, in place, which completes nearly all of
/// them. Only the rest become tasks: a task costs more than a decision, and responses that are
/// ready when the connection writes are sent together.
#[derive(Clone, Copy, Debug)]
struct InlineExecutor;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for InlineExecutor {
    fn execute(&self, answer: F) {
        let mut answer = Box::pin(answer);
        // The task polls it again, and registers the waker that counts.
        if answer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            tokio::spawn(answer);
        }
    }
}

/// Detects HTTP/1.1 or HTTP/2 by the first bytes of the client.
fn builder(front: FrontName) -> Builder {
    let streams = if front == FrontName::Grpc { MAX_GRPC_STREAMS } else { MAX_STREAMS };
    let mut builder = auto::Builder::new(InlineExecutor);
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
        // its clients. `PacedStream` bounds how many can wait to be sent.
        .max_local_error_reset_streams(None)
        .max_send_buf_size(MAX_SEND_BYTES);
    builder
}

/// Connections of a front that is spoken to over HTTP.
pub struct HttpProtocol<F> {
    front: Arc<F>,
    name: FrontName,
    server_state: Arc<ServerState>,
    builder: Builder,
    /// Connections that were closed for an error.
    goaways: LogThrottle,
}

impl<F: Front> HttpProtocol<F> {
    pub fn new(front: Arc<F>, name: FrontName, server_state: &Arc<ServerState>) -> Self {
        let (server_state, goaways) = (Arc::clone(server_state), LogThrottle::default());
        HttpProtocol { front, name, server_state, builder: builder(name), goaways }
    }

    /// Records why a connection ended early.
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
        stream: TrackedStream<S>,
        peer: SocketAddr,
        connection: Arc<Connection>,
    ) {
        let (front, marks, name) = (Arc::clone(&self.front), Arc::clone(&connection), self.name);
        let service = service_fn(move |request: Request<Incoming>| {
            let (method, path) = (request.method(), request.uri().path());
            if request.version() == Version::HTTP_2 {
                marks.set_http2();
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
        let stream =
            PacedStream::new(stream, Arc::clone(&connection), name, Arc::clone(&self.server_state));
        let io = TokioIo::new(stream);
        let mut served = pin!(self.builder.serve_connection(io, service));
        let (mut known, mut draining) = (false, false);
        let ended = poll_fn(|context| {
            if !known {
                connection.set_waker(context.waker());
                known = true;
            }
            match connection.command() {
                ConnCommand::Serve => {}
                ConnCommand::Drain if draining => {}
                ConnCommand::Drain => {
                    draining = true;
                    served.as_mut().graceful_shutdown();
                }
                ConnCommand::Close => return Poll::Ready(Ok(())),
            }
            connection.begin_poll(READ_PER_POLL);
            served.as_mut().poll(context)
        });
        if let Err(error) = ended.await {
            self.failed(peer, &*error);
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
