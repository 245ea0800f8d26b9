//! Counters per (policy, limit, mode).
//!
//! A mode has only two outcomes (allowed, and denied or would-deny), so two outcomes times four
//! ways of deciding fill exactly one cache line.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::counters::{Counters, Stripe};
use super::watch::{MAX_WATCHED_POLICIES, Watch};
use super::{Decided, OTHER, Outcome};
use crate::policy::{Mode, Template};
use crate::sync::Mutex;

/// The most series with a name of their own: 1 KiB each, so 4 MiB at worst, and
/// more than a metrics database should be asked to keep for one process.
pub const MAX_SERIES: usize = 4096;

/// The counters of a series: allowed answers and others by [`Decided`], then near misses.
type SeriesCounters = Counters<{ 2 * WAYS + 1 }>;

/// The ways of deciding.
const WAYS: usize = Decided::ALL.len();

/// The index of near misses.
const NEAR: usize = 2 * WAYS;

/// Where one limit of one policy is counted.
pub struct LimitStats {
    series: Arc<Series>,
    watch: Arc<Watch>,
    /// What makes the policy's keys, if they may hold credentials.
    template: Option<Arc<Template>>,
}

impl LimitStats {
    /// Counts an answer, and whether it was a near miss.
    #[inline(always)]
    pub(super) fn count(&self, stripe: Stripe, allowed: bool, near: bool, decided: Decided) {
        let counters = &self.series.counters;
        counters.add_in(stripe, usize::from(!allowed) * WAYS + decided as usize, 1);
        if near {
            counters.add_in(stripe, NEAR, 1);
        }
    }

    /// What it is called when this limit does not admit.
    pub(super) fn refusal(&self) -> Outcome {
        refusal(self.series.name.mode)
    }

    pub(super) fn same_policy(&self, other: &LimitStats) -> bool {
        Arc::ptr_eq(&self.watch, &other.watch) && self.series.name.mode == other.series.name.mode
    }

    pub(super) fn watch(&self) -> &Arc<Watch> {
        &self.watch
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

const fn refusal(mode: Mode) -> Outcome {
    match mode {
        Mode::Enforce => Outcome::Denied,
        Mode::Observe | Mode::Off => Outcome::WouldDeny,
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    policy: Arc<str>,
    limit: Arc<str>,
    mode: Mode,
}

/// By policy, limit and mode, so that listings are in a steady order.
type Place = (Arc<str>, Arc<str>, u8);

impl Name {
    fn new(policy: &str, limit: &str, mode: Mode) -> Self {
        Name { policy: policy.into(), limit: limit.into(), mode }
    }

    fn place(&self) -> Place {
        (Arc::clone(&self.policy), Arc::clone(&self.limit), self.mode as u8)
    }
}

#[derive(Debug)]
struct Series {
    name: Name,
    counters: SeriesCounters,
}

impl Series {
    fn new(name: Name) -> Self {
        Series { name, counters: SeriesCounters::default() }
    }

    fn counts(&self) -> SeriesCounts {
        let sums = self.counters.sums();
        SeriesCounts {
            policy: Arc::clone(&self.name.policy),
            limit: Arc::clone(&self.name.limit),
            mode: self.name.mode,
            allowed: std::array::from_fn(|way| sums[way]),
            refused: std::array::from_fn(|way| sums[WAYS + way]),
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
    pub fn refusal(&self) -> Outcome {
        refusal(self.mode)
    }
}

/// All series, by name, and what is watched per policy.
#[derive(Debug, Default)]
pub(super) struct Registry {
    named: Mutex<Named>,
}

#[derive(Debug, Default)]
struct Named {
    series: BTreeMap<Place, Arc<Series>>,
    watches: BTreeMap<Arc<str>, Arc<Watch>>,
}

impl Registry {
    pub(super) fn resolve(&self, policy: &str, limit: &str, mode: Mode) -> LimitStats {
        let mut named = self.named.lock();
        let series = named.series(Name::new(policy, limit, mode));
        let watch = named.watch(policy);
        LimitStats { series, watch, template: None }
    }

    pub(super) fn counts(&self) -> Vec<SeriesCounts> {
        let series: Vec<_> = self.named.lock().series.values().cloned().collect();
        series.iter().map(|series| series.counts()).collect()
    }

    /// What is watched of one policy, or of all.
    pub(super) fn watches(&self, policy: Option<&str>) -> Vec<Arc<Watch>> {
        let named = self.named.lock();
        match policy {
            Some(policy) => named.watches.get(policy).cloned().into_iter().collect(),
            None => named.watches.values().cloned().collect(),
        }
    }
}

impl Named {
    fn series(&mut self, name: Name) -> Arc<Series> {
        if let Some(series) = self.series.get(&name.place()) {
            return Arc::clone(series);
        }
        if self.series.len() >= MAX_SERIES {
            self.retire();
        }
        if self.series.len() >= MAX_SERIES {
            return self.other(name.mode);
        }
        self.insert(name)
    }

    fn insert(&mut self, name: Name) -> Arc<Series> {
        let place = name.place();
        let series = Arc::new(Series::new(name));
        Arc::clone(self.series.entry(place).or_insert(series))
    }

    fn other(&mut self, mode: Mode) -> Arc<Series> {
        self.insert(Name::new(OTHER, OTHER, mode))
    }

    /// Makes room: series that only this table holds belong to no policy any
    /// more. Their counts move, so that sums over all series never fall.
    fn retire(&mut self) {
        let mut retired = Vec::new();
        self.series.retain(|_, series| {
            let held = Arc::strong_count(series) > 1 || &*series.name.policy == OTHER;
            if !held {
                retired.push(Arc::clone(series));
            }
            held
        });
        for series in retired {
            self.other(series.name.mode).absorb(&series);
        }
    }

    fn watch(&mut self, policy: &str) -> Arc<Watch> {
        if let Some(watch) = self.watches.get(policy) {
            return Arc::clone(watch);
        }
        if self.watches.len() >= MAX_WATCHED_POLICIES {
            self.watches.retain(|_, watch| Arc::strong_count(watch) > 1);
        }
        let full = self.watches.len() >= MAX_WATCHED_POLICIES;
        let name: Arc<str> = if full { OTHER.into() } else { policy.into() };
        let watch = || Arc::new(Watch::new(Arc::clone(&name)));
        Arc::clone(self.watches.entry(Arc::clone(&name)).or_insert_with(watch))
    }
}
