//! States in a fixed number of bits, as a store keeps them.
//!
//! A store that keeps millions of states lays them out in cache lines together with their keys, so
//! a state has to fit exactly. There are two sizes: 40 bits, for counters, and those 40 bits with
//! six more words, for every other state of bounded size and for short logs. Longer logs and
//! permits can grow, so they are not packed.
//!
//! Both sizes have a *deadline*: the time from which on the state no longer matters, in steps of
//! 2^19 us (about half a second), rounded up. A store drops a state by its deadline without knowing
//! its limit. The deadline also determines, to within a step, when the state was last charged, so
//! the state keeps only the low bits of its window or cell index.

use crate::algorithms::AlgorithmState;
use crate::algorithms::sliding_counter::decide_small;
use crate::algorithms::sliding_log::{decide_short_log, packed_entries};
use crate::algorithms::sliding_window::{decide_cells, decide_times};
use crate::{
    Algorithm, Attempt, Decision, FixedWindow, Limit, SlidingCounter, Timestamp, TokenBucket,
    WindowForm,
};

/// The number of bits that a [`Packed`] state may use.
///
/// The enum is as wide as a word. A struct with padding is copied in pieces, which then cannot be
/// read as whole words without a delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum PackedSize {
    /// The 40 bits of [`Packed::head`].
    Small,
    /// [`Packed::head`] and [`Packed::words`].
    Large,
}

/// Counts of a `sliding-counter` below this are packed in the small size: two of them fill it.
pub(crate) const SMALL_COUNT: u64 = (1 << (Packed::HEAD_BITS / 2)) - 1;

/// The representation of the packed states of a limit: its algorithm, size and form in one number,
/// so that a decision branches once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackedKind {
    /// A `sliding-counter` of the small size.
    SmallCounter,
    /// A `sliding-counter` of the large size.
    LargeCounter,
    /// A `fixed-window` of the small size.
    SmallFixed,
    /// A `fixed-window` of the large size.
    LargeFixed,
    /// A `token-bucket`.
    Bucket,
    /// A short `sliding-log`.
    Log,
    /// A `sliding-window` in the times form.
    Times,
    /// A `sliding-window` of 15 cells.
    Cells15,
    /// A `sliding-window` of 7 cells.
    Cells7,
    /// A `sliding-window` of 3 cells.
    Cells3,
}

impl PackedKind {
    /// All kinds, in the order of their discriminants.
    pub const ALL: [PackedKind; 10] = [
        PackedKind::SmallCounter,
        PackedKind::LargeCounter,
        PackedKind::SmallFixed,
        PackedKind::LargeFixed,
        PackedKind::Bucket,
        PackedKind::Log,
        PackedKind::Times,
        PackedKind::Cells15,
        PackedKind::Cells7,
        PackedKind::Cells3,
    ];

    /// The kind of the states of a limit; `None` if they are not packed. Counters use the small
    /// size if a deadline identifies their window and the limit's count fits. Forced charges can
    /// still exceed it.
    pub(crate) const fn of(count: u64, window_us: u64, algorithm: Algorithm) -> Option<Self> {
        let is_long = window_us >= Packed::DEADLINE_STEP_US;
        Some(match (algorithm, WindowForm::of(count)) {
            (Algorithm::SlidingCounter, _) if is_long && count < SMALL_COUNT => {
                PackedKind::SmallCounter
            }
            (Algorithm::SlidingCounter, _) => PackedKind::LargeCounter,
            (Algorithm::FixedWindow, _) if is_long => PackedKind::SmallFixed,
            (Algorithm::FixedWindow, _) => PackedKind::LargeFixed,
            (Algorithm::TokenBucket, _) => PackedKind::Bucket,
            (Algorithm::SlidingLog, _) => PackedKind::Log,
            (Algorithm::SlidingWindow, WindowForm::Times) => PackedKind::Times,
            (Algorithm::SlidingWindow, WindowForm::Cells15) => PackedKind::Cells15,
            (Algorithm::SlidingWindow, WindowForm::Cells7) => PackedKind::Cells7,
            (Algorithm::SlidingWindow, WindowForm::Cells3) => PackedKind::Cells3,
            (Algorithm::Concurrency, _) => return None,
        })
    }

    /// Returns the size of these states.
    #[inline(always)]
    pub const fn size(self) -> PackedSize {
        match self {
            PackedKind::SmallCounter | PackedKind::SmallFixed => PackedSize::Small,
            _ => PackedSize::Large,
        }
    }
}

