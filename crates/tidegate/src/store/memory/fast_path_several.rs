//! The fast path of a request with several checks, which are charged together or not at all.
//!
//! Every check seizes its slot, charges it and then decides the checks after it, while it holds the
//! slot. If one of them denies the request or cannot be decided here, the states are restored on
//! the way back.

use smallvec::SmallVec;
use tidegate_core::{Attempt, Decision, PackedKind, Timestamp};

use super::MemoryStore;
use super::fast_path::{FastPathMiss, SeizedSlot, for_kind};
use super::request::INLINE_CHECKS;
use super::slot::{Fingerprint, SlotRef};
use super::slot_groups::slot_size;
use crate::sync::Backoff;
use crate::{Check, MAX_CHECKS};

/// The number of attempts of a request with several checks before it takes the locks.
const ATTEMPTS: usize = if cfg!(loom) { 1 } else { 16 };

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

impl MemoryStore {
    /// Decides all checks of a request, in order, and adds a decision for each. Returns `false` if
    /// that requires a lock. The number of attempts is bounded, because two requests that each hold
    /// a slot that the other needs could retry for ever.
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
            match self.decide_rest(request, 0, true) {
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
        let groups =
            self.table.slot_groups(self.table.shard_of(state_hash), slot_size(check.limit));
        request.slot_ref = groups.probable_slot(Fingerprint::new(state_hash, check.limit));
        if let Some(slot_ref) = request.slot_ref {
            std::hint::black_box(slot_ref.tag());
        }
    }

    /// Decides the checks of a request from an index on. They are charged if the checks before them
    /// have `admitted` the request, and if all of them do.
    #[inline(always)]
    fn decide_rest<'s>(
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
            // Entries are counted when all checks have been decided.
            Some(PackedKind::Log) if self.has_few_entries(request.checks.len() as u64) => {
                SeveralOutcome::Missed(FastPathMiss::NotApplicable)
            }
            Some(kind) => for_kind!(kind, self.decide_with_rest, (request, index, admitted)),
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
    fn decide_with_rest<'s, const KIND: usize>(
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
        let Some((decision, body)) =
            self.decide_in_slot::<KIND>(seized, check, request.at, admitted)
        else {
            seized.slot_ref.release(seized.slot.body);
            return SeveralOutcome::Missed(FastPathMiss::NotApplicable);
        };
        if admitted && check.observed && !decision.allowed && is_observed_with_others(checks, index)
        {
            // Those before it have been charged, and those after it would be.
            seized.slot_ref.set_words(&words);
            seized.slot_ref.release(seized.slot.body);
            return SeveralOutcome::Missed(FastPathMiss::NotApplicable);
        }
        request.decisions.push(decision);
        let admits = admitted && (check.observed || decision.allowed);
        let outcome = self.decide_rest(request, index + 1, admits);
        // Only a check that admits the request has been charged.
        if outcome == SeveralOutcome::Admitted || outcome == SeveralOutcome::Denied && !admits {
            self.release_decided::<KIND>(seized, body);
            return outcome;
        }
        seized.slot_ref.set_words(&words);
        let missed = match outcome {
            SeveralOutcome::Missed(_) => outcome,
            _ => match self.decide_as_denied::<KIND>(seized, check, request.at) {
                Some((decision, body)) => {
                    request.decisions[index] = decision;
                    self.release_decided::<KIND>(seized, body);
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
    /// It is a separate function for builds without optimisation: its large frame is released
    /// before the next check is decided.
    #[inline]
    fn decide_in_slot<const KIND: usize>(
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
    fn decide_as_denied<const KIND: usize>(
        &self,
        seized: SeizedSlot<'_>,
        check: &Check<'_>,
        at: Option<Timestamp>,
    ) -> Option<(Decision, u64)> {
        self.decide_in_slot::<KIND>(seized, check, at, false)
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
        let fingerprint = Fingerprint::new(hash ^ check.limit.id(), check.limit);
        let slot_ref = slot_ref.filter(|slot_ref| fingerprint.matches_packed(slot_ref.tag()));
        match slot_ref {
            Some(slot_ref) => SeizedSlot::new(slot_ref, fingerprint),
            None => self.seize(&self.with_hash(hash, check)),
        }
    }
}

/// Whether other checks of the request are observed together with this one, so that its denial
/// keeps them from being charged.
#[cold]
fn is_observed_with_others(checks: &[Check<'_>], index: usize) -> bool {
    let together = checks.iter().filter(|other| other.is_observed_with(&checks[index]));
    together.count() > 1
}

/// Whether a check may count in the state of an earlier check, so that its slot is seized by its
/// own request.
///
/// The mode of the checks is ignored. An observed check counts apart from an enforced one with the
/// same key and limit, but only the locked path gives it another key ([`MemoryStore::merge`]); here
/// both would use the same slot.
#[cold]
fn may_share_state(checks: &[Check<'_>], index: usize) -> bool {
    let check = &checks[index];
    let shares = |other: &Check<'_>| other.limit.id() == check.limit.id() && other.key == check.key;
    checks[..index].iter().any(shares)
}
