//! A decision on a known key does not allocate.

use std::time::Duration;

use allocation_counter::measure;
use tidegate::{Check, Limit};

use crate::common::{limit, limiter};

/// Returns the number of allocations of this thread while `work` runs.
fn allocations(work: impl FnOnce()) -> u64 {
    measure(work).count_total
}

/// Limits of each algorithm, with many units left and with few.
fn limits() -> Vec<Limit> {
    let texts = [
        "1000000 per 1h sliding-counter",
        "1000000 per 1h fixed-window",
        "1000000 per 1h token-bucket",
        "1000000 per 1h sliding-window",
        "3 per 1h sliding-counter",
        "3 per 1h fixed-window",
        "3 per 1h token-bucket",
        "3 per 1h sliding-log",
        "3 per 1h sliding-window",
        // The window is too short for a small slot.
        "1000000 per 100ms sliding-counter",
    ];
    texts.into_iter().map(limit).collect()
}

#[test]
fn counting_allocator_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![1, 2, 3]))), 1);
}

#[test]
fn a_check_allocates_nothing() {
    let (limiter, _) = limiter();
    for limit in limits() {
        let check = || limiter.check("key", &limit, 1).expect("valid");
        for _ in 0..5 {
            let _ = check();
        }
        let count = allocations(|| {
            for _ in 0..100 {
                let _ = check();
            }
        });
        assert_eq!(count, 0, "{limit}");
    }
}

/// A log at its limit drops as many entries as it adds.
#[test]
fn a_log_that_rolls_on_allocates_nothing() {
    let (limiter, clock) = limiter();
    let limit = limit("50 per 1s sliding-log");
    let roll_on = |times: u64| {
        for _ in 0..times {
            clock.advance(Duration::from_millis(20));
            assert!(limiter.check("key", &limit, 1).expect("valid").allowed);
            assert!(!limiter.check("key", &limit, 50).expect("valid").allowed);
        }
    };
    roll_on(200);
    assert_eq!(allocations(|| roll_on(500)), 0);
}

#[test]
fn a_request_of_up_to_four_checks_allocates_nothing() {
    let (limiter, _) = limiter();
    let limits = limits();
    let names: Vec<String> = (0..limits.len()).map(|number| format!("key {number}")).collect();
    let all: Vec<Check<'_>> =
        names.iter().zip(&limits).map(|(name, limit)| Check::new(name, limit, 1)).collect();
    for check in &all {
        // Creates every state and, where possible, uses up the limit.
        for _ in 0..5 {
            let _ = limiter.check(check.key, check.limit, 1).expect("valid");
        }
    }
    for several in 2..=4 {
        for checks in all.windows(several) {
            let count = allocations(|| {
                for _ in 0..20 {
                    let _ = limiter.check_all(checks).expect("valid");
                }
            });
            assert_eq!(count, 0, "{checks:?}");
        }
    }
}

#[test]
fn a_batch_allocates_nothing() {
    let (limiter, _) = limiter();
    let limits = limits();
    let names: Vec<String> = (0..100).map(|number| format!("key {number}")).collect();
    let checks: Vec<Check<'_>> = limits
        .iter()
        .flat_map(|limit| names.iter().map(move |name| Check::new(name, limit, 1)))
        .collect();
    let mut decisions = Vec::with_capacity(checks.len());
    for _ in 0..5 {
        decisions.clear();
        limiter.check_batch(&checks, &mut decisions).expect("valid");
    }
    decisions.clear();
    let count = allocations(|| limiter.check_batch(&checks, &mut decisions).expect("valid"));
    assert_eq!(count, 0);
    assert_eq!(decisions.len(), checks.len());
}
