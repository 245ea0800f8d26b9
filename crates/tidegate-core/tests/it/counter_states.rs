//! The formula for the waits of `sliding-counter`, compared with trying every microsecond, from
//! every small state and from large ones at every edge.

use tidegate_core::{Cost, Limit, RetryAfter, SlidingCounter, State};

use crate::checked_state::{attempt_at, limit};

struct CounterCase<'a> {
    limit: Limit,
    counts: &'a [u64],
    costs: &'a [u64],
    /// A wait is checked every `stride` microseconds. It is found by trying all of them.
    stride: usize,
}

impl CounterCase<'_> {
    /// Whether `cost` passes, for every microsecond of this window and the next two.
    fn passes(&self, previous: u64, current: u64, cost: u64) -> Vec<bool> {
        let ticks = u128::from(self.limit.window_ticks());
        let windows = [(previous, current), (current, 0), (0, 0)];
        let admits = |(previous, current): (u64, u64), elapsed_us: u64| {
            let elapsed = u128::from(elapsed_us / self.limit.tick_us());
            let carried = u128::from(previous) * (ticks - elapsed) / ticks;
            carried + u128::from(current) + u128::from(cost) <= u128::from(self.limit.count())
        };
        let times = |window| (0..self.limit.window_us()).map(move |at| (window, at));
        windows.into_iter().flat_map(times).map(|(window, at)| admits(window, at)).collect()
    }

    fn check(&self, previous: u64, current: u64, cost: u64) -> u64 {
        let window_us = usize::try_from(self.limit.window_us()).expect("small");
        let passes = self.passes(previous, current, cost);
        let mut first_pass = None;
        let mut checked = 0;
        for at in (0..passes.len()).rev() {
            if passes[at] {
                first_pass = Some(at);
            }
            if at >= window_us || !at.is_multiple_of(self.stride) {
                continue;
            }
            checked += 1;
            let expected = match first_pass {
                Some(first) => RetryAfter::from_micros((first - at) as u64),
                None => RetryAfter::Never,
            };
            let counter = SlidingCounter { index: 1, previous, current };
            let now = self.limit.window_us() + at as u64;
            let decision = State::SlidingCounter(counter)
                .decide(&self.limit, &attempt_at(Cost::Ask(cost), now));
            let context = || format!("{counter:?} {} cost {cost} at +{at}", self.limit);
            assert_eq!(decision.allowed, passes[at], "{}", context());
            assert_eq!(decision.retry_after, expected, "{}", context());
        }
        checked
    }

    fn check_all(&self) -> u64 {
        let mut checked = 0;
        for &previous in self.counts {
            for &current in self.counts {
                checked +=
                    self.costs.iter().map(|&c| self.check(previous, current, c)).sum::<u64>();
            }
        }
        checked
    }
}

#[test]
fn waits_are_exact_from_every_small_state() {
    let counts: Vec<u64> = (0..=8).collect();
    let mut checked = 0;
    for count in 1..=6 {
        let limit = limit(&format!("{count} per 1ms sliding-counter"));
        let costs: Vec<u64> = (1..=count + 1).collect();
        checked += CounterCase { limit, counts: &counts, costs: &costs, stride: 1 }.check_all();
    }
    assert_eq!(checked, 81 * (2 + 3 + 4 + 5 + 6 + 7) * 1_000);
}

/// With more units than microseconds in a window, the estimate may outlast a window, and a wait
/// crosses two boundaries.
#[test]
fn waits_are_exact_for_counts_larger_than_the_window() {
    CounterCase {
        limit: limit("2500 per 1ms sliding-counter"),
        counts: &[0, 1, 2, 999, 1_000, 1_001, 2_499, 2_500, 2_501, 5_000, 9_000_000_000_000],
        costs: &[1, 2, 1_499, 1_500, 2_499, 2_500, 2_501],
        stride: 1,
    }
    .check_all();
}

#[test]
fn waits_are_exact_in_coarser_ticks() {
    let limit = limit("1000000000000 per 10ms sliding-counter");
    assert_eq!(limit.tick_us(), 10);
    CounterCase {
        limit,
        counts: &[0, 1, 999_999_999, 500_000_000_000, 1_000_000_000_000, 9_000_000_000_000],
        costs: &[1, 1_000_000_000, 500_000_000_001, 1_000_000_000_000, 1_000_000_000_001],
        stride: 7,
    }
    .check_all();
}
