//! `sliding-counter`: two counts and a guess; the default.
//!
//! A fixed window forgets everything at its boundary. The counter keeps the
//! count of the window before and assumes it came evenly, so that the part of it
//! still within reach shrinks as the current window goes on:
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
//! **Retry-after** is exact although the estimate decays all the time. With
//! `H = L - C - c` left for the previous window, the cost fits as soon as
//! `P*(W-e) < (H+1)*W`, that is from `e* = W - floor(((H+1)*W - 1)/P)` on. If
//! there is no such `e*` in this window, `C` becomes the previous count of the
//! next one, with all of `L - c` left for it, and the same formula says when.
//!
//! **Bound: `max(L, 2L - floor(2L/W))`** in ticks, close to `2L`: `L` at the very
//! end of one window, then, as the estimate melts away, nearly `L` more before
//! the first are `W` old. It takes aim to do that; ordinary traffic overshoots a
//! little. Where the limit must hold, use `sliding-window` or `sliding-log`.
//!
//! **Cost**: a window index and two counts; 16 bytes with key and expiry in the
//! memory store while counts stay below 2^20.

use super::{Outcome, Window};
use crate::limit::Moment;
use crate::limit::bounds::{COMPACT_BITS, COMPACT_COUNT};
use crate::{Ask, Cost, Decision, Limit, ResetAfter, RetryAfter, Timestamp};

/// The state of a `sliding-counter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlidingCounter {
    /// Which aligned window `current` counts: `floor(time / W)`.
    pub index: u64,
    /// What was admitted in the window before.
    pub previous: u64,
    /// What was admitted in this window.
    pub current: u64,
}

impl SlidingCounter {
    /// Both counts in one word, the current one lowest, so that charging is adding;
    /// `None` if they do not fit.
    #[inline]
    pub const fn pack(&self) -> Option<u64> {
        // Not even a full current count: no packed word is all ones.
        if self.previous > COMPACT_COUNT || self.current >= COMPACT_COUNT {
            return None;
        }
        Some(self.previous << COMPACT_BITS | self.current)
    }

    /// The counter of window `index` whose counts [`SlidingCounter::pack`] gave.
    #[inline]
    pub const fn unpack(index: u64, counts: u64) -> Self {
        let (previous, current) = (counts >> COMPACT_BITS, counts & COMPACT_COUNT);
        SlidingCounter { index, previous, current }
    }

    /// The answer if `units` are admitted, and `None` if not or if they are none,
    /// for packed counts of the window around now below the limit's
    /// [`compact_end`](Limit::compact_end). Adding `units` to the packed counts
    /// then charges them. `until_us` is the time until the next window ends,
    /// `share_left` what [`Limit::share_left`] says.
    ///
    /// It is [`State::decide`](crate::State::decide) for the one case that decides
    /// how fast a limiter is, with all left out that cannot happen in it, and without
    /// a branch that asks whether anything was counted in the window before.
    #[inline(always)]
    pub fn admit_packed(
        counts: u64,
        limit: &Limit,
        units: u64,
        until_us: u64,
        share_left: u64,
    ) -> Option<Decision> {
        let counter = SlidingCounter::unpack(0, counts);
        let carried = part(counter.previous, share_left);
        let room = limit.count().checked_sub(units).filter(|_| units > 0)?;
        let remaining = room.checked_sub(counter.current + carried)?;
        // Between 1 and the limit, or it would not have been admitted.
        let current = counter.current + units;
        Some(Decision {
            allowed: true,
            limit: limit.count(),
            remaining,
            retry_after: RetryAfter::Now,
            reset_after: ResetAfter::less_a_share(until_us, limit.window_us() - 1, current),
        })
    }

    /// The first half of a decision: brings the counter up to now and charges the
    /// ask if it is admitted. With [`SlidingCounter::report`] it does what
    /// [`State::decide`](crate::State::decide) does, for stores that keep counters
    /// in a form of their own and can let go of them before the waits are worked out.
    #[inline(always)]
    pub fn step(&mut self, limit: &Limit, cost: Cost, now: &Moment) -> Outcome {
        self.step_if(limit, cost, now, true)
    }

