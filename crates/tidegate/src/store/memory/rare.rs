//! One check that is not for the hot path: a key that is new, a state that is no counter or is
//! of another window, and a store that has no room.

use std::sync::atomic::Ordering::Relaxed;

use tidegate_core::{
    Algorithm, Ask, Cost, Decision, FixedWindow, Limit, ResetAfter, RetryAfter, State, Timestamp,
};

use super::one::{Located, Told};
use super::shard::{Locked, Place};
use super::slot::{self, Inline, Slot};
use super::{MemoryStore, WhenFull};
use crate::CheckError;

/// How often a decision lets go of what has expired before it takes no for an
/// answer: what it finds first may not be what it needs.
const RECLAIMS: usize = 8;

impl MemoryStore {
    /// Anything but a counter of the window we are in, in its slot.
    #[cold]
    pub(super) fn decide_rare(
        &self,
        check: &Located<'_>,
        time: &dyn Fn() -> Timestamp,
    ) -> Result<Told, CheckError> {
        let locked = self.table.lock(check.shard);
        // Read under the lock, so that times in one place never run backwards.
        let now = time();
        if check.limit.algorithm() == Algorithm::Concurrency {
            return Err(CheckError::NeedsPermit);
        }
        let ask = Ask::new(check.cost, now);
        self.make_entries(&locked, check.limit, now);
        Ok(match locked.find(check.fingerprint()) {
            Some(place) => self.decide_found(&locked, place, check, &ask),
            None => self.decide_new(locked, check, &ask),
        })
    }

    /// A key whose slot holds something else than an inline counter.
    fn decide_found(
        &self,
        locked: &Locked<'_>,
        place: Place<'_>,
        check: &Located<'_>,
        ask: &Ask,
    ) -> Told {
        if place.look().is_in_slab() {
            return self.decide_in_slab(locked, place, check, ask);
        }
        let mut state = self.take(locked, place, check.limit, ask.now);
        let decision = state.decide(check.limit, ask);
        self.table.count_entries(0, state.entries());
        self.keep(locked, place, check, state, ask.now);
        decision.into()
    }

    fn decide_in_slab(
        &self,
        locked: &Locked<'_>,
        place: Place<'_>,
        check: &Located<'_>,
        ask: &Ask,
    ) -> Told {
        let slot = place.look();
        let (told, expires_at) = locked.slab(|slab| {
            let state = slab.get_mut(slot.body());
            let before = state.entries();
            let admitted = state.admits(check.limit, ask);
            let entries = state.entries();
            self.table.count_entries(before, entries);
            let told = if admitted && self.out_of_entries(state, ask.cost) {
                Told::without_room(self.answer_full(check.limit, ask), ask.cost)
            } else {
                self.settle(state, check.limit, ask, admitted).into()
            };
            self.table.count_entries(entries, state.entries());
            (told, state.expires_at(check.limit))
        });
        let deadline = slot::deadline(expires_at);
        locked.put(place, Slot::in_slab(check.fingerprint(), deadline, slot.body()));
        told
    }

    /// A key that has no slot.
    fn decide_new(&self, locked: Locked<'_>, check: &Located<'_>, ask: &Ask) -> Told {
        if self.has_no_room_for(&locked, check.limit, ask.now) {
            drop(locked);
            return self.decide_full(check, ask);
        }
        let mut state = State::new(check.limit);
        let decision = state.decide(check.limit, ask);
        if state.expires_at(check.limit) <= ask.now {
            return decision.into();
        }
        match locked.claim(check.fingerprint(), ask.now, false) {
            // From its place on it is a key like any other.
            Some(place) => self.decide_found(&locked, place, check, ask),
            None => {
                drop(locked);
                self.decide_full(check, ask)
            }
        }
    }

    /// Whether a new key cannot be tracked, after letting go of what has expired.
    pub(super) fn has_no_room_for(
        &self,
        locked: &Locked<'_>,
        limit: &Limit,
        now: Timestamp,
    ) -> bool {
        let full = || self.table.is_full() || self.lacks_entries_for(limit);
        for _ in 0..RECLAIMS {
            if !full() || locked.reclaim(now) == 0 {
                break;
            }
        }
        full()
    }

    /// Lets go of what has expired if there are no log entries or permits left
    /// for a limit that needs them. Slots of the shard may move.
    pub(super) fn make_entries(&self, locked: &Locked<'_>, limit: &Limit, now: Timestamp) {
        for _ in 0..RECLAIMS {
            if !self.lacks_entries_for(limit) || locked.reclaim(now) == 0 {
                break;
            }
        }
    }

    fn lacks_entries_for(&self, limit: &Limit) -> bool {
        matches!(limit.algorithm(), Algorithm::SlidingLog | Algorithm::Concurrency)
            && self.table.entries() >= self.max_log_entries
    }

    /// A key there is no room for, decided on its own.
    fn decide_full(&self, check: &Located<'_>, ask: &Ask) -> Told {
        if self.when_full != WhenFull::Overflow {
            return Told::without_room(self.answer_full(check.limit, ask), ask.cost);
        }
        self.tally.overflowed.fetch_add(1, Relaxed);
        let hash = self.overflow_hash;
        let shared = Located { hash, shard: self.table.shard_of(hash), ..*check };
        let locked = self.table.lock(shared.shard);
        let fingerprint = shared.fingerprint();
        let place = locked.find(fingerprint).or_else(|| locked.claim(fingerprint, ask.now, true));
        match place {
            Some(place) => self.decide_found(&locked, place, &shared, ask),
            // Its shard is filled to the brim with active keys.
            None => Told::without_room(denied_full(check.limit, check.cost), check.cost),
        }
    }

