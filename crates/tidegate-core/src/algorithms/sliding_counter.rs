//! `sliding-counter`: two counts and an estimate.
//!
//! A fixed window forgets everything at its boundary. The counter keeps the count of
//! the previous window and assumes that its units arrived evenly. So the part of it
//! that is less than `W` old shrinks as the current window proceeds:
//!
//! ```text
//!   limit 50 per 60 s, 15 s into the window
//!        previous: 42            current: 18
//!   |------------------------|------+-----------------|
//!              |<---- the last 60 s ---->|
//!               3/4 of the previous      + all of the current
//!               42 * 45/60 = 31.5        + 18 = 49.5, and 49.5 < 50: admitted
//! ```
//!
//! **Admits** iff `floor(P*(W-e)/W) + C + c <= L`, with `P` and `C` the counts of
//! the previous and current aligned windows and `e` the time into the current.
//!
//! **Retry-after** is exact although the estimate decays continuously. With
//! `H = L - C - c` left for the previous window, the cost fits as soon as
//! `P*(W-e) < (H+1)*W`, that is from `e* = W - floor(((H+1)*W - 1)/P)` on. If
//! this window contains no such `e*`, `C` becomes the previous count of the next
//! window, with all of `L - c` left for it, and the same formula applies there.
//!
//! **Bound: `max(L, 2L - floor(2L/W))`** in ticks, close to `2L`: `L` at the very
//! end of one window, then, as the estimate decays, nearly `L` more before the
//! first are `W` old. Only a deliberate client achieves that; ordinary traffic
//! exceeds the limit slightly. Where the limit must hold, use `sliding-window` or
//! `sliding-log`.
//!
//! **Cost**: a window index and two counts. In the memory store that is 16 bytes,
//! including key and expiry, while counts stay below 2^20.

use super::{AlgorithmState, rarely};
use crate::limit::WindowPosition;
use crate::packed::SMALL_COUNT;
use crate::{Attempt, Decision, Limit, Packed, PackedSize, PackedWords, ResetAfter, Timestamp};

/// The number of bits of a count in the small size.
const COUNT_BITS: u32 = SMALL_COUNT.count_ones();

/// The state of a `sliding-counter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlidingCounter {
    /// The index of the aligned window that `current` counts: `floor(time / W)`.
    pub index: u64,
    /// Units admitted in the previous window.
    pub previous: u64,
    /// Units admitted in the current window.
    pub current: u64,
}

impl SlidingCounter {
    /// Packs the counts and, in the large size, the index. In the small size the deadline is two
    /// windows after the start of the current one and determines the index, because windows are at
    /// least a deadline step long.
    #[inline]
    pub(crate) fn pack(&self, limit: &Limit, size: PackedSize) -> Option<Packed> {
        if size == PackedSize::Large {
            let words = [self.index, self.previous, self.current, 0, 0, 0];
            return Packed::until(self.expires_at(limit), 0, words);
        }
        let deadline = Self::small_deadline(limit, self.index)?;
        Some(Packed::new(deadline, self.small_head()?, [0; Packed::WORDS]))
    }

    /// The deadline of a counter of the small size whose current window has this index.
    #[inline(always)]
    fn small_deadline(limit: &Limit, index: u64) -> Option<u64> {
        let end_us = index.saturating_add(2).saturating_mul(limit.window_us());
        Packed::deadline_at(Timestamp::from_micros(end_us))
    }

    /// The head of a counter of the small size.
    #[inline(always)]
    fn small_head(&self) -> Option<u64> {
        let fits = self.previous <= SMALL_COUNT && self.current < SMALL_COUNT;
        fits.then_some(self.previous << COUNT_BITS | self.current)
    }

    /// Restores a counter that was packed.
    #[inline]
    pub(crate) fn unpack<W: PackedWords>(
        limit: &Limit,
        size: PackedSize,
        packed: &Packed<W>,
    ) -> Self {
        if size == PackedSize::Large {
            let Packed { words, .. } = packed;
            let (index, previous, current) = (words.get(0), words.get(1), words.get(2));
            return SlidingCounter { index, previous, current };
        }
        let end = Timestamp::from_micros(packed.deadline_us());
        let index = limit.window_position(end).index.saturating_sub(2);
        SlidingCounter { index, ..Self::unpack_counts(packed.head()) }
    }

    /// The counts of a counter of the small size, from its head.
    #[inline(always)]
    fn unpack_counts(head: u64) -> Self {
        SlidingCounter { index: 0, previous: head >> COUNT_BITS, current: head & SMALL_COUNT }
    }

    /// The weighted count of the previous window, rounded down.
    #[inline(always)]
    fn carried(&self, limit: &Limit, now: &WindowPosition) -> u64 {
        if self.previous == 0 {
            return 0;
        }
        let product = self.previous * (limit.window_ticks() - elapsed_ticks(limit, now));
        limit.per_window(product)
    }
}

/// The time since the current window began, in whole ticks.
#[inline]
fn elapsed_ticks(limit: &Limit, now: &WindowPosition) -> u64 {
    if limit.tick_us() == 1 { now.elapsed_us } else { now.elapsed_us / limit.tick_us() }
}

