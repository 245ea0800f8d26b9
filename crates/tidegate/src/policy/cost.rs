//! The cost of a request: a fixed number of units, or the value of a request field.

use std::fmt;

use tidegate_core::bounds;

use super::normalized_request::NormalizedRequest;
use super::request_field::{FieldValue, RequestField};
use super::template::Template;
use crate::text::write_escaped;

/// The source of a request's cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostSource {
    /// This number of units.
    Fixed(u64),
    /// The value of a request field; 1 if the request does not have it.
    From(RequestField),
}

impl Default for CostSource {
    fn default() -> Self {
        CostSource::Fixed(1)
    }
}

impl CostSource {
    /// Creates the cost source of a template such as `{header:x-cost}`.
    ///
    /// # Errors
    /// Returns an error if the template is not a single header, query parameter, cookie or
    /// descriptor.
    pub fn from_template(template: &Template) -> Result<Self, CostSourceError> {
        match template.single() {
            Some(
                RequestField::ClientIp
                | RequestField::Method
                | RequestField::Path
                | RequestField::Host
                | RequestField::Domain
                | RequestField::Descriptors,
            )
            | None => Err(CostSourceError),
            Some(field) => Ok(CostSource::From(field.clone())),
        }
    }

    /// Returns the cost of a request in units. The error is an excerpt of a value that is not
    /// valid.
    pub(super) fn units(&self, request: &NormalizedRequest<'_>) -> Result<u64, String> {
        let field = match self {
            CostSource::Fixed(units) => return Ok(*units),
            CostSource::From(field) => field,
        };
        let Some(FieldValue::Bytes(bytes)) = field.value(request) else { return Ok(1) };
        let digits = std::str::from_utf8(&bytes).ok();
        let digits = digits.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let units = digits.and_then(|text| text.parse().ok());
        units.filter(|units| *units <= bounds::MAX_COUNT).ok_or_else(|| {
            let mut excerpt = String::new();
            // Writing to memory cannot fail.
            let _ = write_escaped(&bytes[..bytes.len().min(SHOWN_BYTES)], &mut excerpt);
            excerpt
        })
    }
}

/// The number of bytes of an invalid value that an error shows.
const SHOWN_BYTES: usize = 32;

impl fmt::Display for CostSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CostSource::Fixed(units) => units.fmt(f),
            CostSource::From(field) => write!(f, "{{{field}}}"),
        }
    }
}

/// The error of a template that cannot be a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostSourceError;

impl CostSourceError {
    /// Returns a short description of the error.
    pub const fn problem(self) -> &'static str {
        "a cost comes from one header, query parameter, cookie or descriptor"
    }

    /// Returns how to fix it.
    pub const fn help(self) -> &'static str {
        "write a whole number, or for example `\"{header:x-cost}\"`"
    }
}

impl fmt::Display for CostSourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.problem(), self.help())
    }
}

impl std::error::Error for CostSourceError {}
