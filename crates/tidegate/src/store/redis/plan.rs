//! Converts a request to a call of `request.lua`, and the reply to a verdict.
//!
//! A plan owns its data, so that it can be sent to the task that communicates with the server.

use redis::Value;
use smallvec::SmallVec;
use tidegate_core::{Algorithm, Attempt, Cost, Decision, Limit, PermitId, Timestamp};

use super::key_names::{self, KeyNames};
use super::script;
use super::script::{Script, ScriptCall, time_arg, unexpected_reply};
use crate::Request;
use crate::request::MergedChecks;
use crate::request::consumed_if_denied;
use crate::store::StoreError;
use crate::{Check, CheckError, Overflow, Verdict};

/// A list with inline space for the checks of most requests.
type Few<T> = SmallVec<[T; 4]>;

/// A request as a list of the states in which it counts, each once.
#[derive(Clone, Debug)]
pub struct ScriptPlan {
    states: Few<PlannedState>,
    /// The index of the state in which each check counts.
    members: Few<usize>,
    id: Option<IdempotencyId>,
    permit: PermitId,
}

/// All checks of a request that count in one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedState {
    /// The name of the key in Redis.
    pub key: Vec<u8>,
    /// The limit.
    pub limit: Limit,
    /// The sum of the costs of the checks.
    pub cost: Cost,
    /// Whether the state is only observed, and never denies the request.
    pub observed: bool,
    /// The effect of a denial on the state.
    pub overflow: Overflow,
}

impl PlannedState {
    /// Returns whether a denial of the request charges the units that are left.
    pub fn consumes(&self) -> bool {
        !self.observed && consumed_if_denied(self.overflow, &self.limit, self.cost) > 0
    }
}

/// An idempotency id.
#[derive(Clone, Debug)]
struct IdempotencyId {
    /// A digest of the id and the names of all states.
    digest: String,
    /// The costs of all states. A request with the same id but other costs is an error.
    costs: Vec<u8>,
    /// The time for which the id is remembered: the longest window.
    window_us: u64,
}

/// The effect of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptMode {
    /// Decides the request, and charges it if it is admitted.
    Decide,
    /// Replies as for a denied request, and changes nothing.
    Dry,
    /// Applies the inverse costs that the caller has computed, also above a limit, and deletes the
    /// idempotency id.
    Undo,
    /// Replies as for a denied request, and charges the units that a denial consumes.
    Consume,
}

/// The decisions of a plan's states, in the order of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptReply {
    /// Whether all enforced states admitted the request. If not, nothing was charged, unless
    /// `consumed` is set.
    pub admitted: bool,
    /// Whether the request was denied and consumed the units that were left in some state.
    pub consumed: bool,
    decisions: Few<Decision>,
}

/// The part of a plan whose keys are in one slot.
#[derive(Clone, Debug)]
pub struct SlotPart {
    /// The part as a plan.
    pub plan: ScriptPlan,
    /// The index of each of its states in the whole plan.
    states: Few<usize>,
}

impl ScriptPlan {
    /// Finds the states in which a request counts, and merges checks that share one.
    ///
    /// # Errors
    /// If the checks are invalid, as in [`Store::decide`](crate::Store::decide).
    pub fn new(request: &Request<'_>, key_names: &KeyNames) -> Result<Self, CheckError> {
        let mut merged = MergedChecks::default();
        merged.add_all(request.checks, request.permit.is_some())?;
        let states = merged.states.iter().enumerate().map(|(index, state)| {
            let Check { limit, cost, observed, overflow, .. } = *state;
            let key = match merged.is_separately_observed(index) {
                true => key_names.observed(state.key, limit),
                false => key_names.state(state.key, limit),
            };
            PlannedState { key, limit: *limit, cost, observed, overflow }
        });
        let (states, permit) = (states.collect(), request.permit.unwrap_or_default());
        let mut plan = ScriptPlan { states, members: merged.members, id: None, permit };
        if let Some(id) = request.id {
            plan.set_id(id);
        }
        Ok(plan)
    }

    /// Returns the states in which the request counts.
    pub fn states(&self) -> &[PlannedState] {
        &self.states
    }

    /// Returns whether the request has an idempotency id or a permit.
    pub fn has_id_or_permit(&self) -> bool {
        self.id.is_some() || self.permit != PermitId::default()
    }

    /// Returns whether a denial may charge the units that are left.
    pub fn consumes(&self) -> bool {
        self.states.iter().any(PlannedState::consumes)
    }

    /// Returns the states in which the request acquires permits if it is admitted.
    pub fn acquiring(&self) -> impl Iterator<Item = &PlannedState> {
        self.states.iter().filter(|state| {
            let takes = matches!(state.cost, Cost::Ask(1..) | Cost::Force(1..));
            takes && state.limit.algorithm() == Algorithm::Concurrency
        })
    }

