//! The real limiter on virtual time: each event is decided at its own time.
//!
//! A full limiter treats new keys differently, and the result of a replay must not depend on that.
//! A limiter with capacity for the largest trace would spread the few keys of most traces over far
//! too much memory. Keys are independent, so they are divided among limiters by number: the first
//! million keys go to the first limiter, the next million to the second, and so on. No limiter is
//! given more keys than it has capacity for.

use std::ops::Range;
use std::time::Duration;

use tidegate::{
    Algorithm, Check, Cost, Decision, Limit, Limiter, ManualClock, RetryAfter, Timestamp,
};

use crate::block::{Block, Row};
use crate::error::ReplayError;

/// The number of keys per limiter: all their states fit its table.
const KEYS_PER_SHARD: u32 = 1 << 20;

/// The number of checks decided in one call: enough for the limiter to overlap its memory reads,
/// few enough to stay in the L1 cache.
const BATCH: usize = 128;

/// The outcome of one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventOutcome {
    pub allowed: bool,
    /// Whether the event was allowed and left at most a twentieth of some limit.
    pub near: bool,
}

impl EventOutcome {
    /// Converts the decision of one limit. `near` is defined as for the near misses that the server
    /// counts.
    pub fn new(limit: &Limit, cost: i64, decision: &Decision) -> Self {
        let near = cost > 0 && decision.allowed && decision.remaining <= limit.burst() / 20;
        EventOutcome { allowed: decision.allowed, near }
    }
}

/// The limits applied to every event, and the limiters that keep their states.
pub struct Engine {
    limits: Vec<Limit>,
    keys_per_shard: u32,
    shards: Vec<LimiterShard>,
    /// The time after which the last decided event would pass, for simulated clients that wait.
    retry_after: RetryAfter,
}

/// The number of states and log entries that a limiter holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub states: u64,
    pub entries: u64,
}

impl Memory {
    /// Returns the larger of both numbers of states and the larger of both numbers of entries.
    pub fn max(self, other: Memory) -> Memory {
        Memory { states: self.states.max(other.states), entries: self.entries.max(other.entries) }
    }

    /// Estimates the size in bytes, if all states belong to limits like these.
    ///
    /// Counters fit in a slot of 16 bytes. Sliding windows and token buckets take a slot of 64
    /// bytes. Logs and permits are stored separately from their slot, logs with a chunk of entries.
    /// Unused capacity is not counted.
    pub fn approx_bytes<'l>(&self, limits: impl Iterator<Item = &'l Limit> + Clone) -> u64 {
        const SLOT: u64 = 16;
        const APART: u64 = 40;
        const LINE: u64 = 64;
        const CHUNK: u64 = 40;
        const ENTRY: u64 = 3;
        let each = |limit: &Limit| match limit.algorithm() {
            Algorithm::SlidingCounter | Algorithm::FixedWindow => SLOT,
            Algorithm::SlidingLog => SLOT + APART + CHUNK,
            Algorithm::SlidingWindow | Algorithm::TokenBucket => LINE,
            Algorithm::Concurrency => SLOT + APART,
        };
        let count = limits.clone().count().max(1) as u64;
        let average = limits.map(each).sum::<u64>() / count;
        self.states * average + self.entries * ENTRY
    }
}

/// A limiter with the keys that it decides.
struct LimiterShard {
    /// The numbers of the keys of this limiter.
    keys: Range<u32>,
    limiter: Limiter,
}

impl Engine {
    pub fn new(limits: Vec<Limit>) -> Self {
        let retry_after = RetryAfter::Now;
        Engine { limits, keys_per_shard: KEYS_PER_SHARD, shards: Vec::new(), retry_after }
    }

    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Returns the time after which the last decided event would pass.
    pub fn retry_after(&self) -> RetryAfter {
        self.retry_after
    }

    /// Returns the number of states and log entries that all limiters hold.
    pub fn memory(&self) -> Memory {
        self.shards.iter().map(|part| part.limiter.stats()).fold(Memory::default(), |sum, stats| {
            Memory {
                states: sum.states + stats.tracked_keys,
                entries: sum.entries + stats.log_entries,
            }
        })
    }

    /// Decides the events of a block in order, and writes one outcome for each event.
    pub fn decide(
        &mut self,
        block: &Block,
        answers: &mut Vec<EventOutcome>,
    ) -> Result<(), ReplayError> {
        let keys = block.rows.iter().map(|row| row.key + 1).max().unwrap_or(0);
        while self.shards.last().map_or(0, |part| part.keys.end) < keys {
            self.shards.push(self.next_shard()?);
        }
        answers.clear();
        answers.resize(block.rows.len(), EventOutcome::default());
        for part in &self.shards {
            let last = match &*self.limits {
                [limit] => part.decide_each(limit, block, answers)?,
                limits => part.decide_all(limits, block, answers)?,
            };
            self.retry_after = last.unwrap_or(self.retry_after);
        }
        Ok(())
    }

