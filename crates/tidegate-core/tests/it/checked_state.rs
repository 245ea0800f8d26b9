//! A state whose every decision is compared with that of the oracle.

use tidegate_core::{Attempt, Cost, Decision, Limit, PermitId, RetryAfter, State, Timestamp};

use crate::oracle::Oracle;

pub fn limit(text: &str) -> Limit {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

pub fn attempt_at(cost: Cost, now: u64) -> Attempt {
    Attempt { cost, now: Timestamp::from_micros(now), permit: PermitId(0) }
}

/// A state and an oracle. Every step is applied to both, and their decisions must be equal.
#[derive(Clone)]
pub struct CheckedState {
    pub limit: Limit,
    pub state: State,
    pub oracle: Oracle,
    /// The steps so far, for the failure message. Their number is the id of the next permit.
    pub trail: Vec<(Cost, u64)>,
}

impl CheckedState {
    pub fn new(limit: Limit) -> Self {
        let (state, oracle) = (State::new(&limit), Oracle::new(&limit));
        CheckedState { limit, state, oracle, trail: Vec::new() }
    }

    /// Decides one step with both, and compares all fields of the decision.
    pub fn step(&mut self, cost: Cost, now: u64) -> Decision {
        let permit = PermitId(self.trail.len() as u64);
        self.trail.push((cost, now));
        let decision = self.state.decide(&self.limit, &Attempt { permit, ..attempt_at(cost, now) });
        let admitted = self.oracle.decide(cost, permit, now);
        assert_eq!(decision.allowed, admitted, "allowed; {}", self.history());
        self.check(&decision, cost, now);
        decision
    }

    /// The remaining units at `now`, which must not be before the last step.
    pub fn peek(&self, now: u64) -> u64 {
        self.oracle.remaining(now)
    }

    /// Checks costs without charging them: each is admitted iff it is within `remaining`, and is
    /// admitted after its wait and not a microsecond earlier.
    pub fn check_costs(&mut self, costs: impl Iterator<Item = u64>, now: u64) {
        for units in costs {
            let cost = Cost::Ask(units);
            let attempt = attempt_at(cost, now);
            let admitted = self.state.advance_and_check(&self.limit, &attempt);
            let decision = self.state.finish(&self.limit, &attempt, false);
            let context = || format!("cost {units} at {now}; {}", self.history());
            assert_eq!(admitted, self.oracle.admits(units.max(1), now), "admits; {}", context());
            assert_eq!(admitted, decision.allowed, "finish agrees; {}", context());
            assert_eq!(admitted, units.max(1) <= decision.remaining, "remaining; {}", context());
            self.check(&decision, cost, now);
            if let RetryAfter::Micros(wait) = decision.retry_after
                && now.checked_add(wait).is_some_and(|then| then < u64::MAX)
            {
                let passes_at =
                    |at| self.state.clone().advance_and_check(&self.limit, &attempt_at(cost, at));
                assert!(passes_at(now + wait), "honest after {wait}; {}", context());
                assert!(!passes_at(now + wait - 1), "minimal: {wait}; {}", context());
            }
        }
    }

    /// Compares the wait with that found by trying every microsecond.
    pub fn check_wait_by_stepping(&mut self, units: u64, now: u64) {
        let attempt = attempt_at(Cost::Ask(units), now);
        let admitted = self.state.advance_and_check(&self.limit, &attempt);
        let decision = self.state.finish(&self.limit, &attempt, false);
        let wait = self.oracle.first_pass(units, now);
        assert_eq!(decision.retry_after, RetryAfter::from_micros(wait), "{}", self.history());
        assert_eq!(admitted, wait == 0, "{}", self.history());
    }

    fn check(&self, decision: &Decision, cost: Cost, now: u64) {
        let context = || format!("{decision:?} at {now}; {}", self.history());
        let capacity = self.limit.capacity();
        assert_eq!(decision.limit, self.limit.count(), "limit; {}", context());
        assert_eq!(decision.remaining, self.oracle.remaining(now), "remaining; {}", context());
        match (cost, decision.retry_after) {
            (Cost::Ask(units), RetryAfter::Never) => {
                assert!(!decision.allowed && units.max(1) > capacity, "never; {}", context());
            }
            (Cost::Ask(units), RetryAfter::Micros(wait)) => {
                assert!(!decision.allowed && units.max(1) <= capacity, "a wait; {}", context());
                let minimal = self.oracle.passes_first_after(wait, units.max(1), now);
                assert!(wait > 0 && minimal, "honest and minimal; {}", context());
            }
            (_, RetryAfter::Now) => assert!(decision.allowed, "now; {}", context()),
            (_, wait) => panic!("{wait:?} for {cost:?}; {}", context()),
        }
        let reset = decision.reset_after.as_micros();
        if capacity == 0 {
            assert_eq!(reset, 0, "nothing to wait for; {}", context());
        } else {
            assert!(self.oracle.resets_after(reset, now), "reset; {}", context());
        }
    }

    pub fn history(&self) -> String {
        format!("{} after {:?}", self.limit, self.trail)
    }
}
