//! Properties over random limits of every size: counts from 0 to 10^12, windows from 1 ms
//! to 366 days, and times from the epoch to the largest.

use proptest::prelude::*;
use tidegate_core::{
    Algorithm, Attempt, Cost, Decision, Limit, Packed, PackedKind, PermitId, State, WindowForm,
    bounds,
};

use crate::checked_state::{CheckedState, attempt_at};
use crate::generators::{
    Gap, Step, any_limit, anything, attempts, cost, count, forward, limit_of, size, start,
    window_us,
};

/// The algorithms that never admit less with a larger count. `sliding-window` is not one of them,
/// because its cells depend on the limit.
const MONOTONE: [Algorithm; 4] = [
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
    Algorithm::FixedWindow,
    Algorithm::TokenBucket,
];

fn config(cases: u32) -> ProptestConfig {
    // Regressions become separate tests, not files. `PROPTEST_CASES` raises the number of cases.
    let default = ProptestConfig::default();
    ProptestConfig { cases: default.cases.max(cases), failure_persistence: None, ..default }
}

/// Runs a trace without the oracle. Returns the state after it, the time, and the decisions.
fn run(limit: &Limit, begin: u64, trace: &[Step]) -> (State, u64, Vec<(u64, Cost, Decision)>) {
    let mut state = State::new(limit);
    let mut now = begin;
    let mut decided = Vec::new();
    for (number, &(gap, kind, size)) in trace.iter().enumerate() {
        now = gap.after(now, limit);
        let cost = cost(kind, size, limit);
        let permit = PermitId(number as u64);
        decided.push((
            now,
            cost,
            state.decide(limit, &Attempt { permit, ..attempt_at(cost, now) }),
        ));
    }
    (state, now, decided)
}

fn peek(state: &State, limit: &Limit, units: u64, now: u64) -> Decision {
    let mut state = state.clone();
    state.advance_and_check(limit, &attempt_at(Cost::Ask(units), now));
    state.finish(limit, &attempt_at(Cost::Ask(units), now), false)
}

/// Checks that two states make the same decisions, now and later, at every cost that is an edge.
fn same(a: &State, b: &State, limit: &Limit, now: u64) -> Result<(), TestCaseError> {
    let window = limit.window_us();
    let capacity = limit.capacity();
    let later = [0, 1, window / 3, window - 1, window, window + 1, 2 * window - 1, 2 * window];
    for then in later.map(|wait| now + wait) {
        let left = peek(a, limit, 0, then).remaining;
        for units in [0, 1, capacity / 2, left, left + 1, capacity, capacity + 1] {
            let decisions = (peek(a, limit, units, then), peek(b, limit, units, then));
            prop_assert_eq!(decisions.0, decisions.1, "cost {} at {}", units, then);
        }
    }
    Ok(())
}

/// The time in the unit of the algorithm's bound: ticks within aligned windows for the counter, and
/// microseconds for the others.
fn on_grid(limit: &Limit, at: u64) -> u128 {
    let window = limit.window_us();
    match limit.algorithm() {
        Algorithm::SlidingCounter => {
            let ticks = at % window / limit.tick_us();
            u128::from(at / window) * u128::from(limit.window_ticks()) + u128::from(ticks)
        }
        _ => at.into(),
    }
}

fn bound(limit: &Limit) -> u128 {
    let count = u128::from(limit.count());
    match limit.algorithm() {
        Algorithm::SlidingLog | Algorithm::SlidingWindow | Algorithm::Concurrency => count,
        Algorithm::FixedWindow => 2 * count,
        Algorithm::TokenBucket => u128::from(limit.capacity()) + count,
        Algorithm::SlidingCounter => {
            count.max(2 * count - 2 * count / u128::from(limit.window_ticks()))
        }
    }
}

/// The time by which a `sliding-window` may release a unit late: a cell and a fifteenth of it, or
/// two steps of the grid of the times form.
pub fn late_us(form: WindowForm, window_us: u64) -> u64 {
    let cell_us = form.cell_us(window_us);
    cell_us + if form == WindowForm::Times { cell_us } else { cell_us.div_ceil(15) }
}

