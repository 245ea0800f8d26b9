//! The idempotency cache: a request with a known id gets the remembered verdict and is not charged
//! again.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tidegate_core::{Cost, Timestamp};

use crate::sync::Mutex;
use crate::{CheckError, Clock, Verdict};

/// The smallest number of ids in a shard. Ids are kept in shards, so that few requests wait for
/// each other, and removing the expired ids of one is quick.
const SHARD_IDS: usize = 64;
const MAX_SHARDS: usize = 256;

#[derive(Debug)]
pub(super) struct IdempotencyCache {
    shards: Box<[Mutex<HashMap<u64, Remembered>>]>,
    /// The most ids in one shard.
    shard_max: usize,
    /// The number of shards swept so far, which determines the next one.
    next_swept: AtomicUsize,
    len: AtomicUsize,
}

#[derive(Debug)]
struct Remembered {
    costs: Box<[Cost]>,
    verdict: Verdict,
    since: Timestamp,
    window_us: u64,
}

impl Remembered {
    /// Whether the verdict is still remembered. A time later than now (the clock stepped back) is
    /// moved to now.
    fn is_live(&mut self, now: Timestamp) -> bool {
        self.since = self.since.min(now);
        self.since.plus_micros(self.window_us) > now
    }
}

impl IdempotencyCache {
    pub(super) fn new(max_ids: usize) -> Self {
        let shards = (max_ids / SHARD_IDS).clamp(1, MAX_SHARDS);
        IdempotencyCache {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            shard_max: max_ids / shards,
            next_swept: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// Returns the remembered verdict of a request or that of `decide`, and whether the cache was
    /// too full to remember it. A verdict that charged something (an admission, or a denial that
    /// consumed the units left) is remembered for the window. Requests with the same id wait for
    /// each other, so that only one is charged.
    pub(super) fn get_or_decide(
        &self,
        fingerprint: u64,
        costs: &[Cost],
        window_us: u64,
        clock: &Clock,
        at: Option<Timestamp>,
        decide: impl FnOnce() -> Result<Verdict, CheckError>,
    ) -> Result<(Verdict, bool), CheckError> {
        let mut shard = self.shards[fingerprint as usize % self.shards.len()].lock();
        let now = at.unwrap_or_else(|| clock.now());
        if let Entry::Occupied(mut known) = shard.entry(fingerprint) {
            if known.get_mut().is_live(now) {
                let known = known.get();
                let same = *known.costs == *costs;
                return if same {
                    Ok((known.verdict.clone(), false))
                } else {
                    Err(CheckError::IdReused)
                };
            }
            known.remove();
            self.len.fetch_sub(1, Relaxed);
        }
        let verdict = decide()?;
        if !verdict.allowed && !verdict.consumed {
            return Ok((verdict, false));
        }
        if shard.len() >= self.shard_max {
            self.clear(&mut shard, now);
        }
        let room = shard.len() < self.shard_max;
        if room {
            let costs = costs.into();
            let known = Remembered { costs, verdict: verdict.clone(), since: now, window_us };
            shard.insert(fingerprint, known);
            self.len.fetch_add(1, Relaxed);
        }
        Ok((verdict, !room))
    }

    /// Removes the expired ids of a hundredth of the shards.
    pub(super) fn sweep(&self, now: Timestamp) {
        for _ in 0..self.shards.len().div_ceil(100) {
            let next = self.next_swept.fetch_add(1, Relaxed) % self.shards.len();
            self.clear(&mut self.shards[next].lock(), now);
        }
    }

    fn clear(&self, shard: &mut HashMap<u64, Remembered>, now: Timestamp) {
        let before = shard.len();
        shard.retain(|_, known| known.is_live(now));
        self.len.fetch_sub(before - shard.len(), Relaxed);
    }
}
