//! How a request is named in logs and answers.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

/// The header that names a request, in both directions.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest name that is taken over: it goes into logs.
const MAX_ID_BYTES: usize = 128;

/// The name of a request: the caller's own if it sent one that can be shown, else
/// one made here.
#[derive(Clone, Copy, Debug)]
pub enum RequestId<'a> {
    Taken(&'a str),
    Made([u8; 16]),
}

impl<'a> RequestId<'a> {
    /// The name of the request with these headers.
    pub fn of(headers: &'a HeaderMap) -> Self {
        match headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()) {
            Some(id) if (1..=MAX_ID_BYTES).contains(&id.len()) => RequestId::Taken(id),
            _ => RequestId::Made(make()),
        }
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        match self {
            RequestId::Taken(id) => id,
            RequestId::Made(id) => std::str::from_utf8(id).unwrap_or_default(),
        }
    }

    /// As a header.
    pub fn header(&self) -> HeaderValue {
        HeaderValue::from_str(self.as_str()).unwrap_or(HeaderValue::from_static("-"))
    }
}

/// A name no other request of this process has: a thread's own numbers, each used
/// once, from a random beginning.
fn make() -> [u8; 16] {
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