    /// The permit under which those are held.
    pub(super) fn permit(&self) -> PermitId {
        self.permit
    }

    /// Returns the call that decides the plan, at `now` or, if it is `None`, at the server's time.
    /// All keys must be in one slot; see [`ScriptPlan::split_by_slot`].
    pub fn call(&self, mode: ScriptMode, now: Option<Timestamp>) -> ScriptCall {
        self.call_with(mode, self.id_key(), now)
    }

    /// Whether equal requests can be merged into one with the sum of their costs. That is not
    /// possible with an id, a permit, a refund, a forced charge, an observed check or a cost that
    /// consumes the units that are left.
    pub(super) fn is_mergeable(&self) -> bool {
        let is_plain = |state: &PlannedState| {
            matches!(state.cost, Cost::Ask(1..))
                && !state.observed
                && !state.consumes()
                && state.limit.algorithm() != Algorithm::Concurrency
        };
        !self.has_id_or_permit() && self.states.iter().all(is_plain)
    }

    /// The sum of `times` equal requests. The plan must be mergeable.
    pub(super) fn repeated(&self, times: u64) -> ScriptPlan {
        let states = self.states.iter().map(|state| {
            let cost = Cost::Ask(units(state).saturating_mul(times));
            // A denied cost of 1 consumes nothing, and a sum of such costs must not either.
            PlannedState { cost, overflow: Overflow::Refuse, ..state.clone() }
        });
        // All fields are listed, so that a new field must be considered here.
        let (members, permit) = (self.members.clone(), PermitId::default());
        ScriptPlan { states: states.collect(), members, id: None, permit }
    }

    /// The number of equal requests that empty states would admit, at least 1.
    pub(super) fn max_repeats(&self) -> u64 {
        let capacity = |state: &PlannedState| match state.limit.algorithm() {
            Algorithm::TokenBucket => state.limit.burst(),
            _ => state.limit.count(),
        };
        let times = self.states.iter().map(|state| capacity(state) / units(state));
        times.min().unwrap_or(1).max(1)
    }

    /// The number of equal requests that still fit after this reply.
    pub(super) fn repeats_left(&self, script_reply: &ScriptReply) -> u64 {
        let both = self.states.iter().zip(&script_reply.decisions);
        both.map(|(state, decision)| decision.remaining / units(state)).min().unwrap_or(0)
    }

    /// The replies to requests that were merged and admitted together, in order. Each `remaining`
    /// is the number of units that were left after that request.
    pub(super) fn each(&self, times: u64, last: &ScriptReply) -> impl Iterator<Item = ScriptReply> {
        (0..times).rev().map(move |behind| {
            let mut script_reply = last.clone();
            for (state, decision) in self.states.iter().zip(&mut script_reply.decisions) {
                decision.remaining += units(state) * behind;
            }
            script_reply
        })
    }

    /// Decodes the reply to the call of this plan.
    ///
    /// # Errors
    /// If the reply is an error or has another form, and [`CheckError::IdReused`].
    pub fn decode_reply(&self, reply: &Value) -> Result<ScriptReply, StoreError> {
        let read = script::decode_request_reply(reply, &self.states)
            .ok_or_else(|| unexpected_reply(reply))?;
        if read.outcome == script::RequestOutcome::IdReused {
            return Err(CheckError::IdReused.into());
        }
        let admitted = read.outcome == script::RequestOutcome::Admitted;
        // If so, the reply describes the states after the charge.
        let consumed = read.outcome == script::RequestOutcome::Consumed;
        let both = self.states.iter().zip(read.states);
        let decisions = both.map(|(state, numbers)| {
            let (mut equivalent_state, cost) = script::equivalent_state(state, read.now, numbers);
            let attempt = Attempt::new(cost, read.now);
            let admits = equivalent_state.advance_and_check(&state.limit, &attempt);
            equivalent_state.finish(&state.limit, &attempt, admitted && admits)
        });
        Ok(ScriptReply { admitted, consumed, decisions: decisions.collect() })
    }

