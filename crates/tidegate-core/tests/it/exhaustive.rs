//! All short histories on a lattice of times, for every algorithm.
//!
//! The windows are a millisecond long. The lattice is coarse except around the
//! boundaries, where its step is a microsecond. Waits are checked to the microsecond.

use tidegate_core::{Algorithm, Cost, Limit, PermitId, Timestamp};

use crate::checked_state::{CheckedState, limit};

const W: u64 = 1_000;

/// Halves of a window, and a microsecond around each boundary.
const LATTICE: [u64; 13] =
    [0, 1, 500, W - 1, W, W + 1, W + 500, 2 * W - 2, 2 * W - 1, 2 * W, 2 * W + 1, 3 * W - 2, 3 * W];

/// In a list of costs: all remaining units of the limit, as an adversary would request.
const ALL: u64 = u64::MAX;

/// The documented bound on the units admitted in any half-open window.
fn bound(limit: &Limit) -> u64 {
    let count = limit.count();
    match limit.algorithm() {
        Algorithm::SlidingLog | Algorithm::SlidingWindow | Algorithm::Concurrency => count,
        Algorithm::FixedWindow => 2 * count,
        Algorithm::TokenBucket => limit.capacity() + count,
        Algorithm::SlidingCounter => count.max(2 * count - 2 * count / limit.window_ticks()),
    }
}

/// The units admitted in the window that ends at the newest admission.
fn newest_window(admitted: &[(u64, u64)]) -> u64 {
    let Some(&(end, _)) = admitted.last() else { return 0 };
    admitted.iter().filter(|(at, _)| end - at < W).map(|(_, units)| units).sum()
}

struct Search<'a> {
    times: &'a [u64],
    costs: &'a [u64],
    nodes: u64,
    fullest: u64,
}

impl Search<'_> {
    /// Extends the history by every request at the times from the index `from` on, to the given
    /// depth.
    fn explore(
        &mut self,
        checked: &CheckedState,
        admitted: &mut Vec<(u64, u64)>,
        from: usize,
        depth: u32,
    ) {
        for index in from..self.times.len() {
            let now = self.times[index];
            for &units in self.costs {
                let mut next = checked.clone();
                let units = if units == ALL { next.peek(now).max(1) } else { units };
                let decision = next.step(Cost::Ask(units), now);
                self.nodes += 1;
                self.check(&mut next, now);
                if decision.allowed {
                    admitted.push((now, units));
                }
                let full = newest_window(admitted);
                assert!(full <= bound(&next.limit), "{full} in a window; {}", next.history());
                self.fullest = self.fullest.max(full);
                if depth > 1 {
                    self.explore(&next, admitted, index, depth - 1);
                }
                if decision.allowed {
                    admitted.pop();
                }
            }
        }
    }

    /// Checks the costs around every edge, or all of them if there are few.
    fn check(&self, checked: &mut CheckedState, now: u64) {
        let capacity = checked.limit.capacity();
        if capacity <= 6 {
            checked.check_costs(0..=capacity + 1, now);
        } else {
            let left = checked.peek(now);
            let edges = [0, 1, left, left + 1, capacity - 1, capacity, capacity + 1];
            checked.check_costs(edges.into_iter(), now);
        }
        if self.nodes.is_multiple_of(997) && capacity > 0 {
            checked.check_wait_by_stepping(capacity, now);
            checked.check_wait_by_stepping(1, now);
        }
    }

    /// Extends the history by every operation at every time, including earlier ones.
    fn explore_any_order(&mut self, checked: &CheckedState, operations: &[Cost], depth: u32) {
        for &now in self.times {
            for &operation in operations {
                let mut next = checked.clone();
                let _ = next.step(operation, now);
                self.nodes += 1;
                self.check(&mut next, now);
                if depth > 1 {
                    self.explore_any_order(&next, operations, depth - 1);
                }
            }
        }
    }
}

fn every_history(text: &str, costs: &[u64], depth: u32) -> u64 {
    every_history_at(&LATTICE, text, costs, depth)
}

fn every_history_at(times: &[u64], text: &str, costs: &[u64], depth: u32) -> u64 {
    let mut search = Search { times, costs, nodes: 0, fullest: 0 };
    search.explore(&CheckedState::new(limit(text)), &mut Vec::new(), 0, depth);
    println!("{text}: {} histories, fullest window {}", search.nodes, search.fullest);
    search.fullest
}

#[test]
fn sliding_log_holds_its_limit_exactly() {
    assert_eq!(every_history("3 per 1ms sliding-log", &[1, 2], 5), 3);
    assert_eq!(every_history("1 per 1ms sliding-log", &[1], 7), 1);
}

#[test]
fn sliding_window_never_exceeds_its_limit() {
    // Limits up to 20 are a log, whose grid is exact for a window of a millisecond.
    assert_eq!(every_history("3 per 1ms sliding-window", &[1, 2], 5), 3);
    // The borders of the forms, with times around the edges of their cells: 67, 143 and 334 us.
    let rows = [
        (21, 67, 4),
        (2_000, 67, 3),
        (2_001, 143, 3),
        (2_000_001, 334, 4),
        (1_000_000_000_000, 334, 3),
    ];
    for (count, cell, depth) in rows {
        let times = [
            0,
            cell - 1,
            cell,
            2 * cell - 1,
            W - 1,
            W,
            W + cell / 2,
            W + cell,
            W + cell + 1,
            2 * W - 1,
            2 * W + cell,
        ];
        let text = format!("{count} per 1ms sliding-window");
        assert_eq!(every_history_at(&times, &text, &[1, count / 3, ALL], depth), count);
    }
}

