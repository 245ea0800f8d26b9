//! Denials answered without asking.
//!
//! A request that was denied is denied until its `retry_after` has passed, whatever
//! others do: they can only use up more. So the same request is answered here until
//! then, and an attacker who hammers costs Redis nothing. Exactly two things can
//! let it pass sooner, units given back and a reset:
//!
//! - on this node they are noticed: each state has a cell that counts them, a denial
//!   keeps the counts from *before* it was sent, and one that differs is not used;
//! - on another node they are not, so nothing is believed for longer than
//!   [`MAX_AGE`].
//!
//! A denial ends `retry_after` after it was *sent*, which is before Redis read its
//! clock, less a little for clocks that run at different speeds; the wait that
//! is answered counts from when it was *received*, which is after. So neither is
//! ever too early.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Cost, Limit, ResetAfter, RetryAfter};

use crate::{Request, Verdict};

/// How long a denial is believed at most: what a refund or reset on another node
/// may wait until this node notices.
pub const MAX_AGE: Duration = Duration::from_secs(1);
/// Clocks run at speeds that differ by less than one in this.
const DRIFT: u32 = 1000;
const SHARDS: usize = 16;
/// Denials remembered in each shard: some 100,000 in all, a few tens of megabytes at most.
const MAX_ENTRIES: usize = 6144;
/// Requests with more bytes in their keys are not remembered, so that the bound above holds.
const MAX_SHAPE_BYTES: usize = 512;
/// Counts of what was given back. Two states that share one only forget too much.
const CELLS: usize = 4096;

type Shape = SmallVec<[u8; 128]>;

/// What was denied lately.
pub(super) struct DenyCache {
    random: RandomState,
    shards: Box<[Mutex<HashMap<Shape, Denial>>]>,
    cells: Box<[AtomicU32]>,
}

struct Denial {
    verdict: Verdict,
    received: Instant,
    until: Instant,
    marks: Marks,
}

type Marks = SmallVec<[u32; 4]>;

/// Which cells count what is given back to some states.
pub(super) type Cells = SmallVec<[u16; 4]>;

/// A request on its way that may be remembered when it comes back denied.
pub(super) struct Candidate {
    shape: Shape,
    shard: usize,
    marks: Marks,
    sent: Instant,
}

/// What a look came to.
pub(super) enum Look {
    /// Denied, as before.
    Denied(Verdict),
    /// Nothing is known; a denial may be remembered.
    Unknown(Candidate),
    /// Nothing is known or will be: not a request for this.
    NotForThis,
}

impl DenyCache {
    pub(super) fn new() -> Self {
        DenyCache {
            random: RandomState::new(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            cells: (0..CELLS).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Looks a request up, before it is sent at `now`.
    pub(super) fn look(&self, request: &Request<'_>, now: Instant) -> Look {
        let Some(shape) = shape(request) else { return Look::NotForThis };
        let shard = self.hash(&shape) % SHARDS;
        let marks = self.marks(request);
        let known = self.shard(shard).get(&shape).and_then(|denial| denial.at(now, &marks));
        match known {
            Some(verdict) => Look::Denied(verdict),
            None => Look::Unknown(Candidate { shape, shard, marks, sent: now }),
        }
    }

    /// Remembers a denial that was received at `now`.
    pub(super) fn remember(&self, candidate: Candidate, verdict: &Verdict, now: Instant) {
        let Candidate { shape, shard, marks, sent } = candidate;
        let wait = match verdict.retry_after() {
            RetryAfter::Now => return,
            RetryAfter::Micros(micros) => Duration::from_micros(micros).min(MAX_AGE),
            RetryAfter::Never => MAX_AGE,
        };
        let until = sent + (wait - wait / DRIFT);
        if verdict.allowed || until <= now {
            return;
        }
        let mut denials = self.shard(shard);
        if denials.len() >= MAX_ENTRIES {
            denials.retain(|_, denial| denial.until > now);
        }
        if denials.len() < MAX_ENTRIES || denials.contains_key(&shape) {
            let denial = Denial { verdict: verdict.clone(), received: now, until, marks };
            denials.insert(shape, denial);
        }
    }

    /// Units of these states were given back, or may have been: denials from before
    /// are not used again.
    pub(super) fn given_back(&self, cells: &Cells) {
        for cell in cells {
            self.cells[usize::from(*cell)].fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The cells of a request's states.
    pub(super) fn cells(&self, request: &Request<'_>) -> Cells {
        request.checks.iter().map(|check| self.cell(check.key, check.limit)).collect()
    }

    fn marks(&self, request: &Request<'_>) -> Marks {
        let cells = self.cells(request);
        cells.iter().map(|cell| self.cells[usize::from(*cell)].load(Ordering::SeqCst)).collect()
    }

    /// The cell of one state.
    pub(super) fn cell(&self, key: &[u8], limit: &Limit) -> u16 {
        let mut hasher = self.random.build_hasher();
        hasher.write(key);
        hasher.write_u64(limit.id());
        u16::try_from(hasher.finish() % CELLS as u64).unwrap_or(0)
    }

    fn hash(&self, shape: &[u8]) -> usize {
        usize::try_from(self.random.hash_one(shape) >> 33).unwrap_or(0)
    }

    fn shard(&self, shard: usize) -> MutexGuard<'_, HashMap<Shape, Denial>> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Denial {
    /// The verdict as it is at `now`, if it still is one.
    fn at(&self, now: Instant, marks: &Marks) -> Option<Verdict> {
        if now >= self.until || *marks != self.marks {
            return None;
        }
        let age = now.saturating_duration_since(self.received);
        let age_us = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        let mut verdict = self.verdict.clone();
        for decision in &mut verdict.decisions {
            if let RetryAfter::Micros(micros) = decision.retry_after {
                // A denial has a wait, if only the shortest.
                let left = micros.saturating_sub(age_us).max(1);
                decision.retry_after = RetryAfter::Micros(left);
            }
            let left = decision.reset_after.as_micros().saturating_sub(age_us);
            decision.reset_after = ResetAfter::from_micros(left);
        }
        Some(verdict)
    }
}

/// All that a request asks, as bytes: equal for requests that get the same answer.
/// `None` for one that is not to be answered from memory.
fn shape(request: &Request<'_>) -> Option<Shape> {
    if !request.deny_cache || request.id.is_some() || request.permit.is_some() {
        return None;
    }
    let mut shape = Shape::new();
    for check in request.checks {
        let Cost::Ask(units) = check.cost else { return None };
        let limit = check.limit;
        // Permits come back whenever their holders are done.
        if units == 0 || limit.algorithm() == Algorithm::Concurrency {
            return None;
        }
        let numbers = [check.key.len() as u64, limit.id(), limit.count(), limit.burst(), units];
        let observed = [u8::from(check.observed)];
        let numbers = numbers.iter().flat_map(|number| number.to_le_bytes());
        shape.extend(numbers.chain(observed).chain(check.key.iter().copied()));
        if shape.len() > MAX_SHAPE_BYTES {
            return None;
        }
    }
    Some(shape)
}
