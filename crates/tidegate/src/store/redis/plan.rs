//! Converts a request to a plan, and its decisions to a verdict.
//!
//! A plan owns its data, so that it can be sent to the task that communicates with the server.
//! `entry.rs` converts plans to calls of `request.lua`.

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Cost, Decision, Limit, PermitId, Timestamp};

use super::key_names::{self, KeyNames};
use super::script;
use crate::Request;
use crate::request::MergedChecks;
use crate::request::consumed_if_denied;
use crate::{Check, CheckError, Overflow, Verdict};

/// A list with inline space for the checks of most requests.
pub(super) type Few<T> = SmallVec<[T; 4]>;

/// The numbers of the roles of states in `request.lua`; 0 is enforced. The numbers above
/// [`CONSUMES`] are those of the groups of observed states.
const OBSERVED: u8 = 1;
const CONSUMES: u8 = 2;

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
    /// The number of the group of states that it is observed together with; 0 if there are none.
    pub group: u8,
    /// The effect of a denial on the state.
    pub overflow: Overflow,
}

impl PlannedState {
    /// The number of its role in `request.lua`.
    pub(super) fn role(&self) -> u8 {
        match self.group {
            0 if self.consumes() => CONSUMES,
            0 => u8::from(self.observed),
            group => CONSUMES + group,
        }
    }

    /// Returns whether a denial of the request charges the units that are left.
    pub fn consumes(&self) -> bool {
        !self.observed && consumed_if_denied(self.overflow, &self.limit, self.cost) > 0
    }
}

/// An idempotency id.
#[derive(Clone, Debug)]
pub(super) struct IdempotencyId {
    /// The name of its key in Redis, in the slot of the first state.
    pub(super) key: Vec<u8>,
    /// A digest of the id and the names of all states.
    digest: String,
    /// The costs of all states. A request with the same id but other costs is an error.
    pub(super) costs: Vec<u8>,
    /// The time for which the id is remembered: the longest window.
    pub(super) window_us: u64,
}

/// The effect of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// The time of the store at which the request was decided.
    pub now: Timestamp,
    /// Whether all enforced states admitted the request. If not, nothing was charged, unless
    /// `consumed` is set.
    pub admitted: bool,
    /// Whether the request was denied and consumed the units that were left in some state.
    pub consumed: bool,
    pub(super) decisions: Few<Decision>,
}

/// The part of a plan whose keys are in one slot.
#[derive(Clone, Debug)]
pub struct SlotPart {
    /// The part as a plan.
    pub plan: ScriptPlan,
    /// The index of each of its states in the whole plan.
    states: Few<usize>,
}

/// How to undo a charge.
#[derive(Clone, Debug)]
pub struct Undo {
    /// The states from which the permit is released.
    pub releases: Vec<Vec<u8>>,
    /// The plan that refunds the other states, to be called in [`ScriptMode::Undo`].
    pub plan: Option<ScriptPlan>,
}

