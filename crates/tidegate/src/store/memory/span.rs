//! The slots that a shard uses for states of one size, and how a key is found among them.
//!
//! Slots are in groups of eight whose [tag bytes](super::tags) are in one word. A key is in the
//! first group from its home group on that had room for it. Slots are freed only by rehashing the
//! shard, so a lookup may stop at the first group with an empty slot; an expired slot stays where
//! it is until another key takes it.
//!
//! Tag bytes are apart from the slots and close together: those of a million keys are little more
//! than a megabyte, which stays in the cache. So a lookup misses the cache once, for the slot.

use tidegate_core::{Limit, Packed, PackedSize};

use super::slot::{Fingerprint, Slot, SlotRef};
use super::tags::{GROUP, Tags};
use crate::sync::AtomicU64;
use crate::sync::Ordering::Relaxed;

/// Groups of a new shard.
pub(super) const FIRST_GROUPS: u8 = if cfg!(loom) { 2 } else { 1 };
/// A shard of up to this many groups is close to the next. A larger one has moved to where it can
/// grow.
pub(super) const NEAR_GROUPS: u8 = 2;
/// The most groups of a shard. Their 787 usable slots are enough for a shard of a full table that
/// got fourteen standard deviations of a random spread more keys than the average.
pub(super) const MOST_GROUPS: u8 = if cfg!(loom) { 4 } else { 105 };

/// The size of the slots in which the states of a limit are kept. States that can grow are in the
/// slab, and a small slot has their number.
#[inline(always)]
pub(super) fn slot_size(limit: &Limit) -> PackedSize {
    limit.packed_size().unwrap_or(PackedSize::Small)
}

/// Words of a slot: a tag and a body, and the rest of a large state.
#[inline(always)]
pub(super) const fn slot_words(size: PackedSize) -> usize {
    match size {
        PackedSize::Small => 2,
        PackedSize::Large => 2 + Packed::WORDS,
    }
}

/// The number of slots that may be in use before a shard of `groups` groups must grow. A shard that
/// cannot grow is filled further.
pub(super) fn capacity(groups: u8) -> u32 {
    let sixteenths = if groups == MOST_GROUPS { 15 } else { 14 };
    u32::from(groups) * GROUP as u32 * sixteenths / 16
}

/// The number of groups that a shard of `groups` groups grows to.
pub(super) fn grown(groups: u8) -> u8 {
    (groups + (groups / 8).max(1)).min(MOST_GROUPS)
}

/// The slots that a shard uses for states of one size, as of a moment.
#[derive(Clone, Copy)]
pub(super) struct Span<'a> {
    pub(super) words: &'a [AtomicU64],
    /// Where the words of tag bytes begin, one for each group.
    pub(super) tags_at: usize,
    /// Where the slots begin.
    pub(super) slots_at: usize,
    pub(super) groups: u8,
    pub(super) size: PackedSize,
}

impl<'a> Span<'a> {
    /// The group in which a key is looked for first.
    #[inline(always)]
    fn home(self, fingerprint: Fingerprint) -> usize {
        ((fingerprint.group_bits() * u64::from(self.groups)) >> 32) as usize
    }

    /// The group after: where a full group passes its keys on to.
    #[inline]
    fn next(self, group: usize) -> usize {
        if group + 1 == usize::from(self.groups) { 0 } else { group + 1 }
    }

    /// The groups in which a key is looked for, in order.
    fn path(self, fingerprint: Fingerprint) -> impl Iterator<Item = usize> {
        let home = self.home(fingerprint);
        std::iter::successors(Some(home), move |&group| Some(self.next(group)))
            .take(usize::from(self.groups))
    }

    #[inline(always)]
    fn tags(self, group: usize) -> Tags {
        Tags(self.words[self.tags_at + group].load(Relaxed))
    }

    /// Begins to load the first slot of a key's home group. The slots of a group are nearly always
    /// on one page, and in a large table it takes a processor longer to find where a page is than to
    /// load a line. So it begins with that while it waits for the tag bytes, which tell the slot.
    #[inline(always)]
    pub(super) fn prefetch(self, fingerprint: Fingerprint) {
        if !cfg!(loom) {
            let word = self.slot_word(self.home(fingerprint) * GROUP);
            std::hint::black_box(self.words[word].load(Relaxed));
        }
    }

