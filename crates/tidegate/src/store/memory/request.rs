//! The states in which a request counts, and the verdict made of their decisions.

use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;
use tidegate_core::{Cost, Decision, Limit, Timestamp};

use super::MemoryStore;
use super::locked_path::CheckOutcome;
use super::slot::Fingerprint;
use super::when_full::{WhenFull, record_room};
use crate::request::{SharedCount, consumed_if_denied, validate};
use crate::{Check, CheckError, Overflow, Request, Verdict};

/// The number of checks of a request that are kept inline. Few requests have more, and theirs are
/// kept on the heap.
pub(super) const INLINE_CHECKS: usize = 4;
pub(super) type InlineVec<T> = SmallVec<[T; INLINE_CHECKS]>;

/// The bits in which the hash of an observed state differs from that of the enforced one.
pub(super) const OBSERVED_MARK: u64 = 0x6f62_7365;

/// A check and the hash of its key.
#[derive(Clone, Copy)]
pub(super) struct HashedCheck<'a> {
    pub(super) hash: u64,
    pub(super) shard: usize,
    pub(super) limit: &'a Limit,
    pub(super) cost: Cost,
}

impl HashedCheck<'_> {
    /// A hash of the state in which it counts.
    #[inline]
    pub(super) fn state_hash(&self) -> u64 {
        self.hash ^ self.limit.id()
    }

    /// Whether two checks count in the same state, if both are enforced or both are observed.
    #[inline]
    fn shares_state(&self, other: &Self) -> bool {
        self.hash == other.hash && self.limit.id() == other.limit.id()
    }

    #[inline]
    pub(super) fn fingerprint(&self) -> Fingerprint {
        Fingerprint::new(self.state_hash(), self.limit)
    }
}

/// All checks of a request that count in one state.
pub(super) struct StateCheck<'a> {
    pub(super) hashed: HashedCheck<'a>,
    /// The hash of its key, also where it counts under another key.
    key_hash: u64,
    pub(super) observed: bool,
    overflow: Overflow,
    /// The index of the lock of its shard, once the request holds the locks.
    pub(super) lock: usize,
    /// Whether its state on its own admitted the request.
    pub(super) admits: bool,
    /// Whether the request was denied, and this state was charged the units it had left.
    pub(super) consumed: bool,
    /// The treatment of its key if the store was full.
    pub(super) full: Option<WhenFull>,
    /// Whether the store was full for its key, or for its log entry or permit.
    pub(super) store_was_full: bool,
    /// Whether it was denied, or a forced charge was not recorded, for that reason alone.
    pub(super) no_room: bool,
}

impl<'a> StateCheck<'a> {
    pub(super) fn new(hashed: HashedCheck<'a>, observed: bool, overflow: Overflow) -> Self {
        StateCheck {
            hashed,
            key_hash: hashed.hash,
            observed,
            overflow,
            lock: 0,
            admits: false,
            consumed: false,
            full: None,
            store_was_full: false,
            no_room: false,
        }
    }

    /// The units that are charged if the request is denied, as far as they are available.
    pub(super) fn consumed_if_denied(&self) -> u64 {
        let HashedCheck { limit, cost, .. } = self.hashed;
        if self.observed { 0 } else { consumed_if_denied(self.overflow, limit, cost) }
    }

    /// Whether two states are observed together: one is charged only if both admit the request.
    pub(super) fn is_observed_with(&self, other: &Self) -> bool {
        self.observed && other.observed && self.key_hash == other.key_hash
    }

    /// Whether its state will hold units, and so needs a slot.
    pub(super) fn must_be_kept(&self, outcome: CheckOutcome, admitted: bool) -> bool {
        if !admitted {
            return outcome.consumes > 0;
        }
        outcome.charges
            && !outcome.out_of_entries
            && counts(self.hashed.cost)
            && !self.is_untracked()
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
        // The limit counts too. If all limits of a key were in one shard, a key with many limits
        // would fill it.
        let shard = self.table.shard_of(hash ^ check.limit.id());
        HashedCheck { hash, shard, limit: check.limit, cost: check.cost }
    }

