//! Leases never admit more than the store would: every short history of a small world, and long
//! random ones.
//!
//! The searches visit every reachable state of a [`World`] up to a depth. A state that was reached
//! before is not searched again, so the depth can be larger than the number of histories suggests.

use std::collections::HashSet;

use tidegate_core::{
    Attempt, GiveBack, Grant, GrantId, Lease, LeaseRequest, LeasedState, MAX_GRANTS, MAX_LEASE_US,
    MIN_LEASE_US, Timestamp,
};

use crate::checked_state::limit;
use crate::lease_world::{Action, Mistake, Rules, START, World};

const W: u64 = 1_000_000;
/// The duration of a lease.
const D: u64 = 400_000;
/// A time within the drift of a lease: a slow clock has not noticed its end yet.
const DRIFT: u64 = D / 2_000;

/// The times of a search: the ends of leases that begin at 0, a little later, or shortly before the
/// end of an aligned window, and a window and a cell after these times.
const TIMES: [u64; 8] = [0, D, D + DRIFT, W - D / 2, W, W + D, W + D + DRIFT, W + D + D / 2];

/// The actions of a search besides those of every search.
#[derive(Clone, Copy)]
struct Extras {
    refund: bool,
    reset: bool,
    change: bool,
    steps: &'static [i64],
    /// The most of these actions in a history.
    most: usize,
}

const NONE: Extras = Extras { refund: false, reset: false, change: false, steps: &[], most: 0 };

struct Search<'a> {
    rules: &'a Rules,
    times: &'a [u64],
    /// The units of a single spend or decision.
    unit: u64,
    extras: Extras,
    depth: usize,
}

/// The results of a search.
struct Outcome {
    states: usize,
    fullest: i128,
    violation: Option<String>,
}

fn is_extra(action: &Action) -> bool {
    matches!(
        action,
        Action::Refund(_) | Action::Reset | Action::Change | Action::Step(_) | Action::TakeBack(..)
    )
}

impl Search<'_> {
    fn actions(&self, world: &World) -> Vec<Action> {
        let mut actions = vec![Action::Decide(self.unit)];
        let passed = world.now() - START;
        let later = self.times.iter().filter(|time| **time > passed);
        actions.extend(later.map(|time| Action::Wait(time - passed)));
        for node in [0, 1] {
            if !world.is_asking(node) {
                actions.push(Action::Ask(node));
            }
            match world.left(node) {
                0 => {}
                left if left > self.unit => {
                    actions.extend([Action::Spend(node, self.unit), Action::Spend(node, left)]);
                }
                left => actions.push(Action::Spend(node, left)),
            }
            if world.has_lease(node) {
                actions.push(Action::GiveBack(node, 0));
            }
        }
        for message in 0..world.messages() {
            actions.push(Action::Deliver(message));
            if world.is_repeatable(message) {
                actions.push(Action::Duplicate(message));
            }
        }
        if world.trail.iter().filter(|action| is_extra(action)).count() < self.extras.most {
            self.extra_actions(world, &mut actions);
        }
        actions
    }

    fn extra_actions(&self, world: &World, actions: &mut Vec<Action>) {
        if self.extras.refund {
            actions.push(Action::Refund(self.unit));
            actions.extend([0, 1].map(|node| Action::TakeBack(node, self.unit)));
            actions.extend([0, 1].into_iter().filter(|node| world.has_lease(*node)).map(|node| {
                // A part of the lease is given back, and the rest may be spent.
                Action::GiveBack(node, self.unit)
            }));
        }
        if self.extras.reset {
            actions.push(Action::Reset);
        }
        if self.extras.change {
            actions.push(Action::Change);
        }
        actions.extend(self.extras.steps.iter().map(|us| Action::Step(*us)));
    }

    /// Visits every state that is reachable in `depth` actions, until one exceeds the bound.
    fn run(&self) -> Outcome {
        let mut outcome = Outcome { states: 0, fullest: 0, violation: None };
        let mut seen = HashSet::new();
        let mut frontier = vec![World::new(self.rules)];
        for _ in 0..self.depth {
            let mut next = Vec::new();
            for world in &frontier {
                for action in self.actions(world) {
                    let mut after = world.clone();
                    if let Err(violation) = after.apply(self.rules, action) {
                        outcome.violation = Some(violation);
                        return outcome;
                    }
                    let extras = after.trail.iter().filter(|action| is_extra(action)).count();
                    if seen.insert((after.fingerprint(), extras)) {
                        outcome.fullest = outcome.fullest.max(after.fullest);
                        next.push(after);
                    }
                }
            }
            frontier = next;
        }
        outcome.states = seen.len();
        outcome
    }
}

