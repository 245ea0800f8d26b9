//! Wakes tasks at a time, whatever runtime they run on.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use tidegate_core::Timestamp;

/// Tasks that wait for a time, soonest first.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: BTreeMap<TimerKey, Waker>,
    /// Tells timers of the same time apart.
    next: u64,
}

/// Names a timer, to call it off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerKey {
    at: Timestamp,
    number: u64,
}

impl Timers {
    /// Wakes `waker` once these timers are fired at `at` or later.
    pub(crate) fn add(&self, at: Timestamp, waker: Waker) -> TimerKey {
        let mut queue = self.queue();
        let key = TimerKey { at, number: queue.next };
        queue.next += 1;
        queue.waiting.insert(key, waker);
        drop(queue);
        self.changed.notify_one();
        key
    }

    /// Calls a timer off; one that has fired is no longer there.
    pub(crate) fn cancel(&self, key: TimerKey) {
        self.queue().waiting.remove(&key);
    }

    /// Wakes everybody whose time has come.
    pub(crate) fn fire(&self, now: Timestamp) {
        let later = TimerKey { at: now.plus_micros(1), number: 0 };
        let mut queue = self.queue();
        let rest = queue.waiting.split_off(&later);
        let due = std::mem::replace(&mut queue.waiting, rest);
        // Woken tasks may come straight back here.
        drop(queue);
        due.into_values().for_each(Waker::wake);
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The timers of real clocks: one thread for the process, started when first
/// needed, that sleeps until the soonest is due. Their time is [`process_time`].
pub(crate) fn process_timers() -> &'static Timers {
    static TIMERS: OnceLock<Timers> = OnceLock::new();
    static DRIVER: Once = Once::new();
    let timers = TIMERS.get_or_init(Timers::default);
    DRIVER.call_once(|| {
        let spawned = thread::Builder::new().name("tidegate-timer".into()).spawn(|| drive(timers));
        // Without a thread nobody would ever be woken; there is nothing sensible left to do.
        spawned.expect("tidegate: cannot start the timer thread");
    });
    timers
}

/// Monotonic time since the process first asked for it.
pub(crate) fn process_time() -> Timestamp {
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed();
    Timestamp::from_micros(u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX))
}

fn drive(timers: &Timers) {
    loop {
        timers.fire(process_time());
        let queue = timers.queue();
        let soonest = queue.waiting.first_key_value().map(|(key, _)| key.at);
        let wait_us = soonest.map(|at| at.as_micros().saturating_sub(process_time().as_micros()));
        // Woken early or for nothing, the loop looks again.
        match wait_us {
            Some(us) => drop(timers.changed.wait_timeout(queue, Duration::from_micros(us))),
            None => drop(timers.changed.wait(queue)),
        }
    }
}