proptest! {
    #![proptest_config(config(4_000))]

    /// Every decision is that of the oracle, and every wait is sufficient and minimal, for all
    /// kinds of steps and a clock that may step back.
    #[test]
    fn every_decision_matches_the_oracle(limit in any_limit(), begin in start(), trace in anything(24)) {
        let mut checked = CheckedState::new(limit);
        let mut now = begin;
        for (gap, kind, size) in trace {
            now = gap.after(now, &limit);
            let _ = checked.step(cost(kind, size, &limit), now);
            let (left, capacity) = (checked.peek(now), limit.capacity());
            let edges = [0, 1, left, left + 1, capacity / 2, capacity, capacity + 1, u64::MAX];
            checked.check_costs(edges.into_iter(), now);
        }
    }

    /// The bound of each algorithm holds in every window.
    #[test]
    fn no_window_holds_more_than_the_bound(
        limit in any_limit(), begin in start(), trace in attempts(80),
    ) {
        let (_, _, decided) = run(&limit, begin, &trace);
        let length = match limit.algorithm() {
            Algorithm::SlidingCounter => limit.window_ticks(),
            _ => limit.window_us(),
        };
        let admitted: Vec<(u128, u64)> = decided
            .into_iter()
            .filter(|(_, _, decision)| decision.allowed)
            .map(|(at, cost, _)| (on_grid(&limit, at), match cost { Cost::Ask(n) => n, _ => 0 }))
            .collect();
        for &(end, _) in &admitted {
            let within = |at: u128| at <= end && end - at < u128::from(length);
            let held = admitted.iter().filter(|(at, _)| within(*at));
            let full: u128 = held.map(|(_, units)| u128::from(*units)).sum();
            prop_assert!(full <= bound(&limit), "{} holds {}", limit, full);
        }
    }

    /// Without the denied requests and the peeks, all other decisions are the same, as long as time
    /// moves forward.
    #[test]
    fn denied_requests_change_nothing(limit in any_limit(), begin in start(), trace in attempts(40)) {
        let (state, now, decided) = run(&limit, begin, &trace);
        let mut quiet = State::new(&limit);
        for (number, (at, cost, decision)) in decided.into_iter().enumerate() {
            if decision.allowed && cost != Cost::PEEK {
                let attempt = Attempt { permit: PermitId(number as u64), ..attempt_at(cost, at) };
                prop_assert_eq!(quiet.decide(&limit, &attempt), decision);
            }
        }
        same(&quiet, &state, &limit, now)?;
    }

    /// A state has at most as many entries as charges, expires within a bounded time, and decides
    /// like a new one after that.
    #[test]
    fn state_and_expiry_are_bounded(limit in any_limit(), begin in start(), trace in attempts(90)) {
        let (state, now, decided) = run(&limit, begin, &trace);
        let charges = decided.iter().filter(|(_, cost, d)| d.allowed && *cost != Cost::PEEK);
        prop_assert!(state.entries() <= charges.count());
        let window = limit.window_us();
        let refill = u128::from(limit.burst()) * u128::from(limit.window_ticks());
        let refill_ticks = refill.div_ceil(u128::from(limit.count()).max(1)) + 1;
        let longest = match limit.algorithm() {
            Algorithm::SlidingCounter => 2 * u128::from(window),
            Algorithm::TokenBucket => refill_ticks * u128::from(limit.tick_us()),
            Algorithm::SlidingWindow => u128::from(window + late_us(WindowForm::of(limit.count()), window)),
            _ => window.into(),
        };
        let expires_at = state.expires_at(&limit).as_micros();
        prop_assert!(u128::from(expires_at) <= u128::from(now) + longest);
        let then = peek(&state, &limit, 0, expires_at.max(now));
        if expires_at < u64::MAX {
            prop_assert_eq!(then, peek(&State::new(&limit), &limit, 0, expires_at.max(now)));
        }
    }

    /// A clock that steps back never makes more units available, and the units it keeps expire a
    /// window later (two for the counter, a refill for the bucket, a window and a cell for
    /// `sliding-window`).
    #[test]
    fn a_clock_step_back_neither_frees_nor_freezes_units(
        limit in any_limit(), begin in start(), trace in attempts(40), back in 0_u64..5_000,
    ) {
        let (state, now, _) = run(&limit, begin, &trace);
        let before = peek(&state, &limit, 1, now);
        let then = Gap::Back(back).after(now, &limit);
        let after = peek(&state, &limit, 1, then);
        prop_assert!(after.remaining <= before.remaining, "{:?} then {:?}", before, after);
        let window = limit.window_us();
        let longest = match limit.algorithm() {
            Algorithm::SlidingCounter => 2 * window,
            // A refill that would end after the largest time is cut off there.
            Algorithm::TokenBucket if now.saturating_add(before.reset_after.as_micros()) == u64::MAX => u64::MAX,
            Algorithm::TokenBucket => before.reset_after.as_micros().saturating_add(limit.tick_us()),
            Algorithm::SlidingWindow => window + late_us(WindowForm::of(limit.count()), window),
            _ => window,
        };
        prop_assert!(after.reset_after.as_micros() <= longest, "{:?} then {:?}", before, after);
    }

    /// A charge and its refund at the same time restore the state, also for later decisions.
    #[test]
    fn a_refund_undoes_a_charge(
        limit in any_limit(), begin in start(), trace in anything(20),
        gap in forward(), amount in size(), after in attempts(10), forced in any::<bool>(),
    ) {
        let (mut plain, now, _) = run(&limit, begin, &trace);
        let now = gap.after(now, &limit);
        let _ = plain.decide(&limit, &attempt_at(Cost::PEEK, now));
        let mut touched = plain.clone();
        // A forced charge is cut off where products would leave the exact range, and only the units
        // that were kept can be refunded.
        let room = match limit.algorithm() {
            Algorithm::SlidingWindow => (1 << 40) - 1 - limit.count(),
            _ => limit.count_cap() - limit.count().max(limit.burst()),
        };
        let forced = forced && peek(&plain, &limit, 0, now).remaining > 0;
        let units = amount.units(&limit);
        let units = if forced { units.min(room) } else { units };
        let charge = if forced { Cost::Force(units) } else { Cost::Ask(units) };
        if touched.decide(&limit, &attempt_at(charge, now)).allowed {
            let _ = touched.decide(&limit, &attempt_at(Cost::Refund(units), now));
        }
        if let State::SlidingWindow(window) = &plain {
            // The last hit and the lag of a cell stay, and so does a wider form, unless it becomes
            // empty. The times form holds units up to two steps of its grid longer than a window,
            // and a wider form releases them earlier.
            let left = [&touched, &plain].map(|state| peek(state, &limit, 0, now).remaining);
            let same_form = matches!(&touched, State::SlidingWindow(t) if t.form() == window.form());
            let most = match window.form() {
                WindowForm::Times => {
                    let late_us = late_us(WindowForm::Times, limit.window_us());
                    peek(&plain, &limit, 0, now.saturating_add(late_us)).remaining
                }
                _ => left[1],
            };
            prop_assert!(left[0] <= most && (left[0] >= left[1] || !same_form), "{:?}", left);
            return Ok(());
        }
        same(&touched, &plain, &limit, now)?;
        let mut later = now;
        for (gap, kind, size) in after {
            later = gap.after(later, &limit);
            let attempt = attempt_at(cost(kind, size, &limit), later);
            prop_assert_eq!(touched.decide(&limit, &attempt), plain.decide(&limit, &attempt));
        }
    }

    /// A reload that changes the count or the burst keeps what was counted.
    #[test]
    fn changed_count_keeps_usage(
        limit in any_limit(), begin in start(), trace in anything(16), new_count in count(),
        after in anything(16),
    ) {
        let changed = limit.with_count(new_count).expect("within bounds");
        prop_assert_eq!(changed.id(), limit.id());
        let mut checked = CheckedState::new(limit);
        let mut now = begin;
        for (gap, kind, size) in trace {
            now = gap.after(now, &limit);
            let _ = checked.step(cost(kind, size, &limit), now);
        }
        checked.limit = changed;
        checked.oracle.change(&changed);
        for (gap, kind, size) in after {
            now = gap.after(now, &changed);
            let _ = checked.step(cost(kind, size, &changed), now);
        }
    }

    /// A log that must not grow merges its entries: it has one, and stays within its limit.
    #[test]
    fn a_log_that_merges_stays_within_its_limit(
        count in count(), window_us in window_us(), begin in start(), trace in attempts(40),
    ) {
        let limit = limit_of(Algorithm::SlidingLog, count, window_us);
        let mut state = State::new(&limit);
        let mut admitted = Vec::new();
        let mut now = begin;
        for (gap, kind, size) in trace {
            now = gap.after(now, &limit);
            let attempt = attempt_at(cost(kind, size, &limit), now);
            let passes = state.advance_and_check(&limit, &attempt);
            if passes && let State::SlidingLog(log) = &mut state {
                log.merge_newest(attempt.now);
            }
            prop_assert_eq!(state.finish(&limit, &attempt, passes).allowed, passes);
            prop_assert!(state.entries() <= 1);
            if passes {
                admitted.push((now, size.units(&limit)));
            }
            let held = admitted.iter().filter(|(at, _)| now - at < window_us);
            prop_assert!(held.map(|(_, units)| units).sum::<u64>() <= count);
        }
    }

    /// A state that is packed and unpacked between decisions decides like one that is not, and so
    /// does a packed state that is decided in place.
    #[test]
    fn packed_states_decide_like_unpacked_ones(
        (limit, other) in (any_limit(), count()),
        begin in start(),
        trace in anything(24),
        changes in any::<u32>(),
    ) {
        let Some(size) = limit.packed_kind().map(PackedKind::size) else { return Ok(()) };
        let other = limit.with_count(other).expect("a count within bounds");
        let (mut plain, mut packed, mut decided) =
            (State::new(&limit), Packed::default(), Packed::default());
        let (mut now, mut last, mut is_plain) = (begin, begin, true);
        for (number, (gap, kind, units)) in trace.into_iter().enumerate() {
            // The limit changes in some steps, as after a reload.
            let limit = if changes >> number & 1 == 1 { other } else { limit };
            now = gap.after(now, &limit).min(1 << 51);
            let attempt = attempt_at(cost(kind, units, &limit), now);
            let expected = plain.decide(&limit, &attempt);
            let mut unpacked = State::unpack(&limit, size, &packed);
            prop_assert_eq!(unpacked.decide(&limit, &attempt), expected, "unpacked, step {}", number);
            let after = unpacked.pack(&limit, size);
            let before = decided;
            // A limit of another size is decided on an unpacked state.
            let is_same_size = limit.packed_kind().map(PackedKind::size) == Some(size);
            let in_place = is_same_size.then(|| decided.decide(&limit, attempt, true)).flatten();
            if let Some(in_place) = in_place {
                prop_assert_eq!(in_place, expected, "in place, step {}", number);
            } else {
                prop_assert_eq!(decided, before, "in place, step {}", number);
            }
            let Some(after) = after else {
                prop_assert_eq!(in_place, None, "in place, step {}", number);
                break;
            };
            prop_assert!(after.head() < (1 << Packed::HEAD_BITS) - 1);
            // Under one limit, and without forced charges and steps back, all attempts are decided
            // in place whose deadline does not come close to another value of the high bits.
            let latest = (now + 2 * limit.window_us() + 4 * Packed::DEADLINE_STEP_US) / Packed::DEADLINE_STEP_US;
            is_plain &= matches!(attempt.cost, Cost::Ask(_)) && changes >> number & 1 == 0 && now >= last;
            let stays = [after.deadline(), latest]
                .map(|deadline| deadline >> Packed::DEADLINE_LOW_BITS)
                == [before.deadline_high; 2];
            if is_plain && stays && after.deadline() >= before.deadline().max(1) {
                prop_assert!(in_place.is_some(), "step {}", number);
            }
            if in_place.is_none() {
                decided = after;
            }
            let state = (decided.deadline(), decided.head());
            prop_assert_eq!((after.deadline(), after.head()), state, "step {}", number);
            last = now;
            packed = after;
        }
    }

    /// Every product of a decision is exact in a double, and would not be with a finer tick.
    #[test]
    fn ticks_are_the_finest_that_stay_exact(limit in any_limit()) {
        let most = u128::from(limit.count().max(limit.burst())) + 1;
        let product = |tick: u64| most * u128::from(limit.window_us().div_ceil(tick));
        let largest = u128::from(bounds::MAX_PRODUCT);
        prop_assert_eq!(limit.window_ticks(), limit.window_us().div_ceil(limit.tick_us()));
        prop_assert!(product(limit.tick_us()) <= largest);
        prop_assert!(limit.tick_us() == 1 || product(limit.tick_us() / 10) > largest);
        prop_assert_eq!(limit.tick_us(), 10_u64.pow(limit.tick_us().ilog10()));
        prop_assert!(u128::from(limit.count_cap()) >= most);
    }

    /// Decisions shortly before the largest time do not overflow.
    #[test]
    fn latest_timestamps_do_not_overflow(
        limit in any_limit(), before in 0_u64..10_000_000, trace in anything(20),
    ) {
        let (state, _, decided) = run(&limit, u64::MAX - before, &trace);
        prop_assert!(state.expires_at(&limit).as_micros() > 0 || state.entries() == 0);
        prop_assert_eq!(decided.len(), trace.len());
    }
}

