//! The tag bytes of a group of slots, in one word.
//!
//! Every slot has a byte that is zero if the slot is empty and otherwise eight bits of its key's
//! hash. A lookup compares the bytes of a whole group in a few instructions, without a branch per
//! slot and without loading the slots. One comparison in 255 finds the slot of another key, which
//! the fingerprint in the slot reveals.

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

/// The tag bytes of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tags(pub(super) u64);

impl Tags {
    /// The slots whose byte is `tag`.
    #[inline(always)]
    pub(super) fn matching(self, tag: u8) -> Slots {
        Slots::zero_bytes(self.0 ^ (ONES * u64::from(tag)))
    }

    /// The first slot whose byte is `tag`.
    #[inline(always)]
    pub(super) fn first_matching(self, tag: u8) -> Option<usize> {
        Slots::first_zero_byte(self.0 ^ (ONES * u64::from(tag)))
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
            assert_eq!(tags.first_matching(tag), expected.first().copied(), "{tag:#x}");
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
