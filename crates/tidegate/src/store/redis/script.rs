//! The scripts that run inside Redis: their sources, arguments and replies.
//!
//! A decision reads, compares and writes. Only a script does that atomically in one round trip. The
//! sources are in `lua/`. Code that several scripts share is in separate files, which are put in
//! front of the scripts that need them.
//!
//! The arguments and the reply of `request.lua` are binary. Numbers are 8 bytes, little-endian. Lua
//! reads them into doubles, which are exact up to 2^53. Larger costs are cut to that, which changes
//! nothing, because counts are capped below it.
//!
//! The script replies with no more than a decision needs. For small states and `sliding-window` the
//! reply is the whole state. For a log or permits it is the sum of the costs, the newest time, and
//! the time at which the missing units are freed. From these [`equivalent_state`] builds a state
//! that decides the cost as the whole log would, so the code of the core computes the decision.

use std::sync::OnceLock;

use redis::{Cmd, Value};
use smallvec::SmallVec;
use tidegate_core::{
    Algorithm, Cell, Cost, Entries, Entry, FixedWindow, Limit, PermitId, Permits, SlidingCounter,
    SlidingLog, SlidingWindow, State, Timestamp, TokenBucket, WindowForm, bounds,
};

use super::counter::radix;
use super::key_names::KeyNames;
use super::plan::{PlannedState, ScriptMode};
use crate::Failure;
use crate::store::{PermitOperation, StoreError};

/// A script that runs inside Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Script {
    /// Decides requests on `sliding-counter`s under one limit, each separately: the fast path.
    Counter,
    /// Decides any request: charges all of its states or none.
    Request,
    /// Releases or renews a permit.
    Permit,
    /// Checks that the user may run the commands of the other scripts.
    Rights,
}

impl Script {
    /// All scripts.
    pub const ALL: [Script; 4] = [Script::Counter, Script::Request, Script::Permit, Script::Rights];

    /// Returns the Lua source.
    pub const fn source(self) -> &'static str {
        match self {
            Script::Counter => include_str!("lua/counter.lua"),
            // The functions for states of more than a few numbers are nested in `open_large`, so
            // that they are created only when they are needed.
            Script::Request => concat!(
                include_str!("lua/common.lua"),
                include_str!("lua/sliding_counter.lua"),
                include_str!("lua/fixed_window.lua"),
                include_str!("lua/token_bucket.lua"),
                include_str!("lua/log.lua"),
                "local function open_large(algorithm, raw, attempt)\n",
                include_str!("lua/entries.lua"),
                include_str!("lua/sliding_log.lua"),
                include_str!("lua/sliding_window.lua"),
                include_str!("lua/permits.lua"),
                include_str!("lua/concurrency.lua"),
                include_str!("lua/large.lua"),
                "end\n",
                include_str!("lua/request.lua"),
            ),
            Script::Permit => concat!(
                include_str!("lua/common.lua"),
                include_str!("lua/permits.lua"),
                include_str!("lua/permit.lua"),
            ),
            Script::Rights => include_str!("lua/rights.lua"),
        }
    }

    /// Returns the SHA-1 digest by which `EVALSHA` identifies the script.
    pub fn sha(self) -> &'static str {
        static SHAS: [OnceLock<String>; Script::ALL.len()] =
            [const { OnceLock::new() }; Script::ALL.len()];
        let digest = || redis::Script::new(self.source()).get_hash().to_owned();
        SHAS[self as usize].get_or_init(digest)
    }
}

/// The permissions that the user of the store needs, as the arguments of `ACL SETUSER tidegate on
/// >password ...`.
///
/// The key pattern must match `key_prefix`. Only a cluster needs `asking` and `cluster|slots`. A
/// database other than 0 also needs `+select`. The user of the Sentinels needs only
/// `+sentinel|get-master-addr-by-name`.
pub const ACL_RULES: &str = "~tg:* -@all +evalsha +script|load +info +asking \
                             +cluster|slots +get +set +incr +incrby +decrby +del +time";

/// A call of a script. All its keys are in one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptCall {
    /// The script.
    pub script: Script,
    /// All keys that the script touches.
    pub keys: Vec<Vec<u8>>,
    /// The other arguments.
    pub args: Vec<Vec<u8>>,
}

impl ScriptCall {
    /// Returns the call as an `EVALSHA` command.
    pub fn cmd(&self) -> Cmd {
        let mut cmd = Cmd::with_capacity(3 + self.keys.len() + self.args.len(), self.bytes());
        cmd.arg("EVALSHA").arg(self.script.sha()).arg(self.keys.len());
        for argument in self.keys.iter().chain(&self.args) {
            cmd.arg(argument.as_slice());
        }
        cmd
    }

    fn bytes(&self) -> usize {
        const COMMAND_BYTES: usize = 64;
        COMMAND_BYTES + self.keys.iter().chain(&self.args).map(Vec::len).sum::<usize>()
    }
}

/// The failure for a reply that is an error, or that no script sends.
pub(super) fn unexpected_reply(reply: &Value) -> Failure {
    Failure::Refused(match reply {
        Value::ServerError(error) => error.to_string().into(),
        _ => "unexpected reply of a script: does a proxy rewrite replies?".into(),
    })
}

/// The time argument of a script. It is empty for the server's time.
pub(super) fn time_arg(now: Option<Timestamp>) -> Vec<u8> {
    now.map_or(Vec::new(), |now| now.as_micros().to_string().into_bytes())
}

/// Returns the call that releases or renews a permit.
pub fn permit_call(
    key_names: &KeyNames,
    key: &[u8],
    limit: &Limit,
    operation: PermitOperation,
    now: Option<Timestamp>,
) -> ScriptCall {
    // The permit may be held in the separate state of an observed check.
    let keys = vec![key_names.state(key, limit), key_names.observed(key, limit)];
    match operation {
        PermitOperation::Release(permit) => release_call(keys, permit, now),
        PermitOperation::Renew(permit) => {
            permit_call_with(keys, permit, limit.window_us().to_string().into_bytes(), now)
        }
    }
}

/// The call that releases a permit from the first of these states that holds it.
pub(super) fn release_call(
    keys: Vec<Vec<u8>>,
    permit: PermitId,
    now: Option<Timestamp>,
) -> ScriptCall {
    permit_call_with(keys, permit, Vec::new(), now)
}

fn permit_call_with(
    keys: Vec<Vec<u8>>,
    PermitId(permit): PermitId,
    lease: Vec<u8>,
    now: Option<Timestamp>,
) -> ScriptCall {
    let args = vec![time_arg(now), permit.to_string().into_bytes(), lease];
    ScriptCall { script: Script::Permit, keys, args }
}

/// Returns whether the permit was held, from the reply to a [`permit_call`].
///
/// # Errors
/// If the reply is an error or has another form.
pub fn was_held(reply: &Value) -> Result<bool, StoreError> {
    match reply {
        Value::Int(held @ (0 | 1)) => Ok(*held == 1),
        _ => Err(unexpected_reply(reply).into()),
    }
}

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
        bytes.extend_from_slice(&[algorithm_number(limit), kind, role]);
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
pub(super) fn decode_request_reply(
    reply: &Value,
    planned: &[PlannedState],
) -> Option<DecodedReply> {
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
fn algorithm_number(limit: &Limit) -> u8 {
    match limit.algorithm() {
        Algorithm::SlidingLog => 0,
        Algorithm::SlidingWindow => 1,
        Algorithm::SlidingCounter => 2,
        Algorithm::FixedWindow => 3,
        Algorithm::TokenBucket => 4,
        Algorithm::Concurrency => 5,
    }
}
