//! `fixed-window`: one count per aligned window.
//!
//! The oldest and cheapest idea: count in calendar windows, and start again at each
//! boundary. It is available because it is well known, because it is what "per day"
//! means in billing, and as a reference for the other algorithms.
//!
//! ```text
//!   limit 100 per minute
//!              12:00:59   12:01:01
//!   |----------------100|100----------------|
//!                   200 within two seconds, each window within its limit
//! ```
//!
//! **Admits** iff the window's count plus the cost stays within `L`.
//! **Retry-after**: the boundary.
//!
//! **Bound: `2L`.** Any window of length `W` overlaps at most two aligned windows,
//! each of which admits at most `L`. The diagram shows that the bound is reached.
//!
//! **Cost**: a window index and one count.

use super::AlgorithmState;
use crate::limit::WindowPosition;
use crate::{Attempt, Limit, Packed, PackedSize, PackedWords, Timestamp};

/// The state of a `fixed-window`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedWindow {
    /// The index of the aligned window that it counts: `floor(time / W)`.
    pub index: u64,
    /// Units admitted in that window.
    pub count: u64,
}

impl FixedWindow {
    /// Packs the count and, in the large size, the index. In the small size the deadline is the
    /// end of the window and determines the index, because windows are at least a deadline step
    /// long.
    #[inline]
    pub(crate) fn pack(&self, limit: &Limit, size: PackedSize) -> Option<Packed> {
        if size == PackedSize::Large {
            let words = [self.index, self.count, 0, 0, 0, 0];
            return Packed::until(self.expires_at(limit), 0, words);
        }
        if self.count >= (1 << Packed::HEAD_BITS) - 1 {
            return None;
        }
        let end_us = (self.index + 1).saturating_mul(limit.window_us());
        Packed::until(Timestamp::from_micros(end_us), self.count, [0; Packed::WORDS])
    }

    /// Restores a window that was packed.
    #[inline]
    pub(crate) fn unpack<W: PackedWords>(
        limit: &Limit,
        size: PackedSize,
        packed: &Packed<W>,
    ) -> Self {
        if size == PackedSize::Large {
            return FixedWindow { index: packed.words.get(0), count: packed.words.get(1) };
        }
        let end = Timestamp::from_micros(packed.deadline_us());
        FixedWindow {
            index: limit.window_position(end).index.saturating_sub(1),
            count: packed.head(),
        }
    }
}

impl AlgorithmState for FixedWindow {
    #[inline]
    fn advance(&mut self, limit: &Limit, now: &WindowPosition) {
        // The count of a later window (the clock stepped back) is moved to the current one.
        if self.index < now.index {
            self.count = 0;
        }
        self.index = now.index;
        self.count = self.count.min(limit.count_cap());
    }

    #[inline]
    fn available(&self, limit: &Limit, _now: &WindowPosition) -> u64 {
        limit.count().saturating_sub(self.count)
    }

    #[inline]
    fn wait_us(&self, limit: &Limit, cost: u64, now: &WindowPosition) -> u64 {
        if self.count + cost <= limit.count() {
            return 0;
        }
        limit.window_us() - now.elapsed_us
    }

    #[inline]
    fn charge(&mut self, limit: &Limit, units: u64, _attempt: &Attempt, _now: &WindowPosition) {
        self.count = self.count.saturating_add(units).min(limit.count_cap());
    }

    fn refund(&mut self, _limit: &Limit, units: u64) {
        self.count = self.count.saturating_sub(units);
    }

    fn expires_at(&self, limit: &Limit) -> Timestamp {
        let windows = u64::from(self.count > 0);
        Timestamp::from_micros(self.index.saturating_add(windows).saturating_mul(limit.window_us()))
    }
}