    /// Replaces the hash of a check, and with it the shard.
    pub(super) fn set_hash(&self, check: &mut HashedCheck<'_>, hash: u64) {
        check.hash = hash;
        check.shard = self.table.shard_of(check.state_hash());
    }

    /// Decides a request at the time `at` or, by default, at the time of the clock.
    #[inline]
    pub(crate) fn decide_all(
        &self,
        request: &Request<'_>,
        at: Option<Timestamp>,
    ) -> Result<Verdict, CheckError> {
        let mut verdict = Verdict::default();
        match request.id {
            Some(id) => verdict = self.decide_with_id(request, id, at)?,
            None => self.decide_into(request, at, &mut verdict)?,
        }
        Ok(verdict)
    }

    fn decide_with_id(
        &self,
        request: &Request<'_>,
        id: &[u8],
        at: Option<Timestamp>,
    ) -> Result<Verdict, CheckError> {
        let mut checks = InlineVec::new();
        self.merge(request.checks, request.permit.is_some(), &mut checks, &mut InlineVec::new())?;
        let key = self.idempotency_key(&checks, id);
        self.get_or_decide(key, at, || {
            let mut verdict = Verdict::default();
            self.decide_into(request, at, &mut verdict)?;
            Ok(verdict)
        })
    }

    /// Decides without a lock or, if that is not possible, with one. The verdict is written to the
    /// caller's variable, because it is large.
    fn decide_into(
        &self,
        request: &Request<'_>,
        at: Option<Timestamp>,
        verdict: &mut Verdict,
    ) -> Result<(), CheckError> {
        if !self.decide_unlocked(request.checks, at, &mut verdict.decisions) {
            return self.merge_and_decide_locked(request, at, verdict);
        }
        verdict.conclude(request.checks);
        Ok(())
    }

    /// Merges the checks of a request that share a state, and decides under locks.
    #[inline(never)]
    fn merge_and_decide_locked(
        &self,
        request: &Request<'_>,
        at: Option<Timestamp>,
        verdict: &mut Verdict,
    ) -> Result<(), CheckError> {
        let (mut checks, mut members) = (InlineVec::new(), InlineVec::new());
        self.merge(request.checks, request.permit.is_some(), &mut checks, &mut members)?;
        let decisions = &mut verdict.decisions;
        decisions.clear();
        decisions.resize(checks.len(), Decision::default());
        let permit = request.permit.unwrap_or_default();
        self.decide_locked(&mut checks, permit, &|| self.time(at), decisions);
        if !members.is_empty() {
            *decisions = members.iter().map(|&state| decisions[state]).collect();
        }
        verdict.conclude(request.checks);
        record_room(verdict, &checks);
        Ok(())
    }

    /// Returns the remembered verdict of a request with an id, or that of `decide`, which is
    /// remembered if it charged something.
    pub(crate) fn decide_once(
        &self,
        request: &Request<'_>,
        decide: impl FnOnce() -> Verdict,
    ) -> Result<Verdict, CheckError> {
        let mut checks = InlineVec::new();
        let has_permit = request.permit.is_some();
        self.merge(request.checks, has_permit, &mut checks, &mut InlineVec::new())?;
        match request.id {
            Some(id) => {
                self.get_or_decide(self.idempotency_key(&checks, id), None, || Ok(decide()))
            }
            None => Ok(decide()),
        }
    }

