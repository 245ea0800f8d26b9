//! The real limiter on virtual time: each event is decided at its own time.
//!
//! A limiter that runs full treats new keys differently, and a replay must not
//! depend on that; one with room for any trace would spread the few keys of most
//! over far too much memory. Keys are independent, so they are shared out by
//! number: the first million to the first limiter, and so on as they appear. No
//! limiter is ever given more keys than it has room for.

use std::ops::Range;
use std::time::Duration;

use tidegate::{Check, Cost, Limit, Limiter, ManualClock, Timestamp};

use super::error::ReplayError;
use super::feed::{Block, Row};

/// Keys given to one limiter: as many as fit its table with all their limits.
const KEYS_PER_PART: u32 = 1 << 20;

/// Checks decided in one call: enough for the limiter to overlap its memory
/// reads, few enough to stay in the nearest cache.
const BATCH: usize = 128;

/// The limits applied to every event, and what keeps their states.
pub struct Engine {
    limits: Vec<Limit>,
    keys_per_part: u32,
    parts: Vec<Part>,
}

/// The limiter of some keys.
struct Part {
    /// The numbers of its keys.
    keys: Range<u32>,
    limiter: Limiter,
}

impl Engine {
    pub fn new(limits: Vec<Limit>) -> Self {
        Engine { limits, keys_per_part: KEYS_PER_PART, parts: Vec::new() }
    }

    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Decides the events of a block in order; one answer each.
    pub fn decide(&mut self, block: &Block, answers: &mut Vec<bool>) -> Result<(), ReplayError> {
        let keys = block.rows.iter().map(|row| row.key + 1).max().unwrap_or(0);
        while self.parts.last().map_or(0, |part| part.keys.end) < keys {
            self.parts.push(self.next_part()?);
        }
        answers.clear();
        answers.resize(block.rows.len(), false);
        for part in &self.parts {
            match &*self.limits {
                [limit] => part.decide_each(limit, block, answers)?,
                limits => part.decide_all(limits, block, answers)?,
            }
        }
        Ok(())
    }

    fn next_part(&self) -> Result<Part, ReplayError> {
        let limiter = Limiter::builder()
            .max_keys(self.keys_per_part as usize * self.limits.len())
            .max_log_entries(u64::MAX)
            // A late event must find what its key has used, however late it is.
            .grace(Duration::MAX)
            // Never read, since every event brings its time; the default would tick.
            .clock(ManualClock::new(Timestamp::EPOCH).clock())
            .build()
            .map_err(ReplayError::Build)?;
        let start = self.parts.last().map_or(0, |part| part.keys.end);
        Ok(Part { keys: start..start.saturating_add(self.keys_per_part), limiter })
    }
}

impl Part {
    /// The events that are this part's, with their place in the block.
    fn events<'a>(
        &'a self,
        block: &'a Block,
    ) -> impl Iterator<Item = (usize, (&'a Row, &'a [u8]))> {
        block.events().enumerate().filter(|(_, (row, _))| self.keys.contains(&row.key))
    }

    /// One limit: events are decided in batches.
    fn decide_each(
        &self,
        limit: &Limit,
        block: &Block,
        answers: &mut [bool],
    ) -> Result<(), ReplayError> {
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
                return Ok(());
            }
            self.limiter.check_batch_at(&times, &checks, &mut decisions)?;
            for (&place, decision) in places.iter().zip(&decisions) {
                answers[place] = decision.allowed;
            }
        }
    }

    /// Several limits: each event asks them all, and all are charged or none.
    fn decide_all(
        &self,
        limits: &[Limit],
        block: &Block,
        answers: &mut [bool],
    ) -> Result<(), ReplayError> {
        let mut checks = Vec::with_capacity(limits.len());
        for (place, (row, key)) in self.events(block) {
            checks.clear();
            checks.extend(limits.iter().map(|limit| Check::new(key, limit, cost(row))));
            answers[place] = self.limiter.check_all_at(time(row), &checks)?.allowed;
        }
        Ok(())
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
    fn keys_shared_out_are_decided_as_if_together() {
        let limits = ["3 per 1s sliding-log", "5 per 1m sliding-counter"];
        let limits = limits.map(|text| text.parse::<Limit>().expect(text));
        // 40 keys in an order that goes to and fro between the parts.
        let events: Vec<_> = (0..2_000_u32).map(|n| (u64::from(n) * 5_000, n * 27 % 40)).collect();
        let block = Block::of(&events);
        for limits in [&limits[..1], &limits[..]] {
            let answers = [KEYS_PER_PART, 7, 1].map(|keys_per_part| {
                let mut engine = Engine { keys_per_part, ..Engine::new(limits.to_vec()) };
                let mut answers = Vec::new();
                engine.decide(&block, &mut answers).expect("no fault");
                assert_eq!(engine.parts.len(), 40_usize.div_ceil(keys_per_part as usize));
                answers
            });
            assert!(answers[0].contains(&true) && answers[0].contains(&false));
            assert!(answers.iter().all(|same| *same == answers[0]));
        }
    }
}
