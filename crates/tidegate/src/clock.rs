//! Clocks and timers.
//!
//! Algorithms take the time as an argument, and a store reads its clock when it decides. It does so
//! after it has locked or seized a state, so that the times of one state never run backwards. The
//! wall clock is read once, when a clock is created; after that, time is monotonic.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::task::Waker;
use std::thread::Thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fmt, thread};

use tidegate_core::Timestamp;

/// The interval at which the coarse clock ticks.
const TICK: Duration = Duration::from_micros(500);
/// The number of ticks after which the thread of the coarse clock checks whether the clock is still
/// read, and sleeps if it is not.
const TICKS_PER_ROUND: u32 = 200;

/// A source of time for a limiter.
#[derive(Clone)]
pub struct Clock(ClockSource);

#[derive(Clone)]
enum ClockSource {
    Coarse(&'static Ticker),
    Precise(Arc<Anchor>),
    Manual(ManualClock),
}

impl Clock {
    /// Returns the default clock: one load from memory, with a resolution of 0.5 ms.
    ///
    /// A thread that the whole process shares stores the time every 0.5 ms while the clock is read,
    /// and sleeps otherwise. If the machine is too busy to run that thread, the clock stops for as
    /// long. Requests that are admitted in that time count from the last tick, so in real time a
    /// window may be shorter by that much. If that matters, use [`Clock::precise`].
    pub fn coarse() -> Self {
        static TICKER: OnceLock<Ticker> = OnceLock::new();
        Clock(ClockSource::Coarse(TICKER.get_or_init(Ticker::new)))
    }

    /// Returns the monotonic clock of the operating system, which is read for every decision. It is
    /// exact to the microsecond, and takes about 30 ns.
    pub fn precise() -> Self {
        Clock(ClockSource::Precise(Arc::new(Anchor::now())))
    }

    /// Returns the time.
    #[inline]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            ClockSource::Coarse(ticker) => ticker.now(),
            ClockSource::Precise(anchor) => anchor.time(),
            ClockSource::Manual(manual) => manual.now(),
        }
    }

    /// Returns the smallest step of the clock; zero for a manual clock, which can show any time.
    pub fn resolution(&self) -> Duration {
        match &self.0 {
            ClockSource::Coarse(_) => TICK,
            ClockSource::Precise(_) => Duration::from_micros(1),
            ClockSource::Manual(_) => Duration::ZERO,
        }
    }

    /// Wakes `waker` after `wait_us` on this clock.
    pub(crate) fn wake_after(&self, wait_us: u64, waker: Waker) -> TimerKey {
        let now = match &self.0 {
            ClockSource::Coarse(_) | ClockSource::Precise(_) => process_time(),
            ClockSource::Manual(manual) => manual.now(),
        };
        self.timers().add(now.plus_micros(wait_us), waker)
    }

    /// Cancels a timer.
    pub(crate) fn cancel(&self, key: TimerKey) {
        self.timers().cancel(key);
    }

    fn timers(&self) -> &Timers {
        match &self.0 {
            ClockSource::Coarse(_) | ClockSource::Precise(_) => process_timers(),
            ClockSource::Manual(manual) => &manual.0.timers,
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Clock::coarse()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.0 {
            ClockSource::Coarse(_) => "Clock::coarse",
            ClockSource::Precise(_) => "Clock::precise",
            ClockSource::Manual(_) => "ManualClock",
        };
        write!(f, "{name}({} us)", self.now().as_micros())
    }
}

/// A moment on both clocks. The time is the wall time of the anchor plus the monotonic time since.
#[derive(Clone, Copy)]
struct Anchor {
    instant: Instant,
    wall_us: u64,
}

impl Anchor {
    fn now() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Anchor { instant: Instant::now(), wall_us: whole_micros(wall) }
    }

    fn time(&self) -> Timestamp {
        let elapsed_us = whole_micros(self.instant.elapsed());
        Timestamp::from_micros(self.wall_us.saturating_add(elapsed_us))
    }
}

