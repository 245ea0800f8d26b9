//! Counters are exact, with any number of threads.

use std::time::Duration;

use tidegate::unstable::policy::Mode;
use tidegate::unstable::stats::{
    Decided, LATENCY_BOUNDS, LimitRecord, Outcome, RequestRecord, Stats,
};

use super::{allowing, denying, record, stats};
use crate::common::limit;

#[test]
fn every_outcome_and_decision_source_has_its_own_count() {
    let (stats, _) = stats();
    let ten = stats.limit("login", &limit("10 per 1s"), Mode::Enforce);
    for (times, decided) in Decided::ALL.into_iter().enumerate() {
        for _ in 0..=times {
            record(&stats, &[LimitRecord { decided, ..allowing(&ten, b"a") }]);
        }
        for _ in 0..=times + 10 {
            record(&stats, &[LimitRecord { decided, ..denying(&ten, b"a") }]);
        }
    }
    let [series] = &stats.series()[..] else { panic!("one series") };
    assert_eq!((&*series.policy, &*series.limit), ("login", "10 per 1s sliding-window"));
    assert_eq!(series.allowed, [1, 2, 3, 4]);
    assert_eq!(series.denied, [11, 12, 13, 14]);
    assert_eq!(series.denied_outcome(), Outcome::Denied);
}

#[test]
fn modes_of_one_limit_are_counted_separately() {
    let (stats, _) = stats();
    let ten = limit("10 per 1s");
    let enforced = stats.limit("api", &ten, Mode::Enforce);
    let observed = stats.limit("api", &ten, Mode::Observe);
    record(&stats, &[denying(&enforced, b"a")]);
    // An observed limit would have denied, but the request is allowed.
    let limit_records = [denying(&observed, b"b")];
    stats.record(&RequestRecord {
        limits: &limit_records,
        allowed: true,
        ..RequestRecord::default()
    });
    let all = stats.series();
    let refusals: Vec<_> =
        all.iter().map(|one| (one.mode, one.denied_outcome(), one.denied[0])).collect();
    let expected = [(Mode::Enforce, Outcome::Denied, 1), (Mode::Observe, Outcome::WouldDeny, 1)];
    assert_eq!(refusals, expected);
}

#[test]
fn a_near_miss_leaves_at_most_a_twentieth() {
    // Rows of the limit, the units left, and whether that is a near miss.
    let rows = [
        ("100 per 1m", 6, 0),
        ("100 per 1m", 5, 1),
        ("100 per 1m", 0, 1),
        ("39 per 1m", 2, 0),
        ("39 per 1m", 1, 1),
        ("10 per 1m", 1, 0),
        ("10 per 1m", 0, 1),
        // The capacity of a bucket is its burst.
        ("600 per 1m token-bucket burst 40", 3, 0),
        ("600 per 1m token-bucket burst 40", 2, 1),
    ];
    for (text, remaining, near_misses) in rows {
        let (stats, _) = stats();
        let limit = limit(text);
        let counted = stats.limit("p", &limit, Mode::Enforce);
        let limit_record =
            LimitRecord { limit: &limit, remaining: Some(remaining), ..allowing(&counted, b"a") };
        record(&stats, &[limit_record]);
        assert_eq!(stats.series()[0].near, near_misses, "{text}, {remaining} remaining");
        // A request that another policy denied is not a near miss.
        stats.record(&RequestRecord {
            limits: &[limit_record],
            allowed: false,
            ..RequestRecord::default()
        });
        // After failing open the units left are unknown.
        record(
            &stats,
            &[LimitRecord { remaining: None, decided: Decided::FailedOpen, ..limit_record }],
        );
        assert_eq!(stats.series()[0].near, near_misses, "{text}, {remaining} remaining");
    }
}

/// The limits share a series, but each is compared with its own count.
#[test]
fn near_misses_of_callers_own_limits_are_counted() {
    let (stats, _) = stats();
    let caller = stats.caller();
    for (text, remaining) in
        [("100 per 1m", 5), ("100 per 1m", 6), ("40 per 1m", 2), ("40 per 1m", 5)]
    {
        let limit = limit(text);
        record(
            &stats,
            &[LimitRecord { limit: &limit, remaining: Some(remaining), ..allowing(&caller, b"a") }],
        );
    }
    let [series] = &stats.series()[..] else { panic!("one series") };
    assert_eq!((series.allowed[0], series.near), (4, 2));
}

#[test]
fn concurrent_counts_add_up() {
    const THREADS: u64 = 16;
    const EACH: u64 = 20_000;
    let stats = Stats::default();
    let ten = stats.limit("p", &limit("1000 per 1s"), Mode::Enforce);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for number in 0..EACH {
                    let limit_record =
                        if number % 4 == 0 { denying(&ten, b"a") } else { allowing(&ten, b"a") };
                    let elapsed = Some(Duration::from_micros(number % 10));
                    let allowed = limit_record.allowed;
                    stats.record(&RequestRecord {
                        limits: &[limit_record],
                        allowed,
                        elapsed,
                        ..RequestRecord::default()
                    });
                }
            });
        }
    });
    let [series] = &stats.series()[..] else { panic!("one series") };
    assert_eq!(series.denied[0], THREADS * EACH / 4);
    assert_eq!(series.allowed[0], THREADS * EACH * 3 / 4);
    assert_eq!(stats.latency().count(), THREADS * EACH);
    let top = stats.top(Default::default(), None, 1);
    assert_eq!(top.keys.entries[0].count, THREADS * EACH / 4);
}

#[test]
fn latencies_are_counted_in_their_bucket() {
    let (stats, _) = stats();
    for bound in LATENCY_BOUNDS {
        for elapsed in [bound, bound + Duration::from_nanos(1)] {
            stats.record(&RequestRecord { elapsed: Some(elapsed), ..RequestRecord::default() });
        }
    }
    stats.record(&RequestRecord { elapsed: None, ..RequestRecord::default() });
    let counts = stats.latency();
    let mut expected = [2; LATENCY_BOUNDS.len() + 1];
    (expected[0], expected[LATENCY_BOUNDS.len()]) = (1, 1);
    assert_eq!(counts.buckets, expected);
    let sum: Duration = LATENCY_BOUNDS.iter().map(|bound| *bound * 2).sum();
    assert_eq!(counts.sum, sum + Duration::from_nanos(LATENCY_BOUNDS.len() as u64));
}