/// Access to the words of a packed state other than its head, wherever a store keeps them.
pub trait PackedWords {
    /// Returns the word with this number, which is below [`Packed::WORDS`].
    fn get(&self, number: usize) -> u64;
    /// Replaces the word with this number.
    fn set(&mut self, number: usize, bits: u64);
}

impl PackedWords for [u64; Packed::WORDS] {
    #[inline(always)]
    fn get(&self, number: usize) -> u64 {
        self[number]
    }

    #[inline(always)]
    fn set(&mut self, number: usize, bits: u64) {
        self[number] = bits;
    }
}

impl<W: PackedWords> PackedWords for &mut W {
    #[inline(always)]
    fn get(&self, number: usize) -> u64 {
        (**self).get(number)
    }

    #[inline(always)]
    fn set(&mut self, number: usize, bits: u64) {
        (**self).set(number, bits);
    }
}

/// A state of the small size has no words other than its head.
impl PackedWords for () {
    #[inline(always)]
    fn get(&self, _number: usize) -> u64 {
        0
    }

    #[inline(always)]
    fn set(&mut self, _number: usize, _bits: u64) {}
}

/// A packed state of bounded size. The default is a state that holds nothing.
///
/// Its *deadline* is the time from which on the state no longer matters, in steps of
/// [`Packed::DEADLINE_STEP_US`], rounded up. It is below [`Packed::DEADLINE_END`]. Its *head* is
/// the first 40 bits of the state, which are never all set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packed<W = [u64; 6]> {
    /// The bits of the deadline that are not in the body.
    pub deadline_high: u64,
    /// The low bits of the deadline, above the 40 bits of the head.
    pub body: u64,
    /// The rest of the state. A state of the size [`PackedSize::Small`] does not use it.
    pub words: W,
}

impl Packed {
    /// The number of words other than the body.
    pub const WORDS: usize = 6;
    /// The number of bits in the head.
    pub const HEAD_BITS: u32 = 40;
    pub(crate) const HEAD_MASK: u64 = (1 << Self::HEAD_BITS) - 1;
    /// The number of low bits of the deadline that are in the body. A decision that would change
    /// the other bits requires that the store locks the state.
    pub const DEADLINE_LOW_BITS: u32 = u64::BITS - Self::HEAD_BITS;
    /// The length of a deadline step in microseconds.
    pub const DEADLINE_STEP_US: u64 = 1 << Self::DEADLINE_SHIFT;
    /// The end of the range of deadlines, in the year 2112.
    pub const DEADLINE_END: u64 = (1 << 33) - 1;
    const DEADLINE_SHIFT: u32 = 19;

    /// Creates a packed state from a deadline, a head and the rest of the state.
    #[inline]
    pub(crate) fn new(deadline: u64, head: u64, words: [u64; Self::WORDS]) -> Self {
        Packed {
            deadline_high: deadline >> Self::DEADLINE_LOW_BITS,
            body: Self::body(deadline, head),
            words,
        }
    }

    /// Creates a packed state that no longer matters at `expires_at`. Returns `None` if that is too
    /// late for a deadline.
    #[inline]
    pub(crate) fn until(
        expires_at: Timestamp,
        head: u64,
        words: [u64; Self::WORDS],
    ) -> Option<Self> {
        Some(Self::new(Self::deadline_at(expires_at)?, head, words))
    }

    /// The body that ends the range in which a new deadline changes only the low bits. The old
    /// deadline has not passed, so a new one is at most `latest_us` and two steps after it.
    pub(crate) const fn low_deadline_end(latest_us: u64) -> u64 {
        let steps = (latest_us >> Self::DEADLINE_SHIFT) + 2;
        (1_u64 << Self::DEADLINE_LOW_BITS).saturating_sub(steps) << Self::HEAD_BITS
    }

    /// Returns the number of entries of a packed log with this head.
    #[inline]
    pub fn log_entries(head: u64) -> u64 {
        packed_entries(head)
    }

    /// Returns the body of a state with a deadline and a head.
    #[inline(always)]
    pub const fn body(deadline: u64, head: u64) -> u64 {
        deadline << Self::HEAD_BITS | head
    }

    /// Returns the deadline of a state that no longer matters at `expires_at`, or `None` if that is
    /// too late for a deadline.
    #[inline]
    pub fn deadline_at(expires_at: Timestamp) -> Option<u64> {
        // A time that the sum would not fit is cut off, and still too late.
        let deadline = Self::deadline_from_us(expires_at.as_micros().min(1 << 63));
        (deadline < Self::DEADLINE_END).then_some(deadline)
    }

