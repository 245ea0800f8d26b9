//! States in a fixed number of bits, as a store keeps them.
//!
//! A store that keeps millions of states lays them out in cache lines together with their keys, so a
//! state has to fit exactly. There are two sizes: 40 bits, for counters, and those 40 bits with
//! six more words, for every other state of bounded size. Logs and permits can
//! grow, so they are not packed.
//!
//! Both sizes have a *deadline*: the time from which on the state no longer matters, in steps of
//! 2^19 us (about half a second), rounded up. A store drops a state by its deadline without knowing
//! its limit. The deadline also determines, to within a step, when the state was last charged, so the
//! state keeps only the low bits of its window or cell index.

use crate::algorithms::AlgorithmState;
use crate::algorithms::sliding_window::{decide_cells, decide_times};
use crate::limit::WindowPosition;
use crate::{
    Algorithm, Attempt, Decided, Decision, FixedWindow, Limit, SlidingCounter, SlidingWindow,
    Timestamp, TokenBucket, WindowForm,
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

impl PackedSize {
    /// The size in which a store keeps the states of a limit; `None` if they can grow. Counters use
    /// the small size if a deadline identifies their window and the limit's count fits. Forced
    /// charges can still exceed it.
    pub(crate) const fn of(count: u64, window_us: u64, algorithm: Algorithm) -> Option<Self> {
        let is_long = window_us >= Packed::DEADLINE_STEP_US;
        match algorithm {
            Algorithm::SlidingCounter if is_long && count < SMALL_COUNT => Some(PackedSize::Small),
            Algorithm::FixedWindow if is_long => Some(PackedSize::Small),
            Algorithm::SlidingLog | Algorithm::Concurrency => None,
            _ => Some(PackedSize::Large),
        }
    }
}

/// Counts of a `sliding-counter` below this are packed in the small size: two of them fill it.
pub(crate) const SMALL_COUNT: u64 = (1 << (Packed::HEAD_BITS / 2)) - 1;

/// The function that decides on the packed states of a limit. The algorithm and the form are
/// combined in one number, so that a decision branches once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PackedKind {
    Counter,
    Fixed,
    Bucket,
    Times,
    Cells15,
    Cells7,
    Cells3,
    /// States that can grow are not packed.
    None,
}