impl ScriptPlan {
    /// Finds the states in which a request counts, and merges checks that share one.
    ///
    /// # Errors
    /// If the checks are invalid, as in [`Store::decide`](crate::Store::decide).
    pub fn new(request: &Request<'_>, key_names: &KeyNames) -> Result<Self, CheckError> {
        let mut merged = MergedChecks::default();
        merged.add_all(request.checks, request.permit.is_some())?;
        let groups = merged.observed_groups();
        let states = merged.states.iter().enumerate().map(|(index, state)| {
            let Check { limit, cost, observed, overflow, .. } = *state;
            let key = match merged.is_separately_observed(index) {
                true => key_names.observed(state.key, limit),
                false => key_names.state(state.key, limit),
            };
            PlannedState { key, limit: *limit, cost, observed, group: groups[index], overflow }
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

    /// Returns whether a denial may charge the units that are left.
    pub fn consumes(&self) -> bool {
        self.states.iter().any(PlannedState::consumes)
    }

    /// For each state, whether an admitted request charges it. `admits` is whether each state
    /// admits the request.
    pub(super) fn charges(&self, admits: &[bool]) -> Few<bool> {
        let both = || self.states.iter().zip(admits);
        let denies = |group| both().any(|(state, admits)| state.group == group && !admits);
        let charges =
            both().map(|(state, &admits)| admits && (state.group == 0 || !denies(state.group)));
        charges.collect()
    }

    /// Returns the states in which the request acquires permits if it is admitted.
    pub fn acquiring(&self) -> impl Iterator<Item = &PlannedState> {
        self.states.iter().filter(|state| {
            let takes = matches!(state.cost, Cost::Ask(1..) | Cost::Force(1..));
            takes && state.limit.algorithm() == Algorithm::Concurrency
        })
    }

    /// The idempotency id.
    pub(super) fn id(&self) -> Option<&IdempotencyId> {
        self.id.as_ref()
    }

    /// The permit under which those are held.
    pub(super) fn permit(&self) -> PermitId {
        self.permit
    }

    /// Whether equal requests can be decided as one run: each asks for at least a unit of every
    /// state, all states are enforced, and a denial charges nothing.
    pub(super) fn is_plain(&self) -> bool {
        self.states.iter().all(|state| {
            matches!(state.cost, Cost::Ask(1..))
                && !state.observed
                && !state.consumes()
                && state.limit.algorithm() != Algorithm::Concurrency
        })
    }

    /// This plan with the roles of another request that has the same states and costs.
    pub(super) fn with_roles(&self, roles: &[u8]) -> ScriptPlan {
        let mut plan = self.clone();
        for (state, &role) in plan.states.iter_mut().zip(roles) {
            state.observed = role == OBSERVED || role > CONSUMES;
            state.group = role.saturating_sub(CONSUMES);
            state.overflow = if role == CONSUMES { Overflow::Consume } else { Overflow::Refuse };
        }
        plan
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
        let mut now = Timestamp::from_micros(0);
        for (part, script_reply) in split_by_slot {
            now = now.max(script_reply.now);
            admitted &= script_reply.admitted;
            consumed |= script_reply.consumed;
            for (&state, &decision) in part.states.iter().zip(&script_reply.decisions) {
                all[state] = Some(decision);
            }
        }
        ScriptReply { now, admitted, consumed, decisions: all.into_iter().flatten().collect() }
    }

    /// Returns how to undo the charges of a part, if it was admitted, and to delete its idempotency
    /// id.
    pub fn undo(&self, script_reply: &ScriptReply) -> Undo {
        let mut undo = Undo { releases: Vec::new(), plan: None };
        if !script_reply.admitted {
            return undo;
        }
        let mut plan = ScriptPlan { states: Few::new(), members: Few::new(), ..self.clone() };
        let admits: Few<bool> =
            script_reply.decisions.iter().map(|decision| decision.allowed).collect();
        for (state, is_charged) in self.states.iter().zip(self.charges(&admits)) {
            let cost = match state.cost {
                _ if !is_charged => continue,
                Cost::Ask(0) => continue,
                Cost::Ask(_) | Cost::Force(_)
                    if state.limit.algorithm() == Algorithm::Concurrency =>
                {
                    undo.releases.push(state.key.clone());
                    continue;
                }
                Cost::Ask(units) | Cost::Force(units) => Cost::Refund(units),
                Cost::Refund(units) => Cost::Force(units),
            };
            plan.states.push(PlannedState { cost, ..state.clone() });
        }
        undo.plan = (!plan.states.is_empty() || plan.id.is_some()).then_some(plan);
        undo
    }

    /// Sets the idempotency id. The states are sorted by name, so that the id does not depend on
    /// the order of the checks.
    fn set_id(&mut self, id: &[u8]) {
        let mut order: Few<usize> = (0..self.states.len()).collect();
        order.sort_unstable_by(|&a, &b| self.states[a].key.cmp(&self.states[b].key));
        let position = |state: usize| order.iter().position(|&other| other == state);
        self.members = self.members.iter().filter_map(|&state| position(state)).collect();
        self.states = order.iter().map(|&state| self.states[state].clone()).collect();
        let digest = key_names::id_digest(self.states.iter().map(|state| &*state.key), id);
        self.id = Some(IdempotencyId {
            key: id_key(&self.states, &digest),
            digest,
            costs: self.states.iter().flat_map(|state| script::cost_text(state.cost)).collect(),
            window_us: self.states.iter().map(|s| s.limit.window_us()).max().unwrap_or(0),
        });
    }

    fn slot_part(&self, indexes: Few<usize>) -> SlotPart {
        let states: Few<_> = indexes.iter().map(|&state| self.states[state].clone()).collect();
        let with_key = |id: &IdempotencyId| {
            let key = id_key(&states, &id.digest);
            IdempotencyId { key, ..id.clone() }
        };
        let id = self.id.as_ref().map(with_key);
        let members = (0..states.len()).collect();
        SlotPart { plan: ScriptPlan { states, members, id, permit: self.permit }, states: indexes }
    }
}

/// The name of the key of an idempotency id, in the slot of the first state.
fn id_key(states: &[PlannedState], digest: &str) -> Vec<u8> {
    states.first().map_or(Vec::new(), |first| key_names::id_name(&first.key, digest))
}
