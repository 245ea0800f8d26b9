//! One shard: a small open-addressed table with a lock of its own.
//!
//! A key lives in the first line from its home line on that had room. Slots are
//! freed only by laying the shard out anew, so a lookup may stop at the first line
//! with an empty slot; an expired slot keeps its place until a newcomer takes it.
//!
//! Within its home line a key has a slot of its own, named by its hash, and three in
//! four keys sit there: whoever is in it without that right makes way. It is not
//! needed to find a key, but to charge it quickly. A processor does not let the
//! loads of the next decision pass a store before it knows where that store goes; if
//! that depends on which tag matched, each decision waits for the cache misses
//! of the one before. Where a key's own slot is, only its hash decides.
//!
//! Two locks, one within the other. The shard's is for looking up, placing and
//! moving slots: tags change under it alone. The slot's is its own body: whoever
//! exchanges it for `SEIZED` has the slot until they store a body again, and
//! everybody who changes a body has it. A check of a known counter, the hot path,
//! seizes its slot and nothing else, in the one cache line it needs anyway, and
//! waits for nothing while it has it; so who holds the shard's lock may wait for a
//! slot, and never the other way round.

use std::hint::select_unpredictable;

use tidegate_core::Timestamp;

use super::lock::{Backoff, SpinLock};
use super::slab::Slab;
use super::slot::{self, Fingerprint, SEIZED, Slot};
use super::table::{Extent, Table};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicU32, AtomicU64, Mutex};

/// Slots in a cache line: four tags, then four bodies, so that looking for a
/// tag compares neighbours.
const LINE_SLOTS: usize = 4;
pub(super) const LINE_WORDS: usize = 2 * LINE_SLOTS;
/// A shard may grow to this many lines: 21 KiB, rebuilt in some 20 us.
/// A model checker looks at every word, so it gets few.
pub(super) const SHARD_LINES: usize = if cfg!(loom) { 2 } else { 336 };
/// Up to so many lines, twenty keys, a shard lies close beside the next. When it has moved
/// away they are lost to it: one line in 43 of a full table.
pub(super) const NEAR_LINES: usize = if cfg!(loom) { 1 } else { 8 };
const _: () = assert!(FIRST_LINES <= NEAR_LINES && NEAR_LINES <= SHARD_LINES);
/// Lines of a new shard.
pub(super) const FIRST_LINES: usize = if cfg!(loom) { 1 } else { 4 };
/// How far a key is looked for without locking its shard: one in 13 is not in its
/// home line, and one in 50 not in the next either.
const GLIMPSED_LINES: usize = if cfg!(loom) { 2 } else { 4 };

#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Shard {
    lock: SpinLock,
    /// Slots that are not empty, expired ones included.
    used: AtomicU32,
    /// No slot's deadline is before this.
    earliest: AtomicU64,
    /// States that do not fit a slot.
    slab: Mutex<Box<Slab>>,
}

/// What a line says about a key.
enum Found<'a> {
    Here(Place<'a>),
    NotAtAll,
    PerhapsFurther,
}

/// Four slots.
pub(super) type Line = [AtomicU64; LINE_WORDS];

/// Where a slot is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    line: &'a Line,
    /// Which of the four.
    slot: usize,
}

impl<'a> Place<'a> {
    // The mask tells the compiler that there is nothing to check.
    #[inline]
    pub(super) fn tag(self) -> u64 {
        self.line[self.slot % LINE_SLOTS].load(Relaxed)
    }

    pub(super) fn is_in_slab(self) -> bool {
        Slot { tag: self.tag(), body: 0 }.is_in_slab()
    }