fn whole_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The last published time in microseconds, shifted left by one bit. The lowest bit is set while
/// the clock ticks. Both are in one word, so that a single load reads both.
///
/// All threads publish with `fetch_max`, so a later reader never sees an earlier time. A reader
/// that finds the clock stopped and then publishes can stop it for the rest of a tick; other
/// readers then do the same as that one.
struct CoarseTime(AtomicU64);

impl CoarseTime {
    /// Reads the time, and whether the clock ticks.
    #[inline(always)]
    fn read(&self) -> TimeReading {
        TimeReading(self.0.load(Ordering::Acquire))
    }

    fn publish(&self, now: Timestamp, ticking: bool) -> Timestamp {
        let encoded = now.as_micros() << 1 | u64::from(ticking);
        Timestamp::from_micros(self.0.fetch_max(encoded, Ordering::AcqRel).max(encoded) >> 1)
    }

    fn stop(&self) {
        self.0.fetch_and(!1, Ordering::AcqRel);
    }
}

/// A reading of [`CoarseTime`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TimeReading(u64);

impl TimeReading {
    /// The time, if the clock was ticking.
    #[inline(always)]
    fn time(self) -> Option<Timestamp> {
        (self.0 & 1 == 1).then(|| Timestamp::from_micros(self.0 >> 1))
    }
}

struct Ticker {
    coarse: CoarseTime,
    /// Whether the clock was read while it was not ticking.
    is_requested: AtomicBool,
    anchor: Anchor,
    started: Once,
    thread: OnceLock<Thread>,
}

impl Ticker {
    fn new() -> Self {
        let anchor = Anchor::now();
        // In a loom model the clock counts as ticking but never advances, because its thread would
        // not be part of the model.
        let ticking = u64::from(cfg!(loom));
        Ticker {
            coarse: CoarseTime(AtomicU64::new(anchor.wall_us << 1 | ticking)),
            is_requested: AtomicBool::new(false),
            anchor,
            started: Once::new(),
            thread: OnceLock::new(),
        }
    }

    #[inline]
    fn now(&'static self) -> Timestamp {
        self.coarse.read().time().unwrap_or_else(|| self.start())
    }

    /// Reads the precise clock instead, and makes the thread tick again. A process that cannot
    /// start the thread continues with the precise clock.
    #[cold]
    fn start(&'static self) -> Timestamp {
        let now = self.coarse.publish(self.anchor.time(), false);
        if !self.is_requested.swap(true, Ordering::AcqRel) {
            self.started.call_once(|| {
                let name = "tidegate-clock".into();
                let _ = thread::Builder::new().name(name).spawn(move || self.run());
            });
            // A thread that has not started yet will see `is_requested`.
            if let Some(thread) = self.thread.get() {
                thread.unpark();
            }
        }
        now
    }

    fn run(&self) {
        // No other thread sets it.
        let _ = self.thread.set(thread::current());
        loop {
            while !self.is_requested.swap(false, Ordering::AcqRel) {
                thread::park();
            }
            self.coarse.publish(self.anchor.time(), true);
            for _ in 0..TICKS_PER_ROUND {
                thread::sleep(TICK);
                self.coarse.publish(self.anchor.time(), true);
            }
            // A reader now sets `is_requested`. After one more tick without a reader, the thread
            // sleeps until there is one.
            self.coarse.stop();
            thread::sleep(TICK);
        }
    }
}

/// A clock that changes only when it is set, for tests and replays.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Limiter, ManualClock, Timestamp};
///
/// let clock = ManualClock::new(Timestamp::from_micros(0));
/// let limiter = Limiter::builder().clock(clock.clock()).build()?;
/// let limit = "1 per 10s sliding-log".parse()?;
/// assert!(limiter.check("alice", &limit, 1)?.allowed);
/// assert!(!limiter.check("alice", &limit, 1)?.allowed);
/// clock.advance(Duration::from_secs(10));
/// assert!(limiter.check("alice", &limit, 1)?.allowed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ManualClock(Arc<Manual>);