    fn next_shard(&self) -> Result<LimiterShard, ReplayError> {
        let limiter = Limiter::builder()
            .max_keys(self.keys_per_shard as usize * self.limits.len())
            .max_log_entries(u64::MAX)
            // A late event must find the units that its key has used, however late it is.
            .grace(Duration::MAX)
            // The clock is never read, because every check is given the time of its event. The
            // default clock would start a thread.
            .clock(ManualClock::new(Timestamp::EPOCH).clock())
            .build()
            .map_err(ReplayError::Build)?;
        let start = self.shards.last().map_or(0, |part| part.keys.end);
        Ok(LimiterShard { keys: start..start.saturating_add(self.keys_per_shard), limiter })
    }
}

impl LimiterShard {
    /// Returns the events whose keys belong to this limiter, with their indices in the block.
    fn events<'a>(
        &'a self,
        block: &'a Block,
    ) -> impl Iterator<Item = (usize, (&'a Row, &'a [u8]))> {
        block.events().enumerate().filter(|(_, (row, _))| self.keys.contains(&row.key))
    }

    /// Decides one limit, in batches of events.
    fn decide_each(
        &self,
        limit: &Limit,
        block: &Block,
        answers: &mut [EventOutcome],
    ) -> Result<Option<RetryAfter>, ReplayError> {
        let mut last = None;
        let mut places = Vec::with_capacity(BATCH);
        let mut times = Vec::with_capacity(BATCH);
        let mut checks = Vec::with_capacity(BATCH);
        let mut decisions = Vec::with_capacity(BATCH);
        let mut events = self.events(block);
        loop {
            places.clear();
            times.clear();
            checks.clear();
            decisions.clear();
            for (place, (row, key)) in events.by_ref().take(BATCH) {
                places.push(place);
                times.push(time(row));
                checks.push(Check::new(key, limit, cost(row)));
            }
            if checks.is_empty() {
                return Ok(last);
            }
            self.limiter.check_batch_at(&times, &checks, &mut decisions)?;
            for (&place, decision) in places.iter().zip(&decisions) {
                answers[place] = EventOutcome::new(limit, block.rows[place].cost, decision);
            }
            last = decisions.last().map(|decision| decision.retry_after);
        }
    }

    /// Decides several limits for each event. All of them are charged or none.
    fn decide_all(
        &self,
        limits: &[Limit],
        block: &Block,
        answers: &mut [EventOutcome],
    ) -> Result<Option<RetryAfter>, ReplayError> {
        let mut last = None;
        let mut checks = Vec::with_capacity(limits.len());
        for (place, (row, key)) in self.events(block) {
            checks.clear();
            checks.extend(limits.iter().map(|limit| Check::new(key, limit, cost(row))));
            let verdict = self.limiter.check_all_at(time(row), &checks)?;
            let each = limits.iter().zip(verdict.decisions());
            let near =
                each.into_iter().any(|(limit, one)| EventOutcome::new(limit, row.cost, one).near);
            let allowed = verdict.allowed;
            answers[place] = EventOutcome { allowed, near: near && allowed };
            last = Some(verdict.retry_after());
        }
        Ok(last)
    }
}

fn time(row: &Row) -> Timestamp {
    Timestamp::from_micros(row.time_us)
}

fn cost(row: &Row) -> Cost {
    Cost::from_signed(row.cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_decide_like_one_limiter() {
        let limits = ["3 per 1s sliding-log", "5 per 1m sliding-counter"];
        let limits = limits.map(|text| text.parse::<Limit>().expect(text));
        // 40 keys, in an order that alternates between the shards.
        let events: Vec<_> = (0..2_000_u32).map(|n| (u64::from(n) * 5_000, n * 27 % 40)).collect();
        let block = Block::of(&events);
        for limits in [&limits[..1], &limits[..]] {
            let answers = [KEYS_PER_SHARD, 7, 1].map(|keys_per_shard| {
                let mut engine = Engine { keys_per_shard, ..Engine::new(limits.to_vec()) };
                let mut answers = Vec::new();
                engine.decide(&block, &mut answers).expect("no fault");
                assert_eq!(engine.shards.len(), 40_usize.div_ceil(keys_per_shard as usize));
                answers
            });
            let has = |allowed| answers[0].iter().any(|answer| answer.allowed == allowed);
            assert!(has(true) && has(false));
            assert!(answers.iter().all(|same| *same == answers[0]));
        }
    }
}
