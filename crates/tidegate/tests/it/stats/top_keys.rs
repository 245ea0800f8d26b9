//! Rankings, compared with exact counts.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::unstable::policy::Mode;
use tidegate::unstable::stats::{
    Decided, LimitRecord, MAX_TEXT_BYTES, RankBy, Ranking, RequestRecord, SKETCH_ENTRIES, Stats,
    TOP_PERIOD,
};

use super::{allowing, denying, record, stats};
use crate::common::limit;

/// Checks that a ranking is within its stated error.
fn check(listed: &Ranking, exact: &HashMap<Vec<u8>, u64>, most_wrong: u64) {
    let mut unlisted = exact.clone();
    for entry in &listed.entries {
        let truth = unlisted.remove(entry.name.as_bytes()).unwrap_or(0);
        assert!(entry.count >= truth, "{entry:?} was {truth}");
        assert!(entry.count - entry.error <= truth, "{entry:?} was {truth}");
        assert!(entry.error <= most_wrong, "{entry:?}: the error is above {most_wrong}");
    }
    let most = unlisted.values().max().copied().unwrap_or(0);
    assert!(most <= listed.unlisted_at_most, "{most} > {}", listed.unlisted_at_most);
    assert!(listed.entries.is_sorted_by(|a, b| a.count >= b.count));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Few names and many, uniform and skewed, over one period and over several.
    #[test]
    fn counts_are_within_their_error(
        names in 1_u64..2_000,
        skew in 1_u32..4,
        draws in prop::collection::vec(any::<u32>(), 1..4_000),
        periods in 1_usize..4,
        n in 1_usize..300,
    ) {
        let (stats, clock) = stats();
        let ten = stats.limit("p", &limit("10 per 1s"), Mode::Enforce);
        let mut by_period = Vec::new();
        for draws in draws.chunks(draws.len().div_ceil(periods)) {
            if !by_period.is_empty() {
                clock.advance(TOP_PERIOD);
            }
            let mut exact = HashMap::new();
            for draw in draws {
                // Repeated multiplication by a factor below one makes low numbers common.
                let number = (0..skew).fold(names, |number, _| (number * u64::from(*draw)) >> 32);
                let name = format!("key-{number}").into_bytes();
                record(&stats, &[denying(&ten, &name)]);
                *exact.entry(name).or_insert(0) += 1;
            }
            by_period.push((exact, draws.len() as u64));
        }
        // The last two periods are covered.
        let mut exact: HashMap<Vec<u8>, u64> = HashMap::new();
        let mut most_wrong = 0;
        for (counts, sightings) in by_period.iter().rev().take(2) {
            counts.iter().for_each(|(name, count)| *exact.entry(name.clone()).or_default() += count);
            most_wrong += sightings / SKETCH_ENTRIES as u64;
        }
        let top = stats.top(RankBy::Denied, Some("p"), n);
        prop_assert!(top.keys.entries.len() <= n);
        check(&top.keys, &exact, most_wrong);
        let sightings = exact.values().sum();
        check(&top.routes, &HashMap::from([(b"/login".to_vec(), sightings)]), 0);
        // Every key above the error is listed, if the list is long enough.
        let all = stats.top(RankBy::Denied, None, usize::MAX);
        for (name, count) in &exact {
            let listed = all.keys.entries.iter().any(|entry| entry.name.as_bytes() == &**name);
            prop_assert!(listed || *count <= most_wrong);
        }
    }
}

#[test]
fn few_names_are_counted_exactly() {
    let (stats, _) = stats();
    let login = stats.limit("login", &limit("10 per 1s"), Mode::Enforce);
    let api = stats.limit("api", &limit("10 per 1s"), Mode::Enforce);
    for (times, key) in [(3, "a"), (5, "b"), (3, "c")] {
        (0..times).for_each(|_| record(&stats, &[denying(&login, key.as_bytes())]));
    }
    (0..4).for_each(|_| record(&stats, &[denying(&api, b"a")]));
    let displayed = |policy, n| {
        let keys = stats.top(RankBy::Denied, policy, n).keys;
        let entries: Vec<_> = keys
            .entries
            .iter()
            .map(|e| format!("{} {} {} {}", e.policy, e.name, e.count, e.error))
            .collect();
        (entries.join(", "), keys.unlisted_at_most)
    };
    // Rankings of one policy, of all policies and of an unknown one. Equal counts are ordered by
    // name, and unlisted counts are bounded.
    let rows = [
        (Some("login"), 9, "login b 5 0, login a 3 0, login c 3 0", 0),
        (Some("login"), 2, "login b 5 0, login a 3 0", 3),
        (None, 3, "login b 5 0, api a 4 0, login a 3 0", 3),
        (Some("nobody"), 9, "", 0),
        (None, 0, "", 5),
    ];
    for (policy, n, entries, unlisted) in rows {
        assert_eq!(displayed(policy, n), (entries.to_owned(), unlisted), "{policy:?} {n}");
    }
}

