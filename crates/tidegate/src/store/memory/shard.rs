//! One shard: two small open-addressed tables, for small and for large slots, under one lock.
//!
//! A key is in the first line from its home line on that had room. Slots are freed only by
//! rehashing the shard, so a lookup may stop at the first line with an empty slot; an expired slot
//! keeps its place until another key takes it.
//!
//! Within its home line a key has a preferred slot, given by its hash, and three in four keys are
//! there: a key that is in it without that right makes way. It is not needed to find a key, but to
//! charge it quickly. A processor does not let the loads of the next decision pass a store before
//! it knows the address of that store; if the address depends on which tag matched, each decision
//! waits for the cache misses of the one before.
//!
//! There are two locks, one within the other. The shard's lock is for placing and moving slots:
//! tags change only under it. The slot's lock is its body: whoever exchanges it for [`SEIZED`] owns
//! the slot until they store a body again, and only the owner changes a body or the words that go
//! with it. An attempt without the shard's lock seizes slots, waits for nothing while it has them,
//! and gives up if one is not to be had. So a thread that holds the shard's lock may wait for a
//! slot, and never the other way round.

use std::hint::select_unpredictable;
use std::sync::MutexGuard;

use tidegate_core::{Packed, PackedSize, Timestamp};

use super::lock::{Backoff, SpinLock};
use super::slab::Slab;
use super::slot::{self, Fingerprint, SEIZED, Slot};
use super::table::{Span, Table};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicU32, AtomicU64, Mutex};

/// Words of a cache line.
pub(super) const LINE_WORDS: usize = 8;
/// The tags of four small slots come first, so that looking for one compares neighbours; then
/// their bodies. A large slot has the tag and the body of the first small one.
const BODIES: usize = 4;
/// The words of a line that hold the rest of a large slot's state.
const STATE_WORDS: [usize; Packed::WORDS] = [1, 2, 3, 5, 6, 7];
/// How many lines are searched for a key without its shard's lock. Of small slots one in 13 is not
/// in its home line and one in 50 not in the next either; large slots are spread further.
const PROBED_LINES: [usize; 2] = if cfg!(loom) { [2, 2] } else { [4, 16] };

/// One of the two tables of a shard, by the size of its slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    /// Slots in a line.
    pub(super) slots: usize,
    /// Lines of a new shard.
    pub(super) first: u16,
    /// Up to so many lines a shard lies close beside the next. When it has moved away they are
    /// lost to it.
    pub(super) near: u16,
    /// The most lines: enough for a shard of a full table that got fourteen standard deviations
    /// of a random spread more keys than the average.
    pub(super) most: u16,
    /// Sixteenths of the slots that may be in use before the table grows.
    fill: u32,
    /// The least number of lines it grows by, and the fraction of its lines.
    step: (u16, u16),
}

/// A model checker looks at every word, so it gets few of them.
const GEOMETRY: [Geometry; 2] = if cfg!(loom) {
    [
        Geometry { slots: 4, first: 1, near: 1, most: 2, fill: 10, step: (8, 4) },
        Geometry { slots: 1, first: 1, near: 1, most: 4, fill: 13, step: (8, 4) },
    ]
} else {
    [
        Geometry { slots: 4, first: 2, near: 6, most: 210, fill: 10, step: (8, 4) },
        Geometry { slots: 1, first: 8, near: 16, most: 840, fill: 13, step: (8, 8) },
    ]
};

impl Geometry {
    #[inline]
    pub(super) const fn of(size: PackedSize) -> &'static Self {
        &GEOMETRY[size as usize]
    }

    /// The number of slots of so many lines that may be in use before the table grows. One that
    /// cannot grow is filled further.
    fn capacity(&self, lines: u16) -> u32 {
        let fill = if lines == self.most { 15 } else { self.fill };
        u32::from(lines) * self.slots as u32 * fill / 16
    }

    /// How many lines a table of so many grows to.
    fn grown(&self, lines: u16) -> u16 {
        if lines < self.near {
            return (2 * lines).min(self.near);
        }
        let (least, fraction) = self.step;
        (lines + (lines / fraction).max(least)).min(self.most)
    }
}

