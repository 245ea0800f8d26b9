//! Deciding under the locks of all shards that a request counts in.
//!
//! The shards are locked in order of their number, so two requests can never wait for each other
//! in a circle. Then every state is taken out of the table, which keeps attempts without a lock
//! away, and asked before any is charged.

use smallvec::SmallVec;
use tidegate_core::{
    Algorithm, Ask, Decision, Limit, Packed, PackedSize, PermitId, State, Timestamp,
};

use super::MemoryStore;
use super::request::{Few, HashedCheck, Loaded, StateCheck, StoreDecision};
use super::shard::{Locked, SlotRef};
use super::slot::{self, Slot, slot_size};
use crate::{CheckError, Overflow};

/// How often a decision evicts what has expired before it gives up: what it finds first may not
/// be what it needs.
const RECLAIMS: usize = 8;

/// The shards of a request, locked.
struct Locks<'a> {
    locked: Few<Locked<'a>>,
    /// For each check, which of them is its own.
    of_check: Few<usize>,
}

impl MemoryStore {
    /// Decides one check that is not for an attempt without a lock.
    pub(super) fn decide_one_locked(
        &self,
        check: &HashedCheck<'_>,
        time: &dyn Fn() -> Timestamp,
    ) -> Result<StoreDecision, CheckError> {
        if check.limit.algorithm() == Algorithm::Concurrency {
            return Err(CheckError::NeedsPermit);
        }
        let mut checks = [StateCheck::new(*check, false, Overflow::Refuse)];
        let mut decisions: Few<Decision> = SmallVec::new();
        self.decide_locked(&mut checks, PermitId::default(), time, &mut decisions);
        Ok(StoreDecision { decision: decisions[0], no_room: checks[0].no_room })
    }

