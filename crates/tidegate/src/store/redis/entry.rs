//! Entries of calls of `request.lua`: how requests are encoded, and how replies become decisions.
//!
//! An entry is a list of requests on the same states. The script reads each state once, applies the
//! requests in order, writes each state once, and replies with the states from *before* the
//! requests. The node then applies the same requests to them with the code of the core, which
//! computes every answer. Both use the same integers, so they agree. `lua/request.lua` documents
//! the format.

use redis::{ServerError, Value};
use tidegate_core::{Attempt, Cost, Decision, LeasedState, Limit, State, Timestamp};

use super::plan::{Few, PlannedState, ScriptMode, ScriptPlan, ScriptReply};
use super::script::{self, Script, ScriptCall, unexpected_reply};
use super::stored_state::{self, Summary};
use crate::store::StoreError;
use crate::{CheckError, Failure};

/// The bytes of a group before its limits, of a limit, and of most runs.
const GROUP_BYTES: usize = 8;
const LIMIT_BYTES: usize = 57;
const RUN_BYTES: usize = 32;

/// Requests on the same states, which are decided in order.
#[derive(Clone, Debug)]
pub struct Entry {
    mode: ScriptMode,
    runs: Few<Run>,
    requests: usize,
}

/// Why an entry was not decided.
#[derive(Clone, Debug)]
pub enum EntryError {
    /// The server reported an error, and the entry changed nothing.
    Server(ServerError),
    /// The reply is malformed, or the request is invalid.
    Store(StoreError),
}

impl From<EntryError> for StoreError {
    fn from(error: EntryError) -> Self {
        match error {
            EntryError::Server(error) => unexpected_reply(&Value::ServerError(error)).into(),
            EntryError::Store(error) => error,
        }
    }
}

/// Equal requests in a row.
#[derive(Clone, Debug)]
struct Run {
    plan: ScriptPlan,
    times: u32,
}

impl Entry {
    /// Creates an entry of one request.
    pub fn new(plan: ScriptPlan, mode: ScriptMode) -> Self {
        let mut runs = Few::new();
        runs.push(Run { plan, times: 1 });
        Entry { mode, runs, requests: 1 }
    }

    /// Returns the states, with the costs of the first request.
    pub fn states(&self) -> &[PlannedState] {
        self.runs[0].plan.states()
    }

    /// Returns the number of requests.
    #[cfg(feature = "unstable")]
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// Adds a request behind the others. Returns `None` if it was added, or else the request: it
    /// counts in other states or under other limits, or one of the requests has an idempotency id.
    pub fn join(&mut self, plan: ScriptPlan, mode: ScriptMode) -> Option<ScriptPlan> {
        let (own, others) = (self.states(), plan.states());
        let is_same = |(one, other): (&PlannedState, &PlannedState)| {
            one.key == other.key && one.limit == other.limit
        };
        let can_join = self.mode == mode
            && own.len() == others.len()
            && own.iter().zip(others).all(is_same)
            && self.id().is_none()
            && plan.id().is_none();
        if !can_join {
            return Some(plan);
        }
        self.requests += 1;
        match self.runs.last_mut() {
            Some(last) if last.repeats(&plan, mode) => last.times += 1,
            _ => self.runs.push(Run { plan, times: 1 }),
        }
        None
    }

    /// Whether another entry can be in the same group: its limits and mode are equal, and neither
    /// has an id.
    pub(super) fn shares_group(&self, other: &Entry) -> bool {
        let (own, others) = (self.states(), other.states());
        self.mode == other.mode
            && self.id().is_none()
            && other.id().is_none()
            && own.len() == others.len()
            && own.iter().zip(others).all(|(one, other)| one.limit == other.limit)
    }

    fn id(&self) -> Option<&super::plan::IdempotencyId> {
        self.runs[0].plan.id()
    }

    fn limits(&self) -> impl ExactSizeIterator<Item = &Limit> {
        self.states().iter().map(|state| &state.limit)
    }

    /// Whether the entry is one plain request for one unit of every state, and the reply has no
    /// summaries.
    fn is_unit(&self) -> bool {
        let is_unit = |state: &PlannedState| {
            state.cost == Cost::Ask(1) && !stored_state::is_summarized(&state.limit)
        };
        self.requests == 1
            && self.id().is_none()
            && self.runs[0].is_plain(self.mode)
            && self.states().iter().all(is_unit)
    }

