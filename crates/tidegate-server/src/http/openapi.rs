//! `/openapi.json`.

use bytes::Bytes;
use http::StatusCode;

use super::{Answered, json};

/// The description of this front.
pub fn answer() -> Answered {
    json(StatusCode::OK, Bytes::from_static(b"{}").to_vec())
}
