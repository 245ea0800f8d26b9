//! The answer of one limit.

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

/// One limit's answer to one ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
}
