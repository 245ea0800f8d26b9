//! Random limits and steps, and a model without a store.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::unstable::bounds;
use tidegate::{Algorithm, Check, Cost, Decision, Limit};
use tidegate_core::{Attempt, State};

use crate::common::{S, at};

/// Returns a configuration with a number of cases. A failure prints its seed, which is not stored.
pub fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// The time of a step, relative to the step before and to the window.
#[derive(Clone, Copy, Debug)]
pub enum Gap {
    Micros(u64),
    /// A number of thousandths of a window.
    PerMille(u64),
    /// A whole window plus this many microseconds.
    Window(i64),
    /// A step back of the clock by this many thousandths of a window.
    Back(u64),
}

/// A cost: small, in thousandths of the capacity, or too large for any packed slot.
#[derive(Clone, Copy, Debug)]
pub enum Size {
    Units(u64),
    PerMille(u64),
    Beyond(u32),
}

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Ask,
    Force,
    Refund,
}

#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub gap: Gap,
    pub key: u8,
    pub limit: prop::sample::Index,
    pub kind: Kind,
    pub size: Size,
    pub consuming: bool,
}

impl Gap {
    pub fn after(self, now: u64, window_us: u64) -> u64 {
        match self {
            Gap::Micros(micros) => now + micros,
            Gap::PerMille(per_mille) => now + window_us / 1_000 * per_mille,
            Gap::Window(around) => (now + window_us).saturating_add_signed(around),
            Gap::Back(per_mille) => now.saturating_sub(window_us / 1_000 * per_mille),
        }
    }
}

impl Step {
    pub fn cost(&self, limit: &Limit) -> Cost {
        let units = match self.size {
            Size::Units(units) => units,
            Size::PerMille(per_mille) => limit.capacity() / 1_000 * per_mille,
            Size::Beyond(shift) => 1 << shift,
        };
        match self.kind {
            Kind::Ask => Cost::Ask(units),
            Kind::Force => Cost::Force(units),
            Kind::Refund => Cost::Refund(units),
        }
    }
}

/// Returns numbers of every order of magnitude, and both bounds.
fn magnitude(smallest: u64, largest: u64) -> impl Strategy<Value = u64> {
    let spread = (0_u32..64, any::<u64>())
        .prop_map(move |(shift, bits)| (smallest + (bits >> shift)).min(largest));
    prop_oneof![8 => spread, 1 => Just(smallest), 1 => Just(largest)]
}

pub fn any_limit() -> impl Strategy<Value = Limit> {
    // All algorithms that can be checked. Permits are acquired instead.
    let algorithm = prop::sample::select(Algorithm::ALL[..5].to_vec());
    // Every order of magnitude, and around the first boundary of the forms of `sliding-window`.
    let count = prop_oneof![magnitude(0, bounds::MAX_COUNT), 0_u64..40];
    // Above half a second a counter fits its slot.
    let window_us = prop_oneof![
        magnitude(bounds::MIN_WINDOW_US, bounds::MAX_WINDOW_US),
        500_000_u64..550_000,
        Just(60 * S),
    ];
    (algorithm, count, window_us, 1..=64_u32).prop_map(|(algorithm, count, window_us, extra)| {
        let limit = Limit::new(count, Duration::from_micros(window_us), algorithm);
        let limit = limit.expect("within bounds");
        match algorithm {
            Algorithm::TokenBucket => limit.with_burst(u64::from(extra)).expect("above 0"),
            _ => limit,
        }
    })
}

/// Returns one to three limits, which are applied to keys in random order.
///
/// Of the token buckets that share a state only the first is kept. Each drains the debt at its own
/// rate, so a debt that has expired under a fast limit still counts under a slow one, until another
/// key reuses the slot. The model cannot predict that.
pub fn any_limits() -> impl Strategy<Value = Vec<Limit>> {
    prop::collection::vec(any_limit(), 1..4).prop_map(|limits| {
        let is_first = |(index, limit): &(usize, &Limit)| {
            limit.algorithm() != Algorithm::TokenBucket
                || !limits[..*index].iter().any(|earlier| earlier.id() == limit.id())
        };
        let kept = limits.iter().enumerate().filter(is_first);
        kept.map(|(_, limit)| *limit).collect()
    })
}

/// Returns limits of `sliding-window` over one window, on both sides of the boundaries of its
/// forms.
pub fn window_limits() -> impl Strategy<Value = Vec<Limit>> {
    const BORDERS: [u64; 7] = [20, 21, 2_000, 2_001, 2_000_000, 2_000_001, bounds::MAX_COUNT];
    let count = prop_oneof![prop::sample::select(&BORDERS[..]), 0_u64..100];
    let window_us = prop_oneof![
        Just(bounds::MIN_WINDOW_US),
        Just(bounds::MAX_WINDOW_US),
        Just(60 * S),
        1_000_u64..10_000_000,
    ];
    (prop::collection::vec(count, 1..5), window_us).prop_map(|(counts, window_us)| {
        let window = Duration::from_micros(window_us);
        let limit = |count| Limit::new(count, window, Algorithm::SlidingWindow);
        counts.into_iter().map(|count| limit(count).expect("within bounds")).collect()
    })
}

