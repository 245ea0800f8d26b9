//! Helpers for all modules.

use tidegate::{Cost, Decision, Limit, Limiter, ManualClock, Timestamp};

/// A second in microseconds.
pub const S: u64 = 1_000_000;
/// A time in 2023 that is a multiple of every round window up to 100 s.
pub const NOW: u64 = 1_700_000_000 * S;

pub fn limit(text: &str) -> Limit {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

/// Returns a limiter whose time is [`NOW`] until the clock is set.
pub fn limiter() -> (Limiter, ManualClock) {
    let clock = ManualClock::new(at(NOW));
    let builder = Limiter::builder().max_keys(10_000).clock(clock.clock());
    let limiter = builder.build().expect("a small store");
    (limiter, clock)
}

/// Decides one check, which must be valid, at the given time.
pub fn check_at(
    limiter: &Limiter,
    micros: u64,
    key: impl AsRef<[u8]>,
    limit: &Limit,
    cost: impl Into<Cost>,
) -> Decision {
    limiter.check_at(at(micros), key, limit, cost).expect("a valid check")
}
