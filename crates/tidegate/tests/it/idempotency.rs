//! Idempotency ids: an admitted request is charged once.

use std::time::Duration;

use tidegate::{Check, CheckError, Limit, Limiter, ManualClock, Request, Verdict};

use crate::common::{NOW, at, limit, limiter};

fn decide(limiter: &Limiter, checks: &[Check<'_>], id: &str) -> Result<Verdict, CheckError> {
    limiter.decide(&Request::new(checks).with_id(id))
}

fn remaining(limiter: &Limiter, key: &str, limit: &Limit) -> u64 {
    limiter.peek(key, limit).expect("valid").remaining
}

#[test]
fn the_same_id_is_charged_once() {
    let (limiter, clock) = limiter();
    let limit = limit("5 per 1m sliding-log");
    let checks = [Check::new("a", &limit, 2)];
    let first = decide(&limiter, &checks, "order 17").expect("valid");
    assert!(first.allowed);
    let _ = limiter.check("a", &limit, 1).expect("valid");
    clock.advance(Duration::from_secs(1));
    assert_eq!(
        decide(&limiter, &checks, "order 17"),
        Ok(first),
        "the replay returns the same verdict"
    );
    assert_eq!(remaining(&limiter, "a", &limit), 2);
    assert!(decide(&limiter, &checks, "order 18").expect("valid").allowed);
    assert_eq!(remaining(&limiter, "a", &limit), 0);
    assert_eq!(limiter.stats().remembered_ids, 2);
}

#[test]
fn ids_are_scoped_by_key_and_limit() {
    let (limiter, _) = limiter();
    let (minute, hour) = (limit("5 per 1m"), limit("5 per 1h"));
    for (key, limit) in [("a", &minute), ("b", &minute), ("a", &hour)] {
        let _ = decide(&limiter, &[Check::new(key, limit, 1)], "id").expect("valid");
        assert_eq!(remaining(&limiter, key, limit), 4);
    }
}

#[test]
fn another_cost_under_the_same_id_is_an_error() {
    let (limiter, _) = limiter();
    let limit = limit("5 per 1m");
    assert!(decide(&limiter, &[Check::new("a", &limit, 2)], "id").expect("valid").allowed);
    let reused = decide(&limiter, &[Check::new("a", &limit, 3)], "id");
    assert_eq!(reused, Err(CheckError::IdReused));
    assert_eq!(remaining(&limiter, "a", &limit), 3);
}

#[test]
fn a_denied_check_is_decided_again() {
    let (limiter, clock) = limiter();
    let limit = limit("5 per 1m sliding-log");
    limiter.charge("a", &limit, 5).expect("valid");
    let checks = [Check::new("a", &limit, 1)];
    assert!(!decide(&limiter, &checks, "id").expect("valid").allowed);
    assert!(!decide(&limiter, &[Check::new("a", &limit, 2)], "id").expect("no reuse").allowed);
    clock.advance(Duration::from_secs(60));
    assert!(decide(&limiter, &checks, "id").expect("valid").allowed);
    assert_eq!(remaining(&limiter, "a", &limit), 4);
}

/// An id is remembered for the window, which is half-open.
#[test]
fn an_id_expires_with_the_window() {
    let (limiter, clock) = limiter();
    let (short, long) = (limit("5 per 10s sliding-log"), limit("5 per 60s sliding-log"));
    let checks = [Check::new("a", &short, 1), Check::new("a", &long, 1)];
    let _ = decide(&limiter, &checks, "id").expect("valid");
    clock.advance(Duration::from_micros(59_999_999));
    let _ = decide(&limiter, &checks, "id").expect("valid");
    assert_eq!(remaining(&limiter, "a", &long), 4);
    clock.advance(Duration::from_micros(1));
    let _ = decide(&limiter, &checks, "id").expect("valid");
    assert_eq!((remaining(&limiter, "a", &short), remaining(&limiter, "a", &long)), (4, 4));
    clock.advance(Duration::from_secs(1));
    let _ = decide(&limiter, &checks, "id").expect("valid");
    assert_eq!(remaining(&limiter, "a", &long), 4, "the id is remembered again");
}

/// After a step back an id is remembered for one window more, but not for ever.
#[test]
fn an_id_from_the_future_expires_too() {
    let (limiter, clock) = limiter();
    let limit = limit("5 per 10s sliding-log");
    let checks = [Check::new("a", &limit, 1)];
    let _ = decide(&limiter, &checks, "id").expect("valid");
    clock.set(at(NOW - 3_600_000_000));
    let _ = decide(&limiter, &checks, "id").expect("valid");
    assert_eq!(remaining(&limiter, "a", &limit), 4);
    clock.advance(Duration::from_secs(10));
    let _ = decide(&limiter, &checks, "id").expect("valid");
    clock.advance(Duration::from_secs(5));
    assert_eq!(remaining(&limiter, "a", &limit), 4, "charged again after the id has expired");
}

/// The order of the checks is not part of a request.
#[test]
fn id_does_not_depend_on_the_order_of_checks() {
    let (limiter, _) = limiter();
    let limit = limit("5 per 1m");
    let (a, b) = (Check::new("a", &limit, 1), Check::new("b", &limit, 2));
    let one = decide(&limiter, &[a, b], "id").expect("valid");
    let other = decide(&limiter, &[b, a], "id").expect("valid");
    assert_eq!((remaining(&limiter, "a", &limit), remaining(&limiter, "b", &limit)), (4, 3));
    assert!(one.allowed && other.allowed);
    let swapped = [Check::new("a", &limit, 2), Check::new("b", &limit, 1)];
    assert_eq!(decide(&limiter, &swapped, "id"), Err(CheckError::IdReused));
}

#[test]
fn remembered_ids_are_bounded() {
    let limit = limit("1000000 per 10s sliding-log");
    for max_ids in [0, 1, 10, 1_000] {
        let clock = ManualClock::new(at(NOW));
        let builder = Limiter::builder().max_keys(10_000).clock(clock.clock()).max_ids(max_ids);
        let limiter = builder.build().expect("a small store");
        let all = |prefix: &str| {
            for number in 0..3_000 {
                let id = format!("{prefix}{number}");
                let _ = decide(&limiter, &[Check::new("a", &limit, 1)], &id).expect("valid");
            }
        };
        all("first");
        let stats = limiter.stats();
        assert!(stats.remembered_ids <= max_ids as u64, "{max_ids}: {stats:?}");
        assert_eq!(stats.remembered_ids + stats.forgotten_ids, 3_000, "{max_ids}");
        assert!(stats.remembered_ids >= max_ids as u64 / 2, "{max_ids}: {stats:?}");
        clock.advance(Duration::from_secs(10));
        all("second");
        assert!(limiter.stats().remembered_ids <= max_ids as u64);
        let known = decide(&limiter, &[Check::new("a", &limit, 1)], "first0").expect("valid");
        assert!(known.allowed, "old ids were replaced, or not remembered");
    }
}

/// Regression: expired ids in other shards kept a small store from remembering.
#[test]
fn ids_below_the_bound_are_kept_for_their_window() {
    let (clock, limit) = (ManualClock::new(at(NOW)), limit("1000 per 1s"));
    let limiter = Limiter::builder()
        .max_keys(10_000)
        .clock(clock.clock())
        .max_ids(10)
        .build()
        .expect("memory");
    for round in 0..5 {
        for id in 0..10 {
            let checks = [Check::new("key", &limit, 1)];
            let id = format!("{round} {id}");
            let request = Request::new(&checks).with_id(&id);
            let _ = limiter.decide(&request).expect("valid");
            let _ = limiter.decide(&request).expect("valid");
        }
        assert_eq!(limiter.peek("key", &limit).expect("valid").remaining, 990, "round {round}");
        clock.advance(Duration::from_secs(10));
    }
    assert_eq!(limiter.stats().forgotten_ids, 0);
}
