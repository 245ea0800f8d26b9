//! Time as every algorithm sees it: an argument, in whole microseconds.

/// Microseconds since the Unix epoch.
///
/// Algorithms never read a clock; whoever calls them passes the time. That makes
/// every decision replayable and every test exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Timestamp = Timestamp(0);

    /// The last time a decision can be made at: whatever is counted then still
    /// expires later.
    pub const LAST: Timestamp = Timestamp(u64::MAX - 1);

    /// A time given in microseconds since the Unix epoch.
    #[inline]
    pub const fn from_micros(micros: u64) -> Self {
        Timestamp(micros)
    }

    /// Microseconds since the Unix epoch.
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// This time moved forward, stopping at the end of representable time.
    #[inline]
    #[must_use]
    pub const fn plus_micros(self, micros: u64) -> Self {
        Timestamp(self.0.saturating_add(micros))
    }
}
