//! An attempt without a shard's lock: seize the slots of a request, decide, release them.
//!
//! It serves every state that is in its slot, of any algorithm and for any number of limits. What
//! it cannot serve it leaves as it was, and `locked_path.rs` decides: a new key, a state in the
//! slab, a state that no longer fits its slot, a deadline that moves back.

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Ask, Decision, Packed, PackedSize, Timestamp};

use super::MemoryStore;
use super::lock::Backoff;
use super::request::{Few, HashedCheck, StateCheck};
use super::slot::{Fingerprint, Slot, SlotRef};
use super::span::slot_size;
use crate::store::Request;
use crate::{Check, CheckError};

/// Checks of a batch whose cache misses are taken together: enough to keep the memory busy, few
/// enough that the lines are still in the cache when it is their turn.
pub(crate) const BATCH: usize = 32;

/// How often a request with several checks is attempted before it takes the locks.
pub(super) const ATTEMPTS: usize = if cfg!(loom) { 1 } else { 16 };

/// Why a request was not decided without a lock. Nothing has changed.
///
/// It is as wide as a word. It shares the place of a word of [`Seized`] in a result, and a word that
/// is copied in pieces cannot be read as a whole without a delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum FastPathMiss {
    /// Somebody has a slot; it will be free in a moment.
    Contended,
    /// A state is not in its slot, or does not fit it afterwards.
    NotApplicable,
}

/// Whether the slot of a check is being loaded already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Touched {
    Yes,
    No,
}

/// A seized slot, with what was in it.
#[derive(Clone, Copy)]
struct Seized<'a> {
    place: SlotRef<'a>,
    slot: Slot,
}

impl<'a> Seized<'a> {
    /// Seizes a slot that seems to hold a key's state.
    #[inline(always)]
    fn new(place: SlotRef<'a>, fingerprint: Fingerprint) -> Result<Self, FastPathMiss> {
        let slot = place.try_seize().ok_or(FastPathMiss::Contended)?;
        if !fingerprint.matches_inline(slot.tag) {
            place.release(slot.body);
            return Err(FastPathMiss::NotApplicable);
        }
        Ok(Seized { place, slot })
    }

