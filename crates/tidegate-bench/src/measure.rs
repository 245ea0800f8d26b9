//! The timed loop, the same for every subject.
//!
//! Decisions are made at virtual times, so that a table can be aged by a minute in seconds and all
//! subjects decide equally often per window, however fast they are. A call still reads the clock
//! that its users would read, and pays for that; only the time it shows is ignored.
//!
//! In a server the key has just been read from a request: it lies in the cache.
//! So the keys of one block are written out first, untimed, and the block's
//! decisions are timed as one; what is measured is the limiter and not the
//! benchmark fetching its own strings. Every subject gets the same `&String`.
//!
//! Time a thread spent waiting for a processor that others were using is taken
//! out of the block in which it happened, and reported. That makes a busy machine
//! bearable, not good: caches are colder, and two threads that do not run at the
//! same time do not get in each other's way.
//!
//! The loop is generic over a closure and so compiled once per subject: there is
//! no indirect call per decision.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::cli::Mode;
use crate::workloads::{WINDOW_NS, write_key};

/// Small enough that a block's keys stay in the first cache levels, large enough
/// that reading the clock twice per block does not show (0.1 ns a decision).
const BLOCK: usize = 512;

/// A step that takes longer may have been interrupted: only then is it worth
/// asking the system, which itself takes a microsecond.
const CHECK_WAIT_ABOVE: Duration = Duration::from_micros(100);

/// Decisions per call in [`Mode::Batch32`].
pub const BATCH: usize = 32;

/// Decisions of a thread between two ticks of a clock that threads share, at most; and the part of
/// a window that a tick may take, so that keys still hold cells of several ages.
const TICK: u64 = 32;
const TICKS_PER_WINDOW: u64 = 16;

/// One timed run over some accesses.
pub struct Pass<'a> {
    pub accesses: &'a [u32],
    pub threads: usize,
    pub mode: Mode,
    pub schedule: Schedule,
}

/// Virtual time of a pass: when it starts, and how far apart decisions are.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    pub start_ns: u64,
    pub step_ns: u64,
}

/// The virtual clock of one thread.
///
/// On one thread every decision is a step later than the one before. Threads that decide at the
/// same time share a clock: with a clock each, time would run back and forth for the keys they
/// have in common. The shared one moves on by several steps at a time, so that it is rarely
/// contended itself.
pub struct ThreadClock<'a> {
    now_ns: u64,
    step_ns: u64,
    shared: Option<&'a AtomicU64>,
    /// Steps of a tick, and those until the next one.
    tick: u64,
    until_tick: u64,
}

impl<'a> ThreadClock<'a> {
    fn new(schedule: Schedule, shared: Option<&'a AtomicU64>) -> Self {
        let Schedule { start_ns, step_ns } = schedule;
        let tick = (WINDOW_NS / TICKS_PER_WINDOW / step_ns.max(1)).clamp(1, TICK);
        ThreadClock { now_ns: start_ns, step_ns, shared, tick, until_tick: tick }
    }

    /// The time of the next decision.
    #[inline(always)]
    pub fn next_ns(&mut self) -> u64 {
        let Some(clock) = self.shared else {
            self.now_ns += self.step_ns;
            return self.now_ns;
        };
        self.until_tick -= 1;
        if self.until_tick == 0 {
            self.until_tick = self.tick;
            clock.fetch_add(self.tick * self.step_ns, Ordering::Relaxed);
        }
        clock.load(Ordering::Relaxed)
    }
}

/// What a pass took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    pub decisions: usize,
    pub admitted: usize,
    /// Time inside decisions, summed over threads.
    pub busy: Duration,
    /// The longest any thread was inside decisions.
    pub wall: Duration,
    /// Time inside decisions that was spent waiting for a processor, summed over
    /// threads; in neither of the above.
    pub queued: Duration,
}

impl Outcome {
    /// Adds a pass that ran after this one.
    pub fn then(self, next: Outcome) -> Outcome {
        Outcome {
            decisions: self.decisions + next.decisions,
            admitted: self.admitted + next.admitted,
            busy: self.busy + next.busy,
            wall: self.wall + next.wall,
            queued: self.queued + next.queued,
        }
    }

    fn alongside(self, other: Outcome) -> Outcome {
        Outcome { wall: self.wall.max(other.wall), ..self.then(other) }
    }
}

/// Times `decide(now_ns, number, key)`, on one thread or several.
pub fn time_shared<F>(pass: &Pass<'_>, decide: F) -> Outcome
where
    F: Fn(u64, u32, &String) -> bool + Sync,
{
    time_shared_blocks(pass, || {
        |time: &mut ThreadClock<'_>, numbers: &[u32], keys: &[String]| {
            let decisions = numbers.iter().zip(keys);
            decisions.filter(|(number, key)| decide(time.next_ns(), **number, key)).count()
        }
    })
}

