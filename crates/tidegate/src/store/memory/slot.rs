//! One slot of the table: which key it belongs to, its deadline and its state.
//!
//! ```text
//!   tag    63 ........ 11 |  10  |   9  | 8 ....... 0
//!          fingerprint 53 | used | slab | deadline, high 9
//!   body   63 .... 40 | 39 ............................ 0
//!          deadline 24| head of the state, or its number in the slab
//! ```
//!
//! A small slot is these two words, and four of them share a cache line. A large slot has a line
//! of its own, whose other six words hold the rest of the state. See [`Packed`] for what a state
//! looks like, and for the deadline.

use tidegate_core::{Limit, Packed, PackedSize, Timestamp};

const FINGERPRINT_SHIFT: u32 = 11;
const USED: u64 = 1 << 10;
const SLAB: u64 = 1 << 9;
const DEADLINE_HIGH_MASK: u64 = (1 << 9) - 1;
const DEADLINE_LOW_BITS: u32 = u64::BITS - HEAD_BITS;
const HEAD_BITS: u32 = Packed::HEAD_BITS;
const HEAD_MASK: u64 = (1 << HEAD_BITS) - 1;

/// The deadline of a state that matters for longer than a deadline can say. It never passes, so
/// such a slot is not evicted.
const NO_DEADLINE: u64 = Packed::DEADLINE_END;

/// A body that stands for "somebody is at work on this slot". No body has all bits set, because no
/// packed head has.
pub(super) const SEIZED: u64 = u64::MAX;

/// The size of the slots in which the states of a limit are kept. States that can grow are in the
/// slab, and a small slot has their number.
#[inline]
pub(super) fn slot_size(limit: &Limit) -> PackedSize {
    limit.packed_size().unwrap_or(PackedSize::Small)
}

/// The tag and the body of a slot. An empty slot is all zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) tag: u64,
    pub(super) body: u64,
}

/// The part of a tag that identifies the key: 53 bits of its hash, in place, and the mark of a
/// slot in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint(u64);

impl Fingerprint {
    #[inline]
    pub(super) fn new(hash: u64) -> Self {
        Fingerprint(hash << FINGERPRINT_SHIFT | USED)
    }

    /// Whether a tag is that of a slot in use by this key.
    #[inline]
    pub(super) fn matches(self, tag: u64) -> bool {
        tag ^ self.0 < USED
    }

    /// Whether a tag is that of a slot with the state of this key in it.
    #[inline]
    pub(super) fn matches_inline(self, tag: u64) -> bool {
        tag ^ self.0 < SLAB
    }

    /// The low 32 bits of the hash, which determine where the slot is.
    #[inline]
    pub(super) fn place_bits(self) -> u64 {
        self.0 >> FINGERPRINT_SHIFT & 0xffff_ffff
    }
}

/// The deadline of a state that no longer matters at this time.
#[inline]
pub(super) fn deadline(expires_at: Timestamp) -> u64 {
    Packed::deadline(expires_at).unwrap_or(NO_DEADLINE)
}

/// The unit that has fully begun at `now`: deadlines up to it have passed.
#[inline]
pub(super) fn units_passed(now: Timestamp) -> u64 {
    (now.as_micros() / Packed::UNIT_US).min(NO_DEADLINE - 1)
}

/// The body of a slot with this deadline and head.
#[inline]
pub(super) fn body(deadline: u64, head: u64) -> u64 {
    deadline << HEAD_BITS | head
}

impl Slot {
    /// A slot that holds the head of a state.
    #[inline]
    pub(super) fn inline(of: Fingerprint, deadline: u64, head: u64) -> Self {
        let tag = of.0 | deadline >> DEADLINE_LOW_BITS;
        Slot { tag, body: body(deadline, head) }
    }

    /// A slot whose state is in the slab, under `number`.
    pub(super) fn in_slab(of: Fingerprint, deadline: u64, number: u64) -> Self {
        let slot = Slot::inline(of, deadline, number & HEAD_MASK);
        Slot { tag: slot.tag | SLAB, ..slot }
    }

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.tag == 0
    }

    #[inline]
    pub(super) fn is_in_slab(self) -> bool {
        self.tag & SLAB != 0
    }

    #[inline]
    pub(super) fn fingerprint(self) -> Fingerprint {
        Fingerprint(self.tag >> FINGERPRINT_SHIFT << FINGERPRINT_SHIFT | USED)
    }

    #[inline]
    pub(super) fn deadline(self) -> u64 {
        (self.tag & DEADLINE_HIGH_MASK) << DEADLINE_LOW_BITS | self.body >> HEAD_BITS
    }

    /// Whether a slot of the same key with this deadline has the same tag.
    #[inline]
    pub(super) fn has_tag_of(self, deadline: u64) -> bool {
        self.tag & DEADLINE_HIGH_MASK == deadline >> DEADLINE_LOW_BITS
    }

    /// The head of its state, or the number of its state in the slab.
    #[inline]
    pub(super) fn head(self) -> u64 {
        self.body & HEAD_MASK
    }

    /// Whether the slot can be given to another key.
    #[inline]
    pub(super) fn is_expired(self, units_passed: u64) -> bool {
        self.deadline() <= units_passed
    }

    /// The same slot with nothing that matters in it. It still holds its place, so that keys
    /// further along are found, and goes to the next key that needs one.
    pub(super) fn cleared(self) -> Self {
        Slot::inline(self.fingerprint(), 0, 0)
    }
}
