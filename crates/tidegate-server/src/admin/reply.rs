//! Answers of the admin side.

use std::borrow::Cow;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use tidegate::headers::{PROBLEM_JSON, Problem, write_problem};

/// Plain text.
pub fn text(status: StatusCode, text: impl Into<Cow<'static, str>>) -> Response {
    with_type(status, "text/plain; charset=utf-8", text.into())
}

/// A value as JSON.
pub fn json(value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => with_type(StatusCode::OK, "application/json", text.into()),
        // Nothing here has a key that is no string; said rather than assumed.
        Err(error) => {
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, None, error.to_string()).respond()
        }
    }
}

/// A text of a type.
pub fn with_type(status: StatusCode, kind: &'static str, text: Cow<'static, str>) -> Response {
    let mut response = Response::new(match text {
        Cow::Borrowed(text) => Body::from(text),
        Cow::Owned(text) => Body::from(text),
    });
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A request that is not answered, and why.
#[derive(Debug)]
pub struct Refusal {
    status: StatusCode,
    field: Option<&'static str>,
    detail: Cow<'static, str>,
}

impl Refusal {
    pub fn new(
        status: StatusCode,
        field: Option<&'static str>,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Refusal { status, field, detail: detail.into() }
    }

    /// As problem+json.
    pub fn respond(&self) -> Response {
        let mut body = String::new();
        let (status, field, detail) = (self.status, self.field, &*self.detail);
        write_problem(&Problem::BadRequest { status, field, detail }, &mut body);
        with_type(status, PROBLEM_JSON, body.into())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        self.respond()
    }
}

/// A header as text, if it is there and is text.
pub fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
