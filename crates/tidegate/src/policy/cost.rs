//! What a request costs: so many units, or what the request itself says.

use std::fmt;

use tidegate_core::bounds;

use super::normalized::NormalizedRequest;
use super::request_field::{RequestField, Value};
use super::template::Template;
use crate::text::write_escaped;

/// What a request costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostSource {
    /// So many units.
    Fixed(u64),
    /// What a part of the request says; 1 where it says nothing.
    From(RequestField),
}

impl Default for CostSource {
    fn default() -> Self {
        CostSource::Fixed(1)
    }
}

impl CostSource {
    /// What a template such as `{header:x-cost}` asks for.
    ///
    /// # Errors
    /// When it is not one header, query parameter, cookie or descriptor alone.
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

    /// The units a request asks for, or what it says instead.
    pub(super) fn units(&self, request: &NormalizedRequest<'_>) -> Result<u64, String> {
        let field = match self {
            CostSource::Fixed(units) => return Ok(*units),
            CostSource::From(field) => field,
        };
        let Some(Value::Bytes(bytes)) = field.value(request) else { return Ok(1) };
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

/// How much of a bad value an error repeats.
const SHOWN_BYTES: usize = 32;

impl fmt::Display for CostSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CostSource::Fixed(units) => units.fmt(f),
            CostSource::From(field) => write!(f, "{{{field}}}"),
        }
    }
}

/// A template that no cost can come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostSourceError;

impl CostSourceError {
    /// What is wrong, in a few words.
    pub const fn problem(self) -> &'static str {
        "a cost comes from one header, query parameter, cookie or descriptor"
    }

    /// What to write instead.
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
