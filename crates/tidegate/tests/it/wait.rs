//! Waiting in order: exact to the microsecond, and without effect if cancelled.

use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::{Check, CheckError, Clock, Limit, Limiter, RetryAfter, StoreError, Verdict};

use crate::common::{NOW, S, at, limit, limiter};
use crate::futures::{Polled, Started, block_on};
use crate::generators::cases;

type WaitResult = Result<Verdict, StoreError>;

const LONG: Duration = Duration::from_secs(3_600);

/// Starts to wait, and panics if the request is decided immediately.
fn join<'a>(
    limiter: &'a Limiter,
    checks: &'a [Check<'a>],
    max: Duration,
) -> Polled<'a, WaitResult> {
    match Polled::start(limiter.wait(checks, max)) {
        Started::Pending(waiting) => waiting,
        Started::Ready(ready) => panic!("ready at once: {ready:?}"),
    }
}

/// Returns the verdict of a request that must not wait.
fn at_once(limiter: &Limiter, checks: &[Check<'_>], max: Duration) -> Verdict {
    match Polled::start(limiter.wait(checks, max)) {
        Started::Pending(_) => panic!("the request waits"),
        Started::Ready(ready) => ready.expect("valid"),
    }
}

fn admitted(verdict: Option<WaitResult>) -> bool {
    verdict.is_some_and(|verdict| verdict.expect("valid").allowed)
}

#[test]
fn request_that_passes_does_not_wait() {
    let (limiter, _) = limiter();
    let limit = limit("2 per 10s sliding-log");
    let checks = [Check::new("a", &limit, 2)];
    assert!(at_once(&limiter, &checks, Duration::ZERO).allowed);
    assert_eq!(limiter.peek("a", &limit).expect("valid").remaining, 0);
}

#[test]
fn a_waiter_passes_at_the_exact_moment() {
    let (limiter, clock) = limiter();
    for text in ["1 per 10s sliding-log", "1 per 10s", "1 per 10s token-bucket"] {
        let limit = limit(text);
        let checks = [Check::new("a", &limit, 1)];
        let start = clock.now().as_micros();
        assert!(at_once(&limiter, &checks, LONG).allowed);
        let wait = limiter.peek("a", &limit).expect("valid").retry_after;
        let wait = wait.as_micros().expect("a finite wait");
        let mut waiting = join(&limiter, &checks, LONG);
        clock.set(at(start + wait - 1));
        assert_eq!(waiting.wakes(), 0, "{text}: the waiter passed too early");
        assert!(waiting.poll().is_none(), "{text}: a spurious poll has no effect");
        clock.set(at(start + wait));
        assert_eq!(waiting.wakes(), 1, "{text}");
        assert!(admitted(waiting.poll()), "{text}");
        clock.set(at(start + 100 * S));
    }
}

#[test]
fn waiters_pass_in_order() {
    let (limiter, clock) = limiter();
    let limit = limit("1 per 10s sliding-log");
    let checks = [Check::new("a", &limit, 1)];
    assert!(at_once(&limiter, &checks, LONG).allowed);
    let mut queue: Vec<Polled<'_, WaitResult>> =
        (0..4).map(|_| join(&limiter, &checks, LONG)).collect();
    for round in 1..=4 {
        clock.set(at(NOW + round * 10 * S));
        // The last one is polled first, and is still last.
        for later in queue.iter_mut().skip(1).rev() {
            assert!(later.poll().is_none(), "turn {round}");
        }
        assert!(admitted(queue.remove(0).poll()), "turn {round}");
    }
}

#[test]
fn wait_beyond_max_wait_is_denied_immediately() {
    let (limiter, clock) = limiter();
    let limit = limit("1 per 10s sliding-log");
    let checks = [Check::new("a", &limit, 1)];
    assert!(at_once(&limiter, &checks, LONG).allowed);
    clock.advance(Duration::from_secs(3));
    let refused = at_once(&limiter, &checks, Duration::from_micros(6_999_999));
    assert!(!refused.allowed);
    assert_eq!(refused.retry_after(), RetryAfter::Micros(7 * S));
    let mut first = join(&limiter, &checks, Duration::from_micros(7_000_000));
    // Behind another waiter the wait is ten seconds longer.
    let refused = at_once(&limiter, &checks, Duration::from_micros(16_999_999));
    assert!(!refused.allowed);
    assert_eq!(refused.retry_after(), RetryAfter::Micros(17 * S));
    let mut second = join(&limiter, &checks, Duration::from_micros(17_000_000));
    clock.set(at(NOW + 10 * S));
    assert!(admitted(first.poll()));
    clock.set(at(NOW + 20 * S));
    assert!(admitted(second.poll()));
}

#[test]
fn impossible_cost_is_denied_immediately() {
    let (limiter, _) = limiter();
    let (limit, none) = (limit("2 per 10s sliding-log"), limit("0 per 10s"));
    let (two, three) = ([Check::new("a", &limit, 2)], [Check::new("a", &limit, 3)]);
    assert_eq!(at_once(&limiter, &three, LONG).retry_after(), RetryAfter::Never);
    assert!(at_once(&limiter, &two, LONG).allowed);
    let _queue = join(&limiter, &two, LONG);
    assert_eq!(at_once(&limiter, &three, LONG).retry_after(), RetryAfter::Never);
    let nothing = [Check::new("a", &none, 1)];
    assert_eq!(at_once(&limiter, &nothing, LONG).retry_after(), RetryAfter::Never);
    let held = self::limit("2 concurrent");
    let checks = [Check::new("a", &held, 1)];
    assert_eq!(block_on(limiter.wait(&checks, LONG)), Err(CheckError::NeedsPermit.into()));
}

/// A dropped waiter, first or in the middle, lets the next pass and is not charged.
#[test]
fn dropped_waiter_leaves_the_queue_uncharged() {
    for gone in 0..3 {
        let (limiter, clock) = limiter();
        let limit = limit("1 per 10s sliding-log");
        let checks = [Check::new("a", &limit, 1)];
        assert!(at_once(&limiter, &checks, LONG).allowed);
        let mut queue: Vec<Polled<'_, WaitResult>> =
            (0..3).map(|_| join(&limiter, &checks, LONG)).collect();
        let wakes = queue.get(1).map_or(0, Polled::wakes);
        drop(queue.remove(gone));
        if gone == 0 {
            assert_eq!(queue[0].wakes(), wakes + 1, "the next waiter is woken to become the first");
        }
        for round in 1..=2 {
            for waiting in &mut queue {
                assert!(waiting.poll().is_none());
            }
            clock.set(at(NOW + round * 10 * S));
            assert!(queue[0].wakes() > 0);
            assert!(admitted(queue.remove(0).poll()), "{gone} left, turn {round}");
        }
        clock.set(at(NOW + 30 * S));
        assert!(at_once(&limiter, &checks, Duration::ZERO).allowed, "the queue is removed");
        assert_eq!(limiter.stats().log_entries, 1);
    }
}

/// The first waiter is dropped exactly when it would pass.
#[test]
fn waiter_dropped_when_due_wakes_the_next() {
    let (limiter, clock) = limiter();
    let limit = limit("1 per 10s sliding-log");
    let checks = [Check::new("a", &limit, 1)];
    assert!(at_once(&limiter, &checks, LONG).allowed);
    let first = join(&limiter, &checks, LONG);
    let mut second = join(&limiter, &checks, LONG);
    clock.set(at(NOW + 10 * S));
    assert_eq!((first.wakes(), second.wakes()), (1, 0));
    drop(first);
    assert_eq!(second.wakes(), 1);
    assert!(admitted(second.poll()), "the units that the first waiter did not take");
}

#[test]
fn a_plain_check_in_between_makes_a_waiter_wait_longer() {
    let (limiter, clock) = limiter();
    let limit = limit("1 per 10s sliding-log");
    let checks = [Check::new("a", &limit, 1)];
    assert!(at_once(&limiter, &checks, LONG).allowed);
    let mut patient = join(&limiter, &checks, Duration::from_secs(20));
    clock.set(at(NOW + 10 * S));
    assert!(limiter.check("a", &limit, 1).expect("valid").allowed, "the plain check was quicker");
    assert!(patient.poll().is_none());
    clock.set(at(NOW + 20 * S));
    assert!(admitted(patient.poll()));

    let mut impatient = join(&limiter, &checks, Duration::from_secs(15));
    let mut behind = join(&limiter, &checks, Duration::from_secs(21));
    clock.set(at(NOW + 30 * S));
    assert!(limiter.check("a", &limit, 1).expect("valid").allowed);
    let verdict = impatient.poll().expect("ten more seconds exceed max_wait").expect("valid");
    assert_eq!((verdict.allowed, verdict.retry_after()), (false, RetryAfter::Micros(10 * S)));
    assert!(behind.poll().is_none());
    clock.set(at(NOW + 40 * S));
    assert!(admitted(behind.poll()));
}

/// `max_wait` also ends for a waiter behind others.
#[test]
fn waiter_is_denied_after_max_wait_behind_others() {
    let (limiter, clock) = limiter();
    let limit = limit("1 per 10s sliding-log");
    let checks = [Check::new("a", &limit, 1)];
    assert!(at_once(&limiter, &checks, LONG).allowed);
    let mut first = join(&limiter, &checks, LONG);
    let mut second = join(&limiter, &checks, Duration::from_secs(20));
    clock.set(at(NOW + 10 * S));
    assert!(limiter.check("a", &limit, 1).expect("valid").allowed);
    assert!(first.poll().is_none());
    clock.set(at(NOW + 20 * S));
    assert!(limiter.check("a", &limit, 1).expect("valid").allowed);
    assert!(first.poll().is_none());
    assert_eq!(second.wakes(), 1, "max_wait has passed");
    let verdict = second.poll().expect("the deadline has passed").expect("valid");
    assert_eq!((verdict.allowed, verdict.retry_after()), (false, RetryAfter::Micros(20 * S)));
    clock.set(at(NOW + 30 * S));
    assert!(admitted(first.poll()));
}

#[test]
fn keys_do_not_wait_for_each_other() {
    let (limiter, clock) = limiter();
    let limit = limit("1 per 10s sliding-log");
    let (a, b) = ([Check::new("a", &limit, 1)], [Check::new("b", &limit, 1)]);
    assert!(at_once(&limiter, &a, LONG).allowed);
    let mut waiting = join(&limiter, &a, LONG);
    assert!(at_once(&limiter, &b, Duration::ZERO).allowed);
    clock.advance(Duration::from_secs(5));
    let mut other = join(&limiter, &b, LONG);
    clock.set(at(NOW + 10 * S));
    assert!(other.poll().is_some_and(|verdict| verdict.is_ok_and(|v| v.allowed)));
    assert!(admitted(waiting.poll()));
}

/// With several limits the last one to pass determines the wait. The order of the checks does not
/// matter.
#[test]
fn a_waiter_waits_for_all_its_limits() {
    let (limiter, clock) = limiter();
    let (short, long) = (limit("1 per 10s sliding-log"), limit("2 per 30s sliding-log"));
    let (one, other) = (Check::new("a", &short, 1), Check::new("a", &long, 1));
    let (forwards, backwards) = ([one, other], [other, one]);
    assert!(at_once(&limiter, &forwards, LONG).allowed);
    let mut second = join(&limiter, &backwards, LONG);
    let mut third = join(&limiter, &forwards, LONG);
    clock.set(at(NOW + 10 * S));
    assert!(third.poll().is_none());
    assert!(admitted(second.poll()), "the short limit has units again");
    clock.set(at(NOW + 30 * S - 1));
    assert!(third.poll().is_none());
    clock.set(at(NOW + 30 * S));
    assert!(admitted(third.poll()), "the long limit has units again");
}

#[test]
fn a_queue_is_bounded() {
    let (limiter, _) = limiter();
    let limit = limit("1 per 1s sliding-log");
    let checks = [Check::new("a", &limit, 1)];
    assert!(at_once(&limiter, &checks, LONG).allowed);
    let mut queue = Vec::new();
    for index in 0..1_200 {
        match Polled::start(limiter.wait(&checks, LONG)) {
            Started::Pending(waiting) => queue.push(waiting),
            Started::Ready(verdict) => {
                let verdict = verdict.expect("valid");
                assert!(index >= 1_024 && !verdict.allowed && verdict.queue_full, "{index}");
            }
        }
    }
    assert_eq!(queue.len(), 1_024);
    // A rejected caller gets the minimum wait, without a forecast of the queue, which would
    // allocate memory for each waiter.
    let mut verdict = None;
    let measured = allocation_counter::measure(|| {
        verdict = Some(at_once(&limiter, &checks, LONG));
    });
    assert!(measured.bytes_total < 1_024, "{} bytes", measured.bytes_total);
    let retry_after = verdict.expect("a verdict").retry_after();
    assert_eq!(retry_after.as_micros(), Some(1_024 * S));
}

proptest! {
    #![proptest_config(cases(200))]

    /// The forecast behind a queue is exact to the microsecond.
    #[test]
    fn the_forecast_behind_a_queue_is_exact(
        algorithm in prop::sample::select(vec![
            "sliding-log", "sliding-window", "sliding-counter", "fixed-window", "token-bucket",
        ]),
        count in 1_u64..12,
        used in prop::collection::vec((0_u64..2 * S, 1_u64..4), 0..10),
        costs in prop::collection::vec(1_u64..12, 1..8),
    ) {
        let limit = limit(&format!("{count} per 1s {algorithm}"));
        let (limiter, clock) = limiter();
        for (gap, cost) in used {
            clock.advance(Duration::from_micros(gap));
            let _ = limiter.check("a", &limit, cost).expect("valid");
        }
        limiter.charge("a", &limit, count).expect("valid");
        let start = clock.now().as_micros();
        let costs: Vec<u64> = costs.into_iter().map(|cost| cost.min(count)).collect();
        let checks: Vec<[Check<'_>; 1]> =
            costs.iter().map(|&cost| [Check::new("a", &limit, cost)]).collect();
        let mut queue = Vec::new();
        for check in &checks {
            let forecast = at_once(&limiter, check, Duration::ZERO).retry_after();
            let wait = forecast.as_micros().expect("within the count");
            queue.push((wait, join(&limiter, check, Duration::from_micros(wait))));
        }
        let mut passed = 0;
        for (wait, mut waiting) in queue {
            if wait > passed {
                clock.set(at(start + wait - 1));
                prop_assert!(waiting.poll().is_none());
            }
            clock.set(at(start + wait));
            prop_assert!(admitted(waiting.poll()));
            passed = wait;
        }
    }
}

/// With real clocks and threads every waiter passes.
#[test]
fn waiters_pass_on_real_clocks() {
    for clock in [Clock::precise(), Clock::coarse()] {
        let limiter =
            Limiter::builder().max_keys(10_000).clock(clock).build().expect("a small store");
        let limit: Limit = limit("2 per 20ms sliding-log");
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..4 {
                        let checks = [Check::new("a", &limit, 1)];
                        let verdict = block_on(limiter.wait(&checks, LONG)).expect("valid");
                        assert!(verdict.allowed);
                    }
                });
            }
        });
    }
}
