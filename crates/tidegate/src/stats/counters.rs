//! Counters that many threads add to.
//!
//! With one atomic per counter, all cores of a busy machine contend for its cache line. A set of
//! counters therefore has a few stripes, each on cache lines that no other stripe uses. A thread
//! always adds to the same stripe; reading adds the stripes up.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use super::top::{MAX_TRACKED_POLICIES, PolicyTracker};
use super::{Decided, OTHER, Outcome};
use crate::policy::{Mode, Template};
use crate::sync::Mutex;

/// Stripes per set. More would only help where more threads than this add to one set in the
/// same nanosecond.
const STRIPES: usize = 8;

/// The stripe of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stripe(usize);

/// The stripe of this thread. Threads take stripes in turn.
#[inline(always)]
pub(super) fn stripe() -> Stripe {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    const UNSET: usize = usize::MAX;
    thread_local!(static STRIPE: Cell<usize> = const { Cell::new(UNSET) });
    STRIPE.with(|stripe| {
        if stripe.get() == UNSET {
            stripe.set(NEXT.fetch_add(1, Relaxed) % STRIPES);
        }
        Stripe(stripe.get())
    })
}

/// A set of `N` counters. Public for `tidegate-server`, and not part of the stable API.
#[derive(Debug)]
pub struct Counters<const N: usize>([Padded<N>; STRIPES]);

/// Two cache lines or more: many machines fetch the next line along with the first.
#[derive(Debug)]
#[repr(align(128))]
struct Padded<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Counters<N> {
    fn default() -> Self {
        Counters([const { Padded([const { AtomicU64::new(0) }; N]) }; STRIPES])
    }
}

impl<const N: usize> Counters<N> {
    /// Adds to the counter with this index.
    ///
    /// # Panics
    /// When `index` is not below `N`.
    #[inline]
    pub fn add(&self, index: usize, count: u64) {
        self.add_in(stripe(), index, count);
    }

    /// Adds in the stripe of the calling thread, for callers that add to several sets.
    #[inline(always)]
    pub(super) fn add_in(&self, Stripe(stripe): Stripe, index: usize, count: u64) {
        self.0[stripe % STRIPES].0[index].fetch_add(count, Relaxed);
    }

    /// The values of all counters. Like the counters themselves, a sum wraps around.
    pub fn sums(&self) -> [u64; N] {
        let mut sums = [0_u64; N];
        for Padded(stripe) in &self.0 {
            for (sum, counter) in sums.iter_mut().zip(stripe) {
                *sum = sum.wrapping_add(counter.load(Relaxed));
            }
        }
        sums
    }
}

/// The maximum number of named series. Each takes 1 KiB, so all of them take 4 MiB, and more would
/// burden a metrics database with a single process.
pub const MAX_SERIES: usize = 4096;

/// The counters of a series: allowed and denied decisions by [`Decided`], near misses, then
/// requests by [`Outcome`]. All of them fit into the two cache lines of a stripe, so that counting
/// the request touches no other line than counting the decision of its reported limit.
type SeriesCounters = Counters<{ REQUESTS + Outcome::ALL.len() }>;

/// The number of variants of [`Decided`].
const SOURCES: usize = Decided::ALL.len();

/// The index of near misses.
const NEAR: usize = 2 * SOURCES;

/// The index of the first counter of requests.
const REQUESTS: usize = NEAR + 1;

/// The counters of a limit of a policy.
pub struct LimitStats {
    series: Arc<Series>,
    tracker: Arc<PolicyTracker>,
    /// The key template of the policy, if its keys may contain credentials.
    template: Option<Arc<Template>>,
}

impl LimitStats {
    /// Counts a decision, and whether it was a near miss.
    #[inline(always)]
    pub(super) fn count(&self, stripe: Stripe, allowed: bool, near_miss: bool, decided: Decided) {
        let counters = &self.series.counters;
        counters.add_in(stripe, usize::from(!allowed) * SOURCES + decided as usize, 1);
        if near_miss {
            counters.add_in(stripe, NEAR, 1);
        }
    }

    /// Counts a request whose verdict reports this limit.
    #[inline(always)]
    pub(super) fn count_request(&self, stripe: Stripe, outcome: Outcome) {
        self.series.counters.add_in(stripe, REQUESTS + outcome as usize, 1);
    }

    /// The outcome of a denial by this limit, which depends on its mode.
    pub(super) fn denied_outcome(&self) -> Outcome {
        denied_outcome(self.series.name.mode)
    }

    pub(super) fn same_policy(&self, other: &LimitStats) -> bool {
        Arc::ptr_eq(&self.tracker, &other.tracker)
            && self.series.name.mode == other.series.name.mode
    }

