//! All interleavings of a few threads on a tiny store, up to a number of preemptions, checked by
//! model.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p tidegate --test it loom`.
//! Under that flag a shard begins with four slots in two groups and there are two shards, so a
//! handful of keys is enough to make shards grow and keys meet.

use std::time::Duration;

use ::loom::model::Builder;
use ::loom::thread;
use tidegate::{Check, Clock, Limit, Limiter, ManualClock, Timestamp, WhenFull};

/// Preemptions of a thread that could continue. Few are enough to find bugs.
const PREEMPTIONS: usize = 3;
/// More would take minutes in models with many atomic operations.
const TWO_PREEMPTIONS: usize = 2;
const ONE_PREEMPTION: usize = 1;

fn model(preemptions: usize, test: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(test);
}

/// Checks the model with each of the two sizes of slots.
fn model_each_size(preemptions: usize, test: impl Fn(&str) + Send + Sync + Copy + 'static) {
    for algorithm in ["sliding-window", "sliding-counter"] {
        model(preemptions, move || test(algorithm));
    }
}

fn limit(text: &str) -> Limit {
    text.parse().expect("a limit")
}

fn limiter(max_keys: usize) -> Limiter {
    let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
    limiter_with_clock(clock.clock(), max_keys)
}

/// Returns a limiter on the coarse clock, which does not advance in a model, with a key that was
/// charged twice.
fn limiter_with_charged_key(key: &str, limit: &Limit) -> Limiter {
    let limiter = limiter_with_clock(Clock::coarse(), 8);
    limiter.charge(key, limit, 1).expect("valid");
    assert!(admits(&limiter, key, limit));
    limiter
}

fn limiter_with_clock(clock: Clock, max_keys: usize) -> Limiter {
    let builder = Limiter::builder().max_keys(max_keys).max_ids(0).when_full(WhenFull::Deny);
    builder.clock(clock).build().expect("a tiny store")
}

fn admits(limiter: &Limiter, key: &str, limit: &Limit) -> bool {
    limiter.check(key, limit, 1).expect("valid").allowed
}

fn remaining(limiter: &Limiter, key: &str, limit: &Limit) -> u64 {
    limiter.peek(key, limit).expect("valid").remaining
}

/// Runs both closures concurrently, and returns their results.
fn run_concurrently<A: 'static, B: 'static>(
    limiter: &Limiter,
    one: impl FnOnce(&Limiter) -> A + 'static,
    other: impl FnOnce(&Limiter) -> B,
) -> (A, B) {
    let other_limiter = limiter.clone();
    let running = thread::spawn(move || one(&other_limiter));
    let here = other(limiter);
    (running.join().expect("no panic"), here)
}

#[test]
fn one_unit_is_admitted_once() {
    for text in ["1 per 1h sliding-counter", "1 per 1h sliding-log", "1 per 1h sliding-window"] {
        for known in [false, true] {
            model(PREEMPTIONS, move || {
                let (limiter, limit) = (limiter(4), limit(text));
                if known {
                    limiter.charge("key", &limit, 1).expect("valid");
                    limiter.refund("key", &limit, 1).expect("valid");
                }
                let (one, other) = run_concurrently(
                    &limiter,
                    move |limiter| admits(limiter, "key", &limit),
                    |limiter| admits(limiter, "key", &limit),
                );
                assert!(one != other, "exactly one of two: {text}, known: {known}");
                assert_eq!(limiter.stats().tracked_keys, 1);
            });
        }
    }
}

/// Regression: a new key took the slot of an expired key that was being charged again, because it
/// read the slot before it seized it.
#[test]
fn a_key_that_is_charged_again_keeps_its_slot() {
    for new in ["b", "c", "d"] {
        model(TWO_PREEMPTIONS, move || {
            let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
            let (limiter, limit) =
                (limiter_with_clock(clock.clock(), 8), limit("1 per 1s sliding-counter"));
            assert!(admits(&limiter, "a", &limit));
            clock.advance(Duration::from_secs(10));
            run_concurrently(
                &limiter,
                move |limiter| assert!(admits(limiter, new, &limit)),
                |limiter| assert!(admits(limiter, "a", &limit)),
            );
            assert_eq!(remaining(&limiter, "a", &limit), 0, "{new}");
        });
    }
}

