//! `/openapi.json`: what this front takes and gives, for programs.
//!
//! Written by hand, because it is read by people too: the wording belongs to it.
//! The tests hold what the server really answers against it.

use std::sync::OnceLock;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::Full;

use super::{Answered, json};

const TEXT: &str = include_str!("openapi.json");

/// The description of this front.
pub fn answer() -> Answered {
    static DESCRIPTION: OnceLock<Bytes> = OnceLock::new();
    let description = DESCRIPTION
        .get_or_init(|| Bytes::from(TEXT.replacen("VERSION", env!("CARGO_PKG_VERSION"), 1)));
    json(StatusCode::OK, Vec::new()).map(|_| Full::new(description.clone()))
}