#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Shard {
    lock: SpinLock,
    /// Slots of each size that are not empty, expired ones included.
    used: [AtomicU32; 2],
    /// No slot's deadline is before this.
    earliest: [AtomicU64; 2],
    /// States that do not fit a slot.
    slab: Mutex<Box<Slab>>,
}

/// What a line says about a key.
enum Found<'a> {
    Here(SlotRef<'a>),
    NotAtAll,
    PerhapsFurther,
}

/// Four small slots, or a large one.
pub(super) type Line = [AtomicU64; LINE_WORDS];

/// Where a slot is.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotRef<'a> {
    line: &'a Line,
    /// Which of the line's.
    slot: usize,
    pub(super) size: PackedSize,
}

impl<'a> SlotRef<'a> {
    // The masks tell the compiler that there is nothing to check.
    #[inline]
    pub(super) fn tag(self) -> u64 {
        self.line[self.slot % BODIES].load(Relaxed)
    }

    #[inline]
    fn body(self) -> &'a AtomicU64 {
        &self.line[self.slot % BODIES + BODIES]
    }

    /// Seizes the slot and returns its body, or [`SEIZED`] if it is seized already. A plain
    /// exchange is cheaper than one that compares, and seizing what is seized leaves it as it
    /// was; but the model checker would have a waiter read its own failed exchange for ever.
    #[inline(always)]
    fn exchange(self) -> u64 {
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

    /// Seizes the slot, unless somebody has it.
    #[inline(always)]
    pub(super) fn try_seize(self) -> Option<Slot> {
        let body = self.exchange();
        (body != SEIZED).then(|| Slot { tag: self.tag(), body })
    }

    /// Seizes the slot. Whoever has it is about to release it.
    pub(super) fn seize(self) -> Slot {
        let mut backoff = Backoff::new();
        loop {
            match self.try_seize() {
                Some(slot) => return slot,
                None => backoff.wait(),
            }
        }
    }

    /// The words beside the tag and the body of a seized slot.
    #[inline(always)]
    fn words(self) -> [u64; Packed::WORDS] {
        match self.size {
            PackedSize::Small => [0; Packed::WORDS],
            PackedSize::Large => STATE_WORDS.map(|word| self.line[word].load(Relaxed)),
        }
    }

    #[inline(always)]
    fn set_words(self, words: &[u64; Packed::WORDS]) {
        if self.size == PackedSize::Large {
            for (at, &word) in STATE_WORDS.into_iter().zip(words) {
                self.line[at].store(word, Relaxed);
            }
        }
    }

    /// The state in a seized slot.
    #[inline(always)]
    pub(super) fn packed(self, slot: Slot) -> Packed {
        Packed { deadline: slot.deadline(), head: slot.head(), words: self.words() }
    }

    /// Releases a seized slot as it was.
    #[inline]
    pub(super) fn release(self, body: u64) {
        self.body().store(body, Release);
    }

    /// Releases a seized slot with another state of the same key.
    #[inline(always)]
    pub(super) fn release_packed(self, packed: &Packed) {
        self.set_words(&packed.words);
        self.release(slot::body(packed.deadline, packed.head));
    }

    /// Releases a seized slot with this in it. Under the shard's lock.
    fn write(self, slot: Slot, words: &[u64; Packed::WORDS]) {
        self.line[self.slot % BODIES].store(slot.tag, Relaxed);
        self.set_words(words);
        self.release(slot.body);
    }

    /// The tag and the body of the slot, under the shard's lock. The body may be another a moment
    /// later; all else stays.
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

/// The line in which a key is looked for first.
#[inline]
fn home(fingerprint: Fingerprint, lines: u16) -> usize {
    ((fingerprint.place_bits() * u64::from(lines)) >> 32) as usize
}

/// The slot of its home line that is a key's own.
#[inline]
fn preferred_slot(fingerprint: Fingerprint, size: PackedSize) -> usize {
    match size {
        PackedSize::Small => fingerprint.place_bits() as usize % BODIES,
        PackedSize::Large => 0,
    }
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
            used: [AtomicU32::new(0), AtomicU32::new(0)],
            earliest: [AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)],
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
pub(super) struct Locked<'a> {
    shard: ShardRef<'a>,
    /// The slab, once it was needed.
    slab: Option<MutexGuard<'a, Box<Slab>>>,
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.slab = None;
        self.shard.shard.lock.unlock();
    }
}

