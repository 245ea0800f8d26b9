//! The memory store stays within its bounds, never drops an active key, and reuses the slots of
//! expired keys.

use tidegate::{Check, Cost, Limit, Limiter, WhenFull};

use crate::common::{NOW, S, at, check_at, limit};

fn bounded(max_keys: usize, when_full: WhenFull) -> Limiter {
    let builder = Limiter::builder().max_keys(max_keys).when_full(when_full);
    builder.build().expect("a small store")
}

fn key(number: usize) -> [u8; 8] {
    number.to_le_bytes()
}

/// Fills a store with one unit for each key.
fn fill(limiter: &Limiter, keys: usize, limit: &Limit) {
    for number in 0..keys {
        assert!(check_at(limiter, NOW, key(number), limit, 1).allowed);
    }
}

#[test]
fn exactly_max_keys_are_tracked() {
    // Two sizes of slots.
    let limits = ["5 per 1h", "5 per 1h sliding-counter"].map(limit);
    let sizes = [1, 2, 63, 64, 65, 839, 840, 841, 5_000, 60_000, 200_000];
    for (max_keys, limit) in sizes.into_iter().flat_map(|size| limits.map(|limit| (size, limit))) {
        let limiter = bounded(max_keys, WhenFull::Deny);
        fill(&limiter, max_keys, &limit);
        let stats = limiter.stats();
        assert_eq!((stats.tracked_keys, stats.overflowed), (max_keys as u64, 0));
        assert!(!check_at(&limiter, NOW, "one more", &limit, 1).allowed, "{max_keys}");
        assert_eq!(limiter.stats().overflowed, 1);
        assert_eq!(limiter.stats().tracked_keys, max_keys as u64);
        for number in 0..max_keys {
            let decision = check_at(&limiter, NOW, key(number), &limit, Cost::PEEK);
            assert_eq!(decision.remaining, 4, "key {number} of {max_keys}");
        }
    }
}

/// The number of keys counts each pair of key and limit.
#[test]
fn key_under_two_limits_counts_as_two_keys() {
    let limiter = bounded(3, WhenFull::Deny);
    let (minute, hour) = (limit("5 per 1m"), limit("5 per 1h"));
    for (name, limit) in [("a", &minute), ("a", &hour), ("b", &minute)] {
        assert!(check_at(&limiter, NOW, name, limit, 1).allowed);
    }
    assert!(!check_at(&limiter, NOW, "b", &hour, 1).allowed);
    assert_eq!(limiter.stats().tracked_keys, 3);
}

/// A key under many limits does not displace other keys while the store has free slots.
#[test]
fn a_key_under_many_windows_spreads_over_the_store() {
    let limiter = bounded(100_000, WhenFull::Deny);
    for milliseconds in 60_000..80_000 {
        let limit = limit(&format!("5 per {milliseconds}ms"));
        assert!(check_at(&limiter, NOW, "one key", &limit, 1).allowed, "{limit}");
    }
    fill(&limiter, 50_000, &limit("5 per 1m"));
    assert_eq!((limiter.stats().tracked_keys, limiter.stats().overflowed), (70_000, 0));
}

/// Every tracked key keeps its count, whatever untracked keys do.
#[test]
fn an_active_key_is_never_evicted() {
    for when_full in [WhenFull::Overflow, WhenFull::Deny, WhenFull::Allow] {
        for text in [
            "5 per 1h",
            "5 per 1h sliding-log",
            "5 per 1h sliding-counter",
            "5 per 1h fixed-window",
        ] {
            let limit = limit(text);
            let limiter = bounded(500, when_full);
            fill(&limiter, 500, &limit);
            for number in 500..20_000 {
                let _ = check_at(&limiter, NOW + number as u64, key(number), &limit, 1);
            }
            for number in 0..500 {
                let decision = check_at(&limiter, NOW + 20_000, key(number), &limit, Cost::PEEK);
                assert_eq!(decision.remaining, 4, "{text} {when_full:?}");
            }
        }
    }
}

#[test]
fn untracked_keys_share_one_count_when_full() {
    for text in
        ["3 per 1h", "3 per 1h sliding-log", "3 per 1h sliding-counter", "3 per 1h token-bucket"]
    {
        let limit = limit(text);
        let limiter = bounded(10, WhenFull::Overflow);
        fill(&limiter, 10, &limit);
        let stranger = |name: &str| check_at(&limiter, NOW, name, &limit, 1);
        assert_eq!([stranger("x").remaining, stranger("y").remaining], [2, 1], "{text}");
        assert!(stranger("z").allowed, "{text}");
        assert!(!stranger("x").allowed && !stranger("w").allowed, "{text}");
        assert_eq!(limiter.stats().overflowed, 5, "{text}");
        // The shared count does not count as a tracked key.
        assert_eq!(limiter.stats().tracked_keys, 11, "{text}");
    }
}