    /// As [`SlidingCounter::step`], charging only what was `admitted` by others, too.
    #[inline(always)]
    pub fn step_if(&mut self, limit: &Limit, cost: Cost, now: &Moment, admitted: bool) -> Outcome {
        self.advance(limit, now);
        self.apply(limit, &Ask::new(cost, now.at), now, admitted)
    }

    /// Whether the cost would be admitted; the counter must be of this window.
    #[inline(always)]
    pub fn would_admit(&self, limit: &Limit, cost: Cost, now: &Moment) -> bool {
        Window::admits(self, limit, &Ask::new(cost, now.at), now)
    }

    /// The second half of a decision: the answer to the cost it took a step for.
    #[inline(always)]
    pub fn report(&self, limit: &Limit, cost: Cost, now: &Moment, outcome: Outcome) -> Decision {
        Window::report(self, limit, cost, now, outcome)
    }

    /// What the previous window still weighs, rounded down.
    #[inline(always)]
    fn carried(&self, limit: &Limit, now: &Moment) -> u64 {
        if self.previous == 0 {
            return 0;
        }
        let product = self.previous * (limit.window_ticks() - elapsed_ticks(limit, now));
        if limit.tick_us() == 1 { limit.split(product).0 } else { product / limit.window_ticks() }
    }
}

/// `count * share / 2^63`, rounded down.
#[inline(always)]
fn part(count: u64, share: u64) -> u64 {
    ((u128::from(2 * count) * u128::from(share)) >> 64) as u64
}

/// How far into its window `now` lies, in whole ticks.
#[inline]
fn elapsed_ticks(limit: &Limit, now: &Moment) -> u64 {
    if limit.tick_us() == 1 { now.elapsed_us } else { now.elapsed_us / limit.tick_us() }
}

/// The first tick of a window at which `previous` units of the window before
/// leave room: the smallest `e` with `previous * (W - e) < (room + 1) * W`.
#[inline]
fn first_tick_with_room(limit: &Limit, previous: u64, room: u64) -> u64 {
    if previous <= room {
        return 0;
    }
    let window = limit.window_ticks();
    // room < previous <= the cap, so the product stays below 2^53 + 2^53.
    window.saturating_sub(((room + 1) * window - 1) / previous)
}

impl Window for SlidingCounter {
    #[inline(always)]
    fn advance(&mut self, limit: &Limit, now: &Moment) {
        if self.index > now.index {
            // The clock stepped back: all that was counted is counted here and now.
            self.current = self.current.saturating_add(self.previous);
            self.previous = 0;
        } else if self.index < now.index {
            self.previous = if self.index + 1 == now.index { self.current } else { 0 };
            self.current = 0;
        }
        self.index = now.index;
        // Counts loaded under another limit may not fit this one.
        self.previous = self.previous.min(limit.count_cap());
        self.current = self.current.min(limit.count_cap());
    }

    #[inline(always)]
    fn available(&self, limit: &Limit, now: &Moment) -> u64 {
        limit.count().saturating_sub(self.current + self.carried(limit, now))
    }

    #[inline]
    fn wait_us(&self, limit: &Limit, cost: u64, now: &Moment) -> u64 {
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
        // A tick past the end of the next window means that it, too, must pass.
        to_boundary_us + if tick < window { tick * limit.tick_us() } else { window_us }
    }

    #[inline(always)]
    fn reset_after(&self, limit: &Limit, now: &Moment) -> ResetAfter {
        // The wait for all of it, worked out for the case that matters: something
        // was counted in this window, and has to become a previous count and melt.
        // (From 1 to the limit, in one comparison; more takes a forced charge.)
        if self.current.wrapping_sub(1) < limit.count() && limit.tick_us() == 1 {
            let window_us = limit.window_us();
            let until_us = 2 * window_us - now.elapsed_us;
            return ResetAfter::less_a_share(until_us, window_us - 1, self.current);
        }
        ResetAfter::from_micros(match limit.capacity() {
            0 => 0,
            capacity => self.wait_us(limit, capacity, now),
        })
    }

    #[inline(always)]
    fn admit(&mut self, _limit: &Limit, units: u64, _ask: &Ask) {
        self.current += units;
    }

    fn charge(&mut self, limit: &Limit, units: u64, _ask: &Ask) {
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
