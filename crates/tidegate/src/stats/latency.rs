//! Latency histograms with fixed buckets.

use std::cell::Cell;
use std::sync::Arc;
use std::thread::LocalKey;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::Outcome;
use super::counters::LimitStats;
use super::counters::{Counters, Stripe, stripe};
use super::top::PolicyTracker;

/// The upper bounds of the buckets for decisions. A decision in memory takes well under a
/// microsecond, a decision over a network some hundred, and a failing store its timeout.
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

/// One bucket per bound, and one for larger values.
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
        // Most values fall into the first buckets, so a linear search is faster than a binary
        // search.
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

/// The counts of a latency histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyCounts {
    /// The counts per bucket, not cumulative: one for each of [`LATENCY_BOUNDS`] or
    /// [`SERVICE_BOUNDS`](super::SERVICE_BOUNDS), then one for larger values.
    pub buckets: [u64; BUCKETS],
    /// The sum of all durations.
    pub sum: Duration,
}

impl LatencyCounts {
    /// Returns the number of measurements.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// The upper bounds of the buckets for services, from a cache lookup to a language model.
pub const SERVICE_BOUNDS: &[Duration] = &BOUNDS;

const BOUNDS: [Duration; LATENCY_BOUNDS.len()] = [
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2_500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
    Duration::from_secs(10),
    Duration::from_secs(60),
];

/// One request in this many is timed on each thread, both its decision and its service, because
/// reading the clock for each request would be a large part of the cost of admission. Services of
/// requests that an observed policy would have denied are always timed.
pub const TIMED_EVERY: u8 = 32;

/// One timed request in this many is ranked by volume on each thread, because a ranking costs more
/// than a decision.
pub(crate) const RANKED_EVERY: u8 = 32;

/// Whether this request is sampled for timing.
#[inline(always)]
pub(crate) fn is_sampled() -> bool {
    // The first request of a thread is timed, so that there is a value even if requests are few.
    thread_local!(static SEQUENCE: Cell<u64> = const { Cell::new(0) });
    is_chosen(&SEQUENCE, TIMED_EVERY)
}

/// Whether this request, which is timed, is sampled for the rankings by volume.
#[inline]
pub(super) fn is_ranked() -> bool {
    // The first request of a thread is not ranked, because it would stand for many.
    thread_local!(static SEQUENCE: Cell<u64> = const { Cell::new(u64::MAX / 2) });
    is_chosen(&SEQUENCE, RANKED_EVERY)
}

/// Chooses one call in `every`, by multiples of the golden ratio, which are evenly distributed, and
/// not at a fixed distance: if the requests of several policies alternate, each policy gets its
/// share, whereas a fixed distance could always choose the same policy.
#[inline(always)]
fn is_chosen(sequence: &'static LocalKey<Cell<u64>>, every: u8) -> bool {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15; // 2^64 / 1.618...
    sequence.with(|sequence| {
        let now = sequence.replace(sequence.get().wrapping_add(GOLDEN));
        now < u64::MAX / u64::from(every)
    })
}

/// The service times of a policy: of allowed requests, and of those that it would have denied.
#[derive(Debug)]
pub(super) struct ServiceTimes([Latency; 2]);

impl Default for ServiceTimes {
    fn default() -> Self {
        ServiceTimes([Latency::new(&BOUNDS), Latency::new(&BOUNDS)])
    }
}

const OUTCOMES: [Outcome; 2] = [Outcome::Allowed, Outcome::WouldDeny];

/// Measures the service of a request. A timer that is dropped without being finished records
/// nothing.
#[derive(Debug)]
#[must_use = "only a timer that is finished counts"]
pub struct ServiceTimer {
    started: Instant,
    of: SmallVec<[(Arc<PolicyTracker>, Outcome); 2]>,
}

impl ServiceTimer {
    /// Starts a timer for these policies.
    pub(crate) fn new<'a>(of: impl IntoIterator<Item = (&'a LimitStats, Outcome)>) -> Self {
        let of = of.into_iter().map(|(stats, outcome)| (Arc::clone(stats.tracker()), outcome));
        ServiceTimer { of: of.collect(), started: Instant::now() }
    }

    /// Records the time since the start, when the request has been served.
    pub fn finish(self) {
        let elapsed = self.started.elapsed();
        self.of.iter().for_each(|(tracker, outcome)| count(tracker, *outcome, elapsed));
    }
}

fn count(tracker: &PolicyTracker, outcome: Outcome, elapsed: Duration) {
    let times = tracker.service.get_or_init(Default::default);
    times.0[usize::from(outcome != Outcome::Allowed)].add(stripe(), elapsed);
}

/// The service times of the requests of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServiceLatency {
    /// The name of the policy.
    pub policy: Arc<str>,
    /// [`Outcome::Allowed`] or [`Outcome::WouldDeny`].
    pub outcome: Outcome,
    /// The histogram, with the buckets of [`SERVICE_BOUNDS`].
    pub counts: LatencyCounts,
}

/// The service times of all policies that have any, by name.
pub(super) fn counts(trackers: &[Arc<PolicyTracker>]) -> Vec<ServiceLatency> {
    let times = trackers.iter().filter_map(|tracker| Some((tracker, tracker.service.get()?)));
    let each = times.flat_map(|(tracker, times)| {
        OUTCOMES.into_iter().zip(&times.0).map(|(outcome, latency)| ServiceLatency {
            policy: Arc::clone(tracker.policy()),
            outcome,
            counts: latency.counts(),
        })
    });
    each.filter(|latency| latency.counts.count() > 0).collect()
}
