//! Encodes the arguments of `request.lua` and decodes its reply.
//!
//! Numbers are 8 bytes, little-endian. Lua reads them into doubles, which are exact up to 2^53.
//! Larger costs are cut to that, which changes nothing, because counts are capped below it.
//!
//! The script replies with no more than a decision needs. For small states and `sliding-window` the
//! reply is the whole state. For a log or permits it is the sum of the costs, the newest time, and
//! the time at which the missing units are freed. From these [`equivalent_state`] builds a state
//! that decides the cost as the whole log would, so the code of the core computes the decision.

use redis::Value;
use smallvec::SmallVec;
use tidegate_core::{
    Algorithm, Cell, Cost, Entries, Entry, FixedWindow, Limit, PermitId, Permits, SlidingCounter,
    SlidingLog, SlidingWindow, State, Timestamp, TokenBucket, WindowForm, bounds,
};

use super::counter::radix;
use super::plan::{PlannedState, ScriptMode};

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestOutcome {
    Denied,
    Admitted,
    IdReused,
    /// Denied, and charged the units that were left. The reply describes the states after the
    /// charge.
    Consumed,
}

/// A decoded reply.
pub(super) struct DecodedReply {
    pub(super) outcome: RequestOutcome,
    pub(super) now: Timestamp,
    pub(super) states: SmallVec<[StateSummary; 4]>,
}

/// The reply for one state; the file of its algorithm in `lua/` describes it.
#[derive(Clone, Copy)]
pub(super) enum StateSummary {
    Numbers([u64; 3]),
    Window(SlidingWindow),
}

/// Encodes the second argument of `request.lua`: all of a plan except key names, time and id.
pub(super) fn encode_plan(states: &[PlannedState], mode: ScriptMode, permit: PermitId) -> Vec<u8> {
    /// The size of the permit and the mode. A state has three bytes and eight numbers.
    const HEADER_BYTES: usize = 9;
    const STATE_BYTES: usize = 3 + 8 * 8;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + STATE_BYTES * states.len());
    bytes.extend_from_slice(&permit.0.to_le_bytes());
    bytes.push(match mode {
        ScriptMode::Decide => 0,
        ScriptMode::Dry => 1,
        ScriptMode::Undo => 2,
        ScriptMode::Consume => 3,
    });
    for state in states {
        let PlannedState { limit, cost, .. } = state;
        let (kind, units) = kind_and_units(*cost);
        let role = if state.consumes() { 2 } else { u8::from(state.observed) };
        bytes.extend_from_slice(&[algorithm(limit), kind, role]);
        let numbers = [
            units.min(bounds::MAX_PRODUCT),
            limit.window_us(),
            limit.count(),
            limit.capacity(),
            limit.count_cap(),
            limit.tick_us(),
            limit.window_ticks(),
            match limit.algorithm() {
                Algorithm::SlidingCounter => radix(limit),
                _ => 0,
            },
        ];
        bytes.extend(numbers.into_iter().flat_map(u64::to_le_bytes));
    }
    bytes
}

/// Encodes a cost exactly. Unlike the plan, it does not cut large costs.
pub(super) fn cost_text(cost: Cost) -> [u8; 9] {
    let (kind, units) = kind_and_units(cost);
    let mut text = [kind; 9];
    text[1..].copy_from_slice(&units.to_le_bytes());
    text
}

/// Decodes a reply for these states; `None` if it has another form.
pub(super) fn decode_reply(reply: &Value, planned: &[PlannedState]) -> Option<DecodedReply> {
    let Value::BulkString(bytes) = reply else { return None };
    let (&outcome, rest) = bytes.split_first()?;
    let outcome = match outcome {
        0 => RequestOutcome::Denied,
        1 => RequestOutcome::Admitted,
        2 => RequestOutcome::IdReused,
        3 => RequestOutcome::Consumed,
        _ => return None,
    };
    let (now, mut rest) = rest.split_first_chunk()?;
    let now = Timestamp::from_micros(u64::from_le_bytes(*now));
    let mut states = SmallVec::new();
    if outcome != RequestOutcome::IdReused {
        for state in planned {
            let (summary, after) = read_state(&state.limit, rest)?;
            states.push(summary);
            rest = after;
        }
    }
    rest.is_empty().then_some(DecodedReply { outcome, now, states })
}

fn read_state<'r>(limit: &Limit, reply: &'r [u8]) -> Option<(StateSummary, &'r [u8])> {
    if limit.algorithm() == Algorithm::SlidingWindow {
        let (&length, reply) = reply.split_first()?;
        let (bytes, after) = reply.split_at_checked(length.into())?;
        return Some((StateSummary::Window(read_window(bytes)?), after));
    }
    let (numbers, after) = reply.split_first_chunk::<24>()?;
    let (numbers, _) = numbers.as_chunks::<8>();
    let numbers = [numbers[0], numbers[1], numbers[2]].map(u64::from_le_bytes);
    Some((StateSummary::Numbers(numbers), after))
}