proptest! {
    #![proptest_config(config(4_000))]

    /// With a cost of 1, a higher count has never admitted less.
    #[test]
    fn raising_the_count_never_admits_less(
        algorithm in prop::sample::select(&MONOTONE[..]), low in 0_u64..30, more in 1_u64..10, window_us in window_us(),
        burst in prop::option::of(1_u64..12), begin in start(),
        gaps in prop::collection::vec(forward(), 1..200),
    ) {
        let limits = [low, low + more].map(|count| {
            let limit = limit_of(algorithm, count, window_us);
            match (algorithm, burst) {
                (Algorithm::TokenBucket, Some(burst)) => limit.with_burst(burst).expect("above 0"),
                _ => limit,
            }
        });
        let mut states = limits.map(|limit| State::new(&limit));
        let mut admitted = [0_u64; 2];
        let mut now = begin;
        for (index, gap) in gaps.into_iter().enumerate() {
            // Most gaps are divided by 40, so that requests are denied.
            now += (gap.after(now, &limits[0]) - now) / if index % 8 == 0 { 1 } else { 40 };
            for which in 0..2 {
                let decision = states[which].decide(&limits[which], &attempt_at(Cost::Ask(1), now));
                admitted[which] += u64::from(decision.allowed);
            }
            prop_assert!(admitted[0] <= admitted[1], "{:?} at {}", admitted, index);
        }
    }
}
