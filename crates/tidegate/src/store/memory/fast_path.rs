//! The fast path: seizes the slots of a request, decides and releases them, without the lock of a
//! shard.
//!
//! It applies to every state that is in its slot, of any algorithm and for any number of limits. It
//! leaves all other states unchanged for `locked_path.rs`: those of new keys, states in the slab, and
//! states that cannot be decided on in place ([`Packed::decide_kind`] lists the reasons).
//!
//! The functions that decide are compiled for each kind of packed states (`for_kind!`).

use smallvec::SmallVec;
use tidegate_core::{
    Algorithm, Attempt, Decided, Decision, Limit, Packed, PackedKind, ResetAfter, RetryAfter,
    Timestamp,
};

use super::MemoryStore;
use super::lock::Backoff;
use super::request::{HashedCheck, INLINE_CHECKS};
use super::slot::{Fingerprint, Slot, SlotRef};
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

    /// Decides on the state in the slot, which has the kind with the number `KIND`. Returns the
    /// decision and the body with which the slot has to be released, or `None` if the state was not
    /// decided on and is unchanged.
    #[inline(always)]
    fn decide<const KIND: usize>(
        self,
        limit: &Limit,
        attempt: Attempt,
        admitted: bool,
    ) -> Option<(Decision, u64)> {
        let (deadline_high, body) = (self.slot.deadline_high(), self.slot.body);
        match self.slot_ref.large() {
            Some(words) => {
                let mut packed = Packed { deadline_high, body, words };
                Some((packed.decide_kind::<KIND>(limit, attempt, admitted)?, packed.body))
            }
            None => {
                let mut packed = Packed { deadline_high, body, words: () };
                Some((packed.decide_kind::<KIND>(limit, attempt, admitted)?, packed.body))
            }
        }
    }

    /// Decides one check on the state in the slot, and releases the slot.
    #[inline(always)]
    fn decide_and_release<const KIND: usize>(
        self,
        check: &Check<'_>,
        now: Timestamp,
    ) -> Result<Decision, FastPathMiss> {
        match self.decide::<KIND>(check.limit, Attempt::new(check.cost, now), true) {
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

/// Calls a function that is compiled for each kind of packed states, with the kind of a limit.
///
/// Where the kind is a constant, all numbers of a state have constant positions. The code for one kind
/// is also short enough that its variables stay in registers.
macro_rules! for_kind {
    ($kind:expr, $($function:ident).+, $arguments:tt) => {
        match $kind {
            PackedKind::SmallCounter => for_kind!(@call SmallCounter, $($function).+, $arguments),
            PackedKind::LargeCounter => for_kind!(@call LargeCounter, $($function).+, $arguments),
            PackedKind::SmallFixed => for_kind!(@call SmallFixed, $($function).+, $arguments),
            PackedKind::LargeFixed => for_kind!(@call LargeFixed, $($function).+, $arguments),
            PackedKind::Bucket => for_kind!(@call Bucket, $($function).+, $arguments),
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

/// A request with several checks while it is decided.
struct Undecided<'a, 's> {
    checks: &'a [Check<'a>],
    at: Option<Timestamp>,
    /// The hash of the key of the next check.
    hash: u64,
    /// The most probable slot of the next check.
    slot_ref: Option<SlotRef<'s>>,
    /// The decisions on the checks before the next one.
    decisions: &'a mut SmallVec<[Decision; INLINE_CHECKS]>,
}

/// The result of several checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeveralOutcome {
    /// All enforced checks admit the request.
    Admitted,
    /// An enforced check denies the request.
    Denied,
    /// The request was not decided. No state has changed.
    Missed(FastPathMiss),
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
    /// Seizes the slot of a check.
    #[cold]
    fn seize(&self, check: &HashedCheck<'_>) -> Result<SeizedSlot<'_>, FastPathMiss> {
        let kind = check.limit.packed_kind().ok_or(FastPathMiss::NotApplicable)?;
        let fingerprint = check.fingerprint();
        let slot_ref = self.table.span(check.shard, kind.size()).find(fingerprint);
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
        let decision = match check.limit.packed_kind() {
            Some(kind) => for_kind!(kind, self.decide_packed, (check, at, retry)),
            None => self.decide_after_miss(check, at, retry, self.hash(check.key)),
        };
        decision.decision(check.limit, retry_after)
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
                self.decide_after_miss(check, at, retry_after, hash)
            }
        }
    }

    /// Decides one check if its state is in its most probable slot. The time is read while the slot
    /// is seized, so that the times of a slot never run backwards.
    #[inline(always)]
    fn try_one<const KIND: usize>(
        &self,
        check: &Check<'_>,
        at: Option<Timestamp>,
        hash: u64,
        prefetched: Prefetched,
    ) -> Result<Decision, FastPathMiss> {
        if check.overflow != Overflow::Refuse {
            return Err(FastPathMiss::NotApplicable);
        }
        let state_hash = hash ^ check.limit.id();
        let fingerprint = Fingerprint::new(state_hash);
        let span = self.table.span(self.table.shard_of(state_hash), PackedKind::ALL[KIND].size());
        if prefetched == Prefetched::No {
            span.prefetch(fingerprint);
        }
        let slot_ref = span.probable_slot(fingerprint).ok_or(FastPathMiss::NotApplicable)?;
        SeizedSlot::new(slot_ref, fingerprint)?.decide_and_release::<KIND>(check, self.time(at))
    }

    /// Decides a check whose state is not in its most probable slot, or whose slot is seized.
    ///
    /// It waits before it tries to seize a slot again, because every attempt takes the cache line
    /// away from the thread that holds the slot.
    #[cold]
    #[inline(never)]
    fn decide_after_miss(
        &self,
        check: &Check<'_>,
        at: Option<Timestamp>,
        retry_after: &mut RetryAfter,
        hash: u64,
    ) -> CompactDecision {
        if check.limit.algorithm() == Algorithm::Concurrency {
            return CompactDecision { remaining: NEEDS_PERMIT, reset_us: 0 };
        }
        let decision = if check.consumed_if_denied() > 0 {
            let request = Request::new(std::slice::from_ref(check));
            match self.decide_all(&request, at) {
                Ok(verdict) => verdict.decisions[0],
                Err(error) => unreachable!("a single check of a rate limit is valid: {error}"),
            }
        } else {
            self.decide_one_after_miss(check, at, hash)
        };
        CompactDecision::new(decision, retry_after)
    }

    fn decide_one_after_miss(
        &self,
        check: &Check<'_>,
        at: Option<Timestamp>,
        hash: u64,
    ) -> Decision {
        let hashed = self.with_hash(hash, check);
        if let Some(kind) = check.limit.packed_kind() {
            let mut backoff = Backoff::new();
            loop {
                let decided = self.seize(&hashed).and_then(|seized| {
                    for_kind!(kind, seized.decide_and_release, (check, self.time(at)))
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
                let decision = match check.limit.packed_kind() {
                    Some(kind) => {
                        let loaded = Prefetched::Yes;
                        for_kind!(kind, self.decide_hashed, (check, at, retry, hash, loaded))
                    }
                    None => self.decide_after_miss(check, at, retry, hash),
                };
                decisions.push(decision.decision(check.limit, retry_after)?);
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
            decisions.clear();
            let request = &mut Undecided { checks, at, hash: 0, slot_ref: None, decisions };
            self.locate_next(request, 0);
            match self.decide_from(request, 0, true) {
                SeveralOutcome::Admitted | SeveralOutcome::Denied => return true,
                SeveralOutcome::Missed(FastPathMiss::Contended) => backoff.wait(),
                SeveralOutcome::Missed(FastPathMiss::NotApplicable) => break,
            }
        }
        false
    }

    /// Finds the most probable slot of the check with this index, and starts to load it.
    #[inline(always)]
    fn locate_next<'s>(&'s self, request: &mut Undecided<'_, 's>, index: usize) {
        let checks = request.checks;
        let Some(check) = checks.get(index) else { return };
        // Checks with the same key are common.
        if index == 0 || !std::ptr::eq(checks[index - 1].key, check.key) {
            request.hash = self.hash(check.key);
        }
        let state_hash = request.hash ^ check.limit.id();
        let span = self.table.span(self.table.shard_of(state_hash), slot_size(check.limit));
        request.slot_ref = span.probable_slot(Fingerprint::new(state_hash));
        if let Some(slot_ref) = request.slot_ref {
            std::hint::black_box(slot_ref.tag());
        }
    }

    /// Decides the checks of a request from an index on. They are charged if the checks before them
    /// have `admitted` the request, and if all of them do.
    #[inline(always)]
    fn decide_from<'s>(
        &'s self,
        request: &mut Undecided<'_, 's>,
        index: usize,
        admitted: bool,
    ) -> SeveralOutcome {
        let Some(check) = request.checks.get(index) else {
            // A denied request with `Overflow::Consume` charges the units that are left.
            let consumes = |check: &Check<'_>| check.consumed_if_denied() > 0;
            return match admitted {
                true => SeveralOutcome::Admitted,
                false if request.checks.iter().any(consumes) => {
                    SeveralOutcome::Missed(FastPathMiss::NotApplicable)
                }
                false => SeveralOutcome::Denied,
            };
        };
        match check.limit.packed_kind() {
            Some(kind) => for_kind!(kind, self.decide_next, (request, index, admitted)),
            None => SeveralOutcome::Missed(FastPathMiss::NotApplicable),
        }
    }

    /// Decides a check, whose state is of the kind with the number `KIND`, and then those after it,
    /// while it holds the slot. So no thread sees a part of the request. A thread that holds a slot
    /// never waits for another one.
    ///
    /// The check is charged before the others are decided. If one of them denies the request, the
    /// state is restored and decided on again.
    #[inline(never)]
    fn decide_next<'s, const KIND: usize>(
        &'s self,
        request: &mut Undecided<'_, 's>,
        index: usize,
        admitted: bool,
    ) -> SeveralOutcome {
        let (checks, hash) = (request.checks, request.hash);
        let check = &checks[index];
        let slot_ref = request.slot_ref;
        // The slot of the next check is loaded while this one is decided.
        self.locate_next(request, index + 1);
        let seized = match self.seize_located(check, hash, slot_ref) {
            Ok(seized) => seized,
            // Checks that share a state have to be merged.
            Err(_) if may_share_state(checks, index) => {
                return SeveralOutcome::Missed(FastPathMiss::NotApplicable);
            }
            Err(miss) => return SeveralOutcome::Missed(miss),
        };
        let words = seized.slot_ref.words();
        let Some((decision, body)) = self.decide_held::<KIND>(seized, check, request.at, admitted)
        else {
            seized.slot_ref.release(seized.slot.body);
            return SeveralOutcome::Missed(FastPathMiss::NotApplicable);
        };
        request.decisions.push(decision);
        let admits = admitted && (check.observed || decision.allowed);
        let outcome = self.decide_from(request, index + 1, admits);
        // Only a check that admits the request has been charged.
        if outcome == SeveralOutcome::Admitted || outcome == SeveralOutcome::Denied && !admits {
            seized.slot_ref.release(body);
            return outcome;
        }
        seized.slot_ref.set_words(&words);
        let missed = match outcome {
            SeveralOutcome::Missed(_) => outcome,
            _ => match self.decide_again::<KIND>(seized, check, request.at) {
                Some((decision, body)) => {
                    request.decisions[index] = decision;
                    seized.slot_ref.release(body);
                    return outcome;
                }
                None => SeveralOutcome::Missed(FastPathMiss::NotApplicable),
            },
        };
        seized.slot_ref.release(seized.slot.body);
        missed
    }

    /// Decides one of several checks on the state in its slot. The time is read while the slot is
    /// seized, so that the times of a slot never run backwards.
    ///
    /// It is a separate function for builds without optimisation: its large frame is released before
    /// the next check is decided.
    #[inline]
    fn decide_held<const KIND: usize>(
        &self,
        seized: SeizedSlot<'_>,
        check: &Check<'_>,
        at: Option<Timestamp>,
        admitted: bool,
    ) -> Option<(Decision, u64)> {
        let attempt = Attempt::new(check.cost, self.time(at));
        seized.decide::<KIND>(check.limit, attempt, admitted)
    }

    /// Decides a check whose request another check denies, on its restored state.
    #[cold]
    #[inline(never)]
    fn decide_again<const KIND: usize>(
        &self,
        seized: SeizedSlot<'_>,
        check: &Check<'_>,
        at: Option<Timestamp>,
    ) -> Option<(Decision, u64)> {
        self.decide_held::<KIND>(seized, check, at, false)
    }

    /// Seizes the most probable slot of a check or, if it does not contain the state of the check,
    /// the one that does.
    #[inline(always)]
    fn seize_located<'s>(
        &'s self,
        check: &Check<'_>,
        hash: u64,
        slot_ref: Option<SlotRef<'s>>,
    ) -> Result<SeizedSlot<'s>, FastPathMiss> {
        let fingerprint = Fingerprint::new(hash ^ check.limit.id());
        let slot_ref = slot_ref.filter(|slot_ref| fingerprint.matches_inline(slot_ref.tag()));
        match slot_ref {
            Some(slot_ref) => SeizedSlot::new(slot_ref, fingerprint),
            None => self.seize(&self.with_hash(hash, check)),
        }
    }
}

/// Whether a check may count in the state of an earlier check.
#[cold]
fn may_share_state(checks: &[Check<'_>], index: usize) -> bool {
    let check = &checks[index];
    let shares = |other: &Check<'_>| other.limit.id() == check.limit.id() && other.key == check.key;
    checks[..index].iter().any(shares)
}
