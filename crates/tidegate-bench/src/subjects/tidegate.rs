//! tidegate, through its public API: text key, default clock, complete decision.

use std::array;
use std::hint::black_box;

use tidegate::{Check, Clock, Decision, Limit, Limiter, MemoryStats, Timestamp};

use super::{EPOCH_NS, Subject};
use crate::cli::Mode;
use crate::measure::{BATCH, Outcome, Pass, ThreadClock, time_shared, time_shared_blocks};
use crate::workloads::write_key;

pub const WINDOW: &str = "600 per 1m sliding-window";
pub const SMALL: &str = "20 per 1m sliding-window";
pub const COUNTER: &str = "600 per 1m sliding-counter";
pub const LOG: &str = "100 per 1m sliding-log";
/// The second limit on the key of [`WINDOW`].
pub const BURST: &str = "400 per 30s sliding-window";
/// The limits of an organisation, shared by all its members.
pub const ORGANISATION: [&str; 2] = ["60000 per 1m sliding-window", "40000 per 30s sliding-window"];

/// Users of one organisation.
const MEMBERS: u32 = 100;

/// Entries of a full log, and the time between them that fills its window exactly.
const LOG_ENTRIES: u64 = 100;
const LOG_STEP_NS: u64 = 600_000_000;

/// Describes the default clock and its resolution.
pub fn clock_name() -> String {
    format!("default clock Clock::coarse(), resolution {:?}", Clock::default().resolution())
}

/// Creates a default limiter with capacity for `states` states (one per key and limit) and full
/// logs.
fn limiter(states: u32) -> Limiter {
    Limiter::builder()
        .max_keys(states as usize)
        .max_log_entries(u64::from(states) * LOG_ENTRIES)
        .build()
        .expect("there is memory for the keys")
}

fn parse(text: &str) -> Limit {
    text.parse().expect("the limits of the benchmark are well-formed")
}

/// Reads the clock as a call without a time would, but returns the virtual time.
#[inline(always)]
fn virtual_time(clock: &Clock, now_ns: u64) -> Timestamp {
    black_box(clock.now());
    Timestamp::from_micros(now_ns / 1_000)
}

/// One limit on each key.
pub struct OneLimit {
    limiter: Limiter,
    clock: Clock,
    limit: Limit,
}

impl OneLimit {
    pub fn new(limit: &str, keys: u32) -> Self {
        OneLimit { limiter: limiter(keys), clock: Clock::default(), limit: parse(limit) }
    }

    #[inline(always)]
    pub fn decide(&self, now_ns: u64, key: &str) -> bool {
        let now = virtual_time(&self.clock, now_ns);
        let decision = self.limiter.check_at(now, key, &self.limit, 1);
        // The complete decision can be read here; copying it is not the work of the limiter.
        black_box(&decision).as_ref().expect("the memory store does not fail").allowed
    }

    pub fn stats(&self) -> MemoryStats {
        self.limiter.stats()
    }

    /// Decides a block in calls of [`BATCH`] checks.
    fn decide_batches(
        &self,
        time: &mut ThreadClock<'_>,
        keys: &[String],
        decisions: &mut Vec<Decision>,
    ) -> usize {
        let (batches, rest) = keys.as_chunks::<BATCH>();
        assert!(rest.is_empty(), "a pass is a whole number of batches");
        let mut admitted = 0;
        for batch in batches {
            let times: [Timestamp; BATCH] =
                array::from_fn(|_| virtual_time(&self.clock, time.next_ns()));
            let checks: [Check<'_>; BATCH] =
                array::from_fn(|at| Check::new(&batch[at], &self.limit, 1));
            decisions.clear();
            self.limiter
                .check_batch_at(&times, &checks, decisions)
                .expect("the memory store does not fail");
            let answered = black_box(&*decisions);
            admitted += answered.iter().filter(|decision| decision.allowed).count();
        }
        admitted
    }
}

impl Subject for OneLimit {
    fn pass(&mut self, pass: &Pass<'_>) -> Outcome {
        let this = &*self;
        match pass.mode {
            Mode::Single => time_shared(pass, |now_ns, _, key| this.decide(now_ns, key)),
            Mode::Batch32 => time_shared_blocks(pass, || {
                let mut decisions = Vec::with_capacity(BATCH);
                move |time: &mut ThreadClock<'_>, _: &[u32], keys: &[String]| {
                    this.decide_batches(time, keys, &mut decisions)
                }
            }),
        }
    }

