//! The retry budget.

use std::time::Duration;

use tidegate_client::Budget;

/// Returns how many retries the budget pays for if all `requests` fail.
fn retries(budget: &mut Budget, now: Duration, requests: u32) -> u32 {
    let mut retries = 0;
    for _ in 0..requests {
        budget.earn(now);
        while budget.spend(now) {
            retries += 1;
        }
    }
    retries
}

#[test]
fn bounds_retries_to_a_share_of_the_requests() {
    // (share, reserve, requests, retries)
    let rows = [
        (0.2, 10, 1000, 210),
        (0.2, 0, 1000, 200),
        (0.0, 10, 1000, 10),
        (0.0, 0, 1000, 0),
        (1.0, 0, 10, 10),
        (7.0, 0, 10, 10),
        (-1.0, 3, 10, 3),
        (f64::NAN, 3, 10, 3),
    ];
    for (share, reserve, requests, expected) in rows {
        let actual = retries(&mut Budget::new(share, reserve), Duration::ZERO, requests);
        assert_eq!(actual, expected, "share {share}, reserve {reserve}");
    }
}

#[test]
fn refills_the_reserve_with_time() {
    let mut budget = Budget::new(0.0, 10);
    // (seconds since the start, retries that can be paid for then)
    for (at, expected) in
        [(0, 10), (0, 0), (6, 1), (12, 1), (30, 3), (90, 10), (10_000, 10), (9_000, 0)]
    {
        let actual = retries(&mut budget, Duration::from_secs(at), 1);
        assert_eq!(actual, expected, "at {at} s");
    }
}

#[test]
fn adds_up_small_steps_of_time() {
    let mut budget = Budget::new(0.0, 1);
    assert_eq!(retries(&mut budget, Duration::ZERO, 1), 1);
    let paid = (1..=60_000).filter(|ms| budget.spend(Duration::from_millis(*ms))).count();
    assert_eq!(paid, 1, "one in a minute");
}

#[test]
fn bounds_savings() {
    let mut budget = Budget::new(0.2, 10);
    for _ in 0..1_000_000 {
        budget.earn(Duration::ZERO);
    }
    let mut paid = 0;
    while budget.spend(Duration::ZERO) {
        paid += 1;
    }
    assert_eq!(paid, 100);
}