    /// The number of values in the reply.
    fn values(&self) -> usize {
        if self.id().is_some() { 1 } else { self.states().len() }
    }

    fn encode_runs(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(RUN_BYTES * self.runs.len());
        bytes.extend_from_slice(&encode_length(self.runs.len()));
        for run in &self.runs {
            let is_plain = run.is_plain(self.mode);
            bytes.extend_from_slice(&run.times.to_le_bytes());
            bytes.push(is_plain.into());
            if !is_plain {
                bytes.extend_from_slice(&run.plan.permit().0.to_le_bytes());
            }
            for state in run.plan.states() {
                let (kind, units) = script::encode_cost(state.cost);
                if !is_plain {
                    bytes.extend_from_slice(&[kind, state.role()]);
                }
                bytes.extend_from_slice(&units);
            }
        }
        bytes
    }

    /// Decodes the values of the reply into a reply for each request, in order.
    fn decode(&self, now: Timestamp, values: &[&Value]) -> Result<Vec<ScriptReply>, EntryError> {
        let unexpected = || EntryError::Store(unexpected_reply(&Value::Nil).into());
        let mut parts = Few::new();
        for value in values {
            parts.push(match value {
                Value::BulkString(bytes) => Some(&bytes[..]),
                Value::Nil => None,
                Value::ServerError(error) => return Err(EntryError::Server(error.clone())),
                _ => return Err(unexpected()),
            });
        }
        if self.id().is_some() {
            return match parts.first() {
                Some(Some([])) => Err(EntryError::Store(CheckError::IdReused.into())),
                Some(Some(record)) => self.decode_record(record).ok_or_else(unexpected),
                _ => Err(unexpected()),
            };
        }
        self.replay(now, &parts).ok_or_else(unexpected)
    }

    /// Decodes the reply of an entry with an id, which may be from an earlier call.
    fn decode_record(&self, record: &[u8]) -> Option<Vec<ScriptReply>> {
        let (now, mut rest) = record.split_first_chunk()?;
        let now = Timestamp::from_micros(u64::from_le_bytes(*now));
        let (mut parts, mut roles) = (Few::new(), Few::new());
        for _ in self.states() {
            let (&role, after) = rest.split_first()?;
            let (length, after) = after.split_first_chunk()?;
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            let (value, after) = after.split_at_checked(length)?;
            parts.push((length > 0).then_some(value));
            roles.push(role);
            rest = after;
        }
        // The roles are those of the request that was charged.
        let plan = self.runs[0].plan.with_roles(&roles);
        rest.is_empty().then(|| Entry::new(plan, self.mode).replay(now, &parts)).flatten()
    }

    /// Applies all requests to the states of the reply; `None` if these are malformed.
    fn replay(&self, now: Timestamp, values: &[Option<&[u8]>]) -> Option<Vec<ScriptReply>> {
        let mut states = Few::new();
        for (limit, value) in self.limits().zip(values) {
            let with_grants = value.filter(|value| stored_state::has_grants(limit, value));
            states.push(match (stored_state::is_summarized(limit), value) {
                _ if with_grants.is_some() => {
                    let state = stored_state::decode_leased(limit, with_grants)?;
                    RepliedState::Whole(AnyState::Leased(Box::new(state)))
                }
                (true, Some(summaries)) => RepliedState::Summaries(summaries),
                (true, None) => return None,
                (false, value) => {
                    RepliedState::Whole(AnyState::Plain(stored_state::decode(limit, *value)?))
                }
            });
        }
        let mut replies = Vec::with_capacity(self.requests);
        for run in &self.runs {
            run.replay(self.mode, now, &mut states, &mut replies)?;
        }
        Some(replies)
    }
}

/// A state in the reply of an entry.
enum RepliedState<'r> {
    /// The state before the next request.
    Whole(AnyState),
    /// The summaries of the following runs.
    Summaries(&'r [u8]),
}

/// A state with or without open grants.
enum AnyState {
    Plain(State),
    Leased(Box<LeasedState>),
}

impl AnyState {
    fn advance_and_check(&mut self, limit: &Limit, attempt: &Attempt) -> bool {
        match self {
            AnyState::Plain(state) => state.advance_and_check(limit, attempt),
            AnyState::Leased(state) => state.advance_and_check(limit, attempt),
        }
    }

    fn available(&self, limit: &Limit, now: Timestamp) -> u64 {
        match self {
            AnyState::Plain(state) => state.available(limit, now),
            AnyState::Leased(state) => state.available(limit, now),
        }
    }