    /// The [`MemoryStore::request_fingerprint`] of a request, its costs, and the time in
    /// microseconds for which its verdict is remembered.
    fn idempotency_key(&self, checks: &[StateCheck<'_>], id: &[u8]) -> (u64, InlineVec<Cost>, u64) {
        let window_us =
            checks.iter().map(|check| check.hashed.limit.window_us()).max().unwrap_or(0);
        let (fingerprint, costs) = self.request_fingerprint(checks, id);
        (fingerprint, costs, window_us)
    }

    fn get_or_decide(
        &self,
        (fingerprint, costs, window_us): (u64, InlineVec<Cost>, u64),
        at: Option<Timestamp>,
        decide: impl FnOnce() -> Result<Verdict, CheckError>,
    ) -> Result<Verdict, CheckError> {
        let (verdict, forgotten) = self.idempotency.get_or_decide(
            fingerprint,
            &costs,
            window_us,
            &self.clock,
            at,
            decide,
        )?;
        self.counters.forgotten_ids.fetch_add(u64::from(forgotten), Relaxed);
        Ok(verdict)
    }

    /// Merges the checks of a request that share a state, and determines the shard of each state.
    /// `members` gets the index of the state of each check, or stays empty if no two checks share
    /// a state.
    ///
    /// `MergedChecks::add_all` in `crate::request` merges by the same rules for shared stores,
    /// which compare keys instead of hashes.
    #[inline]
    pub(super) fn merge<'a>(
        &self,
        checks: &[Check<'a>],
        with_permit: bool,
        states: &mut InlineVec<StateCheck<'a>>,
        members: &mut InlineVec<usize>,
    ) -> Result<(), CheckError> {
        validate(checks, with_permit)?;
        let mut last: (&[u8], u64) = (&[], 0);
        let mut is_observed = false;
        for (index, check) in checks.iter().enumerate() {
            // Checks with the same key are common.
            if index == 0 || !std::ptr::eq(last.0, check.key) {
                last = (check.key, self.hash(check.key));
            }
            is_observed |= check.observed;
            let hashed = self.with_hash(last.1, check);
            let known = states.iter().position(|state| {
                state.observed == check.observed && state.hashed.shares_state(&hashed)
            });
            let Some(known) = known else {
                // Earlier checks share a state, so `members` is needed.
                if states.len() < index {
                    members.push(states.len());
                }
                states.push(StateCheck::new(hashed, check.observed, check.overflow));
                continue;
            };
            if members.is_empty() {
                members.extend(0..index);
            }
            members.push(known);
            let StateCheck { hashed: state, overflow, .. } = &mut states[known];
            let HashedCheck { limit, cost, .. } = state;
            SharedCount { limit, cost, overflow }.add(check)?;
        }
        if is_observed {
            self.set_observed_apart(states);
        }
        Ok(())
    }

    /// Returns a number that is equal for requests that count in the same states, and so wait in
    /// the same queue, and the cost of the request in each of the states.
    pub(crate) fn queue_id(&self, checks: &[Check<'_>]) -> Result<(u64, Box<[Cost]>), CheckError> {
        let mut states = InlineVec::new();
        self.merge(checks, false, &mut states, &mut InlineVec::new())?;
        let (queue_id, costs) = self.request_fingerprint(&states, &[]);
        Ok((queue_id, costs.into_iter().collect()))
    }

    /// A hash of a request with an id, and its costs. Neither depends on the order of its checks.
    fn request_fingerprint(&self, checks: &[StateCheck<'_>], id: &[u8]) -> (u64, InlineVec<Cost>) {
        let mut states: InlineVec<(u64, Cost)> =
            checks.iter().map(|check| (check.hashed.state_hash(), check.hashed.cost)).collect();
        states.sort_unstable_by_key(|(hash, _)| *hash);
        let hashes = states.iter().flat_map(|(hash, _)| hash.to_le_bytes());
        let hashed: SmallVec<[u8; 64]> = hashes.chain(id.iter().copied()).collect();
        (self.hash(&hashed), states.into_iter().map(|(_, cost)| cost).collect())
    }

    /// Gives an observed state its own key if another state of the request has the same key and
    /// limit and is enforced, as when a stricter limit is tried out beside the one in force.
    fn set_observed_apart(&self, states: &mut [StateCheck<'_>]) {
        for index in 0..states.len() {
            let StateCheck { hashed: check, observed, .. } = states[index];
            let is_enforced =
                |other: &StateCheck<'_>| !other.observed && other.hashed.shares_state(&check);
            if observed && states.iter().any(is_enforced) {
                self.set_hash(&mut states[index].hashed, check.hash ^ OBSERVED_MARK);
            }
        }
    }
}

/// Whether a cost adds to what is counted.
pub(super) fn counts(cost: Cost) -> bool {
    matches!(cost, Cost::Ask(1..) | Cost::Force(1..))
}
