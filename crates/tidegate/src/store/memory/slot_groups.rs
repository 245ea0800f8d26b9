//! The slots that a shard uses for states of one size, and the lookup of keys among them.
//!
//! Slots are in groups of eight whose tag bytes are in one word. A key is in the first group, from
//! its home group on, that had an empty or expired slot for it, and there in the first such slot
//! from its preferred slot on. Slots become empty only when the shard is rehashed, so a lookup
//! stops at the first group with an empty slot. An expired slot stays in use until it is assigned
//! to another key.
//!
//! Every slot has a tag byte that is zero if the slot is empty and otherwise eight bits of its
//! key's hash. A lookup compares the bytes of a whole group in a few instructions, without a branch
//! per slot and without loading the slots. One comparison in 255 finds the slot of another key,
//! which the fingerprint in the slot reveals.
//!
//! Tag bytes are separate from the slots and contiguous: those of a million keys take little more
//! than a megabyte, most of which stays in the cache. While they are loaded, the preferred slot is
//! loaded too, which is the slot of two thirds of all keys. So most lookups wait for one miss.

use tidegate_core::{Limit, Packed, PackedKind, PackedSize};

use super::slot::{Fingerprint, Slot, SlotRef};
use crate::sync::AtomicU64;
use crate::sync::Ordering::Relaxed;

/// The size of the slots in which the states of a limit are kept. Permits are in the slab, and a
/// small slot holds their number. So does the large slot of a log that is too long to be packed.
#[inline(always)]
pub(super) fn slot_size(limit: &Limit) -> PackedSize {
    limit.packed_kind().map_or(PackedSize::Small, PackedKind::size)
}

/// The number of words of a slot: a tag, a body and, in a large slot, the rest of the state.
#[inline(always)]
pub(super) const fn slot_words(size: PackedSize) -> usize {
    match size {
        PackedSize::Small => 2,
        PackedSize::Large => 2 + Packed::WORDS,
    }
}

/// The slots that a shard uses for states of one size, at a point in time.
#[derive(Clone, Copy)]
pub(super) struct SlotGroups<'a> {
    pub(super) words: &'a [AtomicU64],
    /// The index of the first word of tag bytes. Each group has one.
    pub(super) tags_at: usize,
    /// The index of the first word of the slots.
    pub(super) slots_at: usize,
    pub(super) groups: u8,
    pub(super) size: PackedSize,
}

impl<'a> SlotGroups<'a> {
    /// The group in which the lookup of a key begins.
    #[inline(always)]
    fn home(self, fingerprint: Fingerprint) -> usize {
        ((fingerprint.group_bits() * u64::from(self.groups)) >> 32) as usize
    }

    /// The next group, which takes the keys that do not fit this one.
    #[inline(always)]
    fn next(self, group: usize) -> usize {
        if group + 1 == usize::from(self.groups) { 0 } else { group + 1 }
    }

    /// The groups in which a key can be, in order.
    fn path(self, fingerprint: Fingerprint) -> impl Iterator<Item = usize> {
        let home = self.home(fingerprint);
        std::iter::successors(Some(home), move |&group| Some(self.next(group)))
            .take(usize::from(self.groups))
    }

    #[inline(always)]
    fn tags(self, group: usize) -> Tags {
        Tags(self.words[self.tags_at + group].load(Relaxed))
    }

    /// Starts to load the preferred slot of a key, while the tag bytes are loaded that determine
    /// its slot. Two thirds of all keys are in their preferred slot. For the others, the slot
    /// is nearly always on the same page, whose address the processor then has translated.
    #[inline(always)]
    pub(super) fn prefetch(self, fingerprint: Fingerprint) {
        if !cfg!(loom) {
            let slot = self.home(fingerprint) * GROUP + fingerprint.preferred_slot();
            std::hint::black_box(self.words[self.slot_word(slot)].load(Relaxed));
        }
    }

    /// The index of the first word of a slot.
    #[inline(always)]
    fn slot_word(self, slot: usize) -> usize {
        self.slots_at + slot * slot_words(self.size)
    }