    /// Where a slot begins.
    #[inline(always)]
    fn slot_word(self, slot: usize) -> usize {
        self.slots_at + slot * slot_words(self.size)
    }

    /// A slot by its number.
    #[inline(always)]
    pub(super) fn slot(self, slot: usize) -> SlotRef<'a> {
        let word = self.slot_word(slot);
        SlotRef { words: &self.words[word..word + slot_words(self.size)], slot }
    }

    /// All slots.
    pub(super) fn slots(self) -> impl Iterator<Item = SlotRef<'a>> {
        (0..usize::from(self.groups) * GROUP).map(move |slot| self.slot(slot))
    }

    /// The slot in which most keys are: the first of the home group with the key's tag byte. It may
    /// be another key's.
    #[inline(always)]
    pub(super) fn probable_slot(self, fingerprint: Fingerprint) -> Option<SlotRef<'a>> {
        let home = self.home(fingerprint);
        let slot = self.tags(home).matching(fingerprint.tag_byte()).next()?;
        Some(self.slot(home * GROUP + slot))
    }

    /// Looks a key up. Without the shard's lock its slot may be another by the time it is seized;
    /// then the slot has another tag. Once it is seized a match settles it: a key has one slot,
    /// and one it left is cleared.
    pub(super) fn find(self, fingerprint: Fingerprint) -> Option<SlotRef<'a>> {
        for group in self.path(fingerprint) {
            let tags = self.tags(group);
            let slots = tags.matching(fingerprint.tag_byte());
            let mut slots = slots.map(|slot| self.slot(group * GROUP + slot));
            if let Some(slot) = slots.find(|slot| fingerprint.matches(slot.tag())) {
                return Some(slot);
            }
            if !tags.empty().is_empty() {
                return None;
            }
        }
        None
    }

    /// Where in the table the slot begins in which a key probably is.
    #[inline(always)]
    pub(super) fn probable_word(self, fingerprint: Fingerprint) -> usize {
        if cfg!(loom) {
            // A model would try every slot it might be.
            return self.slots_at;
        }
        let home = self.home(fingerprint);
        let slot = self.tags(home).matching(fingerprint.tag_byte()).next().unwrap_or(0);
        self.slot_word(home * GROUP + slot)
    }

    /// The first empty slot along a key's path, under the shard's lock.
    pub(super) fn empty_slot(self, fingerprint: Fingerprint) -> Option<SlotRef<'a>> {
        self.path(fingerprint).find_map(|group| {
            let slot = self.tags(group).empty().next()?;
            Some(self.slot(group * GROUP + slot))
        })
    }

    /// The first slot along a key's path that seems to have expired, under the shard's lock. An
    /// attempt without the lock may charge it until it is seized.
    pub(super) fn expired_slot(
        self,
        fingerprint: Fingerprint,
        units_passed: u64,
    ) -> Option<SlotRef<'a>> {
        for group in self.path(fingerprint) {
            let mut slots = (0..GROUP).map(|slot| self.slot(group * GROUP + slot));
            let is_expired = |slot: Slot| !slot.is_empty() && slot.is_expired(units_passed);
            if let Some(expired) = slots.find(|slot| is_expired(slot.read())) {
                return Some(expired);
            }
            if !self.tags(group).empty().is_empty() {
                return None;
            }
        }
        None
    }

    /// Notes which key a slot belongs to from now on, under the shard's lock.
    pub(super) fn set_tag_byte(self, slot: SlotRef<'a>, tag: u8) {
        let (group, slot) = (slot.slot / GROUP, slot.slot % GROUP);
        let tags = self.tags(group).with(slot, tag);
        self.words[self.tags_at + group].store(tags.0, Relaxed);
    }

    /// Notes that all slots are empty, under the shard's lock.
    pub(super) fn clear_tag_bytes(self) {
        let tags = self.tags_at..self.tags_at + usize::from(self.groups);
        self.words[tags].iter().for_each(|tags| tags.store(0, Relaxed));
    }
}