    fn finish(&mut self, limit: &Limit, attempt: &Attempt, admitted: bool) -> Decision {
        match self {
            AnyState::Plain(state) => state.finish(limit, attempt, admitted),
            AnyState::Leased(state) => state.finish(limit, attempt, admitted),
        }
    }
}

impl Run {
    /// Whether the requests can be decided at once.
    fn is_plain(&self, mode: ScriptMode) -> bool {
        mode == ScriptMode::Decide && self.plan.is_plain()
    }

    /// Whether another request is equal and can be decided at once with this run.
    fn repeats(&self, other: &ScriptPlan, mode: ScriptMode) -> bool {
        let mut costs = self.plan.states().iter().zip(other.states());
        costs.all(|(one, other)| one.cost == other.cost) && self.is_plain(mode) && other.is_plain()
    }

    /// Applies the requests to the states.
    fn replay(
        &self,
        mode: ScriptMode,
        now: Timestamp,
        states: &mut [RepliedState<'_>],
        replies: &mut Vec<ScriptReply>,
    ) -> Option<()> {
        let mut summaries = Few::new();
        for state in &mut *states {
            summaries.push(match state {
                RepliedState::Whole(_) => None,
                RepliedState::Summaries(rest) => {
                    let (summary, after) = Summary::decode(rest)?;
                    *rest = after;
                    Some(summary)
                }
            });
        }
        let mut equivalents = Few::new();
        if summaries.iter().any(Option::is_some) {
            equivalents = self.equivalent_states(mode, now, states, &summaries);
        }
        for _ in 0..self.times {
            let mut current: Few<&mut AnyState> = Few::new();
            let mut from_summaries = equivalents.iter_mut();
            for state in &mut *states {
                current.push(match state {
                    RepliedState::Whole(state) => state,
                    RepliedState::Summaries(_) => from_summaries.next()?,
                });
            }
            replies.push(self.replay_one(mode, now, &mut current));
        }
        Some(())
    }

    /// A state for each summary. It decides all requests of the run as the stored state.
    fn equivalent_states(
        &self,
        mode: ScriptMode,
        now: Timestamp,
        states: &mut [RepliedState<'_>],
        summaries: &[Option<Summary>],
    ) -> Few<AnyState> {
        let mut available: Few<u64> = Few::new();
        for ((state, summary), planned) in states.iter_mut().zip(summaries).zip(self.plan.states())
        {
            available.push(match (state, summary) {
                (RepliedState::Whole(state), _) => {
                    state.advance_and_check(&planned.limit, &Attempt::new(Cost::PEEK, now));
                    state.available(&planned.limit, now)
                }
                (_, summary) => {
                    planned.limit.count().saturating_sub(summary.unwrap_or_default().total)
                }
            });
        }
        let charged = self.charged(mode, &available);
        let both = self.plan.states().iter().zip(summaries).zip(charged);
        let equivalents = both.filter_map(|((planned, summary), charged)| {
            let summary = summary.as_ref()?;
            let lacking = match (planned.cost, charged) {
                (Cost::Ask(units), Some(charged)) if units <= planned.limit.capacity() => {
                    (summary.total + charged + units.max(1)).saturating_sub(planned.limit.count())
                }
                _ => 0,
            };
            Some(AnyState::Plain(summary.equivalent_state(&planned.limit, now, lacking)))
        });
        equivalents.collect()
    }

    /// For each state the units that the run has charged to it when the first request is denied;
    /// `None` if the state admits all of them.
    fn charged(&self, mode: ScriptMode, available: &[u64]) -> Few<Option<u64>> {
        let both = || self.plan.states().iter().zip(available);
        if self.is_plain(mode) {
            let fits = both().map(|(planned, available)| available / units(planned.cost).max(1));
            let admitted = fits.min().unwrap_or(0).min(self.times.into());
            let is_denied = admitted < u64::from(self.times);
            let charged =
                both().map(|(planned, _)| is_denied.then(|| units(planned.cost) * admitted));
            return charged.collect();
        }
        let admits = |planned: &PlannedState, available: u64| match planned.cost {
            Cost::Ask(units) => units.max(1) <= available,
            Cost::Force(_) | Cost::Refund(_) => true,
        };
        let admits: Few<bool> =
            both().map(|(planned, &available)| admits(planned, available)).collect();
        let is_admitted = matches!(mode, ScriptMode::Decide | ScriptMode::Undo)
            && both().zip(&admits).all(|((planned, _), admits)| planned.observed || *admits);
        let charges = self.plan.charges(&admits);
        let charged = both().zip(charges).map(|((planned, &available), charges)| match charges {
            true if is_admitted => None,
            _ if !is_admitted => Some(consumed_units(planned, mode, available)),
            _ => Some(0),
        });
        charged.collect()
    }

    /// Applies one request to the states.
    fn replay_one(
        &self,
        mode: ScriptMode,
        now: Timestamp,
        states: &mut [&mut AnyState],
    ) -> ScriptReply {
        let (mut admits, mut consumed) = (Few::<bool>::new(), Few::<u64>::new());
        let mut admitted = matches!(mode, ScriptMode::Decide | ScriptMode::Undo);
        for (planned, state) in self.plan.states().iter().zip(&mut *states) {
            let attempt = Attempt::new(replayed_cost(planned, state), now);
            admits.push(state.advance_and_check(&planned.limit, &attempt));
            consumed.push(consumed_units(planned, mode, state.available(&planned.limit, now)));
            admitted &= admits.last() == Some(&true) || planned.observed;
        }
        let mut is_consumed = false;
        let effects = self.plan.charges(&admits).into_iter().zip(consumed);
        let both = self.plan.states().iter().zip(states).zip(effects);
        let decisions = both.map(|((planned, state), (charges, consumed))| {
            let attempt = Attempt::new(replayed_cost(planned, state), now);
            if !admitted && consumed > 0 {
                // The decision is a denial, computed from the state after the charge.
                is_consumed = true;
                let charge = Attempt::new(Cost::Force(consumed), now);
                let _ = state.finish(&planned.limit, &charge, true);
            }
            state.finish(&planned.limit, &attempt, admitted && charges)
        });
        let decisions = decisions.collect();
        ScriptReply { now, admitted, consumed: is_consumed, decisions }
    }
}

/// The cost that is applied to a state of the reply. A summary describes the state after a forced
/// charge or a refund, and a refund of 0 then returns its current values.
fn replayed_cost(planned: &PlannedState, state: &AnyState) -> Cost {
    let is_summary =
        matches!(state, AnyState::Plain(_)) && stored_state::is_summarized(&planned.limit);
    match planned.cost {
        Cost::Force(_) | Cost::Refund(_) if is_summary => Cost::Refund(0),
        cost => cost,
    }
}

/// The units of a state that a denial consumes.
fn consumed_units(planned: &PlannedState, mode: ScriptMode, available: u64) -> u64 {
    match planned.cost {
        Cost::Ask(units) if planned.consumes() && mode != ScriptMode::Dry => units.min(available),
        _ => 0,
    }
}

fn units(cost: Cost) -> u64 {
    match cost {
        Cost::Ask(units) | Cost::Force(units) | Cost::Refund(units) => units,
    }
}

/// A number of states, entries, runs or bytes. Batches and requests are far smaller than 65,536.
fn encode_length(length: usize) -> [u8; 2] {
    u16::try_from(length).unwrap_or(u16::MAX).to_le_bytes()
}

/// Whether no two entries share a state.
fn have_distinct_states(entries: &[&Entry]) -> bool {
    let mut keys: Vec<&[u8]> =
        entries.iter().flat_map(|entry| entry.states()).map(|state| &*state.key).collect();
    keys.sort_unstable();
    keys.windows(2).all(|pair| pair[0] != pair[1])
}

/// How the requests of a group are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupRequests {
    /// For each entry.
    Each = 0,
    /// Once for all entries.
    Same = 1,
    /// Not at all: each entry asks for one unit of every state.
    Unit = 2,
}

/// Builds a call, group by group. All keys must be in one slot.
#[derive(Debug)]
pub struct CallBuilder {
    keys: Vec<Vec<u8>>,
    args: Vec<Vec<u8>>,
}

impl CallBuilder {
    /// Creates a call without entries, at `now` or, if it is `None`, at the server's time.
    pub fn new(now: Option<Timestamp>) -> Self {
        CallBuilder { keys: Vec::new(), args: vec![script::time_arg(now)] }
    }

