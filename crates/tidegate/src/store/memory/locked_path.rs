//! The locked path: decides under the locks of all shards in which a request counts.
//!
//! The shards are locked in the order of their indexes, so two requests cannot deadlock. Then every
//! state is loaded and checked before any is charged. A state in the slab is decided in place. A
//! state in a slot is copied, and the slot stays seized until the copy is written back, so that the
//! fast path cannot change it.

use smallvec::SmallVec;
use tidegate_core::{
    Algorithm, Attempt, Cost, Decision, DynState, Limit, Packed, PackedSize, PermitId, State,
    Timestamp,
};

use super::MemoryStore;
use super::request::{HashedCheck, InlineVec, StateCheck};
use super::shard::LockedShard;
use super::slot::{self, Fingerprint, Slot, SlotRef};
use super::slot_groups::slot_size;
use super::when_full::{WhenFull, denied_full, lacks_room};
use crate::{Check, Overflow};

/// The states of a request in locked shards.
struct LoadedStates<'l, 's> {
    locks: &'l mut [LockedShard<'s>],
    states: InlineVec<LoadedState<'s>>,
    /// Copies of the states that are not in a slab, in order.
    copies: InlineVec<State>,
}

/// The state of one check.
struct LoadedState<'s> {
    /// Its slot, or `None` without one.
    slot_ref: Option<SlotRef<'s>>,
    /// The contents of the slot, which is seized unless the state is in the slab.
    slot: Slot,
    /// The index of its lock.
    lock: usize,
    /// The index of its copy, unless it is in the slab.
    copy: Option<usize>,
    /// The number of log entries or permits it held when it was loaded.
    entries: u64,
    outcome: CheckOutcome,
}

/// The result of one check on its state.
#[derive(Clone, Copy, Default)]
pub(super) struct CheckOutcome {
    /// Whether its state admits the request, regardless of the others.
    pub(super) admits: bool,
    /// Whether it is charged if the request is admitted.
    pub(super) charges: bool,
    /// Whether it needs a log entry or permit, and the store is out of them.
    pub(super) out_of_entries: bool,
    /// The units that are charged if the request is denied.
    pub(super) consumes: u64,
}

impl<'l, 's> LoadedStates<'l, 's> {
    fn new(locks: &'l mut [LockedShard<'s>], checks: &[StateCheck<'_>]) -> Self {
        let mut loaded = LoadedStates { locks, states: SmallVec::new(), copies: SmallVec::new() };
        for check in checks {
            loaded.load(check);
        }
        loaded
    }

    fn load(&mut self, check: &StateCheck<'_>) {
        let (limit, lock) = (check.hashed.limit, check.lock);
        let locked = &mut self.locks[lock];
        let slot_ref = if check.is_untracked() { None } else { find(locked, &check.hashed) };
        let mut slot = slot_ref.map_or(Slot::default(), SlotRef::read);
        let copy = (!slot.is_in_slab()).then_some(self.copies.len());
        if copy.is_some() {
            self.copies.push(match slot_ref {
                Some(slot_ref) => {
                    slot = slot_ref.seize();
                    State::unpack(limit, slot_ref.size(), &slot_ref.packed(slot))
                }
                None => State::new(limit),
            });
        }
        let (index, outcome) = (self.states.len(), CheckOutcome::default());
        self.states.push(LoadedState { slot_ref, slot, lock, copy, entries: 0, outcome });
        self.states[index].entries = self.state(index).entries() as u64;
    }

    #[inline]
    fn state(&mut self, index: usize) -> &mut dyn DynState {
        let LoadedState { slot, lock, copy, .. } = self.states[index];
        match copy {
            Some(copy) => &mut self.copies[copy],
            None => self.locks[lock].slab().get(slot.head()),
        }
    }
}

impl MemoryStore {
    /// Decides one check that the fast path could not decide.
    #[inline(never)]
    pub(super) fn decide_one_locked(
        &self,
        check: HashedCheck<'_>,
        time: &dyn Fn() -> Timestamp,
    ) -> Decision {
        let mut checks = [StateCheck::new(check, false, Overflow::Refuse)];
        let mut decision = Decision::default();
        let decisions = std::slice::from_mut(&mut decision);
        self.decide_locked(&mut checks, PermitId::default(), time, decisions);
        decision
    }

