//! The fast path of one check: seizes its slot, decides and releases the slot, without the lock of
//! a shard. Requests with several checks are decided in `fast_path_several.rs`.
//!
//! It applies to states that are in their slots. Long logs and permits are in the slab, so they
//! take the locked path (`locked_path.rs`). So do new keys, and states that cannot be decided on in
//! place ([`Packed::decide_kind`] lists the reasons). All of these are left unchanged here.
//!
//! The functions that decide are compiled for each kind of packed states (`for_kind!`).

use tidegate_core::{
    Algorithm, Attempt, Decided, Decision, Limit, Packed, PackedKind, PackedSize, ResetAfter,
    RetryAfter, Timestamp,
};

use super::MemoryStore;
use super::request::HashedCheck;
use super::slot::{Fingerprint, Slot, SlotRef};
use super::slot_groups::slot_size;
use crate::sync::Backoff;
use crate::{Check, CheckError, Overflow, Request};

/// The number of checks of a batch whose cache misses are overlapped: enough to keep the memory
/// busy, and few enough that the lines are still in the cache when the checks are decided.
pub(crate) const BATCH: usize = 32;

/// The reason that a request was not decided without a lock. No state has changed.
///
/// The enum is as wide as a word. In a `Result` it has the position of a word of [`SeizedSlot`],
/// and a word that is copied in pieces cannot be read as a whole without a delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum FastPathMiss {
    /// Another thread has seized a slot. It will release the slot soon.
    Contended,
    /// A state is not in its slot or cannot be decided on there, checks share a state, or a denial
    /// would charge something.
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
pub(super) struct SeizedSlot<'a> {
    pub(super) slot_ref: SlotRef<'a>,
    pub(super) slot: Slot,
}

impl<'a> SeizedSlot<'a> {
    /// Seizes a slot that probably holds the state of a key.
    #[inline(always)]
    pub(super) fn new(
        slot_ref: SlotRef<'a>,
        fingerprint: Fingerprint,
    ) -> Result<Self, FastPathMiss> {
        let slot = slot_ref.try_seize().ok_or(FastPathMiss::Contended)?;
        if !fingerprint.matches_packed(slot.tag) {
            slot_ref.release(slot.body);
            return Err(FastPathMiss::NotApplicable);
        }
        Ok(SeizedSlot { slot_ref, slot })
    }

    /// Decides on the state in the slot, which has the kind with the number `KIND`. Returns the
    /// decision and the body with which the slot has to be released, or `None` if the state was not
    /// decided on and is unchanged.
    #[inline(always)]
    pub(super) fn decide<const KIND: usize>(
        self,
        limit: &Limit,
        attempt: Attempt,
        admitted: bool,
    ) -> Option<(Decision, u64)> {
        let (deadline_high, body) = (self.slot.deadline_high(), self.slot.body);
        match PackedKind::ALL[KIND].size() {
            PackedSize::Small => {
                let mut packed = Packed { deadline_high, body, words: () };
                Some((packed.decide_kind::<KIND>(limit, attempt, admitted)?, packed.body))
            }
            PackedSize::Large => {
                let mut packed = Packed { deadline_high, body, words: self.slot_ref.large()? };
                Some((packed.decide_kind::<KIND>(limit, attempt, admitted)?, packed.body))
            }
        }
    }
}

/// Calls a function that is compiled for each kind of packed states, with the kind of a limit.
///
/// Where the kind is a constant, all numbers of a state have constant positions. The code for one
/// kind is also short enough that its variables stay in registers.
macro_rules! for_kind {
    ($kind:expr, $($function:ident).+, $arguments:tt) => {
        match $kind {
            PackedKind::SmallCounter => for_kind!(@call SmallCounter, $($function).+, $arguments),
            PackedKind::LargeCounter => for_kind!(@call LargeCounter, $($function).+, $arguments),
            PackedKind::SmallFixed => for_kind!(@call SmallFixed, $($function).+, $arguments),
            PackedKind::LargeFixed => for_kind!(@call LargeFixed, $($function).+, $arguments),
            PackedKind::Bucket => for_kind!(@call Bucket, $($function).+, $arguments),
            PackedKind::Log => for_kind!(@call Log, $($function).+, $arguments),
            PackedKind::Times => for_kind!(@call Times, $($function).+, $arguments),
            PackedKind::Cells15 => for_kind!(@call Cells15, $($function).+, $arguments),
            PackedKind::Cells7 => for_kind!(@call Cells7, $($function).+, $arguments),
            PackedKind::Cells3 => for_kind!(@call Cells3, $($function).+, $arguments),
        }
    };
    (@call $kind:ident, $($function:ident).+, $arguments:tt) => {
        $($function).+::<{ PackedKind::$kind as usize }> $arguments
    };
}

