//! The responses to requests that the layer rejects.

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

use super::request::Head;
use crate::gate::{DenialReason, GateError, GateVerdict};
use crate::headers::{Forms, PROBLEM_JSON, Problem, write_problem};
use crate::{Limit, RetryAfter, Timestamp};

static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
static GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// The time after which a gRPC client may retry, in milliseconds; -1 if it must not.
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

/// A request that the layer rejects, with a response that is ready to be sent: 429 with
/// `Retry-After` and the fields of the layer's forms, 503 if a shared store failed, or 400 or 500
/// if the request cannot be decided. With feature `axum` it implements `IntoResponse`.
#[derive(Clone, Debug)]
pub struct Rejection {
    /// Boxed, because it is the error of functions that usually succeed.
    inner: Box<Inner>,
}

#[derive(Clone, Debug)]
struct Inner {
    response: Response<String>,
    detail: String,
    reason: Option<DenialReason>,
    policy: Option<String>,
    limit: Option<Limit>,
    retry_after: RetryAfter,
}

impl Rejection {
    /// The rejection of a request that was denied.
    pub(super) fn denied(response: Response<String>, verdict: &GateVerdict<'_>) -> Self {
        let reported = verdict.reported_limit();
        Rejection {
            inner: Box::new(Inner {
                response,
                detail: detail_of(verdict),
                reason: verdict.denial_reason(),
                policy: reported.and_then(|result| result.policy).map(str::to_owned),
                limit: reported.map(|result| *result.limit),
                retry_after: verdict.retry_after(),
            }),
        }
    }

    /// The rejection of a request that cannot be decided.
    pub(super) fn undecided(response: Response<String>, detail: String) -> Self {
        let (reason, policy, limit) = (None, None, None);
        let retry_after = RetryAfter::Never;
        Rejection {
            inner: Box::new(Inner { response, detail, reason, policy, limit, retry_after }),
        }
    }

    /// The rejection of a reservation that was denied: always a problem document, because the
    /// request's head is not available.
    pub(super) fn of_verdict(verdict: &GateVerdict<'_>, forms: Forms, now: Timestamp) -> Self {
        let mut response = problem(verdict);
        verdict.write_fields(forms, now, response.headers_mut());
        Rejection::denied(response, verdict)
    }

    /// The rejection of a reservation that cannot be decided.
    pub(super) fn of_failure(detail: String) -> Self {
        let response = document_of(StatusCode::INTERNAL_SERVER_ERROR, &detail);
        Rejection::undecided(response, detail)
    }

    /// The cause as text: the `detail` of the prepared problem document, also for a gRPC call.
    ///
    /// It may repeat text that the client sent, such as the name of an unknown plan. That text is
    /// cut to 64 bytes, and control characters are escaped, but `<` and `&` are not: escape the
    /// detail before it becomes part of an HTML page.
    pub fn detail(&self) -> &str {
        &self.inner.detail
    }

    /// Why a limit denied the request. `None` if the request could not be decided (400 or 500).
    pub fn reason(&self) -> Option<DenialReason> {
        self.inner.reason
    }

    /// The status of the prepared response. A gRPC call has 200, and its status in `grpc-status`.
    pub fn status(&self) -> StatusCode {
        self.inner.response.status()
    }

    /// The reported policy: a rule, or a plan as `rule.plan`. `None` if no limit denied.
    pub fn policy(&self) -> Option<&str> {
        self.inner.policy.as_deref()
    }

    /// The reported limit: of those that denied, the one with the longest wait. `None` if no limit
    /// denied.
    pub fn limit(&self) -> Option<&Limit> {
        self.inner.limit.as_ref()
    }

    /// The time after which the same request would pass. `Never` if the cost exceeds the limit, and
    /// also if no limit denied.
    pub fn retry_after(&self) -> RetryAfter {
        self.inner.retry_after
    }

    /// The prepared response.
    pub fn response(&self) -> &Response<String> {
        &self.inner.response
    }

    /// The prepared response, for changes.
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
        write!(f, "the request is rejected ({}): {}", self.status(), self.detail())
    }
}

impl std::error::Error for Rejection {}

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Rejection {
    fn into_response(self) -> axum::response::Response {
        self.inner.response.map(axum::body::Body::from)
    }
}

/// The longest body of a response that [`LayerBuilder::on_denied`](super::LayerBuilder::on_denied)
/// makes.
#[cfg(feature = "axum")]
const MAX_BODY_BYTES: usize = 1 << 20;

/// Reads a body that is complete. Returns `None` if the body is a stream that is not ready, fails
/// or is too long.
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

/// Returns the response that `on_denied` makes of a rejection, and completes it: a status of 200
/// becomes that of the rejection, and missing header fields are added.
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

/// The response to a denied request: a problem document (RFC 9457) or a gRPC status, with the
/// header fields of `forms`.
pub(super) fn response_to(
    head: &Head<'_>,
    verdict: &GateVerdict<'_>,
    forms: Forms,
    now: Timestamp,
) -> Response<String> {
    let mut response = match grpc_kind(head.headers()) {
        Some(kind) => grpc_denial(verdict, kind),
        None => problem(verdict),
    };
    verdict.write_fields(forms, now, response.headers_mut());
    response
}

fn problem(verdict: &GateVerdict<'_>) -> Response<String> {
    let mut body = String::with_capacity(512);
    let status = verdict.with_view(|response| {
        let problem = verdict.problem(response);
        write_problem(&problem, &mut body);
        problem.status()
    });
    document(status, body)
}

/// The `detail` of a denial's problem document.
fn detail_of(verdict: &GateVerdict<'_>) -> String {
    let mut detail = String::new();
    // Writing to a `String` cannot fail.
    let _ = verdict.with_view(|response| verdict.problem(response).write_detail(&mut detail));
    detail
}

/// A gRPC response of header fields alone (`Trailers-Only`), for a denied call.
fn grpc_denial(verdict: &GateVerdict<'_>, kind: &HeaderValue) -> Response<String> {
    let status = match verdict.denial_reason() {
        Some(DenialReason::StoreFailed) => code::UNAVAILABLE,
        _ => code::RESOURCE_EXHAUSTED,
    };
    let mut response = grpc(kind, status, &detail_of(verdict));
    let pushback = match verdict.retry_after() {
        RetryAfter::Never => HeaderValue::from_static("-1"),
        wait => HeaderValue::from(wait.as_micros().unwrap_or_default().div_ceil(1000)),
    };
    response.headers_mut().insert(&GRPC_PUSHBACK, pushback);
    response
}

/// The status of a request that the gate cannot decide: 400 if the request is malformed, 500 for
/// any other error.
pub(super) fn status_of(error: &GateError) -> StatusCode {
    match error {
        GateError::Select(_) => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The response to a request that cannot be decided.
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
    write_problem(&Problem::Undecided { status, field: None, detail }, &mut body);
    document(status, body)
}

fn document(status: StatusCode, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    response
}

/// The content type of a gRPC call, which the response repeats. `None` for other requests.
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

/// Encodes a gRPC message: printable ASCII stays, other bytes become `%` and two hexadecimal
/// digits.
fn percent_encoded(message: &str) -> String {
    let mut out = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'$' | b'&'..=b'~' => out.push(char::from(byte)),
            // Writing to a `String` cannot fail.
            byte => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}