    fn tracked_keys(&self) -> Option<u64> {
        Some(tracked(&self.limiter))
    }
}

/// Returns the number of states. Every key has a separate one.
fn tracked(limiter: &Limiter) -> u64 {
    let stats = limiter.stats();
    assert_eq!(
        (stats.overflowed, stats.merged_entries),
        (0, 0),
        "the limiter had too little capacity"
    );
    stats.tracked_keys
}

/// Two limits on each user and, if there are organisations, two on the user's organisation. All
/// limits are charged or none.
pub struct SeveralLimits {
    limiter: Limiter,
    clock: Clock,
    user: [Limit; 2],
    organisation: [Limit; 2],
    /// The keys of the organisations; a server would have read them from its requests.
    organisations: Vec<String>,
}

pub fn two_limits(keys: u32) -> SeveralLimits {
    SeveralLimits::new(keys, 0)
}

pub fn four_limits(keys: u32) -> SeveralLimits {
    SeveralLimits::new(keys, keys.div_ceil(MEMBERS))
}

impl SeveralLimits {
    fn new(keys: u32, organisations: u32) -> Self {
        SeveralLimits {
            limiter: limiter(2 * (keys + organisations)),
            clock: Clock::default(),
            user: [WINDOW, BURST].map(parse),
            organisation: ORGANISATION.map(parse),
            organisations: (0..organisations).map(|number| format!("org:{number:06}")).collect(),
        }
    }

    #[inline(always)]
    fn decide(&self, now_ns: u64, checks: &[Check<'_>]) -> bool {
        let verdict = self.limiter.check_all_at(virtual_time(&self.clock, now_ns), checks);
        black_box(&verdict).as_ref().expect("the memory store does not fail").allowed
    }
}

impl Subject for SeveralLimits {
    fn pass(&mut self, pass: &Pass<'_>) -> Outcome {
        let this = &*self;
        let [u1, u2] = &this.user;
        if this.organisations.is_empty() {
            return time_shared(pass, |now_ns, _, user| {
                this.decide(now_ns, &[Check::new(user, u1, 1), Check::new(user, u2, 1)])
            });
        }
        let [o1, o2] = &this.organisation;
        time_shared(pass, |now_ns, number, user| {
            let organisation = &this.organisations[(number / MEMBERS) as usize];
            let checks = [
                Check::new(user, u1, 1),
                Check::new(user, u2, 1),
                Check::new(organisation, o1, 1),
                Check::new(organisation, o2, 1),
            ];
            this.decide(now_ns, &checks)
        })
    }

    /// Derives the number of users: the store holds two states per user and two per organisation.
    fn tracked_keys(&self) -> Option<u64> {
        let keys = tracked(&self.limiter) / 2;
        let members = u64::from(MEMBERS);
        Some(if self.organisations.is_empty() { keys } else { keys * members / (members + 1) })
    }
}

/// Creates a limiter in which every key holds a log of `entries` entries.
///
/// It is filled round by round and not key by key, so that logs grow side by side as in use, with
/// the same fragmentation.
pub fn fill_log(keys: u32, entries: u32) -> OneLimit {
    let subject = OneLimit::new(LOG, keys);
    let mut key = String::new();
    for entry in 0..entries {
        let now_ns = EPOCH_NS + u64::from(entry) * LOG_STEP_NS;
        for number in 0..keys {
            write_key(&mut key, number);
            assert!(subject.decide(now_ns, &key), "entry {entry} was denied");
        }
    }
    assert_eq!(tracked(&subject.limiter), u64::from(keys), "every key is held");
    subject
}
