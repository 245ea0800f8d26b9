//! An attempt without a shard's lock: seize the slots of a request, decide, release them.
//!
//! It serves every state that is in its slot, of any algorithm and for any number of limits. What
//! it cannot serve it leaves as it was, and `locked_path.rs` decides: a new key, a state in the
//! slab, a state that no longer fits its slot, a deadline that moves back.

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Ask, Decision, Packed, Timestamp};

use super::MemoryStore;
use super::lock::Backoff;
use super::request::{Few, HashedCheck, StateCheck, StoreDecision};
use super::shard::SlotRef;
use super::slot::{Slot, slot_size};
use crate::{Check, CheckError};

/// Checks of a batch whose cache misses are taken together: enough to keep the memory busy, few
/// enough that the lines are still in the cache when it is their turn.
pub(crate) const BATCH: usize = 32;

/// How often a request with several checks is attempted before it takes the locks.
pub(super) const ATTEMPTS: usize = if cfg!(loom) { 1 } else { 16 };

/// Why a request was not decided without a lock. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FastPathMiss {
    /// Somebody has a slot; it will be free in a moment.
    Contended,
    /// A state is not in its slot, or does not fit it afterwards.
    NotApplicable,
}

/// A seized slot, with what was in it.
#[derive(Clone, Copy)]
struct Seized<'a> {
    place: SlotRef<'a>,
    slot: Slot,
}

impl<'a> Seized<'a> {
    /// Decides on a copy of the state in the slot. `None` if that cannot be written without the
    /// shard's lock: the tag must stay, and the deadline must not become earlier than the shard
    /// knows.
    #[inline(always)]
    fn decide(
        &self,
        packed: &mut Packed,
        check: &HashedCheck<'_>,
        now: Timestamp,
        admitted: bool,
        decision: &mut Decision,
    ) -> bool {
        let before = packed.deadline;
        let ask = Ask::new(check.cost, now);
        packed.decide(check.limit, self.place.size, &ask, admitted, decision)
            && packed.deadline >= before
            && self.slot.has_tag_of(packed.deadline)
    }

    /// The state in the slot.
    #[inline(always)]
    fn packed(&self) -> Packed {
        self.place.packed(self.slot)
    }

    /// Releases the slot with another state.
    #[inline(always)]
    fn update(&self, packed: &Packed) {
        self.place.release_packed(packed);
    }

    #[inline(always)]
    fn restore(&self) {
        self.place.release(self.slot.body);
    }
}

