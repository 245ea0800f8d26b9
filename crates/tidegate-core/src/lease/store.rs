//! The side of the store: a state with open grants.

use alloc::vec::Vec;

use super::{GiveBack, Grant, GrantId, LeaseRequest, MAX_GRANTS, MAX_LEASE_US, MIN_LEASE_US};
use crate::algorithms::AlgorithmState;
use crate::limit::{WindowPosition, bounds};
use crate::{Attempt, Cost, Decision, Limit, ResetAfter, State, Timestamp};

/// The state of a limit, and the units of it that are out on nodes.
///
/// ```
/// use tidegate_core::{
///     Attempt, GrantId, Lease, LeaseRequest, LeasedState, Limit, Timestamp,
/// };
///
/// let limit: Limit = "100 per 10s sliding-log".parse()?;
/// let at = |ms: u64| Timestamp::from_micros(ms * 1_000);
/// let mut store = LeasedState::new(&limit);
///
/// let id = GrantId(0x1d_5eed);
/// let request = LeaseRequest { id, units: 30, duration_us: 500_000, divisor: 1 };
/// let grant = store.grant(&limit, &request, at(1_000)).expect("30 units are available");
/// assert_eq!(store.decide(&limit, &Attempt::new(0, at(1_001))).remaining, 70);
///
/// // The node sent the request when its clock showed 5,000 ms.
/// let mut lease = Lease::new(&grant, at(5_000), 0);
/// assert_eq!(lease.spend(10, at(5_100)), Some(20));
/// let back = lease.give_back(0);
/// assert_eq!(store.give_back(&limit, &back, at(1_200)), 20);
/// assert_eq!(store.decide(&limit, &Attempt::new(0, at(1_200))).remaining, 90);
/// # Ok::<(), tidegate_core::LimitError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LeasedState {
    state: State,
    /// The open grants in the order of their deadlines.
    grants: Vec<Grant>,
}

impl LeasedState {
    /// Creates the state of a key that has used nothing.
    pub fn new(limit: &Limit) -> Self {
        LeasedState { state: State::new(limit), grants: Vec::new() }
    }

    /// Restores a state with its open grants. Returns `None` if a grant is out of the bounds that
    /// [`LeasedState::grant`] keeps.
    pub fn from_parts(state: State, mut grants: Vec<Grant>) -> Option<Self> {
        if grants.len() > MAX_GRANTS || !grants.iter().all(is_valid) {
            return None;
        }
        grants.sort_by_key(in_order);
        Some(LeasedState { state, grants })
    }

    /// Returns the state without the units that are held.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the open grants, in the order of their deadlines.
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// Returns the units of all open grants.
    pub fn held(&self) -> u64 {
        self.grants.iter().map(|grant| grant.units).sum()
    }

    /// Decides for one limit on its own: the cost is charged if the limit admits it.
    pub fn decide(&mut self, limit: &Limit, attempt: &Attempt) -> Decision {
        AlgorithmState::decide(self, limit, attempt)
    }

    /// Advances the state to the time of the attempt and returns whether this limit admits the
    /// cost, without charging it, as [`State::advance_and_check`] does.
    pub fn advance_and_check(&mut self, limit: &Limit, attempt: &Attempt) -> bool {
        let now = limit.window_position(attempt.now);
        self.advance(limit, &now);
        self.admits(limit, attempt, &now)
    }

    /// Returns the largest cost that passes at `now`. The state must have been advanced to `now` by
    /// [`LeasedState::advance_and_check`].
    pub fn available(&self, limit: &Limit, now: Timestamp) -> u64 {
        AlgorithmState::available(self, limit, &limit.window_position(now))
    }

    /// Charges the cost if it was `admitted` by every limit that is enforced, and returns the
    /// decision of this limit. The state must have been advanced to the time of the attempt by
    /// [`LeasedState::advance_and_check`].
    pub fn finish(&mut self, limit: &Limit, attempt: &Attempt, admitted: bool) -> Decision {
        let now = limit.window_position(attempt.now);
        AlgorithmState::apply_and_report(self, limit, attempt, &now, admitted)
    }

    /// Grants units for a time, as many as are requested and available. Returns `None` if the limit
    /// has no leases, if nothing is available, if too little is left of an aligned window, if too
    /// many grants are open, or if one with this id is open.
    pub fn grant(
        &mut self,
        limit: &Limit,
        request: &LeaseRequest,
        now: Timestamp,
    ) -> Option<Grant> {
        let position = limit.window_position(now);
        self.advance(limit, &position);
        let available = AlgorithmState::available(self, limit, &position);
        let units = request.units.min(available.div_ceil(request.divisor.max(1)));
        let duration_us = request.duration_us.min(limit.longest_lease_us(now));
        let deadline = now.plus_micros(duration_us);
        let grant = Grant { id: request.id, units, deadline, duration_us };
        let is_open = self.grants.iter().any(|other| other.id == grant.id);
        if is_open || self.grants.len() >= MAX_GRANTS || !is_valid(&grant) {
            return None;
        }
        let place = self.grants.partition_point(|other| in_order(other) < in_order(&grant));
        self.grants.insert(place, grant);
        Some(grant)
    }