fn rules(texts: [&str; 2], units: u64, mistake: Mistake) -> Rules {
    let request = LeaseRequest { id: GrantId(0), units, duration_us: D, divisor: 1 };
    Rules { limits: texts.map(limit), request, mistake }
}

/// The optional actions, which are searched one kind at a time.
const EXTRAS: [(&str, Extras); 5] = [
    ("", NONE),
    ("refunds", Extras { refund: true, most: 2, ..NONE }),
    ("resets", Extras { reset: true, most: 1, ..NONE }),
    ("other limits", Extras { change: true, most: 2, ..NONE }),
    ("clock steps", Extras { steps: &[-300_000, -1_000_000, 300_000, 1_000_000], most: 1, ..NONE }),
];

/// Every history of some actions, with each kind of optional action. Returns the fullest window
/// without them.
fn every_history(texts: [&str; 2], unit: u64, depth: usize) -> i128 {
    let rules = rules(texts, 2 * unit, Mistake::None);
    let more = std::env::var("TIDEGATE_LEASE_DEPTH").map_or(0, |text| text.parse().expect("depth"));
    let outcomes = EXTRAS.map(|(name, extras)| {
        let depth = depth + more - usize::from(extras.most > 0);
        let search = Search { rules: &rules, times: &TIMES, unit, extras, depth };
        let Outcome { states, fullest, violation } = search.run();
        assert_eq!(violation, None, "{texts:?} with {name}");
        println!("{texts:?} with {name}: {states} states, fullest window {fullest}");
        fullest
    });
    outcomes[0]
}

#[test]
fn sliding_log_holds_its_limit_with_leases() {
    assert_eq!(every_history(["3 per 1s sliding-log", "2 per 1s sliding-log"], 1, 8), 3);
}

#[test]
fn sliding_window_holds_its_limit_with_leases() {
    // The other limit widens the state.
    let texts = ["21 per 1s sliding-window", "2001 per 1s sliding-window"];
    assert_eq!(every_history(texts, 7, 8), 21);
    let texts = ["3000 per 1s sliding-window", "2000003 per 1s sliding-window"];
    assert_eq!(every_history(texts, 1_000, 8), 3_000);
}

#[test]
fn sliding_counter_holds_its_bound_with_leases() {
    assert_eq!(every_history(["3 per 1s sliding-counter", "2 per 1s sliding-counter"], 1, 8), 5);
}

#[test]
fn fixed_window_holds_its_bound_with_leases() {
    assert_eq!(every_history(["3 per 1s fixed-window", "2 per 1s fixed-window"], 1, 8), 6);
}

#[test]
fn token_bucket_holds_its_bound_with_leases() {
    let texts = ["3 per 1s token-bucket", "3 per 1s token-bucket burst 2"];
    assert_eq!(every_history(texts, 1, 8), 5);
}

/// A generator of pseudo-random numbers: the steps of a 64-bit counter, mixed.
struct Random(u64);

impl Random {
    /// One of some values.
    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.index(values.len())]
    }

    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("below a length")
    }

    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// A limit of each algorithm, the one that may replace it, and the units of a request.
