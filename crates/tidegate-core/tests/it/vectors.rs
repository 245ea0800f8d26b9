//! Worked examples and regressions, as rows of `(time, cost, allowed, remaining, wait)`. The oracle
//! checks them as well.

use tidegate_core::{Attempt, Cost, PermitId, ResetAfter, RetryAfter, State, Timestamp};

use crate::checked_state::{CheckedState, attempt_at, limit};

/// The time in microseconds, the cost, whether it is allowed, the remaining units after it, and the
/// wait in microseconds.
type Row = (u64, Cost, bool, u64, u64);

const S: u64 = 1_000_000;

fn run(text: &str, rows: &[Row]) {
    let mut checked = CheckedState::new(limit(text));
    for (index, &(at, cost, allowed, remaining, wait)) in rows.iter().enumerate() {
        let decision = checked.step(cost, at);
        let wait = RetryAfter::from_micros(wait);
        let actual = (decision.allowed, decision.remaining, decision.retry_after);
        assert_eq!(actual, (allowed, remaining, wait), "{text}, row {index}");
    }
}

/// With 8 units in the previous window and 3 in the current one, the estimate is exactly 5 after
/// 45 s of 60, and the limit is 5.
#[test]
fn counter_denies_at_exactly_its_limit() {
    let (previous, current) = (Cost::Force(8), Cost::Force(3));
    // 8 * 15/60 = 2, until the weight is below a quarter one microsecond later.
    run(
        "5 per 1m sliding-counter",
        &[
            (60 * S, previous, true, 0, 0),
            (120 * S, current, true, 0, 0),
            (165 * S, Cost::Ask(1), false, 0, 1),
        ],
    );
    run(
        "5 per 1m sliding-counter",
        &[
            (60 * S, previous, true, 0, 0),
            (120 * S, Cost::Force(2), true, 0, 0),
            (165 * S, Cost::Ask(1), true, 0, 0),
        ],
    );
}

/// The estimate is 42 * 45/60 + 18 = 49.5, and the limit is 50.
#[test]
fn counter_admits_half_a_unit_below_its_limit() {
    run(
        "50 per 1m sliding-counter",
        &[
            (60 * S, Cost::Ask(42), true, 8, 0),
            (120 * S, Cost::Force(18), true, 0, 0),
            (135 * S, Cost::Ask(1), true, 0, 0),
            // 42 * x/60 + 19 + 1 is below 51 for x < 44.29 s.
            (135 * S, Cost::Ask(1), false, 0, 714_286),
        ],
    );
}

/// A burst of 8 against a limit of 5 per 15 s, and another one after the window boundary.
#[test]
fn counter_blocks_the_boundary_attack() {
    let mut rows: Vec<Row> = (0..5).map(|n| (29 * S, Cost::Ask(1), true, 4 - n, 0)).collect();
    rows.extend([(29 * S, Cost::Ask(1), false, 0, S + 1); 3]);
    rows.extend([(30 * S, Cost::Ask(1), false, 0, 1); 5]);
    run("5 per 15s sliding-counter", &rows);
}

/// Of the requests at 3650, 3680, 3695 and 3710 s, the first is too old at 3720 s.
#[test]
fn log_counts_only_entries_within_the_window() {
    run(
        "5 per 1m sliding-log",
        &[
            (3_650 * S, Cost::Ask(1), true, 4, 0),
            (3_680 * S, Cost::Ask(1), true, 3, 0),
            (3_695 * S, Cost::Ask(1), true, 2, 0),
            (3_710 * S, Cost::Ask(1), true, 2, 0),
            (3_720 * S, Cost::Ask(1), true, 1, 0),
            (3_720 * S, Cost::Ask(3), false, 1, 35 * S),
            (3_740 * S, Cost::PEEK, true, 2, 0),
        ],
    );
}

/// 5 requests at 00:58 and 5 at 01:02; 100 at 12:00:59 and 100 at 12:01:01.
#[test]
fn fixed_window_admits_twice_where_the_log_does_not() {
    for (count, first, second) in [(5, 58 * S, 62 * S), (100, 43_259 * S, 43_261 * S)] {
        let all = Cost::Ask(count);
        let fixed = [(first, all, true, 0, 0), (second, all, true, 0, 0)];
        run(&format!("{count} per 1m fixed-window"), &fixed);
        let wait = first + 60 * S - second;
        let log = [(first, all, true, 0, 0), (second, all, false, 0, wait)];
        run(&format!("{count} per 1m sliding-log"), &log);
    }
}

