//! Dynamic dispatch over states, for stores that decide on them in place.

use crate::algorithms::AlgorithmState;
use crate::{Attempt, Decision, Limit, Timestamp};

/// A state of any algorithm behind a reference.
///
/// [`State`](crate::State) implements it, and so does the state of every single algorithm. A store
/// can thus keep logs and permits in types of their exact size, and decide on them without moving
/// them.
pub trait DynState {
    /// Behaves as [`State::advance_and_check`](crate::State::advance_and_check).
    fn advance_and_check(&mut self, limit: &Limit, attempt: &Attempt) -> bool;
    /// Behaves as [`State::available`](crate::State::available).
    fn available(&self, limit: &Limit, now: Timestamp) -> u64;
    /// Behaves as [`State::finish`](crate::State::finish), but writes the decision to `decision`.
    fn finish(&mut self, limit: &Limit, attempt: &Attempt, admitted: bool, decision: &mut Decision);
    /// Behaves as [`State::expires_at`](crate::State::expires_at).
    fn expires_at(&self, limit: &Limit) -> Timestamp;
    /// Behaves as [`State::entries`](crate::State::entries).
    fn entries(&self) -> usize;
    /// Merges the newest entry of a log with the next one; does nothing to other states. See
    /// [`SlidingLog::merge_newest`](crate::SlidingLog::merge_newest).
    fn merge_newest(&mut self, now: Timestamp);
}

impl<T: AlgorithmState> DynState for T {
    fn advance_and_check(&mut self, limit: &Limit, attempt: &Attempt) -> bool {
        let now = limit.window_position(attempt.now);
        self.advance(limit, &now);
        AlgorithmState::admits(self, limit, attempt, &now)
    }

    fn available(&self, limit: &Limit, now: Timestamp) -> u64 {
        AlgorithmState::available(self, limit, &limit.window_position(now))
    }

    fn finish(
        &mut self,
        limit: &Limit,
        attempt: &Attempt,
        admitted: bool,
        decision: &mut Decision,
    ) {
        *decision = AlgorithmState::apply_and_report(
            self,
            limit,
            attempt,
            &limit.window_position(attempt.now),
            admitted,
        );
    }

    #[inline]
    fn expires_at(&self, limit: &Limit) -> Timestamp {
        AlgorithmState::expires_at(self, limit)
    }

    fn entries(&self) -> usize {
        self.held_entries()
    }

    fn merge_newest(&mut self, now: Timestamp) {
        self.merge_newest_entry(now);
    }
}
