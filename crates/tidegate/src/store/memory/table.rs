//! The table: many small open-addressed shards in one block of memory.
//!
//! A decision about a key that was not seen lately costs what its cache misses
//! cost, so the table is laid out to have one: a slot is 16 bytes with its state
//! in it, four slots fill a cache line, and a key's home line is computed, not
//! looked up. A line that is full passes its keys on to the next.
//!
//! Nothing ever stops the world. A shard holds a thousand keys or so and has its
//! own lock; it grows by a quarter at a time and lets go of expired slots when
//! it would have to grow, a few microseconds of work in its own few pages. The
//! block for all shards is reserved at once but its pages are only touched, and
//! so only take memory, as shards grow into them. Keys are never moved by
//! anybody else's growth, and an active key is never dropped.
//!
//! All words are atomics, read and written relaxed under the shard's lock, which
//! costs the same as plain words and needs no `unsafe`.

use tidegate_core::Timestamp;

use super::lock::SpinLock;
use super::slab::Slab;
use super::slot::{self, Fingerprint, Slot};
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering::Relaxed};

/// Slots in a cache line: four tags, then four bodies, so that looking for a
/// tag compares neighbours.
const LINE_SLOTS: usize = 4;
const LINE_WORDS: usize = 2 * LINE_SLOTS;
const LINE_BYTES: usize = 64;
/// A shard may grow to this many lines: 20 KiB, rebuilt in a few microseconds.
/// A model checker looks at every word, so it gets few.
const SHARD_LINES: usize = if cfg!(loom) { 4 } else { 320 };
/// Lines of a new shard.
const FIRST_LINES: usize = if cfg!(loom) { 1 } else { 16 };
/// Keys a shard is meant to hold when the table is full. Its lines can hold a
/// third more, ten standard deviations of a random spread.
const SHARD_KEYS: usize = 840;
/// Fewer shards would make threads meet at one lock even with few keys.
const MIN_SHARDS: usize = if cfg!(loom) { 2 } else { 64 };
/// How far a key is looked for before its shard is locked: one in ten is not in
/// its home line, one in a hundred not in the next either.
const GLIMPSED_LINES: usize = 4;
/// How many other shards a newcomer to a full table asks for something expired,
/// a load each: its share of the sweeping, bounded.
const ASKED_SHARDS: usize = 256;

#[derive(Debug)]
#[repr(align(64))]
struct Shard {
    lock: SpinLock,
    /// Where its lines begin in the table's block.
    first_word: usize,
    /// Lines in use, of the [`SHARD_LINES`] reserved.
    lines: AtomicU32,
    /// Slots that are not empty, expired ones included.
    used: AtomicU32,
    /// No slot's deadline is before this.
    earliest: AtomicU64,
    /// States that do not fit a slot.
    slab: Mutex<Box<Slab>>,
}

#[derive(Debug)]
pub(super) struct Table {
    words: Box<[AtomicU64]>,
    shards: Box<[Shard]>,
    /// Slots that are not empty, in all shards.
    tracked: AtomicU64,
    max_keys: u64,
    /// How much longer than they matter slots are kept.
    grace_us: u64,
    /// Log entries and permits, in all slabs.
    entries: AtomicU64,
    /// The shard the next sweep begins with.
    hand: AtomicU64,
}

/// What a line says about a key.
enum Found<'a> {
    Here(Place<'a>),
    NotAtAll,
    PerhapsFurther,
}

/// Four slots.
type Line = [AtomicU64; LINE_WORDS];

/// Where a slot is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    line: &'a Line,
    /// Which of the four.
    slot: usize,
}

impl Place<'_> {
    // The mask tells the compiler that there is nothing to check.
    #[inline]
    pub(super) fn read(self) -> Slot {
        let slot = self.slot % LINE_SLOTS;
        let (tag, body) = (&self.line[slot], &self.line[slot + LINE_SLOTS]);
        Slot { tag: tag.load(Relaxed), body: body.load(Relaxed) }
    }

    #[inline]
    pub(super) fn write_body(self, body: u64) {
        self.line[self.slot % LINE_SLOTS + LINE_SLOTS].store(body, Relaxed);
    }

    #[inline]
    pub(super) fn write(self, value: Slot) {
        let slot = self.slot % LINE_SLOTS;
        self.line[slot].store(value.tag, Relaxed);
        self.line[slot + LINE_SLOTS].store(value.body, Relaxed);
    }
}

