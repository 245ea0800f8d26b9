//! The six algorithms, one file or directory each.
//!
//! All implement one trait, [`AlgorithmState`]: advance the state to `now`, return how much
//! is available, charge, refund, and return when a cost will pass. Everything in a
//! decision (admission, remaining, retry-after, reset-after) is derived from these in
//! [`AlgorithmState::apply`] and [`AlgorithmState::report`], so the algorithms cannot disagree
//! about it.

pub(crate) mod concurrency;
pub(crate) mod fixed_window;
pub(crate) mod sliding_counter;
pub(crate) mod sliding_log;
pub(crate) mod sliding_window;
pub(crate) mod token_bucket;

use crate::limit::WindowPosition;
use crate::{Attempt, Cost, Decided, Decision, Limit, ResetAfter, RetryAfter, Timestamp};

/// Marks the branch that calls it as rare. The values that are needed only there then leave the
/// registers to the common path.
#[cold]
#[inline]
pub(crate) fn rarely() {}

/// The first part of a decision, before the waits are computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChargeOutcome {
    /// Whether units were requested and charged.
    pub(crate) charged: bool,
    allowed: bool,
    remaining: u64,
}

/// The state of a key under one limit, as the algorithm of the limit represents it: units with
/// times, counts per window, a debt that time repays, or permits.
///
/// Every method but `advance` requires a state that was advanced to `now`.
pub(crate) trait AlgorithmState {
    /// Advances the state to `now`: drops units that have expired, and moves units that are later
    /// than `now` (because the clock stepped back) to `now`.
    ///
    /// The advanced state is kept even if the request is denied. That never changes what is
    /// counted. Without it, units from the future would be moved again at every retry, and the key
    /// would be denied until the clock caught up.
    fn advance(&mut self, limit: &Limit, now: &WindowPosition);

    /// The largest cost that passes now.
    fn available(&self, limit: &Limit, now: &WindowPosition) -> u64;

    /// Microseconds until `cost` passes if nothing else arrives; 0 if it passes now.
    /// `cost` is at least 1 and at most the limit's capacity.
    fn wait_us(&self, limit: &Limit, cost: u64, now: &WindowPosition) -> u64;

    /// The time until the whole limit is available again if nothing arrives: the wait of a cost of
    /// the limit's capacity.
    #[inline]
    fn reset_after(&self, limit: &Limit, now: &WindowPosition) -> ResetAfter {
        ResetAfter::from_micros(match limit.capacity() {
            0 => 0,
            capacity => self.wait_us(limit, capacity, now),
        })
    }

    /// Adds `units`, whether or not they are available.
    fn charge(&mut self, limit: &Limit, units: u64, attempt: &Attempt, now: &WindowPosition);

    /// Adds `units`, which are at most those `available`, and returns how many are available
    /// afterwards.
    #[inline(always)]
    fn admit(
        &mut self,
        limit: &Limit,
        units: u64,
        attempt: &Attempt,
        now: &WindowPosition,
        available: u64,
    ) -> u64 {
        self.charge(limit, units, attempt, now);
        available - units
    }

    /// Removes `units`, newest first, and never below zero.
    fn refund(&mut self, limit: &Limit, units: u64);

    /// The time from which on the state decides like a new one.
    fn expires_at(&self, limit: &Limit) -> Timestamp;

    /// The number of log entries or permits it holds; 0 for states of bounded size.
    fn held_entries(&self) -> usize {
        0
    }

    /// Merges the newest entry of a log with the next one; does nothing to other states.
    fn merge_newest_entry(&mut self, _now: Timestamp) {}

    /// Whether this limit on its own admits the cost.
    #[inline]
    fn admits(&self, limit: &Limit, attempt: &Attempt, now: &WindowPosition) -> bool {
        match attempt.cost {
            Cost::Ask(units) => units.max(1) <= self.available(limit, now),
            Cost::Force(_) | Cost::Refund(_) => true,
        }
    }

    /// Charges the cost if it was `admitted` by every limit of its request that is enforced.
    #[inline(always)]
    fn apply(
        &mut self,
        limit: &Limit,
        attempt: &Attempt,
        now: &WindowPosition,
        admitted: bool,
    ) -> ChargeOutcome {
        match attempt.cost {
            Cost::Ask(units) => {
                let available = self.available(limit, now);
                // The decision of a peek is that of one unit, but nothing is charged.
                if units == 0 {
                    rarely();
                    let allowed = available > 0;
                    return ChargeOutcome { charged: false, allowed, remaining: available };
                }
                let allowed = units <= available;
                if allowed && admitted {
                    let remaining = self.admit(limit, units, attempt, now, available);
                    ChargeOutcome { charged: true, allowed, remaining }
                } else {
                    rarely();
                    ChargeOutcome { charged: false, allowed, remaining: available }
                }
            }
            Cost::Force(units) | Cost::Refund(units) => {
                if admitted {
                    self.apply_correction(limit, units, attempt, now);
                }
                let remaining = self.available(limit, now);
                ChargeOutcome { charged: false, allowed: true, remaining }
            }
        }
    }

    /// Completes the decision after [`AlgorithmState::apply`].
    #[inline(always)]
    fn report(
        &self,
        limit: &Limit,
        cost: Cost,
        now: &WindowPosition,
        outcome: ChargeOutcome,
    ) -> Decision {
        let ChargeOutcome { allowed, remaining, .. } = outcome;
        let retry_after = match cost {
            Cost::Ask(units) if !allowed && units.max(1) > limit.capacity() => RetryAfter::Never,
            Cost::Ask(units) if !allowed => {
                RetryAfter::from_micros(self.wait_us(limit, units.max(1), now))
            }
            _ => RetryAfter::Now,
        };
        let reset_after = self.reset_after(limit, now);
        Decision {
            allowed,
            limit: limit.count(),
            remaining,
            retry_after,
            reset_after,
            no_room: false,
            decided: Decided::Exact,
        }
    }

    /// Charges the cost if it was `admitted`, and returns the decision: [`AlgorithmState::apply`],
    /// then [`AlgorithmState::report`].
    #[inline(always)]
    fn apply_and_report(
        &mut self,
        limit: &Limit,
        attempt: &Attempt,
        now: &WindowPosition,
        admitted: bool,
    ) -> Decision {
        let outcome = self.apply(limit, attempt, now, admitted);
        self.report(limit, attempt.cost, now, outcome)
    }

    /// Applies a forced charge or a refund.
    #[cold]
    fn apply_correction(
        &mut self,
        limit: &Limit,
        units: u64,
        attempt: &Attempt,
        now: &WindowPosition,
    ) {
        if let Cost::Refund(_) = attempt.cost {
            self.refund(limit, units);
            // Units that the refund restored may have expired since.
            self.advance(limit, now);
        } else {
            self.charge(limit, units, attempt, now);
        }
    }

    /// Decides for this limit on its own.
    #[inline(always)]
    fn decide(&mut self, limit: &Limit, attempt: &Attempt) -> Decision {
        let now = limit.window_position(attempt.now);
        self.advance(limit, &now);
        self.apply_and_report(limit, attempt, &now, true)
    }
}
