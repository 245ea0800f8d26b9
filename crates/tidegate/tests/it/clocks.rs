//! The real and the manual clocks.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate::{Clock, ManualClock};

use crate::common::{NOW, S, at};

#[test]
fn manual_clock_shows_the_time_it_was_set_to() {
    let manual = ManualClock::new(at(NOW));
    let (clock, twin) = (manual.clock(), manual.clone());
    assert_eq!((clock.now(), clock.resolution()), (at(NOW), Duration::ZERO));
    twin.advance(Duration::from_secs(2));
    assert_eq!(clock.now(), at(NOW + 2 * S));
    manual.set(at(NOW - S));
    assert_eq!((clock.now(), twin.now()), (at(NOW - S), at(NOW - S)));
}

/// A later read never returns an earlier time, on any thread.
#[test]
fn real_clocks_never_run_backwards() {
    for clock in [Clock::precise(), Clock::coarse()] {
        let latest = Mutex::new(clock.now());
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..5_000 {
                        let mut latest = latest.lock().expect("no panic");
                        let now = clock.now();
                        assert!(now >= *latest, "{clock:?}");
                        *latest = now;
                        drop(latest);
                        if round % 1_000 == 0 {
                            thread::sleep(Duration::from_millis(1));
                        }
                    }
                });
            }
        });
    }
}

/// The clocks of a process agree with the time of day of the system.
#[test]
fn real_clocks_show_the_time_of_day() {
    let wall = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        u64::try_from(since.as_micros()).expect("before the year 586912")
    };
    for clock in [Clock::precise(), Clock::coarse()] {
        let before = wall();
        let now = clock.now().as_micros();
        // A minute of tolerance, in case the time of the machine is being set.
        assert!(now.abs_diff(before) < 60 * S, "{clock:?}");
    }
}

/// The coarse clock stops when it is not read, and continues when it is read again.
#[test]
fn coarse_clock_ticks_again_after_idling() {
    let clock = Clock::coarse();
    for _ in 0..3 {
        let before = clock.now().as_micros();
        let pause = Duration::from_millis(250);
        thread::sleep(pause);
        // A busy machine may delay the thread of the clock, but it must catch up.
        let caught_up = (0..10_000).any(|_| {
            thread::sleep(Duration::from_millis(1));
            clock.now().as_micros() >= before + 250_000
        });
        assert!(caught_up, "{clock:?}");
    }
}
