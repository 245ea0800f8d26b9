//! One slot of the table: the fingerprint of its key, its deadline and its state.
//!
//! ```text
//!   tag    63 ........ 11 | 10 .... 9 | 8 ....... 0
//!          fingerprint 53 | contents  | deadline, high 9
//!   body   63 .... 40 | 39 ............................ 0
//!          deadline 24| head of the state, or its number in the slab
//! ```
//!
//! A small slot is these two words, and four of them share a cache line. A large slot has a whole
//! line, whose other six words hold the rest of the state. [`Packed`] describes the state and the
//! deadline. The contents are a packed state, a packed log, or the number of a state in the slab.
//! Logs are marked because their entries are counted, also when a slot is evicted.
//!
//! All words are atomics, which cost the same as plain words and need no `unsafe`. `shard.rs`
//! describes which thread may write them and when.

use tidegate_core::{Algorithm, Limit, Packed, PackedSize, PackedWords, Timestamp};

use super::slot_groups::GROUP;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicU64, Backoff};

const FINGERPRINT_SHIFT: u32 = 11;
/// The contents of a slot: a packed state, a packed log or the number of a state in the slab. They
/// are 0 if the slot is empty.
const STATE: u64 = 0b10 << 9;
const LOG: u64 = 0b01 << 9;
const SLAB: u64 = 0b11 << 9;
const DEADLINE_HIGH_MASK: u64 = (1 << 9) - 1;
const DEADLINE_LOW_BITS: u32 = Packed::DEADLINE_LOW_BITS;
const HEAD_BITS: u32 = Packed::HEAD_BITS;
const HEAD_MASK: u64 = (1 << HEAD_BITS) - 1;

/// The deadline of a state that expires later than the latest deadline. It never passes, so such a
/// slot is not evicted.
const NO_DEADLINE: u64 = Packed::DEADLINE_END;

/// The body of a slot that a thread has seized. No other body has all bits set, because no packed
/// head has.
pub(super) const SEIZED: u64 = u64::MAX;

/// The tag and the body of a slot. An empty slot is all zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) tag: u64,
    pub(super) body: u64,
}

/// The part of a tag that identifies the key: 53 bits of its hash, at their position in the tag,
/// and the contents of its slot if the state is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint(u64);

impl Fingerprint {
    /// The fingerprint of a key under a limit, from the hash of both.
    #[inline]
    pub(super) fn new(state_hash: u64, limit: &Limit) -> Self {
        Self::of(state_hash, limit.algorithm() == Algorithm::SlidingLog)
    }

    /// The fingerprint for a hash, and for states that are logs or not.
    #[inline]
    pub(super) fn of(state_hash: u64, is_log: bool) -> Self {
        Fingerprint(state_hash << FINGERPRINT_SHIFT | if is_log { LOG } else { STATE })
    }

    /// Whether this is the tag of a slot that is in use by this key.
    #[inline]
    pub(super) fn matches(self, tag: u64) -> bool {
        (tag ^ self.0) >> FINGERPRINT_SHIFT == 0 && tag != 0
    }

    /// Whether this is the tag of a slot that contains the packed state of this key.
    #[inline]
    pub(super) fn matches_packed(self, tag: u64) -> bool {
        (tag ^ self.0) < LOG
    }

    /// The low 32 bits of the hash, which determine the group of the slot.
    #[inline(always)]
    pub(super) fn group_bits(self) -> u64 {
        self.0 >> FINGERPRINT_SHIFT & 0xffff_ffff
    }

    /// The next 8 bits, which determine the tag byte of the slot. It is never 0.
    #[inline(always)]
    pub(super) fn tag_byte(self) -> u8 {
        ((self.0 >> (FINGERPRINT_SHIFT + 32)) as u8).max(1)
    }

    /// The next bits, which determine the preferred slot of the key in its group.
    #[inline(always)]
    pub(super) fn preferred_slot(self) -> usize {
        (self.0 >> (FINGERPRINT_SHIFT + 40)) as usize % GROUP
    }
}

/// The deadline of a state that no longer matters at this time.
#[inline]
pub(super) fn deadline(expires_at: Timestamp) -> u64 {
    Packed::deadline_at(expires_at).unwrap_or(NO_DEADLINE)
}

/// The latest deadline that has passed at `now`.
#[inline]
pub(super) fn deadline_steps_passed(now: Timestamp) -> u64 {
    (now.as_micros() / Packed::DEADLINE_STEP_US).min(NO_DEADLINE - 1)
}

impl Slot {
    /// Creates a slot that holds the head of a packed state.
    #[inline]
    pub(super) fn packed(of: Fingerprint, deadline: u64, head: u64) -> Self {
        let tag = of.0 | deadline >> DEADLINE_LOW_BITS;
        Slot { tag, body: Packed::body(deadline, head) }
    }

