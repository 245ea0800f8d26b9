//! One slot of the table: 16 bytes for key, expiry and, mostly, the state itself.
//!
//! ```text
//!   tag    63 ........ 11 |  10  |   9  | 8 ....... 0
//!          fingerprint 53 | used | slab | deadline, high 9
//!   body   63 .... 40 | 39 ........ 20 | 19 ......... 0
//!          deadline 24| previous       | current          inline sliding-counter
//!                     | count                             inline fixed-window
//!                     | index in the shard's slab         anything else
//! ```
//!
//! The *deadline* is when the state no longer matters, in units of 2^19 us
//! (about half a second, 142 years in 33 bits), rounded up. It lets the table
//! let go of a slot without knowing its limit. For the inline kinds it also
//! *is* the window index: with `W` at least one unit, the windows around now
//! have distinct deadlines, so comparing it tells current from previous from
//! older, and no bits are spent twice.

use std::cell::Cell;

use tidegate_core::{Decision, FixedWindow, Limit, Moment, SlidingCounter, Timestamp, bounds};

const FINGERPRINT_SHIFT: u32 = 11;
const USED: u64 = 1 << 10;
const SLAB: u64 = 1 << 9;
const DEADLINE_HIGH_BITS: u32 = 9;
const DEADLINE_HIGH_MASK: u64 = (1 << DEADLINE_HIGH_BITS) - 1;
const DEADLINE_LOW_BITS: u32 = 24;
const BODY_BITS: u32 = 40;
const BODY_MASK: u64 = (1 << BODY_BITS) - 1;

/// A deadline unit is 2^19 us. It must not exceed the window of an inline state.
const UNIT_US: u64 = bounds::COMPACT_WINDOW_US;
const UNIT_SHIFT: u32 = UNIT_US.trailing_zeros();
/// Deadlines from here on are not known to the slot; such a slot is never let go by itself.
const FAR: u64 = (1 << (DEADLINE_LOW_BITS + DEADLINE_HIGH_BITS)) - 1;

/// Times from here on are left to the slab: two windows later a deadline would
/// no longer be known. It falls in the year 2110.
const LAST_INLINE_US: u64 = (FAR << UNIT_SHIFT) - 2 * bounds::MAX_WINDOW_US;

/// In place of a body: somebody is at work on the slot. No body is all ones: a
/// packed counter's current count never is, nor a number in the slab.
pub(super) const SEIZED: u64 = u64::MAX;

/// A slot as two words. An empty slot is all zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) tag: u64,
    pub(super) body: u64,
}

/// The part of a tag that names the key: the low 53 bits of its hash, in place,
/// and the mark of a slot in use.
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

    /// The low 32 bits of the hash: all that a slot's place depends on.
    #[inline]
    pub(super) fn place_bits(self) -> u64 {
        self.0 >> FINGERPRINT_SHIFT & 0xffff_ffff
    }
}

/// When a deadline falls, in units; rounded up so that nothing is let go early.
#[inline]
pub(super) fn deadline(at: Timestamp) -> u64 {
    units(at.as_micros().min(FAR << UNIT_SHIFT)).min(FAR)
}

/// The unit that has fully begun at `now`: deadlines up to it have passed, and a
/// far one never has.
#[inline]
pub(super) fn units_passed(now: Timestamp) -> u64 {
    (now.as_micros() >> UNIT_SHIFT).min(FAR - 1)
}

impl Slot {
    /// A slot with its state in it.
    #[inline]
    pub(super) fn inline(of: Fingerprint, deadline: u64, body: u64) -> Self {
        let tag = of.0 | deadline >> DEADLINE_LOW_BITS;
        Slot { tag, body: deadline << BODY_BITS | body }
    }

