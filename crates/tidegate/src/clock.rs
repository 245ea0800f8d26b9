//! Where a limiter's time comes from.
//!
//! Algorithms take the time as an argument; a store reads its clock when it
//! decides. It reads it when it has locked or seized what it decides about, so that times in one
//! place never run backwards. Wall time is read once, when the clock is made; from then on time is
//! monotonic.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::task::Waker;
use std::thread::{self, Thread};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_core::Timestamp;

use crate::timer::{TimerKey, Timers, process_time, process_timers};

/// How often the coarse clock ticks.
const TICK: Duration = Duration::from_micros(500);
/// The coarse clock's thread asks after so many ticks whether anybody still
/// reads it, and sleeps if not.
const TICKS_PER_ROUND: u32 = 200;

/// A source of time for a limiter.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    Coarse(&'static Ticker),
    Precise(Arc<Anchor>),
    Manual(ManualClock),
}

impl Clock {
    /// The default: one load from memory, 0.5 ms resolution.
    ///
    /// A thread shared by the process stores the time every 0.5 ms while anybody
    /// reads it, and sleeps when nobody does. If the machine is too busy to run
    /// that thread, time stands still for as long: what is admitted meanwhile
    /// counts from the last tick, so in true time a window may be shorter by
    /// that much. Where that matters, use [`Clock::precise`].
    pub fn coarse() -> Self {
        static TICKER: OnceLock<Ticker> = OnceLock::new();
        Clock(Source::Coarse(TICKER.get_or_init(Ticker::new)))
    }

    /// The operating system's monotonic clock, read for every decision: exact to
    /// the microsecond, for some 30 ns.
    pub fn precise() -> Self {
        Clock(Source::Precise(Arc::new(Anchor::now())))
    }

    /// The time.
    #[inline]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::Coarse(ticker) => ticker.now(),
            Source::Precise(anchor) => anchor.time(),
            Source::Manual(manual) => manual.now(),
        }
    }

    /// The smallest step it shows; zero for a manual clock, which shows any.
    pub fn resolution(&self) -> Duration {
        match &self.0 {
            Source::Coarse(_) => TICK,
            Source::Precise(_) => Duration::from_micros(1),
            Source::Manual(_) => Duration::ZERO,
        }
    }

    /// Wakes `waker` when `wait_us` have passed on this clock.
    pub(crate) fn wake_after(&self, wait_us: u64, waker: Waker) -> TimerKey {
        let now = match &self.0 {
            Source::Coarse(_) | Source::Precise(_) => process_time(),
            Source::Manual(manual) => manual.now(),
        };
        self.timers().add(now.plus_micros(wait_us), waker)
    }

    /// Calls a waking off.
    pub(crate) fn cancel(&self, key: TimerKey) {
        self.timers().cancel(key);
    }

    fn timers(&self) -> &Timers {
        match &self.0 {
            Source::Coarse(_) | Source::Precise(_) => process_timers(),
            Source::Manual(manual) => &manual.0.timers,
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
            Source::Coarse(_) => "Clock::coarse",
            Source::Precise(_) => "Clock::precise",
            Source::Manual(_) => "ManualClock",
        };
        write!(f, "{name}({} us)", self.now().as_micros())
    }
}

/// A moment known to both clocks: monotonic time since then, on top of wall time then.
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

/// Time as last published, in microseconds, twice; plus one while it ticks. One word
/// for both, so that one look tells both.
///
/// Everybody publishes with `fetch_max`, so a reader who comes after another never
/// sees less. A reader who finds it still and then publishes may stop it for the
/// rest of a tick: others do as that one did.
struct Dial(AtomicU64);

impl Dial {
    /// What it shows.
    #[inline(always)]
    fn glance(&self) -> Glance {
        Glance(self.0.load(Ordering::Acquire))
    }

    fn publish(&self, now: Timestamp, ticking: bool) -> Timestamp {
        let shown = now.as_micros() << 1 | u64::from(ticking);
        Timestamp::from_micros(self.0.fetch_max(shown, Ordering::AcqRel).max(shown) >> 1)
    }

    fn stop(&self) {
        self.0.fetch_and(!1, Ordering::AcqRel);
    }
}

/// What a [`Dial`] showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Glance(u64);

impl Glance {
    /// The time, if it was ticking.
    #[inline(always)]
    fn time(self) -> Option<Timestamp> {
        (self.0 & 1 == 1).then(|| Timestamp::from_micros(self.0 >> 1))
    }
}

struct Ticker {
    dial: Dial,
    /// Somebody read the clock while it was not ticking.
    wanted: AtomicBool,
    anchor: Anchor,
    started: Once,
    thread: OnceLock<Thread>,
}

impl Ticker {
    fn new() -> Self {
        let anchor = Anchor::now();
        // In a model it ticks without moving: its thread would be no part of the model.
        let ticking = u64::from(cfg!(loom));
        Ticker {
            dial: Dial(AtomicU64::new(anchor.wall_us << 1 | ticking)),
            wanted: AtomicBool::new(false),
            anchor,
            started: Once::new(),
            thread: OnceLock::new(),
        }
    }

    #[inline]
    fn now(&'static self) -> Timestamp {
        self.dial.glance().time().unwrap_or_else(|| self.start())
    }

    /// Reads the precise clock instead, and has the thread tick again. A process
    /// that cannot start the thread goes on with the precise clock.
    #[cold]
    fn start(&'static self) -> Timestamp {
        let now = self.dial.publish(self.anchor.time(), false);
        if !self.wanted.swap(true, Ordering::AcqRel) {
            self.started.call_once(|| {
                let name = "tidegate-clock".into();
                let _ = thread::Builder::new().name(name).spawn(move || self.run());
            });
            // A thread that is not there yet will see that it is wanted.
            if let Some(thread) = self.thread.get() {
                thread.unpark();
            }
        }
        now
    }

    fn run(&self) {
        // The only thread to set it.
        let _ = self.thread.set(thread::current());
        loop {
            while !self.wanted.swap(false, Ordering::AcqRel) {
                thread::park();
            }
            self.dial.publish(self.anchor.time(), true);
            for _ in 0..TICKS_PER_ROUND {
                thread::sleep(TICK);
                self.dial.publish(self.anchor.time(), true);
            }
            // Whoever reads now says so by setting `wanted`; after one more tick
            // without a reader the thread sleeps until there is one.
            self.dial.stop();
            thread::sleep(TICK);
        }
    }
}

/// A clock that stands still until it is told: for tests and replays.
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
    /// A clock that shows `now`.
    pub fn new(now: Timestamp) -> Self {
        let now_us = AtomicU64::new(now.as_micros());
        ManualClock(Arc::new(Manual { now_us, timers: Timers::default() }))
    }

    /// This clock as a limiter takes it; both show the same time.
    pub fn clock(&self) -> Clock {
        Clock(Source::Manual(self.clone()))
    }

    /// The time it shows.
    #[inline]
    pub fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.now_us.load(Ordering::Acquire)).min(Timestamp::LAST)
    }

    /// Shows another time, earlier or later, and wakes whoever waits for it.
    pub fn set(&self, now: Timestamp) {
        self.0.now_us.store(now.as_micros(), Ordering::Release);
        self.0.timers.fire(now);
    }

    /// Moves on, and wakes whoever waits for it.
    pub fn advance(&self, by: Duration) {
        let later = |now_us: u64| Some(now_us.saturating_add(whole_micros(by)));
        // Never fails: there is always a later time.
        let _ = self.0.now_us.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
        self.0.timers.fire(self.now());
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManualClock({} us)", self.now().as_micros())
    }
}
