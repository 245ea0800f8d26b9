//! Views show the numbers that decisions are based on, and do not change the state.

use proptest::prelude::*;
use tidegate_core::{Attempt, CellView, Cost, Limit, PermitId, Ratio, State, Timestamp, View};

use crate::checked_state::{attempt_at, limit};
use crate::generators::{any_limit, anything, cost, start};

const SECOND: u64 = 1_000_000;

/// The state after requests of cost 1: pairs of a second and the number of requests at it.
fn after(limit: &Limit, requests: &[(u64, usize)]) -> State {
    let mut state = State::new(limit);
    for &(second, times) in requests {
        for _ in 0..times {
            let _ = state.decide(limit, &attempt_at(Cost::Ask(1), second * SECOND));
        }
    }
    state
}

/// A cell between two times in seconds.
fn cell(start: u64, last_hit: u64, units: u64, lag: u64, expired: u64) -> CellView {
    let at = |second| Timestamp::from_micros(second * SECOND);
    CellView { start: at(start), last_hit: at(last_hit), units, lag, expired }
}

#[test]
fn views_show_the_numbers_of_each_algorithm() {
    let of = |seconds| Ratio { part: seconds * SECOND, whole: 15 * SECOND };
    let counter = |previous, current, left| View::SlidingCounter {
        previous,
        current,
        weight: of(left),
        estimate: of(previous * left + current * 15),
    };
    // 15 cells of 15 s, which the pace fills with 10 units each; last hits count whole seconds.
    let window = |used, cells| View::SlidingWindow { used, cell_us: 15 * SECOND, pace: 150, cells };
    let log = |used, cells| View::SlidingWindow { used, cell_us: 5_000, pace: 0, cells };
    #[rustfmt::skip]
    let rows: Vec<(&str, &[(u64, usize)], u64, View)> = vec![
        // A burst of 8 against a limit of 5, then the next window, then the one after that.
        ("5 per 15s sliding-counter", &[(3, 8)], 3, counter(0, 5, 12)),
        ("5 per 15s sliding-counter", &[(3, 8)], 15, counter(5, 0, 15)),
        ("5 per 15s sliding-counter", &[(3, 8), (25, 2)], 27, counter(5, 2, 3)),
        ("5 per 15s sliding-counter", &[(3, 8)], 30, counter(0, 0, 15)),
        ("5 per 15s sliding-log", &[(3, 8)], 17, View::SlidingLog { count: 5 }),
        ("5 per 15s sliding-log", &[(3, 8)], 18, View::SlidingLog { count: 0 }),
        ("5 per 15s fixed-window", &[(3, 8)], 14, View::FixedWindow { count: 5 }),
        ("5 per 15s fixed-window", &[(3, 8)], 15, View::FixedWindow { count: 0 }),
        ("5 per 15s token-bucket", &[(3, 8)], 7, View::TokenBucket { tokens: of(20) }),
        ("5 per 15s token-bucket burst 2", &[(3, 8)], 3, View::TokenBucket { tokens: of(0) }),
        // Ten units at 3 s cause a lag of 2. Five more at 12 s do not increase it.
        ("150 per 225s sliding-window", &[(3, 10), (12, 5), (20, 3)], 21,
            window(18, vec![cell(0, 12, 15, 2, 0), cell(15, 20, 3, 3, 0)])),
        // When the start of the window is 6 s past that of the first cell, the pace is at 4 units.
        ("150 per 225s sliding-window", &[(3, 10), (12, 5), (20, 3)], 231,
            window(16, vec![cell(0, 12, 15, 2, 2), cell(15, 20, 3, 3, 0)])),
        ("150 per 225s sliding-window", &[(3, 10), (12, 5), (20, 3)], 237,
            window(3, vec![cell(15, 20, 3, 3, 0)])),
        ("9 per 225s sliding-window", &[(3, 2), (4, 1)], 12,
            log(3, vec![cell(3, 3, 2, 0, 0), cell(4, 4, 1, 0, 0)])),
        ("3 concurrent lease 15s", &[(3, 1)], 4, View::Concurrency { held: 1 }),
        ("3 concurrent lease 15s", &[(3, 1)], 18, View::Concurrency { held: 0 }),
    ];
    for (text, requests, second, expected) in rows {
        let limit = limit(text);
        let now = Timestamp::from_micros(second * SECOND);
        assert_eq!(after(&limit, requests).view(&limit, now), expected, "{text} at {second} s");
    }
}

/// The remaining units, computed from a view.
fn remaining(limit: &Limit, view: &View) -> u64 {
    let left = |used: u64| limit.count().saturating_sub(used);
    match view {
        View::SlidingLog { count } | View::FixedWindow { count } => left(*count),
        View::SlidingWindow { used, cells, .. } => {
            assert_eq!(*used, cells.iter().map(|cell| cell.units - cell.expired).sum::<u64>());
            assert!(cells.windows(2).all(|pair| pair[0].last_hit <= pair[1].last_hit));
            left(*used)
        }
        View::SlidingCounter { previous, current, weight, estimate } => {
            assert_eq!(previous * weight.part + current * weight.whole, estimate.part);
            left(estimate.part / estimate.whole)
        }
        View::TokenBucket { tokens } => tokens.part / tokens.whole,
        View::Concurrency { held } => left(*held),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn views_match_decisions(
        limit in any_limit(), begin in start(), trace in anything(20),
    ) {
        let mut state = State::new(&limit);
        let mut now = begin;
        for (number, &(gap, kind, size)) in trace.iter().enumerate() {
            now = gap.after(now, &limit);
            let permit = PermitId(number as u64);
            let at = Timestamp::from_micros(now);
            let viewed = remaining(&limit, &state.view(&limit, at));
            let mut copy = state.clone();
            prop_assert_eq!(viewed, copy.decide(&limit, &Attempt::new(Cost::PEEK, at)).remaining);
            let _ = state.decide(&limit, &Attempt { permit, ..attempt_at(cost(kind, size, &limit), now) });
        }
    }
}
