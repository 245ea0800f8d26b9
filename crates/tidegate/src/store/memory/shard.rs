//! One shard: two small open-addressed tables, for small and for large slots, under one lock.
//!
//! There are two nested locks. The lock of the shard protects the assignment of slots to keys: tags
//! and tag bytes change only under it. The lock of a slot is its body: the thread that exchanges
//! the body for [`SEIZED`](super::slot::SEIZED) owns the slot until it stores a body again, and
//! only the owner changes the body or the words that belong to it. The fast path seizes slots
//! without the lock of the shard, does not wait while it holds them, and gives up if another thread
//! holds one. So a thread that holds the lock of a shard may wait for a slot, but a thread that
//! holds a slot never waits for the lock of a shard.

use tidegate_core::{Packed, PackedSize, Timestamp};

use super::slab::Slab;
use super::slot::{self, Fingerprint, Slot, SlotRef};
use super::slot_groups::{GROUP, SlotGroups};
use super::table::Table;
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicU32, AtomicU64, SpinGuard, SpinMutex};

/// The number of groups of a new shard.
pub(super) const FIRST_GROUPS: u8 = if cfg!(loom) { 2 } else { 1 };
/// The most groups of a shard that is adjacent to the next one. A larger shard has moved to the
/// area in which it can grow.
pub(super) const NEAR_GROUPS: u8 = 2;
/// The most groups of a shard. Their 787 usable slots are enough for a shard of a full table whose
/// number of keys is fourteen standard deviations of a random distribution above the average.
pub(super) const MOST_GROUPS: u8 = if cfg!(loom) { 4 } else { 105 };

/// The number of slots that may be in use before a shard of `groups` groups has to grow. A shard
/// that cannot grow is filled further.
fn capacity(groups: u8) -> u32 {
    let sixteenths = if groups == MOST_GROUPS { 15 } else { 14 };
    u32::from(groups) * GROUP as u32 * sixteenths / 16
}

/// The number of groups that a shard of `groups` groups grows to.
fn grown(groups: u8) -> u8 {
    (groups + (groups / 8).max(1)).min(MOST_GROUPS)
}

#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Shard {
    /// The lock of the shard, and the states that do not fit a slot.
    slab: SpinMutex<Slab>,
    /// The number of slots of each size that are not empty, including expired ones.
    used: [AtomicU32; 2],
    /// For each size, a lower bound on the deadlines of all slots.
    earliest: [AtomicU64; 2],
}

impl Shard {
    pub(super) fn new() -> Self {
        Shard {
            slab: SpinMutex::default(),
            used: [AtomicU32::new(0), AtomicU32::new(0)],
            earliest: [AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)],
        }
    }
}

/// A reference to a shard, which may be locked or not.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardRef<'a> {
    pub(super) table: &'a Table,
    pub(super) shard: &'a Shard,
    pub(super) index: usize,
}

/// A locked shard. The lock is released when this is dropped.
#[derive(Debug)]
pub(super) struct LockedShard<'a> {
    shard: ShardRef<'a>,
    slab: SpinGuard<'a, Slab>,
}

impl<'a> ShardRef<'a> {
    #[inline]
    pub(super) fn lock(self) -> LockedShard<'a> {
        LockedShard { shard: self, slab: self.shard.slab.lock() }
    }

    #[inline]
    pub(super) fn try_lock(self) -> Option<LockedShard<'a>> {
        self.shard.slab.try_lock().map(|slab| LockedShard { shard: self, slab })
    }

    /// Whether there may be an expired slot.
    pub(super) fn has_expired(self, now: Timestamp) -> bool {
        let steps_passed = self.table.deadline_steps_passed(now);
        self.shard.earliest.iter().any(|earliest| earliest.load(Relaxed) <= steps_passed)
    }
}

