//! Permits: held, released, and lost when their lease ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tidegate::{Acquired, Check, Limit, Limiter, Permit, RetryAfter, WhenFull};

use crate::common::{NOW, S, at, limit, limiter};

fn take(limiter: &Limiter, key: &str, limit: &Limit, units: u64) -> Option<Permit> {
    limiter.acquire(&[Check::new(key, limit, units)]).expect("valid").permit()
}

fn hold(limiter: &Limiter, key: &str, limit: &Limit, units: u64) -> Permit {
    take(limiter, key, limit, units).expect("free capacity")
}

/// Returns the number of free permits, without acquiring any.
fn free_permits(limiter: &Limiter, key: &str, limit: &Limit) -> u64 {
    let peek = limiter.acquire(&[Check::new(key, limit, 0)]).expect("valid");
    peek.verdict().decisions()[0].remaining
}

#[test]
fn a_permit_is_held_until_dropped() {
    let (limiter, _) = limiter();
    let limit = limit("2 concurrent lease 30s");
    let first = hold(&limiter, "a", &limit, 1);
    let second = hold(&limiter, "a", &limit, 1);
    assert_ne!(first.id(), second.id());
    assert_eq!(limiter.stats().log_entries, 2);
    match limiter.acquire(&[Check::new("a", &limit, 1)]).expect("valid") {
        Acquired::Permit(..) => panic!("there are only two"),
        Acquired::Denied(verdict) => {
            assert_eq!(verdict.retry_after(), RetryAfter::Micros(30 * S));
        }
    }
    assert!(take(&limiter, "b", &limit, 2).is_some(), "other keys have separate permits");
    drop(first);
    assert_eq!(free_permits(&limiter, "a", &limit), 1);
    let third = hold(&limiter, "a", &limit, 1);
    drop((second, third));
    assert_eq!(free_permits(&limiter, "a", &limit), 2);
    assert_eq!(limiter.stats().log_entries, 0);
}

#[test]
fn permit_of_several_units_releases_all() {
    let (limiter, _) = limiter();
    let limit = limit("5 concurrent");
    let three = hold(&limiter, "a", &limit, 3);
    assert!(take(&limiter, "a", &limit, 3).is_none());
    let two = hold(&limiter, "a", &limit, 2);
    drop(three);
    assert_eq!(free_permits(&limiter, "a", &limit), 3);
    drop(two);
    assert_eq!(free_permits(&limiter, "a", &limit), 5);
    assert_eq!(
        limiter.acquire(&[Check::new("a", &limit, 6)]).expect("valid").verdict().retry_after(),
        RetryAfter::Never
    );
}

#[test]
fn permit_is_free_again_after_its_lease() {
    let (limiter, clock) = limiter();
    let limit = limit("1 concurrent lease 30s");
    let lost = hold(&limiter, "a", &limit, 1);
    clock.set(at(NOW + 30 * S - 1));
    assert!(take(&limiter, "a", &limit, 1).is_none());
    clock.set(at(NOW + 30 * S));
    let next = hold(&limiter, "a", &limit, 1);
    assert!(!lost.renew(), "another holder has the permit");
    drop(lost);
    assert_eq!(
        free_permits(&limiter, "a", &limit),
        0,
        "releasing an expired permit frees no other"
    );
    drop(next);
    assert_eq!(free_permits(&limiter, "a", &limit), 1);
}

#[test]
fn renewed_permit_is_held_beyond_its_lease() {
    let (limiter, clock) = limiter();
    let limit = limit("1 concurrent lease 30s");
    let permit = hold(&limiter, "a", &limit, 1);
    for second in (0..200).step_by(20) {
        clock.set(at(NOW + second * S));
        assert!(permit.renew());
        assert!(take(&limiter, "a", &limit, 1).is_none());
    }
    clock.advance(Duration::from_secs(30));
    assert!(!permit.renew());
    assert!(take(&limiter, "a", &limit, 1).is_some());
}

/// An ended lease and an invalid duration are different errors.
#[test]
fn lease_is_renewed_with_another_duration() {
    let (limiter, clock) = limiter();
    let limit = limit("1 concurrent lease 30s");
    let mut permit = hold(&limiter, "a", &limit, 1);
    assert_eq!(permit.renew_for(Duration::from_secs(60)), Ok(true));
    for lease in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
        assert!(permit.renew_for(lease).is_err(), "{lease:?}");
    }
    clock.advance(Duration::from_secs(59));
    assert!(permit.renew(), "the renewed lease lasts 60 s");
    clock.advance(Duration::from_secs(60));
    assert_eq!(permit.renew_for(Duration::from_secs(60)), Ok(false));
    assert!(permit.renew_for(Duration::MAX).is_err());
}

