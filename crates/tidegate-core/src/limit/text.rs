//! Limits as text, in this grammar:
//!
//! ```text
//! N per DURATION [algorithm] [burst B]
//! N concurrent [lease DURATION]
//! ```
//!
//! Words are separated by blanks. `per` may be written as `/`, and `requests` may precede it. A
//! number may end in `k` or `M`, for thousands and millions. A duration is a whole number and a
//! unit, with or without a blank between them; a unit alone means one of it. Every error has the
//! position of the word that it refers to.

use core::fmt;
use core::ops::Range;
use core::str::FromStr;

use super::correction::correct;
use super::{Algorithm, Limit, LimitError, LimitErrorKind as Kind, bounds};

/// The longest text that is parsed. Every limit fits half of this.
const MAX_TEXT_BYTES: usize = 256;

/// Units of time, longest first, so that the largest one that divides a window is found first.
const UNITS_US: [(&str, u64); 6] = [
    ("w", 7 * 86_400_000_000),
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
];

/// The length of a unit, which may be abbreviated: `s`, `sec`, `second` or `seconds`.
pub(super) fn unit_us(name: &str) -> Option<u64> {
    let short = match name.strip_suffix('s').unwrap_or(name) {
        "millisecond" => "ms",
        "sec" | "second" => "s",
        "min" | "minute" => "m",
        "hr" | "hour" => "h",
        "day" => "d",
        "wk" | "week" => "w",
        _ => name,
    };
    UNITS_US.iter().find(|(unit, _)| *unit == short).map(|(_, us)| *us)
}

/// About how many days a month or a year has. They differ in length, so they are not units.
pub(super) fn days_of(name: &str) -> Option<&'static str> {
    match name.strip_suffix('s').unwrap_or(name) {
        "month" => Some("30d"),
        "year" => Some("365d"),
        _ => None,
    }
}

/// A limit with the burst that its text gives. The limit alone does not tell a burst that equals
/// the count from the default, which follows the count when that changes.
///
/// ```
/// use tidegate_core::ParsedLimit;
///
/// let given: ParsedLimit = "5 per 1s token-bucket burst 5".parse()?;
/// let default: ParsedLimit = "5 per 1s token-bucket".parse()?;
/// assert_eq!((given.burst, default.burst), (Some(5), None));
/// assert_eq!(given.limit, default.limit);
/// # Ok::<(), tidegate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedLimit {
    /// The limit, with its burst.
    pub limit: Limit,
    /// The burst, if the text has one.
    pub burst: Option<u64>,
}

impl FromStr for ParsedLimit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(LimitError::at(Kind::NotALimit, text, 0..1));
        }
        parse_exactly(text).map_err(|error| error.with_correction(correct(text)))
    }
}

/// Parses a text. Its errors have the general help of their kind.
pub(super) fn parse_exactly(text: &str) -> Result<ParsedLimit, LimitError> {
    let mut words = Words::new(text);
    let Some((span, word)) = words.next() else {
        return Err(words.end(Kind::NotALimit));
    };
    let count = number(text, span, word, Kind::CountOutOfRange)?;
    let counted = ["request", "requests"];
    let mut next = words.next();
    if next.as_ref().is_some_and(|(_, word)| counted.contains(word)) {
        next = words.next();
    }
    match next {
        Some((_, "per" | "/")) => rate(&mut words, count),
        Some((_, "concurrent")) => concurrent(&mut words, count),
        Some((span, _)) => Err(LimitError::at(Kind::ExpectedPer, text, span)),
        None => Err(words.end(Kind::ExpectedPer)),
    }
}

fn rate(words: &mut Words<'_>, count: u64) -> Result<ParsedLimit, LimitError> {
    let text = words.text;
    let (window_span, window_us) = words.duration(Kind::WindowOutOfRange)?;
    let mut algorithm = None;
    let mut burst = None;
    while let Some((span, word)) = words.next() {
        let twice = || LimitError::at(Kind::Duplicate, text, span.clone());
        match word {
            "buckets" | "sliding-buckets" => {
                return Err(LimitError::at(Kind::BucketsReplaced, text, span));
            }
            "concurrent" => return Err(LimitError::at(Kind::ConcurrencyIsNotARate, text, span)),
            "burst" => {
                let (at, number) = words.number(Kind::BurstOutOfRange)?;
                if burst.replace((span.start..at.end, number)).is_some() {
                    return Err(twice());
                }
            }
            name => {
                let Some(named) = Algorithm::from_name(name) else {
                    let kind = match Algorithm::equivalent(name) {
                        Some(Algorithm::TokenBucket) => Kind::TokenBucketName,
                        _ => Kind::UnknownWord,
                    };
                    return Err(LimitError::at(kind, text, span));
                };
                if named == Algorithm::Concurrency {
                    return Err(LimitError::at(Kind::ConcurrencyIsNotARate, text, span));
                }
                if algorithm.replace(named).is_some() {
                    return Err(twice());
                }
            }
        }
    }
    let at_span =
        |span: Range<usize>| move |error: LimitError| LimitError::at(error.kind(), text, span);
    let algorithm = algorithm.unwrap_or_default();
    let mut limit = Limit::from_parts(count, window_us, algorithm).map_err(at_span(window_span))?;
    let given_burst = burst.as_ref().map(|(_, number)| *number);
    if let Some((span, number)) = burst {
        limit = limit.with_burst(number).map_err(at_span(span))?;
    }
    Ok(ParsedLimit { limit, burst: given_burst })
}

