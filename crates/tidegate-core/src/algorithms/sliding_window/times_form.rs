//! The times form: the times of up to 20 units, in steps of a grid.

use super::form::{MAX_TIMES, TIME_BITS};
use super::{WORDS, WindowForm};
use crate::algorithms::AlgorithmState;
use crate::limit::{Divisor, WindowPosition};
use crate::packed::with_low_bits;
use crate::{Attempt, Limit, Packed, PackedWords, ResetAfter, Timestamp};

/// The number of bits of the newest time in packed times. A deadline step is at most 2^19
/// steps of the grid.
const NEWEST_BITS: u32 = 20;

/// The times of up to 20 units.
///
/// `W` gives access to their words. They are in the state itself or, while a packed state is
/// decided in place, in the packed state.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times<W = [u64; WORDS]> {
    /// The number of times.
    pub(super) total: u64,
    /// The position of the oldest time in the ring.
    oldest: u64,
    /// The newest time.
    newest: u64,
    /// The low bits of each time, in a ring.
    words: W,
}

/// The window in steps, rounded up.
#[inline(always)]
fn window_steps(limit: &Limit, step: Divisor) -> u64 {
    step.ceil(limit.window_us())
}

impl Times {
    /// Restores times, oldest first, at most a window apart. Returns `None` if there are too many,
    /// or if they are not in order.
    pub(super) fn from_times(times: &[u64]) -> Option<Self> {
        let mut restored = Times { newest: *times.last()?, ..Self::default() };
        if times.len() as u64 > MAX_TIMES || !times.is_sorted() {
            return None;
        }
        for &time in times {
            if (restored.newest - time) >> TIME_BITS > 0 {
                return None;
            }
            restored.push(time);
        }
        Some(restored)
    }

    pub(super) fn pack(self, limit: &Limit) -> Option<Packed> {
        let (head, deadline) = self.pack_head(limit)?;
        Some(Packed::new(deadline, head, self.words))
    }
}

impl<W: PackedWords> Times<W> {
    /// Restores times that were packed, from their words.
    #[inline(always)]
    pub(super) fn unpack(limit: &Limit, head: u64, deadline_us: u64, words: W) -> Self {
        let total = head >> 2 & 0x1f;
        let mut restored = Times { total, oldest: head >> 7 & 0x1f, newest: 0, words };
        if total > 0 {
            let step = limit.cell(WindowForm::Times);
            // The newest is a window old by the deadline, and was not a deadline step earlier.
            let latest = step.split(deadline_us).0 - window_steps(limit, step);
            restored.newest = with_low_bits(latest, head >> 12, NEWEST_BITS);
        }
        restored
    }

    /// The head of the packed times, and their deadline.
    #[inline(always)]
    pub(super) fn pack_head(&self, limit: &Limit) -> Option<(u64, u64)> {
        if self.total == 0 {
            return Some((0, 0));
        }
        let deadline = Packed::deadline_at(self.expires_at(limit))?;
        let newest = self.newest & ((1 << NEWEST_BITS) - 1);
        Some((
            WindowForm::Times as u64 | self.total << 2 | self.oldest << 7 | newest << 12,
            deadline,
        ))
    }