#[test]
fn when_full_denies_or_allows_untracked_keys() {
    let limit = limit("3 per 1h");
    let denying = bounded(1, WhenFull::Deny);
    fill(&denying, 1, &limit);
    let denied = check_at(&denying, NOW, "x", &limit, 1);
    assert!(!denied.allowed);
    assert_eq!(denied.retry_after.as_micros(), Some(3_600 * S));
    assert_eq!(check_at(&denying, NOW, "x", &limit, 4).retry_after.as_micros(), None);

    let allowing = bounded(1, WhenFull::Allow);
    fill(&allowing, 1, &limit);
    for _ in 0..10 {
        assert!(check_at(&allowing, NOW, "x", &limit, 3).allowed);
    }
    assert!(!check_at(&allowing, NOW, "x", &limit, 4).allowed, "the cost can never pass");
    assert_eq!(allowing.stats().tracked_keys, 1);
    assert_eq!(allowing.stats().overflowed, 11);
}

/// A request with untracked keys reports the overflow, and is still all or nothing.
#[test]
fn request_of_untracked_keys_overflows() {
    let limit = limit("3 per 1h");
    for (when_full, allowed) in
        [(WhenFull::Overflow, true), (WhenFull::Deny, false), (WhenFull::Allow, true)]
    {
        let limiter = bounded(2, when_full);
        fill(&limiter, 2, &limit);
        let (zero, one) = (key(0), key(1));
        let known = [Check::new(&zero, &limit, 1), Check::new(&one, &limit, 1)];
        let verdict = limiter.check_all_at(at(NOW), &known).expect("valid");
        assert!(verdict.allowed && !verdict.overflowed, "{when_full:?}");
        let mixed = [known[0], Check::new("x", &limit, 1), Check::new("y", &limit, 1)];
        let verdict = limiter.check_all_at(at(NOW), &mixed).expect("valid");
        assert_eq!((verdict.allowed, verdict.overflowed), (allowed, true), "{when_full:?}");
        let left = check_at(&limiter, NOW, zero, &limit, Cost::PEEK).remaining;
        assert_eq!(left, if allowed { 0 } else { 1 }, "{when_full:?}");
    }
}

/// Two new keys and one free slot: neither key is charged if either is denied.
#[test]
fn request_with_one_free_slot_is_all_or_nothing() {
    let limit = limit("3 per 1h");
    let limiter = bounded(2, WhenFull::Deny);
    fill(&limiter, 1, &limit);
    let both = [Check::new("x", &limit, 1), Check::new("y", &limit, 1)];
    let verdict = limiter.check_all_at(at(NOW), &both).expect("valid");
    assert!(!verdict.allowed && verdict.overflowed);
    assert_eq!(check_at(&limiter, NOW, "x", &limit, 3).remaining, 0, "x was not charged");
    assert_eq!(limiter.stats().tracked_keys, 2);
}

/// With capacity for one key, expired keys must be replaced immediately, wherever their slots are.
#[test]
fn expired_keys_make_room() {
    for text in
        ["5 per 1s", "5 per 1s sliding-log", "5 per 1s sliding-counter", "5 per 1s token-bucket"]
    {
        let limit = limit(text);
        for max_keys in [1, 7, 100] {
            let limiter = bounded(max_keys, WhenFull::Deny);
            for round in 0..50 {
                let now = NOW + round as u64 * 10 * S;
                for number in 0..max_keys {
                    let name = key(round * max_keys + number);
                    let allowed = check_at(&limiter, now, name, &limit, 1).allowed;
                    assert!(allowed, "{text}: round {round}, key {number} of {max_keys}");
                }
            }
            assert_eq!(limiter.stats().overflowed, 0);
        }
    }
}

/// After the clock has stepped back, no slot stays occupied for ever.
#[test]
fn expired_keys_make_room_after_the_clock_stepped_back() {
    for text in
        ["5 per 1s", "5 per 1s sliding-log", "5 per 1s sliding-counter", "5 per 1s fixed-window"]
    {
        let limit = limit(text);
        let limiter = bounded(1, WhenFull::Deny);
        assert!(check_at(&limiter, NOW, "a", &limit, 1).allowed);
        assert!(check_at(&limiter, NOW - 500 * S, "a", &limit, 1).allowed);
        assert!(check_at(&limiter, NOW - 400 * S, "b", &limit, 1).allowed, "{text}");
    }
}

/// Keys come and go for a long time. There is always a slot for active keys.
#[test]
fn expiry_keeps_up_with_a_stream_of_new_keys() {
    for limit in ["5 per 1s", "5 per 1s sliding-counter"].map(limit) {
        let limiter = bounded(50_000, WhenFull::Deny);
        for round in 0..40_u64 {
            for number in 0..10_000_u64 {
                let name = (round * 10_000 + number).to_le_bytes();
                let allowed = check_at(&limiter, NOW + round * S, name, &limit, 1).allowed;
                assert!(allowed, "{limit}: round {round}");
            }
        }
        let stats = limiter.stats();
        assert!(stats.tracked_keys <= 50_000);
        assert_eq!(stats.overflowed, 0);
    }
}