#[test]
fn sliding_counter_reaches_its_bound_and_no_more() {
    // 2L - floor(2L/W): the floor is 0, 1, 2 and 6 here, and always reached.
    for (count, depth, fullest) in
        [(3, 5, 6), (700, 4, 1_399), (1_000, 4, 1_998), (3_000, 4, 5_994)]
    {
        let text = format!("{count} per 1ms sliding-counter");
        assert_eq!(every_history(&text, &[1, ALL], depth), fullest);
    }
}

#[test]
fn fixed_window_reaches_twice_its_limit_and_no_more() {
    assert_eq!(every_history("3 per 1ms fixed-window", &[1, 2, 3], 4), 6);
}

#[test]
fn token_bucket_stays_within_burst_and_rate() {
    // The lattice has few times at which refilled units can be charged, and the last unit is
    // refilled only when the first is W old. `properties.rs` gets closer to the bound.
    assert_eq!(every_history("3 per 1ms token-bucket", &[1, 2, 3], 4), 5);
    assert_eq!(every_history("2 per 1ms token-bucket burst 5", &[1, 3, ALL], 4), 6);
    assert_eq!(every_history("5 per 1ms token-bucket burst 1", &[1], 6), 3);
}

#[test]
fn concurrency_never_holds_more_than_its_limit() {
    assert_eq!(every_history("3 concurrent lease 1ms", &[1, 2, 3], 4), 3);
}

#[test]
fn a_limit_of_zero_admits_nothing() {
    for algorithm in Algorithm::ALL {
        let text = match algorithm {
            Algorithm::Concurrency => "0 concurrent lease 1ms".into(),
            _ => format!("0 per 1ms {algorithm}"),
        };
        assert_eq!(every_history(&text, &[0, 1, 2], 3), 0);
    }
    assert_eq!(every_history("0 per 1ms token-bucket burst 3", &[0, 1, 3], 3), 0);
}

/// The steps are forced charges, refunds and peeks, and the clock may step back at any point.
#[test]
fn any_operation_at_any_time_agrees_with_the_oracle() {
    let operations = [
        Cost::Ask(1),
        Cost::Ask(2),
        Cost::PEEK,
        Cost::Force(2),
        Cost::Force(9),
        Cost::Refund(1),
        Cost::Refund(4),
    ];
    let times = [0, 300, W - 1, W, W + 600, 2 * W - 1, 3 * W + 1];
    let texts = [
        "3 per 1ms sliding-log",
        "3 per 1ms sliding-window",
        "21 per 1ms sliding-window",
        "2001 per 1ms sliding-window",
        "3 per 1ms sliding-counter",
        "2500 per 1ms sliding-counter",
        "3 per 1ms fixed-window",
        "3 per 1ms token-bucket",
        "2 per 1ms token-bucket burst 4",
        "3 concurrent lease 1ms",
    ];
    for text in texts {
        let mut search = Search { times: &times, costs: &[], nodes: 0, fullest: 0 };
        search.explore_any_order(&CheckedState::new(limit(text)), &operations, 3);
        println!("{text}: {} histories in any order", search.nodes);
    }
}

/// Permits are acquired, released and renewed in every order, and the clock may step back.
#[test]
fn permits_agree_with_the_oracle() {
    fn explore(checked: &CheckedState, depth: u32, nodes: &mut u64) {
        for now in [0, 400, W - 1, W, W + 400] {
            for operation in 0..4 {
                let mut next = checked.clone();
                let oldest = PermitId(u64::from(operation == 3));
                let at = Timestamp::from_micros(now);
                match operation {
                    0 => drop(next.step(Cost::Ask(1), now)),
                    1 => {
                        let renewed = next.state.renew(&next.limit, oldest, at);
                        assert_eq!(renewed, next.oracle.renew(oldest, now), "{}", next.history());
                        next.trail.push((Cost::Ask(0), now));
                    }
                    _ => {
                        // A store advances the state first, which drops permits whose lease ended.
                        let _ = next.step(Cost::PEEK, now);
                        let released = next.state.release(oldest);
                        assert_eq!(released, next.oracle.release(oldest), "{}", next.history());
                    }
                }
                *nodes += 1;
                next.check_costs(0..=3, now);
                if depth > 1 {
                    explore(&next, depth - 1, nodes);
                }
            }
        }
    }
    let mut nodes = 0;
    explore(&CheckedState::new(limit("2 concurrent lease 1ms")), 4, &mut nodes);
    assert_eq!(nodes, 20 + 400 + 8_000 + 160_000);
}

/// A client that requests all remaining units every microsecond gets as close to each bound as
/// possible.
#[test]
fn spending_everything_each_microsecond_reaches_the_bounds() {
    let rows = [
        ("9 per 1ms sliding-log", 9),
        ("9 per 1ms sliding-window", 9),
        ("30 per 1ms sliding-window", 30),
        ("3000 per 1ms sliding-window", 3_000),
        ("9 per 1ms sliding-counter", 9),
        ("9 per 1ms fixed-window", 9),
        ("9 per 1ms token-bucket", 17),
        ("700 per 1ms token-bucket burst 9", 708),
        ("9 per 1ms token-bucket burst 700", 708),
        ("9 concurrent lease 1ms", 9),
    ];
    for (text, fullest) in rows {
        let mut checked = CheckedState::new(limit(text));
        let mut admitted = Vec::new();
        let mut full = 0;
        for now in 3 * W..6 * W {
            let units = checked.peek(now).max(1);
            if checked.step(Cost::Ask(units), now).allowed {
                admitted.push((now, units));
                full = full.max(newest_window(&admitted));
            }
        }
        assert!(full <= bound(&checked.limit), "{text}: {full}");
        assert_eq!(full, fullest, "{text}");
    }
}
