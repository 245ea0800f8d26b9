//! What can be wrong about a limit, where, and what would be right.

use alloc::string::String;
use core::fmt;
use core::ops::Range;

use super::bounds;

/// The kinds of mistake a limit can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitErrorKind {
    /// The text is empty or longer than any limit.
    NotALimit,
    /// Something else stands where a whole number must.
    ExpectedNumber,
    /// A count above [`bounds::MAX_COUNT`].
    CountOutOfRange,
    /// Neither `per` nor `concurrent` after the count.
    ExpectedPer,
    /// A window such as `10s` must stand here.
    ExpectedWindow,
    /// A number without one of the units.
    UnknownUnit,
    /// A window or lease that is not a whole number of its unit.
    FractionOfTime,
    /// A window shorter than 1 ms or longer than 366 days.
    WindowOutOfRange,
    /// A word that is no algorithm and no option.
    UnknownWord,
    /// `sliding-buckets` or its `buckets`, which `sliding-window` replaced.
    BucketsReplaced,
    /// `burst` without a number from 1 up.
    BurstOutOfRange,
    /// `burst` on an algorithm that has none.
    BurstWithoutTokens,
    /// A lease shorter than 1 ms or longer than 366 days.
    LeaseOutOfRange,
    /// An option or algorithm said twice.
    SaidTwice,
    /// `concurrency` written as a rate.
    ConcurrencyIsNotARate,
}

impl LimitErrorKind {
    /// What is wrong, and what would be right.
    const fn describe(self) -> (&'static str, &'static str) {
        match self {
            Self::NotALimit => ("this is not a limit", "write for example `10 per 1s`"),
            Self::ExpectedNumber => {
                ("a whole number must stand here", "write digits only, for example `10`")
            }
            Self::CountOutOfRange => ("the count is too large", "use at most 1000000000000"),
            Self::ExpectedPer => (
                "`per` or `concurrent` must follow the count",
                "write for example `10 per 1s` or `10 concurrent`",
            ),
            Self::ExpectedWindow => (
                "a length of time must stand here",
                "write a number and ms, s, m, h, d or w, for example `10s`",
            ),
            Self::UnknownUnit => ("unknown unit of time", "use ms, s, m, h, d or w"),
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
            Self::BurstOutOfRange => ("the burst is out of range", "use 1 to 1000000000000"),
            Self::BurstWithoutTokens => (
                "this algorithm has no burst",
                "write `token-bucket burst N`, or leave `burst` out",
            ),
            Self::LeaseOutOfRange => ("the lease is out of range", "use 1ms to 366d"),
            Self::SaidTwice => ("this is said twice", "say it once"),
            Self::ConcurrencyIsNotARate => {
                ("concurrency has no window", "write `10 concurrent` or `10 concurrent lease 60s`")
            }
        }
    }
}

/// A limit that cannot be: what is wrong, what would be right and, for a limit
/// given as text, the place.
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
    place: Option<(String, Range<usize>)>,
}

impl LimitError {
    pub(super) fn at(kind: LimitErrorKind, text: &str, span: Range<usize>) -> Self {
        let shown: String = text.chars().take(SHOWN_CHARS).collect();
        LimitError { kind, place: Some((shown, span)) }
    }

    /// What kind of mistake it is.
    pub const fn kind(&self) -> LimitErrorKind {
        self.kind
    }

    /// The bytes of the text it is about, when there was a text.
    pub fn span(&self) -> Option<Range<usize>> {
        self.place.as_ref().map(|(_, span)| span.clone())
    }

    /// What is wrong, in a few words.
    pub const fn problem(&self) -> &'static str {
        self.kind.describe().0
    }

    /// What to write instead.
    pub const fn help(&self) -> &'static str {
        self.kind.describe().1
    }
}

/// How much of a bad text an error repeats: a whole limit, not a pasted file.
const SHOWN_CHARS: usize = 80;

impl From<LimitErrorKind> for LimitError {
    fn from(kind: LimitErrorKind) -> Self {
        LimitError { kind, place: None }
    }
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (problem, help) = self.kind.describe();
        write!(f, "{problem}: {help}")?;
        let Some((text, span)) = &self.place else { return Ok(()) };
        // Control characters would move the caret, or the terminal.
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

// The texts above name the bounds; this keeps them true.
const _: () = assert!(
    bounds::MAX_COUNT == 1_000_000_000_000
        && bounds::MIN_WINDOW_US == 1_000
        && bounds::MAX_WINDOW_US == 366 * 86_400_000_000
);
