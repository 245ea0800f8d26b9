//! What happens when the store is full: of keys, or of log entries and permits.
//!
//! Expired states are evicted first. If that is not enough, a log merges its new entry with its
//! newest one, and a new key, a permit and the first entry of a log are treated as [`WhenFull`]
//! says. An active key is never evicted.

use std::sync::atomic::Ordering::Relaxed;

use tidegate_core::{
    Algorithm, Attempt, Cost, Decided, Decision, DynState, Limit, ResetAfter, RetryAfter, State,
    Timestamp,
};

use super::MemoryStore;
use super::locked_path::find;
use super::request::{StateCheck, counts};
use super::shard::LockedShard;
use crate::Verdict;

/// The treatment of new keys when the store is full.
///
/// A key that is already tracked is never affected, because dropping it would reset its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// All new keys share one state per limit. They are limited together, and tracked keys are not
    /// affected.
    #[default]
    Overflow,
    /// New keys are denied.
    Deny,
    /// New keys are allowed and not counted.
    Allow,
}

/// The number of times that a decision evicts expired states before it gives up. More than one may
/// be needed, because an evicted state may not free what is missing.
const RECLAIMS: usize = 8;

impl MemoryStore {
    /// Evicts expired states if the store is full for another key, or for another log entry or
    /// permit. Returns `false` if the key of the check is new and the store is still full.
    pub(super) fn evict_for_new_key(
        &self,
        locked: &mut LockedShard<'_>,
        check: &StateCheck<'_>,
        now: Timestamp,
    ) -> bool {
        let limit = check.hashed.limit;
        let is_known = |locked: &LockedShard<'_>| {
            check.full.is_some() || find(locked, &check.hashed).is_some()
        };
        for _ in 0..RECLAIMS {
            let is_full = self.table.is_full() && !is_known(locked);
            if !is_full && !self.lacks_entries_for(limit) || locked.reclaim(now) == 0 {
                break;
            }
        }
        !(self.table.is_full() || self.lacks_entries_for(limit)) || is_known(locked)
    }

    pub(super) fn lacks_entries_for(&self, limit: &Limit) -> bool {
        let has_entries =
            matches!(limit.algorithm(), Algorithm::SlidingLog | Algorithm::Concurrency);
        has_entries && self.is_out_of_entries()
    }

    /// Whether there are as many log entries and permits as there may be.
    #[inline]
    pub(super) fn is_out_of_entries(&self) -> bool {
        self.has_few_entries(1)
    }

    /// Whether fewer than `most` log entries or permits can be added.
    #[inline]
    pub(super) fn has_few_entries(&self, most: u64) -> bool {
        self.table.entries().saturating_add(most) > self.max_log_entries
    }

    /// Records that the key of a check is new and the store is full, and chooses its treatment. The
    /// check may then count in another state, in another shard, so the caller locks again.
    pub(super) fn mark_full(&self, checks: &mut [StateCheck<'_>], index: usize) {
        checks[index].store_was_full = true;
        self.counters.overflowed.fetch_add(1, Relaxed);
        checks[index].full = Some(match (self.when_full, checks[index].full) {
            (WhenFull::Allow, _) => WhenFull::Allow,
            (WhenFull::Overflow, None) => {
                // Two new keys of one request are still counted separately.
                let id = checks[index].hashed.limit.id();
                let is_like = |c: &&StateCheck<'_>| c.full.is_some() && c.hashed.limit.id() == id;
                let before = checks.iter().filter(is_like).count() as u64;
                let hash = self.overflow_hash.wrapping_add(before);
                self.set_hash(&mut checks[index].hashed, hash);
                WhenFull::Overflow
            }
            _ => WhenFull::Deny,
        });
    }

    /// Merges the newest entry of a log with the one that is about to be charged, if the bound on
    /// entries is reached.
    pub(super) fn merge_if_full(
        &self,
        state: &mut dyn DynState,
        before: u64,
        limit: &Limit,
        attempt: &Attempt,
    ) {
        if limit.algorithm() == Algorithm::SlidingLog
            && counts(attempt.cost)
            && !self.has_entries(state, before)
        {
            state.merge_newest(attempt.now);
            self.counters.merged_entries.fetch_add(1, Relaxed);
        }
    }

    /// Whether the store has a log entry or permit left, including those that a state has dropped.
    fn has_entries(&self, state: &dyn DynState, before: u64) -> bool {
        let dropped = before.saturating_sub(state.entries() as u64);
        self.table.entries() < self.max_log_entries.saturating_add(dropped)
    }

    /// Whether a cost needs another log entry or permit, and the store is out of them.
    pub(super) fn lacks_entry(
        &self,
        state: &dyn DynState,
        before: u64,
        limit: &Limit,
        cost: Cost,
    ) -> bool {
        let needs_entry = match limit.algorithm() {
            // A log that is not empty can merge the new entry with its newest one.
            Algorithm::SlidingLog => state.entries() == 0,
            Algorithm::Concurrency => true,
            _ => false,
        };
        needs_entry && counts(cost) && !self.has_entries(state, before)
    }

    /// The decision about a log entry or permit that does not fit the store.
    pub(super) fn decide_when_full(&self, limit: &Limit, attempt: &Attempt) -> Decision {
        self.counters.overflowed.fetch_add(1, Relaxed);
        match self.when_full {
            // Decided on a new state, so that a cost that can never pass is still denied.
            WhenFull::Allow => State::new(limit).decide(limit, attempt),
            WhenFull::Deny | WhenFull::Overflow => denied_full(limit, attempt.cost),
        }
    }
}

/// Records in a verdict whether the store was full, and whether a denial charged something.
pub(super) fn record_room(verdict: &mut Verdict, checks: &[StateCheck<'_>]) {
    verdict.overflowed = checks.iter().any(|check| check.store_was_full);
    verdict.consumed = checks.iter().any(|check| check.consumed);
    let mut enforced = checks.iter().filter(|check| !check.observed);
    verdict.no_room = match verdict.allowed {
        true => enforced.any(|check| check.no_room),
        // If another limit is exhausted too, the store is not the only reason of the denial.
        false => enforced.all(|check| check.admits || check.no_room),
    };
}

/// Whether a check without a slot was denied for that reason, or is a forced charge that was not
/// recorded. A cost that can never pass would also be denied with a slot.
pub(super) fn lacks_room(decision: &Decision, cost: Cost) -> bool {
    match cost {
        Cost::Ask(_) => !decision.allowed && decision.retry_after != RetryAfter::Never,
        Cost::Force(units) => units > 0,
        Cost::Refund(_) => false,
    }
}

/// The decision about a new key of a full store that is denied. The wait is an estimate: keys
/// usually expire within a window. Forced charges and refunds are never denied, although they
/// cannot be recorded.
pub(super) fn denied_full(limit: &Limit, cost: Cost) -> Decision {
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
        no_room: false,
        decided: Decided::Exact,
    }
}
