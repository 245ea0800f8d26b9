//! What a request is answered that is not let through.

use std::fmt::{self, Write as _};
#[cfg(feature = "axum")]
use std::pin::Pin;
#[cfg(feature = "axum")]
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
#[cfg(feature = "axum")]
use http_body::Body as _;

use super::head::Head;
use crate::gate::{DenialReason, GateError, GateVerdict};
use crate::headers::{Forms, PROBLEM_JSON, Problem, write_problem};
use crate::{Limit, RetryAfter, Timestamp};

static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
static GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// When a gRPC client may try again, in milliseconds; -1 for never.
static GRPC_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// gRPC status codes.
mod code {
    pub(super) const INVALID_ARGUMENT: &str = "3";
    pub(super) const RESOURCE_EXHAUSTED: &str = "8";
    pub(super) const INTERNAL: &str = "13";
    pub(super) const UNAVAILABLE: &str = "14";
}

/// Makes the response of a layer with [`LayerBuilder::on_denied`](super::LayerBuilder::on_denied).
pub(super) type OnDenied = dyn Fn(&Head<'_>, Rejection) -> Option<Response<Bytes>> + Send + Sync;

/// A request that the layer does not let through, with a response that is ready to be sent: 429
/// with `Retry-After` and the fields of the layer's forms, 503 if a shared store failed, or 400 or
/// 500 if the request cannot be decided. With feature `axum` it is an `IntoResponse`.
#[derive(Clone, Debug)]
pub struct Rejection {
    /// Boxed, because it is the error of functions that usually succeed.
    inner: Box<Inner>,
}

#[derive(Clone, Debug)]
struct Inner {
    response: Response<String>,
    policy: Option<String>,
    limit: Option<Limit>,
    retry_after: RetryAfter,
}

impl Rejection {
    pub(super) fn new(response: Response<String>, answer: Option<&GateVerdict<'_>>) -> Self {
        let reported = answer.and_then(GateVerdict::reported_limit);
        let policy = reported.and_then(|result| result.policy).map(str::to_owned);
        let limit = reported.map(|result| *result.limit);
        let retry_after = answer.map_or(RetryAfter::Never, GateVerdict::retry_after);
        Rejection { inner: Box::new(Inner { response, policy, limit, retry_after }) }
    }

    /// For a request whose head is not at hand: a problem document.
    pub(super) fn of_answer(answer: &GateVerdict<'_>, forms: Forms, now: Timestamp) -> Self {
        let mut response = problem(answer);
        answer.write_fields(forms, now, response.headers_mut());
        Rejection::new(response, Some(answer))
    }

    /// For a request that cannot be decided.
    pub(super) fn of_failure(detail: &str) -> Self {
        Rejection::new(document_of(StatusCode::INTERNAL_SERVER_ERROR, detail), None)
    }

    /// The status of the prepared response. A gRPC call has 200, and its status in `grpc-status`.
    pub fn status(&self) -> StatusCode {
        self.inner.response.status()
    }

    /// The policy that is reported: a rule, or a plan as `rule.plan`. `None` if no limit denied.
    pub fn policy(&self) -> Option<&str> {
        self.inner.policy.as_deref()
    }

    /// The limit that is reported. `None` if no limit denied.
    pub fn limit(&self) -> Option<&Limit> {
        self.inner.limit.as_ref()
    }

    /// When the same request would pass; `Never` also if no limit denied.
    pub fn retry_after(&self) -> RetryAfter {
        self.inner.retry_after
    }

    /// The prepared response.
    pub fn response(&self) -> &Response<String> {
        &self.inner.response
    }

    /// The prepared response, to be changed.
    pub fn response_mut(&mut self) -> &mut Response<String> {
        &mut self.inner.response
    }
}

impl From<Rejection> for Response<String> {
    fn from(rejection: Rejection) -> Self {
        rejection.inner.response
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the request is rejected: {}", self.status())?;
        match self.limit().zip(self.policy()) {
            Some((limit, policy)) => write!(f, " (`{limit}` of policy {policy})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Rejection {}

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Rejection {
    fn into_response(self) -> axum::response::Response {
        self.inner.response.map(axum::body::Body::from)
    }
}

/// The longest body of a response that [`LayerBuilder::on_denied`](super::LayerBuilder::on_denied) makes.
#[cfg(feature = "axum")]
const MAX_BODY_BYTES: usize = 1 << 20;

/// Reads a body that is complete. `None` for one that must be waited for, fails or is too long.
#[cfg(feature = "axum")]
pub(super) fn read_body(response: Response<axum::body::Body>) -> Option<Response<Bytes>> {
    let (parts, mut body) = response.into_parts();
    let mut text = Vec::new();
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match Pin::new(&mut body).poll_frame(&mut context) {
            Poll::Ready(None) => return Some(Response::from_parts(parts, text.into())),
            Poll::Ready(Some(Ok(frame))) => text.extend_from_slice(&frame.into_data().ok()?),
            Poll::Ready(Some(Err(_))) | Poll::Pending => return None,
        }
        if text.len() > MAX_BODY_BYTES {
            return None;
        }
    }
}

/// The response that `on_denied` makes of a rejection, completed: a response that sets no status is
/// still a rejection, and carries the fields that a client needs.
#[cold]
pub(super) fn replace(
    on_denied: &OnDenied,
    head: &Head<'_>,
    rejection: Rejection,
) -> Response<Bytes> {
    let prepared = rejection.clone();
    let Some(mut response) = on_denied(head, rejection) else {
        return Response::from(prepared).map(Bytes::from);
    };
    if response.status() == StatusCode::OK {
        *response.status_mut() = prepared.status();
    }
    for (name, value) in prepared.response().headers() {
        if *name != CONTENT_TYPE && !response.headers().contains_key(name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

/// The response to a request that was denied: a problem document (RFC 9457), or the status of a gRPC
/// call; and the header fields.
pub(super) fn response_to(
    head: &Head<'_>,
    answer: &GateVerdict<'_>,
    forms: Forms,
    now: Timestamp,
) -> Response<String> {
    let mut response = match grpc_kind(head.headers()) {
        Some(kind) => grpc_denial(answer, kind),
        None => problem(answer),
    };
    answer.write_fields(forms, now, response.headers_mut());
    response
}

fn problem(answer: &GateVerdict<'_>) -> Response<String> {
    let mut body = String::with_capacity(512);
    let status = answer.with_view(|response| {
        let problem = answer.problem(response);
        write_problem(&problem, &mut body);
        problem.status()
    });
    document(status, body)
}

/// A gRPC response that consists of header fields alone, for calls that fail at once.
fn grpc_denial(answer: &GateVerdict<'_>, kind: &HeaderValue) -> Response<String> {
    let (status, message) = match answer.denial_reason() {
        Some(DenialReason::StoreFailed) => {
            (code::UNAVAILABLE, "it cannot be decided now; try again later")
        }
        _ => (code::RESOURCE_EXHAUSTED, "a rate limit is used up"),
    };
    let mut response = grpc(kind, status, message);
    let pushback = match answer.retry_after() {
        RetryAfter::Never => HeaderValue::from_static("-1"),
        wait => HeaderValue::from(wait.as_micros().unwrap_or_default().div_ceil(1000)),
    };
    response.headers_mut().insert(&GRPC_PUSHBACK, pushback);
    response
}

/// The answer to a request that the gate cannot be asked about: the fault is the client's
/// where the request is what makes no sense, else the service's.
pub(super) fn refuse(head: &Head<'_>, error: &GateError) -> Response<String> {
    let status = match error {
        GateError::Select(_) => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    fail(head, status, &error.to_string())
}

/// The answer where something is wrong that no limit has to do with.
pub(super) fn fail(head: &Head<'_>, status: StatusCode, detail: &str) -> Response<String> {
    match grpc_kind(head.headers()) {
        Some(kind) => {
            let bad = status == StatusCode::BAD_REQUEST;
            grpc(kind, if bad { code::INVALID_ARGUMENT } else { code::INTERNAL }, detail)
        }
        None => document_of(status, detail),
    }
}

fn document_of(status: StatusCode, detail: &str) -> Response<String> {
    let mut body = String::new();
    write_problem(&Problem::BadRequest { status, field: None, detail }, &mut body);
    document(status, body)
}

fn document(status: StatusCode, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    response
}

/// The content type of a gRPC call: the answer has the same.
fn grpc_kind(headers: &HeaderMap) -> Option<&HeaderValue> {
    let kind = headers.get(CONTENT_TYPE)?;
    kind.as_bytes().starts_with(b"application/grpc").then_some(kind)
}

fn grpc(kind: &HeaderValue, status: &'static str, message: &str) -> Response<String> {
    let mut response = Response::new(String::new());
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