/// Opposite orders: no deadlock, and no request is half applied.
#[test]
fn requests_in_opposite_orders_are_all_or_nothing() {
    model_each_size(PREEMPTIONS, |algorithm| {
        let (limiter, limit) = (limiter(8), limit(&format!("1 per 1h {algorithm}")));
        let request = |limiter: &Limiter, one: &str, other: &str, limit: &Limit| {
            let checks = [Check::new(one, limit, 1), Check::new(other, limit, 1)];
            limiter.check_all(&checks).expect("valid").allowed
        };
        let (one, other) = run_concurrently(
            &limiter,
            move |limiter| request(limiter, "a", "b", &limit),
            |limiter| request(limiter, "b", "a", &limit),
        );
        assert!(one != other, "exactly one of two");
        for key in ["a", "b"] {
            assert_eq!(remaining(&limiter, key, &limit), 0);
        }
    });
}

/// Requests that share one of two keys: each key is charged by the admitted requests.
#[test]
fn overlapping_requests_add_up() {
    model_each_size(PREEMPTIONS, |algorithm| {
        let (limiter, limit) = (limiter(8), limit(&format!("1 per 1h {algorithm}")));
        let request = |limiter: &Limiter, other: &str, limit: &Limit| {
            let checks = [Check::new("shared", limit, 1), Check::new(other, limit, 1)];
            limiter.check_all(&checks).expect("valid").allowed
        };
        let (one, other) = run_concurrently(
            &limiter,
            move |limiter| request(limiter, "a", &limit),
            |limiter| request(limiter, "b", &limit),
        );
        assert!(one != other, "the last unit is given once");
        assert_eq!(remaining(&limiter, "a", &limit), u64::from(!one));
        assert_eq!(remaining(&limiter, "b", &limit), u64::from(!other));
    });
}

/// Keys are added while their shard grows on another thread. A shard grows at its fourth key, so
/// for one of these numbers of keys, in two shards, growth coincides with the last two keys.
#[test]
fn growth_loses_no_key() {
    const NAMES: [&str; 9] = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    for before in 2..=7 {
        model_each_size(ONE_PREEMPTION, move |algorithm| {
            let (limiter, limit) = (limiter(30), limit(&format!("5 per 1h {algorithm}")));
            for name in &NAMES[..before] {
                assert!(admits(&limiter, name, &limit));
            }
            let all = run_concurrently(
                &limiter,
                move |limiter| admits(limiter, NAMES[before], &limit),
                |limiter| {
                    admits(limiter, NAMES[before + 1], &limit) && admits(limiter, "a", &limit)
                },
            );
            assert_eq!(all, (true, true));
            assert_eq!(limiter.stats().tracked_keys, before as u64 + 2);
            for name in &NAMES[..before + 2] {
                let used = 5 - remaining(&limiter, name, &limit);
                assert_eq!(used, if *name == "a" { 2 } else { 1 }, "{name}");
            }
        });
    }
}

/// The last slot of a full store goes to one of two new keys.
#[test]
fn last_slot_is_assigned_once() {
    model_each_size(PREEMPTIONS, |algorithm| {
        let (limiter, limit) = (limiter(2), limit(&format!("5 per 1h {algorithm}")));
        assert!(admits(&limiter, "first", &limit));
        let (one, other) = run_concurrently(
            &limiter,
            move |limiter| admits(limiter, "a", &limit),
            |limiter| admits(limiter, "b", &limit),
        );
        assert!(!(one && other), "both new keys got the last slot");
        assert!(limiter.stats().tracked_keys <= 2);
        assert_eq!(remaining(&limiter, "first", &limit), 4);
    });
}