const LIMITS: [([&str; 2], u64); 7] = [
    (["3 per 1s sliding-log", "2 per 1s sliding-log"], 1),
    (["21 per 1s sliding-window", "2001 per 1s sliding-window"], 7),
    (["3000 per 1s sliding-window", "2000003 per 1s sliding-window"], 1_000),
    (["3 per 1s sliding-counter", "2 per 1s sliding-counter"], 1),
    (["3 per 1s fixed-window", "2 per 1s fixed-window"], 1),
    (["3 per 1s token-bucket", "3 per 1s token-bucket burst 2"], 1),
    (["3 per 1s token-bucket burst 6", "3 per 1s token-bucket burst 4"], 1),
];

/// A history of random actions at random times. Returns why it exceeds the bound.
fn random_history(rules: &Rules, unit: u64, seed: u64) -> Result<(), String> {
    let mut random = Random(seed);
    let mut world = World::new(rules);
    let has_steps = random.below(2) == 0;
    for _ in 0..200 {
        let node = usize::from(random.below(2) == 0);
        let units = unit * (1 + random.below(3));
        let action = match random.below(40) {
            0..6 => Action::Wait(random.one_of(&[1, DRIFT, D / 8, D / 2, D, W - D, W])),
            6..10 => Action::Ask(node),
            10..20 if world.messages() > 0 => {
                let message = random.index(world.messages());
                if random.below(4) == 0 && world.is_repeatable(message) {
                    Action::Duplicate(message)
                } else {
                    Action::Deliver(message)
                }
            }
            20..26 => Action::Spend(node, units.min(world.left(node).max(1))),
            26..29 => Action::GiveBack(node, unit * random.below(2)),
            29..34 => Action::Decide(units),
            34 => Action::Refund(units),
            35 => Action::TakeBack(node, units),
            36 => Action::Change,
            37 if random.below(4) == 0 => Action::Reset,
            38 if has_steps && random.below(4) == 0 => {
                let us = random.one_of(&[D / 4, D, W, 3 * W]).cast_signed();
                Action::Step(if random.below(2) == 0 { us } else { -us })
            }
            _ => continue,
        };
        world.apply(rules, action)?;
    }
    if rules.mistake == Mistake::None {
        world.check_decisions(rules);
    }
    Ok(())
}

/// Random histories of 200 actions. `TIDEGATE_LEASE_SEED` is the first seed, and
/// `TIDEGATE_LEASE_SEEDS` the number of seeds. A failure names the seed that repeats it.
#[test]
fn random_histories_hold_the_bounds() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let first = number("TIDEGATE_LEASE_SEED", 0);
    for seed in first..first + number("TIDEGATE_LEASE_SEEDS", 4_000) {
        for (texts, unit) in LIMITS {
            let rules = rules(texts, 2 * unit, Mistake::None);
            if let Err(violation) = random_history(&rules, unit, seed) {
                panic!("TIDEGATE_LEASE_SEED={seed} {texts:?}: {violation}");
            }
        }
    }
}

/// The searches can fail: each of these mistakes in the rules is found by one. `lease_world.rs`
/// describes them.
#[test]
fn searches_find_mistakes() {
    let [log, _, window, counter, fixed, bucket, _] = LIMITS;
    let [none, refunds, resets, ..] = EXTRAS;
    let rows = [
        (Mistake::ChargeAtGrant, log, none, 9),
        (Mistake::ChargeAtGrant, window, none, 9),
        (Mistake::ChargeAtGrant, bucket, none, 7),
        (Mistake::NoDriftAllowance, log, none, 8),
        (Mistake::NoDriftAllowance, fixed, none, 7),
        (Mistake::NoDriftAllowance, counter, none, 9),
        (Mistake::FromReply, log, none, 6),
        (Mistake::FromReply, window, none, 7),
        (Mistake::FromReply, bucket, none, 6),
        (Mistake::CountGiveBacks, log, refunds, 9),
        (Mistake::RefundTakesGrants, log, refunds, 6),
        (Mistake::RefundTakesGrants, window, refunds, 6),
        (Mistake::ResetForgetsGrants, log, resets, 6),
        (Mistake::ResetForgetsGrants, window, resets, 6),
        (Mistake::NotCut, fixed, none, 7),
        (Mistake::NotCut, counter, none, 9),
    ];
    for (mistake, (texts, unit), (name, extras), depth) in rows {
        let rules = rules(texts, 2 * unit, mistake);
        let found = Search { rules: &rules, times: &TIMES, unit, extras, depth }.run().violation;
        assert!(found.is_some(), "{mistake:?} with {texts:?} and {name}");
    }
}