    /// Creates a slot whose state is in the slab, under `number`.
    pub(super) fn in_slab(of: Fingerprint, deadline: u64, number: u64) -> Self {
        let slot = Slot::packed(of, deadline, number & HEAD_MASK);
        Slot { tag: slot.tag | SLAB, ..slot }
    }

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.tag == 0
    }

    #[inline]
    pub(super) fn is_in_slab(self) -> bool {
        self.tag & SLAB == SLAB
    }

    /// The number of entries, if the slot holds a packed log.
    #[inline]
    pub(super) fn log_entries(self) -> u64 {
        if self.tag & SLAB == LOG { Packed::log_entries(self.head()) } else { 0 }
    }

    /// The fingerprint of its key. That of a state in the slab is a fingerprint for packed states.
    #[inline]
    pub(super) fn fingerprint(self) -> Fingerprint {
        let hash = self.tag >> FINGERPRINT_SHIFT;
        Fingerprint::of(hash, self.tag & SLAB == LOG)
    }

    /// The bits of the deadline that are not in the body.
    #[inline]
    pub(super) fn deadline_high(self) -> u64 {
        self.tag & DEADLINE_HIGH_MASK
    }

    #[inline]
    pub(super) fn deadline(self) -> u64 {
        self.deadline_high() << DEADLINE_LOW_BITS | self.body >> HEAD_BITS
    }

    /// The head of its state, or the number of its state in the slab.
    #[inline]
    pub(super) fn head(self) -> u64 {
        self.body & HEAD_MASK
    }

    /// Whether the slot can be assigned to another key.
    #[inline]
    pub(super) fn is_expired(self, deadline_steps_passed: u64) -> bool {
        self.deadline() <= deadline_steps_passed
    }

    /// Returns the slot without a state. It is expired, so that it can be assigned to another key,
    /// but not empty, so that keys in later groups are still found.
    pub(super) fn cleared(self) -> Self {
        Slot::packed(self.fingerprint(), 0, 0)
    }
}

/// The words of a state in a seized large slot.
#[derive(Clone, Copy)]
pub(super) struct LargeWords<'a>(&'a [AtomicU64; Packed::WORDS]);

impl PackedWords for LargeWords<'_> {
    #[inline(always)]
    fn get(&self, number: usize) -> u64 {
        self.0[number].load(Relaxed)
    }

    #[inline(always)]
    fn set(&mut self, number: usize, bits: u64) {
        self.0[number].store(bits, Relaxed);
    }
}

/// A reference to a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotRef<'a> {
    /// The tag and the body and, if the slot is large, the rest of the state.
    pub(super) words: &'a [AtomicU64],
    /// The number of the slot in its shard.
    pub(super) index: usize,
}

impl<'a> SlotRef<'a> {
    #[inline(always)]
    pub(super) fn tag(self) -> u64 {
        self.words[0].load(Relaxed)
    }

    #[inline(always)]
    fn body(self) -> &'a AtomicU64 {
        &self.words[1]
    }

    /// The words of a large slot other than the tag and the body.
    #[inline(always)]
    pub(super) fn large(self) -> Option<LargeWords<'a>> {
        self.words[2..].first_chunk().map(LargeWords)
    }

    /// The size of the slot.
    #[inline(always)]
    pub(super) fn size(self) -> PackedSize {
        if self.words.len() > 2 { PackedSize::Large } else { PackedSize::Small }
    }

    /// Seizes the slot and returns its body, or [`SEIZED`] if it is seized already.
    ///
    /// A plain exchange is cheaper than one that compares, and does not change a seized slot. Under
    /// the model checker, however, a waiter would read the value of its own failed exchange for
    /// ever.
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

    /// Seizes the slot, unless it is seized already.
    #[inline(always)]
    pub(super) fn try_seize(self) -> Option<Slot> {
        let body = self.exchange();
        (body != SEIZED).then(|| Slot { tag: self.tag(), body })
    }

    /// Seizes the slot, and waits if another thread has seized it. That thread releases it soon.
    pub(super) fn seize(self) -> Slot {
        let mut backoff = Backoff::new();
        loop {
            match self.try_seize() {
                Some(slot) => return slot,
                None => backoff.wait(),
            }
        }
    }

    /// The words of a seized slot other than the tag and the body; zeros if it is small.
    #[inline(always)]
    pub(super) fn words(self) -> [u64; Packed::WORDS] {
        match self.large() {
            Some(words) => std::array::from_fn(|number| words.get(number)),
            None => [0; Packed::WORDS],
        }
    }

    #[inline(always)]
    pub(super) fn set_words(self, words: &[u64; Packed::WORDS]) {
        if let Some(mut large) = self.large() {
            for (number, &bits) in words.iter().enumerate() {
                large.set(number, bits);
            }
        }
    }

    /// The state in a seized slot.
    #[inline(always)]
    pub(super) fn packed(self, slot: Slot) -> Packed {
        Packed { deadline_high: slot.deadline_high(), body: slot.body, words: self.words() }
    }

    /// Releases a seized slot with a body.
    #[inline(always)]
    pub(super) fn release(self, body: u64) {
        self.body().store(body, Release);
    }

    /// Replaces the contents of a seized slot and releases it. The caller holds the lock of the
    /// shard.
    pub(super) fn write(self, slot: Slot, words: &[u64; Packed::WORDS]) {
        self.words[0].store(slot.tag, Relaxed);
        self.set_words(words);
        self.release(slot.body);
    }

    /// Reads the tag and the body of the slot, and waits while it is seized. The caller holds the
    /// lock of the shard, so only the body may change afterwards.
    pub(super) fn read(self) -> Slot {
        let mut backoff = Backoff::new();
        loop {
            match self.body().load(Acquire) {
                SEIZED => backoff.wait(),
                body => return Slot { tag: self.tag(), body },
            }
        }
    }
}
