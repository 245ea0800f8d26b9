//! `max_log_entries`: logs beyond the bound merge entries, and stay within their limit.

use proptest::prelude::*;
use tidegate::{Check, Cost, Limiter, WhenFull};

use crate::common::{NOW, S, at, check_at, limit};
use crate::generators::cases;

fn bounded(max_log_entries: u64) -> Limiter {
    // Few keys make few shards, all of which are searched for expired entries.
    let builder = Limiter::builder().max_keys(1_000).when_full(WhenFull::Deny);
    let builder = builder.max_log_entries(max_log_entries);
    builder.build().expect("a small store")
}

proptest! {
    #![proptest_config(cases(200))]

    /// However entries are merged, no window contains more than the limit.
    #[test]
    fn merged_logs_keep_their_limit(
        max_entries in 1_u64..30,
        count in 1_u64..40,
        gaps in prop::collection::vec((0_u64..400_000, 1_u64..4), 1..300),
    ) {
        let limit = limit(&format!("{count} per 1s sliding-log"));
        let limiter = bounded(max_entries);
        let mut now = NOW;
        let mut admitted = Vec::new();
        for (gap, cost) in gaps {
            now += gap;
            if check_at(&limiter, now, "key", &limit, cost).allowed {
                admitted.push((now, cost));
            }
            prop_assert!(limiter.stats().log_entries <= max_entries);
            let in_window = admitted.iter().rev().take_while(|(then, _)| then + S > now);
            prop_assert!(in_window.map(|(_, cost)| cost).sum::<u64>() <= count);
        }
        prop_assert!(check_at(&limiter, now + S, "key", &limit, count).allowed);
    }
}

/// The newest entry absorbs the next unit, and then expires when that unit does.
#[test]
fn a_merged_entry_counts_as_long_as_its_newest() {
    let limit = limit("5 per 10s sliding-log");
    let limiter = bounded(2);
    for second in 0..4 {
        assert!(check_at(&limiter, NOW + second * S, "key", &limit, 1).allowed);
    }
    let stats = limiter.stats();
    assert_eq!((stats.log_entries, stats.merged_entries), (2, 2));
    let at_ten = check_at(&limiter, NOW + 10 * S, "key", &limit, Cost::PEEK);
    assert_eq!(
        (at_ten.remaining, at_ten.reset_after.as_micros()),
        (2, 3 * S),
        "the three units count until 13 s"
    );
    assert_eq!(check_at(&limiter, NOW + 13 * S, "key", &limit, Cost::PEEK).remaining, 5);
}

/// Logs that became empty and fill again do not exceed the bound: there are no entries for them
/// while other logs hold all of them.
#[test]
fn empty_logs_count_toward_the_bound() {
    let limit = limit("5 per 1s sliding-log");
    let limiter = bounded(10);
    let all = |first: &str, now: u64, cost: u64| {
        let names = (0..10).map(|number| format!("{first}{number}"));
        names.filter(|name| check_at(&limiter, now, name, &limit, cost).allowed).count()
    };
    assert_eq!(all("a", NOW, 1), 10);
    assert_eq!(all("a", NOW + 10 * S, 0), 10);
    assert_eq!(all("b", NOW + 10 * S, 1), 10);
    assert_eq!(all("a", NOW + 10 * S, 1), 0, "the logs of b hold all entries");
    assert_eq!(limiter.stats().log_entries, 10);
    assert_eq!(all("b", NOW + 10 * S + 1, 1), 10, "the logs of b merge entries");
    assert_eq!(limiter.stats().log_entries, 10);
    let both = [Check::new("a0", &limit, 1), Check::new("b0", &limit, 1)];
    let verdict = limiter.check_all_at(at(NOW + 10 * S + 2), &both).expect("valid");
    assert!(!verdict.allowed && verdict.decisions()[1].allowed);
    assert_eq!(all("a", NOW + 20 * S, 1), 10, "the logs of b have expired");
    assert_eq!(limiter.stats().log_entries, 10);
}

/// A log reuses its own entries that have just expired.
#[test]
fn a_log_reuses_its_own_entries() {
    let limit = limit("1 per 1s sliding-log");
    let limiter = bounded(1);
    for second in 0..5 {
        assert!(check_at(&limiter, NOW + second * S, "key", &limit, 1).allowed, "{second} s");
    }
    let limit = self::limit("1 per 2s sliding-log");
    let limiter = bounded(2);
    for second in (0..10).step_by(2) {
        let checks = ["a", "b"].map(|key| Check::new(key, &limit, 1));
        let verdict = limiter.check_all_at(at(NOW + second * S), &checks).expect("valid");
        assert!(verdict.allowed, "{second} s");
    }
    assert_eq!(limiter.stats().log_entries, 2);
}

