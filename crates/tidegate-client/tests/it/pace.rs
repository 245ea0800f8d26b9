//! Pacing of one client. tidegate-bench simulates many clients that share a limit.

use std::time::Duration;

use tidegate_client::{Pace, Usage};

fn s(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn left(remaining: u64, limit: u64, window: f64) -> Usage {
    Usage { limit, remaining, window: Some(s(window)), reset: Some(s(window)) }
}

/// A client that was admitted 50 times under a limit of 100 per 10 s.
fn busy() -> (Pace, Duration) {
    let mut pace = Pace::new(s(30.0));
    let now = pace.turn(s(100.0), 0.5);
    for remaining in 50..100 {
        pace.admitted(now, &left(remaining, 100, 10.0));
    }
    (pace, now)
}

/// Returns the time until the next turn after an answer, without jitter.
fn pause(pace: &mut Pace, now: Duration) -> f64 {
    let mut copy = *pace;
    (copy.turn(now, 0.5) - now).as_secs_f64()
}

#[test]
fn pauses_when_less_than_a_tenth_is_left() {
    // (remaining of 100 in 10 s, the pause)
    for (remaining, expected) in [(99, 0.0), (10, 0.0), (9, 1.0), (4, 2.0), (1, 5.0), (0, 10.0)] {
        let (mut pace, now) = busy();
        pace.admitted(now, &left(remaining, 100, 10.0));
        let actual = pause(&mut pace, now);
        assert!((actual - expected).abs() < 1e-6, "{remaining} left: {actual} s, not {expected}");
    }
}

#[test]
fn starts_with_the_rate_it_was_admitted_at() {
    let mut pace = Pace::new(s(30.0));
    let now = pace.turn(s(100.0), 0.5);
    pace.admitted(now, &left(9, 100, 10.0));
    assert!((pause(&mut pace, now) - 10.0).abs() < 1e-6, "one in a window");
}

#[test]
fn spaces_concurrent_requests_and_reuses_unused_times() {
    let (mut pace, now) = busy();
    pace.admitted(now, &left(9, 100, 10.0));
    let turns: Vec<_> = (0..3).map(|_| pace.turn(now, 0.5)).collect();
    assert_eq!(turns, [now + s(1.0), now + s(2.0), now + s(3.0)]);
    pace.give_back(turns[0]);
    pace.give_back(turns[2]);
    assert_eq!(pace.turn(now, 0.5), turns[2], "the latest is free again, the first is not");
}

#[test]
fn spreads_retries_over_a_window_after_the_requested_wait() {
    for (chance, expected) in [(0.0, 2.0), (0.5, 2.5), (1.0, 3.0)] {
        let mut pace = Pace::new(s(30.0));
        let now = s(100.0);
        pace.denied(now, Some(s(2.0)), Some(&left(0, 100, 1.0)), chance);
        let actual = pause(&mut pace, now);
        assert!((actual - expected).abs() < 1e-6, "chance {chance}: {actual} s");
    }
}

#[test]
fn slows_down_by_whole_windows_and_speeds_up_again() {
    let mut pace = Pace::new(s(30.0));
    let mut now = s(100.0);
    let mut pauses = Vec::new();
    for _ in 0..5 {
        now = pace.turn(now + s(5.0), 0.5);
        pace.denied(now, None, Some(&left(0, 100, 1.0)), 1.0);
        pauses.push(pause(&mut pace, now).round());
    }
    assert_eq!(pauses, [1.0, 3.0, 5.0, 10.0, 20.0]);
    for _ in 0..40 {
        now = pace.turn(now, 0.5);
        pace.admitted(now, &left(90, 100, 1.0));
    }
    assert!(pause(&mut pace, now) < 0.1, "nearly all is idle, and still {:?}", pace);
}

#[test]
fn bounds_or_ignores_nonsensical_reports() {
    let longest = s(30.0);
    let day = Duration::from_secs(86_400);
    let rows = [
        Usage { limit: 0, remaining: 0, window: Some(day), reset: Some(day) },
        Usage { limit: 1, remaining: 0, window: Some(Duration::MAX), reset: Some(Duration::MAX) },
        Usage { limit: u64::MAX, remaining: 0, window: Some(Duration::ZERO), reset: None },
        Usage { limit: u64::MAX, remaining: u64::MAX, window: None, reset: None },
        Usage {
            limit: 1,
            remaining: u64::MAX,
            window: Some(Duration::from_nanos(1)),
            reset: Some(Duration::ZERO),
        },
    ];
    for usage in rows {
        for is_denied in [false, true] {
            let mut pace = Pace::new(longest);
            let mut now = s(100.0);
            for _ in 0..100 {
                if is_denied {
                    pace.denied(now, usage.reset, Some(&usage), 1.0);
                } else {
                    pace.admitted(now, &usage);
                }
                let turn = pace.turn(now, 1.0);
                // A pause varies by a fiftieth.
                assert!(turn - now <= longest.mul_f64(1.03), "{usage:?}: {:?}", turn - now);
                now = turn;
            }
        }
    }
}

#[test]
fn uses_the_reset_if_there_is_no_window() {
    let mut pace = Pace::new(s(30.0));
    let now = pace.turn(s(100.0), 0.5);
    for (remaining, expected) in [(40, 0.0), (30, 0.0), (20, 0.0), (4, 5.0)] {
        let usage = Usage { limit: 100, remaining, window: None, reset: Some(s(20.0)) };
        pace.admitted(now, &usage);
        let actual = pause(&mut pace, now);
        assert!(
            (actual - expected).abs() < 1e-6,
            "{remaining} left: {actual} s, after so few requests"
        );
    }
}

#[test]
fn stops_pausing_when_a_long_window_is_reset() {
    let mut pace = Pace::new(s(30.0));
    let now = pace.turn(s(100.0), 0.5);
    pace.admitted(now, &left(1, 5000, 3600.0));
    assert!((pause(&mut pace, now) - 30.0).abs() < 1e-6, "as long as it may be");
    let now = pace.turn(now, 0.5);
    pace.admitted(now, &left(4999, 5000, 3600.0));
    assert_eq!(pace.turn(now, 0.5), now);
}
