//! Errors of limits, with their position in the text and a correction.

use alloc::string::String;
use core::fmt;
use core::ops::Range;

use super::bounds;

/// The kind of a [`LimitError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitErrorKind {
    /// The text is empty, or longer than any limit.
    NotALimit,
    /// A whole number was expected.
    ExpectedNumber,
    /// The count is above [`bounds::MAX_COUNT`].
    CountOutOfRange,
    /// Neither `per` nor `concurrent` follows the count.
    ExpectedPer,
    /// A length of time such as `10s` was expected.
    ExpectedWindow,
    /// A length of time has an unknown unit.
    UnknownUnit,
    /// A length of time is a number without a unit.
    MissingUnit,
    /// A length of time is in months or years, which differ in length.
    MonthOrYear,
    /// A window or lease is not a whole number of its unit.
    FractionOfTime,
    /// The window is shorter than 1 ms or longer than 366 days.
    WindowOutOfRange,
    /// A word is neither an algorithm nor an option.
    UnknownWord,
    /// The limit uses `sliding-buckets` or its option `buckets`, which `sliding-window` replaced.
    BucketsReplaced,
    /// The limit uses `gcra` or `leaky-bucket`, which are `token-bucket` here.
    TokenBucketName,
    /// The burst is missing, 0 or above [`bounds::MAX_COUNT`].
    BurstOutOfRange,
    /// The algorithm does not support a burst.
    BurstWithoutTokens,
    /// The lease is shorter than 1 ms or longer than 366 days.
    LeaseOutOfRange,
    /// An option or algorithm is given twice.
    Duplicate,
    /// `concurrency` is combined with a window.
    ConcurrencyIsNotARate,
}

impl LimitErrorKind {
    /// The problem, and how to correct it.
    const fn describe(self) -> (&'static str, &'static str) {
        match self {
            Self::NotALimit => ("this is not a limit", "write for example `10 per 1s`"),
            Self::ExpectedNumber => {
                ("expected a whole number", "write digits only, for example `10`")
            }
            Self::CountOutOfRange => ("the count is too large", "use at most 1000000000000"),
            Self::ExpectedPer => (
                "`per` or `concurrent` must follow the count",
                "write for example `10 per 1s` or `10 concurrent`",
            ),
            Self::ExpectedWindow => (
                "expected a length of time",
                "write a number and ms, s, m, h, d or w, for example `10s`",
            ),
            Self::UnknownUnit => ("unknown unit of time", "use ms, s, m, h, d or w"),
            Self::MissingUnit => (
                "a length of time needs a unit",
                "write ms, s, m, h, d or w after the number, for example `60s`",
            ),
            Self::MonthOrYear => {
                ("months and years differ in length", "write days, for example `30d` or `365d`")
            }
            Self::FractionOfTime => (
                "a length of time is a whole number of its unit",
                "use a smaller unit, for example `1500ms` in place of `1.5s`",
            ),
            Self::WindowOutOfRange => ("the window is out of range", "use 1ms to 366d"),
            Self::UnknownWord => (
                "unknown word",
                "use sliding-log, sliding-window, sliding-counter, fixed-window or token-bucket, then `burst N`",
            ),
            Self::BucketsReplaced => (
                "`sliding-buckets` was replaced by `sliding-window`",
                "write `sliding-window`, which has no number of buckets",
            ),
            Self::TokenBucketName => (
                "this algorithm is called `token-bucket` here",
                "write `token-bucket`, then `burst N` for what it holds",
            ),
            Self::BurstOutOfRange => (
                "the burst is missing or out of range",
                "write `burst N`, with N from 1 to 1000000000000",
            ),
            Self::BurstWithoutTokens => (
                "this algorithm has no burst",
                "write `token-bucket burst N`, or leave `burst` out",
            ),
            Self::LeaseOutOfRange => ("the lease is out of range", "use 1ms to 366d"),
            Self::Duplicate => ("this is given twice", "write it once"),
            Self::ConcurrencyIsNotARate => {
                ("concurrency has no window", "write `10 concurrent` or `10 concurrent lease 60s`")
            }
        }
    }
}

/// An invalid limit: the problem, how to correct it and, for a limit that was parsed, the position
/// in its text.
///
/// ```
/// let error = "10 per 1y".parse::<tidegate_core::Limit>().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "unknown unit of time: use ms, s, m, h, d or w\n  10 per 1y\n          ^"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitError {
    kind: LimitErrorKind,
    source: Option<(String, Range<usize>)>,
    /// How to correct this text, if that is known.
    correction: Option<String>,
}

impl LimitError {
    pub(super) fn at(kind: LimitErrorKind, text: &str, span: Range<usize>) -> Self {
        let excerpt: String = text.chars().take(SHOWN_CHARS).collect();
        LimitError { kind, source: Some((excerpt, span)), correction: None }
    }

    /// Replaces the general help of the kind, if `correction` is known.
    pub(super) fn with_correction(self, correction: Option<String>) -> Self {
        LimitError { correction, ..self }
    }

    /// Returns the kind of the error.
    pub const fn kind(&self) -> LimitErrorKind {
        self.kind
    }

    /// Returns the range of bytes that the error refers to, if the limit was parsed.
    pub fn span(&self) -> Option<Range<usize>> {
        self.source.as_ref().map(|(_, span)| span.clone())
    }

    /// Returns a short description of the problem.
    pub const fn problem(&self) -> &'static str {
        self.kind.describe().0
    }

    /// Returns how to correct it. If the limit that was meant is known, that is a complete text.
    pub fn help(&self) -> &str {
        self.correction.as_deref().unwrap_or(self.kind.describe().1)
    }
}

/// The number of characters of the text that an error repeats: enough for a limit, but not for a
/// pasted file.
const SHOWN_CHARS: usize = 80;

impl From<LimitErrorKind> for LimitError {
    fn from(kind: LimitErrorKind) -> Self {
        LimitError { kind, source: None, correction: None }
    }
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.problem(), self.help())?;
        let Some((text, span)) = &self.source else { return Ok(()) };
        // Control characters would misplace the caret, or control the terminal.
        f.write_str("\n  ")?;
        for c in text.chars() {
            write!(f, "{}", if c.is_control() { '\u{fffd}' } else { c })?;
        }
        let columns =
            |range: Range<usize>| text.char_indices().filter(|(at, _)| range.contains(at)).count();
        let before = columns(0..span.start);
        let under = columns(span.clone()).max(1);
        write!(f, "\n  {:before$}{:^<under$}", "", "")
    }
}

impl core::error::Error for LimitError {}

// The texts above contain the bounds. They must be changed together.
const _: () = assert!(
    bounds::MAX_COUNT == 1_000_000_000_000
        && bounds::MIN_WINDOW_US == 1_000
        && bounds::MAX_WINDOW_US == 366 * 86_400_000_000
);