/// A refund takes the permit that was charged last, even if another one was charged at the same
/// time and has a longer lease.
#[test]
fn a_refund_takes_the_permit_just_charged() {
    let (long, short) = (limit("5 concurrent lease 1m"), limit("5 concurrent lease 1s"));
    let mut state = State::new(&long);
    let charge = |id| Attempt { permit: PermitId(id), ..attempt_at(Cost::Ask(1), S) };
    let _ = state.decide(&long, &charge(1));
    let before = state.decide(&long, &attempt_at(Cost::PEEK, S));
    let _ = state.decide(&short, &charge(2));
    let _ = state.decide(&short, &attempt_at(Cost::Refund(1), S));
    assert_eq!(state.decide(&long, &attempt_at(Cost::PEEK, S)), before);
    assert!(!state.release(PermitId(2)));
    assert!(state.renew(&long, PermitId(1), Timestamp::from_micros(S)));
}

/// If waits were rounded down, a caller that waits that long would be early.
#[test]
fn waits_are_rounded_up() {
    let rows =
        [(0, 0, 0), (1, 1, 1), (1_000, 1, 1), (1_001, 2, 1), (S, 1_000, 1), (S + 1, 1_001, 2)];
    for (micros, millis, secs) in rows {
        let wait = RetryAfter::from_micros(micros);
        assert_eq!(wait.as_micros(), Some(micros));
        assert_eq!((wait.as_millis(), wait.as_secs()), (Some(millis), Some(secs)), "{micros}");
        assert_eq!(wait == RetryAfter::Now, micros == 0);
        let reset = ResetAfter::from_micros(micros);
        assert_eq!((reset.as_micros(), reset.as_millis(), reset.as_secs()), (micros, millis, secs));
    }
    assert_eq!(RetryAfter::Never.as_secs(), None);
    assert_eq!(RetryAfter::Micros(u64::MAX).as_secs(), Some(u64::MAX / S + 1));
}

#[test]
fn signed_cost_is_a_refund_a_peek_or_a_charge() {
    let rows = [
        (i64::MIN, Cost::Refund(1 << 63)),
        (-2, Cost::Refund(2)),
        (0, Cost::PEEK),
        (3, Cost::Ask(3)),
        (i64::MAX, Cost::Ask(i64::MAX.unsigned_abs())),
    ];
    for (signed, cost) in rows {
        assert_eq!(Cost::from_signed(signed), cost);
    }
}

/// A larger count may need coarser ticks. A small debt must not become zero in them.
#[test]
fn a_converted_debt_is_rounded_up() {
    let slow = limit("1 per 1h token-bucket");
    let fast = slow.with_count(1_000_000_000_000).expect("within bounds");
    assert_eq!((slow.tick_us(), fast.tick_us()), (1, S));
    let mut state = State::new(&slow);
    let _ = state.decide(&slow, &attempt_at(Cost::Ask(1), 0));
    let almost = 3_600 * S - 1;
    assert_eq!(state.decide(&slow, &attempt_at(Cost::PEEK, almost)).reset_after.as_micros(), 1);
    let decision = state.decide(&fast, &attempt_at(Cost::PEEK, almost));
    assert_eq!(decision.remaining, fast.count() - 1);
}

/// After the clock stepped back, a short lease that began in the future ends before an older long
/// one.
#[test]
fn leases_end_in_order_after_the_clock_stepped_back() {
    let (long, short) = (limit("5 concurrent lease 1m"), limit("5 concurrent lease 1s"));
    let mut state = State::new(&long);
    let charge = |id, at| Attempt { permit: PermitId(id), ..attempt_at(Cost::Ask(1), at) };
    let _ = state.decide(&long, &charge(1, 10 * S));
    let _ = state.decide(&short, &charge(2, 69 * S + S / 2));
    let stepped_back = state.decide(&long, &attempt_at(Cost::PEEK, 20 * S));
    assert_eq!((stepped_back.remaining, stepped_back.reset_after.as_micros()), (3, 50 * S));
    assert_eq!(state.decide(&long, &attempt_at(Cost::PEEK, 21 * S)).remaining, 4);
    assert!(state.release(PermitId(1)), "the long lease has not ended");
}

#[test]
fn changing_the_count_keeps_the_other_parameters() {
    let rows = [
        ("10 per 1s token-bucket burst 3", "20 per 1s token-bucket burst 3"),
        ("10 per 1s token-bucket", "20 per 1s token-bucket"),
        ("10 per 1s sliding-window", "20 per 1s sliding-window"),
        ("10 concurrent lease 9s", "20 concurrent lease 9s"),
    ];
    for (before, after) in rows {
        assert_eq!(limit(before).with_count(20), Ok(limit(after)), "{before}");
        assert_eq!(limit(before).id(), limit(after).id(), "{before}");
    }
    let ids = ["1 per 1s", "1 per 2s", "1 per 1s sliding-log", "1 per 1s fixed-window"];
    let ids: std::collections::HashSet<u64> = ids.iter().map(|text| limit(text).id()).collect();
    assert_eq!(ids.len(), 4, "limits with another window or algorithm have another id");
}
