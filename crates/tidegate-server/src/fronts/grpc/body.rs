//! Bodies of gRPC: messages, each after a flag of one byte and a length of four, and in responses a
//! status in the trailers.
//!
//! A message of the rate limit service may be compressed with gzip. Replies are not compressed,
//! which the protocol allows: they are shorter than the header that would announce it.

use std::borrow::Cow;
use std::convert::Infallible;
use std::io::{Cursor, Read};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use flate2::read::GzDecoder;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::error::{ErrorKind, RequestError};
use crate::fronts::request_body::{self, MAX_ENVOY_BYTES};

/// A response of this front.
pub type GrpcResponse = Response<GrpcBody>;

static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
static GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// The characters that gRPC percent-encodes in a status message, besides all that are not ASCII.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// The header that names the compression of a request's message, and that of the ones the server
/// supports.
const GRPC_ENCODING: &str = "grpc-encoding";
static GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const ACCEPTED: HeaderValue = HeaderValue::from_static("identity,gzip");

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

/// A stream of messages that tonic encodes.
pub struct MessageStream {
    body: tonic::body::Body,
    /// Is ready when the stream has to end.
    end: Pin<Box<dyn Future<Output = RequestError> + Send>>,
    /// The result of `end`.
    error: Option<RequestError>,
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

    /// Creates the response of a service that uses tonic. When `end` is ready, the stream ends with
    /// its error, after the messages that are ready.
    pub fn stream(
        response: Response<tonic::body::Body>,
        end: impl Future<Output = RequestError> + Send + 'static,
    ) -> GrpcResponse {
        response
            .map(|body| GrpcBody::Stream(MessageStream { body, end: Box::pin(end), error: None }))
    }

