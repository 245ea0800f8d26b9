//! A request as the store sees it: which states it counts in, and what each of them answers.

use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;
use tidegate_core::{Ask, Cost, Decision, Limit, ResetAfter, RetryAfter, State, Timestamp};

use super::fast_path::{ATTEMPTS, FastPathMiss};
use super::lock::Backoff;
use super::slot::Fingerprint;
use super::{MemoryStore, WhenFull};
use crate::check::overflowing;
use crate::store::Request;
use crate::store::merge::Merged;
use crate::{Check, CheckError, Overflow, Verdict};

/// Requests have a few checks; more spill to the heap.
const FEW: usize = 4;
pub(super) type Few<T> = SmallVec<[T; FEW]>;

/// What tells an observed state from the one in force. Only low bits, so the shard stays.
pub(super) const OBSERVER: u64 = 0x6f62_7365;

/// A check and the hash of its key.
#[derive(Clone, Copy)]
pub(super) struct HashedCheck<'a> {
    pub(super) hash: u64,
    pub(super) shard: usize,
    pub(super) limit: &'a Limit,
    pub(super) cost: Cost,
}

impl HashedCheck<'_> {
    /// A number for the state it counts in.
    #[inline]
    pub(super) fn state_hash(&self) -> u64 {
        self.hash ^ self.limit.id()
    }

    #[inline]
    pub(super) fn fingerprint(&self) -> Fingerprint {
        Fingerprint::new(self.state_hash())
    }
}

/// A decision, and whether it is what it is for want of room alone: denied although nothing is
/// used up, or forced and not recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreDecision {
    pub(crate) decision: Decision,
    #[cfg_attr(not(feature = "policies"), expect(dead_code, reason = "the gate reports it"))]
    pub(crate) no_room: bool,
}

impl From<Decision> for StoreDecision {
    #[inline(always)]
    fn from(decision: Decision) -> Self {
        StoreDecision { decision, no_room: false }
    }
}

/// All checks of a request that count in one state.
pub(super) struct StateCheck<'a> {
    pub(super) check: HashedCheck<'a>,
    pub(super) observed: bool,
    overflow: Overflow,
    /// Whether its state on its own admitted the request.
    admits: bool,
    /// The request was denied, and this state charged what it had left.
    consumed: bool,
    /// There was no room for its key.
    pub(super) full: Option<WhenFull>,
    /// There was no room for its key, or none for its log entry or permit.
    overflowed: bool,
    /// It was denied, or forced and not recorded, for that alone.
    pub(super) no_room: bool,
}

/// The state of a check, taken out of the table until it is put back.
pub(super) struct Loaded {
    pub(super) state: State,
    /// The log entries or permits it held in the table.
    pub(super) entries: usize,
    /// The body of its slot, if that is seized.
    pub(super) seized_body: Option<u64>,
    answer: Answer,
}

impl Loaded {
    #[inline]
    pub(super) fn new(state: State, seized_body: Option<u64>) -> Self {
        Loaded { entries: state.entries(), state, seized_body, answer: Answer::default() }
    }
}

/// What a state on its own says to a check.
#[derive(Clone, Copy, Default)]
struct Answer {
    admits: bool,
    /// It would need a log entry or permit, and there are none left.
    out_of_entries: bool,
    /// Units it is charged if the request is denied.
    consumes: u64,
}