    /// Adds a group of entries with equal limits and mode. If the entry has an id, it must be
    /// alone.
    pub fn push(&mut self, entries: &[&Entry]) {
        let Some(first) = entries.first() else { return };
        let runs: Vec<Vec<u8>> = entries.iter().map(|entry| entry.encode_runs()).collect();
        let is_same = runs.windows(2).all(|pair| pair[0] == pair[1]);
        let requests = match is_same {
            true if first.is_unit() && have_distinct_states(entries) => GroupRequests::Unit,
            true => GroupRequests::Same,
            false => GroupRequests::Each,
        };
        let id = first.id();
        let states = first.states().len();
        let mut group = Vec::with_capacity(GROUP_BYTES + LIMIT_BYTES * states + runs[0].len());
        group.push(match first.mode {
            ScriptMode::Decide => 0,
            ScriptMode::Dry => 1,
            ScriptMode::Undo => 2,
            ScriptMode::Consume => 3,
        });
        group.extend_from_slice(&encode_length(states));
        group.extend_from_slice(&encode_length(entries.len()));
        group.push(requests as u8);
        group.extend_from_slice(&encode_length(id.map_or(0, |id| id.costs.len())));
        first.limits().for_each(|limit| script::encode_limit(limit, &mut group));
        let written = match requests {
            GroupRequests::Each => &runs[..],
            GroupRequests::Same => &runs[..1],
            GroupRequests::Unit => &[],
        };
        written.iter().for_each(|runs| group.extend_from_slice(runs));
        if let Some(id) = id {
            group.extend_from_slice(&id.costs);
            group.extend_from_slice(&id.window_us.to_le_bytes());
        }
        self.args.push(group);
        for entry in entries {
            self.keys.extend(entry.states().iter().map(|state| state.key.clone()));
            self.keys.extend(entry.id().map(|id| id.key.clone()));
        }
    }