#[test]
fn a_permit_and_a_rate_are_all_or_nothing() {
    let (limiter, _) = limiter();
    let (rate, held) = (limit("3 per 1m"), limit("2 concurrent"));
    let checks = [Check::new("a", &rate, 1), Check::new("a", &held, 1)];
    let acquire = || limiter.acquire(&checks).expect("valid").permit();
    let left = || limiter.peek("a", &rate).expect("valid").remaining;
    let (first, second) = (acquire(), acquire());
    assert!(first.is_some() && second.is_some());
    assert!(acquire().is_none(), "no permit is left");
    assert_eq!(left(), 1, "the rate is not charged for a denied permit");
    drop(first);
    assert_eq!(left(), 1, "releasing a permit does not refund the rate");
    let third = acquire();
    assert!(third.is_some());
    drop((second, third));
    assert!(acquire().is_none(), "the rate is used up");
    assert_eq!(free_permits(&limiter, "a", &held), 2, "no permit is held for a denied rate");
}

#[test]
fn permit_over_several_limits_is_renewed_and_released_as_one() {
    let (limiter, clock) = limiter();
    let (user, site) = (limit("1 concurrent lease 10s"), limit("3 concurrent lease 60s"));
    let checks = [Check::new("user", &user, 1), Check::new("site", &site, 1)];
    let both = limiter.acquire(&checks).expect("valid").permit().expect("free capacity");
    assert!(limiter.acquire(&checks).expect("valid").permit().is_none());
    assert_eq!(free_permits(&limiter, "site", &site), 2);
    clock.advance(Duration::from_secs(10));
    assert!(!both.renew(), "one of the leases has ended");
    drop(both);
    assert_eq!(
        (free_permits(&limiter, "user", &user), free_permits(&limiter, "site", &site)),
        (1, 3)
    );
}

/// A full observed limit is not held by the permit, and does not affect it.
#[test]
fn full_observed_limit_does_not_affect_a_permit() {
    let (limiter, _) = limiter();
    let one = limit("1 concurrent");
    let other = hold(&limiter, "seen", &one, 1);
    let checks = [Check::new("a", &one, 1), Check::new("seen", &one, 1).observed()];
    let permit =
        limiter.acquire(&checks).expect("valid").permit().expect("only one limit is enforced");
    assert!(permit.renew(), "the permit does not depend on the observed limit");
    drop(permit);
    assert_eq!(free_permits(&limiter, "seen", &one), 0, "the other permit is not released");
    drop(other);
    let permit =
        limiter.acquire(&checks).expect("valid").permit().expect("both limits have capacity");
    assert_eq!(
        free_permits(&limiter, "seen", &one),
        0,
        "an observed limit with free permits is held"
    );
    drop(permit);
    assert_eq!(free_permits(&limiter, "seen", &one), 1);
}

/// After a change of the number or the lease, held permits still count.
#[test]
fn permits_outlive_a_change_of_the_limit() {
    let (limiter, _) = limiter();
    let (two, one) = (limit("2 concurrent lease 30s"), limit("1 concurrent lease 10s"));
    let first = hold(&limiter, "a", &two, 1);
    assert!(take(&limiter, "a", &one, 1).is_none());
    drop(first);
    assert!(take(&limiter, "a", &one, 1).is_some());
}

/// Permits of untracked keys are held in the shared state.
#[test]
fn permits_of_untracked_keys_share_a_count() {
    let builder = Limiter::builder().max_keys(1).when_full(WhenFull::Overflow);
    let limiter = builder.build().expect("a small store");
    let limit = limit("2 concurrent");
    let _known = hold(&limiter, "known", &limit, 1);
    let (x, y) = (hold(&limiter, "x", &limit, 1), hold(&limiter, "y", &limit, 1));
    assert!(take(&limiter, "z", &limit, 1).is_none());
    assert!(x.renew() && y.renew());
    drop(x);
    assert!(take(&limiter, "z", &limit, 1).is_some());
    drop(y);
    assert!(take(&limiter, "z", &limit, 2).is_some());
}

/// Permits are entries, and the number of entries is bounded.
#[test]
fn permits_are_bounded() {
    for when_full in [WhenFull::Deny, WhenFull::Overflow] {
        let builder = Limiter::builder().max_log_entries(5).when_full(when_full);
        let limiter = builder.build().expect("a small store");
        let limit = limit("2 concurrent");
        let names: Vec<String> = (0..20).map(|number| format!("key {number}")).collect();
        let held: Vec<Permit> =
            names.iter().filter_map(|name| take(&limiter, name, &limit, 1)).collect();
        assert_eq!((held.len(), limiter.stats().log_entries), (5, 5), "{when_full:?}");
        drop(held);
        assert_eq!(limiter.stats().log_entries, 0);
        assert!(take(&limiter, "key 19", &limit, 1).is_some());
    }
}

#[test]
fn concurrent_threads_never_exceed_the_permits() {
    let (limiter, _) = limiter();
    let limit = limit("3 concurrent lease 1h");
    let (inside, most, entered) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    let Some(permit) = take(&limiter, "a", &limit, 1) else { continue };
                    let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    entered.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(permit);
                }
            });
        }
    });
    assert!(most.into_inner() <= 3);
    assert!(entered.into_inner() > 0);
    assert_eq!(free_permits(&limiter, "a", &limit), 3);
    assert_eq!(limiter.stats().log_entries, 0);
}