    /// A slot whose state is in the slab, under `number`.
    pub(super) fn in_slab(of: Fingerprint, deadline: u64, number: u64) -> Self {
        let slot = Slot::inline(of, deadline, number & BODY_MASK);
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

    pub(super) fn fingerprint(self) -> Fingerprint {
        Fingerprint(self.tag >> FINGERPRINT_SHIFT << FINGERPRINT_SHIFT | USED)
    }

    #[inline]
    pub(super) fn deadline(self) -> u64 {
        (self.tag & DEADLINE_HIGH_MASK) << DEADLINE_LOW_BITS | self.body >> BODY_BITS
    }

    #[inline]
    pub(super) fn body(self) -> u64 {
        self.body & BODY_MASK
    }

    /// Whether the slot can be given to another key.
    #[inline]
    pub(super) fn expired(self, units_passed: u64) -> bool {
        self.deadline() <= units_passed
    }

    /// The same slot with nothing that matters in it: it still holds its place,
    /// so that keys further along are found, and goes to whoever needs one next.
    pub(super) fn vacated(self) -> Self {
        Slot::inline(self.fingerprint(), 0, 0)
    }
}

/// How the states of one window look in a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inline {
    /// The window around now.
    index: u64,
    /// When a state of that window no longer matters, and the deadline that makes.
    end_us: u64,
    deadline: u64,
    window_us: u64,
}

impl Inline {
    /// For a `sliding-counter`, whose state matters until two windows on.
    /// `None` when its windows are too short or too late to be told apart.
    #[inline]
    pub(super) fn counter(limit: &Limit, now: &Moment) -> Option<Self> {
        Self::writing(limit, now, 2)
    }

    /// For a `fixed-window`, whose state matters until the next.
    pub(super) fn fixed(limit: &Limit, now: &Moment) -> Option<Self> {
        Self::writing(limit, now, 1)
    }

    #[inline]
    fn writing(limit: &Limit, now: &Moment, windows: u64) -> Option<Self> {
        if limit.window_us() < UNIT_US || now.at().as_micros() >= LAST_INLINE_US {
            return None;
        }
        Some(Self::new(limit, now.index(), windows))
    }

    /// For reading what was written before it was too late to write.
    pub(super) fn reading(limit: &Limit, now: Timestamp, windows: u64) -> Option<Self> {
        let now = Timestamp::from_micros(now.as_micros().min(u64::MAX / 2));
        let index = limit.moment(now).index();
        (limit.window_us() >= UNIT_US).then(|| Self::new(limit, index, windows))
    }

    #[inline]
    fn new(limit: &Limit, index: u64, windows: u64) -> Self {
        let window_us = limit.window_us();
        let end_us = (index + windows) * window_us;
        Inline { index, end_us, deadline: units(end_us), window_us }
    }

    /// The window a slot of another deadline speaks of: one ahead, the one
    /// before, or an older one of which nothing matters; `None` for that.
    fn other_index(&self, slot: Slot) -> Option<u64> {
        if slot.deadline() > self.deadline {
            Some(self.index + 1)
        } else if slot.deadline() == units(self.end_us - self.window_us) {
            self.index.checked_sub(1)
        } else {
            None
        }
    }

    /// The tag of a counter of this window: everything but the counts and the low
    /// part of the deadline, so that one comparison finds it.
    #[inline]
    pub(super) fn tag(&self, of: Fingerprint) -> u64 {
        of.0 | self.deadline >> DEADLINE_LOW_BITS
    }

    /// A counter of this window out of a body whose tag is [`Inline::tag`];
    /// `None` if it is of another window.
    #[inline]
    pub(super) fn unpack(&self, body: u64) -> Option<SlidingCounter> {
        // An equal deadline cancels out and leaves the counts.
        let counts = body ^ self.deadline << BODY_BITS;
        (counts <= BODY_MASK).then(|| SlidingCounter::unpack(self.index, counts))
    }

    /// The body of a counter of this window, if its counts fit.
    #[inline]
    pub(super) fn pack(&self, counter: &SlidingCounter) -> Option<u64> {
        Some(self.deadline << BODY_BITS | counter.pack()?)
    }

    /// A counter of any window.
    pub(super) fn load_counter(&self, slot: Slot) -> SlidingCounter {
        let counts = slot.body();
        let index = if slot.deadline() == self.deadline {
            Some(self.index)
        } else {
            self.other_index(slot)
        };
        index.map_or_else(SlidingCounter::default, |index| SlidingCounter::unpack(index, counts))
    }

