//! How long decisions take: fixed buckets, added to like the counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::series::STRIPES;

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

#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe {
    /// One per bound, and what exceeded them all.
    buckets: [AtomicU64; LATENCY_BOUNDS.len() + 1],
    sum_ns: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Latency {
    bounds: &'static [Duration; LATENCY_BOUNDS.len()],
    stripes: [Stripe; STRIPES],
}

impl Default for Latency {
    fn default() -> Self {
        Latency::new(&LATENCY_BOUNDS)
    }
}

impl Latency {
    pub(super) fn new(bounds: &'static [Duration; LATENCY_BOUNDS.len()]) -> Self {
        Latency { bounds, stripes: Default::default() }
    }

    #[inline]
    pub(super) fn add(&self, stripe: usize, elapsed: Duration) {
        // Most fall into the first few buckets: walking beats a binary search.
        let bucket = self.bounds.iter().position(|bound| elapsed <= *bound);
        let stripe = &self.stripes[stripe];
        stripe.buckets[bucket.unwrap_or(LATENCY_BOUNDS.len())].fetch_add(1, Ordering::Relaxed);
        let elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        stripe.sum_ns.fetch_add(elapsed_ns, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> LatencyCounts {
        let mut counts = LatencyCounts::default();
        for stripe in &self.stripes {
            for (sum, bucket) in counts.buckets.iter_mut().zip(&stripe.buckets) {
                *sum += bucket.load(Ordering::Relaxed);
            }
            counts.sum += Duration::from_nanos(stripe.sum_ns.load(Ordering::Relaxed));
        }
        counts
    }
}

/// How many decisions took how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyCounts {
    /// Decisions per bucket (not cumulative): one for each of [`LATENCY_BOUNDS`] (or of
    /// [`SERVICE_BOUNDS`](super::SERVICE_BOUNDS)), then what exceeded them all.
    pub buckets: [u64; LATENCY_BOUNDS.len() + 1],
    /// The time of all together.
    pub sum: Duration,
}

impl LatencyCounts {
    /// Decisions that were measured.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}
