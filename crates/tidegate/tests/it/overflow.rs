//! `overflow: consume`: a denied cost above 1 consumes the units that are left.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::{
    Acquired, Algorithm, Check, Cost, Limit, Limiter, Request, RetryAfter, Verdict, WhenFull,
};

use crate::common::{NOW, S, at, limit, limiter};
use crate::futures::block_on;
use crate::generators::{
    GeneratedCheck, Step, any_limit, any_limits, any_step, cases, distinct_checks, keys,
};

const ALGORITHMS: [&str; 5] =
    ["sliding-log", "sliding-window", "sliding-counter", "fixed-window", "token-bucket"];

fn remaining(limiter: &Limiter, key: &str, limit: &Limit) -> u64 {
    limiter.peek(key, limit).expect("valid").remaining
}

fn consume(limiter: &Limiter, key: &str, limit: &Limit, cost: u64) -> Verdict {
    limiter.check_all(&[Check::new(key, limit, cost).consuming()]).expect("valid")
}

/// Usage that is reported when a response ends: 300 of 1,000 each time, until nothing is left.
#[test]
fn denied_cost_exhausts_the_limit_with_consume() {
    for algorithm in ALGORITHMS {
        let limit = limit(&format!("1000 per 1h {algorithm}"));
        let (limiter, _) = limiter();
        let passed = (0..30).filter(|_| {
            let passes = limiter.peek("a", &limit).expect("valid").allowed;
            if passes {
                let _ = consume(&limiter, "a", &limit, 300);
            }
            passes
        });
        assert_eq!(passed.count(), 4, "{limit}");
        let denied = consume(&limiter, "a", &limit, 300);
        assert!(!denied.allowed && !denied.consumed, "nothing is left: {denied:?}");
    }
}

#[test]
fn a_denied_cost_of_one_charges_nothing() {
    let (limiter, clock) = limiter();
    let limit = limit("2 per 10s sliding-log");
    assert!(consume(&limiter, "a", &limit, 1).allowed);
    clock.advance(Duration::from_secs(4));
    assert!(consume(&limiter, "a", &limit, 1).allowed);
    for _ in 0..3 {
        clock.advance(Duration::from_secs(1));
        assert!(!consume(&limiter, "a", &limit, 1).allowed);
    }
    clock.advance(Duration::from_secs(3));
    assert!(consume(&limiter, "a", &limit, 1).allowed, "the first is 10 s old");
}

/// Each limit is charged by its own `overflow`, and the wait is that of the state afterwards.
#[test]
fn every_enforced_limit_that_consumes_is_charged() {
    let (limiter, _) = limiter();
    let minute = limit("5 per 1m sliding-log");
    let [hour, day, watched] = [8, 20, 4].map(|count| minute.with_count(count).expect("small"));
    let charge = |key, limit, units| limiter.charge(key, limit, units).expect("valid");
    charge("minute", &minute, 3);
    let checks = [
        Check::new("minute", &minute, 3).consuming(),
        Check::new("hour", &hour, 6).consuming(),
        Check::new("day", &day, 6).consuming(),
        Check::new("refusing", &hour, 3),
        Check::new("one", &hour, 1).consuming(),
        Check::new("watched", &watched, 9).consuming().observed(),
    ];
    let verdict = limiter.check_all(&checks).expect("valid");
    assert!(!verdict.allowed && verdict.consumed);
    let left: Vec<u64> = verdict.decisions().iter().map(|decision| decision.remaining).collect();
    assert_eq!(left, [0, 2, 14, 8, 8, 4]);
    for (check, left) in checks.iter().zip(left) {
        let key = std::str::from_utf8(check.key).expect("text");
        assert_eq!(remaining(&limiter, key, check.limit), left, "{key}");
    }
    let allowed: Vec<bool> = verdict.decisions().iter().map(|decision| decision.allowed).collect();
    assert_eq!(allowed, [false, false, true, true, true, false], "whether the cost would pass now");
    assert_eq!(verdict.retry_after(), RetryAfter::Micros(60 * S));
}

/// Checks that share a count are one cost. It is consumed if one of them consumes.
#[test]
fn checks_of_one_count_are_merged() {
    let (limiter, _) = limiter();
    let limit = limit("5 per 1m");
    limiter.charge("a", &limit, 4).expect("valid");
    let one = Check::new("a", &limit, 1);
    assert!(!limiter.check_all(&[one, one]).expect("valid").consumed);
    assert_eq!(remaining(&limiter, "a", &limit), 1);
    assert!(limiter.check_all(&[one, one.consuming()]).expect("valid").consumed);
    assert_eq!(remaining(&limiter, "a", &limit), 0);
}

