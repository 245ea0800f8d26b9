//! The error type of requests that cannot be decided, shared by all fronts.
//!
//! An error has a kind, an optional field that it is about, and a detail that explains how to
//! correct the request. [`ErrorKind::codes`] maps each kind to one code per protocol. The HTTP and
//! admin fronts send a problem document, gRPC sends a status, and RESP sends an error reply.

use std::borrow::Cow;
use std::fmt;

use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use tidegate::unstable::gate::{GateError, GateVerdict};
use tidegate::unstable::headers::{PROBLEM_JSON, Problem, write_problem};
use tidegate::unstable::stats::Decided;
use tidegate::{CheckError, MAX_CHECKS};

/// An error that prevents a request from being decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestError {
    pub kind: ErrorKind,
    /// The field in error, as the request spells it.
    pub field: Option<Cow<'static, str>>,
    /// The problem, and how to correct it.
    pub detail: Cow<'static, str>,
}

/// The kind of an error, from which the codes of every protocol follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request or a field of it is malformed or out of range.
    Invalid,
    /// Parts of the request contradict each other, the policies or an earlier request.
    Conflict,
    /// The limits need a permit instead of a check, or a check instead of a permit.
    WrongOperation,
    NotFound,
    /// The path does not support the method. Holds the allowed methods, where they are known.
    MethodNotAllowed(Option<&'static str>),
    /// The content type, encoding, protocol version or method is not supported.
    Unsupported,
    TooLarge,
    /// The request did not arrive in time.
    TooSlow,
    /// The request ended before it was complete.
    BrokenOff,
    /// None of the secrets was sent.
    Unauthenticated,
    /// The secret is wrong, or a web page of another site sent the request.
    Forbidden,
    /// A transaction was discarded.
    Aborted,
    /// An invalid command of redis-cell. Its reply has the wording of redis-cell, which clients
    /// know.
    RedisCell,
    /// The server is at capacity or shutting down.
    Unavailable,
    /// The store failed, so the request could not be decided. It may be sent again.
    StoreFailed,
    /// A bug or failure inside the server.
    Internal,
}

/// A gRPC status code. Only the codes that the server sends are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrpcCode {
    Cancelled = 1,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

impl ErrorKind {
    /// The HTTP status, the gRPC code and the prefix of a RESP error.
    #[rustfmt::skip]
    const fn codes(self) -> (StatusCode, GrpcCode, &'static str) {
        match self {
            ErrorKind::Invalid => (StatusCode::BAD_REQUEST, GrpcCode::InvalidArgument, "ERR"),
            ErrorKind::Conflict => (StatusCode::CONFLICT, GrpcCode::InvalidArgument, "ERR"),
            ErrorKind::WrongOperation => (StatusCode::CONFLICT, GrpcCode::FailedPrecondition, "ERR"),
            ErrorKind::NotFound => (StatusCode::NOT_FOUND, GrpcCode::NotFound, "ERR"),
            ErrorKind::MethodNotAllowed(_) => (StatusCode::METHOD_NOT_ALLOWED, GrpcCode::Unimplemented, "ERR"),
            ErrorKind::Unsupported => (StatusCode::UNSUPPORTED_MEDIA_TYPE, GrpcCode::Unimplemented, "NOPROTO"),
            ErrorKind::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, GrpcCode::ResourceExhausted, "ERR"),
            ErrorKind::TooSlow => (StatusCode::REQUEST_TIMEOUT, GrpcCode::DeadlineExceeded, "ERR"),
            ErrorKind::BrokenOff => (StatusCode::BAD_REQUEST, GrpcCode::Cancelled, "ERR"),
            ErrorKind::Unauthenticated => (StatusCode::UNAUTHORIZED, GrpcCode::Unauthenticated, "NOAUTH"),
            ErrorKind::Forbidden => (StatusCode::FORBIDDEN, GrpcCode::PermissionDenied, "WRONGPASS"),
            ErrorKind::Aborted => (StatusCode::CONFLICT, GrpcCode::Aborted, "EXECABORT"),
            ErrorKind::RedisCell => (StatusCode::BAD_REQUEST, GrpcCode::InvalidArgument, "Cell error:"),
            ErrorKind::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, GrpcCode::Unavailable, "ERR"),
            ErrorKind::StoreFailed => (StatusCode::SERVICE_UNAVAILABLE, GrpcCode::Unavailable, "STOREDOWN"),
            ErrorKind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, GrpcCode::Internal, "ERR"),
        }
    }
}

impl RequestError {
    /// Creates an error of this kind about the request as a whole.
    pub fn new(kind: ErrorKind, detail: impl Into<Cow<'static, str>>) -> Self {
        RequestError { kind, field: None, detail: detail.into() }
    }

    /// Creates an [`ErrorKind::Invalid`] error about the request as a whole.
    pub fn invalid(detail: impl Into<Cow<'static, str>>) -> Self {
        RequestError::new(ErrorKind::Invalid, detail)
    }