    /// The times, oldest first.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = u64> {
        (0..self.total).map(|number| self.time(number))
    }

    /// The time with this number, counted from the oldest.
    #[inline(always)]
    fn time(&self, number: u64) -> u64 {
        let (word, shift) = self.position(number);
        // Only the low bits are kept, because all times are less than 2^16 steps before the newest.
        let low = self.words.get(word) >> shift;
        let age = self.newest.wrapping_sub(low) & ((1 << TIME_BITS) - 1);
        self.newest.saturating_sub(age)
    }

    /// Appends a time. `newest` is already set to this time, or to the last of those to be
    /// appended.
    #[inline(always)]
    fn push(&mut self, time: u64) {
        let (word, shift) = self.position(self.total);
        let mask = (1 << TIME_BITS) - 1;
        let others = self.words.get(word) & !(mask << shift);
        self.words.set(word, others | (time & mask) << shift);
        self.total += 1;
    }

    /// The word of a time, and the first of its bits in that word.
    #[inline(always)]
    fn position(&self, number: u64) -> (usize, u64) {
        let position = (self.oldest + number) % MAX_TIMES;
        ((position / 4) as usize, position % 4 * u64::from(TIME_BITS))
    }

    /// The time at which a unit is a window old, with both rounded to whole steps.
    #[inline(always)]
    fn release_us(limit: &Limit, time: u64) -> u64 {
        let step = limit.cell(WindowForm::Times);
        time.saturating_add(window_steps(limit, step)).saturating_mul(step.value)
    }

    /// Moves times later than `newest` to `newest`, because the clock stepped back.
    #[cold]
    fn reenter_future(&mut self, newest: u64) {
        let mut moved: Times = Times { newest, ..Times::default() };
        self.iter().for_each(|time| moved.push(time.min(newest)));
        let Times { total, oldest, newest, words } = moved;
        (self.total, self.oldest, self.newest) = (total, oldest, newest);
        for (number, bits) in words.into_iter().enumerate() {
            self.words.set(number, bits);
        }
    }

    /// Whether a time is later than now, because the clock stepped back.
    #[inline(always)]
    pub(super) fn is_ahead(&self, now: &WindowPosition) -> bool {
        self.newest > now.index + u64::from(now.elapsed_us > 0)
    }

    /// Adds units at a time, rounded up to a step. Units that do not fit are cut off.
    #[inline(always)]
    pub(super) fn add(&mut self, units: u64, passed: u64, rest_us: u64) {
        self.newest = passed + u64::from(rest_us > 0);
        for _ in 0..units.min(MAX_TIMES - self.total) {
            self.push(self.newest);
        }
    }
}

impl<W: PackedWords> AlgorithmState for Times<W> {
    #[inline(always)]
    fn advance(&mut self, limit: &Limit, now: &WindowPosition) {
        let step = limit.cell(WindowForm::Times);
        let (passed, rest_us) = limit.split(WindowForm::Times, now);
        let newest = passed + u64::from(rest_us > 0);
        if self.newest > newest {
            self.reenter_future(newest);
        }
        let window = window_steps(limit, step);
        while self.total > 0 && self.time(0).saturating_add(window) <= passed {
            self.oldest = (self.oldest + 1) % MAX_TIMES;
            self.total -= 1;
        }
        if self.total == 0 {
            self.oldest = 0;
        }
    }

    #[inline(always)]
    fn available(&self, limit: &Limit, _now: &WindowPosition) -> u64 {
        limit.count().saturating_sub(self.total)
    }

    #[inline(always)]
    fn wait_us(&self, limit: &Limit, cost: u64, now: &WindowPosition) -> u64 {
        match (self.total + cost).saturating_sub(limit.count()) {
            0 => 0,
            lacking => Self::release_us(limit, self.time(lacking - 1)) - now.at.as_micros(),
        }
    }

    #[inline(always)]
    fn reset_after(&self, limit: &Limit, now: &WindowPosition) -> ResetAfter {
        if self.total == 0 || limit.count() == 0 {
            return ResetAfter::from_micros(0);
        }
        let released_us = Self::release_us(limit, self.newest);
        ResetAfter::from_micros(released_us - now.at.as_micros())
    }

    #[inline(always)]
    fn charge(&mut self, limit: &Limit, units: u64, _attempt: &Attempt, now: &WindowPosition) {
        if units > 0 {
            let (passed, rest_us) = limit.split(WindowForm::Times, now);
            self.add(units, passed, rest_us);
        }
    }

    fn refund(&mut self, _limit: &Limit, units: u64) {
        self.total = self.total.saturating_sub(units);
        if self.total > 0 {
            self.newest = self.time(self.total - 1);
        }
    }

    #[inline(always)]
    fn expires_at(&self, limit: &Limit) -> Timestamp {
        match self.total {
            0 => Timestamp::EPOCH,
            _ => Timestamp::from_micros(Self::release_us(limit, self.newest)),
        }
    }
}