    /// Takes back the units of a grant that the node does not keep, and returns their number. It is
    /// 0 if the grant is closed, or already as small.
    pub fn give_back(&mut self, limit: &Limit, back: &GiveBack, now: Timestamp) -> u64 {
        self.advance(limit, &limit.window_position(now));
        let open = self.grants.iter_mut().find(|grant| grant.id == back.id);
        let returned = open.map_or(0, |grant| {
            let returned = grant.units.saturating_sub(back.keep);
            grant.units -= returned;
            returned
        });
        self.grants.retain(|grant| grant.units > 0);
        returned
    }

    /// Returns the time from which on the state decides like a new one, if no more is granted. It
    /// is exact only for a state that was advanced by a decision.
    pub fn expires_at(&self, limit: &Limit) -> Timestamp {
        AlgorithmState::expires_at(self, limit)
    }

    /// Forgets what was counted until `now`. Units that are out stay held, because they may still
    /// be spent.
    pub fn reset(&mut self, limit: &Limit, now: Timestamp) {
        self.advance(limit, &limit.window_position(now));
        self.state = State::new(limit);
    }
}

/// Whether a grant is within the bounds that keep its numbers exact in a double.
fn is_valid(grant: &Grant) -> bool {
    (1..=bounds::MAX_COUNT).contains(&grant.units)
        && (MIN_LEASE_US..=MAX_LEASE_US).contains(&grant.duration_us)
        && grant.id.0 < bounds::MAX_PRODUCT
        && grant.deadline.as_micros() < bounds::MAX_PRODUCT
}

/// The order in which grants are charged.
fn in_order(grant: &Grant) -> (Timestamp, GrantId) {
    (grant.deadline, grant.id)
}

impl AlgorithmState for LeasedState {
    fn advance(&mut self, limit: &Limit, now: &WindowPosition) {
        let now_us = now.at.as_micros();
        if self.grants.iter().any(|grant| grant.granted_at() > now_us) {
            // The clock stepped back.
            for grant in self.grants.iter_mut().filter(|grant| grant.granted_at() > now_us) {
                grant.deadline = now.at.plus_micros(grant.duration_us);
            }
            self.grants.sort_by_key(in_order);
        }
        let ended = self.grants.partition_point(|grant| grant.deadline < now.at);
        for grant in self.grants.drain(..ended) {
            let at = limit.window_position(grant.deadline);
            let charge = Attempt::new(Cost::Force(grant.units), grant.deadline);
            AlgorithmState::advance(&mut self.state, limit, &at);
            AlgorithmState::charge(&mut self.state, limit, grant.units, &charge, &at);
        }
        AlgorithmState::advance(&mut self.state, limit, now);
    }

    fn available(&self, limit: &Limit, now: &WindowPosition) -> u64 {
        AlgorithmState::available(&self.state, limit, now).saturating_sub(self.held())
    }

    /// All held units are taken to be spent. Between two deadlines they are constant, so the wait
    /// is that of the state for the cost and the held units, unless it ends after the next
    /// deadline.
    fn wait_us(&self, limit: &Limit, cost: u64, now: &WindowPosition) -> u64 {
        if self.grants.is_empty() {
            return self.state.wait_us(limit, cost, now);
        }
        let (mut later, mut at) = (self.clone(), *now);
        while let Some(next) = later.grants.first().map(|grant| grant.deadline) {
            let needed = cost + later.held();
            if needed <= limit.capacity() {
                let passes = at.at.plus_micros(later.state.wait_us(limit, needed, &at));
                if passes <= next {
                    return passes.as_micros() - now.at.as_micros();
                }
            }
            at = limit.window_position(next.plus_micros(1));
            later.advance(limit, &at);
        }
        at.at.as_micros() - now.at.as_micros() + later.state.wait_us(limit, cost, &at)
    }

    fn reset_after(&self, limit: &Limit, now: &WindowPosition) -> ResetAfter {
        let Some(last) = self.grants.last().filter(|_| limit.count() > 0) else {
            return AlgorithmState::reset_after(&self.state, limit, now);
        };
        let mut later = self.clone();
        let at = limit.window_position(last.deadline.plus_micros(1));
        later.advance(limit, &at);
        let after = AlgorithmState::reset_after(&later.state, limit, &at).as_micros();
        ResetAfter::from_micros(at.at.as_micros() - now.at.as_micros() + after)
    }

    fn charge(&mut self, limit: &Limit, units: u64, attempt: &Attempt, now: &WindowPosition) {
        AlgorithmState::charge(&mut self.state, limit, units, attempt, now);
    }

    fn admit(
        &mut self,
        limit: &Limit,
        units: u64,
        attempt: &Attempt,
        now: &WindowPosition,
        _: u64,
    ) -> u64 {
        self.charge(limit, units, attempt, now);
        // A `sliding-window` may count units again that were released.
        AlgorithmState::available(self, limit, now)
    }

    fn refund(&mut self, limit: &Limit, units: u64) {
        AlgorithmState::refund(&mut self.state, limit, units);
    }

    fn expires_at(&self, limit: &Limit) -> Timestamp {
        let Some(last) = self.grants.last() else {
            return AlgorithmState::expires_at(&self.state, limit);
        };
        let mut later = self.clone();
        later.advance(limit, &limit.window_position(last.deadline.plus_micros(1)));
        AlgorithmState::expires_at(&later.state, limit)
    }

    fn held_entries(&self) -> usize {
        self.state.held_entries()
    }

    fn merge_newest_entry(&mut self, now: Timestamp) {
        self.state.merge_newest_entry(now);
    }
}
