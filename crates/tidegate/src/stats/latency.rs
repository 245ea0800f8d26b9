//! How long decisions take: fixed buckets, added to like the counters.

use std::time::Duration;

use super::counters::{Counters, Stripe};

/// Upper bounds of the buckets. A decision in memory takes well under a
/// microsecond, one over a network some hundred, a failing store its time-out.
pub const LATENCY_BOUNDS: [Duration; 16] = [
    Duration::from_nanos(250),
    Duration::from_nanos(500),
    Duration::from_micros(1),
    Duration::from_nanos(2_500),
    Duration::from_micros(5),
    Duration::from_micros(10),
    Duration::from_micros(25),
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2_500),
    Duration::from_millis(5),
    Duration::from_millis(25),
    Duration::from_millis(100),
    Duration::from_secs(1),
];

/// One bucket per bound, and one for what exceeds them all.
const BUCKETS: usize = LATENCY_BOUNDS.len() + 1;

#[derive(Debug)]
pub(super) struct Latency {
    bounds: &'static [Duration; LATENCY_BOUNDS.len()],
    /// The buckets, then the sum of all times in nanoseconds.
    counters: Counters<{ BUCKETS + 1 }>,
}

impl Default for Latency {
    fn default() -> Self {
        Latency::new(&LATENCY_BOUNDS)
    }
}

impl Latency {
    pub(super) fn new(bounds: &'static [Duration; LATENCY_BOUNDS.len()]) -> Self {
        Latency { bounds, counters: Counters::default() }
    }

    #[inline]
    pub(super) fn add(&self, stripe: Stripe, elapsed: Duration) {
        // Most fall into the first few buckets: walking beats a binary search.
        let bucket = self.bounds.iter().position(|bound| elapsed <= *bound);
        self.counters.add_in(stripe, bucket.unwrap_or(LATENCY_BOUNDS.len()), 1);
        let elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        self.counters.add_in(stripe, BUCKETS, elapsed_ns);
    }

    pub(super) fn counts(&self) -> LatencyCounts {
        let sums = self.counters.sums();
        LatencyCounts {
            buckets: std::array::from_fn(|bucket| sums[bucket]),
            sum: Duration::from_nanos(sums[BUCKETS]),
        }
    }
}

/// How many decisions took how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyCounts {
    /// Decisions per bucket (not cumulative): one for each of [`LATENCY_BOUNDS`] (or of
    /// [`SERVICE_BOUNDS`](super::SERVICE_BOUNDS)), then what exceeded them all.
    pub buckets: [u64; BUCKETS],
    /// The time of all together.
    pub sum: Duration,
}

impl LatencyCounts {
    /// Decisions that were measured.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}
