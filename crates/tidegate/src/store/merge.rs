//! Checks of one request that count in the same state.
//!
//! A store decides each state once, so checks that share one are merged before it decides: their
//! costs are added up, and every check gets the decision of its state.

#[cfg(feature = "redis")]
use smallvec::SmallVec;
use tidegate_core::{Algorithm, Cost, Limit};

use crate::{Check, CheckError, MAX_CHECKS, Overflow};

/// Validates the checks of a request.
///
/// # Errors
/// Returns an error if there are too many checks, or if a check needs a permit and the request has
/// none.
pub(crate) fn validate(checks: &[Check<'_>], has_permit: bool) -> Result<(), CheckError> {
    if checks.len() > MAX_CHECKS {
        return Err(CheckError::TooManyChecks(checks.len()));
    }
    let is_permit = |check: &Check<'_>| check.limit.algorithm() == Algorithm::Concurrency;
    if !has_permit && checks.iter().any(is_permit) {
        return Err(CheckError::NeedsPermit);
    }
    Ok(())
}

/// The limit of a state, with the total cost and the overflow of the checks that share it.
#[derive(Debug)]
pub(crate) struct SharedCount<'s> {
    pub(crate) limit: &'s Limit,
    pub(crate) cost: &'s mut Cost,
    pub(crate) overflow: &'s mut Overflow,
}

impl SharedCount<'_> {
    /// Adds a check.
    ///
    /// # Errors
    /// Returns an error if the check contradicts those before it.
    pub(crate) fn add(self, check: &Check<'_>) -> Result<(), CheckError> {
        if *self.limit != *check.limit {
            return Err(CheckError::conflict_of(check.limit));
        }
        *self.cost = add_costs(*self.cost, check.cost)?;
        if check.overflow == Overflow::Consume {
            *self.overflow = Overflow::Consume;
        }
        Ok(())
    }
}

/// The states that a request counts in.
#[cfg(feature = "redis")]
#[derive(Clone, Debug, Default)]
pub(crate) struct MergedChecks<'a> {
    /// One check per state, with the total cost of its checks, in the order of their first checks.
    pub(crate) states: SmallVec<[Check<'a>; 4]>,
    /// The index of the state of each check.
    pub(crate) members: SmallVec<[usize; 4]>,
}

#[cfg(feature = "redis")]
impl<'a> MergedChecks<'a> {
    /// Adds the checks of a request.
    ///
    /// # Errors
    /// Returns an error if the checks are not valid, as [`validate`] does, or if they contradict
    /// each other.
    pub(crate) fn add_all(
        &mut self,
        checks: &[Check<'a>],
        has_permit: bool,
    ) -> Result<(), CheckError> {
        validate(checks, has_permit)?;
        for check in checks {
            let known = self.states.iter().position(|state| state.shares_state(check));
            self.members.push(known.unwrap_or(self.states.len()));
            let Some(index) = known else {
                self.states.push(*check);
                continue;
            };
            let Check { limit, cost, overflow, .. } = &mut self.states[index];
            SharedCount { limit, cost, overflow }.add(check)?;
        }
        Ok(())
    }

    /// Whether the state at `index` is only observed and has the key and limit of one that is
    /// enforced, as when a stricter limit is tried out beside the one in force. Such a state is
    /// stored separately.
    pub(crate) fn is_separately_observed(&self, index: usize) -> bool {
        let state = &self.states[index];
        let enforced = Check { observed: false, ..*state };
        state.observed && self.states.iter().any(|other| other.shares_state(&enforced))
    }
}

fn add_costs(one: Cost, other: Cost) -> Result<Cost, CheckError> {
    match (one, other) {
        (Cost::Ask(a), Cost::Ask(b)) => Ok(Cost::Ask(a.saturating_add(b))),
        (Cost::Force(a), Cost::Force(b)) => Ok(Cost::Force(a.saturating_add(b))),
        (Cost::Refund(a), Cost::Refund(b)) => Ok(Cost::Refund(a.saturating_add(b))),
        _ => Err(CheckError::Conflict),
    }
}