    /// The slot with this number.
    #[inline(always)]
    pub(super) fn slot(self, index: usize) -> SlotRef<'a> {
        let (words, _) = self.words[self.slot_word(index)..].split_at(slot_words(self.size));
        SlotRef { words, index }
    }

    /// All slots.
    pub(super) fn slots(self) -> impl Iterator<Item = SlotRef<'a>> {
        (0..usize::from(self.groups) * GROUP).map(move |slot| self.slot(slot))
    }

    /// The number of the most probable slot of a key: the first one with the key's tag byte in its
    /// home group or, because one key in twelve is not in its home group, in the group after it. It
    /// may belong to another key.
    #[inline(always)]
    fn probable_index(self, fingerprint: Fingerprint) -> Option<usize> {
        let home = self.home(fingerprint);
        match self.tags(home).first_matching(fingerprint) {
            Some(slot) => Some(home * GROUP + slot),
            None => {
                let next = self.next(home);
                Some(next * GROUP + self.tags(next).first_matching_rarely(fingerprint)?)
            }
        }
    }

    /// The most probable slot of a key. It may belong to another key.
    #[inline(always)]
    pub(super) fn probable_slot(self, fingerprint: Fingerprint) -> Option<SlotRef<'a>> {
        Some(self.slot(self.probable_index(fingerprint)?))
    }

    /// Finds the slot of a key. Without the lock of the shard, the slot may be assigned to another
    /// key before it is seized, and then has another tag. If the tag of a seized slot matches, it
    /// is the slot of the key, because a key has one slot, and a slot that it left is cleared.
    #[inline(always)]
    pub(super) fn find(self, fingerprint: Fingerprint) -> Option<SlotRef<'a>> {
        let probable = self.probable_slot(fingerprint);
        let probable = probable.filter(|slot_ref| fingerprint.matches(slot_ref.tag()));
        probable.or_else(|| self.search(fingerprint))
    }

    /// Searches all groups in which a key can be.
    #[cold]
    #[inline(never)]
    fn search(self, fingerprint: Fingerprint) -> Option<SlotRef<'a>> {
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

    /// The index in the table of the first word of the most probable slot of a key.
    #[inline(always)]
    pub(super) fn probable_word(self, fingerprint: Fingerprint) -> usize {
        if cfg!(loom) {
            // The model checker would try every slot that it might be.
            return self.slots_at;
        }
        self.slot_word(self.probable_index(fingerprint).unwrap_or(0))
    }

    /// The preferred slot of a key in its home group, if it is empty. The caller holds the lock of
    /// the shard.
    pub(super) fn empty_preferred_slot(self, fingerprint: Fingerprint) -> Option<SlotRef<'a>> {
        let (group, slot) = (self.home(fingerprint), fingerprint.preferred_slot());
        let is_empty = self.tags(group).first_empty(fingerprint) == Some(slot);
        is_empty.then(|| self.slot(group * GROUP + slot))
    }

    /// The first empty slot for a key. The caller holds the lock of the shard.
    pub(super) fn empty_slot(self, fingerprint: Fingerprint) -> Option<SlotRef<'a>> {
        self.path(fingerprint).find_map(|group| {
            let slot = self.tags(group).first_empty(fingerprint)?;
            Some(self.slot(group * GROUP + slot))
        })
    }

    /// The first expired slot for a key. The caller holds the lock of the shard. The fast path may
    /// still charge the slot until it is seized.
    pub(super) fn expired_slot(
        self,
        fingerprint: Fingerprint,
        deadline_steps_passed: u64,
    ) -> Option<SlotRef<'a>> {
        for group in self.path(fingerprint) {
            let mut slots = (0..GROUP).map(|number| {
                let slot = (fingerprint.preferred_slot() + number) % GROUP;
                self.slot(group * GROUP + slot)
            });
            let is_expired =
                |slot: Slot| !slot.is_empty() && slot.is_expired(deadline_steps_passed);
            if let Some(expired) = slots.find(|slot| is_expired(slot.read())) {
                return Some(expired);
            }
            if !self.tags(group).empty().is_empty() {
                return None;
            }
        }
        None
    }

    /// Sets the tag byte of a slot. The caller holds the lock of the shard.
    pub(super) fn set_tag_byte(self, slot: SlotRef<'a>, tag: u8) {
        let (group, index) = (slot.index / GROUP, slot.index % GROUP);
        let tags = self.tags(group).with(index, tag);
        self.words[self.tags_at + group].store(tags.0, Relaxed);
    }

    /// Clears the tag bytes of all slots. The caller holds the lock of the shard.
    pub(super) fn clear_tag_bytes(self) {
        let tags = self.tags_at..self.tags_at + usize::from(self.groups);
        self.words[tags].iter().for_each(|tags| tags.store(0, Relaxed));
    }
}

/// The number of slots in a group. It is small under the model checker, which tracks every word.
pub(super) const GROUP: usize = if cfg!(loom) { 2 } else { 8 };

/// The value one in every byte.
const ONES: u64 = u64::MAX / 0xff;
/// All bits of every byte but the highest.
const LOW_BITS: u64 = ONES * 0x7f;
/// The highest bit of every byte.
const HIGH_BITS: u64 = !LOW_BITS;
/// The bytes that belong to slots.
const IN_USE: u64 = u64::MAX >> (u64::BITS - 8 * GROUP as u32);

