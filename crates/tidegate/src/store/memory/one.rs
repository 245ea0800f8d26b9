//! One check on its own: the hot path, and a batch of such.

use std::sync::atomic::Ordering::Relaxed;

use tidegate_core::{
    Algorithm, Ask, Cost, Decision, Limit, ResetAfter, RetryAfter, State, Timestamp,
};

use super::lock::Backoff;
use super::shard::{Locked, Place};
use super::slot::{self, Fingerprint, Frame, Inline, SEIZED, Slot};
use super::{MemoryStore, WhenFull};
use crate::clock::Glance;
use crate::{Check, CheckError};

/// Checks of a batch whose cache misses are taken together: enough to keep the
/// memory busy, few enough that the lines are still there when it is their turn.
pub(crate) const BATCH: usize = 32;

/// Keys up to this long are hashed without a call.
const SHORT_KEY: usize = 16;

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

/// A decision, and whether it is what it is for want of room alone: denied though
/// nothing is used up, or forced and not recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) decision: Decision,
    #[cfg_attr(not(feature = "policies"), expect(dead_code, reason = "the gate tells it"))]
    pub(crate) no_room: bool,
}

impl From<Decision> for Told {
    #[inline(always)]
    fn from(decision: Decision) -> Self {
        Told { decision, no_room: false }
    }
}

impl Told {
    /// For a check whose key, log entry or permit got no place.
    fn without_room(decision: Decision, cost: Cost) -> Self {
        Told { decision, no_room: lacks_room(&decision, cost) }
    }
}

/// An ask that the hot path was not for, to go on with.
#[derive(Clone, Copy)]
pub(crate) struct Missed {
    hash: u64,
    elsewhere: Elsewhere,
}

/// Why a check was not decided in its slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Elsewhere {
    /// Somebody has the slot; it will be free in a moment.
    Busy,
    /// The slot holds something else, or there is none.
    Rare,
}

thread_local! {
    /// The frame this thread needed last. The coarse clock ticks once in thousands
    /// of decisions, so mostly it is the one needed next.
    static LAST_FRAME: Frame<Glance> = const { Frame::new(Glance::NONE) };
}

impl MemoryStore {
    /// Decides an ask for `units` now.
    ///
    /// The hot path is here in full and calls nothing: a key of up to 16 bytes, the
    /// coarse clock, a frame that is known, a counter in its home line, in its window,
    /// with units to spare. Whatever else there is ends in a call that begins anew.
    #[inline(always)]
    pub(crate) fn ask(&self, key: &[u8], limit: &Limit, units: u64) -> Result<Told, CheckError> {
        if key.len() > SHORT_KEY {
            return self.ask_long(key, limit, units);
        }
        self.ask_hashed(self.hash(key), limit, units)
    }

    /// The same for keys whose hash takes a call.
    #[inline(never)]
    fn ask_long(&self, key: &[u8], limit: &Limit, units: u64) -> Result<Told, CheckError> {
        self.ask_hashed(self.hash(key), limit, units)
    }

    #[inline(always)]
    fn ask_hashed(&self, hash: u64, limit: &Limit, units: u64) -> Result<Told, CheckError> {
        match LAST_FRAME.with(|frame| self.admit_in(frame, hash, limit, units)) {
            Ok(decision) => Ok(decision.into()),
            Err(elsewhere) => self.ask_rarely(Missed { hash, elsewhere }, limit, units),
        }
    }

    /// The hot path by itself, for who does something else before and behind it: its decision
    /// stays in registers. What it was not for goes on with
    /// [`ask_rarely`](Self::ask_rarely), and nothing has changed.
    #[cfg(feature = "policies")]
    #[inline(always)]
    pub(crate) fn admit(&self, key: &[u8], limit: &Limit, units: u64) -> Result<Decision, Missed> {
        let hash = self.hash(key);
        // Among so much else the closure would become a call, and its answer go through memory; a
        // copy of the frame does not.
        let frame = LAST_FRAME.with(Frame::clone);
        let admitted = self.admit_in(&frame, hash, limit, units);
        admitted.map_err(|elsewhere| Missed { hash, elsewhere })
    }