pub fn any_step() -> impl Strategy<Value = Step> {
    let gap = prop_oneof![
        4 => (0_u64..1_000).prop_map(Gap::Micros),
        4 => (0_u64..1_000).prop_map(Gap::PerMille),
        2 => (-2_i64..=2).prop_map(Gap::Window),
        1 => (0_u64..3_000).prop_map(Gap::Back),
    ];
    let size = prop_oneof![
        4 => (0_u64..4).prop_map(Size::Units),
        3 => (0_u64..=1_000).prop_map(Size::PerMille),
        1 => (18_u32..62).prop_map(Size::Beyond),
    ];
    let kind = prop_oneof![5 => Just(Kind::Ask), 1 => Just(Kind::Force), 1 => Just(Kind::Refund)];
    (gap, 0_u8..8, any::<prop::sample::Index>(), kind, size, prop::bool::weighted(0.3)).prop_map(
        |(gap, key, limit, kind, size, consuming)| Step { gap, key, limit, kind, size, consuming },
    )
}

/// A separate state for each key and limit, without a store.
#[derive(Default)]
pub struct Model {
    states: HashMap<(u8, u64), (Limit, State)>,
}

impl Model {
    pub fn state(&mut self, key: u8, limit: &Limit) -> &mut State {
        let new = || (*limit, State::new(limit));
        &mut self.states.entry((key, limit.id())).or_insert_with(new).1
    }

    pub fn decide(&mut self, key: u8, limit: &Limit, attempt: &Attempt) -> Decision {
        self.state(key, limit).decide(limit, attempt)
    }

    pub fn known(&self) -> Vec<(u8, Limit)> {
        self.states.iter().map(|(&(key, _), &(limit, _))| (key, limit)).collect()
    }
}

/// States without a store, which [`decide_all`] decides on.
pub trait States {
    /// Returns whether the state alone admits the attempt.
    fn admits(&mut self, key: u8, limit: &Limit, attempt: &Attempt) -> bool;

    /// Finishes the decision on an attempt after [`States::admits`].
    fn settle(&mut self, key: u8, limit: &Limit, attempt: &Attempt, admitted: bool) -> Decision;
}

impl States for Model {
    fn admits(&mut self, key: u8, limit: &Limit, attempt: &Attempt) -> bool {
        self.state(key, limit).advance_and_check(limit, attempt)
    }

    fn settle(&mut self, key: u8, limit: &Limit, attempt: &Attempt, admitted: bool) -> Decision {
        self.state(key, limit).finish(limit, attempt, admitted)
    }
}

/// One check of a random request.
#[derive(Clone, Copy, Debug)]
pub struct GeneratedCheck {
    pub key: u8,
    pub limit: Limit,
    pub cost: Cost,
    pub observed: bool,
    pub consuming: bool,
}

impl GeneratedCheck {
    pub fn of(step: &Step, limits: &[Limit], observed: bool) -> Self {
        let limit = limits[step.limit.index(limits.len())];
        let consuming = step.consuming;
        GeneratedCheck { key: step.key, limit, cost: step.cost(&limit), observed, consuming }
    }

    pub fn check<'a>(&'a self, keys: &'a [[u8; 1]]) -> Check<'a> {
        let check = Check::new(&keys[usize::from(self.key)], &self.limit, self.cost);
        let check = if self.consuming { check.consuming() } else { check };
        if self.observed { check.observed() } else { check }
    }

    /// Returns the units that a denial consumes if `left` units are left.
    fn consumed_of(&self, left: u64) -> u64 {
        match self.cost {
            Cost::Ask(units @ 2..) if self.consuming && !self.observed => units.min(left),
            _ => 0,
        }
    }
}

/// Returns the checks of a request, without two checks of one state.
pub fn distinct_checks(steps: &[(Step, bool)], limits: &[Limit]) -> Vec<GeneratedCheck> {
    let mut checks = Vec::<GeneratedCheck>::new();
    for (step, observed) in steps {
        let check = GeneratedCheck::of(step, limits, *observed);
        if checks.iter().all(|p| (p.key, p.limit.id()) != (check.key, check.limit.id())) {
            checks.push(check);
        }
    }
    checks
}

/// Decides a request on states without a store: all enforced checks are charged or none, or
/// consumed where they consume, and so are the observed checks of each key.
pub fn decide_all(
    model: &mut impl States,
    checks: &[GeneratedCheck],
    now: u64,
) -> (bool, Vec<Decision>) {
    let attempt = |check: &GeneratedCheck| Attempt::new(check.cost, at(now));
    let admits_alone: Vec<bool> =
        checks.iter().map(|check| model.admits(check.key, &check.limit, &attempt(check))).collect();
    let allowed = checks.iter().zip(&admits_alone).all(|(check, admits)| check.observed || *admits);
    let charges = |check: &GeneratedCheck, admits: bool| {
        let denies = |(other, admits): (&GeneratedCheck, &bool)| {
            check.observed && other.observed && check.key == other.key && !admits
        };
        admits && !checks.iter().zip(&admits_alone).any(denies)
    };
    let settle = |(check, admits): (&GeneratedCheck, &bool)| {
        if !allowed {
            let peek = Attempt::new(Cost::PEEK, at(now));
            let left = model.settle(check.key, &check.limit, &peek, false).remaining;
            let consumed = Attempt::new(Cost::Force(check.consumed_of(left)), at(now));
            let _ = model.settle(check.key, &check.limit, &consumed, true);
        }
        model.settle(check.key, &check.limit, &attempt(check), allowed && charges(check, *admits))
    };
    (allowed, checks.iter().zip(&admits_alone).map(settle).collect())
}

/// Returns all keys that a step may have.
pub fn keys() -> Vec<[u8; 1]> {
    (0..8).map(|key| [key]).collect()
}