impl<'a> StateCheck<'a> {
    pub(super) fn new(hashed: HashedCheck<'a>, observed: bool, overflow: Overflow) -> Self {
        StateCheck {
            check: hashed,
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
        let HashedCheck { limit, cost, .. } = self.check;
        if self.observed { 0 } else { overflowing(self.overflow, limit, cost) }
    }

    /// Whether a denial charges something.
    pub(super) fn is_consuming(&self) -> bool {
        self.overflowing() > 0
    }

    /// Notes what its state decided on its own, and returns whether that leaves the request
    /// admitted.
    #[inline]
    pub(super) fn note(&mut self, decision: &Decision) -> bool {
        self.admits = decision.allowed;
        self.observed || decision.allowed
    }

    /// Whether its state will have something in it that must be kept.
    pub(super) fn must_be_kept(&self, loaded: &Loaded, admitted: bool) -> bool {
        let answer = loaded.answer;
        if !admitted {
            return answer.consumes > 0;
        }
        answer.admits && !answer.out_of_entries && counts(self.check.cost) && !self.is_untracked()
    }

    /// Whether its state is not kept at all.
    pub(super) fn is_untracked(&self) -> bool {
        matches!(self.full, Some(WhenFull::Deny | WhenFull::Allow))
    }
}

impl MemoryStore {
    #[inline(always)]
    pub(super) fn hashed<'a>(&self, check: &Check<'a>) -> HashedCheck<'a> {
        self.with_hash(self.hash(check.key), check)
    }

    #[inline(always)]
    pub(super) fn with_hash<'a>(&self, hash: u64, check: &Check<'a>) -> HashedCheck<'a> {
        let shard = self.table.shard_of(hash);
        HashedCheck { hash, shard, limit: check.limit, cost: check.cost }
    }

    /// Decides a request, at the time given or the clock's.
    pub(crate) fn decide_all(
        &self,
        request: &Request<'_>,
        at: Option<Timestamp>,
    ) -> Result<Verdict, CheckError> {
        let (mut merged, mut checks) = (Merged::default(), Few::new());
        self.merge(request.checks, request.permit.is_some(), &mut merged, &mut checks)?;
        let Some(id) = request.id else {
            return self.decide_merged(request, &mut checks, &merged.members, at);
        };
        let named = self.named_with_window(&checks, id);
        self.once(named, at, || self.decide_merged(request, &mut checks, &merged.members, at))
    }

    /// The remembered answer to a request under an id, or that of `decide`, which is remembered
    /// if it is admitted.
    #[cfg(feature = "policies")]
    pub(crate) fn decide_once(
        &self,
        request: &Request<'_>,
        decide: impl FnOnce() -> Verdict,
    ) -> Result<Verdict, CheckError> {
        let mut checks = Few::new();
        let has_permit = request.permit.is_some();
        self.merge(request.checks, has_permit, &mut Merged::default(), &mut checks)?;
        match request.id {
            Some(id) => self.once(self.named_with_window(&checks, id), None, || Ok(decide())),
            None => Ok(decide()),
        }
    }

    /// What [`MemoryStore::request_fingerprint`] returns, and how long it is remembered.
    fn named_with_window(&self, checks: &[StateCheck<'_>], id: &[u8]) -> (u64, Few<Cost>, u64) {
        let window_us = checks.iter().map(|check| check.check.limit.window_us()).max().unwrap_or(0);
        let (named, costs) = self.request_fingerprint(checks, id);
        (named, costs, window_us)
    }

    fn once(
        &self,
        (named, costs, window_us): (u64, Few<Cost>, u64),
        at: Option<Timestamp>,
        decide: impl FnOnce() -> Result<Verdict, CheckError>,
    ) -> Result<Verdict, CheckError> {
        let (verdict, forgotten) =
            self.ids.once(named, &costs, window_us, &self.clock, at, decide)?;
        self.tally.forgotten_ids.fetch_add(u64::from(forgotten), Relaxed);
        Ok(verdict)
    }

    /// Merges the checks of a request that share a state, and looks up the shard of each state.
    #[inline]
    pub(super) fn merge<'a>(
        &self,
        checks: &[Check<'a>],
        with_permit: bool,
        merged: &mut Merged<'a>,
        states: &mut Few<StateCheck<'a>>,
    ) -> Result<(), CheckError> {
        merged.add_all(checks, with_permit)?;
        let mut last: Option<(&[u8], u64)> = None;
        for (index, state) in merged.states.iter().enumerate() {
            // Several limits on one key are common.
            let hash = match last {
                Some((key, hash)) if std::ptr::eq(key, state.key) => hash,
                _ => self.hash(state.key),
            };
            last = Some((state.key, hash));
            let mut hashed = self.with_hash(hash, state);
            if merged.is_set_apart(index) {
                hashed.hash ^= OBSERVER;
            }
            states.push(StateCheck::new(hashed, state.observed, state.overflow));
        }
        Ok(())
    }

    /// What a request waits for, as a number equal for requests that count in the same states, and
    /// its cost in each of them.
    pub(crate) fn shape(&self, checks: &[Check<'_>]) -> Result<(u64, Box<[Cost]>), CheckError> {
        let mut states = Few::new();
        self.merge(checks, false, &mut Merged::default(), &mut states)?;
        let (name, costs) = self.request_fingerprint(&states, &[]);
        Ok((name, costs.into_iter().collect()))
    }

    /// A number for a request under an id, and its costs. The order of its checks does not matter
    /// to either.
    fn request_fingerprint(&self, checks: &[StateCheck<'_>], id: &[u8]) -> (u64, Few<Cost>) {
        let mut states: Few<(u64, Cost)> =
            checks.iter().map(|check| (check.check.state_hash(), check.check.cost)).collect();
        states.sort_unstable_by_key(|(hash, _)| *hash);
        let named = states.iter().flat_map(|(hash, _)| hash.to_le_bytes());
        let named: SmallVec<[u8; 64]> = named.chain(id.iter().copied()).collect();
        (self.hash(&named), states.into_iter().map(|(_, cost)| cost).collect())
    }

    /// Decides without a lock or, if that is not possible, with one.
    ///
    /// The result is filled in where it is returned: a verdict is large, and copying it would take
    /// as long as some decisions.
    fn decide_merged(
        &self,
        request: &Request<'_>,
        checks: &mut [StateCheck<'_>],
        members: &[usize],
        at: Option<Timestamp>,
    ) -> Result<Verdict, CheckError> {
        let mut decided = Ok(Verdict::default());
        if let Ok(verdict) = &mut decided {
            let decisions = &mut verdict.decisions;
            if !self.attempt(checks, at, decisions) {
                let permit = request.permit.unwrap_or_default();
                self.decide_locked(checks, permit, &|| self.time(at), decisions);
            }
            if checks.len() < members.len() {
                *decisions = members.iter().map(|&state| decisions[state]).collect();
            }
            verdict.conclude(request.checks);
            note_room(verdict, checks);
        }
        decided
    }

    /// Decides without a lock, unless that is not possible. Two requests that have a slot each
    /// which the other needs do not retry for ever.
    fn attempt(
        &self,
        checks: &mut [StateCheck<'_>],
        at: Option<Timestamp>,
        decisions: &mut Few<Decision>,
    ) -> bool {
        let mut backoff = Backoff::new();
        for _ in 0..ATTEMPTS {
            match self.try_all(checks, || self.time(at), decisions) {
                Ok(()) => return true,
                Err(FastPathMiss::Contended) => backoff.wait(),
                Err(FastPathMiss::NotApplicable) => break,
            }
        }
        false
    }

    /// Asks all states without charging them, and returns whether every limit that is enforced
    /// admits the request.
    #[inline]
    pub(super) fn ask_all(
        &self,
        checks: &[StateCheck<'_>],
        loaded: &mut [Loaded],
        ask: &Ask,
    ) -> bool {
        let mut admitted = true;
        for (check, loaded) in checks.iter().zip(loaded) {
            loaded.answer = self.ask_one(check, loaded, &Ask { cost: check.check.cost, ..*ask });
            admitted &= check.observed || loaded.answer.admits;
        }
        admitted
    }

    #[inline]
    fn ask_one(&self, check: &StateCheck<'_>, loaded: &mut Loaded, ask: &Ask) -> Answer {
        let limit = check.check.limit;
        let mut admits = loaded.state.admits(limit, ask);
        let lacks_entry = self.lacks_entry(loaded, ask.cost);
        let out_of_entries = admits && lacks_entry;
        let denied = out_of_entries && self.when_full != WhenFull::Allow;
        if denied || check.full == Some(WhenFull::Deny) {
            admits &= denied_full(limit, ask.cost).allowed;
        }
        let consumes = match check.overflowing() {
            units @ 1.. if !check.is_untracked() && !lacks_entry => {
                units.min(loaded.state.available(limit, ask.now))
            }
            _ => 0,
        };
        Answer { admits, out_of_entries, consumes }
    }

    /// Charges the states if the request was `admitted`, and answers for each.
    #[inline]
    pub(super) fn settle_all(
        &self,
        checks: &mut [StateCheck<'_>],
        loaded: &mut [Loaded],
        ask: &Ask,
        admitted: bool,
        decisions: &mut Few<Decision>,
    ) {
        decisions.clear();
        for (check, loaded) in checks.iter_mut().zip(loaded) {
            let ask = Ask { cost: check.check.cost, ..*ask };
            let decision = self.settle_one(check, loaded, &ask, admitted);
            let answer = loaded.answer;
            check.overflowed |= answer.out_of_entries;
            let is_placeless = check.is_untracked() || answer.out_of_entries;
            check.no_room = is_placeless && lacks_room(&decision, ask.cost);
            check.admits = answer.admits;
            check.consumed = !admitted && answer.consumes > 0;
            decisions.push(decision);
        }
    }

    #[inline]
    fn settle_one(
        &self,
        check: &StateCheck<'_>,
        loaded: &mut Loaded,
        ask: &Ask,
        admitted: bool,
    ) -> Decision {
        let (limit, answer) = (check.check.limit, loaded.answer);
        match check.full {
            Some(WhenFull::Deny) => denied_full(limit, ask.cost),
            _ if answer.out_of_entries => self.answer_full(limit, ask),
            _ if !admitted && answer.consumes > 0 => {
                // A denial that answers for the state after the charge.
                self.charge(loaded, limit, &Ask { cost: Cost::Force(answer.consumes), ..*ask });
                loaded.state.settle(limit, ask, false)
            }
            _ if admitted && answer.admits => self.charge(loaded, limit, ask),
            _ => loaded.state.settle(limit, ask, false),
        }
    }

    /// Charges a state that was brought up to the ask's time, within the bound on log entries.
    #[inline]
    fn charge(&self, loaded: &mut Loaded, limit: &Limit, ask: &Ask) -> Decision {
        if matches!(loaded.state, State::SlidingLog(_))
            && counts(ask.cost)
            && !self.has_entries(loaded)
            && let State::SlidingLog(log) = &mut loaded.state
        {
            log.merge_newest(ask.now);
            self.tally.merged_entries.fetch_add(1, Relaxed);
        }
        loaded.state.settle(limit, ask, true)
    }

    /// Whether a log entry or permit is left, after those that a state has dropped.
    fn has_entries(&self, loaded: &Loaded) -> bool {
        let dropped = loaded.entries.saturating_sub(loaded.state.entries()) as u64;
        self.table.entries() < self.max_log_entries.saturating_add(dropped)
    }

    /// Whether a cost would need a log entry or permit of its own when there are none left.
    #[inline]
    fn lacks_entry(&self, loaded: &Loaded, cost: Cost) -> bool {
        let needs_entry = match &loaded.state {
            // One that is not empty can let its newest entry take it in.
            State::SlidingLog(log) => log.entries().is_empty(),
            State::Concurrency(_) => true,
            _ => false,
        };
        needs_entry && counts(cost) && !self.has_entries(loaded)
    }

    /// The answer to a key or entry there is no room for, when it is not to share.
    fn answer_full(&self, limit: &Limit, ask: &Ask) -> Decision {
        self.tally.overflowed.fetch_add(1, Relaxed);
        match self.when_full {
            // As if it were always new: a cost that can never fit is still refused.
            WhenFull::Allow => State::new(limit).decide(limit, ask),
            WhenFull::Deny | WhenFull::Overflow => denied_full(limit, ask.cost),
        }
    }

    /// Notes that the key of a check has no room of its own.
    pub(super) fn mark_overflow(&self, checks: &mut [StateCheck<'_>], index: usize) {
        checks[index].overflowed = true;
        self.tally.overflowed.fetch_add(1, Relaxed);
        checks[index].full = Some(match (self.when_full, checks[index].full) {
            (WhenFull::Allow, _) => WhenFull::Allow,
            (WhenFull::Overflow, None) => {
                // Two such keys of one request still count apart.
                let id = checks[index].check.limit.id();
                let is_like = |c: &&StateCheck<'_>| c.full.is_some() && c.check.limit.id() == id;
                let before = checks.iter().filter(is_like).count() as u64;
                let hash = self.overflow_hash.wrapping_add(before);
                checks[index].check.hash = hash;
                checks[index].check.shard = self.table.shard_of(hash);
                WhenFull::Overflow
            }
            _ => WhenFull::Deny,
        });
    }
}

/// Notes in a verdict which checks had no room, and whether a denial charged something.
fn note_room(verdict: &mut Verdict, checks: &[StateCheck<'_>]) {
    verdict.overflowed = checks.iter().any(|check| check.overflowed);
    verdict.consumed = checks.iter().any(|check| check.consumed);
    let mut enforced = checks.iter().filter(|check| !check.observed);
    verdict.no_room = match verdict.allowed {
        true => enforced.any(|check| check.no_room),
        // Where something is used up as well, room would not have helped.
        false => enforced.all(|check| check.admits || check.no_room),
    };
}

/// Whether a cost adds to what is counted.
fn counts(cost: Cost) -> bool {
    matches!(cost, Cost::Ask(1..) | Cost::Force(1..))
}

/// Whether a check that got no place was denied for that, or forced and not recorded. A cost that
/// can never pass would not pass with room either.
fn lacks_room(decision: &Decision, cost: Cost) -> bool {
    match cost {
        Cost::Ask(_) => !decision.allowed && decision.retry_after != RetryAfter::Never,
        Cost::Force(units) => units > 0,
        Cost::Refund(_) => false,
    }
}

/// The answer to a key the store has no room for, when it is to be denied. No wait can be promised;
/// a window is when keys come and go. What is forced or refunded is not asked for, and so not
/// denied either, although it cannot be recorded.
fn denied_full(limit: &Limit, cost: Cost) -> Decision {
    let allowed = matches!(cost, Cost::Refund(_) | Cost::Force(_));
    let retry_after = match cost {
        Cost::Refund(_) | Cost::Force(_) => RetryAfter::Now,
        Cost::Ask(units) if units.max(1) > limit.capacity() => RetryAfter::Never,
        _ => RetryAfter::Micros(limit.window_us()),
    };
    Decision {
        allowed,
        limit: limit.count(),
        remaining: 0,
        retry_after,
        reset_after: ResetAfter::from_micros(limit.window_us()),
    }
}