impl Table {
    /// Room for `max_keys`; `None` when so much memory cannot be had.
    pub(super) fn new(max_keys: usize, grace_us: u64) -> Option<Self> {
        let shards = max_keys.div_ceil(SHARD_KEYS).max(MIN_SHARDS);
        let words = shards.checked_mul(SHARD_LINES * LINE_WORDS)?.checked_add(LINE_WORDS)?;
        let words = zeroed_words(words)?;
        // An address that cannot be aligned to cache lines costs speed, nothing else.
        let aligned = words.as_ptr().align_offset(LINE_BYTES) % LINE_WORDS;
        let first_word = |shard| aligned + shard * (SHARD_LINES * LINE_WORDS);
        Some(Table {
            words,
            shards: (0..shards).map(|shard| Shard::new(first_word(shard))).collect(),
            tracked: AtomicU64::new(0),
            max_keys: max_keys as u64,
            grace_us,
            entries: AtomicU64::new(0),
            hand: AtomicU64::new(0),
        })
    }

    /// Deadlines up to this one have passed, and the grace after them.
    fn units_passed(&self, now: Timestamp) -> u64 {
        let late = now.as_micros().saturating_sub(self.grace_us);
        slot::units_passed(Timestamp::from_micros(late))
    }

    /// Which shard a hash belongs to: its top bits, spread over any number of shards.
    #[inline]
    pub(super) fn shard_of(&self, hash: u64) -> usize {
        let wide = u128::from(hash) * self.shards.len() as u128;
        (wide >> 64) as usize
    }

    #[inline]
    pub(super) fn shard(&self, index: usize) -> ShardRef<'_> {
        ShardRef { table: self, shard: &self.shards[index] }
    }

    #[inline]
    pub(super) fn lock(&self, index: usize) -> Locked<'_> {
        self.shard(index).lock()
    }

    /// The line that starts at a word.
    #[inline]
    fn line_at(&self, word: usize) -> &Line {
        self.words[word..].first_chunk().expect("a shard's lines are within the block")
    }

    /// Slots in use, expired ones that nobody has needed yet included.
    pub(super) fn tracked(&self) -> u64 {
        self.tracked.load(Relaxed)
    }

    /// Whether a key that has no slot could not be given a new one.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.tracked.load(Relaxed) >= self.max_keys
    }

    /// Log entries and permits held in all.
    pub(super) fn entries(&self) -> u64 {
        self.entries.load(Relaxed)
    }

    /// Notes that a state's entries went from so many to so many.
    pub(super) fn count_entries(&self, before: usize, after: usize) {
        // At its limit a log drops as many as it takes on: nothing to note.
        if after > before {
            self.entries.fetch_add((after - before) as u64, Relaxed);
        } else if before > after {
            self.entries.fetch_sub((before - after) as u64, Relaxed);
        }
    }

    /// Lets go of expired slots in the next `shards` shards, or until it has `enough`;
    /// returns how many.
    pub(super) fn sweep(&self, shards: usize, now: Timestamp, enough: u64) -> u64 {
        let mut freed = 0;
        for _ in 0..shards.min(self.shards.len()) {
            if freed >= enough {
                break;
            }
            let next = self.hand.fetch_add(1, Relaxed) as usize % self.shards.len();
            // A shard that is busy is in good hands: its user rebuilds it when it must.
            let shard = self.shard(next);
            if !shard.may_let_go(now) {
                continue;
            }
            if shard.shard.lock.try_lock() {
                freed += Locked(shard).let_go(now);
            }
        }
        freed
    }

    pub(super) fn shards(&self) -> usize {
        self.shards.len()
    }
}

#[cfg(not(loom))]
fn zeroed_words(count: usize) -> Option<Box<[AtomicU64]>> {
    // Zeroed memory is mapped, not written: pages come as shards grow into them.
    bytemuck::allocation::try_zeroed_slice_box(count).ok()
}

