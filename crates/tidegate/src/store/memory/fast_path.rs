//! The fast path: seizes the slots of a request, decides and releases them, without the lock of a
//! shard.
//!
//! It applies to every state that is in its slot, of any algorithm and for any number of limits. It
//! leaves all other states unchanged for `locked_path.rs`: those of new keys, states in the slab,
//! states that would no longer fit their slot, and states whose deadline would become earlier.

use smallvec::SmallVec;
use tidegate_core::{
    Algorithm, Attempt, Decided, Decision, Limit, Packed, PackedSize, ResetAfter, RetryAfter,
    Timestamp,
};

use super::MemoryStore;
use super::lock::Backoff;
use super::request::{HashedCheck, INLINE_CHECKS, InlineVec};
use super::slot::{self, Fingerprint, Slot, SlotRef};
use super::span::slot_size;
use crate::Request;
use crate::{Check, CheckError, MAX_CHECKS, Overflow};

/// The number of checks of a batch whose cache misses are overlapped: enough to keep the memory busy,
/// and few enough that the lines are still in the cache when the checks are decided.
pub(crate) const BATCH: usize = 32;

/// The number of attempts of a request with several checks before it takes the locks.
const ATTEMPTS: usize = if cfg!(loom) { 1 } else { 16 };

/// The reason that a request was not decided without a lock. No state has changed.
///
/// The enum is as wide as a word. In a `Result` it has the position of a word of [`SeizedSlot`], and a
/// word that is copied in pieces cannot be read as a whole without a delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum FastPathMiss {
    /// Another thread has seized a slot. It will release the slot soon.
    Contended,
    /// A state is not in its slot, or would not fit it afterwards.
    NotApplicable,
}

/// Whether the slot of a check is already being loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Prefetched {
    Yes,
    No,
}

/// A seized slot, with the contents it had.
#[derive(Clone, Copy)]
struct SeizedSlot<'a> {
    slot_ref: SlotRef<'a>,
    slot: Slot,
}

impl<'a> SeizedSlot<'a> {
    /// Seizes a slot that probably holds the state of a key.
    #[inline(always)]
    fn new(slot_ref: SlotRef<'a>, fingerprint: Fingerprint) -> Result<Self, FastPathMiss> {
        let slot = slot_ref.try_seize().ok_or(FastPathMiss::Contended)?;
        if !fingerprint.matches_inline(slot.tag) {
            slot_ref.release(slot.body);
            return Err(FastPathMiss::NotApplicable);
        }
        Ok(SeizedSlot { slot_ref, slot })
    }

    /// Decides on the state in the slot. Returns the decision and the body with which the slot has to
    /// be released, or `None` if the state was not decided on and is unchanged.
    #[inline(always)]
    fn decide(self, limit: &Limit, attempt: &Attempt, admitted: bool) -> Option<(Decision, u64)> {
        let (deadline, head) = (self.slot.deadline(), self.slot.head());
        match self.slot_ref.large() {
            Some(words) => {
                let mut packed = Packed { deadline, head, words };
                let decision = packed.decide(limit, PackedSize::Large, attempt, admitted)?;
                Some((decision, slot::body(packed.deadline, packed.head)))
            }
            None => {
                let mut packed = Packed { deadline, head, words: () };
                let decision = packed.decide(limit, PackedSize::Small, attempt, admitted)?;
                Some((decision, slot::body(packed.deadline, packed.head)))
            }
        }
    }

    /// Decides one check on the state in the slot, and releases the slot.
    #[inline(always)]
    fn decide_and_release(
        self,
        check: &HashedCheck<'_>,
        now: Timestamp,
    ) -> Result<Decision, FastPathMiss> {
        match self.decide(check.limit, &Attempt::new(check.cost, now), true) {
            Some((decision, body)) => {
                self.slot_ref.release(body);
                Ok(decision)
            }
            None => {
                self.slot_ref.release(self.slot.body);
                Err(FastPathMiss::NotApplicable)
            }
        }
    }
}

/// A seized slot of a request with several checks. Its state is changed in place, so its old words
/// are kept to restore it.
#[derive(Clone, Copy)]
struct SeizedCheck<'a> {
    seized: SeizedSlot<'a>,
    /// The other words of the slot when it was seized.
    words: [u64; Packed::WORDS],
    /// The body with which the slot is released.
    body: u64,
}