    /// Returns the call.
    pub fn finish(self) -> ScriptCall {
        ScriptCall { script: Script::Request, keys: self.keys, args: self.args }
    }

    /// Decodes the reply to a call with these entries: for each of them a reply to every request,
    /// or the error with which the entry failed.
    ///
    /// # Errors
    /// If the reply as a whole is an error or has another form.
    pub fn decode<'e>(
        reply: &Value,
        entries: impl Iterator<Item = &'e Entry>,
    ) -> Result<Vec<Result<Vec<ScriptReply>, EntryError>>, Failure> {
        let Value::Array(values) = reply else { return Err(unexpected_reply(reply)) };
        let Some((Value::Int(now), values)) = values.split_first() else {
            return Err(unexpected_reply(&Value::Nil));
        };
        let now = u64::try_from(*now).map_err(|_| unexpected_reply(&Value::Nil))?;
        // The values of some groups are arrays.
        let flat = values.iter().flat_map(|value| match value {
            Value::Array(values) => &values[..],
            value => std::slice::from_ref(value),
        });
        let flat: Vec<&Value> = flat.collect();
        let mut rest = &flat[..];
        let mut decoded = Vec::new();
        for entry in entries {
            let Some((values, after)) = rest.split_at_checked(entry.values()) else {
                return Err(unexpected_reply(&Value::Nil));
            };
            decoded.push(entry.decode(Timestamp::from_micros(now), values));
            rest = after;
        }
        if rest.is_empty() { Ok(decoded) } else { Err(unexpected_reply(&Value::Nil)) }
    }
}

/// A plan that is sent alone, for tests and benchmarks.
#[cfg(feature = "unstable")]
impl ScriptPlan {
    /// Returns the call that decides this plan alone, at `now` or, if it is `None`, at the server's
    /// time. All keys must be in one slot; see [`ScriptPlan::split_by_slot`].
    pub fn call(&self, mode: ScriptMode, now: Option<Timestamp>) -> ScriptCall {
        let mut call = CallBuilder::new(now);
        call.push(&[&Entry::new(self.clone(), mode)]);
        call.finish()
    }

    /// Decodes the reply to the call of this plan alone.
    ///
    /// # Errors
    /// If the reply is an error or has another form, and [`CheckError::IdReused`].
    pub fn decode_reply(&self, mode: ScriptMode, reply: &Value) -> Result<ScriptReply, StoreError> {
        let entry = Entry::new(self.clone(), mode);
        let mut replies = CallBuilder::decode(reply, std::iter::once(&entry))?;
        let decided = replies.pop().unwrap_or(Ok(Vec::new()))?.pop();
        decided.ok_or_else(|| unexpected_reply(&Value::Nil).into())
    }
}
