//! Answers: headers, messages, and a status in the trailers.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::io::Cursor;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use hyper::body::{Body, Frame, SizeHint};

use super::framing::PREFIX_BYTES;
use crate::error::RequestError;
use crate::serve::InFlight;

/// An answer of this front.
pub type Answered = Response<Content>;

static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
static GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// How a stream goes on: with a message, or to its end.
pub type Next = Result<Vec<u8>, RequestError>;

/// The body of an answer.
pub enum Content {
    /// One message, then the status OK.
    Message(Vec<u8>),
    /// The status OK.
    Ok,
    /// Messages until there are no more, or a status that says why.
    Stream(Streamed),
    /// For whoever does not speak gRPC.
    Plain(&'static str),
    /// Nothing more.
    Empty,
}

/// A stream of messages; the request is on its way for as long as it lasts.
pub struct Streamed {
    messages: Pin<Box<dyn Stream<Item = Next> + Send>>,
    _in_flight: InFlight,
}

/// Ways not to speak gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfPlace {
    Version,
    Method,
    ContentType,
}

impl Content {
    /// An answer with one message, which `write` appends.
    pub fn message(capacity: usize, write: impl FnOnce(&mut Vec<u8>)) -> Answered {
        answer(Content::Message(framed(capacity, write)))
    }

    /// An answer with many.
    pub fn stream(
        messages: impl Stream<Item = Next> + Send + 'static,
        in_flight: InFlight,
    ) -> Answered {
        answer(Content::Stream(Streamed { messages: Box::pin(messages), _in_flight: in_flight }))
    }

    /// An answer with a status alone, which then stands in the headers.
    pub fn refuse(error: &RequestError) -> Answered {
        let mut response = answer(Content::Empty);
        put_status(error, response.headers_mut());
        response
    }

    /// An answer for whoever does not speak gRPC.
    pub fn out_of_place(why: OutOfPlace) -> Answered {
        let (status, text) = match why {
            // No 505: it is the client that is wrong here.
            OutOfPlace::Version => (
                StatusCode::BAD_REQUEST,
                "this is tidegate's gRPC front, which speaks HTTP/2: ask the one at --http, or use gRPC\n",
            ),
            OutOfPlace::Method => (
                StatusCode::METHOD_NOT_ALLOWED,
                "this is tidegate's gRPC front: gRPC calls are POST\n",
            ),
            OutOfPlace::ContentType => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "this is tidegate's gRPC front: send `content-type: application/grpc`\n",
            ),
        };
        let mut response = Response::new(Content::Plain(text));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        if why == OutOfPlace::Method {
            headers.insert(ALLOW, HeaderValue::from_static("POST"));
        }
        response
    }
}

fn answer(content: Content) -> Answered {
    let mut response = Response::new(content);
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// A message behind its prefix.
pub fn framed(capacity: usize, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::with_capacity(PREFIX_BYTES + capacity);
    out.extend_from_slice(&[0; PREFIX_BYTES]);
    write(&mut out);
    // Answers are a few kilobytes at most.
    let length = u32::try_from(out.len() - PREFIX_BYTES).unwrap_or(u32::MAX);
    out[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
    out
}

/// The code in the headers of an error response.
pub fn code(headers: &HeaderMap) -> u8 {
    let code = headers.get(&GRPC_STATUS).and_then(|code| code.to_str().ok()?.parse().ok());
    code.unwrap_or(0)
}

fn put_status(error: &RequestError, out: &mut HeaderMap) {
    out.insert(&GRPC_STATUS, HeaderValue::from(error.grpc_code() as u16));
    if let Ok(message) = HeaderValue::try_from(percent_encoded(&error.to_string())) {
        out.insert(&GRPC_MESSAGE, message);
    }
}

/// As the protocol has it: printable ASCII but `%` stands for itself.
fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        // Writing to memory cannot fail.
        let _ = match byte {
            b'%' | ..=0x1f | 0x7f.. => write!(out, "%{byte:02X}"),
            _ => out.write_char(byte.into()),
        };
    }
    out
}

fn ok() -> Frame<Cursor<Vec<u8>>> {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(&GRPC_STATUS, HeaderValue::from_static("0"));
    Frame::trailers(trailers)
}

type Polled = Poll<Option<Result<Frame<Cursor<Vec<u8>>>, Infallible>>>;

impl Body for Content {
    type Data = Cursor<Vec<u8>>;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        let this = &mut *self;
        if let Content::Stream(streamed) = this {
            return match streamed.messages.as_mut().poll_next(context) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Some(Ok(message))) => {
                    Poll::Ready(Some(Ok(Frame::data(Cursor::new(message)))))
                }
                Poll::Ready(Some(Err(error))) => {
                    *this = Content::Empty;
                    let mut trailers = HeaderMap::new();
                    put_status(&error, &mut trailers);
                    Poll::Ready(Some(Ok(Frame::trailers(trailers))))
                }
                Poll::Ready(None) => {
                    *this = Content::Empty;
                    Poll::Ready(Some(Ok(ok())))
                }
            };
        }
        let frame = match std::mem::replace(this, Content::Empty) {
            Content::Message(message) => {
                *this = Content::Ok;
                Some(Frame::data(Cursor::new(message)))
            }
            Content::Ok => Some(ok()),
            Content::Plain(text) => Some(Frame::data(Cursor::new(text.into()))),
            Content::Stream(_) | Content::Empty => None,
        };
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Content::Empty)
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Content::Plain(text) => SizeHint::with_exact(text.len() as u64),
            Content::Empty => SizeHint::with_exact(0),
            // Trailers follow, and gRPC sends no `content-length`.
            _ => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_status_are_printable() {
        let rows = [("as it is: `x`", "as it is: `x`"), ("100 %\n\u{e9}", "100 %25%0A%C3%A9")];
        for (text, expected) in rows {
            assert_eq!(percent_encoded(text), expected);
        }
    }
}