/// Growth moves slots. No slot is lost or changed.
#[test]
fn growth_keeps_every_count() {
    let texts = ["9 per 1h", "9 per 1h sliding-counter", "9 per 1h sliding-log"];
    let limits = texts.map(limit);
    let limiter = bounded(900_000, WhenFull::Deny);
    let units = |number: usize| number as u64 % 7 + 1;
    for limit in &limits {
        for number in 0..300_000 {
            assert!(check_at(&limiter, NOW, key(number), limit, units(number)).allowed);
        }
    }
    assert_eq!(limiter.stats().tracked_keys, 900_000);
    assert_eq!(limiter.stats().log_entries, 300_000);
    for limit in &limits {
        for number in 0..300_000 {
            let left = check_at(&limiter, NOW, key(number), limit, Cost::PEEK).remaining;
            assert_eq!(left, 9 - units(number), "key {number}");
        }
    }
}

#[test]
fn sweep_removes_only_expired_keys() {
    let clock = tidegate::ManualClock::new(at(NOW));
    let limiter =
        Limiter::builder().max_keys(100_000).clock(clock.clock()).build().expect("a small store");
    let (short, long) = (limit("5 per 1s sliding-log"), limit("5 per 1h sliding-log"));
    for number in 0..10_000 {
        let _ = limiter.check(key(number), &short, 1).expect("valid");
        let _ = limiter.check(key(number), &long, 1).expect("valid");
    }
    let round = || (0..100).map(|_| limiter.sweep()).sum::<u64>();
    assert_eq!(round(), 0, "nothing has expired");
    clock.set(at(NOW + 10 * S));
    assert_eq!(round(), 10_000);
    assert_eq!(limiter.stats().tracked_keys, 10_000);
    assert_eq!(limiter.stats().log_entries, 10_000);
    clock.set(at(NOW + 3_700 * S));
    assert_eq!(round(), 10_000);
    assert_eq!((limiter.stats().tracked_keys, limiter.stats().log_entries), (0, 0));
}

/// The entries of an expired log are subtracted once, whichever state reuses its slot.
#[test]
fn replacing_an_expired_log_frees_its_entries() {
    let (short, long) = (limit("5 per 1s sliding-log"), limit("5 per 2s sliding-log"));
    let limiter = bounded(100_000, WhenFull::Deny);
    for number in 0..2_000 {
        // The states of one key are in neighbouring slots.
        let name = key(number);
        let now = NOW + number as u64 * 10 * S;
        for entry in 0..5 {
            let _ = check_at(&limiter, now + entry, name, &short, 1);
        }
        let both = [Check::new(&name, &short, 0), Check::new(&name, &long, 1)];
        let _ = limiter.check_all_at(at(now + 5 * S), &both).expect("valid");
    }
    for number in 0..2_000 {
        limiter.reset(key(number), &short);
        limiter.reset(key(number), &long);
    }
    assert_eq!(limiter.stats().log_entries, 0);
}

/// With a grace period an expired key stays, for times that arrive late.
#[test]
fn grace_keeps_keys_for_late_times() {
    let late = |limit: &Limit, grace_s: u64| {
        let builder = Limiter::builder().max_keys(1).when_full(WhenFull::Deny);
        let builder = builder.grace(std::time::Duration::from_secs(grace_s));
        let limiter = builder.build().expect("a small store");
        assert!(check_at(&limiter, NOW, "a", limit, 5).allowed);
        let other = check_at(&limiter, NOW + 20 * S, "b", limit, 1).allowed;
        (other, check_at(&limiter, NOW, "a", limit, 1).allowed)
    };
    for limit in ["5 per 1s", "5 per 1s sliding-counter"].map(limit) {
        assert_eq!(late(&limit, 0), (true, false), "b has the slot; a has none");
        assert_eq!(late(&limit, 60), (false, false), "a is still tracked, and used up");
    }
}

#[test]
fn huge_max_keys_is_an_error() {
    for max_keys in [usize::MAX, usize::MAX / 2, 1 << 50] {
        let error = Limiter::builder()
            .max_keys(max_keys)
            .build()
            .expect_err("more memory than any machine has");
        assert_eq!(error.max_keys, max_keys);
        assert!(error.to_string().contains(&format!("max_keys = {max_keys}")), "{error}");
    }
}

#[test]
fn store_of_zero_keys_tracks_none() {
    let limit = limit("3 per 1h");
    let limiter = bounded(0, WhenFull::Deny);
    assert!(!check_at(&limiter, NOW, "x", &limit, 1).allowed);
    assert_eq!(limiter.stats().tracked_keys, 0);
}
