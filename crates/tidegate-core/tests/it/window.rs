//! `sliding-window` compared with an exact log without a limit: it never counts less, and releases
//! units at most slightly later. Limits change, units are forced and refunded, and the clock steps.

use proptest::prelude::*;
use tidegate_core::{
    Algorithm, Attempt, Cell, Cost, Decision, Limit, Packed, PackedSize, RetryAfter, SlidingWindow,
    State, Timestamp, WindowForm,
};

use crate::checked_state::{CheckedState, attempt_at, limit};
use crate::generators::{any_direction, any_kind, cost, forward, limit_of, size, window_us};
use crate::properties::late_us;

const MS: u64 = 1_000;
const YEAR: u64 = 366 * 86_400_000_000;
/// The largest count of each form and the one after it.
const BORDERS: [u64; 7] = [20, 21, 2_000, 2_001, 2_000_000, 2_000_001, 1_000_000_000_000];

/// Every unit charged and not refunded, in order of time.
#[derive(Default)]
struct Log(Vec<(u64, u64)>);

impl Log {
    fn apply(&mut self, cost: Cost, allowed: bool, now: u64) {
        // Charges from the future are moved to now.
        self.0.iter_mut().for_each(|(at, _)| *at = now.min(*at));
        match cost {
            Cost::Ask(units) if allowed => self.0.push((now, units)),
            Cost::Force(units) => self.0.push((now, units)),
            Cost::Refund(mut units) => {
                while units > 0
                    && let Some(newest) = self.0.last_mut()
                {
                    let taken = units.min(newest.1);
                    (newest.1, units) = (newest.1 - taken, units - taken);
                    if newest.1 == 0 {
                        self.0.pop();
                    }
                }
            }
            Cost::Ask(_) => {}
        }
    }

    /// Drops units that are a window old. They stay dropped if the clock then steps back.
    fn forget(&mut self, window_us: u64, now: u64) {
        self.0.retain(|(at, _)| now.saturating_sub(*at) < window_us);
    }

    /// Units in the half-open window that ends now.
    fn within(&self, window_us: u64, now: u64) -> u64 {
        self.0.iter().filter(|(at, _)| now - at < window_us).map(|(_, units)| units).sum()
    }
}

fn used(state: &State, limit: &Limit, now: u64) -> u64 {
    let mut state = state.clone();
    state.advance_and_check(limit, &attempt_at(Cost::PEEK, now));
    let State::SlidingWindow(window) = state else { panic!("a sliding window") };
    window.used(limit, Timestamp::from_micros(now))
}

fn any_count() -> impl Strategy<Value = u64> {
    prop_oneof![prop::sample::select(&BORDERS[..]), 0_u64..40, 0_u64..5_000, 0_u64..3_000_000]
}