struct Manual {
    now_us: AtomicU64,
    timers: Timers,
}

impl ManualClock {
    /// Creates a clock that shows `now`.
    pub fn new(now: Timestamp) -> Self {
        let now_us = AtomicU64::new(now.as_micros());
        ManualClock(Arc::new(Manual { now_us, timers: Timers::default() }))
    }

    /// Returns a [`Clock`] for a limiter that shows the time of this clock.
    pub fn clock(&self) -> Clock {
        Clock(ClockSource::Manual(self.clone()))
    }

    /// Returns the time.
    #[inline]
    pub fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.now_us.load(Ordering::Acquire)).min(Timestamp::LAST)
    }

    /// Sets the time, earlier or later, and wakes the callers that wait for it. With an earlier
    /// time, the next check of a key moves the units that the key has used since then to that time.
    pub fn set(&self, now: Timestamp) {
        self.0.now_us.store(now.as_micros(), Ordering::Release);
        self.0.timers.fire(now);
    }

    /// Advances the time, and wakes the callers that wait for it.
    pub fn advance(&self, by: Duration) {
        let later = |now_us: u64| Some(now_us.saturating_add(whole_micros(by)));
        // The closure always returns `Some`, so this cannot fail.
        let _ = self.0.now_us.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
        self.0.timers.fire(self.now());
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManualClock({} us)", self.now().as_micros())
    }
}

/// Tasks that wait for a time, earliest first.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    queue: Mutex<TimerQueue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TimerQueue {
    waiting: BTreeMap<TimerKey, Waker>,
    /// Distinguishes timers of the same time.
    next: u64,
}

/// Identifies a timer, to cancel it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerKey {
    at: Timestamp,
    number: u64,
}

impl Timers {
    /// Wakes `waker` when the timers are fired at `at` or later.
    pub(crate) fn add(&self, at: Timestamp, waker: Waker) -> TimerKey {
        let mut queue = self.queue();
        let key = TimerKey { at, number: queue.next };
        queue.next += 1;
        queue.waiting.insert(key, waker);
        drop(queue);
        self.changed.notify_one();
        key
    }

    /// Cancels a timer, if it has not fired yet.
    pub(crate) fn cancel(&self, key: TimerKey) {
        self.queue().waiting.remove(&key);
    }

    /// Wakes the tasks whose time has come.
    pub(crate) fn fire(&self, now: Timestamp) {
        let later = TimerKey { at: now.plus_micros(1), number: 0 };
        let mut queue = self.queue();
        let rest = queue.waiting.split_off(&later);
        let due = std::mem::replace(&mut queue.waiting, rest);
        // Woken tasks may lock the timers again.
        drop(queue);
        due.into_values().for_each(Waker::wake);
    }

    fn queue(&self) -> MutexGuard<'_, TimerQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The timers of real clocks. One thread of the process, which is started when it is first needed,
/// sleeps until the earliest timer is due. Their time is [`process_time`].
pub(crate) fn process_timers() -> &'static Timers {
    static TIMERS: OnceLock<Timers> = OnceLock::new();
    static DRIVER: Once = Once::new();
    let timers = TIMERS.get_or_init(Timers::default);
    DRIVER.call_once(|| {
        let spawned = thread::Builder::new().name("tidegate-timer".into()).spawn(|| drive(timers));
        // Without the thread no waiter would ever be woken, and that cannot be recovered from.
        spawned.expect("tidegate: cannot start the timer thread");
    });
    timers
}

/// The monotonic time since the first call of this function.
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
        // After a spurious wakeup the loop checks again.
        match wait_us {
            Some(us) => drop(timers.changed.wait_timeout(queue, Duration::from_micros(us))),
            None => drop(timers.changed.wait(queue)),
        }
    }
}