impl<'a> ShardRef<'a> {
    #[inline]
    pub(super) fn lock(self) -> Locked<'a> {
        self.shard.lock.lock();
        Locked { shard: self, slab: None }
    }

    #[inline]
    pub(super) fn try_lock(self) -> Option<Locked<'a>> {
        self.shard.lock.try_lock().then(|| Locked { shard: self, slab: None })
    }

    /// Whether there may be an expired slot.
    pub(super) fn has_expired(self, now: Timestamp) -> bool {
        let passed = self.table.units_passed(now);
        self.shard.earliest.iter().any(|earliest| earliest.load(Relaxed) <= passed)
    }
}

impl<'a> Span<'a> {
    /// Where in the table a key's home line begins.
    #[inline]
    pub(super) fn home_word(self, fingerprint: Fingerprint) -> usize {
        self.word(home(fingerprint, self.lines))
    }

    /// The slot that a key prefers, whichever key is there.
    #[inline(always)]
    fn preferred(self, fingerprint: Fingerprint) -> SlotRef<'a> {
        let line = self.line(home(fingerprint, self.lines));
        SlotRef { line, slot: preferred_slot(fingerprint, self.size), size: self.size }
    }

    /// Where the state of a key seems to be, looked up without the lock in a few lines from the
    /// home line on. It may have moved by the time it is seized; then its tag is another. Once it
    /// is seized a match settles it: a key has one slot, and one it left is cleared.
    #[inline(always)]
    pub(super) fn probe(self, fingerprint: Fingerprint) -> Option<SlotRef<'a>> {
        // A processor that guesses that it is there knows the address before the line arrives.
        let preferred = self.preferred(fingerprint);
        if fingerprint.matches_inline(preferred.tag()) {
            return Some(preferred);
        }
        self.probe_further(fingerprint)
    }

    fn probe_further(self, fingerprint: Fingerprint) -> Option<SlotRef<'a>> {
        let mut at = home(fingerprint, self.lines);
        for _ in 0..PROBED_LINES[self.size as usize] {
            match self.find_in_line(at, |tag| fingerprint.matches(tag)) {
                Found::Here(slot) => {
                    return Some(slot).filter(|slot| fingerprint.matches_inline(slot.tag()));
                }
                Found::NotAtAll => return None,
                Found::PerhapsFurther => at = next_line(at, self.lines),
            }
        }
        None
    }

    /// Compares all tags of a line and only then branches: which of them it is cannot be
    /// predicted, but that it is one of them can.
    #[inline(always)]
    fn find_in_line(self, line: usize, is_it: impl Fn(u64) -> bool) -> Found<'a> {
        let line = self.line(line);
        if self.size == PackedSize::Large {
            let slot = SlotRef { line, slot: 0, size: self.size };
            return match slot.tag() {
                0 => Found::NotAtAll,
                tag if is_it(tag) => Found::Here(slot),
                _ => Found::PerhapsFurther,
            };
        }
        let tags: [u64; BODIES] = std::array::from_fn(|slot| line[slot].load(Relaxed));
        let slot = (1..BODIES).fold(0, |slot, at| select_unpredictable(is_it(tags[at]), at, slot));
        if is_it(tags[slot]) {
            Found::Here(SlotRef { line, slot, size: self.size })
        } else if tags.contains(&0) {
            Found::NotAtAll
        } else {
            Found::PerhapsFurther
        }
    }

    /// The slots of a line, beginning with this one.
    fn slots(self, line: usize, first: usize) -> impl Iterator<Item = SlotRef<'a>> {
        let (line, slots) = (self.line(line), Geometry::of(self.size).slots);
        (first..first + slots).map(move |slot| SlotRef {
            line,
            slot: slot % slots,
            size: self.size,
        })
    }

    /// The first slot along a key's path that it may take: an expired one or, at the path's end,
    /// an empty one. In each line its own is looked at first.
    fn vacancy(self, fingerprint: Fingerprint, passed: u64) -> (SlotRef<'a>, Slot) {
        let mut line = home(fingerprint, self.lines);
        loop {
            for slot in self.slots(line, preferred_slot(fingerprint, self.size)) {
                let found = slot.look();
                if found.is_empty() || found.is_expired(passed) {
                    return (slot, found);
                }
            }
            line = next_line(line, self.lines);
        }
    }
}

