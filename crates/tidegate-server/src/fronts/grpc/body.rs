//! Bodies of gRPC: messages, each after a flag of one byte and a length of four, and in responses a
//! status in the trailers.

use std::convert::Infallible;
use std::io::Cursor;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::Stream;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::MAX_MESSAGE_BYTES;
use crate::error::{ErrorKind, RequestError};
use crate::fronts::http::body as http_body;
use crate::serve::InFlight;

/// A response of this front.
pub type GrpcResponse = Response<GrpcBody>;

static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
static GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// The characters that gRPC percent-encodes in a status message, besides all that are not ASCII.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// An item of a stream: a message, or the error that ends it.
pub type StreamItem = Result<Vec<u8>, RequestError>;

/// The body of a response.
pub enum GrpcBody {
    /// One message, then the status OK.
    Message(Vec<u8>),
    /// The status OK.
    Ok,
    /// Messages, then the status OK or an error.
    Stream(MessageStream),
    /// Plain text for a client that does not use gRPC.
    Plain(&'static str),
    /// Nothing, or nothing more.
    Empty,
}

/// A stream of messages. The request counts as in flight until it ends.
pub struct MessageStream {
    messages: Pin<Box<dyn Stream<Item = StreamItem> + Send>>,
    _in_flight: InFlight,
}

/// Why a request is not gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotGrpc {
    Version,
    Method,
    ContentType,
}

impl GrpcBody {
    /// Creates a response with one message, which `write` appends.
    pub fn message(capacity: usize, write: impl FnOnce(&mut Vec<u8>)) -> GrpcResponse {
        to_response(GrpcBody::Message(framed(capacity, write)))
    }

    /// Creates a response with a stream of messages.
    pub fn stream(
        messages: impl Stream<Item = StreamItem> + Send + 'static,
        in_flight: InFlight,
    ) -> GrpcResponse {
        to_response(GrpcBody::Stream(MessageStream {
            messages: Box::pin(messages),
            _in_flight: in_flight,
        }))
    }

    /// Creates a response with an error status in its headers.
    pub fn error(error: &RequestError) -> GrpcResponse {
        let mut response = to_response(GrpcBody::Empty);
        put_status(error, response.headers_mut());
        response
    }

    /// Creates a plain-text response to a request that is not gRPC.
    pub fn not_grpc(why: NotGrpc) -> GrpcResponse {
        let (status, text) = match why {
            // Not 505, because the error is the client's.
            NotGrpc::Version => (
                StatusCode::BAD_REQUEST,
                "this is the gRPC port of tidegate, which requires HTTP/2: use a gRPC client, or \
                 the port of --http\n",
            ),
            NotGrpc::Method => {
                (StatusCode::METHOD_NOT_ALLOWED, "this is the gRPC port of tidegate: use POST\n")
            }
            NotGrpc::ContentType => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "this is the gRPC port of tidegate: send `content-type: application/grpc`\n",
            ),
        };
        let mut response = Response::new(GrpcBody::Plain(text));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        if why == NotGrpc::Method {
            headers.insert(ALLOW, HeaderValue::from_static("POST"));
        }
        response
    }
}

fn to_response(content: GrpcBody) -> GrpcResponse {
    let mut response = Response::new(content);
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// Encodes a message with its prefix.
pub fn framed(capacity: usize, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::with_capacity(PREFIX_BYTES + capacity);
    out.extend_from_slice(&[0; PREFIX_BYTES]);
    write(&mut out);
    // A reply is a few kilobytes at most.
    let length = u32::try_from(out.len() - PREFIX_BYTES).unwrap_or(u32::MAX);
    out[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
    out
}

/// Parses the status code in the headers of an error response.
pub fn code(headers: &HeaderMap) -> u8 {
    let code = headers.get(&GRPC_STATUS).and_then(|code| code.to_str().ok()?.parse().ok());
    code.unwrap_or(0)
}

fn put_status(error: &RequestError, out: &mut HeaderMap) {
    out.insert(&GRPC_STATUS, HeaderValue::from(error.grpc_code() as u16));
    let message = utf8_percent_encode(&error.to_string(), ENCODED).to_string();
    if let Ok(message) = HeaderValue::try_from(message) {
        out.insert(&GRPC_MESSAGE, message);
    }
}

fn ok() -> Frame<Cursor<Vec<u8>>> {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(&GRPC_STATUS, HeaderValue::from_static("0"));
    Frame::trailers(trailers)
}

type Polled = Poll<Option<Result<Frame<Cursor<Vec<u8>>>, Infallible>>>;

impl Body for GrpcBody {
    type Data = Cursor<Vec<u8>>;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        let this = &mut *self;
        if let GrpcBody::Stream(streamed) = this {
            return match streamed.messages.as_mut().poll_next(context) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Some(Ok(message))) => {
                    Poll::Ready(Some(Ok(Frame::data(Cursor::new(message)))))
                }
                Poll::Ready(Some(Err(error))) => {
                    *this = GrpcBody::Empty;
                    let mut trailers = HeaderMap::new();
                    put_status(&error, &mut trailers);
                    Poll::Ready(Some(Ok(Frame::trailers(trailers))))
                }
                Poll::Ready(None) => {
                    *this = GrpcBody::Empty;
                    Poll::Ready(Some(Ok(ok())))
                }
            };
        }
        let frame = match std::mem::replace(this, GrpcBody::Empty) {
            GrpcBody::Message(message) => {
                *this = GrpcBody::Ok;
                Some(Frame::data(Cursor::new(message)))
            }
            GrpcBody::Ok => Some(ok()),
            GrpcBody::Plain(text) => Some(Frame::data(Cursor::new(text.into()))),
            GrpcBody::Stream(_) | GrpcBody::Empty => None,
        };
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, GrpcBody::Empty)
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            GrpcBody::Plain(text) => SizeHint::with_exact(text.len() as u64),
            GrpcBody::Empty => SizeHint::with_exact(0),
            // Trailers follow, and gRPC needs no `content-length`.
            _ => SizeHint::default(),
        }
    }
}