/// The bytes of a group from that of the slot `first` on, followed by those before it.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "below the number of slots in a group")]
fn rotated(bytes: u64, first: usize) -> u64 {
    if GROUP == size_of::<u64>() {
        return bytes.rotate_right(8 * first as u32);
    }
    let bytes = bytes & IN_USE;
    bytes >> (8 * first) | bytes << (8 * (GROUP - first))
}

/// The tag bytes of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tags(pub(super) u64);

impl Tags {
    /// The slots whose byte is `tag`.
    #[inline(always)]
    pub(super) fn matching(self, tag: u8) -> Slots {
        Slots::zero_bytes(self.0 ^ (ONES * u64::from(tag)))
    }

    /// The first slot, from the preferred one of a key on, that has its tag byte.
    #[inline(always)]
    fn first_matching(self, fingerprint: Fingerprint) -> Option<usize> {
        self.first(fingerprint.tag_byte(), fingerprint.preferred_slot())
    }

    /// As [`Tags::first_matching`], for lookups that rarely need it. It is not inlined, because
    /// lookups are at many places of the fast path. Its arguments are in registers.
    #[cold]
    #[inline(never)]
    fn first_matching_rarely(self, fingerprint: Fingerprint) -> Option<usize> {
        self.first_matching(fingerprint)
    }

    /// The first empty slot, from the preferred one of a key on.
    fn first_empty(self, fingerprint: Fingerprint) -> Option<usize> {
        self.first(0, fingerprint.preferred_slot())
    }

    /// The first slot, from the slot `from` on, whose byte is `tag`. After the last slot, the
    /// search continues with the first.
    #[inline(always)]
    fn first(self, tag: u8, from: usize) -> Option<usize> {
        let differences = self.0 ^ (ONES * u64::from(tag));
        let distance = Slots::first_zero_byte(rotated(differences, from))?;
        Some((from + distance) % GROUP)
    }

    /// The slots that are empty.
    #[inline(always)]
    pub(super) fn empty(self) -> Slots {
        Slots::zero_bytes(self.0)
    }

    /// Returns the tag bytes with that of one slot replaced.
    pub(super) fn with(self, slot: usize, tag: u8) -> Self {
        let shift = 8 * slot;
        Tags(self.0 & !(0xff << shift) | u64::from(tag) << shift)
    }
}

/// A set of slots of a group, iterated in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots(u64);

impl Slots {
    /// The first slot whose byte is zero. A borrow can mark a byte that is not zero, but only one
    /// above a byte that is.
    #[inline(always)]
    fn first_zero_byte(word: u64) -> Option<usize> {
        let marks = word.wrapping_sub(ONES) & !word & HIGH_BITS & IN_USE;
        (marks != 0).then(|| marks.trailing_zeros() as usize / 8)
    }

    /// The slots whose byte is zero. It is exact, because no carry leaves its byte.
    #[inline(always)]
    fn zero_bytes(word: u64) -> Self {
        let has_low_bits = (word & LOW_BITS) + LOW_BITS;
        Slots(!(has_low_bits | word | LOW_BITS) & IN_USE)
    }

    #[inline(always)]
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Iterator for Slots {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.is_empty() {
            return None;
        }
        let slot = self.0.trailing_zeros() as usize / 8;
        self.0 &= self.0 - 1;
        Some(slot)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn finds_every_slot_with_a_tag_and_no_other() {
        // Neighbours that differ in the lowest or the highest bit, where a carry could spread.
        let bytes = [0x00, 0x01, 0x7f, 0x80, 0x81, 0xff, 0x80, 0x01];
        let tags = Tags(u64::from_le_bytes(bytes));
        for tag in 0..=u8::MAX {
            let expected: Vec<usize> = (0..GROUP).filter(|&slot| bytes[slot] == tag).collect();
            assert_eq!(tags.matching(tag).collect::<Vec<_>>(), expected, "{tag:#x}");
            for from in 0..GROUP {
                let after = expected.iter().find(|&&slot| slot >= from);
                assert_eq!(tags.first(tag, from), after.or(expected.first()).copied());
            }
        }
        assert_eq!(tags.empty().collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn changes_one_tag_and_no_other() {
        for slot in 0..GROUP {
            for (before, after) in [(0, 0xff), (0xff, 0), (0x55, 0xaa)] {
                let mut expected = [before; GROUP];
                expected[slot] = after;
                let tags = Tags(u64::from_le_bytes([before; GROUP])).with(slot, after);
                assert_eq!(tags.0.to_le_bytes(), expected);
            }
        }
    }
}
