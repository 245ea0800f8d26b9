//! tidegate, by its full public path: text key, default clock, whole decision.

use std::array;
use std::hint::black_box;

use tidegate::{Check, Clock, Decision, Limit, Limiter, Timestamp};

use super::Subject;
use crate::cli::Mode;
use crate::measure::{BATCH, Outcome, Pass, shared, shared_blocks};
use crate::workloads::write_key;

pub const COUNTER: &str = "1000000 per 1h sliding-counter";
pub const SECOND: &str = "1000000 per 1d sliding-counter";
pub const LOG: &str = "100 per 1h sliding-log";
pub const LOG_LIMIT: u8 = 100;
pub const WINDOW: &str = "1000000 per 1h sliding-window";

/// The log of the memory bar: 100 entries, 600 ms apart, fill its window exactly.
const FULL_LOG: &str = "100 per 60s sliding-log";
const FULL_LOG_STEP_US: u64 = 600_000;

/// An arbitrary virtual time to start from.
const EPOCH: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

/// The default clock and how fine it is.
pub fn clock_name() -> String {
    format!("default clock Clock::coarse(), resolution {:?}", Clock::default().resolution())
}

/// The default limiter but for its bounds: room for the keys and for full logs.
fn limiter(keys: u32) -> Limiter {
    Limiter::builder()
        .max_keys(keys as usize)
        .max_log_entries(u64::from(keys) * u64::from(LOG_LIMIT))
        .build()
        .expect("there is memory for the keys")
}

/// How many keys are held, all with a state of their own.
fn tracked(limiter: &Limiter) -> u64 {
    let stats = limiter.stats();
    assert_eq!((stats.overflowed, stats.merged_entries), (0, 0), "there was room for all");
    stats.tracked_keys
}

fn parse(text: &str) -> Limit {
    text.parse().expect("the limits of the benchmark are well-formed")
}

/// One limit on each key.
pub struct OneLimit {
    limiter: Limiter,
    limit: Limit,
}

pub fn counter(keys: u32) -> OneLimit {
    OneLimit { limiter: limiter(keys), limit: parse(COUNTER) }
}

pub fn log(keys: u32) -> OneLimit {
    OneLimit { limiter: limiter(keys), limit: parse(LOG) }
}

pub fn window(keys: u32) -> OneLimit {
    OneLimit { limiter: limiter(keys), limit: parse(WINDOW) }
}

impl OneLimit {
    fn single(&self, pass: &Pass<'_>) -> Outcome {
        let (limiter, limit) = (&self.limiter, &self.limit);
        shared(pass, |_, key| {
            let answer = limiter.check(key, limit, 1);
            // All of it is there to be read; copying it is not the limiter's work.
            black_box(&answer).as_ref().expect("the memory store does not fail").allowed
        })
    }

    fn batches(&self, pass: &Pass<'_>) -> Outcome {
        let (limiter, limit) = (&self.limiter, &self.limit);
        shared_blocks(pass, || {
            let mut decisions: Vec<Decision> = Vec::with_capacity(BATCH);
            move |_: &[u32], keys: &[String]| {
                let (batches, rest) = keys.as_chunks::<BATCH>();
                assert!(rest.is_empty(), "a pass is a whole number of batches");
                let mut admitted = 0;
                for batch in batches {
                    let checks: [Check<'_>; BATCH] =
                        array::from_fn(|at| Check::new(&batch[at], limit, 1));
                    decisions.clear();
                    limiter
                        .check_batch(&checks, &mut decisions)
                        .expect("the memory store does not fail");
                    let answered = black_box(&decisions);
                    admitted += answered.iter().filter(|decision| decision.allowed).count();
                }
                admitted
            }
        })
    }
}

impl Subject for OneLimit {
    fn pass(&mut self, pass: &Pass<'_>) -> Outcome {
        match pass.mode {
            Mode::Single => self.single(pass),
            Mode::Batch32 => self.batches(pass),
        }
    }

    fn tracked_keys(&self) -> Option<u64> {
        Some(tracked(&self.limiter))
    }
}

/// Two limits on each key, charged both or neither.
pub struct TwoLimits {
    limiter: Limiter,
    limits: [Limit; 2],
}

pub fn two_limits(keys: u32) -> TwoLimits {
    TwoLimits { limiter: limiter(2 * keys), limits: [parse(COUNTER), parse(SECOND)] }
}

impl Subject for TwoLimits {
    fn pass(&mut self, pass: &Pass<'_>) -> Outcome {
        let (limiter, [first, second]) = (&self.limiter, &self.limits);
        shared(pass, |_, key| {
            let checks = [Check::new(key, first, 1), Check::new(key, second, 1)];
            let answer = limiter.check_all(&checks);
            black_box(&answer).as_ref().expect("the memory store does not fail").allowed
        })
    }

    /// The store holds one entry for each key and limit.
    fn tracked_keys(&self) -> Option<u64> {
        Some(tracked(&self.limiter) / 2)
    }
}

/// A limiter whose every key holds a log of `entries` entries, for the memory bar.
///
/// Filled round by round and not key by key: logs grow side by side, as they do
/// in use, with the fragmentation that brings.
pub fn fill_log(keys: u32, entries: u32) -> Limiter {
    let (limiter, limit) = (limiter(keys), parse(FULL_LOG));
    let mut key = String::new();
    for entry in 0..entries {
        let now = EPOCH.plus_micros(u64::from(entry) * FULL_LOG_STEP_US);
        for number in 0..keys {
            write_key(&mut key, number);
            let decision = limiter.check_at(now, &Check::new(&key, &limit, 1));
            assert!(decision.is_ok_and(|decision| decision.allowed), "entry {entry} was denied");
        }
    }
    assert_eq!(tracked(&limiter), u64::from(keys), "every key is held");
    limiter
}

/// tidegate on virtual time, for the pauses.
pub struct Expiring {
    limiter: Limiter,
    limit: Limit,
    now: Timestamp,
}

impl Expiring {
    pub fn new(keys: u32) -> Self {
        Expiring { limiter: limiter(keys), limit: parse(COUNTER), now: EPOCH }
    }

    /// Decides a microsecond after the decision before.
    pub fn decide(&mut self, key: &str) -> bool {
        self.now = self.now.plus_micros(1);
        let decision = self.limiter.check_at(self.now, &Check::new(key, &self.limit, 1));
        black_box(decision).is_ok_and(|decision| decision.allowed)
    }

    /// Moves on to when all that is held has expired: two windows and more.
    pub fn expire(&mut self) {
        self.now = self.now.plus_micros(3 * self.limit.window_us());
    }

    /// How many keys are held.
    pub fn tracked_keys(&self) -> u64 {
        self.limiter.stats().tracked_keys
    }

    /// How many decisions were made for keys that found no room.
    pub fn overflowed(&self) -> u64 {
        self.limiter.stats().overflowed
    }
}
