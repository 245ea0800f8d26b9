//! Several checks at once: all are charged or none.
//!
//! The shards of all checks are locked, in order of their number, so two
//! requests can never wait for each other in a circle. Then every state is taken
//! out of its slot, which keeps single checks away, and asked before any is charged.

use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;
use tidegate_core::{Ask, Cost, Decision, PermitId, State, Timestamp};

use super::one::Located;
use super::rare::{counts, denied_full, lacks_room};
use super::shard::{Locked, Place};
use super::{MemoryStore, WhenFull};
use crate::check::overflowing;
use crate::store::Request;
use crate::store::merge::Merged;
use crate::{Check, CheckError, Overflow, Verdict};

/// Requests have a few checks; more spill to the heap.
pub(super) const FEW: usize = 4;
pub(super) type Few<T> = SmallVec<[T; FEW]>;

/// What tells a watched state from the one in force. Low bits: the shard stays.
pub(super) const OBSERVER: u64 = 0x6f62_7365;

/// All checks of a request that count in one state.
pub(super) struct Plan<'a> {
    pub(super) check: Located<'a>,
    pub(super) observed: bool,
    overflow: Overflow,
    /// Whether its state on its own admitted the request.
    admits: bool,
    /// The request was denied, and this state charged what it had left.
    consumed: bool,
    /// There was no room for its key.
    full: Option<WhenFull>,
    /// There was no room for its key, or none for its log entry or permit.
    overflowed: bool,
    /// It was denied, or forced and not recorded, for that alone.
    no_room: bool,
}

/// A plan's state, out of its slot, which is seized until it is put back.
struct Loaded {
    state: State,
    /// It has no slot.
    new: bool,
    entries: usize,
    answer: Asked,
}

/// What a state on its own says to a plan.
#[derive(Clone, Copy)]
struct Asked {
    admits: bool,
    /// It would need a log entry or permit, and there are none left.
    out_of_entries: bool,
    /// Units it is charged if the request is denied.
    consumes: u64,
}