    pub(super) fn tracker(&self) -> &Arc<PolicyTracker> {
        &self.tracker
    }

    /// The key template of the policy, if its keys have to be masked.
    pub(super) fn template(&self) -> Option<&Arc<Template>> {
        self.template.as_ref()
    }

    /// Returns the name of the policy.
    pub fn policy(&self) -> &Arc<str> {
        &self.series.name.policy
    }

    /// Returns the text of the limit.
    pub fn limit(&self) -> &Arc<str> {
        &self.series.name.limit
    }
}

impl LimitStats {
    /// Sets the key template of the policy.
    pub(super) fn with_template(mut self, template: Option<&Arc<Template>>) -> Self {
        self.template = template.cloned();
        self
    }
}

impl fmt::Debug for LimitStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LimitStats").field(&self.series.name).finish()
    }
}

const fn denied_outcome(mode: Mode) -> Outcome {
    match mode {
        Mode::Enforce => Outcome::Denied,
        Mode::Observe | Mode::Off => Outcome::WouldDeny,
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SeriesName {
    policy: Arc<str>,
    limit: Arc<str>,
    mode: Mode,
}

/// The order of series: by policy, limit and mode.
type SeriesKey = (Arc<str>, Arc<str>, u8);

impl SeriesName {
    fn new(policy: &str, limit: &str, mode: Mode) -> Self {
        SeriesName { policy: policy.into(), limit: limit.into(), mode }
    }

    fn key(&self) -> SeriesKey {
        (Arc::clone(&self.policy), Arc::clone(&self.limit), self.mode as u8)
    }
}

#[derive(Debug)]
struct Series {
    name: SeriesName,
    counters: SeriesCounters,
}

impl Series {
    fn new(name: SeriesName) -> Self {
        Series { name, counters: SeriesCounters::default() }
    }

    fn counts(&self) -> SeriesCounts {
        let sums = self.counters.sums();
        SeriesCounts {
            policy: Arc::clone(&self.name.policy),
            limit: Arc::clone(&self.name.limit),
            mode: self.name.mode,
            allowed: std::array::from_fn(|source| sums[source]),
            denied: std::array::from_fn(|source| sums[SOURCES + source]),
            near: sums[NEAR],
            requests: std::array::from_fn(|outcome| sums[REQUESTS + outcome]),
        }
    }

    /// Adds the counts of another series.
    fn absorb(&self, other: &Series) {
        for (index, count) in other.counters.sums().into_iter().enumerate() {
            self.counters.add(index, count);
        }
    }
}

/// The counts of a series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeriesCounts {
    /// The name of the policy, [`CALLER`](super::CALLER) or [`OTHER`].
    pub policy: Arc<str>,
    /// The text of the limit.
    pub limit: Arc<str>,
    /// The mode of the policy.
    pub mode: Mode,
    /// Decisions that allowed the request, in the order of [`Decided::ALL`].
    pub allowed: [u64; 4],
    /// Decisions that denied the request, in the order of [`Decided::ALL`].
    pub denied: [u64; 4],
    /// Requests that were allowed and left at most 5 % of the limit.
    pub near: u64,
    /// Requests whose verdict reports this limit, in the order of [`Outcome::ALL`].
    pub requests: [u64; Outcome::ALL.len()],
}

impl SeriesCounts {
    /// Returns the outcome that `denied` counts, which depends on the mode.
    pub fn denied_outcome(&self) -> Outcome {
        denied_outcome(self.mode)
    }
}

/// The requests of a policy. Each request is counted once, under a single policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestCounts {
    /// The name of the policy; empty for requests that no policy applied to.
    pub policy: Arc<str>,
    /// The requests by outcome, in the order of [`Outcome::ALL`].
    pub outcomes: [u64; Outcome::ALL.len()],
    /// The outcomes that the modes of the policy's limits can have, in the order of
    /// [`Outcome::ALL`].
    pub possible: [bool; Outcome::ALL.len()],
}

/// All series by name, and the top keys of each policy.
#[derive(Debug, Default)]
pub(super) struct Registry {
    tables: Mutex<Tables>,
}

/// The number of new names after which unused series are searched for again, if there were none. A
/// search visits all series, so a large set of policies must not cause one for each of its names.
const NAMES_PER_SEARCH: usize = 64;

/// The number of series that are read before other threads may run: a tenth of a millisecond.
const SERIES_PER_YIELD: usize = 128;

#[derive(Debug, Default)]
struct Tables {
    series: BTreeMap<SeriesKey, Arc<Series>>,
    /// The number of new names until the next search for unused series.
    names_until_search: usize,
    trackers: BTreeMap<Arc<str>, Arc<PolicyTracker>>,
    /// The number of new policies until the next search for unused trackers.
    policies_until_search: usize,
}

