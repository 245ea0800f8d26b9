//! Verdicts: observed checks, and which check is reported.

use tidegate::{Check, Cost, Limit, Limiter, RetryAfter, Verdict};

use crate::common::{NOW, S, at, limit, limiter};

fn decide(limiter: &Limiter, checks: &[Check<'_>]) -> Verdict {
    limiter.check_all_at(at(NOW), checks).expect("valid")
}

fn remaining(limiter: &Limiter, key: &str, limit: &Limit) -> u64 {
    limiter.peek(key, limit).expect("valid").remaining
}

#[test]
fn observed_check_never_denies() {
    let (limiter, _) = limiter();
    let (one, many) = (limit("1 per 1m"), limit("9 per 1m"));
    let checks = [Check::new("a", &many, 1), Check::new("seen", &one, 1).observed()];
    let first = decide(&limiter, &checks);
    assert!(first.allowed && first.decisions()[1].allowed);
    assert_eq!(first.reported_index(), Some(0), "although the observed check has less remaining");
    let second = decide(&limiter, &checks);
    assert!(second.allowed);
    assert!(!second.decisions()[1].allowed, "the observed check would have denied");
    assert_eq!(second.decisions()[1].retry_after, RetryAfter::Micros(60 * S));
    assert_eq!(second.retry_after(), RetryAfter::Now);
    assert_eq!(remaining(&limiter, "a", &many), 7);
}

/// An observed check is charged if the enforced checks and the check itself admit the request.
#[test]
fn an_observed_check_is_charged_with_the_request() {
    let (limiter, _) = limiter();
    let limit = limit("2 per 1m");
    let checks = [Check::new("a", &limit, 2), Check::new("seen", &limit, 1).observed()];
    assert!(decide(&limiter, &checks).allowed);
    assert_eq!(remaining(&limiter, "seen", &limit), 1);
    let denied = decide(&limiter, &checks);
    assert!(!denied.allowed && denied.decisions()[1].allowed);
    assert_eq!(remaining(&limiter, "seen", &limit), 1, "a denied request charges nothing");
    let too_much = [Check::new("b", &limit, 1), Check::new("seen", &limit, 2).observed()];
    assert!(decide(&limiter, &too_much).allowed);
    assert_eq!(remaining(&limiter, "seen", &limit), 1, "the observed check would have denied");
    assert_eq!(remaining(&limiter, "b", &limit), 1);
}

/// Observed checks of one key show what enforcing them would do, so they are charged together or
/// not at all.
#[test]
fn observed_checks_of_one_key_are_charged_together() {
    let short = limit("1 per 1s");
    for long in ["9 per 1h", "9 per 1h sliding-log", "9 per 1h token-bucket"].map(limit) {
        let (limiter, _) = limiter();
        let checks = [&long, &short, &long].map(|limit| Check::new("a", limit, 1).observed());
        let checks = [checks[0], Check::new("b", &long, 1), checks[1]];
        for expected in [true, false, false] {
            let verdict = decide(&limiter, &checks);
            assert!(verdict.allowed);
            let allowed: Vec<bool> = verdict.decisions().iter().map(|one| one.allowed).collect();
            assert_eq!(allowed, [true, true, expected], "{long}");
        }
        assert_eq!(remaining(&limiter, "a", &long), 8, "{long}");
        assert_eq!(remaining(&limiter, "b", &long), 6, "{long}");
        // Neither a reservation nor a permit holds what was not charged.
        drop(limiter.reserve_all(&checks).expect("valid"));
        assert_eq!(remaining(&limiter, "a", &long), 8, "{long}");
    }
}

/// Observed checks of one key must not affect those of another.
#[test]
fn observed_checks_are_decided_separately() {
    let (limiter, _) = limiter();
    let limit = limit("2 per 1m");
    limiter.charge("full", &limit, 2).expect("valid");
    let checks = ["full", "empty"].map(|key| Check::new(key, &limit, 1).observed());
    let verdict = decide(&limiter, &checks);
    assert!(verdict.allowed);
    assert_eq!((verdict.reported_index(), verdict.decision()), (None, None));
    assert_eq!(verdict.retry_after(), RetryAfter::Now);
    assert_eq!(remaining(&limiter, "empty", &limit), 1);
}

#[test]
fn least_remaining_is_reported_when_allowed() {
    let (limiter, _) = limiter();
    let limits = ["5 per 1m", "3 per 1h", "3 per 1m", "9 per 1m fixed-window"].map(limit);
    let checks: Vec<Check<'_>> = limits.iter().map(|limit| Check::new("a", limit, 1)).collect();
    let verdict = decide(&limiter, &checks[..2]);
    assert_eq!(verdict.reported_index(), Some(1));
    assert_eq!(verdict.decision().map(|d| (d.limit, d.remaining)), Some((3, 2)));
    let other = [Check::new("b", &limits[1], 1), Check::new("b", &limits[2], 1)];
    let tie = decide(&limiter, &other);
    assert_eq!(tie.reported_index(), Some(0), "the first of equals");
}

#[test]
fn longest_wait_is_reported_when_denied() {
    let (limiter, _) = limiter();
    let [short, long, roomy] =
        ["1 per 10s sliding-log", "1 per 20s sliding-log", "9 per 30s sliding-log"].map(limit);
    let both = [Check::new("a", &short, 1), Check::new("a", &long, 1)];
    assert!(decide(&limiter, &both).allowed);
    let all = [both[0], both[1], Check::new("a", &roomy, 9)];
    let denied = decide(&limiter, &all);
    assert_eq!(denied.reported_index(), Some(1), "roomy admits, so it is not reported");
    assert_eq!(denied.retry_after(), RetryAfter::Micros(20 * S));
    assert_eq!(denied.decisions()[0].retry_after, RetryAfter::Micros(10 * S));
    assert!(denied.decisions()[2].allowed);
    assert_eq!(remaining(&limiter, "a", &roomy), 9);

    let never = [both[1], Check::new("a", &roomy, 10)];
    let denied = decide(&limiter, &never);
    assert_eq!((denied.reported_index(), denied.retry_after()), (Some(1), RetryAfter::Never));

    let twins = ["b", "c"].map(|key| Check::new(key, &short, 1));
    assert!(decide(&limiter, &twins).allowed);
    assert_eq!(decide(&limiter, &twins).reported_index(), Some(0), "the first of equals");
}

/// A denied request applies no forced charges and no refunds.
#[test]
fn denied_request_applies_no_refund() {
    let (limiter, _) = limiter();
    let limit = limit("5 per 1m");
    limiter.charge("full", &limit, 5).expect("valid");
    limiter.charge("b", &limit, 3).expect("valid");
    for cost in [Cost::Force(1), Cost::Refund(1)] {
        let checks = [Check::new("b", &limit, cost), Check::new("full", &limit, 1)];
        assert!(!decide(&limiter, &checks).allowed);
        assert_eq!(remaining(&limiter, "b", &limit), 2, "{cost:?}");
    }
}

/// A stricter limit can be observed beside the enforced one, and is counted separately.
#[test]
fn stricter_limit_can_be_observed_beside_the_enforced_one() {
    let (limiter, _) = limiter();
    let (loose, strict) = (limit("10 per 1h"), limit("5 per 1h"));
    for order in [false, true] {
        let key = if order { "one" } else { "other" };
        let mut checks = [Check::new(key, &loose, 1), Check::new(key, &strict, 1).observed()];
        if order {
            checks.reverse();
        }
        let watched = usize::from(!order);
        let verdicts: Vec<_> =
            (0..12).map(|_| limiter.check_all(&checks).expect("valid")).collect();
        assert_eq!(verdicts.iter().filter(|verdict| verdict.allowed).count(), 10);
        let would_pass = verdicts.iter().filter(|v| v.decisions()[watched].allowed).count();
        assert_eq!(would_pass, 5);
    }
}