    /// Returns the verdict on the request from which the plan was made.
    pub fn verdict(&self, checks: &[Check<'_>], script_reply: &ScriptReply) -> Verdict {
        let decisions = self.members.iter().map(|&state| script_reply.decisions[state]);
        let mut verdict = Verdict::new(checks, decisions);
        verdict.consumed = script_reply.consumed;
        verdict
    }

    /// Splits the plan into parts of one slot each, in the order of the checks. Each part is
    /// decided separately and has a separate idempotency record; see [`ScriptPlan::combine`] and
    /// [`ScriptPlan::undo`].
    pub fn split_by_slot(&self, slot: impl Fn(&[u8]) -> u16) -> Vec<SlotPart> {
        let mut split_by_slot = Vec::<(u16, Few<usize>)>::new();
        for &state in &self.members {
            let slot = slot(&self.states[state].key);
            match split_by_slot.iter_mut().find(|(other, _)| *other == slot) {
                Some((_, states)) if states.contains(&state) => {}
                Some((_, states)) => states.push(state),
                None => split_by_slot.push((slot, SmallVec::from_slice(&[state]))),
            }
        }
        split_by_slot.into_iter().map(|(_, states)| self.slot_part(states)).collect()
    }

    /// Combines the replies of all parts into the reply of the plan. No part may be missing.
    pub fn combine<'a>(
        &self,
        split_by_slot: impl Iterator<Item = (&'a SlotPart, &'a ScriptReply)>,
    ) -> ScriptReply {
        let mut all: Few<Option<Decision>> = self.states.iter().map(|_| None).collect();
        let (mut admitted, mut consumed) = (true, false);
        for (part, script_reply) in split_by_slot {
            admitted &= script_reply.admitted;
            consumed |= script_reply.consumed;
            for (&state, &decision) in part.states.iter().zip(&script_reply.decisions) {
                all[state] = Some(decision);
            }
        }
        ScriptReply { admitted, consumed, decisions: all.into_iter().flatten().collect() }
    }

    /// Returns the calls that undo the charges of a part, if it was admitted, and delete its
    /// idempotency id.
    pub fn undo(&self, script_reply: &ScriptReply, now: Option<Timestamp>) -> Vec<ScriptCall> {
        if !script_reply.admitted {
            return Vec::new();
        }
        let mut calls = Vec::new();
        let mut undone = ScriptPlan { states: Few::new(), ..self.clone() };
        for (state, decision) in self.states.iter().zip(&script_reply.decisions) {
            let cost = match state.cost {
                _ if !decision.allowed => continue,
                Cost::Ask(0) => continue,
                Cost::Ask(_) | Cost::Force(_)
                    if state.limit.algorithm() == Algorithm::Concurrency =>
                {
                    calls.push(script::release_call(vec![state.key.clone()], self.permit, now));
                    continue;
                }
                Cost::Ask(units) | Cost::Force(units) => Cost::Refund(units),
                Cost::Refund(units) => Cost::Force(units),
            };
            undone.states.push(PlannedState { cost, ..state.clone() });
        }
        if !undone.states.is_empty() || undone.id.is_some() {
            // The name of the id contains the slot of the first state, which `undone` may lack.
            let id_key = self.id_key();
            calls.push(undone.call_with(ScriptMode::Undo, id_key, now));
        }
        calls
    }

    /// Sets the idempotency id. The states are sorted by name, so that the id does not depend on
    /// the order of the checks.
    fn set_id(&mut self, id: &[u8]) {
        let mut order: Few<usize> = (0..self.states.len()).collect();
        order.sort_unstable_by(|&a, &b| self.states[a].key.cmp(&self.states[b].key));
        let position = |state: usize| order.iter().position(|&other| other == state);
        self.members = self.members.iter().filter_map(|&state| position(state)).collect();
        self.states = order.iter().map(|&state| self.states[state].clone()).collect();
        self.id = Some(IdempotencyId {
            digest: key_names::id_digest(self.states.iter().map(|state| &*state.key), id),
            costs: self.states.iter().flat_map(|state| script::cost_text(state.cost)).collect(),
            window_us: self.states.iter().map(|s| s.limit.window_us()).max().unwrap_or(0),
        });
    }

    fn id_key(&self) -> Option<Vec<u8>> {
        let (id, first) = (self.id.as_ref()?, self.states.first()?);
        Some(key_names::id_name(&first.key, &id.digest))
    }

    fn call_with(
        &self,
        mode: ScriptMode,
        id_key: Option<Vec<u8>>,
        now: Option<Timestamp>,
    ) -> ScriptCall {
        let mut args = vec![time_arg(now), script::encode_plan(&self.states, mode, self.permit)];
        if let (Some(id), Some(_)) = (&self.id, &id_key) {
            args.push(id.costs.clone());
            args.push(id.window_us.to_string().into_bytes());
        }
        let keys = self.states.iter().map(|state| state.key.clone()).chain(id_key).collect();
        ScriptCall { script: Script::Request, keys, args }
    }

    fn slot_part(&self, states: Few<usize>) -> SlotPart {
        let plan = ScriptPlan {
            states: states.iter().map(|&state| self.states[state].clone()).collect(),
            members: (0..states.len()).collect(),
            id: self.id.clone(),
            permit: self.permit,
        };
        SlotPart { plan, states }
    }
}

/// The units that a request charges to a state, at least 1.
pub(super) fn units(state: &PlannedState) -> u64 {
    match state.cost {
        Cost::Ask(units) | Cost::Force(units) | Cost::Refund(units) => units.max(1),
    }
}