    /// Decides on a copy of the state in the slot. `false` if that cannot be written without the
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
        packed.decide(check.limit, self.place.size(), &ask, admitted, decision)
            && packed.deadline >= before
            && self.slot.has_tag_of(packed.deadline)
    }

    /// Decides one check and releases the slot.
    #[inline(always)]
    fn decide_and_release(
        self,
        check: &HashedCheck<'_>,
        now: Timestamp,
        decision: &mut Decision,
    ) -> Result<(), FastPathMiss> {
        let mut packed = self.packed();
        if self.decide(&mut packed, check, now, true, decision) {
            self.update(&packed);
            Ok(())
        } else {
            self.restore();
            Err(FastPathMiss::NotApplicable)
        }
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
    /// Seizes the slot of a check. Inlined, because copying a result that was just written to memory
    /// takes longer than seizing.
    #[inline(always)]
    fn seize(&self, check: &HashedCheck<'_>) -> Result<Seized<'_>, FastPathMiss> {
        let size = check.limit.packed_size().ok_or(FastPathMiss::NotApplicable)?;
        let fingerprint = check.fingerprint();
        let span = self.table.span(check.shard, size);
        span.touch(fingerprint);
        let place = span.probable_slot(fingerprint).or_else(|| span.find(fingerprint));
        Seized::new(place.ok_or(FastPathMiss::NotApplicable)?, fingerprint)
    }

    /// Decides one check if its state is where it is most likely to be. The time is read when the
    /// slot is seized, so that times in one slot never run backwards.
    #[inline(always)]
    fn try_one(
        &self,
        size: PackedSize,
        check: &HashedCheck<'_>,
        at: Option<Timestamp>,
        touched: Touched,
        decision: &mut Decision,
    ) -> Result<(), FastPathMiss> {
        let fingerprint = check.fingerprint();
        let span = self.table.span(check.shard, size);
        if touched == Touched::No {
            span.touch(fingerprint);
        }
        let place = span.probable_slot(fingerprint);
        let place = place.ok_or(FastPathMiss::NotApplicable)?;
        Seized::new(place, fingerprint)?.decide_and_release(check, self.time(at), decision)
    }

    /// Decides a check on its own, at the time given or the clock's.
    #[inline(always)]
    pub(crate) fn decide_one(
        &self,
        check: &Check<'_>,
        at: Option<Timestamp>,
    ) -> Result<Decision, CheckError> {
        let mut decision = Decision::default();
        self.decide_into(check, at, &mut decision)?;
        Ok(decision)
    }

    /// Decides a check on its own, and writes the decision to where the caller wants it. Copying it
    /// right after it was written would take as long as some decisions.
    pub(crate) fn decide_into(
        &self,
        check: &Check<'_>,
        at: Option<Timestamp>,
        decision: &mut Decision,
    ) -> Result<(), CheckError> {
        if check.limit.algorithm() == Algorithm::Concurrency {
            return Err(CheckError::NeedsPermit);
        }
        if check.overflowing() > 0 {
            let request = Request::new(std::slice::from_ref(check));
            *decision = self.decide_all(&request, at)?.decisions[0];
            return Ok(());
        }
        self.decide_hashed(self.hash(check.key), check, at, Touched::No, decision);
        Ok(())
    }

    /// Decides a check of a rate limit whose key has this hash.
    #[inline(always)]
    fn decide_hashed(
        &self,
        hash: u64,
        check: &Check<'_>,
        at: Option<Timestamp>,
        touched: Touched,
        decision: &mut Decision,
    ) {
        let hashed = self.with_hash(hash, check);
        // The size is a constant in each branch.
        let tried = match check.limit.packed_size() {
            Some(PackedSize::Small) => {
                self.try_one(PackedSize::Small, &hashed, at, touched, decision)
            }
            Some(PackedSize::Large) => {
                self.try_one(PackedSize::Large, &hashed, at, touched, decision)
            }
            None => Err(FastPathMiss::NotApplicable),
        };
        if let Err(miss) = tried {
            self.decide_elsewhere(hash, check, at, miss, decision);
        }
    }

    /// Decides a check whose state is not where it is most likely to be, or is seized.
    ///
    /// A seized slot is waited for before it is touched again: every attempt takes its cache line
    /// away from the thread that has it.
    #[inline(never)]
    fn decide_elsewhere(
        &self,
        hash: u64,
        check: &Check<'_>,
        at: Option<Timestamp>,
        miss: FastPathMiss,
        decision: &mut Decision,
    ) {
        let hashed = self.with_hash(hash, check);
        let mut backoff = Backoff::new();
        if miss == FastPathMiss::Contended {
            backoff.wait();
        }
        loop {
            let seized = self.seize(&hashed);
            match seized
                .and_then(|seized| seized.decide_and_release(&hashed, self.time(at), decision))
            {
                Ok(()) => return,
                Err(FastPathMiss::Contended) => backoff.wait(),
                Err(FastPathMiss::NotApplicable) => break,
            }
        }
        self.decide_one_locked(hashed, &|| self.time(at), decision);
    }

    /// Decides checks one by one, in order, with their cache misses overlapped: the lines of all
    /// are touched before the first is decided.
    pub(crate) fn decide_batch(
        &self,
        checks: &[Check<'_>],
        time: impl Fn(usize) -> Option<Timestamp>,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), CheckError> {
        if checks.iter().any(|check| check.limit.algorithm() == Algorithm::Concurrency) {
            return Err(CheckError::NeedsPermit);
        }
        decisions.reserve(checks.len());
        for (round, chunk) in checks.chunks(BATCH).enumerate() {
            let (mut hashes, mut words) = ([0; BATCH], [0; BATCH]);
            for ((hash, word), check) in hashes.iter_mut().zip(&mut words).zip(chunk) {
                let hashed = self.hashed(check);
                (*hash, *word) = (hashed.hash, self.probable_word(&hashed));
            }
            // A separate loop: the shorter it is, the more cache misses are under way at once.
            std::hint::black_box(self.table.touch(&words[..chunk.len()]));
            for (index, (check, &hash)) in chunk.iter().zip(&hashes).enumerate() {
                let at = time(round * BATCH + index);
                decisions.push(Decision::default());
                let Some(decision) = decisions.last_mut() else { continue };
                match check.overflowing() {
                    0 => self.decide_hashed(hash, check, at, Touched::Yes, decision),
                    _ => self.decide_into(check, at, decision)?,
                }
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
        let mut words = [0; BATCH];
        let mut count = 0;
        for (word, (key, limit)) in words.iter_mut().zip(checks) {
            *word = self.probable_word(&self.hashed(&Check::new(key, limit, 0)));
            count += 1;
        }
        std::hint::black_box(self.table.touch(&words[..count]));
    }

    /// Where in the table the slot begins in which a check's state probably is.
    #[inline(always)]
    pub(super) fn probable_word(&self, check: &HashedCheck<'_>) -> usize {
        let span = self.table.span(check.shard, slot_size(check.limit));
        span.probable_word(check.fingerprint())
    }

    /// Decides all checks of a request, in order, and writes a decision for each. A thread that has
    /// seized one slot never waits for another.
    #[inline]
    pub(super) fn try_all(
        &self,
        checks: &[StateCheck<'_>],
        time: impl Fn() -> Timestamp,
        decisions: &mut [Decision],
    ) -> Result<(), FastPathMiss> {
        let mut seized: Few<(Seized<'_>, Packed)> = SmallVec::new();
        let mut result = Ok(());
        for check in checks {
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
#[inline]
fn decide_seized(
    checks: &[StateCheck<'_>],
    seized: &mut [(Seized<'_>, Packed)],
    now: Timestamp,
    decisions: &mut [Decision],
) -> bool {
    for admitted in [true, false] {
        let mut all_admit = true;
        let states = checks.iter().zip(&mut *seized).zip(&mut *decisions);
        for ((check, (slot, packed)), decision) in states {
            *packed = slot.packed();
            if !slot.decide(packed, &check.check, now, admitted, decision) {
                return false;
            }
            all_admit &= check.observed | decision.allowed;
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
