//! Where windows and cells lie in time, and exact division by their lengths.
//!
//! A decision divides a few times: a time by the length of a window or cell, and a product of a
//! count and ticks by the ticks of the window. These divisors are constants of the limit, so
//! [`Divisor`] precomputes a reciprocal. [`EvenPace`] chooses the ticks.

use super::bounds;
use crate::Timestamp;

/// Where the windows of a limit or, for a `sliding-window`, the cells of a form lie in time, and the
/// pace that the cells are measured against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    /// The window; for `concurrency`, the lease.
    pub(crate) window_us: u64,
    /// The cell of a `sliding-window`, to divide times by; the window of the others.
    pub(crate) cell: Divisor,
    /// The unit of the last hits of a cell.
    pub(crate) step: Divisor,
    /// The pace of the larger of count and burst, in ticks that keep products exact.
    pub(crate) pace: EvenPace,
}

/// A number that times and counts are divided by.
///
/// It divides by multiplying with a precomputed reciprocal, because a division would be the slowest
/// instruction of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Divisor {
    pub(crate) value: u64,
    /// `ceil(2^(63 + shift) / value)`.
    multiplier: u64,
    /// The largest number for which `2^shift <= value`.
    shift: u32,
}

impl Divisor {
    /// Dividends below this are divided by multiplying.
    const END: u64 = 1 << 62;

    #[expect(clippy::cast_possible_truncation, reason = "at most 2^63, because 2^shift <= value")]
    pub(super) const fn new(value: u64) -> Self {
        let shift = value.ilog2();
        let multiplier = (1_u128 << (63 + shift)).div_ceil(value as u128);
        Divisor { value, multiplier: multiplier as u64, shift }
    }

    /// The quotient of a dividend below 2^62.
    ///
    /// It is exact: the multiplier is too large by less than `value / 2^(63 + shift)` of itself,
    /// which is less than `2 / 2^63`. So the product with a dividend below 2^62 is too large by
    /// less than `1 / value`, which is too little to reach the next whole number.
    #[inline(always)]
    pub(crate) fn quotient(self, dividend: u64) -> u64 {
        debug_assert!(dividend < Self::END);
        let wide = u128::from(dividend << 1) * u128::from(self.multiplier);
        ((wide >> 64) as u64) >> self.shift
    }

    /// The quotient and the remainder.
    #[inline(always)]
    pub(crate) fn split(self, dividend: u64) -> (u64, u64) {
        if dividend >= Self::END {
            return self.split_large(dividend);
        }
        let quotient = self.quotient(dividend);
        (quotient, dividend - quotient * self.value)
    }

    #[cold]
    fn split_large(self, dividend: u64) -> (u64, u64) {
        (dividend / self.value, dividend % self.value)
    }

    /// The quotient of a dividend below 2^62, rounded up.
    #[inline(always)]
    pub(crate) fn ceil(self, dividend: u64) -> u64 {
        let quotient = self.quotient(dividend);
        quotient + u64::from(quotient * self.value < dividend)
    }
}

/// `count` units arriving evenly over a window, in integers that a double holds exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EvenPace {
    pub(super) count: u64,
    pub(super) tick_us: u64,
    /// The window in ticks, rounded up.
    pub(super) window: Divisor,
}

impl EvenPace {
    /// Cuts the window into the finest ticks of 1, 10, 100, ... microseconds for which a product
    /// of the window and `count + 1` is exact in a double.
    pub(super) const fn new(count: u64, window_us: u64) -> Self {
        let (mut tick_us, mut ticks) = (1, window_us);
        while (count as u128 + 1) * ticks as u128 > bounds::MAX_PRODUCT as u128 {
            tick_us *= 10;
            ticks = window_us.div_ceil(tick_us);
        }
        EvenPace { count, tick_us, window: Divisor::new(ticks) }
    }

    /// The units that arrive in `us` microseconds, which are at most a window.
    #[inline(always)]
    pub(crate) fn units_in(&self, us: u64) -> u64 {
        let ticks = if self.tick_us == 1 { us } else { us / self.tick_us };
        self.window.quotient(self.count * ticks)
    }

    /// The microseconds in which `units` arrive, which are at least 1 and at most the units of a
    /// window.
    #[inline]
    pub(crate) fn us_for(&self, units: u64) -> u64 {
        self.tick_us * (units * self.window.value).div_ceil(self.count)
    }
}

/// A time, and its position among a limit's aligned windows or, for a `sliding-window`, among the
/// cells of the limit's form. It is computed once per decision, by
/// [`Limit::window_position`](super::Limit::window_position).
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowPosition {
    pub(crate) at: Timestamp,
    /// The index of the window or cell.
    pub(crate) index: u64,
    /// The time since that window or cell began.
    pub(crate) elapsed_us: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The dividends are close to multiples of the divisor, where an inexact quotient would show
    /// first, up to the largest dividends.
    #[test]
    fn divides_exactly() {
        let powers = (0..62).map(|power| 1_u64 << power);
        let others = [3, 7, 10, 15, 999_983, 60_000_000, 3_600_000_000, bounds::MAX_WINDOW_US];
        for value in powers.flat_map(|power| [power, power + 1]).chain(others) {
            let divisor = Divisor::new(value);
            for target in [0, value, 1 << 31, 1 << 53, Divisor::END - 1] {
                let multiple = target / value * value;
                for dividend in [multiple.saturating_sub(1), multiple, multiple + 1, target] {
                    let dividend = dividend.min(Divisor::END - 1);
                    assert_eq!(
                        divisor.quotient(dividend),
                        dividend / value,
                        "{dividend} / {value}"
                    );
                    assert_eq!(divisor.ceil(dividend), dividend.div_ceil(value));
                }
            }
            for dividend in [Divisor::END, u64::MAX - 1, u64::MAX] {
                assert_eq!(divisor.split(dividend), (dividend / value, dividend % value));
            }
        }
    }
}