impl MemoryStore {
    /// Seizes the slot of a check.
    #[inline(always)]
    fn seize(&self, check: &HashedCheck<'_>) -> Result<Seized<'_>, FastPathMiss> {
        let size = check.limit.packed_size().ok_or(FastPathMiss::NotApplicable)?;
        let fingerprint = check.fingerprint();
        let place = self.table.span(check.shard, size).probe(fingerprint);
        let place = place.ok_or(FastPathMiss::NotApplicable)?;
        let slot = place.try_seize().ok_or(FastPathMiss::Contended)?;
        if !fingerprint.matches_inline(slot.tag) {
            place.release(slot.body);
            return Err(FastPathMiss::NotApplicable);
        }
        Ok(Seized { place, slot })
    }

    /// Decides one check. The time is read when the slot is seized, so that times in one slot
    /// never run backwards.
    #[inline(always)]
    fn try_one(
        &self,
        check: &HashedCheck<'_>,
        time: impl Fn() -> Timestamp,
        decision: &mut Decision,
    ) -> Result<(), FastPathMiss> {
        let seized = self.seize(check)?;
        let mut packed = seized.packed();
        if seized.decide(&mut packed, check, time(), true, decision) {
            seized.update(&packed);
            Ok(())
        } else {
            seized.restore();
            Err(FastPathMiss::NotApplicable)
        }
    }

    /// Decides a check on its own: without a lock, or else with one.
    #[inline(always)]
    pub(crate) fn decide_one(
        &self,
        check: &Check<'_>,
        time: impl Fn() -> Timestamp,
    ) -> Result<StoreDecision, CheckError> {
        self.decide_hashed(&self.hashed(check), time)
    }

    #[inline(always)]
    pub(super) fn decide_hashed(
        &self,
        check: &HashedCheck<'_>,
        time: impl Fn() -> Timestamp,
    ) -> Result<StoreDecision, CheckError> {
        let mut decision = Decision::default();
        match self.try_one(check, &time, &mut decision) {
            Ok(()) => Ok(decision.into()),
            Err(miss) => self.decide_missed(check, miss, &time),
        }
    }

    /// A slot that somebody has is waited for before it is touched again: every attempt takes its
    /// cache line away from the thread that has it.
    #[inline(never)]
    fn decide_missed(
        &self,
        check: &HashedCheck<'_>,
        mut miss: FastPathMiss,
        time: &dyn Fn() -> Timestamp,
    ) -> Result<StoreDecision, CheckError> {
        let mut backoff = Backoff::new();
        while miss == FastPathMiss::Contended {
            backoff.wait();
            let mut decision = Decision::default();
            match self.try_one(check, time, &mut decision) {
                Ok(()) => return Ok(decision.into()),
                Err(again) => miss = again,
            }
        }
        self.decide_one_locked(check, time)
    }

    /// Decides checks one by one, in order, with their cache misses overlapped: the lines of all
    /// are touched before the first is decided.
    pub(crate) fn decide_batch(
        &self,
        checks: &[Check<'_>],
        time: impl Fn(usize) -> Timestamp + Copy,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), CheckError> {
        if checks.iter().any(|check| check.limit.algorithm() == Algorithm::Concurrency) {
            return Err(CheckError::NeedsPermit);
        }
        decisions.reserve(checks.len());
        for (round, chunk) in checks.chunks(BATCH).enumerate() {
            let (mut hashes, mut homes) = ([0; BATCH], [0; BATCH]);
            for ((hash, home), check) in hashes.iter_mut().zip(&mut homes).zip(chunk) {
                let hashed = self.hashed(check);
                (*hash, *home) = (hashed.hash, self.home_word(&hashed));
            }
            // A separate loop: the shorter it is, the more cache misses are under way at once.
            std::hint::black_box(self.table.touch(&homes[..chunk.len()]));
            for (index, (check, &hash)) in chunk.iter().zip(&hashes).enumerate() {
                let time = || time(round * BATCH + index);
                decisions.push(self.decide_hashed(&self.with_hash(hash, check), time)?.decision);
            }
        }
        Ok(())
    }

    /// Touches what up to [`BATCH`] checks will need, so that their cache misses overlap.
    #[cfg(feature = "policies")]
    pub(crate) fn touch<'a>(
        &self,
        checks: impl Iterator<Item = (&'a [u8], &'a tidegate_core::Limit)>,
    ) {
        let mut homes = [0; BATCH];
        let mut count = 0;
        for (home, (key, limit)) in homes.iter_mut().zip(checks) {
            *home = self.home_word(&self.hashed(&Check::new(key, limit, 0)));
            count += 1;
        }
        std::hint::black_box(self.table.touch(&homes[..count]));
    }

    /// Where in the table the line begins in which a check's state is looked for first.
    #[inline(always)]
    fn home_word(&self, check: &HashedCheck<'_>) -> usize {
        let span = self.table.span(check.shard, slot_size(check.limit));
        span.home_word(check.fingerprint())
    }

    /// Decides all checks of a request, in order. A thread that has seized one slot never waits for
    /// another.
    pub(super) fn try_all(
        &self,
        checks: &mut [StateCheck<'_>],
        time: impl Fn() -> Timestamp,
        decisions: &mut Few<Decision>,
    ) -> Result<(), FastPathMiss> {
        let mut seized: Few<(Seized<'_>, Packed)> = SmallVec::new();
        let mut result = Ok(());
        for check in &*checks {
            match self.seize(&check.check) {
                Ok(slot) => seized.push((slot, Packed::default())),
                Err(miss) => {
                    result = Err(miss);
                    break;
                }
            }
        }
        if result.is_ok() && !decide_seized(checks, &mut seized, time(), decisions) {
            result = Err(FastPathMiss::NotApplicable);
        }
        for (slot, packed) in &seized {
            match result {
                Ok(()) => slot.update(packed),
                Err(_) => slot.restore(),
            }
        }
        result
    }
}

/// Decides every check as if it were alone and, if one is denied, once more without charging.
/// `false` if a slot cannot be written, or if a denial would charge something.
fn decide_seized(
    checks: &mut [StateCheck<'_>],
    seized: &mut [(Seized<'_>, Packed)],
    now: Timestamp,
    decisions: &mut Few<Decision>,
) -> bool {
    for admitted in [true, false] {
        let mut all_admit = true;
        decisions.clear();
        for (check, (slot, packed)) in checks.iter_mut().zip(&mut *seized) {
            *packed = slot.packed();
            decisions.push(Decision::default());
            let Some(decision) = decisions.last_mut() else { return false };
            if !slot.decide(packed, &check.check, now, admitted, decision) {
                return false;
            }
            all_admit &= check.note(decision);
        }
        if all_admit {
            return true;
        }
        if admitted && checks.iter().any(StateCheck::is_consuming) {
            return false;
        }
    }
    true
}