    /// Whether an admitted cost would need a log entry or permit of its own when
    /// there are none left.
    pub(super) fn out_of_entries(&self, state: &State, cost: Cost) -> bool {
        let needs_entry = match state {
            // One that is not empty can let its newest entry take it in.
            State::SlidingLog(log) => log.entries().is_empty(),
            State::Concurrency(_) => true,
            _ => false,
        };
        needs_entry && counts(cost) && self.table.entries() >= self.max_log_entries
    }

    /// The answer to a key or entry there is no room for, when it is not to share.
    pub(super) fn answer_full(&self, limit: &Limit, ask: &Ask) -> Decision {
        self.tally.overflowed.fetch_add(1, Relaxed);
        match self.when_full {
            // As if it were always new: a cost that can never fit is still refused.
            WhenFull::Allow => State::new(limit).decide(limit, ask),
            WhenFull::Deny | WhenFull::Overflow => denied_full(limit, ask.cost),
        }
    }

    /// Answers for a state that was brought up to the ask's time, and charges it
    /// if `admitted`, within the bound on log entries.
    pub(super) fn settle(
        &self,
        state: &mut State,
        limit: &Limit,
        ask: &Ask,
        admitted: bool,
    ) -> Decision {
        if admitted
            && let State::SlidingLog(log) = state
            && counts(ask.cost)
            && self.table.entries() >= self.max_log_entries
        {
            log.merge_newest(ask.now);
            self.tally.merged_entries.fetch_add(1, Relaxed);
        }
        state.settle(limit, ask, admitted)
    }

    /// Takes the state out of a slot until it is kept again. A slot with its state in
    /// it stays seized for so long; one in the slab is safe behind the shard's lock.
    pub(super) fn take(
        &self,
        locked: &Locked<'_>,
        place: Place<'_>,
        limit: &Limit,
        now: Timestamp,
    ) -> State {
        let slot = place.look();
        if slot.is_in_slab() {
            let number = slot.body();
            // A placeholder that allocates nothing takes its place until it is put back.
            let stand_in = State::FixedWindow(FixedWindow::default());
            return locked.slab(|slab| std::mem::replace(slab.get_mut(number), stand_in));
        }
        self.copy(locked, place.seize(), limit, now)
    }

    /// The state in a slot.
    pub(super) fn copy(
        &self,
        locked: &Locked<'_>,
        slot: Slot,
        limit: &Limit,
        now: Timestamp,
    ) -> State {
        let inline = match limit.algorithm() {
            _ if slot.is_in_slab() => return locked.slab(|slab| slab.get_mut(slot.body()).clone()),
            Algorithm::SlidingCounter => Inline::reading(limit, now, 2)
                .map(|inline| State::SlidingCounter(inline.load_counter(slot))),
            Algorithm::FixedWindow => Inline::reading(limit, now, 1)
                .map(|inline| State::FixedWindow(inline.load_fixed(slot))),
            _ => None,
        };
        // A slot that was just claimed has nothing in it yet.
        inline.unwrap_or_else(|| State::new(limit))
    }

    /// Puts a state that was taken, brought up to `now`, back into its slot:
    /// inline if it fits, else in the slab.
    pub(super) fn keep(
        &self,
        locked: &Locked<'_>,
        place: Place<'_>,
        check: &Located<'_>,
        state: State,
        now: Timestamp,
    ) {
        let in_slab = |number: u64, expires_at: Timestamp| {
            Slot::in_slab(check.fingerprint(), slot::deadline(expires_at), number)
        };
        let expires_at = state.expires_at(check.limit);
        if place.is_in_slab() {
            let number = place.look().body();
            locked.slab(|slab| *slab.get_mut(number) = state);
            locked.put(place, in_slab(number, expires_at));
            return;
        }
        let moment = check.limit.moment(now);
        let inline = match &state {
            State::SlidingCounter(counter) => Inline::counter(check.limit, &moment)
                .and_then(|inline| inline.store_counter(check.fingerprint(), counter)),
            State::FixedWindow(window) => Inline::fixed(check.limit, &moment)
                .and_then(|inline| inline.store_fixed(check.fingerprint(), window)),
            _ => None,
        };
        let kept =
            inline.unwrap_or_else(|| in_slab(locked.slab(|slab| slab.insert(state)), expires_at));
        locked.note_deadline(kept.deadline());
        place.write(kept);
    }
}

/// Whether a cost adds to what is counted.
pub(super) fn counts(cost: Cost) -> bool {
    matches!(cost, Cost::Ask(1..) | Cost::Force(1..))
}

/// Whether a check that got no place was denied for that, or forced and not recorded.
/// A cost that can never pass would not pass with room either.
pub(super) fn lacks_room(decision: &Decision, cost: Cost) -> bool {
    match cost {
        Cost::Ask(_) => !decision.allowed && decision.retry_after != RetryAfter::Never,
        Cost::Force(units) => units > 0,
        Cost::Refund(_) => false,
    }
}

/// The answer to a key the store has no room for, when it is to be denied. No
/// wait can be promised; a window is when keys come and go. What is forced or given
/// back is not asked for, and so not denied either, though it cannot be recorded.
pub(super) fn denied_full(limit: &Limit, cost: Cost) -> Decision {
    let allowed = matches!(cost, Cost::Refund(_) | Cost::Force(_));
    let retry_after = match cost {
        Cost::Refund(_) | Cost::Force(_) => RetryAfter::Now,
        Cost::Ask(units) if units.max(1) > limit.capacity() => RetryAfter::Never,
        _ => RetryAfter::Micros(limit.window_us()),
    };
    Decision {
        allowed,
        limit: limit.count(),
        remaining: 0,
        retry_after,
        reset_after: ResetAfter::from_micros(limit.window_us()),
    }
}
