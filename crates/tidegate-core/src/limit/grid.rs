//! Where windows and cells lie in time, and exact division by their lengths.
//!
//! A decision divides a few times: a time by the length of a window or cell, and a product of a
//! count and ticks by the ticks of the window. These divisors are constants of the limit, so
//! [`Divisor`] precomputes a reciprocal. [`EvenPace`] chooses the ticks.

use super::bounds;
use crate::Timestamp;

/// Where the windows of a limit or, for a `sliding-window`, the cells of a form lie in time, and
/// the pace that the cells are measured against.
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
    /// `2 * (value - 1)`, which is added to twice a dividend to round up.
    round_up: u64,
}

impl Divisor {
    /// Dividends below this are divided by multiplying.
    const END: u64 = 1 << 62;

    #[expect(clippy::cast_possible_truncation, reason = "at most 2^63, because 2^shift <= value")]
    pub(super) const fn new(value: u64) -> Self {
        let shift = value.ilog2();
        let multiplier = (1_u128 << (63 + shift)).div_ceil(value as u128);
        Divisor { value, multiplier: multiplier as u64, shift, round_up: 2 * (value - 1) }
    }

    /// The quotient of a dividend below 2^62.
    ///
    /// It is exact: the multiplier is too large by less than `value / 2^(63 + shift)` of itself,
    /// which is less than `2 / 2^63`. So the product with a dividend below 2^62 is too large by
    /// less than `1 / value`, which is too little to reach the next whole number.
    #[inline(always)]
    pub(crate) fn quotient(self, dividend: u64) -> u64 {
        debug_assert!(dividend < Self::END);
        self.quotient_of_half(dividend << 1)
    }

    /// The quotient of half of an even number below 2^63.
    #[inline(always)]
    fn quotient_of_half(self, twice: u64) -> u64 {
        let wide = u128::from(twice) * u128::from(self.multiplier);
        ((wide >> 64) as u64) >> self.shift
    }

    /// The quotient and the remainder.
    #[inline(always)]
    pub(crate) fn split(self, dividend: u64) -> (u64, u64) {
        if dividend >= Self::END {
            return self.split_large(dividend);
        }
        self.split_small(dividend)
    }

    /// The quotient and the remainder of a dividend below 2^62.
    #[inline(always)]
    pub(crate) fn split_small(self, dividend: u64) -> (u64, u64) {
        let quotient = self.quotient(dividend);
        (quotient, dividend - quotient * self.value)
    }

    #[cold]
    fn split_large(self, dividend: u64) -> (u64, u64) {
        (dividend / self.value, dividend % self.value)
    }

    /// The quotient, rounded up, of a dividend whose sum with the divisor is at most 2^62.
    #[inline(always)]
    pub(crate) fn ceil(self, dividend: u64) -> u64 {
        self.quotient_of_half((dividend << 1) + self.round_up)
    }
}

/// `count` units arriving evenly over a window, in integers that a double holds exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EvenPace {
    pub(super) count: u64,
    pub(super) tick_us: u64,
    /// The window in ticks, rounded up.
    pub(super) window: Divisor,
    /// `ceil(count * 2^(64 + rate_shift) / window)`; 0 if the count is 0 or not below the window,
    /// or if a tick is longer than a microsecond.
    rate: u64,
    /// The largest number for which `count * 2^rate_shift < window`.
    rate_shift: u32,
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
        let (rate, rate_shift) = if tick_us == 1 { rate(count, ticks) } else { (0, 0) };
        EvenPace { count, tick_us, window: Divisor::new(ticks), rate, rate_shift }
    }

    /// The units that arrive in `us` microseconds, which are at most a window.
    ///
    /// Multiplying by the rate is exact: the rate is too large by less than 1, so the product is
    /// too large by less than `us / 2^(64 + rate_shift)`. That is less than `1 / window`, which is
    /// too little to reach the next whole number, because `us * count` is at most 2^53 and
    /// `2^rate_shift` at least `window / (2 * count)`.
    #[inline(always)]
    pub(crate) fn units_in(&self, us: u64) -> u64 {
        if self.rate == 0 {
            return self.units_in_ticks(us);
        }
        let wide = u128::from(us) * u128::from(self.rate);
        ((wide >> 64) as u64) >> self.rate_shift
    }

    /// The units that arrive in `us` microseconds, if the rate is not known.
    #[cold]
    fn units_in_ticks(&self, us: u64) -> u64 {
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

/// The `rate` and `rate_shift` of a pace of `count` units in `ticks` ticks.
#[expect(clippy::cast_possible_truncation, reason = "below 2^64, because count * 2^shift < ticks")]
const fn rate(count: u64, ticks: u64) -> (u64, u32) {
    if count == 0 || count >= ticks {
        return (0, 0);
    }
    let shift = ((ticks - 1) / count).ilog2();
    // The division is done in two steps, because the dividend may have more than 128 bits.
    let (dividend, divisor) = ((count as u128) << 64, ticks as u128);
    let (whole, rest) = (dividend / divisor, dividend % divisor);
    let rate = (whole << shift) + (rest << shift).div_ceil(divisor);
    (rate as u64, shift)
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
    fn quotients_by_multiplication_equal_integer_division() {
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
                    if dividend < Divisor::END - value {
                        assert_eq!(divisor.ceil(dividend), dividend.div_ceil(value));
                    }
                }
            }
            for dividend in [Divisor::END, u64::MAX - 1, u64::MAX] {
                assert_eq!(divisor.split(dividend), (dividend / value, dividend % value));
            }
        }
    }

    /// The times are close to those at which a unit arrives, where an inexact rate would show
    /// first.
    #[test]
    fn units_of_a_pace_equal_the_exact_quotient() {
        let windows = [1_000, 1_048_576, 59_999_999, 60_000_000, 3_600_000_000];
        let counts = [0, 1, 2, 3, 7, 600, 1_023, 1_024, 65_535, 2_000_000, 1_000_000_007];
        for window_us in windows.into_iter().chain([bounds::MAX_WINDOW_US]) {
            for count in counts.into_iter().chain([window_us - 1, window_us, window_us + 1]) {
                let pace = EvenPace::new(count.min(bounds::MAX_COUNT), window_us);
                let ticks = pace.window.value;
                for unit in [0, 1, 2, pace.count / 2, pace.count - pace.count.min(1), pace.count] {
                    let arrival = (u128::from(unit) * u128::from(ticks))
                        .div_ceil(u128::from(pace.count.max(1)));
                    let arrival = u64::try_from(arrival).expect("at most a window");
                    for tick in [arrival.saturating_sub(1), arrival, (arrival + 1).min(ticks)] {
                        let units = u128::from(pace.count) * u128::from(tick) / u128::from(ticks);
                        let got = pace.units_in(tick * pace.tick_us);
                        assert_eq!(u128::from(got), units, "{count} in {window_us} at {tick}");
                    }
                }
            }
        }
    }
}
