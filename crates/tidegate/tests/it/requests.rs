//! Several checks of a request are all charged or none, and batches decide as single checks do.

use proptest::prelude::*;
use tidegate::{
    Check, CheckError, Cost, Decision, Limit, Limiter, MAX_CHECKS, Overflow, RetryAfter,
};

use crate::common::{NOW, at, check_at, limit, limiter};
use crate::generators::{
    Gap, GeneratedCheck, Model, Step, any_limits, any_step, cases, decide_all, distinct_checks,
    keys,
};

/// Random keys, limits, costs and times.
type Requests = Vec<Vec<(Step, bool)>>;

fn requests() -> impl Strategy<Value = Requests> {
    let check = (any_step(), prop::bool::weighted(0.2));
    prop::collection::vec(prop::collection::vec(check, 1..7), 1..40)
}

/// Returns the time of a request, from the gap of its first step.
fn time_of(request: &[(Step, bool)], limits: &[Limit], now: u64) -> u64 {
    let (step, _) = &request[0];
    match step.gap {
        // Steps back are tested on single checks.
        Gap::Back(_) => now,
        gap => gap.after(now, limits[step.limit.index(limits.len())].window_us()),
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn request_charges_all_checks_or_none(
        limits in any_limits(),
        requests in requests(),
    ) {
        let (limiter, _) = limiter();
        let (mut model, keys, mut now) = (Model::default(), keys(), NOW);
        for request in requests {
            now = time_of(&request, &limits, now);
            let generated_checks = distinct_checks(&request, &limits);
            let checks: Vec<Check<'_>> = generated_checks.iter().map(|generated| generated.check(&keys)).collect();
            let verdict = limiter.check_all_at(at(now), &checks).expect("valid");
            let (allowed, decisions) = decide_all(&mut model, &generated_checks, now);
            prop_assert_eq!(verdict.allowed, allowed);
            prop_assert_eq!(verdict.decisions(), &decisions[..], "{:?}", generated_checks);
        }
    }

    #[test]
    fn decisions_do_not_depend_on_the_order_of_checks(
        limits in any_limits(),
        requests in requests(),
    ) {
        let ((forwards, _), (backwards, _)) = (limiter(), limiter());
        let (keys, mut now) = (keys(), NOW);
        for request in requests {
            now = time_of(&request, &limits, now);
            let generated_checks = distinct_checks(&request, &limits);
            let mut checks: Vec<Check<'_>> = generated_checks.iter().map(|generated| generated.check(&keys)).collect();
            let one = forwards.check_all_at(at(now), &checks).expect("valid");
            checks.reverse();
            let other = backwards.check_all_at(at(now), &checks).expect("valid");
            prop_assert_eq!(one.allowed, other.allowed);
            prop_assert_eq!(one.retry_after(), other.retry_after());
            let mut reversed = other.decisions().to_vec();
            reversed.reverse();
            prop_assert_eq!(one.decisions(), reversed);
        }
    }

    /// The request passes at the reported time, and not a microsecond before.
    #[test]
    fn the_wait_of_a_verdict_is_exact(
        limits in any_limits(),
        requests in requests(),
    ) {
        let (limiter, _) = limiter();
        let (keys, mut now) = (keys(), NOW);
        for request in requests {
            now = time_of(&request, &limits, now);
            let generated_checks = distinct_checks(&request, &limits);
            let checks: Vec<Check<'_>> = generated_checks.iter().map(|generated| generated.check(&keys)).collect();
            let verdict = limiter.check_all_at(at(now), &checks).expect("valid");
            // The attempts below must not consume anything.
            let refusing = |check| Check { overflow: Overflow::Refuse, ..check };
            let checks: Vec<Check<'_>> = checks.into_iter().map(refusing).collect();
            match verdict.retry_after() {
                RetryAfter::Micros(wait) => {
                    let early = limiter.check_all_at(at(now + wait - 1), &checks).expect("valid");
                    prop_assert!(!early.allowed);
                    prop_assert_eq!(early.retry_after(), RetryAfter::Micros(1));
                    now += wait;
                    let then = limiter.check_all_at(at(now), &checks).expect("valid");
                    prop_assert!(then.allowed);
                }
                RetryAfter::Never => prop_assert!(!verdict.allowed),
                RetryAfter::Now => prop_assert!(verdict.allowed),
            }
        }
    }

    #[test]
    fn batch_decides_as_single_checks(
        limits in any_limits(),
        steps in prop::collection::vec(any_step(), 1..150),
        cut in any::<prop::sample::Index>(),
        // Batches without checks that consume take another path.
        consuming in any::<bool>(),
    ) {
        let ((batched, _), (single, _)) = (limiter(), limiter());
        let (keys, mut now) = (keys(), NOW);
        let mut times = Vec::new();
        let generate = |step: &Step| {
            GeneratedCheck::of(&Step { consuming: step.consuming && consuming, ..*step }, &limits, false)
        };
        let generated_checks: Vec<GeneratedCheck> = steps.iter().map(generate).collect();
        for (step, generated) in steps.iter().zip(&generated_checks) {
            if !matches!(step.gap, Gap::Back(_)) {
                now = step.gap.after(now, generated.limit.window_us());
            }
            times.push(at(now));
        }
        let checks: Vec<Check<'_>> = generated_checks.iter().map(|generated| generated.check(&keys)).collect();
        let mut decisions = Vec::new();
        let (cut, end) = (cut.index(checks.len()), checks.len());
        for range in [0..cut, cut..end] {
            batched.check_batch_at(&times[range.clone()], &checks[range], &mut decisions)?;
        }
        let single_check = |(&time, check)| {
            Ok(single.check_all_at(time, std::slice::from_ref(check))?.decisions()[0])
        };
        let expected: Result<Vec<Decision>, CheckError> =
            times.iter().zip(&checks).map(single_check).collect();
        prop_assert_eq!(decisions, expected?);
    }
}

fn remaining(limiter: &Limiter, key: &str, limit: &Limit) -> u64 {
    limiter.peek(key, limit).expect("valid").remaining
}

#[test]
fn equal_checks_are_merged() {
    let (limiter, _) = limiter();
    let limit = limit("5 per 1m");
    let [two, one] = [2, 1].map(|cost| Check::new("a", &limit, cost));
    let verdict = limiter.check_all(&[two, Check::new("b", &limit, 1), one]).expect("valid");
    assert!(verdict.allowed);
    assert_eq!(verdict.decisions().iter().map(|d| d.remaining).collect::<Vec<_>>(), [2, 4, 2]);
    let denied = limiter.check_all(&[two, one]).expect("valid");
    assert!(!denied.allowed, "a cost of 3 with 2 units left");
    assert_eq!(remaining(&limiter, "a", &limit), 2);
    let never = [Check::new("a", &limit, 3), Check::new("a", &limit, 3)];
    assert_eq!(limiter.check_all(&never).expect("valid").retry_after(), RetryAfter::Never);
    let forced = [Check::new("b", &limit, Cost::Force(2)), Check::new("b", &limit, Cost::Force(3))];
    let _ = limiter.check_all(&forced).expect("valid");
    let refunded =
        [Check::new("b", &limit, Cost::Refund(1)), Check::new("b", &limit, Cost::Refund(2))];
    let _ = limiter.check_all(&refunded).expect("valid");
    assert_eq!(remaining(&limiter, "b", &limit), 2, "1 + 5 - 3 units are used");
}

#[test]
fn conflicting_checks_are_rejected() {
    let (limiter, _) = limiter();
    let five = limit("5 per 1m");
    let six = five.with_count(6).expect("within bounds");
    let plain = Check::new("a", &five, 1);
    let contradictions = [
        Check::new("a", &six, 1),
        Check::new("a", &five, Cost::Force(1)),
        Check::new("a", &five, Cost::Refund(1)),
    ];
    for other in contradictions {
        let refused = limiter.check_all(&[Check::new("b", &five, 1), plain, other]);
        assert_eq!(refused, Err(CheckError::Conflict), "{other:?}");
    }
    let held =
        ["2 concurrent lease 1m", "3 concurrent lease 1m", "2 concurrent lease 2m"].map(limit);
    for other in &held[1..] {
        let both = [Check::new("a", &held[0], 1), Check::new("a", other, 1)];
        let refused = limiter.acquire(&both).expect_err("one key, one count");
        assert_eq!(refused, CheckError::ConcurrencyConflict, "{other}");
        assert_eq!(
            refused.to_string(),
            "two concurrency limits of a request share a key but not the number or the lease, and the permits of a key are counted once: keep the stricter one, or give them different keys"
        );
    }
    let elsewhere = [limit("6 per 2m"), limit("6 per 1m fixed-window")];
    for other in &elsewhere {
        assert!(limiter.check_all(&[plain, Check::new("a", other, 1)]).expect("valid").allowed);
    }
    assert_eq!(remaining(&limiter, "b", &five), 5, "an error charges nothing");
}

#[test]
fn number_of_checks_is_bounded() {
    let (limiter, _) = limiter();
    let limit = limit("5 per 1m");
    let names: Vec<String> = (0..=MAX_CHECKS).map(|number| format!("key {number}")).collect();
    let checks: Vec<Check<'_>> = names.iter().map(|name| Check::new(name, &limit, 1)).collect();
    assert_eq!(limiter.check_all(&checks), Err(CheckError::TooManyChecks(MAX_CHECKS + 1)));
    assert_eq!(limiter.stats().tracked_keys, 0);
    let verdict = limiter.check_all(&checks[..MAX_CHECKS]).expect("valid");
    assert!(verdict.allowed);
    assert_eq!(verdict.decisions().len(), MAX_CHECKS);
    assert_eq!(limiter.stats().tracked_keys, MAX_CHECKS as u64);
    // The bound also holds if all keys are known and no lock is needed.
    assert!(limiter.check_all(&checks[MAX_CHECKS..]).expect("valid").allowed);
    assert_eq!(limiter.check_all(&checks), Err(CheckError::TooManyChecks(MAX_CHECKS + 1)));
    let nothing = limiter.check_all(&[]).expect("valid");
    assert!(
        nothing.allowed && nothing.decisions().is_empty() && nothing.reported_index().is_none()
    );
}

#[test]
fn a_concurrency_limit_needs_a_permit() {
    let (limiter, _) = limiter();
    let (rate, held) = (limit("5 per 1m"), limit("5 concurrent"));
    let mixed = [Check::new("a", &rate, 1), Check::new("a", &held, 1)];
    assert_eq!(limiter.check_all(&mixed), Err(CheckError::NeedsPermit));
    assert_eq!(limiter.check("a", &held, 1), Err(CheckError::NeedsPermit));
    let mut decisions = Vec::new();
    assert_eq!(limiter.check_batch(&mixed, &mut decisions), Err(CheckError::NeedsPermit));
    assert!(decisions.is_empty());
    assert_eq!(remaining(&limiter, "a", &rate), 5, "nothing was decided");
}

#[test]
fn check_batch_appends_decisions() {
    let (limiter, _) = limiter();
    let limit = limit("100 per 1m");
    let mut decisions = vec![check_at(&limiter, NOW, "a", &limit, 1)];
    limiter.check_batch(&[Check::new("a", &limit, 1); 70], &mut decisions).expect("valid");
    let left: Vec<u64> = decisions.iter().map(|decision| decision.remaining).collect();
    assert_eq!(left, (29..100).rev().collect::<Vec<_>>());
}

#[test]
#[should_panic(expected = "every check needs a time")]
fn a_batch_without_times_panics() {
    let (limiter, _) = limiter();
    let limit = limit("5 per 1m");
    let _ = limiter.check_batch_at(&[], &[Check::new("a", &limit, 1)], &mut Vec::new());
}

/// A request of the largest size is decided in the slots of its keys, one check inside the other.
#[test]
fn largest_request_is_charged_as_a_whole_or_not_at_all() {
    for text in ["5 per 1m", "50 per 1m", "5000 per 1m", "5 per 1m fixed-window"] {
        let limiter = Limiter::new();
        let limit: Limit = text.parse().expect("a limit");
        let names: Vec<String> = (0..MAX_CHECKS).map(|number| format!("key {number}")).collect();
        let mut checks: Vec<Check<'_>> =
            names.iter().map(|name| Check::new(name, &limit, 1)).collect();
        // The first request inserts the keys, and the second one finds them in their slots.
        for _ in 0..2 {
            assert!(limiter.check_all(&checks).is_ok_and(|verdict| verdict.allowed), "{text}");
        }
        checks[MAX_CHECKS - 1].cost = Cost::Ask(limit.count());
        let verdict = limiter.check_all(&checks).expect("valid");
        assert!(!verdict.allowed, "{text}");
        let left = limit.count() - 2;
        assert!(verdict.decisions().iter().all(|decision| decision.remaining == left), "{text}");
    }
}