    #[inline]
    fn body(self) -> &'a AtomicU64 {
        &self.line[self.slot % LINE_SLOTS + LINE_SLOTS]
    }

    /// Takes the slot for oneself and returns its body, or [`SEIZED`] if somebody has
    /// it already. A plain exchange is cheaper than one that compares, and seizing
    /// what is seized leaves it as it was; but the model checker would have a
    /// waiter read its own failed exchange for ever.
    #[inline(always)]
    pub(super) fn exchange(self) -> u64 {
        if !cfg!(loom) {
            return self.body().swap(SEIZED, Acquire);
        }
        match self.body().load(Relaxed) {
            SEIZED => SEIZED,
            body => match self.body().compare_exchange(body, SEIZED, Acquire, Relaxed) {
                Ok(body) => body,
                Err(_) => SEIZED,
            },
        }
    }

    /// Takes the slot for oneself and returns its body, unless somebody has it.
    #[inline]
    pub(super) fn try_seize(self) -> Option<u64> {
        Some(self.exchange()).filter(|&body| body != SEIZED)
    }

    /// Takes the slot for oneself. Whoever has it is about to let go.
    pub(super) fn seize(self) -> Slot {
        let mut backoff = Backoff::new();
        loop {
            match self.try_seize() {
                Some(body) => return Slot { tag: self.tag(), body },
                None => backoff.wait(),
            }
        }
    }

    /// Lets go of a seized slot, with this body.
    #[inline]
    pub(super) fn release(self, body: u64) {
        self.body().store(body, Release);
    }

    /// Lets go of a seized slot, with this in it. Under the shard's lock.
    pub(super) fn write(self, value: Slot) {
        self.line[self.slot % LINE_SLOTS].store(value.tag, Relaxed);
        self.release(value.body);
    }

    /// What is in the slot, under the shard's lock. Its counts may be others a
    /// moment later; all else stays.
    pub(super) fn look(self) -> Slot {
        let mut backoff = Backoff::new();
        loop {
            match self.body().load(Acquire) {
                SEIZED => backoff.wait(),
                body => return Slot { tag: self.tag(), body },
            }
        }
    }
}

/// The line a fingerprint is looked for first.
#[inline]
fn home(fingerprint: Fingerprint, lines: u16) -> usize {
    ((fingerprint.place_bits() * u64::from(lines)) >> 32) as usize
}

/// The slot of its home line that is a fingerprint's own.
#[inline]
fn own_slot(fingerprint: Fingerprint) -> usize {
    fingerprint.place_bits() as usize % LINE_SLOTS
}

/// The line after: where a full line passes its keys on to.
#[inline]
fn next_line(line: usize, lines: u16) -> usize {
    if line + 1 == usize::from(lines) { 0 } else { line + 1 }
}

impl Shard {
    pub(super) fn new() -> Self {
        Shard {
            lock: SpinLock::new(),
            used: AtomicU32::new(0),
            earliest: AtomicU64::new(u64::MAX),
            slab: Mutex::default(),
        }
    }
}

/// A shard, locked or not.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardRef<'a> {
    pub(super) table: &'a Table,
    pub(super) shard: &'a Shard,
    pub(super) index: usize,
}

/// A shard whose lock is held; dropped, it is released.
#[derive(Debug)]
pub(super) struct Locked<'a>(ShardRef<'a>);

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.shard.lock.unlock();
    }
}

impl<'a> std::ops::Deref for Locked<'a> {
    type Target = ShardRef<'a>;

    #[inline]
    fn deref(&self) -> &ShardRef<'a> {
        &self.0
    }
}