    /// Creates the error for a denial that was caused by a failure of the store. Such a denial does
    /// not depend on the key, so clients of protocols without a status for it get an error.
    #[cold]
    pub fn store_failed(verdict: &GateVerdict<'_>) -> Self {
        let policy = verdict.reported_limit().and_then(|result| result.policy);
        let detail = match (policy, verdict.decided) {
            (Some(policy), Decided::FailedClosed) => format!(
                "the store failed, and policy `{policy}` has `on_store_failure: deny`: try again"
            ),
            (Some(policy), _) => format!(
                "the store failed, and the cost exceeds this node's share of policy `{policy}`: \
                 try again"
            ),
            (None, _) => "the store failed: try again".to_owned(),
        };
        RequestError::new(ErrorKind::StoreFailed, detail)
    }

    /// Creates an [`ErrorKind::Invalid`] error about a field.
    pub fn field(
        field: impl Into<Cow<'static, str>>,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        RequestError { field: Some(field.into()), ..RequestError::invalid(detail) }
    }

    /// Creates an error for a method that the path does not support.
    pub fn method(allow: &'static str) -> Self {
        let detail = format!("method not allowed on this path: use {allow}");
        RequestError::new(ErrorKind::MethodNotAllowed(Some(allow)), detail)
    }

    /// Prefixes the field with the object it is in: `cost` becomes `checks[3].cost`.
    #[must_use]
    pub fn within(mut self, outer: &str) -> Self {
        self.field = Some(match self.field {
            Some(field) => format!("{outer}.{field}").into(),
            None => outer.to_owned().into(),
        });
        self
    }

    /// Replaces the kind.
    #[must_use]
    pub fn with_kind(self, kind: ErrorKind) -> Self {
        RequestError { kind, ..self }
    }

    /// Returns the HTTP status.
    pub const fn status(&self) -> StatusCode {
        self.kind.codes().0
    }

    /// Returns the gRPC status code.
    pub const fn grpc_code(&self) -> GrpcCode {
        self.kind.codes().1
    }

    /// Returns the prefix of the RESP error reply.
    pub const fn resp_code(&self) -> &'static str {
        self.kind.codes().2
    }

    /// Appends a problem document.
    pub fn write_problem(&self, out: &mut String) {
        let (status, field) = (self.status(), self.field.as_deref());
        write_problem(&Problem::Undecided { status, field, detail: &self.detail }, out);
    }

    /// Creates an HTTP response with a problem document. `body` converts the document to a body.
    pub fn to_response<B>(&self, body: impl FnOnce(String) -> B) -> Response<B> {
        let mut document = String::with_capacity(256);
        self.write_problem(&mut document);
        let mut response = Response::new(body(document));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let ErrorKind::MethodNotAllowed(Some(allow)) = self.kind {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        if self.kind == ErrorKind::Unauthenticated {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Formats the field and the detail, which gRPC and RESP send after the code.
impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(field) = &self.field {
            write!(f, "{field}: ")?;
        }
        f.write_str(&self.detail)
    }
}

impl std::error::Error for RequestError {}

/// Uses the field names of the JSON API under `/v1`.
impl From<GateError> for RequestError {
    fn from(error: GateError) -> Self {
        use ErrorKind::{Conflict, Invalid, NotFound, StoreFailed, WrongOperation};
        let detail = error.to_string();
        let held = |policy: Option<String>| if policy.is_some() { "policy" } else { "limits" };
        let (kind, field, detail) = match error {
            GateError::UnknownPolicy { .. } => (NotFound, "policy", detail),
            GateError::UnknownMask { .. } => (NotFound, "key", detail),
            GateError::AmbiguousKey { .. } => (Conflict, "key", detail),
            GateError::NeedsPermit { policy } => {
                (WrongOperation, held(policy), detail + " with POST /v1/permits")
            }
            GateError::NoConcurrencyLimit { policy } => {
                (WrongOperation, held(policy), detail + " with POST /v1/check")
            }
            GateError::LeaseTooLong { .. } => (Invalid, "ttl_ms", detail),
            GateError::Store(_) => return RequestError::new(StoreFailed, detail + ": try again"),
            GateError::Check(CheckError::IdReused) => (Conflict, "id", detail),
            // The client cannot correct this: the configuration determines how many policies match.
            GateError::Check(CheckError::TooManyChecks(count)) => {
                let detail = format!(
                    "{count} limits apply to this request, more than {MAX_CHECKS}: \
                     narrow the `match` of some policies"
                );
                (Conflict, "attributes", detail)
            }
            GateError::Check(_) => (Conflict, "limits", detail),
            // A policy reads the cost from a header or the query, and the value is missing or
            // invalid.
            _ => (Invalid, "attributes", detail),
        };
        RequestError::field(field, detail).with_kind(kind)
    }
}
