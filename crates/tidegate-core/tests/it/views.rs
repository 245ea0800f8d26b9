//! A view shows what decisions are made from, and looking changes nothing.

use proptest::prelude::*;
use tidegate_core::{Ask, Bucket, Cost, Limit, PermitId, Ratio, State, Timestamp, View};

use crate::pair::{ask, limit};
use crate::worlds::{any_limit, anything, cost, start};

const SECOND: u64 = 1_000_000;

/// The state after so many requests of cost 1 at these seconds.
fn after(limit: &Limit, requests: &[(u64, usize)]) -> State {
    let mut state = State::new(limit);
    for &(second, times) in requests {
        for _ in 0..times {
            state.decide(limit, &ask(Cost::Ask(1), second * SECOND));
        }
    }
    state
}

fn bucket(start: u64, last_hit: u64, count: u64) -> Bucket {
    let at = |second| Timestamp::from_micros(second * SECOND);
    Bucket { start: at(start), last_hit: at(last_hit), count }
}

#[test]
fn states_show_themselves_in_their_own_terms() {
    let of = |seconds| Ratio { part: seconds * SECOND, whole: 15 * SECOND };
    let counter = |previous, current, left| View::SlidingCounter {
        previous,
        current,
        weight: of(left),
        estimate: of(previous * left + current * 15),
    };
    let held = |count, buckets| View::SlidingBuckets { count, buckets };
    #[rustfmt::skip]
    let rows: Vec<(&str, &[(u64, usize)], u64, View)> = vec![
        // A burst of 8 against 5, then the next window, then the one after that.
        ("5 per 15s", &[(3, 8)], 3, counter(0, 5, 12)),
        ("5 per 15s", &[(3, 8)], 15, counter(5, 0, 15)),
        ("5 per 15s", &[(3, 8), (25, 2)], 27, counter(5, 2, 3)),
        ("5 per 15s", &[(3, 8)], 30, counter(0, 0, 15)),
        ("5 per 15s sliding-log", &[(3, 8)], 17, View::SlidingLog { count: 5 }),
        ("5 per 15s sliding-log", &[(3, 8)], 18, View::SlidingLog { count: 0 }),
        ("5 per 15s fixed-window", &[(3, 8)], 14, View::FixedWindow { count: 5 }),
        ("5 per 15s fixed-window", &[(3, 8)], 15, View::FixedWindow { count: 0 }),
        ("5 per 15s token-bucket", &[(3, 8)], 7, View::TokenBucket { tokens: of(20) }),
        ("5 per 15s token-bucket burst 2", &[(3, 8)], 3, View::TokenBucket { tokens: of(0) }),
        // Hits of one sub-window are one bucket, also while they lie in two places.
        ("9 per 15s sliding-buckets buckets 3", &[(3, 2), (4, 1), (11, 3)], 12,
            held(6, vec![bucket(0, 4, 3), bucket(10, 11, 3)])),
        ("9 per 15s sliding-buckets buckets 3", &[(3, 2), (4, 1), (11, 3)], 19,
            held(3, vec![bucket(10, 11, 3)])),
        ("9 per 15s sliding-buckets buckets 3", &[], 19, held(0, vec![])),
        ("3 concurrent lease 15s", &[(3, 1)], 4, View::Concurrency { held: 1 }),
        ("3 concurrent lease 15s", &[(3, 1)], 18, View::Concurrency { held: 0 }),
    ];
    for (text, requests, second, expected) in rows {
        let limit = limit(text);
        let now = Timestamp::from_micros(second * SECOND);
        assert_eq!(after(&limit, requests).view(&limit, now), expected, "{text} at {second} s");
    }
}

/// What passes, worked out from what is shown.
fn remaining(limit: &Limit, view: &View) -> u64 {
    let left = |used: u64| limit.count().saturating_sub(used);
    match view {
        View::SlidingLog { count } | View::FixedWindow { count } => left(*count),
        View::SlidingBuckets { count, buckets } => {
            assert_eq!(*count, buckets.iter().map(|bucket| bucket.count).sum::<u64>());
            assert!(buckets.windows(2).all(|pair| pair[0].last_hit < pair[1].start));
            left(*count)
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
    fn what_is_shown_is_what_is_decided_on(
        limit in any_limit(), begin in start(), trace in anything(20),
    ) {
        let mut state = State::new(&limit);
        let mut now = begin;
        for (number, &(gap, kind, size)) in trace.iter().enumerate() {
            now = gap.after(now, &limit);
            let permit = PermitId(number as u64);
            let at = Timestamp::from_micros(now);
            let shown = remaining(&limit, &state.view(&limit, at));
            let mut copy = state.clone();
            prop_assert_eq!(shown, copy.decide(&limit, &Ask::new(Cost::PEEK, at)).remaining);
            state.decide(&limit, &Ask { permit, ..ask(cost(kind, size, &limit), now) });
        }
    }
}