pub(super) use for_kind;

/// The kind of the states of a check, if the fast path decides it. It does not decide on permits,
/// nor does it charge denied requests.
#[inline(always)]
fn fast_path_kind(check: &Check<'_>) -> Option<PackedKind> {
    check.limit.packed_kind().filter(|_| check.overflow == Overflow::Refuse)
}

/// A decision in two registers, for a call that is not inlined. Reading a decision from memory
/// right after it was written in pieces of other sizes takes as long as some decisions.
#[derive(Clone, Copy)]
struct CompactDecision {
    /// The remaining units, with the marks below.
    remaining: u64,
    reset_us: u64,
}

/// Marks of a [`CompactDecision`]. The remaining units of a limit are below all of them.
const ALLOWED: u64 = 1 << 63;
const NO_ROOM: u64 = 1 << 62;

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
    fn decision(self, limit: &Limit, retry_after: RetryAfter) -> Decision {
        Decision {
            allowed: self.remaining & ALLOWED > 0,
            limit: limit.count(),
            remaining: self.remaining & !(ALLOWED | NO_ROOM),
            retry_after,
            reset_after: ResetAfter::from_micros(self.reset_us),
            no_room: self.remaining & NO_ROOM > 0,
            decided: Decided::Exact,
        }
    }
}

