//! States in a fixed number of bits, as a store keeps them.
//!
//! A store that keeps millions of states lays them out in cache lines beside their keys, so a
//! state has to fit exactly. There are two sizes: 40 bits, for counters, and those 40 bits with
//! six more words, for every other state of bounded size. Logs and permits can
//! grow, so they are not packed.
//!
//! Both sizes come with a *deadline*: when the state no longer matters, in units of 2^19 us
//! (about half a second), rounded up. A store drops a state by its deadline without knowing its
//! limit. From the deadline follows, to within a unit, when the state was last charged, so the
//! state keeps only the low bits of its window or cell index.

use crate::algorithms::Window;
use crate::{
    Algorithm, Ask, Decision, FixedWindow, Limit, SlidingCounter, SlidingWindow, Timestamp,
    TokenBucket,
};

/// How many bits a [`Packed`] state may use.
///
/// It is as wide as a word: a struct with padding is copied in pieces, which then cannot be read
/// as whole words without a delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum PackedSize {
    /// The 40 bits of [`Packed::head`].
    Small,
    /// [`Packed::head`] and [`Packed::words`].
    Large,
}

/// A state of bounded size, packed. The default is a state that holds nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// When the state no longer matters, in units of [`Packed::UNIT_US`], rounded up; below
    /// [`Packed::DEADLINE_END`].
    pub deadline: u64,
    /// The first 40 bits of the state, which are never all set.
    pub head: u64,
    /// The rest of the state; zero if its size is [`PackedSize::Small`].
    pub words: [u64; Packed::WORDS],
}

impl Packed {
    /// The number of words beside the head.
    pub const WORDS: usize = 6;
    /// The number of bits in the head.
    pub const HEAD_BITS: u32 = 40;
    /// A deadline unit in microseconds.
    pub const UNIT_US: u64 = 1 << Self::UNIT_SHIFT;
    /// Deadlines are below this. It falls in the year 2112.
    pub const DEADLINE_END: u64 = (1 << 33) - 1;
    const UNIT_SHIFT: u32 = 19;

    /// A state that no longer matters at `expires_at`; `None` if that is too late for a deadline.
    #[inline]
    pub(crate) fn new(expires_at: Timestamp, head: u64, words: [u64; Self::WORDS]) -> Option<Self> {
        let deadline = Self::deadline(expires_at)?;
        Some(Packed { deadline, head, words })
    }

    /// The deadline of a state that no longer matters at this time, if it can have one.
    #[inline]
    pub fn deadline(expires_at: Timestamp) -> Option<u64> {
        let us = expires_at.as_micros();
        let deadline = (us >> Self::UNIT_SHIFT) + u64::from(!us.is_multiple_of(Self::UNIT_US));
        (deadline < Self::DEADLINE_END).then_some(deadline)
    }

    /// Decides on the state: it is charged if this limit admits the ask and it was `admitted` by
    /// all others. `false` if the state no longer fits its size, and is then of no use, or if the
    /// states of this limit have no packed form.
    ///
    /// The decision is written to where the caller wants it. It is too large for registers, and
    /// copying it right after it was written would delay a request noticeably.
    #[inline(always)]
    pub fn decide(
        &mut self,
        limit: &Limit,
        size: PackedSize,
        ask: &Ask,
        admitted: bool,
        decision: &mut Decision,
    ) -> bool {
        let now = &limit.moment(ask.now);
        macro_rules! decide {
            ($state:ident => $pack:expr) => {{
                $state.advance(limit, now);
                *decision = $state.settle(limit, ask, now, admitted);
                match $pack {
                    Some(packed) => *self = packed,
                    None => return false,
                }
                true
            }};
        }
        match limit.algorithm() {
            Algorithm::SlidingCounter => {
                let mut counter = SlidingCounter::unpack(limit, size, self);
                decide!(counter => counter.pack(limit, size))
            }
            Algorithm::FixedWindow => {
                let mut window = FixedWindow::unpack(limit, size, self);
                decide!(window => window.pack(limit, size))
            }
            Algorithm::TokenBucket => {
                let mut bucket = TokenBucket::unpack(self);
                decide!(bucket => bucket.pack(limit))
            }
            Algorithm::SlidingWindow => {
                SlidingWindow::decide_packed(self, limit, ask, now, admitted, decision)
            }
            Algorithm::SlidingLog | Algorithm::Concurrency => false,
        }
    }

    /// When the deadline falls.
    #[inline]
    pub(crate) fn deadline_us(&self) -> u64 {
        self.deadline << Self::UNIT_SHIFT
    }
}

/// The largest number up to `most` whose low `bits` bits are those of `low`.
#[inline]
pub(crate) fn with_low_bits(most: u64, low: u64, bits: u32) -> u64 {
    most - (most.wrapping_sub(low) & ((1 << bits) - 1))
}
