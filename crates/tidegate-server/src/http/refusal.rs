//! Requests that get no decision, and why.

use std::borrow::Cow;

use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use tidegate::gate::GateError;
use tidegate::headers::{PROBLEM_JSON, Problem, write_problem};
use tidegate::{CheckError, MAX_CHECKS};

use super::body::BodyError;
use super::request_id::{REQUEST_ID, RequestId};
use super::{Answered, content};

/// A request that gets no decision.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub status: StatusCode,
    /// The field to blame, as the request spells it.
    pub field: Option<Cow<'static, str>>,
    /// What is wrong, and what would be right.
    pub detail: Cow<'static, str>,
    /// The methods that are allowed, with 405.
    allow: Option<&'static str>,
}

impl Refusal {
    /// With this status, without a field.
    pub fn new(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Self {
        Refusal { status, field: None, detail: detail.into(), allow: None }
    }

    /// Bad input as a whole.
    pub fn bad(detail: impl Into<Cow<'static, str>>) -> Self {
        Refusal::new(StatusCode::BAD_REQUEST, detail)
    }

    /// Bad input in one field.
    pub fn field(
        field: impl Into<Cow<'static, str>>,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Refusal { field: Some(field.into()), ..Refusal::bad(detail) }
    }

    /// Another method was expected.
    pub fn method(allow: &'static str) -> Self {
        let detail = format!("this method is not for this path: use {allow}");
        Refusal { allow: Some(allow), ..Refusal::new(StatusCode::METHOD_NOT_ALLOWED, detail) }
    }

    /// The same, with the field named from further outside: `cost` of `checks[3]`.
    #[must_use]
    pub fn within(mut self, outer: &str) -> Self {
        self.field = Some(match self.field {
            Some(field) => format!("{outer}.{field}").into(),
            None => outer.to_owned().into(),
        });
        self
    }

    /// With this status.
    #[must_use]
    pub fn with_status(self, status: StatusCode) -> Self {
        Refusal { status, ..self }
    }

    /// The problem as JSON.
    pub fn write(&self, out: &mut String) {
        let field = self.field.as_deref();
        let problem = Problem::BadRequest { status: self.status, field, detail: &self.detail };
        write_problem(&problem, out);
    }

    /// The answer to the request of this id.
    pub fn respond(&self, id: &RequestId<'_>) -> Answered {
        let mut body = String::with_capacity(256);
        self.write(&mut body);
        let mut response = Response::new(content(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        headers.insert(REQUEST_ID, id.header());
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<BodyError> for Refusal {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge(max_bytes) => {
                let detail = format!("the body is larger than {max_bytes} bytes");
                Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
            }
            BodyError::TooSlow => {
                Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body took too long to arrive")
            }
            BodyError::Broken => Refusal::bad(
                "the body broke off, or its chunks are malformed, before it was complete",
            ),
        }
    }
}

impl From<GateError> for Refusal {
    fn from(error: GateError) -> Self {
        let detail = error.to_string();
        match error {
            GateError::UnknownPolicy { .. } => {
                Refusal::field("policy", detail).with_status(StatusCode::NOT_FOUND)
            }
            GateError::NeedsPermit { policy } => {
                let field = if policy.is_some() { "policy" } else { "limits" };
                let detail = format!("{detail} with POST /v1/permits");
                Refusal::field(field, detail).with_status(StatusCode::CONFLICT)
            }
            GateError::NothingToHold { policy } => {
                let field = if policy.is_some() { "policy" } else { "limits" };
                let detail = format!("{detail} with POST /v1/check");
                Refusal::field(field, detail).with_status(StatusCode::CONFLICT)
            }
            GateError::LeaseTooLong { .. } => Refusal::field("ttl_ms", detail),
            GateError::Store(_) => Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("{detail}: try again; what nobody renews ends with its lease"),
            ),
            GateError::Check(CheckError::IdReused) => {
                Refusal::field("id", detail).with_status(StatusCode::CONFLICT)
            }
            GateError::Check(CheckError::Conflict | CheckError::ConcurrencyConflict) => {
                Refusal::field("limits", detail).with_status(StatusCode::CONFLICT)
            }
            // Too many policies match; which do is the config's doing.
            GateError::Check(CheckError::TooManyChecks(count)) => {
                let detail = format!(
                    "{count} limits hold for this request, and at most {MAX_CHECKS} can be decided at once: \
                     narrow the `match` of some policies"
                );
                Refusal::field("attributes", detail).with_status(StatusCode::CONFLICT)
            }
            // A cost that is to come from a header or a query.
            _ => Refusal::field("attributes", detail),
        }
    }
}
