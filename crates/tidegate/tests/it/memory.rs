//! The memory store decides as the pure core does, bit for bit, and keeps keys separate.

use proptest::prelude::*;
use tidegate::unstable::bounds;
use tidegate::{Check, CheckError, Cost, Limit, Limiter, Request};
use tidegate_core::{Attempt, State};

use crate::common::{NOW, S, at, check_at, limit, limiter};
use crate::futures::block_on;
use crate::generators::{Gap, Model, Step, any_limits, any_step, cases, window_limits};

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn memory_store_decides_as_the_core(
        limits in any_limits(),
        start in start(),
        steps in prop::collection::vec(any_step(), 1..120),
    ) {
        compare(&limits, start, steps)?;
    }

    /// Limits that alternate between the forms of `sliding-window` while units are held.
    #[test]
    fn memory_store_changes_sliding_window_forms_as_the_core(
        limits in window_limits(), steps in prop::collection::vec(any_step(), 1..120),
    ) {
        compare(&limits, NOW, steps)?;
    }
}

fn compare(limits: &[Limit], start: u64, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let (limiter, _) = limiter();
    let mut model = Model::default();
    let mut now = start;
    for step in steps {
        let limit = &limits[step.limit.index(limits.len())];
        if let Gap::Back(_) = step.gap {
            // A store drops expired states. A peek makes the model do the same.
            for (key, limit) in model.known() {
                let decision = check_at(&limiter, now, [key], &limit, Cost::PEEK);
                prop_assert_eq!(
                    decision,
                    model.decide(key, &limit, &Attempt::new(Cost::PEEK, at(now)))
                );
            }
        }
        now = step.gap.after(now, limit.window_us());
        let cost = step.cost(limit);
        let decision = check_at(&limiter, now, [step.key], limit, cost);
        let expected = model.decide(step.key, limit, &Attempt::new(cost, at(now)));
        prop_assert_eq!(decision, expected, "{} at {} {:?}", limit, now, cost);
    }
    Ok(())
}

/// Times near the epoch, in the present, where the time no longer fits a slot (from the year 2110),
/// and beyond any real time.
fn start() -> impl Strategy<Value = u64> {
    let last = 1_u64 << 52;
    let far = last - 3 * bounds::MAX_WINDOW_US..last + bounds::MAX_WINDOW_US;
    prop_oneof![0_u64..5_000, Just(NOW), 0..4_000_000_000 * S, far, 0..u64::MAX / 4]
}

/// Counts that do not fit a slot move to the slab and stay exact there.
#[test]
fn counts_outgrow_their_slot() {
    for text in ["5 per 10s", "5 per 10s fixed-window", "5 per 400ms", "5 per 400ms fixed-window"] {
        let limit = limit(text);
        let (limiter, _) = limiter();
        let mut state = State::new(&limit);
        let rows = [(0, 1), (1, (1 << 20) - 2), (2, 1), (3, 1), (4, 1 << 41), (400_000, 1)];
        for (after, units) in rows.into_iter().chain([(10 * S, 1), (12 * S, 1), (20 * S, 1)]) {
            let (now, cost) = (NOW + after, Cost::Force(units));
            let expected = state.decide(&limit, &Attempt::new(cost, at(now)));
            assert_eq!(check_at(&limiter, now, "key", &limit, cost), expected, "{text} {after}");
        }
    }
}

/// When the time no longer fits slots, in 2110, no count is lost.
#[test]
fn counts_are_kept_beyond_the_range_of_deadlines() {
    let last = (1_u64 << 52) - 2 * bounds::MAX_WINDOW_US;
    for text in ["5 per 1h", "5 per 1h fixed-window", "5 per 366d"] {
        let limit = limit(text);
        let (limiter, _) = limiter();
        let mut state = State::new(&limit);
        let times = (0..60).map(|step| last - 30 * 600 * S + step * 600 * S);
        for now in times.chain([last + 400 * 86_400 * S, 1 << 52, (1 << 52) + S]) {
            let expected = state.decide(&limit, &Attempt::new(1, at(now)));
            assert_eq!(check_at(&limiter, now, "key", &limit, 1), expected, "{text} at {now}");
        }
    }
}