impl<'a> ShardRef<'a> {
    #[inline]
    pub(super) fn lock(self) -> Locked<'a> {
        self.shard.lock.lock();
        Locked(self)
    }

    #[inline]
    pub(super) fn try_lock(self) -> Option<Locked<'a>> {
        self.shard.lock.try_lock().then(|| Locked(self))
    }

    /// Whether there may be an expired slot.
    pub(super) fn may_let_go(self, now: Timestamp) -> bool {
        self.shard.earliest.load(Relaxed) <= self.table.units_passed(now)
    }

    /// Lines in use, of up to [`SHARD_LINES`].
    #[inline]
    fn lines(self) -> u16 {
        self.table.extent(self.index).lines
    }

    /// Compares all four tags and only then branches: which of them it is cannot
    /// be predicted, that it is one of them can.
    #[inline(always)]
    fn find_in_line(&self, line: usize, is_it: impl Fn(u64) -> bool) -> Found<'a> {
        let line = self.line(line);
        let tags: [u64; LINE_SLOTS] = std::array::from_fn(|slot| line[slot].load(Relaxed));
        let mut found = 0;
        for (slot, &tag) in tags.iter().enumerate() {
            found |= u32::from(is_it(tag)) << slot;
        }
        if found != 0 {
            Found::Here(Place { line, slot: found.trailing_zeros() as usize })
        } else if tags.contains(&0) {
            Found::NotAtAll
        } else {
            Found::PerhapsFurther
        }
    }

    #[inline]
    fn line(&self, line: usize) -> &'a Line {
        self.table.extent(self.index).line(line)
    }

    /// The places of a line, beginning with this one.
    fn places(&self, line: usize, first: usize) -> impl Iterator<Item = Place<'a>> {
        let line = self.line(line);
        (first..first + LINE_SLOTS).map(move |slot| Place { line, slot: slot % LINE_SLOTS })
    }
}

impl<'a> Extent<'a> {
    /// Where in the table a key's home line begins.
    #[inline]
    pub(super) fn home_word(self, fingerprint: Fingerprint) -> usize {
        self.word(home(fingerprint, self.lines))
    }

    /// The place that is a key's own, whoever is there.
    #[inline(always)]
    pub(super) fn own_place(self, fingerprint: Fingerprint) -> Place<'a> {
        let line = self.line(home(fingerprint, self.lines));
        Place { line, slot: own_slot(fingerprint) }
    }

    /// Where in its home line a slot with this very tag seems to be. If it is in its
    /// own place, a processor that guesses so knows the place before the line arrives.
    #[inline(always)]
    pub(super) fn glimpse_at_home(self, fingerprint: Fingerprint, tag: u64) -> Option<Place<'a>> {
        let own = self.own_place(fingerprint);
        if own.tag() == tag { Some(own) } else { glimpse_in(own.line, tag) }
    }

    /// Where a slot with this very tag seems to be, looked up without the lock in
    /// a few lines from the home line on. It may have moved by the time it is
    /// seized; then its tag is another. Once it is seized a match settles it: a key
    /// has one slot, and one it left is cleared.
    #[inline]
    pub(super) fn glimpse(self, fingerprint: Fingerprint, tag: u64) -> Option<Place<'a>> {
        let mut at = home(fingerprint, self.lines);
        for _ in 0..GLIMPSED_LINES {
            if let Some(place) = glimpse_in(self.line(at), tag) {
                return Some(place);
            }
            at = next_line(at, self.lines);
        }
        None
    }
}

/// Which of a line's four slots has the tag. It cannot be predicted, so it is
/// selected: the first, unless it is one of the others.
#[inline(always)]
pub(super) fn glimpse_in(line: &Line, tag: u64) -> Option<Place<'_>> {
    let is_at = |slot: usize| line[slot].load(Relaxed) == tag;
    let slot = (1..LINE_SLOTS).fold(0, |slot, at| select_unpredictable(is_at(at), at, slot));
    let place = Place { line, slot };
    (place.tag() == tag).then_some(place)
}