    /// A slot for a counter of this window, if its counts fit.
    pub(super) fn store_counter(&self, of: Fingerprint, counter: &SlidingCounter) -> Option<Slot> {
        Some(Slot { tag: self.tag(of), body: self.pack(counter)? })
    }

    pub(super) fn load_fixed(&self, slot: Slot) -> FixedWindow {
        let index = if slot.deadline() == self.deadline {
            Some(self.index)
        } else {
            self.other_index(slot)
        };
        index.map_or_else(FixedWindow::default, |index| FixedWindow { index, count: slot.body() })
    }

    /// A slot for a count of this window, if it fits.
    pub(super) fn store_fixed(&self, of: Fingerprint, window: &FixedWindow) -> Option<Slot> {
        let fits = window.count < BODY_MASK;
        fits.then(|| Slot::inline(of, self.deadline, window.count))
    }
}

/// A limit's window around a moment as slots show it: all that a quick decision
/// needs of both, worked out once for all keys. In cells, so that each is read
/// where it is needed and none takes up a register before. `T` is how the moment
/// is named.
#[derive(Clone)]
pub(super) struct Frame<T: Copy> {
    /// What it was worked out for; no limit has the id 0.
    id: Cell<u64>,
    at: Cell<T>,
    /// The tag of a counter of this window, but for the key.
    tag: Cell<u64>,
    /// Its body, but for the counts.
    body: Cell<u64>,
    /// Until the next window ends.
    until_us: Cell<u64>,
    /// See [`Limit::share_left`].
    share_left: Cell<u64>,
}

impl<T: Copy + PartialEq> Frame<T> {
    /// A frame of no limit.
    pub(super) const fn new(at: T) -> Self {
        Frame {
            id: Cell::new(0),
            at: Cell::new(at),
            tag: Cell::new(0),
            body: Cell::new(0),
            until_us: Cell::new(0),
            share_left: Cell::new(0),
        }
    }

    /// Works it out for a limit with a [`compact_end`](Limit::compact_end) at `now`,
    /// named `at`; for other limits it stays as it was, and says so.
    pub(super) fn set(&self, limit: &Limit, now: Timestamp, at: T) -> bool {
        if limit.compact_end() == 0 {
            return false;
        }
        let moment = limit.moment(now);
        let Some(inline) = Inline::counter(limit, &moment) else { return false };
        self.id.set(limit.id());
        self.at.set(at);
        self.tag.set(inline.deadline >> DEADLINE_LOW_BITS);
        self.body.set(inline.deadline << BODY_BITS);
        self.until_us.set(inline.end_us - now.as_micros());
        self.share_left.set(limit.share_left(&moment));
        true
    }

    /// Whether it was worked out for this.
    #[inline(always)]
    pub(super) fn is_of(&self, limit: &Limit, at: T) -> bool {
        self.at.get() == at && self.id.get() == limit.id()
    }

    /// The tag of a key's counter of this window.
    #[inline(always)]
    pub(super) fn tag(&self, of: Fingerprint) -> u64 {
        of.0 | self.tag.get()
    }

    /// The answer if `units` are admitted to the counter with this body, whose tag
    /// is [`Frame::tag`]; `None` if they are not, or if the counter is of another
    /// window or the body is [`SEIZED`].
    #[inline(always)]
    pub(super) fn admit(&self, body: u64, limit: &Limit, units: u64) -> Option<Decision> {
        // An equal deadline cancels out and leaves the counts; another leaves more
        // than any limit's end of them.
        let counts = body ^ self.body.get();
        if counts >= limit.compact_end() {
            return None;
        }
        let (until_us, share_left) = (self.until_us.get(), self.share_left.get());
        SlidingCounter::admit_packed(counts, limit, units, until_us, share_left)
    }
}

/// Whole units up to a time before the end of time, rounded up.
#[inline]
fn units(us: u64) -> u64 {
    (us + (UNIT_US - 1)) >> UNIT_SHIFT
}