#[cfg(loom)]
fn zeroed_words(count: usize) -> Option<Box<[AtomicU64]>> {
    Some((0..count).map(|_| AtomicU64::new(0)).collect())
}

/// The line a fingerprint is looked for first.
#[inline]
fn home(fingerprint: Fingerprint, lines: u32) -> usize {
    ((fingerprint.place_bits() * u64::from(lines)) >> 32) as usize
}

/// The line after: where a full line passes its keys on to.
#[inline]
fn next_line(line: usize, lines: u32) -> usize {
    if line + 1 == lines as usize { 0 } else { line + 1 }
}

impl Shard {
    fn new(first_word: usize) -> Self {
        Shard {
            lock: SpinLock::new(),
            first_word,
            lines: AtomicU32::new(FIRST_LINES as u32),
            used: AtomicU32::new(0),
            earliest: AtomicU64::new(u64::MAX),
            slab: Mutex::default(),
        }
    }
}

/// A shard, locked or not.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardRef<'a> {
    table: &'a Table,
    shard: &'a Shard,
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

    /// Whether there may be an expired slot.
    fn may_let_go(self, now: Timestamp) -> bool {
        self.shard.earliest.load(Relaxed) <= self.table.units_passed(now)
    }

    /// Begins to load what a lookup will need, without waiting for it: the
    /// shard first, then, with [`ShardRef::touch_line`], the home line. The value
    /// is of no use, but using it keeps the load.
    #[inline]
    pub(super) fn touch(self) -> u64 {
        u64::from(self.shard.lines.load(Relaxed))
    }

    /// See [`ShardRef::touch`].
    #[inline]
    pub(super) fn touch_line(self, fingerprint: Fingerprint) -> u64 {
        self.line(home(fingerprint, self.shard.lines.load(Relaxed)))[0].load(Relaxed)
    }

    /// Where a slot with this very tag seems to be, looked up without the lock. It
    /// may have moved by the time the lock is held; then its tag is another. Under
    /// the lock a match settles it: a key has one slot, and one it left is cleared.
    #[inline]
    pub(super) fn glimpse(self, fingerprint: Fingerprint, tag: u64) -> Option<Place<'a>> {
        let lines = self.shard.lines.load(Relaxed);
        let mut line = home(fingerprint, lines);
        for _ in 0..GLIMPSED_LINES {
            match self.find_in_line(line, |found| found == tag) {
                Found::Here(place) => return Some(place),
                Found::NotAtAll => return None,
                Found::PerhapsFurther => line = next_line(line, lines),
            }
        }
        None
    }

    /// Looks a key up: from its home line on, until a line with an empty slot.
    pub(super) fn find(&self, fingerprint: Fingerprint) -> Option<Place<'a>> {
        let lines = self.shard.lines.load(Relaxed);
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

    /// Compares all four tags and only then branches: which of them it is cannot
    /// be predicted, that it is one of them can.
    #[inline]
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
        self.table.line_at(self.shard.first_word + line * LINE_WORDS)
    }

    fn places(&self, line: usize) -> impl Iterator<Item = Place<'a>> {
        let line = self.line(line);
        (0..LINE_SLOTS).map(move |slot| Place { line, slot })
    }
}

