//! How a line becomes an event, one file per format.
//!
//! Parsers are pure: bytes in, an event that borrows from them out. A line that
//! is no event says why; whether that matters is the caller's business.

mod clf;
mod csv;
mod jsonl;

use std::borrow::Cow;
use std::fmt;

use crate::cli::KeyField;

/// Times end here, in the year 2255: beyond 2^53 a double no longer counts
/// microseconds one by one, so stores would stop agreeing.
pub const MAX_TIME_US: u64 = 1 << 53;

/// One line of traffic.
#[derive(Debug, PartialEq, Eq)]
pub struct Event<'a> {
    pub time_us: u64,
    pub key: Cow<'a, [u8]>,
    /// Zero looks, negative refunds.
    pub cost: i64,
}

/// How the lines of a file are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Csv,
    Jsonl,
    Clf,
    Combined,
}

impl Format {
    pub const fn name(self) -> &'static str {
        match self {
            Format::Csv => "csv",
            Format::Jsonl => "jsonl",
            Format::Clf => "clf",
            Format::Combined => "combined",
        }
    }

    /// Whether a line has the field a key is asked from.
    pub const fn has(self, key: KeyField) -> bool {
        match key {
            KeyField::Host => true,
            KeyField::User => matches!(self, Format::Clf | Format::Combined),
            KeyField::Agent => matches!(self, Format::Combined),
        }
    }

    #[inline]
    pub fn parse(self, line: &[u8], key: KeyField) -> Result<Event<'_>, BadLine> {
        let event = match self {
            Format::Csv => csv::parse(line)?,
            Format::Jsonl => jsonl::parse(line)?,
            Format::Clf => clf::parse(line, clf::Fields::Common, key)?,
            Format::Combined => clf::parse(line, clf::Fields::Combined, key)?,
        };
        if event.time_us > MAX_TIME_US {
            return Err(BadLine::TimeTooLate);
        }
        if event.key.is_empty() {
            return Err(BadLine::NoKey);
        }
        Ok(event)
    }

    /// Whether this first line of a file only names its columns.
    pub fn is_header(self, line: &[u8]) -> bool {
        self == Format::Csv && csv::is_header(line)
    }

    /// The format most of these lines are written in. A line of the combined
    /// format is one of the common format too, so it must win ties.
    pub fn detect<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<Format> {
        let order = [Format::Combined, Format::Clf, Format::Csv, Format::Jsonl];
        let mut votes = [0_u32; 4];
        for line in lines {
            for (format, votes) in order.iter().zip(&mut votes) {
                let fits = format.is_header(line) || format.parse(line, KeyField::Host).is_ok();
                *votes += u32::from(fits);
            }
        }
        let most = votes.into_iter().max().filter(|&most| most > 0)?;
        order.into_iter().zip(votes).find(|&(_, votes)| votes == most).map(|(format, _)| format)
    }
}

/// Why a line is no event.
#[derive(Debug)]
pub enum BadLine {
    TooLong,
    NoTime,
    TimeTooLate,
    TimeBefore1970,
    NoKey,
    BadCost,
    TooManyFields,
    OpenQuote,
    NotAnObject,
    Json(serde_json::Error),
    NoDate,
    BadDate,
    NoRequest,
    NoStatus,
    NoAgent,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadLine::TooLong => "longer than 64 KiB",
            BadLine::NoTime => "no whole number of microseconds at its start",
            BadLine::TimeTooLate => "a time after the year 2255 (is it in nanoseconds?)",
            BadLine::TimeBefore1970 => "a time before 1970",
            BadLine::NoKey => "no key",
            BadLine::BadCost => "the cost is not a whole number",
            BadLine::TooManyFields => "more fields than time_us,key,cost",
            BadLine::OpenQuote => "a quote that is not closed",
            BadLine::NotAnObject => "not a JSON object",
            BadLine::Json(error) => return write_json_error(error, f),
            BadLine::NoDate => "no [date]",
            BadLine::BadDate => "a date that is not like [01/Aug/1995:00:00:01 -0400]",
            BadLine::NoRequest => "no \"request\" after the date",
            BadLine::NoStatus => "no status and size after the request",
            BadLine::NoAgent => "no \"referer\" and \"agent\" at its end",
        })
    }
}

/// Without the place serde_json appends: each line is its line 1, and what is
/// shown already has the line of the file.
fn write_json_error(error: &serde_json::Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let text = error.to_string();
    let problem = text.split_once(" at line 1 ").map_or(text.as_str(), |(problem, _)| problem);
    write!(f, "{problem} (column {})", error.column())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_lines_decide_the_format() {
        let detect = |text: &'static str| Format::detect(text.lines().map(str::as_bytes));
        let common = "h - - [01/Aug/1995:00:00:01 -0400] \"GET / HTTP/1.0\" 200 5";
        let combined =
            "h - - [01/Aug/1995:00:00:01 -0400] \"GET / HTTP/1.0\" 200 5 \"-\" \"curl/8\"";
        assert_eq!(Format::detect([common.as_bytes()].into_iter()), Some(Format::Clf));
        assert_eq!(Format::detect([combined.as_bytes()].into_iter()), Some(Format::Combined));
        // The common format reads both, so a mixture is common.
        let mixture = [combined.as_bytes(), common.as_bytes()];
        assert_eq!(Format::detect(mixture.into_iter()), Some(Format::Clf));
        assert_eq!(detect("time_us,key"), Some(Format::Csv));
        assert_eq!(detect("garbage\n5,a\n6,b"), Some(Format::Csv));
        assert_eq!(detect("{\"time_us\":5,\"key\":\"a\"}"), Some(Format::Jsonl));
        assert_eq!(detect("nothing\nof the sort"), None);
        assert_eq!(detect(""), None);
    }

    #[test]
    fn times_end_at_two_to_the_53() {
        let last = Format::Csv.parse(b"9007199254740992,k", KeyField::Host);
        assert_eq!(last.expect("an event").time_us, MAX_TIME_US);
        let later = Format::Csv.parse(b"9007199254740993,k", KeyField::Host);
        assert!(matches!(later, Err(BadLine::TimeTooLate)));
    }
}
