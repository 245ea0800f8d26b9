//! The memory store decides as the pure core does, bit for bit, and keeps keys apart.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::{Algorithm, Check, Cost, Decision, Limit, Limiter, bounds};
use tidegate_core::{Ask, State};

use crate::common::{NOW, S, at, check_at, limit, limiter};

/// When something happens, relative to what came before and to the window at hand.
#[derive(Clone, Copy, Debug)]
enum Gap {
    Micros(u64),
    /// Thousandths of a window.
    Part(u64),
    /// This many microseconds around a whole window.
    Window(i64),
    /// The clock steps back by so many thousandths of a window.
    Back(u64),
}

/// A cost: small, in thousandths of the capacity, or beyond any packed slot.
#[derive(Clone, Copy, Debug)]
enum Size {
    Units(u64),
    Part(u64),
    Beyond(u32),
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Ask,
    Force,
    Refund,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    gap: Gap,
    key: u8,
    limit: prop::sample::Index,
    kind: Kind,
    size: Size,
}

impl Gap {
    fn after(self, now: u64, window_us: u64) -> u64 {
        match self {
            Gap::Micros(micros) => now + micros,
            Gap::Part(part) => now + window_us / 1_000 * part,
            Gap::Window(around) => (now + window_us).saturating_add_signed(around),
            Gap::Back(part) => now.saturating_sub(window_us / 1_000 * part),
        }
    }
}

impl Step {
    fn cost(&self, limit: &Limit) -> Cost {
        let units = match self.size {
            Size::Units(units) => units,
            Size::Part(part) => limit.capacity() / 1_000 * part,
            Size::Beyond(shift) => 1 << shift,
        };
        match self.kind {
            Kind::Ask => Cost::Ask(units),
            Kind::Force => Cost::Force(units),
            Kind::Refund => Cost::Refund(units),
        }
    }
}

/// Every order of magnitude alike, and the ends.
fn magnitude(smallest: u64, largest: u64) -> impl Strategy<Value = u64> {
    let spread = (0_u32..64, any::<u64>())
        .prop_map(move |(shift, bits)| (smallest + (bits >> shift)).min(largest));
    prop_oneof![8 => spread, 1 => Just(smallest), 1 => Just(largest)]
}

fn any_limit() -> impl Strategy<Value = Limit> {
    // All that can be checked: permits are taken, not checked.
    let algorithm = prop::sample::select(Algorithm::ALL[..5].to_vec());
    let count = prop_oneof![magnitude(0, bounds::MAX_COUNT), 0_u64..20];
    // Around half a second a counter begins to fit its slot.
    let window_us = prop_oneof![
        magnitude(bounds::MIN_WINDOW_US, bounds::MAX_WINDOW_US),
        500_000_u64..550_000,
        Just(60 * S),
    ];
    (algorithm, count, window_us, 1..=64_u32).prop_map(|(algorithm, count, window_us, extra)| {
        let limit = Limit::new(count, Duration::from_micros(window_us), algorithm);
        let limit = limit.expect("within bounds");
        match algorithm {
            Algorithm::SlidingBuckets => limit.with_buckets(extra).expect("1 to 64"),
            Algorithm::TokenBucket => limit.with_burst(u64::from(extra)).expect("above 0"),
            _ => limit,
        }
    })
}

fn any_step() -> impl Strategy<Value = Step> {
    let gap = prop_oneof![
        4 => (0_u64..1_000).prop_map(Gap::Micros),
        4 => (0_u64..1_000).prop_map(Gap::Part),
        2 => (-2_i64..=2).prop_map(Gap::Window),
        1 => (0_u64..3_000).prop_map(Gap::Back),
    ];
    let size = prop_oneof![
        4 => (0_u64..4).prop_map(Size::Units),
        3 => (0_u64..=1_000).prop_map(Size::Part),
        1 => (18_u32..62).prop_map(Size::Beyond),
    ];
    let kind = prop_oneof![5 => Just(Kind::Ask), 1 => Just(Kind::Force), 1 => Just(Kind::Refund)];
    (gap, 0_u8..8, any::<prop::sample::Index>(), kind, size)
        .prop_map(|(gap, key, limit, kind, size)| Step { gap, key, limit, kind, size })
}

/// Every state by itself, without a store.
#[derive(Default)]
struct Model {
    states: HashMap<(u8, u64), (Limit, State)>,
}

impl Model {
    fn decide(&mut self, key: u8, limit: &Limit, ask: &Ask) -> Decision {
        let new = || (*limit, State::new(limit));
        self.states.entry((key, limit.id())).or_insert_with(new).1.decide(limit, ask)
    }