#[test]
fn rankings_are_separate_and_list_a_key_once_per_policy() {
    let (stats, _) = stats();
    let [second, minute] =
        ["10 per 1s", "100 per 1m"].map(|text| stats.limit("p", &limit(text), Mode::Enforce));
    let watched = stats.limit("w", &limit("10 per 1s"), Mode::Observe);
    let near_miss = LimitRecord { remaining: Some(0), ..allowing(&second, b"near") };
    record(&stats, &[denying(&second, b"denied"), denying(&minute, b"denied")]);
    record(&stats, &[near_miss, LimitRecord { stats: &minute, ..near_miss }]);
    let limit_records = [allowing(&second, b"fine"), denying(&watched, b"watched")];
    stats.record(&RequestRecord {
        limits: &limit_records,
        allowed: true,
        ..RequestRecord::default()
    });
    // A failure of the store is not counted for the key.
    record(
        &stats,
        &[LimitRecord { decided: Decided::FailedClosed, ..denying(&second, b"store down") }],
    );
    for (by, key) in
        [(RankBy::Denied, "denied"), (RankBy::WouldDeny, "watched"), (RankBy::Near, "near")]
    {
        let top = stats.top(by, None, 10);
        let names: Vec<_> =
            top.keys.entries.iter().map(|e| (e.name.to_string(), e.count)).collect();
        assert_eq!(names, [(key.to_owned(), 1)], "{by}");
    }
}

#[test]
fn old_periods_are_dropped() {
    let (stats, clock) = stats();
    let ten = stats.limit("p", &limit("10 per 1s"), Mode::Enforce);
    let count = |stats: &Stats| {
        let top = stats.top(RankBy::Denied, None, 10);
        (top.keys.entries.iter().map(|entry| entry.count).sum::<u64>(), top.covers)
    };
    record(&stats, &[denying(&ten, b"a")]);
    clock.advance(TOP_PERIOD);
    record(&stats, &[denying(&ten, b"a")]);
    assert_eq!(count(&stats), (2, TOP_PERIOD));
    clock.advance(TOP_PERIOD - Duration::from_secs(1));
    assert_eq!(count(&stats), (2, 2 * TOP_PERIOD - Duration::from_secs(1)));
    clock.advance(Duration::from_secs(1));
    assert_eq!(count(&stats), (1, TOP_PERIOD));
    clock.advance(TOP_PERIOD);
    assert_eq!(count(&stats), (0, TOP_PERIOD));
}

#[test]
fn names_are_shown_short_and_printable() {
    let long = "x".repeat(MAX_TEXT_BYTES + 1);
    let rows: [(&[u8], &str); 8] = [
        (b"plain \xc3\xa9", "plain \u{e9}"),
        (b"<img onerror=x>", "<img onerror=x>"),
        (b"a\x00b\r\n\x1b[31m", "a\\x00b\\x0d\\x0a\\x1b[31m"),
        (b"\xff\xfe", "\\xff\\xfe"),
        ("a\u{202e}b\u{200b}".as_bytes(), "a\\xe2\\x80\\xaeb\\xe2\\x80\\x8b"),
        ("\u{61c}a".as_bytes(), "\\xd8\\x9ca"),
        (b"back\\slash", "back\\\\slash"),
        (long.as_bytes(), &format!("{}...", &long[1..])),
    ];
    for (key, displayed) in rows {
        let (stats, _) = stats();
        let ten = stats.limit("p", &limit("10 per 1s"), Mode::Enforce);
        record(&stats, &[denying(&ten, key)]);
        let entry = &stats.top(RankBy::Denied, None, 1).keys.entries[0];
        assert_eq!(entry.name.to_string(), displayed);
        assert_eq!(entry.name.is_truncated(), key.len() > MAX_TEXT_BYTES);
    }
}

#[test]
fn long_names_with_a_common_prefix_are_distinct() {
    let (stats, _) = stats();
    let ten = stats.limit("p", &limit("10 per 1s"), Mode::Enforce);
    let begin = "x".repeat(MAX_TEXT_BYTES);
    for (times, end) in [(2, "a"), (3, "b")] {
        let key = format!("{begin}{end}");
        (0..times).for_each(|_| record(&stats, &[denying(&ten, key.as_bytes())]));
    }
    let counts: Vec<_> =
        stats.top(RankBy::Denied, None, 9).keys.entries.iter().map(|e| e.count).collect();
    assert_eq!(counts, [3, 2]);
}

/// Volumes are estimated from one request in 32, if every request is timed.
#[test]
fn volumes_are_estimated_from_samples() {
    const REQUESTS: u64 = 32_000;
    let (stats, _clock) = stats();
    let ten = stats.limit("p", &limit("10 per 1s"), Mode::Enforce);
    assert_eq!(RankBy::Allowed.sampled_one_in(false), 1024);
    assert_eq!(RankBy::Denied.sampled_one_in(true), 1);
    for number in 0..REQUESTS {
        let (key, allowed): (&[u8], bool) = match number % 4 {
            0 => (b"cold", true),
            1 => (b"denied", false),
            _ => (b"hot", true),
        };
        let result = if allowed { allowing(&ten, key) } else { denying(&ten, key) };
        stats.record(&RequestRecord {
            limits: &[result],
            allowed,
            elapsed: Some(Duration::from_micros(1)),
            is_shared: true,
            // Denials are answered from memory.
            was_sent: allowed,
            ..RequestRecord::default()
        });
    }
    let one_in = u64::from(RankBy::StoreCalls.sampled_one_in(true));
    for by in [RankBy::Allowed, RankBy::StoreCalls] {
        let keys = stats.top(by, None, 10).keys;
        let names: Vec<String> = keys.entries.iter().map(|entry| entry.name.to_string()).collect();
        assert_eq!(names, ["hot", "cold"], "{by}");
        for (entry, share) in keys.entries.iter().zip([REQUESTS / 2, REQUESTS / 4]) {
            assert_eq!((entry.count % one_in, entry.error), (0, 0), "{by} {entry:?}");
            assert!(entry.count.abs_diff(share) < share / 10, "{by} {entry:?}");
        }
    }
    assert_eq!(stats.top(RankBy::Denied, None, 10).keys.entries[0].count, REQUESTS / 4);
}
