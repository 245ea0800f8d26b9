//! Points in time, in whole microseconds.

/// Microseconds since the Unix epoch.
///
/// The algorithms never read a clock: the time is an argument. So every decision can
/// be replayed, and every test is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Timestamp = Timestamp(0);

    /// The latest time of a decision. Units that are charged then can still expire at a later
    /// time.
    pub const LAST: Timestamp = Timestamp(u64::MAX - 1);

    /// Creates a time from microseconds since the Unix epoch.
    #[inline]
    pub const fn from_micros(micros: u64) -> Self {
        Timestamp(micros)
    }

    /// Returns the microseconds since the Unix epoch.
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns this time plus `micros`, saturating at the largest time.
    #[inline]
    #[must_use]
    pub const fn plus_micros(self, micros: u64) -> Self {
        Timestamp(self.0.saturating_add(micros))
    }
}