    /// The number of deadline steps from 1970 to a time of at most 2^63 us, rounded up.
    #[inline(always)]
    pub(crate) fn deadline_from_us(us: u64) -> u64 {
        (us + (Self::DEADLINE_STEP_US - 1)) >> Self::DEADLINE_SHIFT
    }
}

impl<W: PackedWords> Packed<W> {
    /// Decides on a state of the kind of the limit in place; see [`Packed::decide_kind`]. Returns
    /// `None` also if the states of the limit are not packed.
    ///
    /// The memory store does not call it: it selects the kind before it finds the slot, so that
    /// both are compiled for each kind. The tests use it.
    #[inline]
    pub fn decide(&mut self, limit: &Limit, attempt: Attempt, admitted: bool) -> Option<Decision> {
        macro_rules! decide_as {
            ($kind:ident) => {
                self.decide_kind::<{ PackedKind::$kind as usize }>(limit, attempt, admitted)
            };
        }
        match limit.packed_kind()? {
            PackedKind::SmallCounter => decide_as!(SmallCounter),
            PackedKind::LargeCounter => decide_as!(LargeCounter),
            PackedKind::SmallFixed => decide_as!(SmallFixed),
            PackedKind::LargeFixed => decide_as!(LargeFixed),
            PackedKind::Bucket => decide_as!(Bucket),
            PackedKind::Log => decide_as!(Log),
            PackedKind::Times => decide_as!(Times),
            PackedKind::Cells15 => decide_as!(Cells15),
            PackedKind::Cells7 => decide_as!(Cells7),
            PackedKind::Cells3 => decide_as!(Cells3),
        }
    }

    /// Decides on a state of the kind with the number `KIND` in place. The cost is charged if this
    /// limit admits it and all enforced limits of the request have `admitted` it.
    ///
    /// Returns `None`, and leaves the state unchanged, if the store has to unpack the state and to
    /// lock it for this decision: if the new state would not fit its size, if its deadline would
    /// become earlier or change in more than the low bits, or if a `sliding-window` or a log is
    /// charged unconditionally or refunded, has the form or pace of another limit, or is ahead of
    /// the clock.
    #[inline(always)]
    pub fn decide_kind<const KIND: usize>(
        &mut self,
        limit: &Limit,
        attempt: Attempt,
        admitted: bool,
    ) -> Option<Decision> {
        let size = PackedKind::ALL[KIND].size();
        macro_rules! decide_and_pack {
            ($state:ident => $pack:expr) => {{
                let now = limit.window_position(attempt.now);
                $state.advance(limit, &now);
                let decision = $state.apply_and_report(limit, &attempt, &now, admitted);
                let packed = $pack;
                self.replace(size, packed).then_some(decision)
            }};
        }
        match PackedKind::ALL[KIND] {
            PackedKind::SmallCounter => decide_small(self, limit, attempt, admitted),
            PackedKind::LargeCounter => {
                let mut counter = SlidingCounter::unpack(limit, size, self);
                decide_and_pack!(counter => counter.pack(limit, size))
            }
            PackedKind::SmallFixed | PackedKind::LargeFixed => {
                let mut window = FixedWindow::unpack(limit, size, self);
                decide_and_pack!(window => window.pack(limit, size))
            }
            PackedKind::Bucket => {
                let mut bucket = TokenBucket::unpack(self);
                decide_and_pack!(bucket => bucket.pack(limit))
            }
            PackedKind::Log => decide_short_log(self, limit, attempt, admitted),
            PackedKind::Times => decide_times(self, limit, attempt, admitted),
            PackedKind::Cells15 => {
                decide_cells::<{ WindowForm::Cells15 as usize }, W>(self, limit, attempt, admitted)
            }
            PackedKind::Cells7 => {
                decide_cells::<{ WindowForm::Cells7 as usize }, W>(self, limit, attempt, admitted)
            }
            PackedKind::Cells3 => {
                decide_cells::<{ WindowForm::Cells3 as usize }, W>(self, limit, attempt, admitted)
            }
        }
    }