/// Decodes the bytes of a `sliding-window`, which `sliding_window.lua` describes.
fn read_window(bytes: &[u8]) -> Option<SlidingWindow> {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte));
    let Some((&mark, rest)) = bytes.split_first() else {
        return Some(SlidingWindow::default());
    };
    let (form, unit_bytes, lag_bytes) = match mark {
        0x88 => {
            let (newest, distances) = rest.split_at_checked(7)?;
            let newest = number(newest);
            let times: SmallVec<[u64; 20]> =
                distances.chunks(2).map(|pair| newest.saturating_sub(number(pair))).collect();
            return SlidingWindow::from_times(&times);
        }
        0x89 => (WindowForm::Cells15, 2, 1),
        0x8a => (WindowForm::Cells7, 3, 3),
        0x8b => (WindowForm::Cells3, 5, 5),
        _ => return None,
    };
    let (head, cells) = rest.split_at_checked(12)?;
    let (pace, newest) = (number(&head[..5]), number(&head[5..]));
    let mut list = SmallVec::<[(u64, Cell); 16]>::new();
    for cell in cells.chunks(1 + unit_bytes + lag_bytes) {
        let (units, lag) = cell.get(1..)?.split_at_checked(unit_bytes)?;
        let index = newest.checked_sub(u64::from(cell[0] >> 4))?;
        let steps = u64::from(cell[0] & 0xf);
        list.push((index, Cell { units: number(units), lag: number(lag), steps }));
    }
    SlidingWindow::from_cells(form, pace, &list)
}

/// Returns a state that decides the planned cost as the state in Redis did before it was charged
/// (or after a denial consumed the units that were left), and the cost to decide with it.
pub(super) fn equivalent_state(
    planned: &PlannedState,
    now: Timestamp,
    summary: StateSummary,
) -> (State, Cost) {
    let PlannedState { limit, cost, .. } = planned;
    let index = now.as_micros() / limit.window_us();
    let [first, second, third] = match summary {
        StateSummary::Numbers(numbers) => numbers,
        StateSummary::Window(window) => return (State::SlidingWindow(window), *cost),
    };
    // The reply describes logs and permits after a forced charge or a refund. A refund of 0 then
    // returns their current values.
    let reply_cost = match cost {
        Cost::Ask(_) => *cost,
        Cost::Force(_) | Cost::Refund(_) => Cost::Refund(0),
    };
    match limit.algorithm() {
        Algorithm::SlidingCounter => {
            let counter = SlidingCounter { index, previous: first, current: second };
            (State::SlidingCounter(counter), *cost)
        }
        Algorithm::FixedWindow => (State::FixedWindow(FixedWindow { index, count: first }), *cost),
        Algorithm::TokenBucket => {
            (State::TokenBucket(TokenBucket::with_debt(limit, now, first)), *cost)
        }
        Algorithm::SlidingLog => {
            let log = SlidingLog::from(pair(planned, first, second, third));
            (State::SlidingLog(log), reply_cost)
        }
        // The reply of `sliding-window` is bytes, which are handled above.
        Algorithm::SlidingWindow => (State::new(limit), *cost),
        Algorithm::Concurrency => {
            let entries = pair(planned, first, second, third);
            let held = entries.iter().map(|entry| (entry.cost, entry.at));
            (State::Concurrency(Permits::until(now, held)), reply_cost)
        }
    }
}

/// Two entries that represent all: the first frees the missing units, the second holds the rest.
fn pair(planned: &PlannedState, total: u64, newest_us: u64, freeing_us: u64) -> Entries {
    let mut entries = Entries::new();
    let mut push = |micros, cost| entries.push(Entry { at: Timestamp::from_micros(micros), cost });
    let limit = &planned.limit;
    let lacking = match planned.cost {
        Cost::Ask(units) if units <= limit.capacity() => {
            (total + units.max(1)).saturating_sub(limit.count()).min(total)
        }
        _ => 0,
    };
    push(freeing_us, lacking);
    push(newest_us, total - lacking);
    entries
}

fn kind_and_units(cost: Cost) -> (u8, u64) {
    match cost {
        Cost::Ask(units) => (0, units),
        Cost::Force(units) => (1, units),
        Cost::Refund(units) => (2, units),
    }
}

/// The number of an algorithm in `request.lua`.
fn algorithm(limit: &Limit) -> u8 {
    match limit.algorithm() {
        Algorithm::SlidingLog => 0,
        Algorithm::SlidingWindow => 1,
        Algorithm::SlidingCounter => 2,
        Algorithm::FixedWindow => 3,
        Algorithm::TokenBucket => 4,
        Algorithm::Concurrency => 5,
    }
}
