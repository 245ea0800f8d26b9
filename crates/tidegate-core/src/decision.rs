//! The decision of one limit.

use core::fmt;
use core::time::Duration;

/// The time after which the same cost would pass if nothing else arrived.
///
/// It is exact for every algorithm: the cost passes at that microsecond, and not one tick earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RetryAfter {
    /// The cost passes now.
    #[default]
    Now,
    /// The cost passes after this many microseconds, at least one.
    Micros(u64),
    /// The cost can never pass, because it exceeds the capacity of the limit.
    Never,
}

impl RetryAfter {
    /// Creates a wait of this many microseconds; [`RetryAfter::Now`] for zero.
    #[inline]
    pub const fn from_micros(micros: u64) -> Self {
        if micros == 0 { RetryAfter::Now } else { RetryAfter::Micros(micros) }
    }

    /// Returns the wait in microseconds; `None` means never.
    #[inline]
    pub const fn as_micros(self) -> Option<u64> {
        match self {
            RetryAfter::Now => Some(0),
            RetryAfter::Micros(micros) => Some(micros),
            RetryAfter::Never => None,
        }
    }

    /// Returns the wait in milliseconds, rounded up so that a caller that waits this long is not
    /// early; `None` means never.
    pub const fn as_millis(self) -> Option<u64> {
        match self.as_micros() {
            Some(micros) => Some(micros.div_ceil(1_000)),
            None => None,
        }
    }

    /// Returns the wait in whole seconds, rounded up, as a `Retry-After` header states it; `None`
    /// means never.
    pub const fn as_secs(self) -> Option<u64> {
        match self.as_micros() {
            Some(micros) => Some(micros.div_ceil(1_000_000)),
            None => None,
        }
    }

    /// Returns the wait as a [`Duration`]; `None` means never.
    pub const fn as_duration(self) -> Option<Duration> {
        match self.as_micros() {
            Some(micros) => Some(Duration::from_micros(micros)),
            None => None,
        }
    }
}

/// The time until the whole limit is available again if nothing else arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResetAfter {
    micros: u64,
}

impl ResetAfter {
    /// Creates a time of this many microseconds.
    #[inline]
    pub const fn from_micros(micros: u64) -> Self {
        ResetAfter { micros }
    }

    /// Returns the time in microseconds.
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.micros
    }

    /// Returns the time in milliseconds, rounded up.
    pub const fn as_millis(self) -> u64 {
        self.micros.div_ceil(1_000)
    }

    /// Returns the time in seconds, rounded up.
    pub const fn as_secs(self) -> u64 {
        self.micros.div_ceil(1_000_000)
    }

    /// Returns the time as a [`Duration`].
    pub const fn as_duration(self) -> Duration {
        Duration::from_micros(self.micros)
    }
}

/// The source of a decision: the store, or what replaced it while it failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Decided {
    /// The store decided.
    #[default]
    Exact,
    /// This process decided, with the limit divided by the number of nodes, because the store
    /// failed.
    Local,
    /// The request was allowed because the store failed.
    FailedOpen,
    /// The request was denied because the store failed.
    FailedClosed,
}

impl Decided {
    /// All variants, from the most to the least certain.
    pub const ALL: [Decided; 4] =
        [Decided::Exact, Decided::Local, Decided::FailedOpen, Decided::FailedClosed];

    /// Returns the name used in responses and metrics.
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

/// The decision of one limit.
///
/// [`Decision::or_deny`] turns a denial into an error, so that `?` enforces the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a denial is a value: look at `allowed`, or use `or_deny()?`"]
pub struct Decision {
    /// Whether this limit admits the cost.
    pub allowed: bool,
    /// Units per window or, for `concurrency`, units held at the same time.
    pub limit: u64,
    /// The largest cost that would be admitted now, after the charge of this decision.
    pub remaining: u64,
    /// The time after which this cost would pass; [`RetryAfter::Now`] if it is allowed.
    pub retry_after: RetryAfter,
    /// The time until `remaining` is at its maximum again if nothing else arrives.
    pub reset_after: ResetAfter,
    /// Whether the store was full and, for that reason alone, denied the cost or did not record a
    /// forced charge.
    pub no_room: bool,
    /// Whether the store decided, or what replaced it.
    pub decided: Decided,
}

impl Decision {
    /// Returns a denial as an error.
    ///
    /// ```
    /// use tidegate_core::{Attempt, Limit, State, Timestamp};
    ///
    /// let limit: Limit = "1 per 1m sliding-log".parse()?;
    /// let mut state = State::new(&limit);
    /// let mut send = || state.decide(&limit, &Attempt::new(1, Timestamp::EPOCH)).or_deny();
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
    /// A limit is exhausted, or can never admit the cost.
    LimitReached,
    /// The store is full, and does not track the key yet.
    StoreFull,
    /// The shared store failed, and the policy denies requests in that case. The usage of the key
    /// is unknown.
    StoreFailed,
    /// The queue of waiting callers is full.
    QueueFull,
}

/// A denial as an error, returned by [`Decision::or_deny`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    decision: Decision,
    reason: DenialReason,
}

impl Denied {
    /// Creates a denial from its reason and the decision of the limit that denied.
    pub const fn new(decision: Decision, reason: DenialReason) -> Self {
        Denied { decision, reason }
    }

    /// Returns the decision of the limit that denied.
    pub const fn decision(&self) -> Decision {
        self.decision
    }

    /// Returns the time after which the same request would pass.
    pub const fn retry_after(&self) -> RetryAfter {
        self.decision.retry_after
    }

    /// Returns the reason of the denial.
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
