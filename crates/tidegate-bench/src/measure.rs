//! The timed loop, the same for every subject.
//!
//! Decisions are made at virtual times. A table can therefore be aged by a minute within seconds,
//! and all subjects make the same number of decisions per window, however fast they are. A call
//! still reads the clock that its users would read and pays for it; only the value is ignored.
//!
//! In a server the key has just been read from a request and is in the cache. So the keys of one
//! block are written first, untimed, and the decisions of the block are timed together. Otherwise
//! the benchmark would measure how it fetches its own strings. Every subject gets the same
//! `&String`.
//!
//! Time that a thread waited for a processor used by others is subtracted from the block in which
//! it waited, and reported. A busy machine still distorts the figures: caches are colder, and two
//! threads that do not run at the same time do not contend with each other.
//!
//! The loop is generic over a closure and therefore compiled once per subject, without an
//! indirect call per decision.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::cli::Mode;
use crate::workloads::{WINDOW_NS, write_key};

/// Decisions per block. Small enough that the keys of a block stay in the first cache levels,
/// large enough that the two clock reads per block are negligible (0.1 ns per decision).
const BLOCK: usize = 512;

/// Steps that take longer may have been interrupted. Only then is `schedstat` read, because
/// reading it takes a microsecond.
const CHECK_WAIT_ABOVE: Duration = Duration::from_micros(100);

/// Decisions per call in [`Mode::Batch32`].
pub const BATCH: usize = 32;

/// Maximum number of decisions of a thread between two ticks of the shared clock, and the minimum
/// number of ticks per window. The minimum ensures that keys still hold cells of several ages.
const TICK: u64 = 32;
const TICKS_PER_WINDOW: u64 = 16;

/// One timed run over a list of accesses.
pub struct Pass<'a> {
    pub accesses: &'a [u32],
    pub threads: usize,
    pub mode: Mode,
    pub schedule: Schedule,
}

/// Virtual time of a pass: its start and the time between two decisions.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    pub start_ns: u64,
    pub step_ns: u64,
}

/// The virtual clock of one thread.
///
/// On one thread every decision is one step later than the previous one. Concurrent threads share
/// a clock: with separate clocks, time would run back and forth for the keys that both use. The
/// shared clock advances several steps at a time, so that it is rarely contended itself.
pub struct ThreadClock<'a> {
    now_ns: u64,
    step_ns: u64,
    shared: Option<&'a AtomicU64>,
    /// Steps per tick, and the steps left until the next tick.
    tick: u64,
    until_tick: u64,
}

impl<'a> ThreadClock<'a> {
    fn new(schedule: Schedule, shared: Option<&'a AtomicU64>) -> Self {
        let Schedule { start_ns, step_ns } = schedule;
        let tick = (WINDOW_NS / TICKS_PER_WINDOW / step_ns.max(1)).clamp(1, TICK);
        ThreadClock { now_ns: start_ns, step_ns, shared, tick, until_tick: tick }
    }

    /// Returns the time of the next decision.
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

/// Measurement of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    pub decisions: usize,
    pub admitted: usize,
    /// Time inside decisions, summed over threads.
    pub busy: Duration,
    /// The longest time that any thread spent inside decisions.
    pub wall: Duration,
    /// Time inside decisions spent waiting for a processor, summed over threads. It is included
    /// in neither `busy` nor `wall`.
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

/// Times `decide(now_ns, number, key)` on one or more threads.
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

/// Times a `decide` that needs exclusive access to its subject, on one thread.
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

/// Times blocks of decisions. Each thread makes its own closure with its own scratch memory; the
/// closure returns the number of admitted decisions.
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
        // All blocks of a hot key are equal. They are written once, so that two threads use the
        // same key at the same time.
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

/// The time that this thread waited for a processor, as counted by Linux. On other systems it is
/// always zero.
pub struct CpuWait {
    stat: Option<File>,
    seen: Duration,
}

impl CpuWait {
    /// Opens the counter of the current thread.
    pub fn new() -> Self {
        let mut cpu_wait =
            CpuWait { stat: File::open("/proc/thread-self/schedstat").ok(), seen: Duration::ZERO };
        cpu_wait.reset();
        cpu_wait
    }

    /// Returns `took`, the duration of a step that just ended, without the time it waited.
    pub fn exclude_wait(&mut self, took: Duration) -> Duration {
        if took < CHECK_WAIT_ABOVE { took } else { took.saturating_sub(self.waited_since_last()) }
    }

    /// Discards the waiting time up to now. Must be called often: otherwise many short waits that
    /// were below the threshold would be subtracted from one long step later.
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
        // The fields are: time on a processor, time waiting for one, number of time slices.
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
        let mut single = ThreadClock::new(schedule, None);
        assert_eq!([(); 3].map(|()| single.next_ns()), [105, 110, 115]);
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