impl<'a> SeizedCheck<'a> {
    #[inline(always)]
    fn new(seized: SeizedSlot<'a>) -> Self {
        SeizedCheck { seized, words: seized.slot_ref.words(), body: seized.slot.body }
    }

    /// Restores the state that the slot had when it was seized.
    #[cold]
    fn restore(&mut self) {
        self.seized.slot_ref.set_words(&self.words);
        self.body = self.seized.slot.body;
    }
}

/// A decision in two registers, for a call that is not inlined. Reading a decision from memory right
/// after it was written in pieces of other sizes takes as long as some decisions.
#[derive(Clone, Copy)]
struct CompactDecision {
    /// The remaining units, with the marks below.
    remaining: u64,
    reset_us: u64,
}

/// Marks of a [`CompactDecision`]. The remaining units of a limit are below all of them.
const ALLOWED: u64 = 1 << 63;
const NO_ROOM: u64 = 1 << 62;
const NEEDS_PERMIT: u64 = 1 << 61;

impl CompactDecision {
    /// Converts a decision. The time to retry is returned in memory, because few decisions are
    /// denials.
    #[inline(always)]
    fn new(decision: Decision, retry_after: &mut RetryAfter) -> Self {
        let Decision { allowed, remaining, reset_after, no_room, .. } = decision;
        if !allowed {
            *retry_after = decision.retry_after;
        }
        let marks = if allowed { ALLOWED } else { 0 } | if no_room { NO_ROOM } else { 0 };
        CompactDecision { remaining: remaining | marks, reset_us: reset_after.as_micros() }
    }

    #[inline(always)]
    fn decision(self, limit: &Limit, retry_after: RetryAfter) -> Result<Decision, CheckError> {
        if self.remaining & NEEDS_PERMIT > 0 {
            return Err(CheckError::NeedsPermit);
        }
        Ok(Decision {
            allowed: self.remaining & ALLOWED > 0,
            limit: limit.count(),
            remaining: self.remaining & !(ALLOWED | NO_ROOM),
            retry_after,
            reset_after: ResetAfter::from_micros(self.reset_us),
            no_room: self.remaining & NO_ROOM > 0,
            decided: Decided::Exact,
        })
    }
}

