//! The answer of one limit.

use core::fmt;
use core::time::Duration;

/// When the same cost would pass if nothing else arrived.
///
/// Exact for every algorithm: at that microsecond it passes, one tick earlier it does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RetryAfter {
    /// It passes now.
    #[default]
    Now,
    /// It passes after this many microseconds, at least one.
    Micros(u64),
    /// It can never pass: the cost exceeds what the limit can ever hold.
    Never,
}

impl RetryAfter {
    /// `Now` for zero, else the wait.
    #[inline]
    pub const fn from_micros(micros: u64) -> Self {
        if micros == 0 { RetryAfter::Now } else { RetryAfter::Micros(micros) }
    }

    /// The wait in microseconds; `None` means never.
    #[inline]
    pub const fn as_micros(self) -> Option<u64> {
        match self {
            RetryAfter::Now => Some(0),
            RetryAfter::Micros(micros) => Some(micros),
            RetryAfter::Never => None,
        }
    }

    /// The wait in milliseconds, rounded up so that a caller who obeys is not early; `None` means never.
    pub const fn as_millis(self) -> Option<u64> {
        match self.as_micros() {
            Some(micros) => Some(micros.div_ceil(1_000)),
            None => None,
        }
    }

    /// The wait in seconds, rounded up, as `Retry-After` wants it; `None` means never.
    pub const fn as_secs(self) -> Option<u64> {
        match self.as_micros() {
            Some(micros) => Some(micros.div_ceil(1_000_000)),
            None => None,
        }
    }

    /// The wait as a [`Duration`]; `None` means never.
    pub const fn as_duration(self) -> Option<Duration> {
        match self.as_micros() {
            Some(micros) => Some(Duration::from_micros(micros)),
            None => None,
        }
    }
}

/// How long until everything is available again if nothing else arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResetAfter {
    micros: u64,
}

impl ResetAfter {
    /// A wait of this many microseconds.
    #[inline]
    pub const fn from_micros(micros: u64) -> Self {
        ResetAfter { micros }
    }

    /// In microseconds.
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.micros
    }

    /// In milliseconds, rounded up.
    pub const fn as_millis(self) -> u64 {
        self.micros.div_ceil(1_000)
    }

    /// In seconds, rounded up.
    pub const fn as_secs(self) -> u64 {
        self.micros.div_ceil(1_000_000)
    }

    /// As a [`Duration`].
    pub const fn as_duration(self) -> Duration {
        Duration::from_micros(self.micros)
    }
}

/// How an answer was decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Decided {
    /// By the store.
    #[default]
    Exact,
    /// In this process, with the limit divided by the nodes, because the store failed.
    Local,
    /// Allowed because the store failed.
    FailedOpen,
    /// Denied because the store failed.
    FailedClosed,
}

impl Decided {
    /// Every way, in the order of their certainty.
    pub const ALL: [Decided; 4] =
        [Decided::Exact, Decided::Local, Decided::FailedOpen, Decided::FailedClosed];

    /// The name used in answers and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Decided::Exact => "exact",
            Decided::Local => "local",
            Decided::FailedOpen => "failed-open",
            Decided::FailedClosed => "failed-closed",
        }
    }
}

impl fmt::Display for Decided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One limit's answer to one ask.
///
/// [`Decision::or_deny`] makes an error of a denial, so that `?` enforces the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a denial is a value: look at `allowed`, or use `or_deny()?`"]
pub struct Decision {
    /// Whether this limit admits the cost.
    pub allowed: bool,
    /// Units the limit grants per window (or at once, for `concurrency`).
    pub limit: u64,
    /// The largest cost that would be admitted right now, after any charge just made.
    pub remaining: u64,
    /// When this cost would pass; [`RetryAfter::Now`] when it is allowed.
    pub retry_after: RetryAfter,
    /// How long until `remaining` is back at its maximum if nothing else arrives.
    pub reset_after: ResetAfter,
    /// Whether a store had no room for the key, and for that reason alone denied the cost or did
    /// not record a forced charge.
    pub no_room: bool,
    /// How it was decided.
    pub decided: Decided,
}

impl Decision {
    /// Returns a denial as an error.
    ///
    /// ```
    /// use tidegate_core::{Ask, Limit, State, Timestamp};
    ///
    /// let limit: Limit = "1 per 1m sliding-log".parse()?;
    /// let mut state = State::new(&limit);
    /// let mut send = || state.decide(&limit, &Ask::new(1, Timestamp::EPOCH)).or_deny();
    /// send()?;
    /// let denied = send().unwrap_err();
    /// assert_eq!(denied.to_string(), "the limit of 1 is reached: retry in 60s");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Denied`] if the cost was not allowed.
    #[inline]
    pub const fn or_deny(self) -> Result<(), Denied> {
        match self.decided {
            _ if self.allowed => Ok(()),
            Decided::FailedClosed => Err(Denied::new(self, DenialReason::StoreFailed)),
            _ if self.no_room => Err(Denied::new(self, DenialReason::StoreFull)),
            _ => Err(Denied::new(self, DenialReason::LimitReached)),
        }
    }
}

/// Why a request was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DenialReason {
    /// A limit is used up, or can never admit the cost.
    LimitReached,
    /// The store is full, and the key is new to it.
    StoreFull,
    /// The shared store failed, and a policy denies then. Says nothing about the key.
    StoreFailed,
    /// The queue of waiting callers is full.
    QueueFull,
}

/// A denial as an error; see [`Decision::or_deny`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    decision: Decision,
    reason: DenialReason,
}

impl Denied {
    /// A denial with its reason and the answer of the limit that denied.
    pub const fn new(decision: Decision, reason: DenialReason) -> Self {
        Denied { decision, reason }
    }

    /// Returns the answer of the limit that denied.
    pub const fn decision(&self) -> Decision {
        self.decision
    }

    /// Returns the time after which the same request would pass.
    pub const fn retry_after(&self) -> RetryAfter {
        self.decision.retry_after
    }

    /// Returns why it was denied.
    pub const fn reason(&self) -> DenialReason {
        self.reason
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = self.decision.limit;
        let wait = self.retry_after().as_millis().map(Duration::from_millis);
        match (self.reason, wait) {
            (DenialReason::LimitReached, None) => {
                return write!(f, "the cost is more than the limit of {limit} can ever admit");
            }
            (DenialReason::LimitReached, _) => write!(f, "the limit of {limit} is reached")?,
            (DenialReason::StoreFull, _) => f.write_str("the store has no room for a new key")?,
            (DenialReason::StoreFailed, _) => f.write_str("the store failed")?,
            (DenialReason::QueueFull, _) => f.write_str("too many callers wait")?,
        }
        match wait {
            Some(wait) => write!(f, ": retry in {wait:?}"),
            None => Ok(()),
        }
    }
}

impl core::error::Error for Denied {}
