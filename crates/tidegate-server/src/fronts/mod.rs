//! Fronts: the protocols over which decisions are requested. Each front decodes a request, calls
//! the gate and encodes the response.
//!
//! The HTTP, gRPC and admin fronts implement [`Front`] and share the future of a response
//! ([`ResponseFuture`]). Nearly all requests are answered in its first poll: the body of a check
//! arrives together with its head, a gateway sends no body, and a decision in memory never waits.
//! Such a request is answered in place, without being moved. All others continue in a boxed future,
//! whose allocation costs little compared with what they wait for. A single `async` function for
//! both would be a large state machine that is moved for every request, which costs more than the
//! decision.
//!
//! The bounds of the values that callers send are the same on every front.

pub mod envoy;
pub mod grpc;
pub mod http;
mod http_protocol;
pub mod request_body;
pub mod resp;

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::http::{HeaderName, Request, Response};
use bytes::Bytes;
use hyper::body::{Body, Incoming};
use tidegate::unstable::bounds;
use tidegate::unstable::policy::MAX_KEY_BYTES;
use tracing::Span;

pub use self::http_protocol::{HttpProtocol, host_error};

use crate::connections::InFlight;
use crate::error::RequestError;

/// A protocol adapter over HTTP: responds to every request, with an error if necessary.
pub trait Front: Send + Sync + 'static {
    /// The body type of its responses.
    type Body: Body<Data: Send, Error: std::error::Error + Send + Sync> + Send + 'static;

    /// Responds without waiting if possible. Called once, in the first poll.
    fn start(&self, _call: &mut FrontCall, _context: &mut Context<'_>) -> Start<Self::Body> {
        Start::Later(None)
    }

    /// Responds to any request. `first_chunk` is the part of the body that `start` has read.
    fn finish(
        self: Arc<Self>,
        call: FrontCall,
        first_chunk: Option<Bytes>,
    ) -> impl Future<Output = Response<Self::Body>> + Send + 'static;

    /// Counts a response.
    fn record(&self, response: &Response<Self::Body>);
}

/// A request and the connection it arrived on.
pub struct FrontCall {
    pub request: Request<Incoming>,
    pub peer: SocketAddr,
    /// The request counts as in flight until this is dropped. A streamed response keeps it
    /// in its body.
    pub in_flight: InFlight,
}

impl FrontCall {
    /// Returns the first chunk of the body, if it has arrived. The caller must not discard an
    /// error: a second read may report the end of the body instead.
    pub fn first_chunk(
        &mut self,
        context: &mut Context<'_>,
    ) -> Result<Option<Bytes>, RequestError> {
        match Pin::new(self.request.body_mut()).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => Ok(frame.into_data().ok()),
            Poll::Ready(Some(Err(_))) => Err(request_body::broken()),
            Poll::Ready(None) | Poll::Pending => Ok(None),
        }
    }
}

/// The result of the first poll.
pub enum Start<B> {
    Ready(Response<B>),
    /// The request has to wait. Holds the chunk of its body that was already read.
    Later(Option<Bytes>),
}

/// The response of a front to one request. It is polled within the span of the request.
pub struct ResponseFuture<F: Front> {
    front: Arc<F>,
    step: Step<F::Body>,
    span: Span,
}

#[expect(clippy::large_enum_variant, reason = "nearly all requests never leave the large one")]
enum Step<B> {
    Started(FrontCall),
    Boxed(Pin<Box<dyn Future<Output = Response<B>> + Send>>),
    Taken,
}

impl<F: Front> ResponseFuture<F> {
    /// Creates the future. The span must have an empty field `status`.
    pub fn new(front: Arc<F>, call: FrontCall, span: Span) -> Self {
        ResponseFuture { front, step: Step::Started(call), span }
    }
}

impl<F: Front> Future for ResponseFuture<F> {
    type Output = Result<Response<F::Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ResponseFuture { front, step, span } = &mut *self;
        let _entered = span.enter();
        let response = match step {
            Step::Started(call) => match front.start(call, context) {
                Start::Ready(response) => response,
                Start::Later(first_chunk) => {
                    let Step::Started(call) = std::mem::replace(step, Step::Taken) else {
                        return Poll::Pending;
                    };
                    let mut later = Box::pin(Arc::clone(front).finish(call, first_chunk));
                    let Poll::Ready(response) = later.as_mut().poll(context) else {
                        *step = Step::Boxed(later);
                        return Poll::Pending;
                    };
                    response
                }
            },
            Step::Boxed(later) => ready!(later.as_mut().poll(context)),
            Step::Taken => return Poll::Pending,
        };
        front.record(&response);
        span.record("status", response.status().as_u16());
        Poll::Ready(Ok(response))
    }
}

/// The header that holds the request id, in requests and responses.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The largest absolute cost, which equals the largest limit.
#[expect(clippy::cast_possible_wrap, reason = "10^12 is far below 2^63")]
pub const MAX_COST: i64 = bounds::MAX_COUNT as i64;

/// The maximum length of an idempotency id: two UUIDs with room to spare.
const MAX_ID_BYTES: usize = 256;

/// Validates a key.
///
/// # Errors
/// When it is empty or too long.
#[inline]
pub fn checked_key(key: &[u8]) -> Result<&[u8], RequestError> {
    match key.len() {
        0 => Err(RequestError::field("key", "it is empty: send the name of who is counted")),
        1..=MAX_KEY_BYTES => Ok(key),
        _ => {
            let detail = format!("it is longer than {MAX_KEY_BYTES} bytes: send a hash of it");
            Err(RequestError::field("key", detail))
        }
    }
}

/// Validates an idempotency id. `field` is its name in the protocol.
///
/// # Errors
/// When it is empty or too long.
pub fn checked_id<'a>(field: &'static str, id: &'a [u8]) -> Result<&'a [u8], RequestError> {
    match id.len() {
        0 => Err(RequestError::field(field, "it is empty: leave it out, or send one per request")),
        1..=MAX_ID_BYTES => Ok(id),
        _ => {
            let detail = format!("it is longer than {MAX_ID_BYTES} bytes: shorten it");
            Err(RequestError::field(field, detail))
        }
    }
}
