//! Computes how long a request would wait behind others in a queue, on copies of their states.

use smallvec::SmallVec;
use tidegate_core::{Attempt, Cost, Decision, Limit, ResetAfter, RetryAfter, State, Timestamp};

use super::MemoryStore;
use super::locked_path::{self, find};
use super::request::{InlineVec, StateCheck};
use crate::{Check, CheckError, Verdict};

/// One limit of a request, on a copy of its state.
struct CopiedState<'a> {
    limit: &'a Limit,
    cost: Cost,
    observed: bool,
    state: State,
    /// The index of its check, after merging.
    check: usize,
}

impl CopiedState<'_> {
    /// The denial of the limit at `now`, computed from its state at `first_at`, the time at which
    /// the request will be first in the queue.
    fn denial_at(&self, first_at: Timestamp, now: Timestamp) -> Decision {
        let attempt = Attempt::new(self.cost, first_at);
        let mut state = self.state.clone();
        state.advance_and_check(self.limit, &attempt);
        let decision = state.finish(self.limit, &attempt, false);
        let reset_us = decision.reset_after.as_micros() + (first_at.as_micros() - now.as_micros());
        let most = match self.cost {
            Cost::Ask(units) => units.saturating_sub(1),
            Cost::Force(_) | Cost::Refund(_) => u64::MAX,
        };
        let remaining = decision.remaining.min(most);
        Decision { remaining, reset_after: ResetAfter::from_micros(reset_us), ..decision }
    }
}

impl MemoryStore {
    /// Returns the denial of a request that has to wait behind the requests `ahead`, which count in
    /// the same states, with the wait if nothing else arrives. The states are copied, and all
    /// requests are charged on the copies, in order.
    /// Costs are in the order of [`MemoryStore::queue_id`].
    pub(crate) fn forecast(
        &self,
        checks: &[Check<'_>],
        ahead: &[&[Cost]],
    ) -> Result<Verdict, CheckError> {
        self.forecast_from(checks, ahead, None)
    }

    /// Returns the denial of a request that has to wait behind too many others to compute all of
    /// them. It will be first in the queue at `first_at`, when the last of them is expected to
    /// pass. Their charges are not included, so the wait is a lower bound.
    pub(crate) fn forecast_after(
        &self,
        checks: &[Check<'_>],
        first_at: Option<Timestamp>,
    ) -> Result<Verdict, CheckError> {
        self.forecast_from(checks, &[], first_at)
    }

    fn forecast_from(
        &self,
        checks: &[Check<'_>],
        ahead: &[&[Cost]],
        first_at: Option<Timestamp>,
    ) -> Result<Verdict, CheckError> {
        let (mut states, mut members) = (InlineVec::new(), InlineVec::new());
        self.merge(checks, false, &mut states, &mut members)?;
        let now = self.clock.now();
        let mut copies = self.copy_states(&states);
        let from = first_at.map_or(now, |first_at| first_at.max(now));
        let passes =
            ahead.iter().try_fold(from, |at, costs| charge_when_admitted(&mut copies, costs, at));
        let first_at = passes.unwrap_or(now);
        // The decisions at the time at which this request is first in the queue.
        let mut denials: SmallVec<[(usize, Decision); 4]> =
            copies.iter().map(|copied| (copied.check, copied.denial_at(first_at, now))).collect();
        denials.sort_unstable_by_key(|(check, _)| *check);
        let own: Vec<Cost> = copies.iter().map(|copied| copied.cost).collect();
        let passes = passes.and_then(|at| charge_when_admitted(&mut copies, &own, at));
        let retry_after = passes.map_or(RetryAfter::Never, |at| {
            RetryAfter::Micros((at.as_micros() - now.as_micros()).max(1))
        });
        for (check, decision) in &mut denials {
            if !states[*check].observed {
                (decision.allowed, decision.retry_after) = (false, retry_after);
            }
        }
        let decisions: InlineVec<Decision> = match members.is_empty() {
            true => denials.iter().map(|(_, decision)| *decision).collect(),
            false => members.iter().map(|&check| denials[check].1).collect(),
        };
        Ok(Verdict::new(checks, decisions))
    }

    fn copy_states<'a>(&self, checks: &[StateCheck<'a>]) -> Vec<CopiedState<'a>> {
        let mut order: Vec<usize> = (0..checks.len()).collect();
        order.sort_unstable_by_key(|&index| checks[index].hashed.state_hash());
        let copied = order.into_iter().map(|index| {
            let StateCheck { hashed: check, observed, .. } = &checks[index];
            let mut locked = self.table.lock(check.shard);
            let state = match find(&locked, check) {
                Some(slot_ref) => locked_path::copy(&mut locked, slot_ref, check.limit),
                None => State::new(check.limit),
            };
            CopiedState {
                limit: check.limit,
                cost: check.cost,
                observed: *observed,
                state,
                check: index,
            }
        });
        copied.collect()
    }
}

/// Returns the time from `from` on at which a request passes every enforced limit, and charges it
/// then. Returns `None` if it never passes.
fn charge_when_admitted(
    copies: &mut [CopiedState<'_>],
    costs: &[Cost],
    from: Timestamp,
) -> Option<Timestamp> {
    let mut wait_us = 0;
    for (copied, &cost) in copies.iter_mut().zip(costs).filter(|(copied, _)| !copied.observed) {
        let attempt = Attempt::new(cost, from);
        copied.state.advance_and_check(copied.limit, &attempt);
        let decision = copied.state.finish(copied.limit, &attempt, false);
        wait_us = wait_us.max(decision.retry_after.as_micros()?);
    }
    let at = from.plus_micros(wait_us);
    for (copied, &cost) in copies.iter_mut().zip(costs) {
        let _ = copied.state.decide(copied.limit, &Attempt::new(cost, at));
    }
    Some(at)
}