fn concurrent(words: &mut Words<'_>, count: u64) -> Result<ParsedLimit, LimitError> {
    let text = words.text;
    let (span, lease_us) = match words.next() {
        None => (0..text.len(), bounds::DEFAULT_LEASE_US),
        Some((_, "lease")) => words.duration(Kind::LeaseOutOfRange)?,
        Some((span, _)) => return Err(LimitError::at(Kind::ConcurrencyIsNotARate, text, span)),
    };
    if let Some((span, word)) = words.next() {
        let kind = if word == "lease" { Kind::Duplicate } else { Kind::ConcurrencyIsNotARate };
        return Err(LimitError::at(kind, text, span));
    }
    let limit = Limit::from_parts(count, lease_us, Algorithm::Concurrency)
        .map_err(|error| LimitError::at(error.kind(), text, span))?;
    Ok(ParsedLimit { limit, burst: None })
}

/// Parses a whole number with an optional `k`, `K` or `M`. A number above the largest count is an
/// error of the kind `too_large`.
fn number(text: &str, span: Range<usize>, word: &str, too_large: Kind) -> Result<u64, LimitError> {
    let (digits, factor) = match word.as_bytes() {
        [.., b'k' | b'K'] => (&word[..word.len() - 1], 1_000),
        [.., b'M'] => (&word[..word.len() - 1], 1_000_000),
        _ => (word, 1),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(LimitError::at(Kind::ExpectedNumber, text, span));
    }
    match digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)) {
        Some(number) if number <= bounds::MAX_COUNT => Ok(number),
        _ => Err(LimitError::at(too_large, text, span)),
    }
}

pub(super) struct Words<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Words<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Words { text, at: 0 }
    }

    /// Returns the next word without advancing.
    pub(super) fn peek(&self) -> Option<(Range<usize>, &'a str)> {
        Words { ..*self }.next()
    }

    pub(super) fn next(&mut self) -> Option<(Range<usize>, &'a str)> {
        let bytes = self.text.as_bytes();
        let blanks = bytes[self.at..].iter().position(|byte| !byte.is_ascii_whitespace())?;
        let start = self.at + blanks;
        // A slash is a word by itself.
        let ends = |&byte: &u8| byte.is_ascii_whitespace() || byte == b'/';
        let length = bytes[start + 1..].iter().position(ends);
        let end = match bytes[start] {
            b'/' => start + 1,
            _ => length.map_or(self.text.len(), |length| start + 1 + length),
        };
        self.at = end;
        Some((start..end, &self.text[start..end]))
    }

    fn end(&self, kind: Kind) -> LimitError {
        LimitError::at(kind, self.text, self.text.len()..self.text.len())
    }

    fn number(&mut self, wrong: Kind) -> Result<(Range<usize>, u64), LimitError> {
        let Some((span, word)) = self.next() else { return Err(self.end(wrong)) };
        let number = number(self.text, span.clone(), word, wrong)?;
        Ok((span, number))
    }

    fn duration(&mut self, too_long: Kind) -> Result<(Range<usize>, u64), LimitError> {
        let Some((span, word)) = self.next() else { return Err(self.end(Kind::ExpectedWindow)) };
        let digits = word.bytes().take_while(u8::is_ascii_digit).count();
        let (amount, mut unit) = word.split_at(digits);
        let error_at = |kind, range| Err(LimitError::at(kind, self.text, range));
        if digits > 0 && unit.starts_with('.') {
            return error_at(Kind::FractionOfTime, span);
        }
        let mut end = span.end;
        if unit.is_empty()
            && let Some((after, next)) = self.peek()
            && (unit_us(next).is_some() || days_of(next).is_some())
        {
            (unit, end) = (next, after.end);
        }
        let Some(unit_us) = unit_us(unit) else {
            return match digits {
                _ if days_of(unit).is_some() => error_at(Kind::MonthOrYear, span.start..end),
                _ if unit.is_empty() => error_at(Kind::MissingUnit, span),
                0 => error_at(Kind::ExpectedWindow, span),
                _ => error_at(Kind::UnknownUnit, span.start + digits..span.end),
            };
        };
        let amount = if digits == 0 { Some(1) } else { amount.parse::<u64>().ok() };
        match amount.and_then(|amount| amount.checked_mul(unit_us)) {
            Some(us) => {
                self.at = end;
                Ok((span.start..end, us))
            }
            None => error_at(too_long, span.start..end),
        }
    }
}

pub(super) fn write(limit: &Limit, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if limit.algorithm == Algorithm::Concurrency {
        write!(f, "{} concurrent lease ", limit.count)?;
        return write_duration(limit.window_us(), f);
    }
    write!(f, "{} per ", limit.count)?;
    write_duration(limit.window_us(), f)?;
    write!(f, " {}", limit.algorithm)?;
    match limit.algorithm {
        Algorithm::TokenBucket if limit.burst != limit.count => write!(f, " burst {}", limit.burst),
        _ => Ok(()),
    }
}

/// Converts a window to the largest unit that divides it: `1m`, not `60s`. A window that was not
/// parsed may be finer than the grammar's milliseconds, and is then converted to `us`.
pub(super) fn in_units(us: u64) -> (u64, &'static str) {
    match UNITS_US.iter().find(|(_, unit_us)| us.is_multiple_of(*unit_us)) {
        Some((name, unit_us)) => (us / unit_us, name),
        None => (us, "us"),
    }
}

fn write_duration(us: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (count, unit) = in_units(us);
    write!(f, "{count}{unit}")
}