/// Times `decide`, which needs its subject for itself: one thread only.
pub fn time_exclusive<F>(pass: &Pass<'_>, mut decide: F) -> Outcome
where
    F: FnMut(u64, u32, &String) -> bool,
{
    assert_eq!(pass.threads, 1, "an exclusive subject runs on one thread");
    run(pass.accesses, ThreadClock::new(pass.schedule, None), |time, numbers, keys| {
        let decisions = numbers.iter().zip(keys);
        decisions.filter(|(number, key)| decide(time.next_ns(), **number, key)).count()
    })
}

/// Times blocks of decisions; each thread makes its own closure, with its own
/// scratch memory, and the closure returns how many it admitted.
pub fn time_shared_blocks<M, B>(pass: &Pass<'_>, make: M) -> Outcome
where
    M: Fn() -> B + Sync,
    B: FnMut(&mut ThreadClock<'_>, &[u32], &[String]) -> usize,
{
    if pass.threads == 1 {
        return run(pass.accesses, ThreadClock::new(pass.schedule, None), make());
    }
    let barrier = Barrier::new(pass.threads);
    let clock = AtomicU64::new(pass.schedule.start_ns);
    let share = pass.accesses.len() / pass.threads;
    thread::scope(|scope| {
        let threads: Vec<_> = pass
            .accesses
            .chunks_exact(share)
            .map(|accesses| {
                scope.spawn(|| {
                    let block = make();
                    barrier.wait();
                    run(accesses, ThreadClock::new(pass.schedule, Some(&clock)), block)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a subject panicked"))
            .fold(Outcome::default(), Outcome::alongside)
    })
}

fn run<B>(accesses: &[u32], mut time: ThreadClock<'_>, mut block: B) -> Outcome
where
    B: FnMut(&mut ThreadClock<'_>, &[u32], &[String]) -> usize,
{
    let mut outcome = Outcome { decisions: accesses.len(), ..Outcome::default() };
    let mut keys = vec![String::with_capacity(16); BLOCK.min(accesses.len())];
    let mut staged: &[u32] = &[];
    let mut cpu_wait = CpuWait::new();
    for (at, numbers) in accesses.chunks(BLOCK).enumerate() {
        if at % 16 == 0 {
            cpu_wait.reset();
        }
        let staging = Instant::now();
        // A hot key's blocks are all alike: staged once, two threads stay on it together.
        if staged != numbers {
            for (key, &number) in keys.iter_mut().zip(numbers) {
                write_key(key, number);
            }
            staged = numbers;
        }
        cpu_wait.exclude_wait(staging.elapsed());
        let start = Instant::now();
        outcome.admitted += block(&mut time, numbers, &keys[..numbers.len()]);
        let took = start.elapsed();
        let busy = cpu_wait.exclude_wait(took);
        outcome.busy += busy;
        outcome.queued += took - busy;
    }
    outcome.wall = outcome.busy;
    outcome
}

/// How long this thread has stood in the cpu_wait for a processor, as Linux counts
/// it; elsewhere it never waits.
pub struct CpuWait {
    stat: Option<File>,
    seen: Duration,
}

impl CpuWait {
    /// This thread's.
    pub fn new() -> Self {
        let mut cpu_wait =
            CpuWait { stat: File::open("/proc/thread-self/schedstat").ok(), seen: Duration::ZERO };
        cpu_wait.reset();
        cpu_wait
    }

    /// What is left of a step that just took `took` without the time it waited.
    pub fn exclude_wait(&mut self, took: Duration) -> Duration {
        if took < CHECK_WAIT_ABOVE { took } else { took.saturating_sub(self.waited_since_last()) }
    }

    /// Forgets what was waited until now. Called often, or many short waits that
    /// went unnoticed would be taken out of one long step later.
    pub fn reset(&mut self) {
        self.waited_since_last();
    }

    fn waited_since_last(&mut self) -> Duration {
        let total = self.total().unwrap_or(self.seen);
        let waited = total.saturating_sub(self.seen);
        self.seen = total;
        waited
    }

    fn total(&self) -> Option<Duration> {
        let mut text = [0; 96];
        let len = self.stat.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(&text[..len]).ok()?;
        // Time on a processor, time waiting for one, turns taken.
        Some(Duration::from_nanos(text.split_whitespace().nth(1)?.parse().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn text(number: u32) -> String {
        let mut text = String::new();
        write_key(&mut text, number);
        text
    }

    #[test]
    fn one_thread_decides_at_every_step_and_two_at_every_tick() {
        let schedule = Schedule { start_ns: 100, step_ns: 5 };
        let mut alone = ThreadClock::new(schedule, None);
        assert_eq!([(); 3].map(|()| alone.next_ns()), [105, 110, 115]);
        let clock = AtomicU64::new(schedule.start_ns);
        let [mut one, mut other] = [(); 2].map(|()| ThreadClock::new(schedule, Some(&clock)));
        let times: Vec<u64> = (0..TICK).map(|_| one.next_ns()).collect();
        assert_eq!((times[0], times[31]), (100, 100 + 32 * 5));
        assert_eq!(other.next_ns(), 100 + 32 * 5);
    }

    #[test]
    fn every_access_is_decided_once_with_its_own_key() {
        let accesses: Vec<u32> = (0..2_000).map(|i| i * 3 % 700).collect();
        for threads in [1, 2] {
            let schedule = Schedule { start_ns: 1_000, step_ns: 5 };
            let pass = Pass { accesses: &accesses, threads, mode: Mode::Single, schedule };
            let seen = Mutex::new(Vec::new());
            let outcome = time_shared(&pass, |now_ns, number, key| {
                assert!((1_000..=11_000).contains(&now_ns), "decided at {now_ns}");
                assert_eq!(*key, text(number));
                seen.lock().expect("no panic").push(number);
                number % 2 == 0
            });
            let mut seen = seen.into_inner().expect("no panic");
            let mut expected = accesses.clone();
            seen.sort_unstable();
            expected.sort_unstable();
            assert_eq!(seen, expected);
            assert_eq!(outcome.decisions, 2_000);
            assert_eq!(outcome.admitted, accesses.iter().filter(|&n| n % 2 == 0).count());
        }
    }
}