impl<'a> Locked<'a> {
    /// Looks a key up: from its home line on, until a line with an empty slot.
    pub(super) fn find(&self, fingerprint: Fingerprint) -> Option<Place<'a>> {
        let lines = self.lines();
        let mut line = home(fingerprint, lines);
        loop {
            match self.find_in_line(line, |tag| fingerprint.matches(tag)) {
                Found::Here(place) => return Some(place),
                Found::NotAtAll => return None,
                // A shard is never filled to the last slot, so this ends.
                Found::PerhapsFurther => line = next_line(line, lines),
            }
        }
    }

    /// Gives a key that was not found a place of its own, with nothing counted;
    /// `None` when the table is full. With `beyond` it gets one even then, which is
    /// for the few keys the store itself needs. It may move all slots of the shard,
    /// so the caller must have none of them seized.
    pub(super) fn claim(
        &self,
        fingerprint: Fingerprint,
        now: Timestamp,
        beyond: bool,
    ) -> Option<Place<'a>> {
        let passed = self.table.units_passed(now);
        // Not expired, so that the next claim in this shard leaves it alone.
        let mark = Slot::inline(fingerprint, slot::units_passed(now) + 1, 0);
        let mut reserved = false;
        loop {
            let (place, expired) = self.vacancy(fingerprint, passed);
            if let Some(slot) = expired {
                self.discard(slot);
                self.table.give_back(u64::from(reserved));
                return Some(self.settle(place, mark));
            } else if !self.has_room() {
                if !self.rebuild(passed) {
                    self.table.give_back(u64::from(reserved));
                    return None;
                }
            } else if !reserved {
                if !self.reserve(now, beyond) {
                    return None;
                }
                // Look again: reserving may have let go of slots and moved others.
                reserved = true;
            } else {
                self.shard.used.store(self.shard.used.load(Relaxed) + 1, Relaxed);
                return Some(self.settle(place, mark));
            }
        }
    }

    /// Puts something else into a slot.
    pub(super) fn put(&self, place: Place<'a>, slot: Slot) -> Place<'a> {
        self.note_deadline(slot.deadline());
        place.seize();
        place.write(slot);
        place
    }

    /// Keeps `earliest` a lower bound.
    #[inline]
    pub(super) fn note_deadline(&self, deadline: u64) {
        if deadline < self.shard.earliest.load(Relaxed) {
            self.shard.earliest.store(deadline, Relaxed);
        }
    }

    /// The first slot along a key's path that it may take: an expired one or,
    /// at the path's end, an empty one. In each line its own is looked at first.
    fn vacancy(&self, fingerprint: Fingerprint, passed: u64) -> (Place<'a>, Option<Slot>) {
        let lines = self.lines();
        let mut line = home(fingerprint, lines);
        loop {
            for place in self.places(line, own_slot(fingerprint)) {
                let slot = place.look();
                if slot.is_empty() {
                    return (place, None);
                }
                if slot.expired(passed) {
                    return (place, Some(slot));
                }
            }
            line = next_line(line, lines);
        }
    }

    /// Puts a newcomer into the place found for it, or into its own if that is in
    /// the same line and somebody is there who has a right only to another.
    fn settle(&self, place: Place<'a>, newcomer: Slot) -> Place<'a> {
        let own = self.table.extent(self.index).own_place(newcomer.fingerprint());
        let is_near = std::ptr::eq(own.line, place.line) && own.slot != place.slot;
        if !is_near || self.is_own(own) {
            return self.put(place, newcomer);
        }
        // Seized until it is written, so whoever looks for it finds one of the two.
        let other = own.seize();
        self.put(place, other);
        self.note_deadline(newcomer.deadline());
        own.write(newcomer);
        own
    }

    /// Whether a slot is in the place that is its own.
    fn is_own(&self, place: Place<'a>) -> bool {
        let of = Slot { tag: place.tag(), body: 0 }.fingerprint();
        let own = self.table.extent(self.index).own_place(of);
        std::ptr::eq(own.line, place.line) && own.slot == place.slot
    }

    /// Whether a slot can be taken before the shard must be rebuilt. Up to five
    /// eighths full, 12 of 13 keys sit in their home line, and a decision that
    /// looks elsewhere costs twice. A shard that cannot grow any more is filled
    /// further.
    fn has_room(&self) -> bool {
        let lines = self.lines();
        let slots = u32::from(lines) * LINE_SLOTS as u32;
        let most = if usize::from(lines) == SHARD_LINES { slots * 15 / 16 } else { slots * 5 / 8 };
        self.shard.used.load(Relaxed) < most
    }

    /// Takes one of the table's `max_keys`, letting go of expired slots if it must.
    fn reserve(&self, now: Timestamp, beyond: bool) -> bool {
        for attempt in 0..2 {
            if self.table.reserve(beyond) {
                return true;
            }
            if attempt == 0 {
                self.reclaim(now);
            }
        }
        false
    }

    /// Lets go of expired slots here or, if there are none, somewhere else;
    /// returns how many. Slots of this shard may move.
    pub(super) fn reclaim(&self, now: Timestamp) -> u64 {
        match self.let_go(now) {
            0 => self.table.reclaim(now),
            freed => freed,
        }
    }

    /// Lets go of expired slots; returns how many.
    pub(super) fn let_go(&self, now: Timestamp) -> u64 {
        let passed = self.table.units_passed(now);
        if !self.may_let_go(now) {
            return 0;
        }
        let before = self.shard.used.load(Relaxed);
        self.lay_out(passed, self.lines());
        u64::from(before - self.shard.used.load(Relaxed))
    }

    /// Lets go of what has expired, then grows by a quarter if the shard is still
    /// half full, or doubles if it is small; `false` when it cannot make room.
    fn rebuild(&self, passed: u64) -> bool {
        let lines = self.lines();
        self.lay_out(passed, lines);
        let slots = u32::from(lines) * LINE_SLOTS as u32;
        if self.shard.used.load(Relaxed) >= slots / 2 {
            let is_near = usize::from(lines) < NEAR_LINES;
            let step = if is_near { lines } else { (lines / 4).max(8) };
            let grown = (lines + step).min(SHARD_LINES as u16);
            if grown > lines {
                self.lay_out(passed, grown);
            }
        }
        self.has_room()
    }

    /// Puts every live slot in its place anew, in so many lines.
    fn lay_out(&self, passed: u64, lines: u16) {
        let mut kept: Vec<Slot> = Vec::with_capacity(self.shard.used.load(Relaxed) as usize);
        let mut dropped = 0;
        for place in (0..usize::from(self.lines())).flat_map(|line| self.places(line, 0)) {
            let slot = place.seize();
            place.write(Slot::default());
            if slot.is_empty() {
                continue;
            }
            if slot.expired(passed) {
                self.discard(slot);
                dropped += 1;
            } else {
                kept.push(slot);
            }
        }
        self.table.set_lines(self.index, lines);
        self.shard.used.store(kept.len() as u32, Relaxed);
        self.table.give_back(dropped);
        let earliest = kept.iter().map(|slot| slot.deadline()).min().unwrap_or(u64::MAX);
        // Those whose own place is free come first, so that the others are not in it.
        kept.retain(|&slot| {
            let own = self.table.extent(self.index).own_place(slot.fingerprint());
            let is_taken = own.tag() != 0;
            if !is_taken {
                own.seize();
                own.write(slot);
            }
            is_taken
        });
        for slot in kept {
            let (place, _) = self.vacancy(slot.fingerprint(), passed);
            place.seize();
            place.write(slot);
        }
        self.shard.earliest.store(earliest, Relaxed);
    }

    /// Frees what a slot points at.
    fn discard(&self, slot: Slot) {
        if slot.is_in_slab() {
            let state = self.slab(|slab| slab.remove(slot.body()));
            self.table.count_entries(state.entries(), 0);
        }
    }

    /// Forgets what a slot counted.
    pub(super) fn vacate(&self, place: Place<'_>) {
        let slot = place.seize();
        self.discard(slot);
        place.write(slot.vacated());
        self.shard.earliest.store(0, Relaxed);
        self.table.search_again();
    }

    /// The states that do not fit a slot. Locked within the shard's own lock, so
    /// nobody ever waits for it; it is there because it needs no `unsafe`.
    pub(super) fn slab<T>(&self, then: impl FnOnce(&mut Slab) -> T) -> T {
        then(&mut self.shard.slab.lock())
    }
}
