//! One check on its own: the hot path, and a batch of such.

use std::sync::atomic::Ordering::Relaxed;

use tidegate_core::{
    Algorithm, Ask, Cost, Decision, Limit, ResetAfter, RetryAfter, State, Timestamp,
};

use super::shard::{Locked, Place};
use super::slot::{self, Fingerprint, Inline, Slot};
use super::{MemoryStore, WhenFull};
use crate::{Check, CheckError};

/// Checks of a batch whose cache misses are taken together: enough to keep the
/// memory busy, few enough that the lines are still there when it is their turn.
const BATCH: usize = 32;

/// How often a decision lets go of what has expired before it takes no for an
/// answer: what it finds first may not be what it needs.
const RECLAIMS: usize = 8;

/// A check with its hash worked out.
#[derive(Clone, Copy)]
pub(super) struct Located<'a> {
    pub(super) hash: u64,
    pub(super) shard: usize,
    pub(super) limit: &'a Limit,
    pub(super) cost: Cost,
}

impl Located<'_> {
    #[inline]
    pub(super) fn fingerprint(&self) -> Fingerprint {
        Fingerprint::new(self.hash ^ self.limit.id())
    }
}

impl MemoryStore {
    /// Decides one check at the time `time` says.
    #[inline(always)]
    pub(crate) fn decide_one(
        &self,
        check: &Check<'_>,
        time: impl Fn() -> Timestamp,
    ) -> Result<Decision, CheckError> {
        self.decide_located(self.locate(check), time)
    }