impl MemoryStore {
    /// Seizes the slot of a check. It is inlined, because copying a result that was just written to
    /// memory takes longer than seizing.
    #[inline(always)]
    fn seize(&self, check: &HashedCheck<'_>) -> Result<SeizedSlot<'_>, FastPathMiss> {
        let size = check.limit.packed_size().ok_or(FastPathMiss::NotApplicable)?;
        let fingerprint = check.fingerprint();
        let span = self.table.span(check.shard, size);
        span.prefetch(fingerprint);
        let slot_ref =
            span.probable_slot(fingerprint).filter(|slot| fingerprint.matches(slot.tag()));
        let slot_ref = slot_ref.or_else(|| span.find(fingerprint));
        SeizedSlot::new(slot_ref.ok_or(FastPathMiss::NotApplicable)?, fingerprint)
    }

    /// Whether another thread has seized the slot of a check.
    #[cfg(all(test, not(loom)))]
    pub(super) fn is_seized(&self, check: &HashedCheck<'_>) -> bool {
        match self.seize(check) {
            Ok(seized) => {
                seized.slot_ref.release(seized.slot.body);
                false
            }
            Err(miss) => miss == FastPathMiss::Contended,
        }
    }

    /// Decides one check if its state is in its most probable slot. The time is read while the slot
    /// is seized, so that the times of a slot never run backwards.
    #[inline(always)]
    fn try_one(
        &self,
        size: PackedSize,
        check: &HashedCheck<'_>,
        at: Option<Timestamp>,
        prefetched: Prefetched,
    ) -> Result<Decision, FastPathMiss> {
        let fingerprint = check.fingerprint();
        let span = self.table.span(check.shard, size);
        if prefetched == Prefetched::No {
            span.prefetch(fingerprint);
        }
        let slot_ref = span.probable_slot(fingerprint);
        let slot_ref = slot_ref.ok_or(FastPathMiss::NotApplicable)?;
        SeizedSlot::new(slot_ref, fingerprint)?.decide_and_release(check, self.time(at))
    }

    /// Decides a check on its own, at the time `at` or, by default, at the time of the clock.
    ///
    /// # Errors
    /// Returns [`CheckError::NeedsPermit`] for a `concurrency` limit.
    #[inline(always)]
    pub(crate) fn decide_one(
        &self,
        check: &Check<'_>,
        at: Option<Timestamp>,
    ) -> Result<Decision, CheckError> {
        let mut retry_after = RetryAfter::Now;
        self.decide_compact(check, at, &mut retry_after).decision(check.limit, retry_after)
    }

    #[inline(never)]
    fn decide_compact(
        &self,
        check: &Check<'_>,
        at: Option<Timestamp>,
        retry_after: &mut RetryAfter,
    ) -> CompactDecision {
        let hash = self.hash(check.key);
        match self.decide_hashed(hash, check, at, Prefetched::No) {
            Ok(decision) => CompactDecision::new(decision, retry_after),
            Err(_) => CompactDecision { remaining: NEEDS_PERMIT, reset_us: 0 },
        }
    }

    /// Decides a check of a rate limit whose key has this hash.
    #[inline(always)]
    fn decide_hashed(
        &self,
        hash: u64,
        check: &Check<'_>,
        at: Option<Timestamp>,
        prefetched: Prefetched,
    ) -> Result<Decision, CheckError> {
        if check.overflow == Overflow::Refuse {
            let hashed = self.with_hash(hash, check);
            // In each branch the size is a constant.
            let tried = match check.limit.packed_size() {
                Some(PackedSize::Small) => self.try_one(PackedSize::Small, &hashed, at, prefetched),
                Some(PackedSize::Large) => self.try_one(PackedSize::Large, &hashed, at, prefetched),
                None => Err(FastPathMiss::NotApplicable),
            };
            match tried {
                Ok(decision) => return Ok(decision),
                Err(FastPathMiss::Contended) => Backoff::new().wait(),
                Err(FastPathMiss::NotApplicable) => {}
            }
        }
        self.decide_after_miss(hash, check, at)
    }

    /// Decides a check whose state is not in its most probable slot, or whose slot is seized.
    ///
    /// It waits before it tries to seize a slot again, because every attempt takes the cache line
    /// away from the thread that holds the slot.
    #[inline(never)]
    fn decide_after_miss(
        &self,
        hash: u64,
        check: &Check<'_>,
        at: Option<Timestamp>,
    ) -> Result<Decision, CheckError> {
        if check.limit.algorithm() == Algorithm::Concurrency {
            return Err(CheckError::NeedsPermit);
        }
        if check.consumed_if_denied() > 0 {
            let request = Request::new(std::slice::from_ref(check));
            return Ok(self.decide_all(&request, at)?.decisions[0]);
        }
        let hashed = self.with_hash(hash, check);
        let mut backoff = Backoff::new();
        loop {
            let seized = self.seize(&hashed);
            match seized.and_then(|seized| seized.decide_and_release(&hashed, self.time(at))) {
                Ok(decision) => return Ok(decision),
                Err(FastPathMiss::Contended) => backoff.wait(),
                Err(FastPathMiss::NotApplicable) => break,
            }
        }
        Ok(self.decide_one_locked(hashed, &|| self.time(at)))
    }

    /// Decides checks one by one, in order. Their cache misses overlap, because the slots of up to
    /// [`BATCH`] checks are prefetched before the first of them is decided.
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
            // This is a separate loop, because a shorter loop has more cache misses in flight.
            std::hint::black_box(self.table.prefetch(&words[..chunk.len()]));
            for (index, (check, &hash)) in chunk.iter().zip(&hashes).enumerate() {
                let at = time(round * BATCH + index);
                decisions.push(self.decide_hashed(hash, check, at, Prefetched::Yes)?);
            }
        }
        Ok(())
    }

    /// Prefetches the slots of up to [`BATCH`] checks, so that their cache misses overlap.
    #[cfg(feature = "policies")]
    pub(crate) fn prefetch<'a>(
        &self,
        checks: impl Iterator<Item = (&'a [u8], &'a tidegate_core::Limit)>,
    ) {
        let mut words = [0; BATCH];
        let mut count = 0;
        for (word, (key, limit)) in words.iter_mut().zip(checks) {
            *word = self.probable_word(&self.hashed(&Check::new(key, limit, 0)));
            count += 1;
        }
        std::hint::black_box(self.table.prefetch(&words[..count]));
    }

    /// The index in the table of the first word of the most probable slot of a check.
    #[inline(always)]
    pub(super) fn probable_word(&self, check: &HashedCheck<'_>) -> usize {
        let span = self.table.span(check.shard, slot_size(check.limit));
        span.probable_word(check.fingerprint())
    }

    /// Decides all checks of a request, in order, and adds a decision for each. Returns `false` if
    /// that requires a lock. The number of attempts is bounded, because two requests that each hold a
    /// slot that the other needs could retry for ever.
    #[inline]
    pub(super) fn decide_unlocked(
        &self,
        checks: &[Check<'_>],
        at: Option<Timestamp>,
        decisions: &mut SmallVec<[Decision; INLINE_CHECKS]>,
    ) -> bool {
        if checks.len() > MAX_CHECKS {
            // Validation on the locked path returns the error.
            return false;
        }
        let mut backoff = Backoff::new();
        for _ in 0..ATTEMPTS {
            match self.try_all(checks, at, decisions) {
                Ok(()) => return true,
                Err(FastPathMiss::Contended) => backoff.wait(),
                Err(FastPathMiss::NotApplicable) => break,
            }
        }
        false
    }

    /// Seizes the slots of all checks, decides and releases them. A thread that has seized a slot
    /// never waits for another one.
    #[inline(always)]
    fn try_all(
        &self,
        checks: &[Check<'_>],
        at: Option<Timestamp>,
        decisions: &mut SmallVec<[Decision; INLINE_CHECKS]>,
    ) -> Result<(), FastPathMiss> {
        let mut seized: InlineVec<SeizedCheck<'_>> = SmallVec::new();
        let result = self.seize_all(checks, &mut seized);
        let result =
            result.and_then(|()| decide_seized(checks, &mut seized, self.time(at), decisions));
        for slot in &seized {
            slot.seized.slot_ref.release(slot.body);
        }
        result
    }

    #[inline(always)]
    fn seize_all<'s>(
        &'s self,
        checks: &[Check<'_>],
        seized: &mut InlineVec<SeizedCheck<'s>>,
    ) -> Result<(), FastPathMiss> {
        let mut last: (&[u8], u64) = (&[], 0);
        for (index, check) in checks.iter().enumerate() {
            // Checks with the same key are common.
            if index == 0 || !std::ptr::eq(last.0, check.key) {
                last = (check.key, self.hash(check.key));
            }
            match self.seize(&self.with_hash(last.1, check)) {
                Ok(slot) => seized.push(SeizedCheck::new(slot)),
                // Checks that share a state have to be merged.
                Err(FastPathMiss::Contended) if may_share_state(checks, index) => {
                    return Err(FastPathMiss::NotApplicable);
                }
                Err(miss) => return Err(miss),
            }
        }
        Ok(())
    }
}

/// Whether a check may count in the state of an earlier check.
#[cold]
fn may_share_state(checks: &[Check<'_>], index: usize) -> bool {
    let check = &checks[index];
    let shares = |other: &Check<'_>| other.limit.id() == check.limit.id() && other.key == check.key;
    checks[..index].iter().any(shares)
}

/// Decides every check as if it were alone and, if one is denied, decides all of them again without
/// charging. Adds the decision of each check. If a check cannot be decided, all states are unchanged.
#[inline(always)]
fn decide_seized(
    checks: &[Check<'_>],
    seized: &mut [SeizedCheck<'_>],
    now: Timestamp,
    decisions: &mut SmallVec<[Decision; INLINE_CHECKS]>,
) -> Result<(), FastPathMiss> {
    for admitted in [true, false] {
        let mut all_admit = true;
        decisions.clear();
        for (check, slot) in checks.iter().zip(&mut *seized) {
            let attempt = Attempt::new(check.cost, now);
            let Some((decision, body)) = slot.seized.decide(check.limit, &attempt, admitted) else {
                seized.iter_mut().for_each(SeizedCheck::restore);
                return Err(FastPathMiss::NotApplicable);
            };
            slot.body = body;
            all_admit &= check.observed | decision.allowed;
            decisions.push(decision);
        }
        if all_admit || !admitted {
            break;
        }
        seized.iter_mut().for_each(SeizedCheck::restore);
        // A denied request with `Overflow::Consume` charges the units that are left.
        if checks.iter().any(|check| check.consumed_if_denied() > 0) {
            return Err(FastPathMiss::NotApplicable);
        }
    }
    Ok(())
}