impl<'a> Locked<'a> {
    /// Gives a key that was not found a place of its own, marked as its own with
    /// nothing counted; `None` when the table is full. With `beyond` it gets one
    /// even then, which is for the few keys the store itself needs.
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
                self.table.tracked.fetch_sub(u64::from(reserved), Relaxed);
                return Some(self.put(place, mark));
            } else if !self.has_room() {
                if !self.rebuild(passed) {
                    self.table.tracked.fetch_sub(u64::from(reserved), Relaxed);
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
                return Some(self.put(place, mark));
            }
        }
    }

    fn put(&self, place: Place<'a>, slot: Slot) -> Place<'a> {
        self.note_deadline(slot.deadline());
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
    /// at the path's end, an empty one.
    fn vacancy(&self, fingerprint: Fingerprint, passed: u64) -> (Place<'a>, Option<Slot>) {
        let lines = self.shard.lines.load(Relaxed);
        let mut line = home(fingerprint, lines);
        loop {
            for place in self.places(line) {
                let slot = place.read();
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

    /// Whether a slot can be taken before the shard must be rebuilt: seven eighths
    /// full, a key sits in its home line or the next with few exceptions.
    fn has_room(&self) -> bool {
        let lines = self.shard.lines.load(Relaxed);
        let slots = lines * LINE_SLOTS as u32;
        let spare = if lines as usize == SHARD_LINES { slots / 16 } else { slots / 8 };
        self.shard.used.load(Relaxed) < slots - spare
    }

    /// Takes one of the table's `max_keys`, letting go of expired slots if it must.
    fn reserve(&self, now: Timestamp, beyond: bool) -> bool {
        for attempt in 0..2 {
            if self.table.tracked.fetch_add(1, Relaxed) < self.table.max_keys || beyond {
                return true;
            }
            self.table.tracked.fetch_sub(1, Relaxed);
            if attempt == 0 {
                self.reclaim(now);
            }
        }
        false
    }

    /// Lets go of expired slots here or, if there are none, in the first other
    /// shard that has some.
    pub(super) fn reclaim(&self, now: Timestamp) {
        if self.let_go(now) == 0 {
            self.table.sweep(ASKED_SHARDS, now, 1);
        }
    }

    fn let_go(&self, now: Timestamp) -> u64 {
        let passed = self.table.units_passed(now);
        if !self.may_let_go(now) {
            return 0;
        }
        let before = self.shard.used.load(Relaxed);
        self.lay_out(passed, self.shard.lines.load(Relaxed));
        u64::from(before - self.shard.used.load(Relaxed))
    }

    /// Lets go of what has expired, then grows by a quarter if the shard is still
    /// more than three quarters full; `false` when it cannot make room.
    fn rebuild(&self, passed: u64) -> bool {
        let lines = self.shard.lines.load(Relaxed);
        self.lay_out(passed, lines);
        let slots = lines * LINE_SLOTS as u32;
        if self.shard.used.load(Relaxed) > slots - slots / 4 {
            let grown = (lines + (lines / 4).max(8)).min(SHARD_LINES as u32);
            if grown > lines {
                self.lay_out(passed, grown);
            }
        }
        self.has_room()
    }

    /// Puts every live slot in its place anew, in so many lines.
    fn lay_out(&self, passed: u64, lines: u32) {
        let mut kept = Vec::with_capacity(self.shard.used.load(Relaxed) as usize);
        let mut dropped = 0;
        for place in (0..self.shard.lines.load(Relaxed) as usize).flat_map(|line| self.places(line))
        {
            let slot = place.read();
            if slot.is_empty() {
                continue;
            }
            place.write(Slot::default());
            if slot.expired(passed) {
                self.discard(slot);
                dropped += 1;
            } else {
                kept.push(slot);
            }
        }
        self.shard.lines.store(lines, Relaxed);
        self.shard.used.store(kept.len() as u32, Relaxed);
        self.table.tracked.fetch_sub(dropped, Relaxed);
        let mut earliest = u64::MAX;
        for slot in kept {
            earliest = earliest.min(slot.deadline());
            self.vacancy(slot.fingerprint(), passed).0.write(slot);
        }
        self.shard.earliest.store(earliest, Relaxed);
    }

    /// Frees what a slot points at.
    fn discard(&self, slot: Slot) {
        if slot.is_in_slab() {
            let state = self.slab(|slab| slab.remove(slot.body()));
            self.table.entries.fetch_sub(state.entries() as u64, Relaxed);
        }
    }

    /// Forgets what a slot counted.
    pub(super) fn vacate(&self, place: Place<'_>) {
        let slot = place.read();
        self.discard(slot);
        place.write(slot.vacated());
        self.shard.earliest.store(0, Relaxed);
    }

    /// The states that do not fit a slot. Locked within the shard's own lock, so
    /// nobody ever waits for it; it is there because it needs no `unsafe`.
    pub(super) fn slab<T>(&self, then: impl FnOnce(&mut Slab) -> T) -> T {
        then(&mut self.shard.slab.lock())
    }
}