impl PackedKind {
    pub(crate) const fn of(count: u64, algorithm: Algorithm) -> Self {
        match (algorithm, WindowForm::of(count)) {
            (Algorithm::SlidingCounter, _) => PackedKind::Counter,
            (Algorithm::FixedWindow, _) => PackedKind::Fixed,
            (Algorithm::TokenBucket, _) => PackedKind::Bucket,
            (Algorithm::SlidingWindow, WindowForm::Times) => PackedKind::Times,
            (Algorithm::SlidingWindow, WindowForm::Cells15) => PackedKind::Cells15,
            (Algorithm::SlidingWindow, WindowForm::Cells7) => PackedKind::Cells7,
            (Algorithm::SlidingWindow, WindowForm::Cells3) => PackedKind::Cells3,
            (Algorithm::SlidingLog | Algorithm::Concurrency, _) => PackedKind::None,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packed<W = [u64; 6]> {
    /// The time from which on the state no longer matters, in steps of
    /// [`Packed::DEADLINE_STEP_US`], rounded up. It is below [`Packed::DEADLINE_END`].
    pub deadline: u64,
    /// The first 40 bits of the state, which are never all set.
    pub head: u64,
    /// The rest of the state. A state of the size [`PackedSize::Small`] does not use it.
    pub words: W,
}

impl Packed {
    /// The number of words other than the head.
    pub const WORDS: usize = 6;
    /// The number of bits in the head.
    pub const HEAD_BITS: u32 = 40;
    /// The number of low bits of the deadline that a store keeps in one word with the head. A
    /// decision that would change the other bits requires that the store locks the state.
    pub const DEADLINE_LOW_BITS: u32 = u64::BITS - Self::HEAD_BITS;
    /// The length of a deadline step in microseconds.
    pub const DEADLINE_STEP_US: u64 = 1 << Self::DEADLINE_SHIFT;
    /// The end of the range of deadlines, in the year 2112.
    pub const DEADLINE_END: u64 = (1 << 33) - 1;
    const DEADLINE_SHIFT: u32 = 19;

    /// Creates a packed state that no longer matters at `expires_at`. Returns `None` if that is too
    /// late for a deadline.
    #[inline]
    pub(crate) fn new(expires_at: Timestamp, head: u64, words: [u64; Self::WORDS]) -> Option<Self> {
        let deadline = Self::deadline(expires_at)?;
        Some(Packed { deadline, head, words })
    }

    /// Returns the deadline of a state that no longer matters at `expires_at`, or `None` if that is
    /// too late for a deadline.
    #[inline]
    pub fn deadline(expires_at: Timestamp) -> Option<u64> {
        let deadline = Self::deadline_from_us(expires_at.as_micros());
        (deadline < Self::DEADLINE_END).then_some(deadline)
    }

    /// The number of deadline steps from 1970 to a time, rounded up.
    #[inline(always)]
    pub(crate) fn deadline_from_us(us: u64) -> u64 {
        us.saturating_add(Self::DEADLINE_STEP_US - 1) >> Self::DEADLINE_SHIFT
    }
}

impl<W: PackedWords> Packed<W> {
    /// Decides on the state in place. The cost is charged if this limit admits it and all
    /// enforced limits of the request have `admitted` it.
    ///
    /// Returns `None`, and leaves the state unchanged, if the store has to lock the state for this
    /// decision: if the new state would not fit its size, or if its deadline would become earlier or
    /// change in more than the low bits. Also returns `None` for states that cannot be packed.
    #[inline(always)]
    pub fn decide(
        &mut self,
        limit: &Limit,
        size: PackedSize,
        attempt: &Attempt,
        admitted: bool,
    ) -> Option<Decision> {
        let now = &limit.window_position(attempt.now);
        macro_rules! decide {
            ($state:ident => $pack:expr) => {{
                $state.advance(limit, now);
                let decision = $state.finish(limit, attempt, now, admitted);
                let packed = $pack;
                self.replace(size, packed).then_some(decision)
            }};
        }
        let in_place = match (size, limit.packed_kind()) {
            (_, PackedKind::Counter) => {
                let mut counter = SlidingCounter::unpack(limit, size, self);
                return decide!(counter => counter.pack(limit, size));
            }
            (_, PackedKind::Fixed) => {
                let mut window = FixedWindow::unpack(limit, size, self);
                return decide!(window => window.pack(limit, size));
            }
            (PackedSize::Large, PackedKind::Bucket) => {
                let mut bucket = TokenBucket::unpack(self);
                return decide!(bucket => bucket.pack(limit));
            }
            (PackedSize::Large, PackedKind::Times) => {
                decide_times(self, limit, attempt, now, admitted)
            }
            (PackedSize::Large, PackedKind::Cells15) => {
                decide_cells::<{ WindowForm::Cells15 as usize }, W>(
                    self, limit, attempt, now, admitted,
                )
            }
            (PackedSize::Large, PackedKind::Cells7) => {
                decide_cells::<{ WindowForm::Cells7 as usize }, W>(
                    self, limit, attempt, now, admitted,
                )
            }
            (PackedSize::Large, PackedKind::Cells3) => {
                decide_cells::<{ WindowForm::Cells3 as usize }, W>(
                    self, limit, attempt, now, admitted,
                )
            }
            _ => return None,
        };
        if in_place.is_some() {
            return in_place;
        }
        let (packed, decision) = decide_unpacked(self.copied(), limit, attempt, now, admitted)?;
        // These are constants here, as they are in the branches above. Otherwise the decision would
        // be copied byte by byte.
        let decision = Decision { no_room: false, decided: Decided::Exact, ..decision };
        self.replace(size, Some(packed)).then_some(decision)
    }

    /// A copy with its own words.
    #[inline(always)]
    fn copied(&self) -> Packed {
        let word = |number: usize| self.words.get(number);
        let words = [word(0), word(1), word(2), word(3), word(4), word(5)];
        Packed { deadline: self.deadline, head: self.head, words }
    }

    /// Replaces the state if the new one fits and only the low bits of the deadline change.
    #[inline(always)]
    fn replace(&mut self, size: PackedSize, packed: Option<Packed>) -> bool {
        let Some(Packed { deadline, head, words }) = packed else { return false };
        if deadline < self.deadline || !self.has_high_bits_of(deadline) {
            return false;
        }
        (self.deadline, self.head) = (deadline, head);
        if size == PackedSize::Large {
            for (number, bits) in words.into_iter().enumerate() {
                self.words.set(number, bits);
            }
        }
        true
    }

    /// Whether charging a `sliding-window` now would change only the low bits of the deadline.
    #[inline(always)]
    pub(crate) fn may_be_charged(&self, limit: &Limit, now: Timestamp) -> bool {
        let latest = now.plus_micros(limit.latest_deadline_us() + Packed::DEADLINE_STEP_US);
        self.has_high_bits_of(latest.as_micros() >> Packed::DEADLINE_SHIFT)
    }

    /// Whether a deadline differs from that of the state in the low bits only.
    #[inline(always)]
    pub(crate) fn has_high_bits_of(&self, deadline: u64) -> bool {
        (deadline ^ self.deadline) >> Packed::DEADLINE_LOW_BITS == 0
    }

    /// The deadline in microseconds.
    #[inline]
    pub(crate) fn deadline_us(&self) -> u64 {
        self.deadline << Packed::DEADLINE_SHIFT
    }
}

/// Decides on a `sliding-window` that cannot be decided in place, by unpacking it.
#[cold]
#[inline(never)]
fn decide_unpacked(
    packed: Packed,
    limit: &Limit,
    attempt: &Attempt,
    now: &WindowPosition,
    admitted: bool,
) -> Option<(Packed, Decision)> {
    let mut window = SlidingWindow::unpack(limit, &packed);
    window.advance(limit, now);
    let decision = window.finish(limit, attempt, now, admitted);
    Some((window.pack(limit)?, decision))
}

/// The largest number that is at most `most` and has the low `bits` bits of `low`.
#[inline]
pub(crate) fn with_low_bits(most: u64, low: u64, bits: u32) -> u64 {
    most - (most.wrapping_sub(low) & ((1 << bits) - 1))
}