#[test]
fn impossible_cost_exhausts_the_limit_with_consume() {
    for algorithm in ALGORITHMS {
        let limit = limit(&format!("5 per 1m {algorithm}"));
        let (limiter, _) = limiter();
        let never = consume(&limiter, "a", &limit, 6);
        assert!(never.consumed, "{limit}");
        assert_eq!(never.retry_after(), RetryAfter::Never, "{limit}");
        assert_eq!(remaining(&limiter, "a", &limit), 0, "{limit}");
    }
}

#[test]
fn a_denial_that_consumed_is_remembered_under_its_id() {
    let (limiter, clock) = limiter();
    let limit = limit("5 per 1m sliding-log");
    let checks = [Check::new("a", &limit, 3).consuming()];
    let decide = |id: &str| limiter.decide(&Request::new(&checks).with_id(id)).expect("valid");
    assert!(decide("first").allowed);
    let denied = decide("second");
    assert!(!denied.allowed && denied.consumed);
    limiter.refund("a", &limit, 5).expect("valid");
    clock.advance(Duration::from_secs(1));
    assert_eq!(decide("second"), denied, "a retry gets the same denial, and consumes nothing");
    assert_eq!(remaining(&limiter, "a", &limit), 5);
    // A denial that consumed nothing is decided again.
    limiter.charge("a", &limit, 5).expect("valid");
    assert!(!decide("third").consumed);
    limiter.refund("a", &limit, 5).expect("valid");
    assert!(decide("third").allowed);
}

#[test]
fn permits_are_not_consumed() {
    let (limiter, _) = limiter();
    let (rate, held) = (limit("5 per 1m"), limit("5 concurrent"));
    let checks = [Check::new("a", &rate, 6).consuming(), Check::new("a", &held, 3).consuming()];
    assert!(matches!(limiter.acquire(&checks), Ok(Acquired::Denied(denied)) if denied.consumed));
    assert_eq!(remaining(&limiter, "a", &rate), 0);
    assert!(limiter.acquire(&[Check::new("a", &held, 5)]).expect("valid").permit().is_some());
}

#[test]
fn forced_charges_and_refunds_do_not_consume() {
    let (limiter, _) = limiter();
    let limits = [limit("5 per 1m"), limit("0 per 1m fixed-window")];
    for cost in [Cost::Force(2), Cost::Refund(2), Cost::PEEK] {
        let checks =
            [Check::new("a", &limits[0], cost).consuming(), Check::new("a", &limits[1], 1)];
        assert!(!limiter.check_all(&checks).expect("valid").consumed, "{cost:?}");
    }
    assert_eq!(remaining(&limiter, "a", &limits[0]), 5);
}

/// Attempts of a waiter are not reports of usage.
#[test]
fn waiting_does_not_consume() {
    let (limiter, _) = limiter();
    let limit = limit("5 per 1m sliding-log");
    limiter.charge("a", &limit, 3).expect("valid");
    let checks = [Check::new("a", &limit, 4).consuming()];
    let denied = block_on(limiter.wait(&checks, Duration::from_secs(1))).expect("valid");
    assert!(!denied.allowed && !denied.consumed);
    assert_eq!(remaining(&limiter, "a", &limit), 2);
}

/// An untracked key has no count to consume.
#[test]
fn a_full_store_consumes_only_what_it_tracks() {
    let limit = limit("5 per 1m");
    for when_full in [WhenFull::Deny, WhenFull::Allow, WhenFull::Overflow] {
        let allowed = when_full != WhenFull::Deny;
        let limiter = Limiter::builder().max_keys(1).when_full(when_full).build().expect("small");
        assert!(consume(&limiter, "tracked", &limit, 1).allowed);
        let checks = [
            Check::new("tracked", &limit, 2).consuming(),
            Check::new("new", &limit, 3).consuming(),
        ];
        let verdict = limiter.check_all(&checks).expect("valid");
        assert_eq!(verdict.allowed, allowed, "{when_full:?}");
        assert_eq!(verdict.no_room, !allowed, "{when_full:?}");
        assert_eq!(remaining(&limiter, "tracked", &limit), 2, "{when_full:?}: charged once");
        // A denial of the untracked key uses up the limit of the tracked one.
        let checks = [checks[0], Check::new("new", &limit, 6).consuming()];
        assert!(!limiter.check_all(&checks).expect("valid").allowed);
        assert_eq!(remaining(&limiter, "tracked", &limit), 0, "{when_full:?}");
    }
}