/// The length of the prefix of a message: a flag and a length.
pub const PREFIX_BYTES: usize = 5;

/// How long a stream may wait for its next message. An interactive client takes seconds.
const NEXT_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the message of a complete body with exactly one message.
pub fn single_message(body: &[u8]) -> Result<&[u8], RequestError> {
    let Some((prefix, message)) = body.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(RequestError::invalid("the call has no message: send one"));
    };
    let length = length(prefix)?;
    match message.len() {
        bytes if bytes == length => Ok(message),
        bytes if bytes < length => Err(RequestError::invalid("the message is incomplete")),
        _ => Err(RequestError::invalid("there is more than one message: send one per call")),
    }
}

/// Returns the length of the message after this prefix.
fn length(prefix: &[u8; PREFIX_BYTES]) -> Result<usize, RequestError> {
    let [flag, length @ ..] = *prefix;
    match flag {
        0 => {}
        1 => {
            let message = "compressed messages are not supported: send without `grpc-encoding`";
            return Err(RequestError::new(ErrorKind::Unsupported, message));
        }
        _ => return Err(RequestError::invalid("the message has an invalid gRPC prefix")),
    }
    let length = u32::from_be_bytes(length);
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > MAX_MESSAGE_BYTES {
        return Err(too_large());
    }
    Ok(length)
}

/// Reads the whole body of a call with one message. `first` is the part that was already read.
pub async fn collect(body: Incoming, first: Option<Bytes>) -> Result<Bytes, RequestError> {
    http_body::collect(body, first, PREFIX_BYTES + MAX_MESSAGE_BYTES).await.map_err(read_error)
}

/// Converts the error of a body that could not be read to its gRPC wording.
pub fn read_error(error: RequestError) -> RequestError {
    match error.kind {
        ErrorKind::TooLarge => too_large(),
        ErrorKind::TooSlow => {
            RequestError::new(ErrorKind::TooSlow, "the message took too long to arrive")
        }
        _ => broken(),
    }
}

/// Reads the messages of a stream.
pub struct Messages {
    body: Incoming,
    read: BytesMut,
}

impl Messages {
    pub fn new(body: Incoming) -> Self {
        Messages { body, read: BytesMut::new() }
    }

    /// Returns the next message; `None` at the end of the stream.
    pub async fn next(&mut self) -> Result<Option<Bytes>, RequestError> {
        tokio::time::timeout(NEXT_TIMEOUT, self.read_next()).await.unwrap_or_else(|_| {
            Err(RequestError::new(ErrorKind::TooSlow, "the next message took too long to arrive"))
        })
    }

    async fn read_next(&mut self) -> Result<Option<Bytes>, RequestError> {
        loop {
            if let Some(prefix) = self.read.first_chunk::<PREFIX_BYTES>() {
                let whole = PREFIX_BYTES + length(prefix)?;
                if self.read.len() >= whole {
                    let mut message = self.read.split_to(whole).freeze();
                    message.advance(PREFIX_BYTES);
                    return Ok(Some(message));
                }
            }
            match self.body.frame().await {
                None if self.read.is_empty() => return Ok(None),
                None => return Err(RequestError::invalid("the message is incomplete")),
                Some(Err(_)) => return Err(broken()),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.read.extend_from_slice(&bytes);
                    }
                }
            }
        }
    }
}

fn too_large() -> RequestError {
    let message = format!(
        "the message is larger than {MAX_MESSAGE_BYTES} bytes: send fewer or shorter entries"
    );
    RequestError::new(ErrorKind::TooLarge, message)
}

fn broken() -> RequestError {
    RequestError::new(ErrorKind::BrokenOff, "the call was interrupted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_encodes_status_messages() {
        let rows = [("as it is: `x`", "as it is: `x`"), ("100 %\n\u{e9}", "100 %25%0A%C3%A9")];
        for (text, expected) in rows {
            let mut headers = HeaderMap::new();
            put_status(&RequestError::invalid(text), &mut headers);
            assert_eq!(headers[&GRPC_MESSAGE], expected);
        }
    }

    #[test]
    fn parses_single_message_bodies() {
        #[rustfmt::skip]
        let rows: [(&[u8], Result<&[u8], &str>); 8] = [
            (&[0, 0, 0, 0, 0], Ok(&[])),
            (&[0, 0, 0, 0, 2, 7, 8], Ok(&[7, 8])),
            (&[], Err("the call has no message: send one")),
            (&[0, 0, 0, 0], Err("the call has no message: send one")),
            (&[0, 0, 0, 0, 2, 7], Err("the message is incomplete")),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0], Err("there is more than one message: send one per call")),
            (&[1, 0, 0, 0, 0], Err("compressed messages are not supported: send without `grpc-encoding`")),
            (&[0, 255, 255, 255, 255, 1],
             Err("the message is larger than 1048576 bytes: send fewer or shorter entries")),
        ];
        for (body, expected) in rows {
            let got = single_message(body).map_err(|error| error.to_string());
            assert_eq!(got, expected.map_err(str::to_owned), "{body:?}");
        }
    }
}
