//! Answers of the admin side.

use std::borrow::Cow;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, StatusCode};
use serde::Serialize;

use crate::error::{ErrorKind, RequestError};

/// Plain text.
pub fn text(status: StatusCode, text: impl Into<Cow<'static, str>>) -> Response {
    with_type(status, "text/plain; charset=utf-8", text.into())
}

/// A value as JSON.
pub fn json(value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => with_type(StatusCode::OK, "application/json", text.into()),
        // Unreachable while the keys of all maps are strings.
        Err(error) => RequestError::new(ErrorKind::Internal, error.to_string()).into_response(),
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

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        self.to_response(Body::from)
    }
}

/// A header as text, if it is there and is text.
pub fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