    /// Replaces the state if the new one fits and only the low bits of the deadline change.
    #[inline(always)]
    fn replace(&mut self, size: PackedSize, packed: Option<Packed>) -> bool {
        let Some(packed) = packed else { return false };
        let is_earlier = packed.body >> Packed::HEAD_BITS < self.body >> Packed::HEAD_BITS;
        if packed.deadline_high != self.deadline_high || is_earlier {
            return false;
        }
        self.body = packed.body;
        if size == PackedSize::Large {
            for (number, bits) in packed.words.into_iter().enumerate() {
                self.words.set(number, bits);
            }
        }
        true
    }

    /// Whether charging a `sliding-window` or a log at a time would change only the low bits of the
    /// deadline. The time is then below 2^53 us.
    #[inline(always)]
    pub(crate) fn may_be_charged(&self, limit: &Limit, now_us: u64) -> bool {
        let latest_us =
            now_us.saturating_add(limit.latest_deadline_us() + Packed::DEADLINE_STEP_US);
        latest_us >> (Packed::DEADLINE_LOW_BITS + Packed::DEADLINE_SHIFT) == self.deadline_high
    }

    /// Whether charging a state that [expires within](Packed::expires_within) the latest deadline
    /// of a limit changes only the low bits of its deadline, because they are far enough from their
    /// end. If not, [`Packed::may_be_charged`] is exact.
    #[inline(always)]
    pub(crate) fn keeps_high_deadline(&self, limit: &Limit, now_us: u64) -> bool {
        // Close to `u64::MAX`, the subtraction in `expires_within` wraps around.
        self.body < limit.low_deadline_end() && now_us < 1 << 63
    }

    /// Whether the deadline has not passed, and is at most `latest_us` from now.
    #[inline(always)]
    pub(crate) fn expires_within(&self, latest_us: u64, now_us: u64) -> bool {
        // If the deadline has passed, the difference wraps around and is large.
        self.deadline_us().wrapping_sub(now_us).wrapping_sub(1) < latest_us
    }

    /// Returns the deadline, in steps.
    #[inline]
    pub fn deadline(&self) -> u64 {
        self.deadline_high << Packed::DEADLINE_LOW_BITS | self.body >> Packed::HEAD_BITS
    }

    /// The deadline in microseconds.
    #[inline]
    pub(crate) fn deadline_us(&self) -> u64 {
        // The bits are moved to their position at once, not to that in a deadline first.
        let low = self.body >> (Packed::HEAD_BITS - Packed::DEADLINE_SHIFT);
        self.deadline_high << (Packed::DEADLINE_LOW_BITS + Packed::DEADLINE_SHIFT)
            | low & !(Packed::DEADLINE_STEP_US - 1)
    }

    /// Returns the head.
    #[inline(always)]
    pub fn head(&self) -> u64 {
        self.body & Packed::HEAD_MASK
    }
}

/// The largest number that is at most `most` and has the low `bits` bits of `low`.
#[inline]
pub(crate) fn with_low_bits(most: u64, low: u64, bits: u32) -> u64 {
    most - (most.wrapping_sub(low) & ((1 << bits) - 1))
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    /// The times are close to those at which the high bits of a deadline change.
    #[test]
    fn keeps_the_high_deadline_only_if_every_charge_does() {
        const ERA_US: u64 = Packed::DEADLINE_STEP_US << Packed::DEADLINE_LOW_BITS;
        let windows_us = [1_000, 60_000_000, 3_600_000_000, 86_400_000_000, 31 * 86_400_000_000];
        let mut kept = 0;
        for window_us in windows_us {
            let window = Duration::from_micros(window_us);
            let limit = Limit::new(600, window, Algorithm::SlidingWindow).expect("valid");
            let latest_us = limit.latest_deadline_us();
            let step = (latest_us / 50).max(Packed::DEADLINE_STEP_US);
            for now_us in (150 * ERA_US - 3 * latest_us..150 * ERA_US + latest_us)
                .step_by(usize::try_from(step).expect("fits"))
            {
                for expires_us in [1, latest_us / 2, latest_us - Packed::DEADLINE_STEP_US] {
                    let expires_at = Timestamp::from_micros(now_us + expires_us);
                    let packed = Packed::until(expires_at, 0, [0; 6]).expect("early enough");
                    let expires_within = packed.expires_within(latest_us, now_us);
                    if expires_within && packed.keeps_high_deadline(&limit, now_us) {
                        assert!(packed.may_be_charged(&limit, now_us), "{limit} at {now_us}");
                        kept += 1;
                    }
                }
            }
        }
        assert!(kept > 500, "{kept} times are far enough from the end");
    }
}