    fn known(&self) -> Vec<(u8, Limit)> {
        self.states.iter().map(|(&(key, _), &(limit, _))| (key, limit)).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_is_the_core_on_the_same_trace(
        limits in prop::collection::vec(any_limit(), 1..4),
        start in prop_oneof![0_u64..5_000, Just(NOW), 0..4_000_000_000 * S],
        steps in prop::collection::vec(any_step(), 1..120),
    ) {
        let (limiter, _) = limiter();
        let mut model = Model::default();
        let mut now = start;
        for step in steps {
            let limit = &limits[step.limit.index(limits.len())];
            if let Gap::Back(_) = step.gap {
                // A store lets go of what has expired; the model forgets it by being asked.
                for (key, limit) in model.known() {
                    let answer = check_at(&limiter, now, [key], &limit, Cost::PEEK);
                    prop_assert_eq!(answer, model.decide(key, &limit, &Ask::new(Cost::PEEK, at(now))));
                }
            }
            now = step.gap.after(now, limit.window_us());
            let cost = step.cost(limit);
            let answer = check_at(&limiter, now, [step.key], limit, cost);
            let expected = model.decide(step.key, limit, &Ask::new(cost, at(now)));
            prop_assert_eq!(answer, expected, "{} at {} {:?}", limit, now, cost);
        }
    }
}

/// Counts that a slot has no bits for move to the slab and stay exact there.
#[test]
fn counts_outgrow_their_slot() {
    for text in ["5 per 10s", "5 per 10s fixed-window", "5 per 400ms", "5 per 400ms fixed-window"] {
        let limit = limit(text);
        let (limiter, _) = limiter();
        let mut state = State::new(&limit);
        let rows = [(0, 1), (1, (1 << 20) - 2), (2, 1), (3, 1), (4, 1 << 41), (400_000, 1)];
        for (after, units) in rows.into_iter().chain([(10 * S, 1), (12 * S, 1), (20 * S, 1)]) {
            let (now, cost) = (NOW + after, Cost::Force(units));
            let expected = state.decide(&limit, &Ask::new(cost, at(now)));
            assert_eq!(check_at(&limiter, now, "key", &limit, cost), expected, "{text} {after}");
        }
    }
}

/// Any bytes are a key, and no two of these are the same.
#[test]
fn odd_keys_are_keys() {
    let long = vec![b'x'; 64 * 1024];
    let mut long_but_last = long.clone();
    long_but_last[64 * 1024 - 1] = b'y';
    let keys: [&[u8]; 9] = [
        b"",
        b"\0",
        b"\0\0",
        b"a",
        b"a\0",
        b"\xff\xfe not utf-8 \x80",
        &long,
        &long[1..],
        &long_but_last,
    ];
    let (limiter, _) = limiter();
    for text in ["3 per 1m", "3 per 1m sliding-log", "3 per 1m token-bucket", "3 per 2m"] {
        let limit = limit(text);
        for remaining in [2, 1, 0] {
            for key in keys {
                let decision = check_at(&limiter, NOW, key, &limit, 1);
                assert!(decision.allowed, "{text}");
                assert_eq!(decision.remaining, remaining, "{text}");
            }
        }
        assert!(keys.iter().all(|key| !check_at(&limiter, NOW, key, &limit, 1).allowed));
    }
    assert_eq!(limiter.stats().tracked_keys, 4 * 9);
}

/// The same key counts apart under limits of another algorithm, window or
/// buckets, and goes on counting under one of another number.
#[test]
fn limits_of_one_key_count_apart() {
    let (limiter, _) = limiter();
    let apart = ["9 per 1m", "9 per 2m", "9 per 1m fixed-window", "9 per 1m sliding-log"];
    let buckets = ["9 per 1m sliding-buckets buckets 2", "9 per 1m sliding-buckets buckets 3"];
    for (place, text) in apart.iter().chain(&buckets).enumerate() {
        let units = place as u64 + 1;
        assert_eq!(check_at(&limiter, NOW, "key", &limit(text), units).remaining, 9 - units);
    }
    for (place, text) in apart.iter().chain(&buckets).enumerate() {
        let more = limit(text).with_count(20).expect("within bounds");
        let remaining = check_at(&limiter, NOW, "key", &more, Cost::PEEK).remaining;
        assert_eq!(remaining, 20 - (place as u64 + 1), "{text}");
    }
}

#[test]
fn a_reset_forgets_one_key_of_one_limit() {
    let texts = [
        "5 per 1m",
        "5 per 1m fixed-window",
        "5 per 1m sliding-log",
        "5 per 1m sliding-buckets",
        "5 per 1m token-bucket",
        "5 per 100ms",
    ];
    let (limiter, _) = limiter();
    let limits = texts.map(limit);
    for limit in &limits {
        assert!(!limiter.reset("a", limit), "there was nothing");
        limiter.check("a", limit, 5).expect("a sound check");
        limiter.check("b", limit, 4).expect("a sound check");
    }
    for (place, limit) in limits.iter().enumerate() {
        assert!(limiter.reset("a", limit));
        assert!(!limiter.reset("a", limit), "it is gone");
        let left = |key: &str, limit| limiter.peek(key, limit).expect("a sound check").remaining;
        assert_eq!((left("a", limit), left("b", limit)), (5, 1), "{limit}");
        let others = limits[place + 1..].iter();
        assert!(others.clone().all(|other| left("a", other) == 0), "the others still count");
        assert!(limiter.check("a", limit, 5).expect("a sound check").allowed, "and it starts anew");
        assert!(limiter.reset("a", limit));
    }
    assert_eq!(limiter.stats().log_entries, 2, "b's log and buckets hold one each");
}

/// A clone is the same limiter.
#[test]
fn clones_share_their_counts() {
    let (limiter, _) = limiter();
    let limit = limit("2 per 1m");
    let clone = limiter.clone();
    assert!(limiter.check("key", &limit, 1).expect("a sound check").allowed);
    assert!(clone.check("key", &limit, 1).expect("a sound check").allowed);
    assert!(!limiter.check("key", &limit, 1).expect("a sound check").allowed);
}

/// The ways in by name do what their costs do.
#[test]
fn peek_charge_and_refund_are_costs() {
    let (limiter, _) = limiter();
    let limit = limit("5 per 1m sliding-log");
    assert_eq!(limiter.charge("key", &limit, 7).expect("sound").remaining, 0);
    assert!(!limiter.peek("key", &limit).expect("sound").allowed);
    assert_eq!(limiter.refund("key", &limit, 4).expect("sound").remaining, 2);
    let check = Check::new("key", &limit, 2);
    assert!(limiter.check_at(at(NOW), &check).expect("sound").allowed);
    let limiter: Limiter = limiter;
    assert_eq!(limiter.peek("key", &limit).expect("sound").remaining, 0);
}