    /// Decides checks one by one, in order, with their cache misses overlapped:
    /// first what each will need is touched, and only then it is decided.
    pub(crate) fn decide_batch(
        &self,
        checks: &[Check<'_>],
        time: impl Fn(usize) -> Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), CheckError> {
        if checks.iter().any(|check| check.limit.algorithm() == Algorithm::Concurrency) {
            return Err(CheckError::NeedsPermit);
        }
        decisions.reserve(checks.len());
        for (round, chunk) in checks.chunks(BATCH).enumerate() {
            let mut hashes = [0; BATCH];
            let mut touched = 0;
            for (hash, check) in hashes.iter_mut().zip(chunk) {
                let located = self.locate(check);
                let shard = self.table.shard(located.shard);
                touched ^= shard.touch() ^ shard.touch_line(located.fingerprint());
                *hash = located.hash;
            }
            std::hint::black_box(touched);
            for (index, (&hash, check)) in hashes.iter().zip(chunk).enumerate() {
                let located = self.located(hash, check);
                decisions.push(self.decide_located(located, || time(round * BATCH + index))?);
            }
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn locate<'a>(&self, check: &Check<'a>) -> Located<'a> {
        self.located(self.hash(check.key), check)
    }

    #[inline(always)]
    fn located<'a>(&self, hash: u64, check: &Check<'a>) -> Located<'a> {
        let shard = self.table.shard_of(hash);
        Located { hash, shard, limit: check.limit, cost: check.cost }
    }

    /// The hot path: a counter in its slot, of the window we are in. Everything
    /// else, a window that has just begun included, is rare.
    ///
    /// Every instruction counts twice here: the fewer there are, the sooner the
    /// processor comes to the next decision's cache miss and overlaps the two.
    #[inline(always)]
    fn decide_located(
        &self,
        check: Located<'_>,
        time: impl Fn() -> Timestamp,
    ) -> Result<Decision, CheckError> {
        let shard = self.table.shard(check.shard);
        // Fetched together with the line below, not after it.
        std::hint::black_box(shard.touch());
        let now = check.limit.moment(time());
        if check.limit.algorithm() == Algorithm::SlidingCounter
            && let Some(inline) = Inline::counter(check.limit, &now)
            && let fingerprint = check.fingerprint()
            && let tag = inline.tag(fingerprint)
            // Before locking, so that waiting for memory does not make others wait.
            && let Some(place) = shard.glimpse(fingerprint, tag)
        {
            let locked = shard.lock();
            let slot = place.read();
            if slot.tag == tag
                && let Some(mut counter) = inline.unpack(slot.body)
                && let outcome = counter.step(check.limit, check.cost, &now)
                && let Some(body) = inline.pack(&counter)
            {
                place.write_body(body);
                drop(locked);
                return Ok(counter.report(check.limit, check.cost, &now, outcome));
            }
        }
        self.decide_rare(check.hash, check.limit, check.cost, &time)
    }

    /// Anything but the hot path. It takes a check in pieces that fit registers, so
    /// that the hot path need not put one together in memory.
    #[cold]
    #[inline(never)]
    fn decide_rare(
        &self,
        hash: u64,
        limit: &Limit,
        cost: Cost,
        time: &dyn Fn() -> Timestamp,
    ) -> Result<Decision, CheckError> {
        let check = Located { hash, shard: self.table.shard_of(hash), limit, cost };
        let locked = self.table.lock(check.shard);
        // Read under the lock, so that times in one place never run backwards.
        let now = time();
        if check.limit.algorithm() == Algorithm::Concurrency {
            return Err(CheckError::NeedsPermit);
        }
        let ask = Ask::new(check.cost, now);
        self.make_entries(&locked, limit, now);
        Ok(match locked.find(check.fingerprint()) {
            Some(place) => self.decide_found(&locked, place, &check, &ask),
            None => self.decide_new(locked, &check, &ask),
        })
    }

    /// A key whose slot holds something else than an inline counter.
    fn decide_found(
        &self,
        locked: &Locked<'_>,
        place: Place<'_>,
        check: &Located<'_>,
        ask: &Ask,
    ) -> Decision {
        let slot = place.read();
        if slot.is_in_slab() {
            return self.decide_in_slab(locked, place, check, ask);
        }
        let mut state = self.take(locked, place, check.limit, ask.now);
        let decision = state.decide(check.limit, ask);
        self.table.count_entries(0, state.entries());
        self.keep(locked, place, check, state, ask.now);
        decision
    }

    fn decide_in_slab(
        &self,
        locked: &Locked<'_>,
        place: Place<'_>,
        check: &Located<'_>,
        ask: &Ask,
    ) -> Decision {
        let slot = place.read();
        let (decision, expires_at) = locked.slab(|slab| {
            let state = slab.get_mut(slot.body());
            let before = state.entries();
            let admitted = state.admits(check.limit, ask);
            let entries = state.entries();
            self.table.count_entries(before, entries);
            let decision = if admitted && self.out_of_entries(state, ask.cost) {
                self.answer_full(check.limit, ask)
            } else {
                self.settle(state, check.limit, ask, admitted)
            };
            self.table.count_entries(entries, state.entries());
            (decision, state.expires_at(check.limit))
        });
        let deadline = slot::deadline(expires_at);
        locked.note_deadline(deadline);
        place.write(Slot::in_slab(check.fingerprint(), deadline, slot.body()));
        decision
    }

    /// A key that has no slot.
    fn decide_new(&self, locked: Locked<'_>, check: &Located<'_>, ask: &Ask) -> Decision {
        if self.has_no_room_for(&locked, check.limit, ask.now) {
            drop(locked);
            return self.decide_full(check, ask);
        }
        let mut state = State::new(check.limit);
        let decision = state.decide(check.limit, ask);
        if state.expires_at(check.limit) > ask.now {
            match locked.claim(check.fingerprint(), ask.now, false) {
                Some(place) => {
                    self.table.count_entries(0, state.entries());
                    self.keep(&locked, place, check, state, ask.now);
                }
                None => {
                    drop(locked);
                    return self.decide_full(check, ask);
                }
            }
        }
        decision
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
    fn decide_full(&self, check: &Located<'_>, ask: &Ask) -> Decision {
        if self.when_full != WhenFull::Overflow {
            return self.answer_full(check.limit, ask);
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
            None => denied_full(check.limit, check.cost),
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

    /// Takes the state out of a slot. Until it is kept again nobody else may look.
    pub(super) fn take(
        &self,
        locked: &Locked<'_>,
        place: Place<'_>,
        limit: &Limit,
        now: Timestamp,
    ) -> State {
        let slot = place.read();
        if slot.is_in_slab() {
            let number = slot.body();
            return locked.slab(|slab| std::mem::replace(slab.get_mut(number), State::new(limit)));
        }
        self.copy(locked, place, limit, now)
    }

    /// The state in a slot.
    pub(super) fn copy(
        &self,
        locked: &Locked<'_>,
        place: Place<'_>,
        limit: &Limit,
        now: Timestamp,
    ) -> State {
        let slot = place.read();
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

    /// Puts a state, brought up to `now`, into a slot: inline if it fits, else in the slab.
    pub(super) fn keep(
        &self,
        locked: &Locked<'_>,
        place: Place<'_>,
        check: &Located<'_>,
        state: State,
        now: Timestamp,
    ) {
        let slot = place.read();
        let inline = match &state {
            _ if slot.is_in_slab() => None,
            State::SlidingCounter(counter) => {
                Inline::counter(check.limit, &check.limit.moment(now))
                    .and_then(|inline| inline.store_counter(check.fingerprint(), counter))
            }
            State::FixedWindow(window) => Inline::fixed(check.limit, &check.limit.moment(now))
                .and_then(|inline| inline.store_fixed(check.fingerprint(), window)),
            _ => None,
        };
        let kept = match inline {
            Some(slot) => slot,
            None => {
                let deadline = slot::deadline(state.expires_at(check.limit));
                let number = locked.slab(|slab| {
                    if slot.is_in_slab() {
                        *slab.get_mut(slot.body()) = state;
                        slot.body()
                    } else {
                        slab.insert(state)
                    }
                });
                Slot::in_slab(check.fingerprint(), deadline, number)
            }
        };
        locked.note_deadline(kept.deadline());
        place.write(kept);
    }
}

/// Whether a cost adds to what is counted.
pub(super) fn counts(cost: Cost) -> bool {
    matches!(cost, Cost::Ask(1..) | Cost::Force(1..))
}

/// The answer to a key the store has no room for, when it is to be denied. No
/// wait can be promised; a window is when keys come and go.
pub(super) fn denied_full(limit: &Limit, cost: Cost) -> Decision {
    let allowed = matches!(cost, Cost::Refund(_));
    let retry_after = match cost {
        Cost::Refund(_) => RetryAfter::Now,
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
