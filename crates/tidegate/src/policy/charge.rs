//! What a request costs: so many units, or what the request itself says.

use std::fmt;

use tidegate_core::bounds;

use super::facts::Facts;
use super::key::write_escaped;
use super::part::{Part, Value};
use super::template::Template;

/// What a request costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Charge {
    /// So many units.
    Fixed(u64),
    /// What a part of the request says; 1 where it says nothing.
    From(Part),
}

impl Default for Charge {
    fn default() -> Self {
        Charge::Fixed(1)
    }
}

impl Charge {
    /// What a template such as `{header:x-cost}` asks for.
    ///
    /// # Errors
    /// When it is not one header, query parameter, cookie or descriptor alone.
    pub fn from_template(template: &Template) -> Result<Self, ChargeError> {
        match template.single() {
            Some(
                Part::ClientIp
                | Part::Method
                | Part::Path
                | Part::Host
                | Part::Domain
                | Part::Descriptors,
            )
            | None => Err(ChargeError),
            Some(part) => Ok(Charge::From(part.clone())),
        }
    }

    /// The units a request asks for, or what it says instead.
    pub(super) fn units(&self, facts: &Facts<'_>) -> Result<u64, String> {
        let part = match self {
            Charge::Fixed(units) => return Ok(*units),
            Charge::From(part) => part,
        };
        let Some(Value::Bytes(bytes)) = part.value(facts) else { return Ok(1) };
        let digits = std::str::from_utf8(&bytes).ok();
        let digits = digits.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let units = digits.and_then(|text| text.parse().ok());
        units.filter(|units| *units <= bounds::MAX_COUNT).ok_or_else(|| {
            let mut shown = String::new();
            // Writing to memory cannot fail.
            let _ = write_escaped(&bytes[..bytes.len().min(SHOWN_BYTES)], &mut shown);
            shown
        })
    }
}

/// How much of a bad value an error repeats.
const SHOWN_BYTES: usize = 32;

impl fmt::Display for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Charge::Fixed(units) => units.fmt(f),
            Charge::From(part) => write!(f, "{{{part}}}"),
        }
    }
}

/// A template that no cost can come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeError;

impl ChargeError {
    /// What is wrong, in a few words.
    pub const fn problem(self) -> &'static str {
        "a cost comes from one header, query parameter, cookie or descriptor"
    }

    /// What to write instead.
    pub const fn help(self) -> &'static str {
        "write a whole number, or for example `\"{header:x-cost}\"`"
    }
}

impl fmt::Display for ChargeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.problem(), self.help())
    }
}

impl std::error::Error for ChargeError {}