fn units(generated: &GeneratedCheck) -> u64 {
    match generated.cost {
        Cost::Ask(units) => units,
        Cost::Force(_) | Cost::Refund(_) => 0,
    }
}

/// Returns whether a charge under the limit may change the pace of a `sliding-window` that was
/// charged under another limit. Units that had expired by the other pace then count again, until
/// their whole cell has expired.
fn changes_pace(limit: &Limit, limits: &[Limit]) -> bool {
    limit.algorithm() == Algorithm::SlidingWindow
        && limits.iter().any(|other| {
            other.algorithm() == limit.algorithm()
                && other.window_us() == limit.window_us()
                && other.count() != limit.count()
        })
}

proptest! {
    #![proptest_config(cases(300))]

    /// After a denial, each limit that consumes has its previous units minus the cost. All other
    /// limits are unchanged.
    #[test]
    fn denial_consumes_exactly_the_remaining_units(
        limits in any_limits(),
        requests in prop::collection::vec(
            prop::collection::vec((any_step(), prop::bool::weighted(0.1)), 1..7), 1..40),
    ) {
        let (limiter, _) = limiter();
        let (keys, mut now) = (keys(), NOW);
        for steps in requests {
            let first: &Step = &steps[0].0;
            now = first.gap.after(now, limits[first.limit.index(limits.len())].window_us());
            let generated_checks = distinct_checks(&steps, &limits);
            let checks: Vec<Check<'_>> = generated_checks.iter().map(|generated| generated.check(&keys)).collect();
            let peeks: Vec<Check<'_>> =
                checks.iter().map(|check| Check { cost: Cost::PEEK, ..*check }).collect();
            let left = || -> Vec<u64> {
                let peeked = limiter.check_all_at(at(now), &peeks).expect("valid");
                peeked.decisions().iter().map(|decision| decision.remaining).collect()
            };
            let before = left();
            let verdict = limiter.check_all_at(at(now), &checks).expect("valid");
            if verdict.allowed {
                continue;
            }
            let mut consumed = false;
            for ((generated, before), after) in generated_checks.iter().zip(before).zip(left()) {
                let takes = generated.consuming && !generated.observed && units(generated) > 1;
                let expected = if takes { before.saturating_sub(units(generated)) } else { before };
                if takes && changes_pace(&generated.limit, &limits) {
                    prop_assert!(after <= expected, "{} > {}: {:?}", after, expected, generated);
                } else {
                    prop_assert_eq!(after, expected, "{:?}", generated);
                }
                consumed |= after < before;
            }
            prop_assert_eq!(verdict.consumed, consumed);
        }
    }

    /// Admitted and consumed units together stay within the bound of the algorithm.
    #[test]
    fn no_window_holds_more_than_the_bound(
        limit in any_limit(),
        steps in prop::collection::vec((0_u64..700, 1_u64..6, 0_u64..1_200), 1..60),
    ) {
        let (limiter, _) = limiter();
        let window = limit.window_us();
        let mut now = NOW;
        let mut charged = Vec::<(u64, u64)>::new();
        for (gap, small, per_mille) in steps {
            now += window / 1_000 * gap + small;
            let units = (limit.capacity() / 1_000 * per_mille).max(small);
            let check = Check::new("a", &limit, units).consuming();
            let before = limiter.check_at(at(now), "a", &limit, 0).expect("valid");
            let verdict = limiter.check_all_at(at(now), &[check]).expect("valid");
            charged.push((now, before.remaining - verdict.decisions()[0].remaining));
        }
        let bound = match limit.algorithm() {
            Algorithm::FixedWindow | Algorithm::SlidingCounter => 2 * limit.count(),
            Algorithm::TokenBucket => limit.capacity() + limit.count(),
            _ => limit.count(),
        };
        for &(end, _) in &charged {
            // One tick of tolerance for algorithms that count time in ticks.
            let length = window - limit.tick_us().min(window - 1) + 1;
            let within = charged.iter().filter(|(at, _)| *at <= end && end - at < length);
            let full: u64 = within.map(|(_, units)| *units).sum();
            prop_assert!(full <= bound, "{} holds {}", limit, full);
        }
    }
}
