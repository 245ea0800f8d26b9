//! Counters per (policy, limit, mode).
//!
//! A mode has only two outcomes (allowed, and denied or would-deny), so two outcomes times four
//! ways of deciding fill exactly one cache line.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::counters::{Counters, Stripe};
use super::top::{MAX_TRACKED_POLICIES, TopTracker};
use super::{Decided, OTHER, Outcome};
use crate::policy::{Mode, Template};
use crate::sync::Mutex;

/// The most series with a name of their own: 1 KiB each, so 4 MiB at worst, and
/// more than a metrics database should be asked to keep for one process.
pub const MAX_SERIES: usize = 4096;

/// The counters of a series: allowed answers and others by [`Decided`], then near misses.
type SeriesCounters = Counters<{ 2 * SOURCES + 1 }>;

/// The ways of deciding.
const SOURCES: usize = Decided::ALL.len();

/// The index of near misses.
const NEAR: usize = 2 * SOURCES;

/// Where one limit of one policy is counted.
pub struct LimitStats {
    series: Arc<Series>,
    tracker: Arc<TopTracker>,
    /// What makes the policy's keys, if they may hold credentials.
    template: Option<Arc<Template>>,
}

impl LimitStats {
    /// Counts an answer, and whether it was a near miss.
    #[inline(always)]
    pub(super) fn count(&self, stripe: Stripe, allowed: bool, near: bool, decided: Decided) {
        let counters = &self.series.counters;
        counters.add_in(stripe, usize::from(!allowed) * SOURCES + decided as usize, 1);
        if near {
            counters.add_in(stripe, NEAR, 1);
        }
    }

    /// What it is called when this limit does not admit.
    pub(super) fn denied_outcome(&self) -> Outcome {
        denied_outcome(self.series.name.mode)
    }

    pub(super) fn same_policy(&self, other: &LimitStats) -> bool {
        Arc::ptr_eq(&self.tracker, &other.tracker)
            && self.series.name.mode == other.series.name.mode
    }

    pub(super) fn tracker(&self) -> &Arc<TopTracker> {
        &self.tracker
    }

    /// The template that makes the policy's keys, if those are to be masked.
    pub(super) fn template(&self) -> Option<&Arc<Template>> {
        self.template.as_ref()
    }

    /// The policy's name.
    pub fn policy(&self) -> &Arc<str> {
        &self.series.name.policy
    }

    /// The limit's text.
    pub fn limit(&self) -> &Arc<str> {
        &self.series.name.limit
    }
}

impl LimitStats {
    /// Keys are made by this template.
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

/// By policy, limit and mode, so that listings are in a steady order.
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
            refused: std::array::from_fn(|source| sums[SOURCES + source]),
            near: sums[NEAR],
        }
    }

    /// Takes over the counts of another series.
    fn absorb(&self, other: &Series) {
        for (index, count) in other.counters.sums().into_iter().enumerate() {
            self.counters.add(index, count);
        }
    }
}

/// What one series has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeriesCounts {
    /// The policy's name, [`CALLER`](super::CALLER) or [`OTHER`].
    pub policy: Arc<str>,
    /// The limit's text.
    pub limit: Arc<str>,
    /// The policy's mode.
    pub mode: Mode,
    /// Answers that allowed, in the order of [`Decided::ALL`].
    pub allowed: [u64; 4],
    /// Answers that did not, in the order of [`Decided::ALL`].
    pub refused: [u64; 4],
    /// Allowed with at most 5 % of the limit remaining.
    pub near: u64,
}

impl SeriesCounts {
    /// What the answers that did not allow are called in this mode.
    pub fn denied_outcome(&self) -> Outcome {
        denied_outcome(self.mode)
    }
}

/// All series, by name, and what is watched per policy.
#[derive(Debug, Default)]
pub(super) struct Registry {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    series: BTreeMap<SeriesKey, Arc<Series>>,
    trackers: BTreeMap<Arc<str>, Arc<TopTracker>>,
}

impl Registry {
    pub(super) fn resolve(&self, policy: &str, limit: &str, mode: Mode) -> LimitStats {
        let mut tables = self.tables.lock();
        let series = tables.series(SeriesName::new(policy, limit, mode));
        let tracker = tables.tracker(policy);
        LimitStats { series, tracker, template: None }
    }

    pub(super) fn counts(&self) -> Vec<SeriesCounts> {
        let series: Vec<_> = self.tables.lock().series.values().cloned().collect();
        series.iter().map(|series| series.counts()).collect()
    }

    /// What is watched of one policy, or of all.
    pub(super) fn trackers(&self, policy: Option<&str>) -> Vec<Arc<TopTracker>> {
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
            self.evict_unused();
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

    /// Makes room: series that only this table holds belong to no policy any
    /// more. Their counts move, so that sums over all series never fall.
    fn evict_unused(&mut self) {
        let is_unused =
            |series: &Arc<Series>| Arc::strong_count(series) == 1 && &*series.name.policy != OTHER;
        let retired: Vec<_> =
            self.series.extract_if(.., |_, series| is_unused(series)).map(|(_, s)| s).collect();
        for series in retired {
            self.other(series.name.mode).absorb(&series);
        }
    }

    fn tracker(&mut self, policy: &str) -> Arc<TopTracker> {
        if let Some(tracker) = self.trackers.get(policy) {
            return Arc::clone(tracker);
        }
        if self.trackers.len() >= MAX_TRACKED_POLICIES {
            self.trackers.retain(|_, tracker| Arc::strong_count(tracker) > 1);
        }
        let full = self.trackers.len() >= MAX_TRACKED_POLICIES;
        let name: Arc<str> = if full { OTHER.into() } else { policy.into() };
        let tracker = || Arc::new(TopTracker::new(Arc::clone(&name)));
        Arc::clone(self.trackers.entry(Arc::clone(&name)).or_insert_with(tracker))
    }
}