/// The random histories can fail: each mistake is found for every algorithm.
#[test]
fn random_histories_find_mistakes() {
    let mistakes = [
        Mistake::ChargeAtGrant,
        Mistake::NoDriftAllowance,
        Mistake::FromReply,
        Mistake::NewestGrantFirst,
        Mistake::CountGiveBacks,
        Mistake::RefundTakesGrants,
        Mistake::ResetForgetsGrants,
        Mistake::LateGiveBack,
        Mistake::NotCut,
    ];
    for mistake in mistakes {
        for (texts, unit) in LIMITS {
            let rules = rules(texts, 2 * unit, mistake);
            let found = (0..10_000).find(|seed| random_history(&rules, unit, *seed).is_err());
            println!("{mistake:?} with {texts:?}: seed {found:?}");
            assert!(found.is_some(), "{mistake:?} with {texts:?}");
        }
    }
}

fn at(us: u64) -> Timestamp {
    Timestamp::from_micros(START + us)
}

fn request(id: u64, units: u64, duration_us: u64) -> LeaseRequest {
    LeaseRequest { id: GrantId(id), units, duration_us, divisor: 1 }
}

/// Requests under a limit at a time: the units and the duration asked for, and those granted.
#[test]
fn grants_what_is_available_and_no_longer_than_the_window() {
    let rows = [
        // More units than the limit, for longer than the longest lease.
        ("50 per 1m sliding-log", 0, (100, 60 * W), Some((50, MAX_LEASE_US))),
        ("50 per 1m sliding-window", 0, (20, D), Some((20, D))),
        ("6 per 1m token-bucket burst 9", 0, (20, D), Some((9, D))),
        // For longer than a window.
        ("50 per 1s sliding-log", 0, (20, 2 * W), Some((20, W))),
        ("50 per 1s sliding-window", 700, (20, 2 * W), Some((20, W))),
        // An aligned window ends first.
        ("50 per 1s fixed-window", W - D, (20, W), Some((20, D - 1))),
        ("50 per 1s sliding-counter", W - D, (20, W), Some((20, D - 1))),
        ("50 per 1s fixed-window", W - MIN_LEASE_US, (20, W), None),
        // Too short, and nothing.
        ("50 per 1s sliding-log", 0, (20, MIN_LEASE_US - 1), None),
        ("50 per 1s sliding-log", 0, (0, D), None),
        ("0 per 1s sliding-log", 0, (20, D), None),
        // Limits without leases.
        ("20 per 1s sliding-window", 0, (20, D), None),
        ("21 per 1s sliding-window", 0, (20, D), Some((20, D))),
        ("50 concurrent lease 1s", 0, (20, D), None),
    ];
    for (text, now, (units, duration_us), expected) in rows {
        let limit = limit(text);
        let mut store = LeasedState::new(&limit);
        let grant = store.grant(&limit, &request(1, units, duration_us), at(now));
        let granted = grant.map(|grant| (grant.units, grant.duration_us));
        assert_eq!(granted, expected, "{text}");
        assert_eq!(store.held(), expected.map_or(0, |(units, _)| units), "{text}");
    }
}