impl<'a> Locked<'a> {
    #[inline]
    fn span(&self, size: PackedSize) -> Span<'a> {
        self.shard.table.span(self.shard.index, size)
    }

    fn used(&self, size: PackedSize) -> u32 {
        self.shard.shard.used[size as usize].load(Relaxed)
    }

    fn set_used(&self, size: PackedSize, used: u32) {
        self.shard.shard.used[size as usize].store(used, Relaxed);
    }

    /// The states that do not fit a slot. Locked within the shard's own lock, so nobody ever waits
    /// for it; it is there because it needs no `unsafe`.
    pub(super) fn slab(&mut self) -> &mut Slab {
        self.slab.get_or_insert_with(|| self.shard.shard.slab.lock())
    }

    /// Looks a key up: from its home line on, until a line with an empty slot.
    pub(super) fn find(&self, fingerprint: Fingerprint, size: PackedSize) -> Option<SlotRef<'a>> {
        let span = self.span(size);
        let mut line = home(fingerprint, span.lines);
        loop {
            match span.find_in_line(line, |tag| fingerprint.matches(tag)) {
                Found::Here(slot) => return Some(slot),
                Found::NotAtAll => return None,
                // A shard is never filled to the last slot, so this ends.
                Found::PerhapsFurther => line = next_line(line, span.lines),
            }
        }
    }

    /// Gives a key that was not found a slot, with nothing counted; `None` when the table is full.
    /// With `over_capacity` it gets one even then, which is for the few keys the store itself
    /// needs. It may move all slots of the shard, so the caller must have none of them seized.
    pub(super) fn claim(
        &mut self,
        fingerprint: Fingerprint,
        size: PackedSize,
        now: Timestamp,
        over_capacity: bool,
    ) -> Option<SlotRef<'a>> {
        let passed = self.shard.table.units_passed(now);
        // Not expired, so that the next claim in this shard leaves it alone.
        let mark = Slot::inline(fingerprint, slot::units_passed(now) + 1, 0);
        let mut reserved = false;
        loop {
            let (place, found) = self.span(size).vacancy(fingerprint, passed);
            if !found.is_empty() {
                self.discard(found);
                self.shard.table.give_back(u64::from(reserved));
                return Some(self.insert_at(place, mark));
            } else if !self.has_room(size) {
                if !self.grow(size, passed) {
                    self.shard.table.give_back(u64::from(reserved));
                    return None;
                }
            } else if !reserved {
                if !self.reserve(now, over_capacity) {
                    return None;
                }
                // Look again: reserving may have evicted slots and moved others.
                reserved = true;
            } else {
                self.set_used(size, self.used(size) + 1);
                return Some(self.insert_at(place, mark));
            }
        }
    }

    /// Puts something else into a slot.
    pub(super) fn put(&self, place: SlotRef<'a>, slot: Slot, words: &[u64; Packed::WORDS]) {
        place.seize();
        self.put_seized(place, slot, words);
    }

    /// Puts something else into a slot that is seized.
    pub(super) fn put_seized(&self, place: SlotRef<'a>, slot: Slot, words: &[u64; Packed::WORDS]) {
        // A lower bound on all deadlines.
        let earliest = &self.shard.shard.earliest[place.size as usize];
        if slot.deadline() < earliest.load(Relaxed) {
            earliest.store(slot.deadline(), Relaxed);
        }
        place.write(slot, words);
    }

    /// Puts a new key into the slot found for it, or into the one it prefers if that is in the
    /// same line and the key there prefers another.
    fn insert_at(&self, place: SlotRef<'a>, new: Slot) -> SlotRef<'a> {
        let empty = [0; Packed::WORDS];
        let preferred = self.span(place.size).preferred(new.fingerprint());
        let is_near = std::ptr::eq(preferred.line, place.line) && preferred.slot != place.slot;
        if !is_near || self.is_preferred(preferred) {
            self.put(place, new, &empty);
            return place;
        }
        // Seized until it is written, so a lookup finds one of the two.
        let other = preferred.seize();
        self.put(place, other, &empty);
        self.put_seized(preferred, new, &empty);
        preferred
    }

    /// Whether a key is in the slot it prefers.
    fn is_preferred(&self, place: SlotRef<'a>) -> bool {
        let of = Slot { tag: place.tag(), body: 0 }.fingerprint();
        let preferred = self.span(place.size).preferred(of);
        std::ptr::eq(preferred.line, place.line) && preferred.slot == place.slot
    }

    /// Whether a slot can be taken before the table must grow. Up to five eighths full, 12 of 13
    /// keys in small slots are in their home line, and a decision that looks elsewhere costs
    /// twice. A line of its own for every key costs more memory, so large slots are filled further.
    fn has_room(&self, size: PackedSize) -> bool {
        self.used(size) < Geometry::of(size).capacity(self.span(size).lines)
    }

    /// Takes one of the table's `max_keys`, evicting expired slots if it must.
    fn reserve(&mut self, now: Timestamp, over_capacity: bool) -> bool {
        for attempt in 0..2 {
            if self.shard.table.reserve(over_capacity) {
                return true;
            }
            if attempt == 0 {
                self.reclaim(now);
            }
        }
        false
    }

    /// Evicts expired slots here or, if there are none, somewhere else; returns how many. Slots of
    /// this shard may move.
    pub(super) fn reclaim(&mut self, now: Timestamp) -> u64 {
        match self.evict_expired(now) {
            0 => self.shard.table.reclaim(now),
            freed => freed,
        }
    }

    /// Evicts expired slots; returns how many.
    pub(super) fn evict_expired(&mut self, now: Timestamp) -> u64 {
        let passed = self.shard.table.units_passed(now);
        let mut freed = 0;
        for size in [PackedSize::Small, PackedSize::Large] {
            if self.shard.shard.earliest[size as usize].load(Relaxed) <= passed {
                let before = self.used(size);
                self.rehash(size, passed, self.span(size).lines);
                freed += u64::from(before - self.used(size));
            }
        }
        freed
    }

    /// Evicts what has expired, then grows unless that made enough room; `false` when it cannot
    /// make room.
    fn grow(&mut self, size: PackedSize, passed: u64) -> bool {
        let lines = self.span(size).lines;
        self.rehash(size, passed, lines);
        let geometry = Geometry::of(size);
        if self.used(size) >= geometry.capacity(lines) * 4 / 5 {
            let grown = geometry.grown(lines);
            if grown > lines {
                self.rehash(size, passed, grown);
            }
        }
        self.has_room(size)
    }

    /// Places every slot that has not expired anew, in so many lines.
    fn rehash(&mut self, size: PackedSize, passed: u64, lines: u16) {
        let mut kept = Vec::with_capacity(self.used(size) as usize);
        let mut dropped = 0;
        let span = self.span(size);
        for place in (0..usize::from(span.lines)).flat_map(|line| span.slots(line, 0)) {
            let slot = place.seize();
            let words = place.words();
            place.write(Slot::default(), &[0; Packed::WORDS]);
            if slot.is_empty() {
                continue;
            }
            if slot.is_expired(passed) {
                self.discard(slot);
                dropped += 1;
            } else {
                kept.push((slot, words));
            }
        }
        self.shard.table.set_lines(self.shard.index, size, lines);
        self.set_used(size, kept.len() as u32);
        self.shard.table.give_back(dropped);
        let earliest = kept.iter().map(|(slot, _)| slot.deadline()).min().unwrap_or(u64::MAX);
        self.shard.shard.earliest[size as usize].store(earliest, Relaxed);
        let span = self.span(size);
        // Those whose preferred slot is free come first, so that the others are not in it.
        kept.retain(|(slot, words)| {
            let preferred = span.preferred(slot.fingerprint());
            let is_taken = preferred.tag() != 0;
            if !is_taken {
                self.put(preferred, *slot, words);
            }
            is_taken
        });
        for (slot, words) in kept {
            let (place, _) = span.vacancy(slot.fingerprint(), passed);
            self.put(place, slot, &words);
        }
    }

    /// Frees what a slot points at.
    fn discard(&mut self, slot: Slot) {
        if slot.is_in_slab() {
            let state = self.slab().remove(slot.head());
            self.shard.table.count_entries(state.entries(), 0);
        }
    }

    /// Forgets what a slot counted.
    pub(super) fn clear(&mut self, place: SlotRef<'a>) {
        let slot = place.seize();
        self.discard(slot);
        self.put_seized(place, slot.cleared(), &[0; Packed::WORDS]);
        self.shard.table.search_again();
    }
}
