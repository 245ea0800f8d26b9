//! Reservations: estimates that are charged, and settled later.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::{Check, Limit, Limiter};

use crate::common::{limit, limiter};
use crate::generators::cases;

fn used(limiter: &Limiter, limit: &Limit) -> u64 {
    limit.count() - limiter.peek("a", limit).expect("valid").remaining
}

#[test]
fn reservation_is_committed_kept_or_refunded() {
    let (limiter, _) = limiter();
    let tokens = limit("100 per 1m sliding-log");
    let reserve =
        || limiter.reserve("a", &tokens, 10).expect("valid").or_deny().expect("units left");
    for (actual, charged) in [(0, 0), (4, 4), (10, 10), (25, 25)] {
        reserve().commit(actual);
        assert_eq!(used(&limiter, &tokens), charged, "{actual}");
        assert!(limiter.reset("a", &tokens) == (charged > 0));
    }
    reserve().keep();
    assert_eq!(used(&limiter, &tokens), 10);
    drop(reserve());
    assert_eq!(used(&limiter, &tokens), 10, "the second reservation was refunded");
}

/// Regression: refunds take the newest units first, so refunding expired units took those of
/// others.
#[test]
fn expired_estimate_is_not_refunded() {
    for text in ["100 per 1m sliding-log", "100 per 1m", "100 per 1m token-bucket"] {
        let (limiter, clock) = limiter();
        let tokens = limit(text);
        let reserve = |units| {
            limiter.reserve("a", &tokens, units).expect("valid").or_deny().expect("units left")
        };
        let (slow, slower) = (reserve(50), reserve(50));
        clock.advance(Duration::from_secs(60));
        reserve(100).keep();
        drop(slow);
        assert_eq!(used(&limiter, &tokens), 100, "{text}");
        // Usage beyond the estimate is still charged.
        slower.commit(70);
        assert_eq!(limiter.peek("a", &tokens).expect("valid").remaining, 0, "{text}");
    }
}

/// Regression: the observed limit was settled in the state of the enforced one, which was settled
/// twice.
#[test]
fn an_observed_limit_beside_the_enforced_one_is_settled_once() {
    let (limiter, _) = limiter();
    let (enforced, tried) = (limit("1000 per 1m sliding-log"), limit("900 per 1m sliding-log"));
    let checks = [Check::new("a", &enforced, 400), Check::new("a", &tried, 400).observed()];
    let reserved = limiter.reserve_all(&checks).expect("valid").or_deny().expect("units left");
    limiter.charge("a", &enforced, 400).expect("valid");
    drop(reserved);
    assert_eq!(used(&limiter, &enforced), 400);
}

#[test]
fn a_denied_reservation_settles_nothing() {
    let (limiter, _) = limiter();
    let tokens = limit("10 per 1m sliding-log");
    limiter.reserve("a", &tokens, 8).expect("valid").keep();
    let denied = limiter.reserve("a", &tokens, 8).expect("valid");
    assert!(!denied.verdict().allowed);
    denied.commit(500);
    assert_eq!(used(&limiter, &tokens), 8);
    let error = limiter.reserve("a", &tokens, 11).expect("valid").or_deny().expect_err("never");
    assert_eq!(error.decision().limit, 10);
    assert_eq!(used(&limiter, &tokens), 8);
}

#[test]
fn several_limits_are_settled_alike() {
    let (limiter, _) = limiter();
    let (minute, day) = (limit("100 per 1m sliding-log"), limit("1000 per 1d sliding-log"));
    let watched = limit("5 per 1h sliding-log");
    let checks = [
        Check::new("a", &minute, 20),
        Check::new("a", &day, 20),
        // Not charged, because it would have denied.
        Check::new("a", &watched, 20).observed(),
    ];
    limiter.reserve_all(&checks).expect("valid").or_deny().expect("units left").commit(50);
    assert_eq!((used(&limiter, &minute), used(&limiter, &day)), (50, 50));
    assert_eq!(used(&limiter, &watched), 0);
}

proptest! {
    #![proptest_config(cases(200))]

    /// The count equals the sum of the true costs, for any estimates.
    #[test]
    fn committed_cost_is_charged(
        algorithm in prop::sample::select(vec!["sliding-log", "fixed-window", "token-bucket"]),
        steps in prop::collection::vec((1_u64..20, 0_u64..40, any::<bool>()), 1..12),
    ) {
        let (limiter, _) = limiter();
        let limit = limit(&format!("1000 per 1h {algorithm}"));
        let mut total = 0;
        for (estimate, actual, is_done) in steps {
            let reserved = limiter.reserve("a", &limit, estimate).expect("valid").or_deny();
            let reserved = reserved.expect("1000 are more than twelve times forty");
            if is_done {
                reserved.commit(actual);
                total += actual;
            }
        }
        prop_assert_eq!(used(&limiter, &limit), total);
    }
}
