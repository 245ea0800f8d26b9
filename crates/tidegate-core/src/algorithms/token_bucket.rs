//! `token-bucket`: a steady rate with a burst on top.
//!
//! The naive bucket adds a token every `W/L`. Rounded to whole nanoseconds that
//! interval is wrong: at 7*10^8 per second it is 1 ns instead of 1.43 and admits
//! 43 % too much. A float drifts instead. Here nothing is divided: the state is a
//! *debt* in units of cost times window. A request of cost `c` adds `c*W` to the debt,
//! and every tick subtracts `L` from it.
//!
//! ```text
//!   limit 60 per 60 s, burst 3       debt, in requests
//!   3 |    /|\
//!   2 |   / | \ /|    a burst of three, then one per second
//!   1 |  /  |  \ |\
//!   0 +-----+-------\---------> time
//! ```
//!
//! **Admits** iff `debt + c*W <= B*W`. **Remaining** is `floor((B*W - debt)/W)`.
//! **Retry-after** is `ceil((debt + c*W - B*W)/L)` ticks.
//!
//! **Bound: `B + L`** in any window: the debt is never negative and, after an
//! admission, at most `B*W`. It decreases by at most `L*W` in `W` ticks. So at most
//! `(B + L)*W` is added in between.
//!
//! A leaky bucket is a token bucket with a burst of 1 whose callers wait.
//!
//! **Cost**: a time and a debt.

use super::AlgorithmState;
use crate::limit::WindowPosition;
use crate::limit::bounds;
use crate::{Attempt, Limit, Packed, PackedWords, Timestamp};

/// The state of a `token-bucket`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// The time of the last update of the debt.
    pub at: Timestamp,
    /// The debt, in cost times window ticks.
    pub debt: u64,
    /// The length of the ticks in which the debt is measured. A limit whose count changes may have
    /// another tick. The debt is then converted and rounded up.
    tick_us: u64,
}

impl Default for TokenBucket {
    fn default() -> Self {
        TokenBucket { at: Timestamp::EPOCH, debt: 0, tick_us: 1 }
    }
}

impl TokenBucket {
    /// Creates a bucket with a debt at a time. The debt is measured in ticks of this length.
    pub fn new(at: Timestamp, debt: u64, tick_us: u64) -> Self {
        TokenBucket { at, debt, tick_us: tick_us.max(1) }
    }

    /// Returns the length of the ticks in which the debt is measured.
    pub const fn tick_us(&self) -> u64 {
        self.tick_us
    }

    /// Packs all fields.
    #[inline]
    pub(crate) fn pack(&self, limit: &Limit) -> Option<Packed> {
        let words = [self.at.as_micros(), self.debt, self.tick_us, 0, 0, 0];
        Packed::until(self.expires_at(limit), 0, words)
    }

    /// Restores a bucket that was packed.
    #[inline]
    pub(crate) fn unpack<W: PackedWords>(packed: &Packed<W>) -> Self {
        let Packed { words, .. } = packed;
        let (at, debt) = (Timestamp::from_micros(words.get(0)), words.get(1));
        TokenBucket { at, debt, tick_us: words.get(2).max(1) }
    }

    fn convert(&mut self, limit: &Limit) {
        let old_window = u128::from(limit.window_us().div_ceil(self.tick_us));
        let debt = (u128::from(self.debt) * u128::from(limit.window_ticks())).div_ceil(old_window);
        self.debt = u64::try_from(debt).unwrap_or(u64::MAX).min(bounds::MAX_PRODUCT);
        self.tick_us = limit.tick_us();
    }
}

impl AlgorithmState for TokenBucket {
    #[inline]
    fn advance(&mut self, limit: &Limit, now: &WindowPosition) {
        if self.tick_us != limit.tick_us() {
            self.convert(limit);
        }
        if self.at < now.at {
            let tick = |time: Timestamp| time.as_micros() / limit.tick_us();
            let paid = (tick(now.at) - tick(self.at)).saturating_mul(limit.count());
            self.debt = self.debt.saturating_sub(paid);
        }
        // A debt at a later time (the clock stepped back) is moved to now.
        self.at = now.at;
    }

    #[inline]
    fn available(&self, limit: &Limit, _now: &WindowPosition) -> u64 {
        (limit.capacity() * limit.window_ticks()).saturating_sub(self.debt) / limit.window_ticks()
    }

    fn wait_us(&self, limit: &Limit, cost: u64, now: &WindowPosition) -> u64 {
        let room = (limit.capacity() - cost) * limit.window_ticks();
        let ticks = self.debt.saturating_sub(room).div_ceil(limit.count());
        if ticks == 0 {
            return 0;
        }
        let now_us = now.at.as_micros();
        (now_us / limit.tick_us()).saturating_add(ticks).saturating_mul(limit.tick_us()) - now_us
    }

    #[inline]
    fn charge(&mut self, limit: &Limit, units: u64, _attempt: &Attempt, _now: &WindowPosition) {
        let added = units.min(limit.count_cap()) * limit.window_ticks();
        self.debt = (self.debt + added).min(bounds::MAX_PRODUCT);
    }

    fn refund(&mut self, limit: &Limit, units: u64) {
        let taken = units.min(limit.count_cap()) * limit.window_ticks();
        self.debt = self.debt.saturating_sub(taken);
    }

    fn expires_at(&self, limit: &Limit) -> Timestamp {
        if self.debt == 0 {
            return self.at;
        }
        // With a count of 0 the debt never decreases. It is kept for a window, in case the count is
        // raised.
        if limit.count() == 0 {
            return self.at.plus_micros(limit.window_us());
        }
        let ticks = self.debt.div_ceil(limit.count());
        let end = (self.at.as_micros() / limit.tick_us()).saturating_add(ticks);
        Timestamp::from_micros(end.saturating_mul(limit.tick_us()))
    }
}
