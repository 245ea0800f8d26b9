//! Responses: their bodies, and request ids.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::io::Cursor;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::Full;

use crate::error::RequestError;
use crate::fronts::REQUEST_ID;

/// The maximum length of an id that is adopted, because ids are logged.
const MAX_ID_BYTES: usize = 128;

/// The id of a request: that of the caller if it sent a valid one, else a generated one.
#[derive(Clone, Copy, Debug)]
pub enum RequestId<'a> {
    Received(&'a str),
    Generated([u8; 16]),
}

impl<'a> RequestId<'a> {
    /// Returns the id of the request with these headers.
    pub fn of(headers: &'a HeaderMap) -> Self {
        match headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()) {
            Some(id) if (1..=MAX_ID_BYTES).contains(&id.len()) => RequestId::Received(id),
            _ => RequestId::Generated(generate()),
        }
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        match self {
            RequestId::Received(id) => id,
            RequestId::Generated(id) => std::str::from_utf8(id).unwrap_or_default(),
        }
    }

    /// Returns the id as a header value.
    pub fn header(&self) -> HeaderValue {
        HeaderValue::from_str(self.as_str()).unwrap_or(HeaderValue::from_static("-"))
    }
}

/// Generates an id that is unique in this process: each thread steps through numbers from a random
/// start, each used once.
fn generate() -> [u8; 16] {
    thread_local! {
        static NEXT: Cell<u64> = Cell::new(RandomState::new().hash_one(0));
    }
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let number = NEXT.get();
    NEXT.set(number.wrapping_add(STEP));
    let mut text = [0; 16];
    for (place, digit) in text.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(number >> (60 - 4 * place) & 0xf) as usize];
    }
    text
}

/// A response of this front.
pub type HttpResponse = Response<HttpBody>;

/// The body of a response: a single buffer, without the indirection of `Bytes`.
pub type HttpBody = Full<Cursor<Vec<u8>>>;

impl RequestError {
    /// Creates the response to the request with this id.
    pub fn respond(&self, id: &RequestId<'_>) -> HttpResponse {
        let mut response = self.to_response(content);
        response.headers_mut().insert(REQUEST_ID, id.header());
        response
    }
}

/// Creates a response body.
pub fn content(body: impl Into<Vec<u8>>) -> HttpBody {
    Full::new(Cursor::new(body.into()))
}

/// Creates a JSON response.
pub fn json(status: StatusCode, body: Vec<u8>) -> HttpResponse {
    let mut response = Response::new(content(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The OpenAPI description of the HTTP API. It is written by hand, because people read it too. The
/// tests compare it with the responses of the server.
const OPENAPI: &str = include_str!("openapi.json");

/// The response of `/openapi.json`.
pub fn openapi() -> HttpResponse {
    let description = OPENAPI.replacen("VERSION", env!("CARGO_PKG_VERSION"), 1);
    json(StatusCode::OK, description.into_bytes())
}