    /// Decides one check on a log in the slab, if `slot_ref` is its slot. Returns `None` if it is
    /// not, or if the store may be out of entries. A log that has become short moves to its slot.
    #[inline(never)]
    pub(super) fn decide_on_log(
        &self,
        check: &Check<'_>,
        (shard, fingerprint, slot_ref): (usize, Fingerprint, SlotRef<'_>),
        at: Option<Timestamp>,
    ) -> Option<Decision> {
        let mut locked = self.table.lock(shard);
        let slot = slot_ref.read();
        let is_log = fingerprint.matches(slot.tag) && slot.is_in_slab();
        if !is_log || self.is_out_of_entries() {
            return None;
        }
        let log = locked.slab().log(slot.head())?;
        let before = log.entries().len() as u64;
        let decision = log.decide(check.limit, &Attempt::new(check.cost, self.time(at)));
        self.table.count_entries(before, log.entries().len() as u64);
        match log.pack_if_short(check.limit) {
            Some(packed) => {
                locked.slab().remove(slot.head());
                let slot = Slot::packed(fingerprint, packed.deadline(), packed.head());
                locked.put(slot_ref, slot, &packed.words);
            }
            None => {
                let deadline = slot::deadline(log.expires_at(check.limit));
                set_deadline(&mut locked, slot_ref, slot, deadline);
            }
        }
        Some(decision)
    }

    /// Decides all checks of a request, in order, and writes a decision for each.
    pub(super) fn decide_locked(
        &self,
        checks: &mut [StateCheck<'_>],
        permit: PermitId,
        time: &dyn Fn() -> Timestamp,
        decisions: &mut [Decision],
    ) {
        loop {
            let mut locks = self.lock_shards(checks);
            match self.decide_holding_locks(&mut locks, checks, (permit, time), decisions) {
                Ok(()) => return,
                // The check now counts in another state, so other shards may have to be locked.
                Err(index) => self.mark_full(checks, index),
            }
        }
    }

    fn lock_shards<'s>(&'s self, checks: &mut [StateCheck<'_>]) -> InlineVec<LockedShard<'s>> {
        let mut shards: InlineVec<usize> = checks.iter().map(|check| check.hashed.shard).collect();
        shards.sort_unstable();
        shards.dedup();
        for check in checks {
            let is_own_shard = |&shard: &usize| shard == check.hashed.shard;
            check.lock = shards.iter().position(is_own_shard).unwrap_or_default();
        }
        shards.iter().map(|&shard| self.table.lock(shard)).collect()
    }

    /// Decides and charges. An error is the index of a check whose key is new while the store is
    /// full.
    fn decide_holding_locks<'s>(
        &'s self,
        locks: &mut [LockedShard<'s>],
        checks: &mut [StateCheck<'_>],
        (permit, time): (PermitId, &dyn Fn() -> Timestamp),
        decisions: &mut [Decision],
    ) -> Result<(), usize> {
        let mut has_room = false;
        loop {
            let mut loaded = LoadedStates::new(locks, checks);
            // The time is read when the slots are seized, because the fast path does not take the
            // locks. So the times of a slot never run backwards.
            let attempt = Attempt { permit, ..Attempt::new(0, time()) };
            if !has_room && self.may_lack_room(checks, &loaded) {
                self.restore(loaded);
                for (index, check) in checks.iter().enumerate() {
                    if !self.evict_for_new_key(&mut locks[check.lock], check, attempt.now) {
                        return Err(index);
                    }
                }
                has_room = true;
                continue;
            }
            let admitted = self.probe_all(checks, &mut loaded, &attempt);
            let mut without_slot: InlineVec<usize> = SmallVec::new();
            for (index, (check, state)) in checks.iter().zip(&loaded.states).enumerate() {
                if state.slot_ref.is_none() && check.must_be_kept(state.outcome, admitted) {
                    without_slot.push(index);
                }
            }
            if without_slot.is_empty() {
                self.finish_all(checks, &mut loaded, &attempt, admitted, decisions);
                self.put_back(checks, loaded);
                return Ok(());
            }
            // Claiming a slot may move others, so none may be seized then.
            self.restore(loaded);
            for index in without_slot {
                let check = &checks[index];
                let (fingerprint, size) =
                    (check.hashed.fingerprint(), slot_size(check.hashed.limit));
                let over_capacity = check.full.is_some();
                let locked = &mut locks[check.lock];
                locked.claim(fingerprint, size, attempt.now, over_capacity).ok_or(index)?;
            }
        }
    }

    /// Finds out which states admit the request, without charging them. Returns whether every
    /// enforced limit does.
    fn probe_all(
        &self,
        checks: &[StateCheck<'_>],
        loaded: &mut LoadedStates<'_, '_>,
        attempt: &Attempt,
    ) -> bool {
        let mut admitted = true;
        for (index, check) in checks.iter().enumerate() {
            let attempt = Attempt { cost: check.hashed.cost, ..*attempt };
            let before = loaded.states[index].entries;
            let outcome = self.probe_one(check, loaded.state(index), before, &attempt);
            admitted &= check.observed || outcome.admits;
            loaded.states[index].outcome = outcome;
        }
        for (index, check) in checks.iter().enumerate() {
            let mut together = checks
                .iter()
                .zip(&loaded.states)
                .filter(|(other, _)| other.is_observed_with(check));
            let outcome = loaded.states[index].outcome;
            let charges = outcome.admits && together.all(|(_, state)| state.outcome.admits);
            loaded.states[index].outcome.charges = charges;
        }
        admitted
    }

    fn probe_one(
        &self,
        check: &StateCheck<'_>,
        state: &mut dyn DynState,
        before: u64,
        attempt: &Attempt,
    ) -> CheckOutcome {
        let limit = check.hashed.limit;
        let mut admits = state.advance_and_check(limit, attempt);
        let lacks_entry = self.lacks_entry(state, before, limit, attempt.cost);
        let out_of_entries = admits && lacks_entry;
        let denied = out_of_entries && self.when_full != WhenFull::Allow;
        if denied || check.full == Some(WhenFull::Deny) {
            admits &= denied_full(limit, attempt.cost).allowed;
        }
        let consumes = match check.consumed_if_denied() {
            units @ 1.. if !check.is_untracked() && !lacks_entry => {
                units.min(state.available(limit, attempt.now))
            }
            _ => 0,
        };
        CheckOutcome { admits, out_of_entries, consumes, ..CheckOutcome::default() }
    }

    /// Charges the states if the request was `admitted`, and writes the decision of each.
    fn finish_all(
        &self,
        checks: &mut [StateCheck<'_>],
        loaded: &mut LoadedStates<'_, '_>,
        attempt: &Attempt,
        admitted: bool,
        decisions: &mut [Decision],
    ) {
        for (index, (check, decision)) in checks.iter_mut().zip(decisions).enumerate() {
            let attempt = Attempt { cost: check.hashed.cost, ..*attempt };
            let LoadedState { outcome, entries, .. } = loaded.states[index];
            let limit = check.hashed.limit;
            let state = loaded.state(index);
            check.consumed = !admitted && outcome.consumes > 0;
            match check.full {
                Some(WhenFull::Deny) => *decision = denied_full(limit, attempt.cost),
                _ if outcome.out_of_entries => *decision = self.decide_when_full(limit, &attempt),
                _ if check.consumed => {
                    // The decision is a denial, computed from the state after the charge.
                    let charge = Attempt { cost: Cost::Force(outcome.consumes), ..attempt };
                    self.merge_if_full(state, entries, limit, &charge);
                    state.finish(limit, &charge, true, decision);
                    state.finish(limit, &attempt, false, decision);
                }
                _ => {
                    let is_charged = admitted && outcome.charges;
                    if is_charged {
                        self.merge_if_full(state, entries, limit, &attempt);
                    }
                    state.finish(limit, &attempt, is_charged, decision);
                }
            }
            // They are counted before the next check, so that logs do not use the same free entry.
            let left = state.entries() as u64;
            if loaded.states[index].slot_ref.is_some() {
                self.table.count_entries(entries, left);
                loaded.states[index].entries = left;
            }
            check.store_was_full |= outcome.out_of_entries;
            let is_unstored = check.is_untracked() || outcome.out_of_entries;
            decision.no_room = is_unstored && lacks_room(decision, attempt.cost);
            check.no_room = decision.no_room;
            check.admits = outcome.admits;
        }
    }

    /// Writes the states back to their slots.
    fn put_back(&self, checks: &[StateCheck<'_>], mut loaded: LoadedStates<'_, '_>) {
        for (index, check) in checks.iter().enumerate() {
            let LoadedState { slot_ref, slot, lock, copy, .. } = loaded.states[index];
            let Some(slot_ref) = slot_ref else { continue };
            let (state, limit) = (loaded.state(index), check.hashed.limit);
            let deadline = slot::deadline(state.expires_at(limit));
            let locked = &mut loaded.locks[lock];
            match copy {
                Some(copy) => put(locked, slot_ref, &check.hashed, &loaded.copies[copy]),
                None => set_deadline(locked, slot_ref, slot, deadline),
            }
        }
    }

    /// Releases the slots unchanged. In particular, a slot that was just claimed has not expired,
    /// so it is not taken from its key while others are claimed.
    fn restore(&self, mut loaded: LoadedStates<'_, '_>) {
        for index in 0..loaded.states.len() {
            let LoadedState { slot_ref, slot, copy, entries, .. } = loaded.states[index];
            match (slot_ref, copy) {
                (None, _) => {}
                (Some(slot_ref), Some(_)) => slot_ref.release(slot.body),
                (_, None) => {
                    let left = loaded.state(index).entries() as u64;
                    self.table.count_entries(entries, left);
                }
            }
        }
    }

    /// Whether the store may be full for a new key, or for a log entry or permit.
    fn may_lack_room(&self, checks: &[StateCheck<'_>], loaded: &LoadedStates<'_, '_>) -> bool {
        let is_full = self.table.is_full();
        checks.iter().zip(&loaded.states).any(|(check, state)| {
            is_full && state.slot_ref.is_none() && check.full.is_none()
                || self.lacks_entries_for(check.hashed.limit)
        })
    }
}

/// Finds the slot of the state of a check, in either size. A `sliding-counter` is in a slot of the
/// other size if its limit was raised or lowered since it was written.
pub(super) fn find<'a>(locked: &LockedShard<'a>, check: &HashedCheck<'_>) -> Option<SlotRef<'a>> {
    let (fingerprint, size) = (check.fingerprint(), slot_size(check.limit));
    locked.find(fingerprint, size).or_else(|| {
        let is_counter = check.limit.algorithm() == Algorithm::SlidingCounter;
        is_counter.then(|| locked.find(fingerprint, other_size(size))).flatten()
    })
}

/// Returns the size of slots that is not `size`.
fn other_size(size: PackedSize) -> PackedSize {
    match size {
        PackedSize::Small => PackedSize::Large,
        PackedSize::Large => PackedSize::Small,
    }
}

/// A copy of the state in a slot.
pub(super) fn copy(locked: &mut LockedShard<'_>, slot_ref: SlotRef<'_>, limit: &Limit) -> State {
    let slot = slot_ref.read();
    if slot.is_in_slab() {
        return locked.slab().copy(slot.head());
    }
    let slot = slot_ref.seize();
    let packed = slot_ref.packed(slot);
    slot_ref.release(slot.body);
    State::unpack(limit, slot_ref.size(), &packed)
}

/// Writes a state to the seized slot that it was copied from, or to the slab if it does not fit.
fn put<'a>(
    locked: &mut LockedShard<'a>,
    slot_ref: SlotRef<'a>,
    check: &HashedCheck<'_>,
    state: &State,
) {
    let fingerprint = check.fingerprint();
    if let Some(packed) = state.pack(check.limit, slot_ref.size()) {
        let slot = Slot::packed(fingerprint, packed.deadline(), packed.head());
        locked.put_seized(slot_ref, slot, &packed.words);
    } else {
        let deadline = slot::deadline(state.expires_at(check.limit));
        let number = locked.slab().insert(state.clone());
        let slot = Slot::in_slab(fingerprint, deadline, number);
        locked.put_seized(slot_ref, slot, &[0; Packed::WORDS]);
    }
}

/// Changes the deadline of a slot whose state is in the slab.
pub(super) fn set_deadline<'a>(
    locked: &mut LockedShard<'a>,
    slot_ref: SlotRef<'a>,
    slot: Slot,
    deadline: u64,
) {
    if slot.deadline() != deadline {
        let updated = Slot::in_slab(slot.fingerprint(), deadline, slot.head());
        locked.put(slot_ref, updated, &[0; Packed::WORDS]);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{Check, Clock, Limit, MemoryOptions};

    /// The time was read under the lock of the shard, which the fast path does not take. A charge
    /// that the fast path made after that was moved back to the earlier time, and expired early.
    #[test]
    fn reads_the_time_when_the_slots_are_seized() {
        let store = MemoryStore::new(MemoryOptions::default(), Clock::default()).expect("memory");
        let limit: Limit = "5 per 1m".parse().expect("a limit");
        let check = Check::new("alice", &limit, 1);
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        assert!(store.decide_one(&check, Some(now)).is_ok_and(|decision| decision.allowed));
        let hashed = store.hashed(&check);
        let is_read = Cell::new(false);
        let decision = store.decide_one_locked(hashed, &|| {
            is_read.set(true);
            assert!(store.is_seized(&hashed), "another thread could charge at a later time");
            now
        });
        assert!(is_read.get() && decision.allowed);
    }

    #[test]
    fn log_is_in_the_slab_only_while_it_is_long() {
        let store = MemoryStore::new(MemoryOptions::default(), Clock::default()).expect("memory");
        let limit: Limit = "100 per 1m sliding-log".parse().expect("a limit");
        let hashed = store.hashed(&Check::new("alice", &limit, 0));
        let is_in_slab = || {
            let slot_ref = find(&store.table.lock(hashed.shard), &hashed).expect("a slot");
            slot_ref.read().is_in_slab()
        };
        let check = |second: u64, cost: u64| {
            let now = Timestamp::from_micros(1_700_000_000_000_000 + second * 1_000_000);
            let decision = store.decide_one(&Check::new("alice", &limit, cost), Some(now));
            decision.expect("a valid check").remaining
        };
        // A time within a minute takes 26 bits, and 384 bits have room for 14 of them.
        for second in 0..14 {
            assert_eq!((check(second, 1), is_in_slab()), (99 - second, false));
        }
        assert_eq!((check(14, 1), is_in_slab()), (85, true));
        assert_eq!((check(67, 0), is_in_slab()), (93, false));
        assert_eq!((check(67, 1), is_in_slab()), (92, false));
    }
}