/// Whether everybody who has a say admits the request.
fn admitted(plans: &[Plan<'_>], answers: impl Iterator<Item = Asked>) -> bool {
    plans.iter().zip(answers).all(|(plan, answer)| plan.observed || answer.admits)
}

impl MemoryStore {
    /// Decides a request, at the time given or the clock's.
    pub(crate) fn decide_all(
        &self,
        request: &Request<'_>,
        at: Option<Timestamp>,
    ) -> Result<Verdict, CheckError> {
        if request.id.is_none()
            && let Some(verdict) = self.decide_few(request.checks, self.time(at))
        {
            return Ok(verdict);
        }
        let (mut plans, members) = self.plan(request.checks, request.permit.is_some())?;
        let Some(id) = request.id else {
            return Ok(self.decide_plans(request, &mut plans, &members, at));
        };
        let named = self.name_with_window(&plans, id);
        self.once(named, at, || self.decide_plans(request, &mut plans, &members, at))
    }

    /// The remembered answer to a request under an id, or that of `decide`, which is remembered
    /// if it is admitted.
    #[cfg(feature = "policies")]
    pub(crate) fn decide_once(
        &self,
        request: &Request<'_>,
        decide: impl FnOnce() -> Verdict,
    ) -> Result<Verdict, CheckError> {
        let (plans, _) = self.plan(request.checks, request.permit.is_some())?;
        match request.id {
            Some(id) => self.once(self.name_with_window(&plans, id), None, decide),
            None => Ok(decide()),
        }
    }

    /// What `name_request` returns, and how long it is remembered.
    fn name_with_window(&self, plans: &[Plan<'_>], id: &[u8]) -> (u64, Few<Cost>, u64) {
        let window_us = plans.iter().map(|plan| plan.check.limit.window_us()).max().unwrap_or(0);
        let (named, costs) = self.name_request(plans, id);
        (named, costs, window_us)
    }

    fn once(
        &self,
        (named, costs, window_us): (u64, Few<Cost>, u64),
        at: Option<Timestamp>,
        decide: impl FnOnce() -> Verdict,
    ) -> Result<Verdict, CheckError> {
        let (verdict, forgotten) =
            self.ids.once(named, &costs, window_us, &self.clock, at, decide)?;
        self.tally.forgotten_ids.fetch_add(u64::from(forgotten), Relaxed);
        Ok(verdict)
    }

    /// Works out which states a request counts in, merging checks that share one,
    /// and which plan each check belongs to.
    pub(super) fn plan<'a>(
        &self,
        checks: &[Check<'a>],
        with_permit: bool,
    ) -> Result<(Few<Plan<'a>>, Few<usize>), CheckError> {
        let merged = Merged::new(checks, with_permit)?;
        let plans = merged.states.iter().enumerate().map(|(index, state)| {
            let mut located = self.locate(state);
            if merged.is_set_apart(index) {
                located.hash ^= OBSERVER;
            }
            Plan::new(located, state)
        });
        Ok((plans.collect(), merged.members))
    }

    /// What a request waits for, as a number equal for requests that count in the
    /// same states, and its cost in each of them.
    pub(crate) fn shape(&self, checks: &[Check<'_>]) -> Result<(u64, Box<[Cost]>), CheckError> {
        let (plans, _) = self.plan(checks, false)?;
        let (name, costs) = self.name_request(&plans, &[]);
        Ok((name, costs.into_iter().collect()))
    }

    /// A number for a request under an id, and its costs; the order of its checks
    /// does not matter to either.
    fn name_request(&self, plans: &[Plan<'_>], id: &[u8]) -> (u64, Few<Cost>) {
        let mut states: Few<(u64, Cost)> =
            plans.iter().map(|plan| (plan.state_hash(), plan.check.cost)).collect();
        states.sort_unstable_by_key(|(hash, _)| *hash);
        let named = states.iter().flat_map(|(hash, _)| hash.to_le_bytes());
        let named: SmallVec<[u8; 64]> = named.chain(id.iter().copied()).collect();
        (self.hash(&named), states.into_iter().map(|(_, cost)| cost).collect())
    }

    fn decide_plans(
        &self,
        request: &Request<'_>,
        plans: &mut [Plan<'_>],
        members: &[usize],
        at: Option<Timestamp>,
    ) -> Verdict {
        let permit = request.permit.unwrap_or_default();
        let answers = loop {
            if let Some(answers) = self.try_plans(plans, permit, at) {
                break answers;
            }
        };
        let overflowed = plans.iter().any(|plan| plan.overflowed);
        let decisions = members.iter().map(|&plan| answers[plan]).collect();
        let mut verdict = Verdict::new(request.checks, decisions, overflowed);
        verdict.consumed = plans.iter().any(|plan| plan.consumed);
        let mut enforced = plans.iter().filter(|plan| !plan.observed);
        verdict.no_room = match verdict.allowed {
            true => enforced.any(|plan| plan.no_room),
            // Where something is used up as well, room would not have helped.
            false => enforced.all(|plan| plan.admits || plan.no_room),
        };
        verdict
    }

    /// Locks, asks, charges. `None` when a key turned out to have no room: its
    /// plan now says so, and all begins anew, at most once per plan.
    fn try_plans(
        &self,
        plans: &mut [Plan<'_>],
        permit: PermitId,
        at: Option<Timestamp>,
    ) -> Option<Few<Decision>> {
        let mut shards: Few<usize> = plans.iter().map(|plan| plan.check.shard).collect();
        shards.sort_unstable();
        shards.dedup();
        let locks: Few<Locked<'_>> = shards.iter().map(|&shard| self.table.lock(shard)).collect();
        let lock_of = |plan: &Plan<'_>| {
            let index = shards.binary_search(&plan.check.shard).expect("all shards are locked");
            &locks[index]
        };
        // Under the locks, so that times in one place never run backwards.
        let now = self.time(at);
        let homeless = plans.iter().position(|plan| {
            let locked = lock_of(plan);
            self.make_entries(locked, plan.check.limit, now);
            plan.full.is_none()
                && locked.find(plan.check.fingerprint()).is_none()
                && self.has_no_room_for(locked, plan.check.limit, now)
        });
        if let Some(index) = homeless {
            self.turn_away(plans, index);
            return None;
        }

        let ask = |plan: &Plan<'_>| Ask { cost: plan.check.cost, now, permit };
        // Every new state that will be charged gets its place before any is taken out
        // of its slot: placing one may move the others.
        if let Some(index) = self.place_new(plans, lock_of, ask) {
            self.turn_away(plans, index);
            return None;
        }
        let mut loaded: Few<Loaded> =
            plans.iter().map(|plan| self.load(lock_of(plan), plan, &ask(plan))).collect();
        let admitted = admitted(plans, loaded.iter().map(|loaded| loaded.answer));
        if plans.iter().zip(&loaded).any(|(plan, l)| l.new && plan.must_be_kept(l.answer, admitted))
        {
            // Units were given back in between; it deserves a place after all.
            self.put_back(plans, loaded, lock_of, now);
            return None;
        }
        let both = plans.iter().zip(&mut loaded);
        let answers = both.map(|(plan, loaded)| self.answer(plan, loaded, &ask(plan), admitted));
        let answers: Few<Decision> = answers.collect();
        for ((plan, loaded), answer) in plans.iter_mut().zip(&loaded).zip(&answers) {
            plan.overflowed |= loaded.answer.out_of_entries;
            let placeless = plan.untracked() || loaded.answer.out_of_entries;
            plan.no_room = placeless && lacks_room(answer, plan.check.cost);
            plan.admits = loaded.answer.admits;
            plan.consumed = !admitted && loaded.answer.consumes > 0;
        }
        self.put_back(plans, loaded, lock_of, now);
        Some(answers)
    }

    /// Gives every plan that has none and will need one a place; or says which
    /// could not be given one.
    fn place_new<'l>(
        &self,
        plans: &[Plan<'_>],
        lock_of: impl Fn(&Plan<'_>) -> &'l Locked<'l>,
        ask: impl Fn(&Plan<'_>) -> Ask,
    ) -> Option<usize> {
        let place = |plan: &Plan<'_>| lock_of(plan).find(plan.check.fingerprint());
        if plans.iter().all(|plan| plan.untracked() || place(plan).is_some()) {
            return None;
        }
        let probe = |plan: &Plan<'_>| match place(plan).filter(|_| !plan.untracked()) {
            Some(place) => self.with_state(lock_of(plan), place, plan, ask(plan).now, |state| {
                self.ask_state(plan, state, &ask(plan))
            }),
            None => self.ask_state(plan, &mut State::new(plan.check.limit), &ask(plan)),
        };
        let probed: Few<Asked> = plans.iter().map(probe).collect();
        let admitted = admitted(plans, probed.iter().copied());
        plans.iter().zip(probed).position(|(plan, asked)| {
            let needs_place = plan.must_be_kept(asked, admitted) && place(plan).is_none();
            let now = ask(plan).now;
            needs_place
                && lock_of(plan).claim(plan.check.fingerprint(), now, plan.full.is_some()).is_none()
        })
    }

    /// Has a look at a state where it is, or, if it is in its slot, at a copy.
    fn with_state<T>(
        &self,
        locked: &Locked<'_>,
        place: Place<'_>,
        plan: &Plan<'_>,
        now: Timestamp,
        then: impl FnOnce(&mut State) -> T,
    ) -> T {
        let slot = place.look();
        if slot.is_in_slab() {
            return locked.slab(|slab| then(slab.get_mut(slot.body())));
        }
        then(&mut self.copy(locked, slot, plan.check.limit, now))
    }

    /// Asks a state without charging it.
    fn ask_state(&self, plan: &Plan<'_>, state: &mut State, ask: &Ask) -> Asked {
        let limit = plan.check.limit;
        let before = state.entries();
        let mut admits = state.admits(limit, ask);
        self.table.count_entries(before, state.entries());
        let out_of_entries = admits && self.out_of_entries(state, ask.cost);
        let denied = out_of_entries && self.when_full != WhenFull::Allow;
        if denied || plan.full == Some(WhenFull::Deny) {
            admits &= denied_full(limit, ask.cost).allowed;
        }
        let kept = !plan.untracked() && !self.out_of_entries(state, ask.cost);
        let consumes = match plan.overflowing() {
            units @ 1.. if kept => units.min(state.available(limit, ask.now)),
            _ => 0,
        };
        Asked { admits, out_of_entries, consumes }
    }

    fn load(&self, locked: &Locked<'_>, plan: &Plan<'_>, ask: &Ask) -> Loaded {
        let limit = plan.check.limit;
        let place = locked.find(plan.check.fingerprint()).filter(|_| !plan.untracked());
        let mut state = match place {
            Some(place) => self.take(locked, place, limit, ask.now),
            None => State::new(limit),
        };
        let answer = self.ask_state(plan, &mut state, ask);
        let entries = state.entries();
        Loaded { state, new: place.is_none(), entries, answer }
    }

    fn answer(&self, plan: &Plan<'_>, loaded: &mut Loaded, ask: &Ask, admitted: bool) -> Decision {
        let limit = plan.check.limit;
        match plan.full {
            Some(WhenFull::Deny) => denied_full(limit, ask.cost),
            _ if loaded.answer.out_of_entries => self.answer_full(limit, ask),
            _ if !admitted && loaded.answer.consumes > 0 => {
                // A denial that answers for the state after the charge.
                let consumed = Ask { cost: Cost::Force(loaded.answer.consumes), ..*ask };
                self.settle(&mut loaded.state, limit, &consumed, true);
                loaded.state.settle(limit, ask, false)
            }
            _ => self.settle(&mut loaded.state, limit, ask, admitted && loaded.answer.admits),
        }
    }

    /// Puts the states back where they came from.
    fn put_back<'l>(
        &self,
        plans: &[Plan<'_>],
        loaded: Few<Loaded>,
        lock_of: impl Fn(&Plan<'_>) -> &'l Locked<'l>,
        now: Timestamp,
    ) {
        for (plan, loaded) in plans.iter().zip(loaded) {
            if loaded.new {
                continue;
            }
            let locked = lock_of(plan);
            let place = locked.find(plan.check.fingerprint()).expect("nobody moved it");
            self.table.count_entries(loaded.entries, loaded.state.entries());
            self.keep(locked, place, &plan.check, loaded.state, now);
        }
    }

    /// Notes that a plan's key has no room of its own.
    fn turn_away(&self, plans: &mut [Plan<'_>], index: usize) {
        plans[index].overflowed = true;
        self.tally.overflowed.fetch_add(1, Relaxed);
        if self.when_full == WhenFull::Overflow && plans[index].full.is_none() {
            // Two such keys of one request still count apart.
            let id = plans[index].check.limit.id();
            let before =
                plans.iter().filter(|p| p.full.is_some() && p.check.limit.id() == id).count();
            let hash = self.overflow_hash.wrapping_add(before as u64);
            plans[index].check.hash = hash;
            plans[index].check.shard = self.table.shard_of(hash);
            plans[index].full = Some(WhenFull::Overflow);
        } else if self.when_full == WhenFull::Allow {
            plans[index].full = Some(WhenFull::Allow);
        } else {
            plans[index].full = Some(WhenFull::Deny);
        }
    }
}

impl<'a> Plan<'a> {
    fn new(located: Located<'a>, check: &Check<'_>) -> Self {
        let Check { observed, overflow, .. } = *check;
        Plan {
            check: located,
            observed,
            overflow,
            admits: false,
            consumed: false,
            full: None,
            overflowed: false,
            no_room: false,
        }
    }

    /// The units that are charged, as far as they are left, if the request is denied.
    fn overflowing(&self) -> u64 {
        let Located { limit, cost, .. } = self.check;
        if self.observed { 0 } else { overflowing(self.overflow, limit, cost) }
    }

    /// A number for the state it counts in.
    pub(super) fn state_hash(&self) -> u64 {
        self.check.hash ^ self.check.limit.id()
    }

    /// Whether its state will have something in it that must be kept.
    fn must_be_kept(&self, answer: Asked, admitted: bool) -> bool {
        if !admitted {
            return answer.consumes > 0;
        }
        answer.admits && !answer.out_of_entries && counts(self.check.cost) && !self.untracked()
    }

    /// Whether its state is not kept at all.
    fn untracked(&self) -> bool {
        matches!(self.full, Some(WhenFull::Deny | WhenFull::Allow))
    }
}