    /// Creates a response with an error status in its headers.
    pub fn error(error: &RequestError) -> GrpcResponse {
        let mut response = to_response(GrpcBody::Empty);
        let headers = response.headers_mut();
        put_status(error, headers);
        // Required if the compression of a request is not supported.
        if error.kind == ErrorKind::Unsupported {
            headers.insert(&GRPC_ACCEPT_ENCODING, ACCEPTED);
        }
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
        if let GrpcBody::Stream(stream) = this {
            return match stream.poll_frame(context) {
                Poll::Ready(Some(frame)) => Poll::Ready(Some(Ok(frame))),
                Poll::Ready(None) => {
                    *this = GrpcBody::Empty;
                    Poll::Ready(None)
                }
                Poll::Pending => {
                    let Some(error) = stream.error.take() else {
                        stream.error = Some(ready!(stream.end.as_mut().poll(context)));
                        // A message may be ready for the same reason, since the stream was polled.
                        return self.poll_frame(context);
                    };
                    *this = GrpcBody::Empty;
                    let mut trailers = HeaderMap::new();
                    put_status(&error, &mut trailers);
                    Poll::Ready(Some(Ok(Frame::trailers(trailers))))
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
        match self {
            GrpcBody::Empty => true,
            // The status of an error is in the headers.
            GrpcBody::Stream(stream) => stream.body.is_end_stream(),
            _ => false,
        }
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

impl MessageStream {
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Frame<Cursor<Vec<u8>>>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(frame.map(|frame| match frame {
            Ok(frame) => frame.map_data(|bytes| Cursor::new(bytes.into())),
            Err(status) => {
                let mut trailers = HeaderMap::new();
                // A message that is not a header value is left out.
                let _ = status.add_header(&mut trailers);
                Frame::trailers(trailers)
            }
        }))
    }
}

/// The length of the prefix of a message: a flag and a length.
pub const PREFIX_BYTES: usize = 5;

/// Returns the message of a complete body with exactly one message. `headers` are those of the
/// request.
pub fn single_message<'b>(
    headers: &HeaderMap,
    body: &'b [u8],
) -> Result<Cow<'b, [u8]>, RequestError> {
    let Some((&[flag, length @ ..], message)) = body.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(RequestError::invalid("the call has no message: send one"));
    };
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > MAX_ENVOY_BYTES {
        return Err(too_large());
    }
    match message.len() {
        bytes if bytes == length => {}
        bytes if bytes < length => return Err(RequestError::invalid("the message is incomplete")),
        _ => {
            return Err(RequestError::invalid("there is more than one message: send one per call"));
        }
    }
    match flag {
        0 => Ok(Cow::Borrowed(message)),
        1 => decompress(headers, message).map(Cow::Owned),
        _ => Err(RequestError::invalid("the message has an invalid gRPC prefix")),
    }
}

/// Decompresses a message, up to its maximum size.
#[cold]
fn decompress(headers: &HeaderMap, message: &[u8]) -> Result<Vec<u8>, RequestError> {
    match headers.get(GRPC_ENCODING).map_or(&b"identity"[..], HeaderValue::as_bytes) {
        b"gzip" => {}
        b"identity" => {
            let message = "the message is marked as compressed, without a `grpc-encoding`";
            return Err(RequestError::new(ErrorKind::Internal, message));
        }
        _ => {
            let message = "this compression is not supported: send `grpc-encoding: gzip`, or none";
            return Err(RequestError::new(ErrorKind::Unsupported, message));
        }
    }
    let mut decompressed = Vec::new();
    let most = MAX_ENVOY_BYTES as u64 + 1;
    match GzDecoder::new(message).take(most).read_to_end(&mut decompressed) {
        Ok(bytes) if bytes > MAX_ENVOY_BYTES => Err(too_large()),
        Ok(_) => Ok(decompressed),
        Err(_) => Err(RequestError::new(ErrorKind::Internal, "the message cannot be decompressed")),
    }
}

/// Reads the whole body of a call with one message. `first` is the part that was already read.
pub async fn collect(body: Incoming, first: Option<Bytes>) -> Result<Bytes, RequestError> {
    request_body::collect(body, first, PREFIX_BYTES + MAX_ENVOY_BYTES).await.map_err(read_error)
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

fn too_large() -> RequestError {
    let message = format!(
        "the message is larger than {MAX_ENVOY_BYTES} bytes: send fewer or shorter entries"
    );
    RequestError::new(ErrorKind::TooLarge, message)
}

fn broken() -> RequestError {
    RequestError::new(ErrorKind::BrokenOff, "the call was interrupted")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;
    use crate::error::GrpcCode;

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
    fn unsupported_compression_is_answered_with_the_supported() {
        let error = RequestError::new(ErrorKind::Unsupported, "deflate");
        let response = GrpcBody::error(&error);
        assert_eq!(response.headers()[&GRPC_ACCEPT_ENCODING], "identity,gzip");
        let response = GrpcBody::error(&RequestError::invalid("x"));
        assert_eq!(response.headers().get(&GRPC_ACCEPT_ENCODING), None);
    }

    #[test]
    fn parses_single_message_bodies() {
        #[rustfmt::skip]
        let rows: [(&[u8], Result<&[u8], &str>); 7] = [
            (&[0, 0, 0, 0, 0], Ok(&[])),
            (&[0, 0, 0, 0, 2, 7, 8], Ok(&[7, 8])),
            (&[], Err("the call has no message: send one")),
            (&[0, 0, 0, 0], Err("the call has no message: send one")),
            (&[0, 0, 0, 0, 2, 7], Err("the message is incomplete")),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0], Err("there is more than one message: send one per call")),
            (&[0, 255, 255, 255, 255, 1],
             Err("the message is larger than 1048576 bytes: send fewer or shorter entries")),
        ];
        for (body, expected) in rows {
            let got = single_message(&HeaderMap::new(), body).map_err(|error| error.to_string());
            assert_eq!(
                got.as_deref(),
                expected.map_err(str::to_owned).as_ref().copied(),
                "{body:?}"
            );
        }
    }

    #[test]
    fn decompresses_messages_up_to_a_bound() {
        let gzip = |bytes: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes).expect("memory");
            encoder.finish().expect("memory")
        };
        let body = |compressed: &[u8]| {
            let mut body = framed(0, |out| out.extend_from_slice(compressed));
            body[0] = 1;
            body
        };
        let (largest, larger) = (vec![7; MAX_ENVOY_BYTES], vec![7; MAX_ENVOY_BYTES + 1]);
        let cut = &gzip(&[7; 100])[..20];
        #[rustfmt::skip]
        let rows: [(&str, Vec<u8>, Result<&[u8], GrpcCode>); 8] = [
            ("gzip", gzip(&[7, 8]), Ok(&[7, 8])),
            ("gzip", gzip(&[]), Ok(&[])),
            ("gzip", gzip(&largest), Ok(&largest)),
            ("gzip", gzip(&larger), Err(GrpcCode::ResourceExhausted)),
            ("gzip", cut.to_vec(), Err(GrpcCode::Internal)),
            ("gzip", vec![1, 2, 3], Err(GrpcCode::Internal)),
            ("deflate", vec![1], Err(GrpcCode::Unimplemented)),
            ("identity", vec![1], Err(GrpcCode::Internal)),
        ];
        for (encoding, compressed, expected) in rows {
            let headers = [(GRPC_ENCODING, encoding)].map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            });
            let headers = HeaderMap::from_iter(headers);
            let body = body(&compressed);
            let got = single_message(&headers, &body).map_err(|error| error.grpc_code());
            assert!(got.as_deref() == expected.as_ref().copied(), "{encoding}: {expected:?}");
        }
    }
}