impl<'a> LockedShard<'a> {
    #[inline]
    fn slot_groups(&self, size: PackedSize) -> SlotGroups<'a> {
        self.shard.table.slot_groups(self.shard.index, size)
    }

    fn used(&self, size: PackedSize) -> u32 {
        self.shard.shard.used[size as usize].load(Relaxed)
    }

    fn set_used(&self, size: PackedSize, used: u32) {
        self.shard.shard.used[size as usize].store(used, Relaxed);
    }

    /// A lower bound on the deadlines of all slots of a size.
    fn earliest(&self, size: PackedSize) -> &'a AtomicU64 {
        &self.shard.shard.earliest[size as usize]
    }

    /// The states that do not fit a slot.
    #[inline]
    pub(super) fn slab(&mut self) -> &mut Slab {
        &mut self.slab
    }

    /// Finds the slot of a key.
    #[inline]
    pub(super) fn find(&self, fingerprint: Fingerprint, size: PackedSize) -> Option<SlotRef<'a>> {
        self.slot_groups(size).find(fingerprint)
    }

    /// Assigns an empty slot to a key that was not found. Returns `None` if the table is full. With
    /// `over_capacity` it assigns one even then, for the few keys that the store itself needs. It
    /// may move all slots of the shard, so the caller must not have seized any of them.
    pub(super) fn claim(
        &mut self,
        fingerprint: Fingerprint,
        size: PackedSize,
        now: Timestamp,
        over_capacity: bool,
    ) -> Option<SlotRef<'a>> {
        let steps_passed = self.shard.table.deadline_steps_passed(now);
        // The deadline has not passed, so the next claim in this shard does not take the slot.
        let mark = Slot::packed(fingerprint, slot::deadline_steps_passed(now) + 1, 0);
        while let Some(slot_ref) = self.expired_slot(fingerprint, size, steps_passed) {
            let found = slot_ref.seize();
            if found.is_expired(steps_passed) {
                self.discard(found);
                return Some(self.insert_seized(slot_ref, mark));
            }
            // The fast path has charged the slot since it was read.
            slot_ref.release(found.body);
        }
        // Reserving may evict slots and move others, so it comes before a slot is chosen.
        if !self.reserve(now, over_capacity) {
            return None;
        }
        if self.has_room(size) || self.grow(size, steps_passed) {
            // A shard is never filled completely, so an empty slot exists.
            let slot_ref = self.slot_groups(size).empty_slot(fingerprint)?;
            self.set_used(size, self.used(size) + 1);
            slot_ref.seize();
            return Some(self.insert_seized(slot_ref, mark));
        }
        self.shard.table.unreserve(1);
        None
    }

    /// An expired slot that can be assigned to a key.
    fn expired_slot(
        &self,
        fingerprint: Fingerprint,
        size: PackedSize,
        steps_passed: u64,
    ) -> Option<SlotRef<'a>> {
        let may_have_expired = self.earliest(size).load(Relaxed) <= steps_passed;
        may_have_expired
            .then(|| self.slot_groups(size).expired_slot(fingerprint, steps_passed))
            .flatten()
    }

    /// Replaces the contents of a slot.
    pub(super) fn put(&self, slot_ref: SlotRef<'a>, slot: Slot, words: &[u64; Packed::WORDS]) {
        slot_ref.seize();
        self.put_seized(slot_ref, slot, words);
    }

    /// Replaces the contents of a seized slot, and releases it.
    pub(super) fn put_seized(
        &self,
        slot_ref: SlotRef<'a>,
        slot: Slot,
        words: &[u64; Packed::WORDS],
    ) {
        let earliest = self.earliest(slot_ref.size());
        if slot.deadline() < earliest.load(Relaxed) {
            earliest.store(slot.deadline(), Relaxed);
        }
        slot_ref.write(slot, words);
    }

    /// Assigns a seized slot to a key that had none, and releases it.
    fn insert_seized(&self, slot_ref: SlotRef<'a>, new: Slot) -> SlotRef<'a> {
        self.put_seized(slot_ref, new, &[0; Packed::WORDS]);
        self.slot_groups(slot_ref.size()).set_tag_byte(slot_ref, new.fingerprint().tag_byte());
        slot_ref
    }

    /// Whether a slot can be assigned before the shard has to grow.
    fn has_room(&self, size: PackedSize) -> bool {
        self.used(size) < capacity(self.slot_groups(size).groups)
    }

    /// Reserves one of the table's `max_keys`, and evicts expired slots if none is left.
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

    /// Evicts expired slots of this shard or, if there are none, of another one. Returns how many.
    /// Slots of this shard may move.
    pub(super) fn reclaim(&mut self, now: Timestamp) -> u64 {
        match self.evict_expired(now) {
            0 => self.shard.table.reclaim(now),
            freed => freed,
        }
    }

    /// Evicts the expired slots of this shard. Returns how many.
    pub(super) fn evict_expired(&mut self, now: Timestamp) -> u64 {
        let steps_passed = self.shard.table.deadline_steps_passed(now);
        let mut freed = 0;
        for size in [PackedSize::Small, PackedSize::Large] {
            if self.earliest(size).load(Relaxed) <= steps_passed {
                let before = self.used(size);
                self.rehash(size, steps_passed, self.slot_groups(size).groups);
                freed += u64::from(before - self.used(size));
            }
        }
        freed
    }

    /// Evicts expired slots, and then grows unless that freed enough. Returns `false` if the shard
    /// is still full.
    fn grow(&mut self, size: PackedSize, steps_passed: u64) -> bool {
        let groups = self.slot_groups(size).groups;
        self.rehash(size, steps_passed, groups);
        if self.used(size) >= capacity(groups) * 4 / 5 && groups < MOST_GROUPS {
            self.rehash(size, steps_passed, grown(groups));
        }
        self.has_room(size)
    }

    /// Inserts every slot that has not expired again, into `count` groups.
    fn rehash(&mut self, size: PackedSize, steps_passed: u64, count: u8) {
        let mut kept = Vec::with_capacity(self.used(size) as usize);
        let mut dropped = 0;
        let before = self.slot_groups(size);
        for slot_ref in before.slots() {
            let slot = slot_ref.seize();
            let words = slot_ref.words();
            slot_ref.write(Slot::default(), &[0; Packed::WORDS]);
            if slot.is_empty() {
                continue;
            }
            if slot.is_expired(steps_passed) {
                self.discard(slot);
                dropped += 1;
            } else {
                kept.push((slot, words));
            }
        }
        before.clear_tag_bytes();
        self.shard.table.set_groups(self.shard.index, size, count);
        self.set_used(size, kept.len() as u32);
        self.shard.table.unreserve(dropped);
        let earliest = kept.iter().map(|(slot, _)| slot.deadline()).min().unwrap_or(u64::MAX);
        self.earliest(size).store(earliest, Relaxed);
        let groups = self.slot_groups(size);
        // Keys whose preferred slot is free come first. Otherwise a key that takes another slot
        // would often take the preferred slot of a later one.
        let insert = |slot: Slot, words: &[u64; Packed::WORDS], slot_ref: SlotRef<'a>| {
            self.put(slot_ref, slot, words);
            groups.set_tag_byte(slot_ref, slot.fingerprint().tag_byte());
        };
        kept.retain(|(slot, words)| {
            let preferred = groups.empty_preferred_slot(slot.fingerprint());
            if let Some(slot_ref) = preferred {
                insert(*slot, words, slot_ref);
            }
            preferred.is_none()
        });
        for (slot, words) in kept {
            let slot_ref = groups.empty_slot(slot.fingerprint());
            insert(slot, &words, slot_ref.expect("there are more slots than keys"));
        }
    }

    /// Uncounts the entries of a slot, and frees its state in the slab, if it has one.
    fn discard(&mut self, slot: Slot) {
        let entries = match slot.is_in_slab() {
            true => self.slab().remove(slot.head()),
            false => slot.log_entries(),
        };
        self.shard.table.count_entries(entries, 0);
    }

    /// Removes the state of a slot.
    pub(super) fn clear(&mut self, slot_ref: SlotRef<'a>) {
        let slot = slot_ref.seize();
        self.discard(slot);
        self.put_seized(slot_ref, slot.cleared(), &[0; Packed::WORDS]);
        self.shard.table.search_again();
    }
}
