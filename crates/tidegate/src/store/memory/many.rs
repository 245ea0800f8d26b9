//! Several checks at once: all are charged or none.
//!
//! The shards of all checks are locked, in order of their number, so two
//! requests can never wait for each other in a circle. Then every state is asked
//! before any is charged.

use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Ask, Cost, Decision, PermitId, State, Timestamp};

use super::one::{Located, counts, denied_full};
use super::shard::Locked;
use super::{MemoryStore, WhenFull};
use crate::check::MAX_CHECKS;
use crate::store::Request;
use crate::{Check, CheckError, Verdict};

/// Requests have a few checks; more spill to the heap.
pub(super) const FEW: usize = 4;
pub(super) type Few<T> = SmallVec<[T; FEW]>;

/// What tells a watched state from the one in force. Low bits: the shard stays.
pub(super) const OBSERVER: u64 = 0x6f62_7365;

/// All checks of a request that count in one state.
pub(super) struct Plan<'a> {
    pub(super) check: Located<'a>,
    pub(super) observed: bool,
    /// There was no room for its key.
    full: Option<WhenFull>,
    /// There was no room for its key, or none for its log entry or permit.
    overflowed: bool,
}

/// A plan's state while its shard is locked.
struct Loaded {
    state: State,
    /// It has no slot yet.
    new: bool,
    entries: usize,
    /// It would need a log entry or permit, and there are none left.
    out_of_entries: bool,
    admits: bool,
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
        let window_us = plans.iter().map(|plan| plan.check.limit.window_us()).max().unwrap_or(0);
        let (named, costs) = self.name_request(&plans, id);
        let (verdict, forgotten) =
            self.ids.once(named, &costs, window_us, &self.clock, at, || {
                self.decide_plans(request, &mut plans, &members, at)
            })?;
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
        if checks.len() > MAX_CHECKS {
            return Err(CheckError::TooManyChecks(checks.len()));
        }
        let mut plans: Few<Plan<'a>> = SmallVec::new();
        let mut members = SmallVec::new();
        for check in checks {
            if check.limit.algorithm() == Algorithm::Concurrency && !with_permit {
                return Err(CheckError::NeedsPermit);
            }
            let located = self.locate(check);
            let same_state = |plan: &Plan<'_>| {
                plan.check.hash == located.hash
                    && plan.check.limit.id() == located.limit.id()
                    && plan.observed == check.observed
            };
            match plans.iter().position(same_state) {
                None => {
                    members.push(plans.len());
                    let observed = check.observed;
                    plans.push(Plan { check: located, observed, full: None, overflowed: false });
                }
                Some(index) => {
                    members.push(index);
                    plans[index].merge(check)?;
                }
            }
        }
        set_observers_apart(&mut plans);
        Ok((plans, members))
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
        Verdict::new(request.checks, decisions, overflowed)
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
        let mut loaded: Few<Loaded> =
            plans.iter().map(|plan| self.load(lock_of(plan), plan, &ask(plan))).collect();
        let admitted = plans.iter().zip(&loaded).all(|(plan, l)| plan.observed || l.admits);
        let charged = |loaded: &Loaded| admitted && loaded.admits;

        // Every new state gets its place before any is charged.
        let unplaced = plans.iter().zip(&loaded).position(|(plan, loaded)| {
            let needs_place = loaded.new
                && charged(loaded)
                && counts(plan.check.cost)
                && !plan.untracked()
                && !loaded.out_of_entries;
            needs_place && !self.place(lock_of(plan), plan, now)
        });
        if let Some(index) = unplaced {
            self.put_back(plans, loaded, lock_of, now);
            self.turn_away(plans, index);
            return None;
        }
        let both = plans.iter().zip(&mut loaded);
        let answers = both.map(|(plan, loaded)| self.answer(plan, loaded, &ask(plan), admitted));
        let answers: Few<Decision> = answers.collect();
        let out_of_entries: Few<bool> = loaded.iter().map(|loaded| loaded.out_of_entries).collect();
        self.put_back(plans, loaded, lock_of, now);
        for (plan, out) in plans.iter_mut().zip(out_of_entries) {
            plan.overflowed |= out;
        }
        Some(answers)
    }

    fn load(&self, locked: &Locked<'_>, plan: &Plan<'_>, ask: &Ask) -> Loaded {
        let limit = plan.check.limit;
        let place = locked.find(plan.check.fingerprint()).filter(|_| !plan.untracked());
        let mut state = match place {
            Some(place) => self.take(locked, place, limit, ask.now),
            None => State::new(limit),
        };
        let before = state.entries();
        let mut admits = state.admits(limit, ask);
        let entries = state.entries();
        self.table.count_entries(before, entries);
        let out_of_entries = admits && self.out_of_entries(&state, ask.cost);
        let denied = out_of_entries && self.when_full != WhenFull::Allow;
        if denied || plan.full == Some(WhenFull::Deny) {
            admits &= denied_full(limit, ask.cost).allowed;
        }
        Loaded { state, new: place.is_none(), entries, out_of_entries, admits }
    }

    fn place(&self, locked: &Locked<'_>, plan: &Plan<'_>, now: Timestamp) -> bool {
        locked.claim(plan.check.fingerprint(), now, plan.full.is_some()).is_some()
    }

    fn answer(&self, plan: &Plan<'_>, loaded: &mut Loaded, ask: &Ask, admitted: bool) -> Decision {
        let limit = plan.check.limit;
        match plan.full {
            Some(WhenFull::Deny) => denied_full(limit, ask.cost),
            _ if loaded.out_of_entries => self.answer_full(limit, ask),
            _ => self.settle(&mut loaded.state, limit, ask, admitted && loaded.admits),
        }
    }

    /// Puts the states back where they came from or where they were given a place.
    fn put_back<'l>(
        &self,
        plans: &[Plan<'_>],
        loaded: Few<Loaded>,
        lock_of: impl Fn(&Plan<'_>) -> &'l Locked<'l>,
        now: Timestamp,
    ) {
        for (plan, loaded) in plans.iter().zip(loaded) {
            let (locked, fingerprint) = (lock_of(plan), plan.check.fingerprint());
            if plan.untracked() {
                continue;
            }
            let worth_keeping = loaded.state.expires_at(plan.check.limit) > now;
            // Finding a place for a neighbour may have let go of a slot that had expired.
            let place = locked.find(fingerprint).or_else(|| {
                let lost = !loaded.new && worth_keeping;
                if lost { locked.claim(fingerprint, now, true) } else { None }
            });
            match place {
                Some(place) if worth_keeping || !loaded.new => {
                    self.table.count_entries(loaded.entries, loaded.state.entries());
                    self.keep(locked, place, &plan.check, loaded.state, now);
                }
                // A place that was claimed and not needed expires by itself.
                Some(_) => {}
                None => self.table.count_entries(loaded.entries, 0),
            }
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

/// Gives a watched check a state of its own where it would share one with a check
/// that has a say, as when a stricter limit is tried out beside the one in force.
fn set_observers_apart(plans: &mut [Plan<'_>]) {
    for index in 0..plans.len() {
        let state = plans[index].state_hash();
        let shared = |other: &Plan<'_>| !other.observed && other.state_hash() == state;
        if plans[index].observed && plans.iter().any(shared) {
            plans[index].check.hash ^= OBSERVER;
        }
    }
}

impl Plan<'_> {
    /// A number for the state it counts in.
    pub(super) fn state_hash(&self) -> u64 {
        self.check.hash ^ self.check.limit.id()
    }

    /// Whether its state is not kept at all.
    fn untracked(&self) -> bool {
        matches!(self.full, Some(WhenFull::Deny | WhenFull::Allow))
    }

    fn merge(&mut self, check: &Check<'_>) -> Result<(), CheckError> {
        if *self.check.limit != *check.limit {
            return Err(CheckError::Conflict);
        }
        self.check.cost = match (self.check.cost, check.cost) {
            (Cost::Ask(a), Cost::Ask(b)) => Cost::Ask(a.saturating_add(b)),
            (Cost::Force(a), Cost::Force(b)) => Cost::Force(a.saturating_add(b)),
            (Cost::Refund(a), Cost::Refund(b)) => Cost::Refund(a.saturating_add(b)),
            _ => return Err(CheckError::Conflict),
        };
        Ok(())
    }
}