/// The first tick of a window at which the weighted count of the previous window is at most `room`:
/// the smallest `e` with `previous * (W - e) < (room + 1) * W`.
#[inline]
fn first_tick_with_room(limit: &Limit, previous: u64, room: u64) -> u64 {
    if previous <= room {
        return 0;
    }
    let window = limit.window_ticks();
    // room + 1 <= previous <= the cap, so the product is at most 2^53.
    window.saturating_sub(((room + 1) * window - 1) / previous)
}

/// Decides on a packed counter of the small size in place. Returns `None`, and leaves the state
/// unchanged, if the new state has to be packed by the store.
///
/// After a decision a counter counts in the current window. So its new deadline follows from the
/// time, and if it is also the old deadline, the index does not have to be derived from it.
#[inline(always)]
pub(crate) fn decide_small<W: PackedWords>(
    packed: &mut Packed<W>,
    limit: &Limit,
    attempt: Attempt,
    admitted: bool,
) -> Option<Decision> {
    let now = limit.window_position(attempt.now);
    let deadline = SlidingCounter::small_deadline(limit, now.index)?;
    let mut counter = if packed.deadline() == deadline {
        SlidingCounter { index: now.index, ..SlidingCounter::unpack_counts(packed.head()) }
    } else {
        rarely();
        let differs_in_high = deadline >> Packed::DEADLINE_LOW_BITS != packed.deadline_high;
        if differs_in_high || deadline < packed.deadline() {
            return None;
        }
        SlidingCounter::unpack(limit, PackedSize::Small, packed)
    };
    counter.advance(limit, &now);
    let decision = counter.apply_and_report(limit, &attempt, &now, admitted);
    packed.body = Packed::body(deadline, counter.small_head()?);
    Some(decision)
}

impl AlgorithmState for SlidingCounter {
    #[inline(always)]
    fn advance(&mut self, limit: &Limit, now: &WindowPosition) {
        if self.index > now.index {
            // The clock stepped back: both counts are moved to the current window.
            self.current = self.current.saturating_add(self.previous);
            self.previous = 0;
        } else if self.index < now.index {
            self.previous = if self.index + 1 == now.index { self.current } else { 0 };
            self.current = 0;
        }
        self.index = now.index;
        // Counts that were charged under another limit may exceed the cap of this one.
        self.previous = self.previous.min(limit.count_cap());
        self.current = self.current.min(limit.count_cap());
    }

    #[inline(always)]
    fn available(&self, limit: &Limit, now: &WindowPosition) -> u64 {
        limit.count().saturating_sub(self.current + self.carried(limit, now))
    }

    #[inline]
    fn wait_us(&self, limit: &Limit, cost: u64, now: &WindowPosition) -> u64 {
        let elapsed_us = now.elapsed_us;
        let window_us = limit.window_us();
        let window = limit.window_ticks();
        if let Some(room) = limit.count().checked_sub(self.current + cost) {
            let tick = first_tick_with_room(limit, self.previous, room);
            if tick < window {
                return (tick * limit.tick_us()).saturating_sub(elapsed_us);
            }
        }
        let to_boundary_us = window_us - elapsed_us;
        let tick = first_tick_with_room(limit, self.current, limit.count() - cost);
        // A tick after the end of the next window means that the next window has to end as well.
        to_boundary_us + if tick < window { tick * limit.tick_us() } else { window_us }
    }

    #[inline(always)]
    fn reset_after(&self, limit: &Limit, now: &WindowPosition) -> ResetAfter {
        // The wait of the whole capacity in the common case, in which the current window has
        // counted units: they have to become a previous count and decay. One comparison checks that
        // their number is from 1 to the limit. Only a forced charge exceeds the limit.
        if self.current.wrapping_sub(1) < limit.count() && limit.tick_us() == 1 {
            let window_us = limit.window_us();
            let until_us = 2 * window_us - now.elapsed_us;
            return ResetAfter::from_micros(until_us - (window_us - 1) / self.current);
        }
        ResetAfter::from_micros(match limit.capacity() {
            0 => 0,
            capacity => self.wait_us(limit, capacity, now),
        })
    }

    #[inline(always)]
    fn admit(
        &mut self,
        _: &Limit,
        units: u64,
        _: &Attempt,
        _: &WindowPosition,
        available: u64,
    ) -> u64 {
        self.current += units;
        available - units
    }

    fn charge(&mut self, limit: &Limit, units: u64, _attempt: &Attempt, _now: &WindowPosition) {
        self.current = self.current.saturating_add(units).min(limit.count_cap());
    }

    fn refund(&mut self, _limit: &Limit, units: u64) {
        let from_current = units.min(self.current);
        self.current -= from_current;
        self.previous = self.previous.saturating_sub(units - from_current);
    }

    fn expires_at(&self, limit: &Limit) -> Timestamp {
        let windows = match (self.previous, self.current) {
            (0, 0) => 0,
            (_, 0) => 1,
            _ => 2,
        };
        Timestamp::from_micros(self.index.saturating_add(windows).saturating_mul(limit.window_us()))
    }
}