impl Registry {
    pub(super) fn resolve(&self, policy: &str, limit: &str, mode: Mode) -> LimitStats {
        let mut tables = self.tables.lock();
        let series = tables.series(SeriesName::new(policy, limit, mode));
        let tracker = tables.tracker(policy);
        LimitStats { series, tracker, template: None }
    }

    /// The counts of all series, sorted by name. Thousands of series take milliseconds, so threads
    /// that wait for the processor run in between.
    pub(super) fn counts(&self) -> Vec<SeriesCounts> {
        let series: Vec<_> = self.tables.lock().series.values().cloned().collect();
        let mut counts = Vec::with_capacity(series.len());
        for part in series.chunks(SERIES_PER_YIELD) {
            counts.extend(part.iter().map(|series| series.counts()));
            std::thread::yield_now();
        }
        counts
    }

    /// The requests by policy, sorted by name.
    pub(super) fn requests(&self) -> Vec<RequestCounts> {
        let mut policies = Vec::<RequestCounts>::new();
        for series in self.counts() {
            let is_known = policies.last().is_some_and(|last| last.policy == series.policy);
            if !is_known {
                let policy = Arc::clone(&series.policy);
                let (outcomes, possible) = Default::default();
                policies.push(RequestCounts { policy, outcomes, possible });
            }
            let Some(policy) = policies.last_mut() else { continue };
            for (sum, count) in policy.outcomes.iter_mut().zip(series.requests) {
                *sum += count;
            }
            if series.mode != Mode::Off {
                policy.possible[Outcome::Allowed as usize] = true;
                policy.possible[series.denied_outcome() as usize] = true;
            }
        }
        policies
    }

    /// The trackers of one policy, or of all.
    pub(super) fn trackers(&self, policy: Option<&str>) -> Vec<Arc<PolicyTracker>> {
        let tables = self.tables.lock();
        match policy {
            Some(policy) => tables.trackers.get(policy).cloned().into_iter().collect(),
            None => tables.trackers.values().cloned().collect(),
        }
    }
}

impl Tables {
    fn series(&mut self, name: SeriesName) -> Arc<Series> {
        if let Some(series) = self.series.get(&name.key()) {
            return Arc::clone(series);
        }
        if self.series.len() >= MAX_SERIES {
            match self.names_until_search.checked_sub(1) {
                Some(names) => self.names_until_search = names,
                None => self.evict_unused(),
            }
        }
        if self.series.len() >= MAX_SERIES {
            return self.other(name.mode);
        }
        self.insert(name)
    }

    fn insert(&mut self, name: SeriesName) -> Arc<Series> {
        let key = name.key();
        let series = Arc::new(Series::new(name));
        Arc::clone(self.series.entry(key).or_insert(series))
    }

    fn other(&mut self, mode: Mode) -> Arc<Series> {
        self.insert(SeriesName::new(OTHER, OTHER, mode))
    }

    /// Removes series that only this table refers to, because no policy uses them any more. Their
    /// counts move to [`OTHER`], so that sums over all series never decrease.
    fn evict_unused(&mut self) {
        let mut retired = Vec::new();
        self.series.retain(|_, series| {
            let is_used = Arc::strong_count(series) > 1 || &*series.name.policy == OTHER;
            if !is_used {
                retired.push(Arc::clone(series));
            }
            is_used
        });
        if retired.is_empty() {
            self.names_until_search = NAMES_PER_SEARCH;
        }
        for series in retired {
            self.other(series.name.mode).absorb(&series);
        }
    }

    fn tracker(&mut self, policy: &str) -> Arc<PolicyTracker> {
        if let Some(tracker) = self.trackers.get(policy) {
            return Arc::clone(tracker);
        }
        if self.trackers.len() >= MAX_TRACKED_POLICIES {
            match self.policies_until_search.checked_sub(1) {
                Some(policies) => self.policies_until_search = policies,
                None => {
                    self.trackers.retain(|_, tracker| Arc::strong_count(tracker) > 1);
                    if self.trackers.len() >= MAX_TRACKED_POLICIES {
                        self.policies_until_search = NAMES_PER_SEARCH;
                    }
                }
            }
        }
        let full = self.trackers.len() >= MAX_TRACKED_POLICIES;
        let name: Arc<str> = if full { OTHER.into() } else { policy.into() };
        let tracker = || Arc::new(PolicyTracker::new(Arc::clone(&name)));
        Arc::clone(self.trackers.entry(Arc::clone(&name)).or_insert_with(tracker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_cover_all_stripes() {
        let counters = Counters::<2>::default();
        let threads = 2 * STRIPES as u64 + 1;
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| counters.add(1, 3));
            }
        });
        assert_eq!(counters.sums(), [0, 3 * threads]);
    }
}