/// A lease of a crashed node is missing until its deadline and for a window, and not longer.
#[test]
fn lost_leases_return_after_a_window() {
    let rows = [
        ("50 per 1s sliding-log", W + D),
        // Later by up to a cell.
        ("50 per 1s sliding-window", W + D + W / 15 + 1),
        ("50 per 1s sliding-counter", 2 * W),
        ("50 per 1s fixed-window", W),
        ("50 per 1s token-bucket", W + D),
    ];
    for (text, free) in rows {
        let limit = limit(text);
        let mut store = LeasedState::new(&limit);
        store.grant(&limit, &request(1, 50, D), at(0)).expect("all units");
        let mut remaining = |us| store.decide(&limit, &Attempt::new(0, at(us))).remaining;
        assert_eq!(remaining(D), 0, "{text}");
        assert_eq!(remaining(free), 50, "{text}");
    }
}

#[test]
fn shares_what_is_left() {
    let limit = limit("100 per 1s sliding-log");
    let mut store = LeasedState::new(&limit);
    let mut grant = |id| {
        let request = LeaseRequest { divisor: 4, ..request(id, 80, D) };
        store.grant(&limit, &request, at(0)).map(|grant| grant.units)
    };
    assert_eq!([1, 2, 3].map(&mut grant), [Some(25), Some(19), Some(14)]);
    assert_eq!(grant(3), None, "an id that is open");
}

#[test]
fn bounds_the_open_grants() {
    let limit = limit("1000 per 1s sliding-log");
    let mut store = LeasedState::new(&limit);
    for id in 0..MAX_GRANTS as u64 {
        assert!(store.grant(&limit, &request(id, 1, D), at(id)).is_some());
    }
    assert!(store.grant(&limit, &request(1_000, 1, D), at(100)).is_none());
    assert_eq!(store.give_back(&limit, &GiveBack { id: GrantId(5), keep: 0 }, at(100)), 1);
    assert!(store.grant(&limit, &request(1_000, 1, D), at(100)).is_some());

    let (state, mut grants) = (store.state().clone(), store.grants().to_vec());
    grants.reverse();
    let restored = LeasedState::from_parts(state.clone(), grants.clone()).expect("valid");
    assert_eq!(restored.grants(), store.grants());
    for spoil in [
        |grant: &mut Grant| grant.units = 0,
        |grant: &mut Grant| grant.duration_us = MAX_LEASE_US + 1,
        |grant: &mut Grant| grant.id = GrantId(1 << 53),
        |grant: &mut Grant| grant.deadline = Timestamp::from_micros(1 << 53),
    ] {
        let mut grants = grants.clone();
        spoil(&mut grants[3]);
        assert!(LeasedState::from_parts(state.clone(), grants).is_none());
    }
    grants.push(grants[0]);
    assert!(LeasedState::from_parts(state, grants).is_none());
}

/// The node stops a thousandth of the duration, a microsecond and the margin before the duration
/// has passed since it sent the request.
#[test]
fn leases_end_early() {
    let grant = Grant { id: GrantId(1), units: 5, deadline: at(D), duration_us: D };
    let mut lease = Lease::new(&grant, at(0), 500);
    let stop = D - D / 1_000 - 1 - 500;
    assert_eq!(lease.stop(), at(stop));
    assert_eq!(lease.spend(6, at(0)), None);
    assert_eq!(lease.spend(0, at(0)), Some(5));
    assert_eq!(lease.spend(4, at(stop - 1)), Some(1));
    assert_eq!(lease.refund(9, at(stop - 1)), 4);
    assert_eq!(lease.spend(2, at(stop - 1)), Some(3));
    assert_eq!(lease.give_back(1), GiveBack { id: GrantId(1), keep: 3 });
    assert_eq!(lease.give_back(7), GiveBack { id: GrantId(1), keep: 3 });
    assert_eq!((lease.left(at(stop - 1)), lease.left(at(stop))), (1, 0));
    assert_eq!((lease.spend(1, at(stop)), lease.refund(1, at(stop))), (None, 0));
    // A clock that is behind the time of the request, and a lease that is all drift.
    assert_eq!(Lease::new(&grant, at(10), 0).left(at(9)), 0);
    assert_eq!(Lease::new(&grant, at(0), D).left(at(0)), 0);
}