    #[inline(always)]
    fn admit_in(
        &self,
        frame: &Frame<Glance>,
        hash: u64,
        limit: &Limit,
        units: u64,
    ) -> Result<Decision, Elsewhere> {
        if frame.is_of(limit, self.dial.glance()) {
            self.admit_quickly(frame, hash, limit, units)
        } else {
            Err(Elsewhere::Rare)
        }
    }

    /// Whatever the hot path was not for. A slot that somebody has is waited for before
    /// it is touched again: every attempt takes its line away from who has it.
    #[inline(never)]
    pub(crate) fn ask_rarely(
        &self,
        missed: Missed,
        limit: &Limit,
        units: u64,
    ) -> Result<Told, CheckError> {
        let Missed { hash, mut elsewhere } = missed;
        let mut backoff = Backoff::new();
        loop {
            if elsewhere == Elsewhere::Busy {
                backoff.wait();
            }
            let glance = self.dial.glance();
            let Some(now) = glance.time() else { break };
            let admitted = LAST_FRAME.with(|frame| {
                if frame.is_of(limit, glance) || frame.set(limit, now, glance) {
                    self.admit_nearby(frame, hash, limit, units)
                } else {
                    Err(Elsewhere::Rare)
                }
            });
            match admitted {
                Ok(decision) => return Ok(decision.into()),
                Err(Elsewhere::Busy) => elsewhere = Elsewhere::Busy,
                Err(Elsewhere::Rare) => break,
            }
        }
        let shard = self.table.shard_of(hash);
        let check = Located { hash, shard, limit, cost: Cost::Ask(units) };
        self.decide_located(&check, &|| self.clock.now())
    }

    /// Decides one check at the time `time` says.
    #[inline]
    pub(crate) fn decide_one(
        &self,
        check: &Check<'_>,
        time: impl Fn() -> Timestamp,
    ) -> Result<Told, CheckError> {
        self.decide_located(&self.locate(check), &time)
    }

