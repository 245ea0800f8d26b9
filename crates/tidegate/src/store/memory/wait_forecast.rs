//! When a request would pass if it had to wait its turn behind others.

use smallvec::SmallVec;
use tidegate_core::{Ask, Cost, Decision, Limit, ResetAfter, RetryAfter, State, Timestamp};

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
    /// Which of the request's plans it is.
    check: usize,
}

impl CopiedState<'_> {
    /// What the limit would answer at `turn`, told at `now` to one who is denied.
    fn left_at(&self, turn: Timestamp, now: Timestamp) -> Decision {
        let ask = Ask::new(self.cost, turn);
        let mut state = self.state.clone();
        state.admits(self.limit, &ask);
        let answer = state.finish(self.limit, &ask, false);
        let reset_us = answer.reset_after.as_micros() + (turn.as_micros() - now.as_micros());
        let most = match self.cost {
            Cost::Ask(units) => units.saturating_sub(1),
            Cost::Force(_) | Cost::Refund(_) => u64::MAX,
        };
        let remaining = answer.remaining.min(most);
        Decision { remaining, reset_after: ResetAfter::from_micros(reset_us), ..answer }
    }
}

impl MemoryStore {
    /// The denial of a request that has to wait behind `ahead`, requests that
    /// count in the same states: how long, if nothing else arrives. The states
    /// are copied and everybody is played through on the copies, in order.
    /// Costs are in the order [`MemoryStore::queue_key`] gives them.
    pub(crate) fn forecast(
        &self,
        checks: &[Check<'_>],
        ahead: &[&[Cost]],
    ) -> Result<Verdict, CheckError> {
        self.forecast_from(checks, ahead, None)
    }

    /// The same behind so many that they are not played through: it has to wait until
    /// `turn`, when the last of them was told to pass. What they charge is not known, so that
    /// this is the least it would wait.
    pub(crate) fn forecast_after(
        &self,
        checks: &[Check<'_>],
        turn: Option<Timestamp>,
    ) -> Result<Verdict, CheckError> {
        self.forecast_from(checks, &[], turn)
    }

    fn forecast_from(
        &self,
        checks: &[Check<'_>],
        ahead: &[&[Cost]],
        turn: Option<Timestamp>,
    ) -> Result<Verdict, CheckError> {
        let (mut states, mut members) = (InlineVec::new(), InlineVec::new());
        self.merge(checks, false, &mut states, &mut members)?;
        let now = self.clock.now();
        let mut copies = self.copy_states(&states);
        let from = turn.map_or(now, |turn| turn.max(now));
        let passes = ahead.iter().try_fold(from, |at, costs| pass(&mut copies, costs, at));
        let turn = passes.unwrap_or(now);
        // What is left when it is this request's turn, as if it were so now.
        let mut answers: SmallVec<[(usize, Decision); 4]> =
            copies.iter().map(|copied| (copied.check, copied.left_at(turn, now))).collect();
        answers.sort_unstable_by_key(|(check, _)| *check);
        let own: Vec<Cost> = copies.iter().map(|copied| copied.cost).collect();
        let passes = passes.and_then(|at| pass(&mut copies, &own, at));
        let retry_after = passes.map_or(RetryAfter::Never, |at| {
            RetryAfter::Micros((at.as_micros() - now.as_micros()).max(1))
        });
        for (check, answer) in &mut answers {
            if !states[*check].observed {
                (answer.allowed, answer.retry_after) = (false, retry_after);
            }
        }
        let decisions: InlineVec<Decision> = match members.is_empty() {
            true => answers.iter().map(|(_, answer)| *answer).collect(),
            false => members.iter().map(|&check| answers[check].1).collect(),
        };
        Ok(Verdict::new(checks, decisions))
    }

    fn copy_states<'a>(&self, checks: &[StateCheck<'a>]) -> Vec<CopiedState<'a>> {
        let mut order: Vec<usize> = (0..checks.len()).collect();
        order.sort_unstable_by_key(|&index| checks[index].check.state_hash());
        let copied = order.into_iter().map(|index| {
            let StateCheck { check, observed, .. } = &checks[index];
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

/// Waits until a request passes every limit that has a say, and charges it;
/// `None` if it never does.
fn pass(copies: &mut [CopiedState<'_>], costs: &[Cost], from: Timestamp) -> Option<Timestamp> {
    let mut wait_us = 0;
    for (copied, &cost) in copies.iter_mut().zip(costs).filter(|(copied, _)| !copied.observed) {
        let ask = Ask::new(cost, from);
        copied.state.admits(copied.limit, &ask);
        let answer = copied.state.finish(copied.limit, &ask, false);
        wait_us = wait_us.max(answer.retry_after.as_micros()?);
    }
    let at = from.plus_micros(wait_us);
    for (copied, &cost) in copies.iter_mut().zip(costs) {
        let _ = copied.state.decide(copied.limit, &Ask::new(cost, at));
    }
    Some(at)
}
