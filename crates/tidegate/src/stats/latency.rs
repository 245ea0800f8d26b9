//! How long decisions take: fixed buckets, added to like the counters.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::Outcome;
use super::counters::LimitStats;
use super::counters::{Counters, Stripe, stripe};
use super::top::TopTracker;

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

/// Upper bounds of the buckets: from a cache's answer to a language model's.
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

/// One request of a thread in so many is timed, both how long it took to decide and to serve:
/// reading the clock each time would be a good part of what letting it in costs. Those that a
/// policy would have denied are all timed.
pub const TIMED_EVERY: u8 = 32;

/// Whether it is this request's turn to be timed. They are not taken at equal distances, but
/// as many in the steps of the golden ratio: of two policies that take turns, or ten, each
/// has its share timed, where a fixed distance would always meet the same one.
#[inline(always)]
pub(crate) fn is_timed() -> bool {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15; // 2^64 / 1.618...
    thread_local!(static TURN: Cell<u64> = const { Cell::new(0) });
    TURN.with(|turn| {
        // A thread's first is timed: where requests are few, somebody waits for it.
        let now = turn.replace(turn.get().wrapping_add(GOLDEN));
        now < u64::MAX / u64::from(TIMED_EVERY)
    })
}

/// A policy's times: of what it allowed, and of what it would have denied.
#[derive(Debug)]
pub(super) struct ServiceTimes([Latency; 2]);

impl Default for ServiceTimes {
    fn default() -> Self {
        ServiceTimes([Latency::new(&BOUNDS), Latency::new(&BOUNDS)])
    }
}

const OUTCOMES: [Outcome; 2] = [Outcome::Allowed, Outcome::WouldDeny];

/// A request that is being served, and whose time counts when it is done. Dropped before
/// that, it counts for nothing.
#[derive(Debug)]
#[must_use = "only a timer that is finished counts"]
pub struct ServiceTimer {
    started: Instant,
    of: SmallVec<[(Arc<TopTracker>, Outcome); 2]>,
}

impl ServiceTimer {
    /// Starts now, for these policies.
    pub(crate) fn new<'a>(of: impl IntoIterator<Item = (&'a LimitStats, Outcome)>) -> Self {
        let of = of.into_iter().map(|(stats, outcome)| (Arc::clone(stats.tracker()), outcome));
        ServiceTimer { of: of.collect(), started: Instant::now() }
    }

    /// The request has been served.
    pub fn finish(self) {
        let elapsed = self.started.elapsed();
        self.of.iter().for_each(|(tracker, outcome)| count(tracker, *outcome, elapsed));
    }
}

fn count(tracker: &TopTracker, outcome: Outcome, elapsed: Duration) {
    let times = tracker.service.get_or_init(Default::default);
    times.0[usize::from(outcome != Outcome::Allowed)].add(stripe(), elapsed);
}

/// How long it took to serve the requests of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServiceLatency {
    /// The policy's name.
    pub policy: Arc<str>,
    /// [`Outcome::Allowed`] or [`Outcome::WouldDeny`].
    pub outcome: Outcome,
    /// How many took how long, in the buckets of [`SERVICE_BOUNDS`].
    pub counts: LatencyCounts,
}

/// Of all that somebody timed, by name.
pub(super) fn counts(trackers: &[Arc<TopTracker>]) -> Vec<ServiceLatency> {
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
