//! `/openapi.json`: what this front takes and gives, for programs.
//!
//! Written by hand, because it is read by people too: the wording belongs to it.
//! The tests hold what the server really answers against it.

use http::StatusCode;

use super::{Answered, json};

const TEXT: &str = include_str!("openapi.json");

/// The description of this front.
pub fn answer() -> Answered {
    let description = TEXT.replacen("VERSION", env!("CARGO_PKG_VERSION"), 1);
    json(StatusCode::OK, description.into_bytes())
}
