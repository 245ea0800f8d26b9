//! The reasons for which lines are skipped.

use std::fmt;

use super::time::Unit;
use crate::report::escape_key;

/// The reason that a line is not an event.
#[derive(Debug, thiserror::Error)]
pub enum BadLine {
    #[error("longer than 64 KiB")]
    TooLong,
    #[error(
        "no whole number of microseconds at its start (set --time-unit, or add a line with the \
         names of the columns)"
    )]
    NoTime,
    #[error("no {role}: field `{name}` is missing or empty")]
    EmptyField { role: &'static str, name: Box<str> },
    /// The value of a field is wrong.
    #[error("field `{name}` is `{value}`: {why}")]
    Field { name: Box<str>, value: Box<str>, why: Box<BadLine> },
    #[error("not a number or a time such as 2023-11-14T22:13:20Z")]
    BadTime,
    #[error("a time of day without a date; name the field of the date with --field date=NAME")]
    NoDateField,
    #[error(
        "a date without a time of day; name the field of the time of day with --field time=NAME"
    )]
    NoClock,
    #[error(
        "a time in {} where the first was in {}; set the unit with --time-unit",
        .this.name(),
        .usual.name()
    )]
    OtherUnit { usual: Unit, this: Unit },
    #[error("a time after the year 2255; check --time-unit")]
    TimeTooLate,
    #[error("a time before 1970")]
    TimeBefore1970,
    #[error("no key")]
    NoKey,
    #[error("the cost is not a whole number")]
    BadCost,
    #[error("more fields than columns")]
    TooManyFields,
    #[error("{found} fields where at least {least} are expected")]
    TooFewFields { found: usize, least: usize },
    #[error("a quote that is not closed")]
    OpenQuote,
    #[error("not a JSON object")]
    NotAnObject,
    #[error("field `{field}` is an array; it must be a single value")]
    Array { field: Box<str> },
    #[error(fmt = write_json_error)]
    Json(serde_json::Error),
    #[error("no [date]")]
    NoDate,
    #[error("too few fields before the [date]: no client where most of the first lines have it")]
    NoHost,
    #[error("a date that is not like [01/Aug/1995:00:00:01 -0400]")]
    BadDate,
    #[error("no \"request\" after the date")]
    NoRequest,
    #[error("no status and size after the request")]
    NoStatus,
    #[error("no \"referer\" and \"agent\" at its end")]
    NoAgent,
}

impl BadLine {
    /// Returns the error with the field and the value that caused it.
    pub fn in_field(self, name: &str, value: &[u8]) -> Self {
        BadLine::Field { name: name.into(), value: escape_key(value).into(), why: Box::new(self) }
    }
}

/// Writes an error without the position that serde_json appends: each line is its line 1, and the
/// line number in the file is already shown.
fn write_json_error(error: &serde_json::Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let text = error.to_string();
    let problem = text.split_once(" at line 1 ").map_or(text.as_str(), |(problem, _)| problem);
    write!(f, "{problem} (column {})", error.column())
}