/// A new log without a free entry is treated as an untracked key.
#[test]
fn a_new_log_beyond_the_bound_overflows() {
    let limit = limit("5 per 10s sliding-log");
    let limiter = bounded(2);
    assert!(check_at(&limiter, NOW, "a", &limit, 1).allowed);
    assert!(check_at(&limiter, NOW, "b", &limit, 1).allowed);
    assert!(!check_at(&limiter, NOW, "c", &limit, 1).allowed);
    assert_eq!(limiter.stats().overflowed, 1);
    let counter = self::limit("5 per 10s");
    assert!(check_at(&limiter, NOW, "c", &counter, 1).allowed, "a counter needs no entries");
    assert!(check_at(&limiter, NOW + 11 * S, "c", &limit, 1).allowed, "the others have expired");
}

/// A log moves from its slot to the slab when it grows, and back when it shrinks.
#[test]
fn entries_are_counted_while_a_log_grows_and_shrinks() {
    let limit = limit("100 per 10s sliding-log");
    let limiter = bounded(1_000);
    let entries = || limiter.stats().log_entries;
    for round in [NOW, NOW + 100 * S] {
        // Two units at every time are one entry.
        for number in 0..50 {
            assert!(check_at(&limiter, round + number, "key", &limit, 2).allowed);
            assert_eq!(entries(), number + 1);
        }
        assert!(!check_at(&limiter, round + 50, "key", &limit, 1).allowed);
        for number in 0..49 {
            let decision = check_at(&limiter, round + 10 * S + number, "key", &limit, Cost::PEEK);
            assert_eq!((decision.remaining, entries()), (2 * number + 2, 49 - number));
            assert_eq!(decision.reset_after.as_micros(), 49 - number);
        }
        // A packed log is charged, reports its wait and is refunded.
        let now = round + 10 * S + 48;
        let decision = check_at(&limiter, now, "key", &limit, 99);
        assert_eq!((decision.allowed, decision.retry_after.as_micros()), (false, Some(1)));
        assert!(check_at(&limiter, now, "key", &limit, 3).allowed);
        assert_eq!(entries(), 2);
        let decision = check_at(&limiter, now, "key", &limit, Cost::Refund(4));
        assert_eq!((decision.remaining, entries()), (99, 1));
    }
    let now = NOW + 200 * S;
    for key in 0..20 {
        assert!(check_at(&limiter, now, format!("key {key}"), &limit, 5).allowed);
    }
    let before = entries();
    assert!(check_at(&limiter, now, "key 0", &limit, Cost::Refund(5)).allowed);
    assert_eq!(entries(), before - 1);
}

/// Several checks count the entries of their logs once, whether they are admitted, denied by a
/// check before or after the log, or decided with a lock.
#[test]
fn entries_of_several_checks_are_counted_once() {
    let (log, long) = (limit("3 per 10s sliding-log"), limit("100 per 10s sliding-log"));
    let (counter, none) = (limit("9 per 10s"), limit("0 per 10s"));
    let limiter = bounded(1_000);
    assert!(check_at(&limiter, NOW, "log", &log, 1).allowed);
    for number in 0..90 {
        assert!(check_at(&limiter, NOW + number, "long", &long, 1).allowed);
    }
    for (key, limit) in [("counter", &counter), ("none", &none)] {
        let _ = check_at(&limiter, NOW, key, limit, 1);
    }
    let [log, long] = [Check::new("log", &log, 1), Check::new("long", &long, 1)];
    let [counter, none] = [Check::new("counter", &counter, 1), Check::new("none", &none, 1)];
    let rows: [(&[Check<'_>], bool, u64); 8] = [
        (&[log, none], false, 91),
        (&[none, log], false, 91),
        (&[log, counter, none], false, 91),
        (&[log, counter], true, 92),
        (&[long, log], true, 94),
        (&[log, counter], false, 94),
        (&[counter, log], false, 94),
        (&[counter, long], true, 95),
    ];
    for (number, (checks, allowed, entries)) in (100..).zip(rows) {
        let verdict = limiter.check_all_at(at(NOW + number), checks).expect("valid");
        assert_eq!((verdict.allowed, limiter.stats().log_entries), (allowed, entries), "{number}");
    }
}

/// Regression: each of several logs in a request saw the same free entry.
#[test]
fn logs_of_one_request_do_not_exceed_the_bound() {
    let limit = limit("5 per 10s sliding-log");
    let limiter = bounded(3);
    for key in ["a", "b"] {
        assert!(check_at(&limiter, NOW, key, &limit, 1).allowed);
    }
    let checks = ["a", "b"].map(|key| Check::new(key, &limit, 1));
    assert!(limiter.check_all_at(at(NOW + 1), &checks).expect("valid").allowed);
    assert_eq!(limiter.stats().log_entries, 3);
}