    /// Decides checks one by one, in order, with their cache misses overlapped:
    /// first what each will need is touched, and only then it is decided.
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
                *hash = self.hash(check.key);
                let fingerprint = Fingerprint::new(*hash ^ check.limit.id());
                *home = self.table.extent(self.table.shard_of(*hash)).home_word(fingerprint);
            }
            // In a loop of its own: the shorter it is, the more misses are under way
            // at once.
            std::hint::black_box(self.table.touch(&homes[..chunk.len()]));
            let time = move |index| time(round * BATCH + index);
            self.decide_touched(chunk, &hashes, &homes, time, decisions)?;
        }
        Ok(())
    }

    fn decide_touched(
        &self,
        checks: &[Check<'_>],
        hashes: &[u64; BATCH],
        homes: &[usize; BATCH],
        time: impl Fn(usize) -> Timestamp + Copy,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), CheckError> {
        // Mostly all checks of a batch are of one limit at one time.
        let frame = Frame::new(Timestamp::LAST);
        for (index, ((check, &hash), &home)) in checks.iter().zip(hashes).zip(homes).enumerate() {
            let now = time(index);
            let framed = frame.is_of(check.limit, now) || frame.set(check.limit, now, now);
            let decision = match check.cost {
                Cost::Ask(units) if framed => {
                    let tag = frame.tag(Fingerprint::new(hash ^ check.limit.id()));
                    let place = self.table.glimpse_at(home, tag);
                    place.and_then(|place| admit_at(place, tag, &frame, check.limit, units).ok())
                }
                _ => None,
            };
            decisions.push(match decision {
                Some(decision) => decision,
                None => {
                    self.decide_located(&self.located(hash, check), &move || time(index))?.decision
                }
            });
        }
        Ok(())
    }

    /// Touches what up to [`BATCH`] checks will need, so that their cache misses overlap.
    #[cfg(feature = "policies")]
    pub(crate) fn touch<'a>(&self, checks: impl Iterator<Item = (&'a [u8], &'a Limit)>) {
        let mut homes = [0; BATCH];
        let mut count = 0;
        for (home, (key, limit)) in homes.iter_mut().zip(checks) {
            let hash = self.hash(key);
            let fingerprint = Fingerprint::new(hash ^ limit.id());
            *home = self.table.extent(self.table.shard_of(hash)).home_word(fingerprint);
            count += 1;
        }
        std::hint::black_box(self.table.touch(&homes[..count]));
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

    /// Admits units of a counter in its home line, of the frame's window; an error
    /// if that is not the case, or if they are none or more than there are, and then
    /// nothing has changed.
    ///
    /// Every instruction counts here: a processor overlaps the cache misses of two
    /// decisions only if both fit into what it looks ahead, and if no store in
    /// between goes to an address that depends on what was missed.
    #[inline(always)]
    fn admit_quickly(
        &self,
        frame: &Frame<Glance>,
        hash: u64,
        limit: &Limit,
        units: u64,
    ) -> Result<Decision, Elsewhere> {
        let fingerprint = Fingerprint::new(hash ^ limit.id());
        let tag = frame.tag(fingerprint);
        let extent = self.table.extent(self.table.shard_of(hash));
        let place = extent.glimpse_at_home(fingerprint, tag).ok_or(Elsewhere::Rare)?;
        admit_at(place, tag, frame, limit, units)
    }

    /// The same for a counter in its home line or one of the next.
    #[inline]
    fn admit_nearby(
        &self,
        frame: &Frame<Glance>,
        hash: u64,
        limit: &Limit,
        units: u64,
    ) -> Result<Decision, Elsewhere> {
        let fingerprint = Fingerprint::new(hash ^ limit.id());
        let tag = frame.tag(fingerprint);
        let extent = self.table.extent(self.table.shard_of(hash));
        let place = extent.glimpse(fingerprint, tag).ok_or(Elsewhere::Rare)?;
        admit_at(place, tag, frame, limit, units)
    }

    /// Decides a check wherever its state is.
    #[inline(never)]
    fn decide_located(
        &self,
        check: &Located<'_>,
        time: &dyn Fn() -> Timestamp,
    ) -> Result<Told, CheckError> {
        let mut backoff = Backoff::new();
        loop {
            match self.decide_in_place(check, time()) {
                Ok(decision) => return Ok(decision.into()),
                Err(Elsewhere::Busy) => backoff.wait(),
                Err(Elsewhere::Rare) => return self.decide_rare(check, time),
            }
        }
    }

    /// Decides on a counter in its slot, of the window we are in, whatever the
    /// answer.
    fn decide_in_place(&self, check: &Located<'_>, now: Timestamp) -> Result<Decision, Elsewhere> {
        let Located { limit, cost, .. } = *check;
        if limit.algorithm() != Algorithm::SlidingCounter {
            return Err(Elsewhere::Rare);
        }
        let now = limit.moment(now);
        let inline = Inline::counter(limit, &now).ok_or(Elsewhere::Rare)?;
        let tag = inline.tag(check.fingerprint());
        let place = self.table.extent(check.shard).glimpse(check.fingerprint(), tag);
        let place = place.ok_or(Elsewhere::Rare)?;
        let body = place.try_seize().ok_or(Elsewhere::Busy)?;
        if place.tag() == tag
            && let Some(mut counter) = inline.unpack(body)
            && let outcome = counter.step(limit, cost, &now)
            && let Some(body) = inline.pack(&counter)
        {
            place.release(body);
            return Ok(counter.report(limit, cost, &now, outcome));
        }
        place.release(body);
        Err(Elsewhere::Rare)
    }

    /// Anything but a counter of the window we are in, in its slot.
    #[cold]
    fn decide_rare(
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
            return locked.slab(|slab| std::mem::replace(slab.get_mut(number), State::new(limit)));
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

/// Admits units of a counter that seems to be in this place.
#[inline(always)]
fn admit_at<T: Copy + PartialEq>(
    place: Place<'_>,
    tag: u64,
    frame: &Frame<T>,
    limit: &Limit,
    units: u64,
) -> Result<Decision, Elsewhere> {
    let body = place.exchange();
    if place.tag() == tag
        && let Some(decision) = frame.admit(body, limit, units)
    {
        place.release(body + units);
        return Ok(decision);
    }
    // Then it is theirs to release.
    if body == SEIZED {
        return Err(Elsewhere::Busy);
    }
    place.release(body);
    Err(Elsewhere::Rare)
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