impl MemoryStore {
    /// Seizes the slot of a check.
    #[cold]
    pub(super) fn seize(&self, check: &HashedCheck<'_>) -> Result<SeizedSlot<'_>, FastPathMiss> {
        let kind = check.limit.packed_kind().ok_or(FastPathMiss::NotApplicable)?;
        let fingerprint = check.fingerprint();
        let slot_ref = self.table.slot_groups(check.shard, kind.size()).find(fingerprint);
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
        let retry = &mut retry_after;
        let decision = match fast_path_kind(check) {
            Some(kind) => for_kind!(kind, self.decide_packed, (check, at, retry)),
            None => return self.decide_slowly(check, at, self.hash(check.key)),
        };
        Ok(decision.decision(check.limit, retry_after))
    }

    /// Decides a check of a limit whose states are of the kind with the number `KIND`.
    #[inline(never)]
    fn decide_packed<const KIND: usize>(
        &self,
        check: &Check<'_>,
        at: Option<Timestamp>,
        retry_after: &mut RetryAfter,
    ) -> CompactDecision {
        let hash = self.hash(check.key);
        self.decide_hashed::<KIND>(check, at, retry_after, hash, Prefetched::No)
    }

    /// Decides a check whose key has this hash.
    #[inline(always)]
    fn decide_hashed<const KIND: usize>(
        &self,
        check: &Check<'_>,
        at: Option<Timestamp>,
        retry_after: &mut RetryAfter,
        hash: u64,
        prefetched: Prefetched,
    ) -> CompactDecision {
        match self.try_one::<KIND>(check, at, hash, prefetched) {
            Ok(decision) => CompactDecision::new(decision, retry_after),
            Err(miss) => {
                if miss == FastPathMiss::Contended {
                    Backoff::new().wait();
                }
                CompactDecision::new(self.decide_after_miss(check, at, hash), retry_after)
            }
        }
    }

    /// Decides one check if its state is in its most probable slot. The time is read while the slot
    /// is seized, so that the times of a slot never run backwards. A long log is in the slab and is
    /// decided on there.
    #[inline(always)]
    fn try_one<const KIND: usize>(
        &self,
        check: &Check<'_>,
        at: Option<Timestamp>,
        hash: u64,
        prefetched: Prefetched,
    ) -> Result<Decision, FastPathMiss> {
        let state_hash = hash ^ check.limit.id();
        let kind = PackedKind::ALL[KIND];
        let fingerprint = Fingerprint::of(state_hash, kind == PackedKind::Log);
        let shard = self.table.shard_of(state_hash);
        let groups = self.table.slot_groups(shard, kind.size());
        if prefetched == Prefetched::No {
            groups.prefetch(fingerprint);
        }
        let slot_ref = groups.probable_slot(fingerprint).ok_or(FastPathMiss::NotApplicable)?;
        if kind == PackedKind::Log && !fingerprint.matches_packed(slot_ref.tag()) {
            let decision = self.decide_on_log(check, (shard, fingerprint, slot_ref), at);
            return decision.ok_or(FastPathMiss::NotApplicable);
        }
        let seized = SeizedSlot::new(slot_ref, fingerprint)?;
        self.decide_and_release::<KIND>(seized, check, self.time(at))
    }

    /// Decides one check on the state in a seized slot, and releases the slot.
    #[inline(always)]
    fn decide_and_release<const KIND: usize>(
        &self,
        seized: SeizedSlot<'_>,
        check: &Check<'_>,
        now: Timestamp,
    ) -> Result<Decision, FastPathMiss> {
        let is_log = PackedKind::ALL[KIND] == PackedKind::Log;
        let decided = match is_log && self.is_out_of_entries() {
            true => None,
            false => seized.decide::<KIND>(check.limit, Attempt::new(check.cost, now), true),
        };
        let Some((decision, body)) = decided else {
            seized.slot_ref.release(seized.slot.body);
            return Err(FastPathMiss::NotApplicable);
        };
        self.release_decided::<KIND>(seized, body);
        Ok(decision)
    }

    /// Releases a slot with the body that a decision returned, and counts the entries of a log.
    #[inline(always)]
    pub(super) fn release_decided<const KIND: usize>(&self, seized: SeizedSlot<'_>, body: u64) {
        let SeizedSlot { slot_ref, slot } = seized;
        if PackedKind::ALL[KIND] == PackedKind::Log {
            let [before, after] = [slot.body, body].map(Packed::log_entries);
            self.table.count_entries(before, after);
        }
        slot_ref.release(body);
    }

    /// Decides a check that the fast path does not decide; see [`fast_path_kind`].
    #[cold]
    #[inline(never)]
    fn decide_slowly(
        &self,
        check: &Check<'_>,
        at: Option<Timestamp>,
        hash: u64,
    ) -> Result<Decision, CheckError> {
        if check.limit.algorithm() == Algorithm::Concurrency {
            return Err(CheckError::NeedsPermit);
        }
        if check.consumed_if_denied() > 0 {
            let request = Request::new(std::slice::from_ref(check));
            return Ok(self.decide_all(&request, at)?.decisions[0]);
        }
        Ok(self.decide_after_miss(check, at, hash))
    }

    /// Decides a check whose state is not in its most probable slot, or whose slot is seized.
    ///
    /// It waits before it tries to seize a slot again, because every attempt takes the cache line
    /// away from the thread that holds the slot.
    #[cold]
    #[inline(never)]
    fn decide_after_miss(&self, check: &Check<'_>, at: Option<Timestamp>, hash: u64) -> Decision {
        let hashed = self.with_hash(hash, check);
        if let Some(kind) = check.limit.packed_kind() {
            let mut backoff = Backoff::new();
            loop {
                let decided = self.seize(&hashed).and_then(|seized| {
                    for_kind!(kind, self.decide_and_release, (seized, check, self.time(at)))
                });
                match decided {
                    Ok(decision) => return decision,
                    Err(FastPathMiss::Contended) => backoff.wait(),
                    Err(FastPathMiss::NotApplicable) => break,
                }
            }
        }
        self.decide_one_locked(hashed, &|| self.time(at))
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
                let mut retry_after = RetryAfter::Now;
                let retry = &mut retry_after;
                let decision = match fast_path_kind(check) {
                    Some(kind) => {
                        let loaded = Prefetched::Yes;
                        for_kind!(kind, self.decide_hashed, (check, at, retry, hash, loaded))
                            .decision(check.limit, retry_after)
                    }
                    None => self.decide_slowly(check, at, hash)?,
                };
                decisions.push(decision);
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
        let groups = self.table.slot_groups(check.shard, slot_size(check.limit));
        groups.probable_word(check.fingerprint())
    }
}