/// Any bytes are a valid key, and all of these are different keys.
#[test]
fn keys_can_be_any_bytes() {
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

/// A key is counted separately under limits of another algorithm or window, and continues to count
/// under a limit with another number.
#[test]
fn limits_of_one_key_count_separately() {
    let (limiter, _) = limiter();
    let texts = [
        "9 per 1m sliding-counter",
        "9 per 2m sliding-counter",
        "9 per 1m fixed-window",
        "9 per 1m sliding-log",
        "9 per 1m sliding-window",
        "9 per 2m sliding-window",
    ];
    for (index, text) in texts.iter().enumerate() {
        let units = index as u64 + 1;
        assert_eq!(check_at(&limiter, NOW, "key", &limit(text), units).remaining, 9 - units);
    }
    for (index, text) in texts.iter().enumerate() {
        let more = limit(text).with_count(20).expect("within bounds");
        let remaining = check_at(&limiter, NOW, "key", &more, Cost::PEEK).remaining;
        assert_eq!(remaining, 20 - (index as u64 + 1), "{text}");
    }
}

#[test]
fn reset_clears_one_key_of_one_limit() {
    let texts = [
        "5 per 1m sliding-counter",
        "5 per 1m fixed-window",
        "5 per 1m sliding-log",
        "5 per 1m sliding-window",
        "5 per 1m token-bucket",
        "5 per 100ms sliding-counter",
    ];
    let (limiter, _) = limiter();
    let limits = texts.map(limit);
    for limit in &limits {
        assert!(!limiter.reset("a", limit), "a reset of an unused key reports false");
        let _ = limiter.check("a", limit, 5).expect("a valid check");
        let _ = limiter.check("b", limit, 4).expect("a valid check");
    }
    for (index, limit) in limits.iter().enumerate() {
        assert!(limiter.reset("a", limit));
        assert!(!limiter.reset("a", limit), "the key is no longer tracked");
        let left = |key: &str, limit| limiter.peek(key, limit).expect("a valid check").remaining;
        assert_eq!((left("a", limit), left("b", limit)), (5, 1), "{limit}");
        let others = limits[index + 1..].iter();
        assert!(others.clone().all(|other| left("a", other) == 0), "the others still count");
        assert!(
            limiter.check("a", limit, 5).expect("a valid check").allowed,
            "the key starts at 0"
        );
        assert!(limiter.reset("a", limit));
    }
    assert_eq!(limiter.stats().log_entries, 1, "b's log");
}

/// A clone shares the state of the limiter.
#[test]
fn clones_share_their_counts() {
    let (limiter, _) = limiter();
    let limit = limit("2 per 1m");
    let clone = limiter.clone();
    assert!(limiter.check("key", &limit, 1).expect("a valid check").allowed);
    assert!(clone.check("key", &limit, 1).expect("a valid check").allowed);
    assert!(!limiter.check("key", &limit, 1).expect("a valid check").allowed);
}

/// `peek`, `charge` and `refund` decide as the corresponding costs do.
#[test]
fn peek_charge_and_refund_are_costs() {
    let (limiter, _) = limiter();
    let limit = limit("5 per 1m sliding-log");
    assert_eq!(limiter.charge("key", &limit, 7), Ok(0));
    assert!(!limiter.peek("key", &limit).expect("valid").allowed);
    assert_eq!(limiter.refund("key", &limit, 4), Ok(2));
    assert!(limiter.check_at(at(NOW), "key", &limit, 2).expect("valid").allowed);
    assert_eq!(limiter.peek("key", &limit).expect("valid").remaining, 0);
}

/// The async methods use the same store.
#[test]
fn async_calls_decide_the_same() {
    let (limiter, _) = limiter();
    let limit = limit("3 per 1m");
    let check = Check::new("key", &limit, 1);
    assert_eq!(block_on(limiter.check_async("key", &limit, 1)).expect("valid").remaining, 2);
    let checks = [check, Check::new("other", &limit, 3)];
    let verdict = block_on(limiter.decide_async(&Request::new(&checks))).expect("valid");
    assert_eq!((verdict.allowed, verdict.decisions()[0].remaining), (true, 1));
    assert_eq!(limiter.peek("key", &limit).expect("valid").remaining, 1);
    assert_eq!(block_on(limiter.reset_async("key", &limit)), Ok(true));
    assert_eq!(block_on(limiter.reset_async("key", &limit)), Ok(false));
    let held = self::limit("3 concurrent");
    let refused = block_on(limiter.check_async("key", &held, 1));
    assert_eq!(refused, Err(CheckError::NeedsPermit.into()));
}

/// Regression: with a clock near zero, a peek of a log tracked the key.
#[test]
fn peek_does_not_track_the_key() {
    let limiter = Limiter::builder().build().expect("memory");
    for text in [
        "5 per 1h sliding-log",
        "5 per 1h sliding-window",
        "5 per 1h sliding-counter",
        "5 per 1h token-bucket",
    ] {
        let limit = limit(text);
        for key in 0..100 {
            let key = format!("{key}");
            let _ = check_at(&limiter, 0, &key, &limit, Cost::PEEK);
        }
    }
    assert_eq!(limiter.stats().tracked_keys, 0);
}

/// Regression: at the last timestamp nothing was counted.
#[test]
fn last_timestamp_is_decided() {
    for text in [
        "2 per 1h",
        "2 per 1h sliding-log",
        "2 per 1h sliding-counter",
        "2 per 1h fixed-window",
        "2 per 1h token-bucket",
    ] {
        let (limiter, limit) = (Limiter::builder().build().expect("memory"), limit(text));
        let admits = |_: &u64| check_at(&limiter, u64::MAX, "key", &limit, 1).allowed;
        assert_eq!((0..10).filter(admits).count(), 2, "{text}");
    }
}