/// Forced charges stay below what saturates the widest form.
fn small(cost: Cost) -> Cost {
    const MOST: u64 = 1 << 30;
    match cost {
        Cost::Force(units) => Cost::Force(units.min(MOST)),
        other => other,
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_000, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// With one limit and time that moves forward, it never counts less than the log, and is at
    /// most a cell and a step late.
    #[test]
    fn counts_no_less_than_the_log_and_releases_within_a_cell(
        count in any_count(), window_us in window_us(),
        trace in prop::collection::vec((forward(), any_kind(), size()), 1..60),
    ) {
        let limit = limit_of(Algorithm::SlidingWindow, count, window_us);
        let (mut state, mut log, mut now) = (State::new(&limit), Log::default(), YEAR);
        for (gap, kind, size) in trace {
            now = gap.after(now, &limit);
            let cost = match small(cost(kind, size, &limit)) {
                // Within the form of the limit.
                Cost::Force(units) if units > count => Cost::Force(count.min(20)),
                other => other,
            };
            let allowed = state.decide(&limit, &attempt_at(cost, now)).allowed;
            log.apply(cost, allowed, now);
            let held = used(&state, &limit, now);
            prop_assert!(held >= log.within(window_us, now), "{held} held at {now}");
            let State::SlidingWindow(window) = &state else { unreachable!() };
            if window.form() == WindowForm::of(count) {
                let late = window_us + late_us(window.form(), window_us);
                prop_assert!(held <= log.within(late, now), "{held} held at {now}");
            }
        }
    }

    /// With alternating limits, forced charges, refunds and a clock that steps, it never counts
    /// less than the log, and is empty within a window and a cell.
    #[test]
    fn holds_across_limits_and_clock_steps(
        counts in prop::collection::vec(any_count(), 1..4), window_us in window_us(),
        trace in prop::collection::vec((any_direction(), any_kind(), size(), 0_usize..4), 1..60),
    ) {
        let limits: Vec<Limit> = counts
            .into_iter()
            .map(|count| limit_of(Algorithm::SlidingWindow, count, window_us))
            .collect();
        let (mut state, mut log, mut now) = (State::new(&limits[0]), Log::default(), 2 * YEAR);
        for (gap, kind, size, which) in trace {
            let limit = &limits[which % limits.len()];
            now = gap.after(now, limit);
            let cost = small(cost(kind, size, limit));
            let allowed = state.decide(limit, &attempt_at(cost, now)).allowed;
            log.forget(window_us, now);
            log.apply(cost, allowed, now);
            for limit in &limits {
                let held = used(&state, limit, now);
                prop_assert!(held >= log.within(window_us, now), "{held} held at {now}");
            }
        }
        let free = now + window_us + late_us(WindowForm::Cells3, window_us);
        prop_assert_eq!(used(&state, &limits[0], free), 0);
    }

    /// A state that is restored from its times or cells is equal.
    #[test]
    fn is_restored_from_its_parts(
        count in any_count(), window_us in window_us(),
        trace in prop::collection::vec((any_direction(), any_kind(), size()), 1..40),
    ) {
        let limit = limit_of(Algorithm::SlidingWindow, count, window_us);
        let (mut state, mut now) = (State::new(&limit), YEAR);
        for (gap, kind, size) in trace {
            now = gap.after(now, &limit);
            let _ = state.decide(&limit, &attempt_at(cost(kind, size, &limit), now));
            let State::SlidingWindow(window) = &state else { unreachable!() };
            let times: Vec<u64> = window.times().collect();
            let cells: Vec<(u64, Cell)> = window.cells().collect();
            let restored = match window.form() {
                _ if window.is_empty() => Some(SlidingWindow::default()),
                WindowForm::Times => SlidingWindow::from_times(&times),
                form => SlidingWindow::from_cells(form, window.pace(), &cells),
            };
            let restored = restored.expect("its own parts");
            prop_assert_eq!((restored.form(), restored.pace()), (window.form(), window.pace()));
            prop_assert!(restored.times().eq(window.times()));
            prop_assert!(restored.cells().eq(window.cells()));
            let at = Timestamp::from_micros(now);
            prop_assert_eq!(restored.used(&limit, at), window.used(&limit, at));
        }
    }
}

#[test]
fn rejects_parts_that_do_not_fit() {
    let cell = Cell { units: 1, lag: 0, steps: 3 };
    let built = |form, cells: &[(u64, Cell)]| SlidingWindow::from_cells(form, 100, cells).is_some();
    assert!(built(WindowForm::Cells15, &[(5, cell), (20, cell)]));
    let refused: [&[(u64, Cell)]; 7] = [
        &[],
        &[(4, cell), (20, cell)],
        &[(20, cell), (19, cell)],
        &[(20, cell), (20, cell)],
        &[(20, Cell { units: 0, ..cell })],
        &[(20, Cell { units: 2_048, ..cell })],
        &[(20, Cell { steps: 16, ..cell })],
    ];
    for cells in refused {
        assert!(!built(WindowForm::Cells15, cells), "{cells:?}");
    }
    assert!(!built(WindowForm::Cells15, &[(20, Cell { lag: 256, ..cell })]));
    assert!(!built(WindowForm::Times, &[(20, cell)]));
    assert!(SlidingWindow::from_times(&[7; 20]).is_some());
    for times in [&[7; 21][..], &[8, 7], &[0, 65_536], &[]] {
        assert!(SlidingWindow::from_times(times).is_none(), "{times:?}");
    }
}

/// Units are charged repeatedly under the two limits at the border of each form. Everything is
/// released one window and one cell after the last charge, and nothing before it is a window old.
#[test]
fn alternating_limits_do_not_delay_releases() {
    for window_us in [MS, 1_001, 60_000 * MS, YEAR] {
        for pair in BORDERS.windows(2) {
            let limits =
                [pair[0], pair[1]].map(|n| limit_of(Algorithm::SlidingWindow, n, window_us));
            let mut state = State::new(&limits[0]);
            let start = 10 * YEAR;
            let mut last = start;
            for (round, limit) in (0..200).zip(limits.iter().cycle()) {
                let now = start + round * (window_us / 100).max(1);
                if state.decide(limit, &attempt_at(Cost::Ask(1), now)).allowed {
                    last = now;
                }
            }
            for limit in &limits {
                assert_ne!(used(&state, limit, last + window_us - 1), 0, "{limit}");
                let late = late_us(WindowForm::of(pair[1]), window_us);
                assert_eq!(used(&state, limit, last + window_us + late), 0, "{limit}");
            }
        }
    }
}

/// Forced charges above the cap of a form widen it. After the refund the state is empty, and the
/// next charge uses the form of its limit.
#[test]
fn forced_charges_beyond_every_cap_can_be_refunded() {
    let rows = [
        (5, 30, WindowForm::Cells15),
        (5, 3_000, WindowForm::Cells7),
        (5, 3_000_000, WindowForm::Cells3),
        (100, 2_048, WindowForm::Cells7),
        (5_000, 2_097_152, WindowForm::Cells3),
        (3_000_000, 1 << 39, WindowForm::Cells3),
    ];
    for (count, forced, form) in rows {
        let limit = limit(&format!("{count} per 1m sliding-window"));
        let mut state = State::new(&limit);
        let at = |seconds: u64| 1_700_000_000_000_000 + seconds * 1_000_000;
        let _ = state.decide(&limit, &attempt_at(Cost::Ask(2), at(0)));
        let charged = state.decide(&limit, &attempt_at(Cost::Force(forced), at(30)));
        assert_eq!(charged.remaining, 0, "{limit}");
        let State::SlidingWindow(window) = &state else { unreachable!() };
        assert_eq!(window.form(), form, "{limit}");
        assert_eq!(used(&state, &limit, at(30)), forced + 2);
        let refunded = state.decide(&limit, &attempt_at(Cost::Refund(forced), at(31)));
        assert_eq!(refunded.remaining, count - 2, "{limit}");
        let emptied = state.decide(&limit, &attempt_at(Cost::Refund(u64::MAX), at(31)));
        assert_eq!((emptied.remaining, emptied.reset_after.as_micros()), (count, 0));
        let _ = state.decide(&limit, &attempt_at(Cost::Ask(1), at(31)));
        let State::SlidingWindow(window) = &state else { unreachable!() };
        assert_eq!(window.form(), WindowForm::of(count), "{limit}");
    }
}

/// Units above the cap of the widest form are cut off, and nothing overflows.
#[test]
fn the_widest_form_saturates() {
    let limit = limit("1000000000000 per 1m sliding-window");
    let mut state = State::new(&limit);
    let now = 1_700_000_000_000_000;
    for _ in 0..3 {
        let _ = state.decide(&limit, &attempt_at(Cost::Force(u64::MAX), now));
    }
    assert_eq!(used(&state, &limit, now), (1 << 40) - 1);
    let denied = state.decide(&limit, &attempt_at(Cost::Ask(1), now));
    assert!(matches!(denied.retry_after, RetryAfter::Micros(us) if us <= 64_000_000));
}

/// The clock steps an hour back and a year forward, for each form.
#[test]
fn clock_steps_neither_free_nor_freeze_units() {
    for count in BORDERS {
        let limit = limit_of(Algorithm::SlidingWindow, count, 60_000 * MS);
        let mut checked = CheckedState::new(limit);
        let start = 1_700_000_000_000_000;
        let _ = checked.step(Cost::Ask(count), start);
        let back = start - 3_600_000 * MS;
        assert!(!checked.step(Cost::Ask(1), back).allowed, "{limit}");
        checked.check_costs([1, count / 2, count].into_iter(), back);
        let late = 60_000 * MS + late_us(WindowForm::of(count), 60_000 * MS);
        assert!(checked.step(Cost::Ask(count), back + late).allowed, "{limit}");
        assert!(!checked.step(Cost::Ask(1), back + late).allowed, "{limit}");
        assert!(checked.step(Cost::Ask(count), back + late + YEAR).allowed, "{limit}");
    }
}

/// The attack on the two-counter estimate: a client sends everything at the end of one window, and
/// everything again in the next.
#[test]
fn denies_the_boundary_attack() {
    for count in [1, 100, 10_000] {
        let limit = limit_of(Algorithm::SlidingWindow, count, 60_000 * MS);
        let mut state = State::new(&limit);
        let boundary = 1_700_000_040_000_000;
        let spend = |state: &mut State, at: u64| {
            let left = state.decide(&limit, &attempt_at(Cost::PEEK, at)).remaining;
            let _ = state.decide(&limit, &attempt_at(Cost::Ask(left), at));
            left
        };
        let first = spend(&mut state, boundary - 1);
        let second: u64 = (0..59_999).map(|ms| spend(&mut state, boundary + ms * MS)).sum();
        assert_eq!((first, second), (count, 0), "{limit}");
    }
}

/// A client at a steady rate below its limit is almost never denied.
#[test]
fn admits_a_steady_client_below_its_limit() {
    for (count, window_us) in [(10, 60_000 * MS), (100, 1_001_000), (5_000, 60_000 * MS)] {
        let limit = limit_of(Algorithm::SlidingWindow, count, window_us);
        let mut state = State::new(&limit);
        let gap = window_us * 100 / (count * 90);
        let requests = 5 * count;
        let admitted = (0..requests)
            .filter(|n| state.decide(&limit, &attempt_at(Cost::Ask(1), YEAR + n * gap)).allowed)
            .count() as u64;
        assert!(admitted * 1_000 >= requests * 995, "{limit}: {admitted} of {requests}");
    }
}

#[test]
fn refunds_reach_across_cells() {
    let limit = limit("100 per 15s sliding-window");
    let mut checked = CheckedState::new(limit);
    for second in 0..10 {
        let _ = checked.step(Cost::Ask(5), YEAR + second * 1_000_000);
    }
    let now = YEAR + 9_500_000;
    assert_eq!(checked.step(Cost::Refund(12), now).remaining, 62);
    let State::SlidingWindow(window) = &checked.state else { unreachable!() };
    assert_eq!(window.cells().map(|(_, cell)| cell.units).collect::<Vec<_>>()[6..], [5, 3]);
    checked.check_costs(0..=101, now);
}

/// A regression: the current cell was read before it existed, and its bits were those of a dropped
/// cell, so the state was widened although that was not necessary.
#[test]
fn a_dropped_cell_does_not_widen_the_form() {
    let limit = limit("2000 per 15s sliding-window");
    let mut state = State::new(&limit);
    let begin = 15_000_000 * 1_000;
    let rows =
        [(0, Cost::Force(1_500)), (14_500 * MS, Cost::Ask(100)), (15_200 * MS, Cost::Force(2_000))];
    for (after, cost) in rows {
        assert!(state.decide(&limit, &attempt_at(cost, begin + after)).allowed);
    }
    assert!(matches!(&state, State::SlidingWindow(window) if window.form() == WindowForm::Cells15));
}

/// Decides on a packed state in place, and on an unpacked copy.
fn decide_both(packed: &mut Packed, limit: &Limit, attempt: Attempt) -> [Option<Decision>; 2] {
    let mut unpacked = State::unpack(limit, PackedSize::Large, packed);
    let expected = unpacked.decide(limit, &attempt);
    [packed.decide(limit, attempt, true), Some(expected)]
}

/// The low bits of the deadline are equal again after 2^43 us. A clock that stepped back by about
/// as much made a state from the future look like one that is about to expire.
#[test]
fn state_from_the_future_is_recognised_after_a_long_step_back() {
    for text in ["3000 per 1m", "3000000 per 1m", "50 per 1m"] {
        let limit: Limit = text.parse().expect("a limit");
        let mut state = State::new(&limit);
        let charged_at = Timestamp::from_micros(1_768_014_631_463_808);
        assert!(state.decide(&limit, &Attempt::new(limit.count(), charged_at)).allowed);
        let mut packed = state.pack(&limit, PackedSize::Large).expect("a packed state");
        let now = Timestamp::from_micros(1_759_218_538_491_600);
        let [in_place, expected] = decide_both(&mut packed, &limit, Attempt::new(1, now));
        assert!(in_place.is_none() || in_place == expected, "{text}: {in_place:?}");
        assert!(expected.is_some_and(|decision| !decision.allowed), "{text}");
    }
}

/// The sum of the latest time and the longest time to a deadline wrapped around, and matched a
/// state of 1970.
#[test]
fn latest_time_is_not_taken_for_an_early_one() {
    for text in ["5 per 1m", "30 per 1m", "3000 per 1m", "3000000 per 1m"] {
        let limit: Limit = text.parse().expect("a limit");
        let mut state = State::new(&limit);
        let charged_at = Timestamp::from_micros(1_000_000);
        assert!(state.decide(&limit, &Attempt::new(1, charged_at)).allowed);
        let mut packed = state.pack(&limit, PackedSize::Large).expect("a packed state");
        let before = packed;
        let attempt = Attempt::new(1, Timestamp::LAST);
        assert_eq!(packed.decide(&limit, attempt, true), None, "{text}");
        assert_eq!(packed, before, "{text}");
    }
}
