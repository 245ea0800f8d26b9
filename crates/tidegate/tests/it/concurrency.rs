//! Concurrent threads: the units that they are admitted together match some sequential order.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use tidegate::{Check, Clock, Cost, Limit, Limiter, WhenFull};

use crate::common::{limit, limiter};

const ALGORITHMS: [&str; 5] =
    ["sliding-log", "sliding-window", "sliding-counter", "fixed-window", "token-bucket"];

/// Runs `work` on `threads` threads at once, and returns the results.
fn run_on_threads<T: Send>(threads: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(threads);
    thread::scope(|scope| {
        let start = |thread| {
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move || {
                barrier.wait();
                work(thread)
            })
        };
        let running: Vec<_> = (0..threads).map(start).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn one_key_admits_exactly_its_limit_under_threads() {
    for threads in [2, 4, 8] {
        for algorithm in ALGORITHMS {
            let limit = limit(&format!("1000 per 1h {algorithm}"));
            let (limiter, _) = limiter();
            let admitted = run_on_threads(threads, |_| {
                let check = || limiter.check("key", &limit, 1).expect("valid");
                (0..2_000).filter(|_| check().allowed).count()
            });
            assert_eq!(admitted.iter().sum::<usize>(), 1_000, "{algorithm}, {threads} threads");
        }
    }
}

/// With costs above 1, the limit is not exceeded, and fewer units than one cost are left.
#[test]
fn one_key_admits_costs_within_its_limit() {
    for algorithm in ALGORITHMS {
        let limit = limit(&format!("1000 per 1h {algorithm}"));
        let (limiter, _) = limiter();
        let admitted = run_on_threads(4, |thread| {
            let cost = thread as u64 + 1;
            let check = || limiter.check("key", &limit, cost).expect("valid");
            (0..1_000).filter(|_| check().allowed).count() as u64 * cost
        });
        assert_eq!(admitted.iter().sum::<u64>(), 1_000, "{algorithm}: cost 1 uses up the rest");
    }
}

/// Concurrent charges and refunds add up.
#[test]
fn concurrent_charges_and_refunds_add_up() {
    for algorithm in ALGORITHMS {
        let limit = limit(&format!("1000000 per 1h {algorithm}"));
        let (limiter, _) = limiter();
        run_on_threads(4, |_| {
            for _ in 0..1_000 {
                let _ = limiter.check("key", &limit, 3).expect("valid");
                let _ = limiter.check("key", &limit, Cost::Force(2)).expect("valid");
                let _ = limiter.check("key", &limit, Cost::Refund(1)).expect("valid");
            }
        });
        let left = limiter.peek("key", &limit).expect("valid").remaining;
        assert_eq!(left, 1_000_000 - 4 * 1_000 * 4, "{algorithm}");
    }
}

/// Requests over the same keys in opposite orders do not deadlock, and are all or nothing.
#[test]
fn requests_in_opposite_orders_are_all_or_nothing() {
    let (wide, narrow) = (limit("100000 per 1h"), limit("700 per 1h sliding-log"));
    let (limiter, _) = limiter();
    let names = ["a", "b", "c", "d", "e"];
    let admitted = run_on_threads(4, |thread| {
        let mut checks: Vec<Check<'_>> =
            names.iter().map(|name| Check::new(name, &wide, 1)).collect();
        checks.push(Check::new("c", &narrow, 1));
        if thread % 2 == 1 {
            checks.reverse();
        }
        checks.rotate_left(thread);
        (0..1_000).filter(|_| limiter.check_all(&checks).expect("valid").allowed).count()
    });
    assert_eq!(admitted.iter().sum::<usize>(), 700);
    for name in names {
        let left = limiter.peek(name, &wide).expect("valid").remaining;
        assert_eq!(left, 100_000 - 700, "{name} was charged by every admitted request");
    }
}

/// For overlapping pairs, the count of each key matches its admitted requests.
#[test]
fn overlapping_requests_add_up() {
    let limit = limit("500 per 1h");
    let (limiter, _) = limiter();
    let names: Vec<String> = (0..4).map(|number| format!("key {number}")).collect();
    let admitted = run_on_threads(4, |thread| {
        let (one, other) = (&names[thread], &names[(thread + 1) % 4]);
        let checks = [Check::new(one, &limit, 1), Check::new(other, &limit, 2)];
        (0..1_000).filter(|_| limiter.check_all(&checks).expect("valid").allowed).count() as u64
    });
    for (key, name) in names.iter().enumerate() {
        let used = admitted[key] + 2 * admitted[(key + 3) % 4];
        let left = limiter.peek(name, &limit).expect("valid").remaining;
        assert_eq!(left, 500 - used, "{name}");
    }
}

/// Shards grow while keys in them are checked.
#[test]
fn keys_are_added_while_others_are_checked() {
    for limit in ["1000000 per 1h", "1000000 per 1h sliding-counter"].map(limit) {
        add_keys_while_others_are_checked(limit);
    }
}

fn add_keys_while_others_are_checked(limit: Limit) {
    let limiter = Limiter::builder().max_keys(100_000).build().expect("capacity for the keys");
    let key = |thread: usize, number: usize| format!("{thread}/{number}");
    let checked = run_on_threads(4, |thread| {
        let mut admitted = 0;
        for number in 0..25_000 {
            // Odd threads add keys. Even threads check a few keys repeatedly, and sometimes a
            // batch.
            let name = if thread % 2 == 1 { key(thread, number) } else { key(0, number % 10) };
            admitted += u64::from(limiter.check(&name, &limit, 1).expect("valid").allowed);
            if number % 1_000 == 0 {
                let mut decisions = Vec::new();
                let batch = [Check::new("batch", &limit, 1); 50];
                limiter.check_batch(&batch, &mut decisions).expect("valid");
            }
        }
        admitted
    });
    assert_eq!(checked, [25_000; 4]);
    let used = |name: &str| 1_000_000 - limiter.peek(name, &limit).expect("valid").remaining;
    for thread in [1, 3] {
        assert!((0..25_000).all(|number| used(&key(thread, number)) == 1), "thread {thread}");
    }
    assert_eq!((0..10).map(|number| used(&key(0, number))).sum::<u64>(), 50_000);
    assert_eq!(used("batch"), 4 * 25 * 50);
    assert_eq!(limiter.stats().tracked_keys, 50_000 + 10 + 1);
}

/// Two threads never get the last slot of a full store, and no active key is dropped.
#[test]
fn max_keys_holds_under_threads() {
    let limit = limit("5 per 1h");
    let limiter = Limiter::builder().max_keys(1_000).when_full(WhenFull::Deny);
    let limiter = limiter.build().expect("a small store");
    let admitted = run_on_threads(4, |thread| {
        let names = (0..1_000).map(|number| format!("{thread}/{number}"));
        names.filter(|name| limiter.check(name, &limit, 1).expect("valid").allowed).collect()
    });
    let admitted: Vec<String> = admitted.into_iter().flat_map(|names: Vec<String>| names).collect();
    assert!(admitted.len() <= 1_000 && admitted.len() > 990, "{}", admitted.len());
    assert_eq!(limiter.stats().tracked_keys, admitted.len() as u64);
    for name in &admitted {
        assert_eq!(limiter.peek(name, &limit).expect("valid").remaining, 4);
    }
}

/// Several threads with one id are charged once.
#[test]
fn id_is_charged_once_under_threads() {
    let limit = limit("1000 per 1h");
    let (limiter, _) = limiter();
    let verdicts = run_on_threads(8, |_| {
        let checks = [Check::new("key", &limit, 1)];
        let ids = (0..100_u32).map(u32::to_le_bytes);
        let decide = |id: [u8; 4]| limiter.decide(&tidegate::Request::new(&checks).with_id(&id));
        ids.map(|id| decide(id).expect("valid").decisions()[0].remaining).collect::<Vec<_>>()
    });
    assert_eq!(limiter.peek("key", &limit).expect("valid").remaining, 900);
    assert!(
        verdicts.iter().all(|verdict| *verdict == verdicts[0]),
        "all threads got the same verdict"
    );
}

/// On real clocks, each window of the limiter's time admits at most the limit.
#[test]
fn real_clocks_keep_the_limit() {
    let limit = limit("50 per 20ms sliding-log");
    for clock in [Clock::precise(), Clock::coarse()] {
        let limiter = Limiter::builder()
            .max_keys(10_000)
            .clock(clock.clone())
            .build()
            .expect("a small store");
        let (own_start, start) = (clock.now().as_micros(), Instant::now());
        let admitted = run_on_threads(3, |_| {
            let mut admitted = 0;
            while start.elapsed() < Duration::from_millis(200) {
                let decision = limiter.check("key", &limit, 1).expect("valid");
                admitted += u64::from(decision.allowed);
                assert!(decision.remaining < 50 && decision.reset_after.as_micros() <= 20_000);
            }
            admitted
        });
        let total = admitted.iter().sum::<u64>();
        // The number of windows that cover the elapsed time.
        let windows = (clock.now().as_micros() - own_start) / 20_000 + 1;
        assert!((50..=windows * 50).contains(&total), "{total} in {windows} windows");
    }
}