/// A check seizes its slot while a request with a new key takes the state out of the same slot.
#[test]
fn a_check_beside_a_request_adds_up() {
    model_each_size(PREEMPTIONS, |algorithm| {
        let (limiter, limit) = (limiter(8), limit(&format!("2 per 1h {algorithm}")));
        assert!(admits(&limiter, "shared", &limit));
        let (one, other) = run_concurrently(
            &limiter,
            move |limiter| admits(limiter, "shared", &limit),
            |limiter| {
                let checks = [Check::new("shared", &limit, 1), Check::new("new", &limit, 1)];
                limiter.check_all(&checks).expect("valid").allowed
            },
        );
        assert!(one != other, "the last unit is given once");
        assert_eq!(remaining(&limiter, "shared", &limit), 0);
        assert_eq!(remaining(&limiter, "new", &limit), 2 - u64::from(other));
    });
}

/// Two checks on the fast path use one slot.
#[test]
fn concurrent_fast_paths_add_up() {
    model_each_size(PREEMPTIONS, |algorithm| {
        let limit = limit(&format!("3 per 1h {algorithm}"));
        let limiter = limiter_with_charged_key("key", &limit);
        let (one, other) = run_concurrently(
            &limiter,
            move |limiter| admits(limiter, "key", &limit),
            |limiter| admits(limiter, "key", &limit),
        );
        assert!(one != other, "the last unit is given once");
        assert_eq!(remaining(&limiter, "key", &limit), 0);
    });
}

/// A check on the fast path runs beside a request that adds a key.
#[test]
fn fast_path_beside_a_request_adds_up() {
    model_each_size(PREEMPTIONS, |algorithm| {
        let limit = limit(&format!("4 per 1h {algorithm}"));
        let limiter = limiter_with_charged_key("shared", &limit);
        let (one, other) = run_concurrently(
            &limiter,
            move |limiter| admits(limiter, "shared", &limit),
            |limiter| {
                let checks = [Check::new("shared", &limit, 1), Check::new("new", &limit, 1)];
                limiter.check_all(&checks).expect("valid").allowed
            },
        );
        assert!(one && other);
        assert_eq!(remaining(&limiter, "shared", &limit), 0);
        assert_eq!(remaining(&limiter, "new", &limit), 3);
    });
}

#[test]
fn a_batch_beside_single_checks_adds_up() {
    model_each_size(TWO_PREEMPTIONS, |algorithm| {
        let (limiter, limit) = (limiter(8), limit(&format!("3 per 1h {algorithm}")));
        let (batch, single) = run_concurrently(
            &limiter,
            move |limiter| {
                let checks = [Check::new("a", &limit, 1), Check::new("b", &limit, 1)];
                let mut decisions = Vec::new();
                limiter.check_batch(&checks, &mut decisions).expect("valid");
                decisions.iter().all(|decision| decision.allowed)
            },
            |limiter| admits(limiter, "b", &limit) && admits(limiter, "a", &limit),
        );
        assert!(batch && single);
        assert_eq!((remaining(&limiter, "a", &limit), remaining(&limiter, "b", &limit)), (1, 1));
    });
}

/// A sweep beside a check does not remove the key.
#[test]
fn sweep_keeps_active_keys() {
    model_each_size(PREEMPTIONS, |algorithm| {
        let (limiter, limit) = (limiter(8), limit(&format!("3 per 1h {algorithm}")));
        assert!(admits(&limiter, "a", &limit));
        let (_, admitted) = run_concurrently(
            &limiter,
            |limiter| (0..2).map(|_| limiter.sweep()).sum::<u64>(),
            |limiter| admits(limiter, "b", &limit) && admits(limiter, "a", &limit),
        );
        assert!(admitted);
        assert_eq!((remaining(&limiter, "a", &limit), remaining(&limiter, "b", &limit)), (1, 2));
    });
}

/// A permit is released while one is acquired: two holders never have the same permit.
#[test]
fn released_permit_is_acquired_once() {
    model(PREEMPTIONS, || {
        let (limiter, limit) = (limiter(8), limit("1 concurrent lease 1h"));
        let take = |limiter: &Limiter, limit: &Limit| {
            limiter.acquire(&[Check::new("key", limit, 1)]).expect("valid").permit()
        };
        let held = take(&limiter, &limit).expect("free capacity");
        let (_, taken) =
            run_concurrently(&limiter, move |_| drop(held), |limiter| take(limiter, &limit));
        let next = take(&limiter, &limit);
        assert!(taken.is_some() != next.is_some(), "one of the two holds it");
    });
}
