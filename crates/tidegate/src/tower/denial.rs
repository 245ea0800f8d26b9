//! What a request is answered that is not let through.

use std::fmt::Write as _;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};

use super::head::Head;
use crate::gate::{Answer, GateError};
use crate::headers::{Forms, PROBLEM_JSON, Problem, write_problem};
use crate::{RetryAfter, Timestamp};

static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
static GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// When a gRPC client may try again, in milliseconds; -1 for never.
static GRPC_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// gRPC's numbers for what we have to say.
mod code {
    pub(super) const INVALID_ARGUMENT: &str = "3";
    pub(super) const RESOURCE_EXHAUSTED: &str = "8";
    pub(super) const INTERNAL: &str = "13";
    pub(super) const UNAVAILABLE: &str = "14";
}

/// A request that is not let through, and why.
#[derive(Debug)]
pub struct Denied<'a, 'g> {
    head: &'a Head<'a>,
    answer: &'a Answer<'g>,
    forms: Forms,
    now: Timestamp,
}

impl<'a, 'g> Denied<'a, 'g> {
    pub(super) fn new(
        head: &'a Head<'a>,
        answer: &'a Answer<'g>,
        forms: Forms,
        now: Timestamp,
    ) -> Self {
        Denied { head, answer, forms, now }
    }

    /// The request.
    pub fn head(&self) -> &'a Head<'a> {
        self.head
    }

    /// What every limit said.
    pub fn answer(&self) -> &'a Answer<'g> {
        self.answer
    }

    /// 429; or 503 if it was denied because the store failed.
    pub fn status(&self) -> StatusCode {
        self.answer.show(|shown| self.answer.problem(shown).status())
    }

    /// The header fields a response should carry: Retry-After, and those of the layer's forms.
    pub fn fields(&self) -> HeaderMap {
        let mut fields = HeaderMap::new();
        self.answer.write_fields(self.forms, self.now, &mut fields);
        fields
    }

    /// What is sent unless told otherwise: a problem document (RFC 9457), or for a gRPC
    /// call its status.
    pub fn response(&self) -> Response<Bytes> {
        let mut response = match grpc_kind(self.head.headers()) {
            Some(kind) => self.grpc(kind),
            None => self.problem(),
        };
        response.headers_mut().extend(self.fields());
        response
    }

    fn problem(&self) -> Response<Bytes> {
        let mut body = String::with_capacity(512);
        let status = self.answer.show(|shown| {
            let problem = self.answer.problem(shown);
            write_problem(&problem, &mut body);
            problem.status()
        });
        document(status, body)
    }

    /// A response that is all header, as gRPC has it for calls that fail at once.
    fn grpc(&self, kind: &HeaderValue) -> Response<Bytes> {
        let (status, message) = match self.status() {
            StatusCode::TOO_MANY_REQUESTS => (code::RESOURCE_EXHAUSTED, "a rate limit is used up"),
            _ => (code::UNAVAILABLE, "it cannot be decided now; try again later"),
        };
        let mut response = grpc(kind, status, message);
        let pushback = match self.answer.retry_after() {
            RetryAfter::Never => HeaderValue::from_static("-1"),
            wait => HeaderValue::from(wait.as_micros().unwrap_or_default().div_ceil(1000)),
        };
        response.headers_mut().insert(&GRPC_PUSHBACK, pushback);
        response
    }
}

/// The answer to a request that the gate cannot be asked about: the fault is the client's
/// where the request is what makes no sense, else the service's.
pub(super) fn refuse(head: &Head<'_>, error: &GateError) -> Response<Bytes> {
    let status = match error {
        GateError::Select(_) => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    fail(head, status, &error.to_string())
}

/// The answer where something is wrong that no limit has to do with.
pub(super) fn fail(head: &Head<'_>, status: StatusCode, detail: &str) -> Response<Bytes> {
    if let Some(kind) = grpc_kind(head.headers()) {
        let bad = status == StatusCode::BAD_REQUEST;
        return grpc(kind, if bad { code::INVALID_ARGUMENT } else { code::INTERNAL }, detail);
    }
    let mut body = String::new();
    write_problem(&Problem::BadRequest { status, field: None, detail }, &mut body);
    document(status, body)
}

fn document(status: StatusCode, body: String) -> Response<Bytes> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    response
}

/// The content type of a gRPC call: the answer has the same.
fn grpc_kind(headers: &HeaderMap) -> Option<&HeaderValue> {
    let kind = headers.get(CONTENT_TYPE)?;
    kind.as_bytes().starts_with(b"application/grpc").then_some(kind)
}

fn grpc(kind: &HeaderValue, status: &'static str, message: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, kind.clone());
    fields.insert(&GRPC_STATUS, HeaderValue::from_static(status));
    if let Ok(message) = HeaderValue::from_str(&percent_encoded(message)) {
        fields.insert(&GRPC_MESSAGE, message);
    }
    response
}

/// As gRPC wants its messages: printable ASCII, and the rest as `%` and two digits.
fn percent_encoded(message: &str) -> String {
    let mut out = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'$' | b'&'..=b'~' => out.push(char::from(byte)),
            // Writing to memory cannot fail.
            byte => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}