    /// Decides all checks of a request, in order.
    pub(super) fn decide_locked(
        &self,
        checks: &mut [StateCheck<'_>],
        permit: PermitId,
        time: &dyn Fn() -> Timestamp,
        decisions: &mut Few<Decision>,
    ) {
        loop {
            let mut locks = self.lock_shards(checks);
            // Under the locks, so that times in one slot never run backwards.
            let ask = Ask { permit, ..Ask::new(0, time()) };
            match self.decide_with(&mut locks, checks, &ask, decisions) {
                Ok(()) => return,
                // It now counts elsewhere, so other shards must be locked.
                Err(index) => self.mark_overflow(checks, index),
            }
        }
    }

    fn lock_shards<'s>(&'s self, checks: &[StateCheck<'_>]) -> Locks<'s> {
        let mut shards: Few<usize> = checks.iter().map(|check| check.check.shard).collect();
        shards.sort_unstable();
        shards.dedup();
        let of_check = checks.iter().map(|check| {
            shards.binary_search(&check.check.shard).expect("the shards of all checks are locked")
        });
        let of_check = of_check.collect();
        let locked = shards.iter().map(|&shard| self.table.lock(shard)).collect();
        Locks { locked, of_check }
    }

    /// Asks, then charges. An error names a check whose key has no room.
    fn decide_with<'s>(
        &'s self,
        locks: &mut Locks<'s>,
        checks: &mut [StateCheck<'_>],
        ask: &Ask,
        decisions: &mut Few<Decision>,
    ) -> Result<(), usize> {
        // Before any slot is looked up, because making room may move slots.
        for (index, (check, &lock)) in checks.iter().zip(&locks.of_check).enumerate() {
            if !self.make_room(&mut locks.locked[lock], check, ask.now) {
                return Err(index);
            }
        }
        loop {
            let mut places: Few<Option<SlotRef<'s>>> = SmallVec::new();
            let mut loaded: Few<Loaded> = SmallVec::new();
            for (check, &lock) in checks.iter().zip(&locks.of_check) {
                let (locked, limit) = (&mut locks.locked[lock], check.check.limit);
                let place = find(locked, &check.check).filter(|_| !check.is_untracked());
                let (state, seized_body) = match place {
                    Some(place) => take(locked, place, limit),
                    None => (State::new(limit), None),
                };
                places.push(place);
                loaded.push(Loaded::new(state, seized_body));
            }
            let admitted = self.ask_all(checks, &mut loaded, ask);
            let mut homeless: Few<usize> = SmallVec::new();
            for (index, (check, loaded)) in checks.iter().zip(&loaded).enumerate() {
                if places[index].is_none() && check.must_be_kept(loaded, admitted) {
                    homeless.push(index);
                }
            }
            if homeless.is_empty() {
                self.settle_all(checks, &mut loaded, ask, admitted, decisions);
                self.put_back(locks, checks, &places, &mut loaded);
                return Ok(());
            }
            // Placing one may move others, so none may be out of the table meanwhile.
            self.restore(locks, &places, &mut loaded);
            for index in homeless {
                let (check, lock) = (&checks[index], locks.of_check[index]);
                let HashedCheck { limit, .. } = check.check;
                let (fingerprint, over_capacity) =
                    (check.check.fingerprint(), check.full.is_some());
                let locked = &mut locks.locked[lock];
                locked.claim(fingerprint, slot_size(limit), ask.now, over_capacity).ok_or(index)?;
            }
        }
    }

    /// Puts the states back where they came from.
    fn put_back<'s>(
        &'s self,
        locks: &mut Locks<'s>,
        checks: &[StateCheck<'_>],
        places: &[Option<SlotRef<'s>>],
        loaded: &mut Few<Loaded>,
    ) {
        for (index, (place, loaded)) in places.iter().zip(loaded.drain(..)).enumerate() {
            if let Some(place) = *place {
                self.table.count_entries(loaded.entries, loaded.state.entries());
                let locked = &mut locks.locked[locks.of_check[index]];
                put(locked, place, &checks[index].check, loaded.state);
            }
        }
    }

    /// Leaves the table as it was. In particular a slot that was just claimed is not expired, and
    /// stays with its key while others are claimed.
    fn restore<'s>(
        &'s self,
        locks: &mut Locks<'s>,
        places: &[Option<SlotRef<'s>>],
        loaded: &mut Few<Loaded>,
    ) {
        for (index, (place, loaded)) in places.iter().zip(loaded.drain(..)).enumerate() {
            let Some(place) = *place else { continue };
            match loaded.seized_body {
                Some(body) => place.release(body),
                None => {
                    self.table.count_entries(loaded.entries, loaded.state.entries());
                    let slab = locks.locked[locks.of_check[index]].slab();
                    slab.put(place.look().head(), loaded.state);
                }
            }
        }
    }

    /// Evicts what has expired if the table has no room for another key, or none for another log
    /// entry or permit; `false` if the key of a check is new and there is no room for it.
    fn make_room(&self, locked: &mut Locked<'_>, check: &StateCheck<'_>, now: Timestamp) -> bool {
        let limit = check.check.limit;
        let is_known =
            |locked: &Locked<'_>| check.full.is_some() || find(locked, &check.check).is_some();
        for _ in 0..RECLAIMS {
            let is_full = self.table.is_full() && !is_known(locked);
            if !is_full && !self.lacks_entries_for(limit) || locked.reclaim(now) == 0 {
                break;
            }
        }
        !(self.table.is_full() || self.lacks_entries_for(limit)) || is_known(locked)
    }

    fn lacks_entries_for(&self, limit: &Limit) -> bool {
        limit.packed_size().is_none() && self.table.entries() >= self.max_log_entries
    }
}

/// The slot of a check's state, in either size: a `sliding-counter` is in the other one if its
/// limit was raised or lowered in the meantime.
pub(super) fn find<'a>(locked: &Locked<'a>, check: &HashedCheck<'_>) -> Option<SlotRef<'a>> {
    let (fingerprint, size) = (check.fingerprint(), slot_size(check.limit));
    locked.find(fingerprint, size).or_else(|| {
        let is_counter = check.limit.algorithm() == Algorithm::SlidingCounter;
        is_counter.then(|| locked.find(fingerprint, other_size(size))).flatten()
    })
}

/// The other size.
fn other_size(size: PackedSize) -> PackedSize {
    match size {
        PackedSize::Small => PackedSize::Large,
        PackedSize::Large => PackedSize::Small,
    }
}

/// Takes the state out of a slot until it is put back. A slot that holds its state is seized for
/// so long, and its body is returned; one whose state is in the slab is safe behind the shard's
/// lock.
pub(super) fn take(
    locked: &mut Locked<'_>,
    place: SlotRef<'_>,
    limit: &Limit,
) -> (State, Option<u64>) {
    let slot = place.look();
    if slot.is_in_slab() {
        return (locked.slab().take(slot.head()), None);
    }
    let slot = place.seize();
    (State::unpack(limit, place.size, &place.packed(slot)), Some(slot.body))
}

/// Puts a state back into the slot it was taken from: in place if it fits, else in the slab.
pub(super) fn put<'a>(
    locked: &mut Locked<'a>,
    place: SlotRef<'a>,
    check: &HashedCheck<'_>,
    state: State,
) {
    let (fingerprint, none) = (check.fingerprint(), [0; Packed::WORDS]);
    let deadline = slot::deadline(state.expires_at(check.limit));
    let is_in_slab = Slot { tag: place.tag(), body: 0 }.is_in_slab();
    if is_in_slab {
        let slot = place.look();
        locked.slab().put(slot.head(), state);
        let updated = Slot::in_slab(fingerprint, deadline, slot.head());
        if updated != slot {
            locked.put(place, updated, &none);
        }
    } else if let Some(packed) = state.pack(check.limit, place.size) {
        let slot = Slot::inline(fingerprint, packed.deadline, packed.head);
        locked.put_seized(place, slot, &packed.words);
    } else {
        let number = locked.slab().insert(state);
        locked.put_seized(place, Slot::in_slab(fingerprint, deadline, number), &none);
    }
}
