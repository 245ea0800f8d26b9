//! The state of any limit, and dispatch to its algorithm.

use crate::algorithms::AlgorithmState;
use crate::limit::WindowPosition;
use crate::{
    Algorithm, Attempt, Decision, FixedWindow, Limit, PermitId, Permits, ResetAfter,
    SlidingCounter, SlidingLog, SlidingWindow, Timestamp, TokenBucket, View,
};
use crate::{Packed, PackedSize};

/// The usage of one limit by one key, as plain data.
#[derive(Clone, Debug)]
pub enum State {
    /// The state of `sliding-log`.
    SlidingLog(SlidingLog),
    /// The state of `sliding-window`.
    SlidingWindow(SlidingWindow),
    /// The state of `sliding-counter`.
    SlidingCounter(SlidingCounter),
    /// The state of `fixed-window`.
    FixedWindow(FixedWindow),
    /// The state of `token-bucket`.
    TokenBucket(TokenBucket),
    /// The state of `concurrency`.
    Concurrency(Permits),
}

/// Evaluates an expression on the state of any algorithm.
macro_rules! each {
    ($state:expr, $inner:ident => $body:expr) => {
        match $state {
            State::SlidingLog($inner) => $body,
            State::SlidingWindow($inner) => $body,
            State::SlidingCounter($inner) => $body,
            State::FixedWindow($inner) => $body,
            State::TokenBucket($inner) => $body,
            State::Concurrency($inner) => $body,
        }
    };
}

impl State {
    /// Creates the state of a key that has used nothing.
    pub fn new(limit: &Limit) -> Self {
        match limit.algorithm() {
            Algorithm::SlidingLog => State::SlidingLog(SlidingLog::default()),
            Algorithm::SlidingWindow => State::SlidingWindow(SlidingWindow::default()),
            Algorithm::SlidingCounter => State::SlidingCounter(SlidingCounter::default()),
            Algorithm::FixedWindow => State::FixedWindow(FixedWindow::default()),
            Algorithm::TokenBucket => State::TokenBucket(TokenBucket::default()),
            Algorithm::Concurrency => State::Concurrency(Permits::default()),
        }
    }

    /// Decides for one limit on its own: the cost is charged if the limit admits it.
    pub fn decide(&mut self, limit: &Limit, attempt: &Attempt) -> Decision {
        each!(self, state => state.decide(limit, attempt))
    }

    /// Advances the state to the time of the attempt and returns whether this limit admits the
    /// cost, without charging it.
    ///
    /// A request with several limits calls this for all of them first, and then [`State::finish`].
    pub fn advance_and_check(&mut self, limit: &Limit, attempt: &Attempt) -> bool {
        let now = limit.window_position(attempt.now);
        each!(self, state => { state.advance(limit, &now); state.admits(limit, attempt, &now) })
    }

    /// Returns the largest cost that passes at `now`. The state must have been advanced to `now` by
    /// [`State::advance_and_check`].
    pub fn available(&self, limit: &Limit, now: Timestamp) -> u64 {
        let now = limit.window_position(now);
        each!(self, state => state.available(limit, &now))
    }

    /// Charges the cost if it was `admitted` by every limit that is enforced, and returns the
    /// decision of this limit. The state must have been advanced to the time of the attempt by
    /// [`State::advance_and_check`].
    pub fn finish(&mut self, limit: &Limit, attempt: &Attempt, admitted: bool) -> Decision {
        let now = limit.window_position(attempt.now);
        each!(self, state => state.apply_and_report(limit, attempt, &now, admitted))
    }

    /// Returns the time from which on the state decides like a new one, because nothing it counted
    /// matters any more.
    pub fn expires_at(&self, limit: &Limit) -> Timestamp {
        each!(self, state => state.expires_at(limit))
    }

    /// Returns the contents of the state at `now`, in the terms of its algorithm. The state does
    /// not change: a copy is advanced to that time.
    pub fn view(&self, limit: &Limit, now: Timestamp) -> View {
        let now = limit.window_position(now);
        let mut state = self.clone();
        each!(&mut state, state => state.advance(limit, &now));
        View::new(&state, limit, &now)
    }

    /// Packs the state for a store. Returns `None` if the state holds permits, does not fit the
    /// size, or expires later than the latest deadline.
    #[inline]
    pub fn pack(&self, limit: &Limit, size: PackedSize) -> Option<Packed> {
        match self {
            State::SlidingWindow(window) => window.pack(limit),
            State::SlidingCounter(counter) => counter.pack(limit, size),
            State::FixedWindow(window) => window.pack(limit, size),
            State::TokenBucket(bucket) => bucket.pack(limit),
            State::SlidingLog(log) => log.pack(limit),
            State::Concurrency(_) => None,
        }
    }

    /// Unpacks a state that was packed in this size under a limit with the id of this limit.
    #[inline]
    pub fn unpack(limit: &Limit, size: PackedSize, packed: &Packed) -> Self {
        match limit.algorithm() {
            Algorithm::SlidingWindow => State::SlidingWindow(SlidingWindow::unpack(limit, packed)),
            Algorithm::SlidingCounter => {
                State::SlidingCounter(SlidingCounter::unpack(limit, size, packed))
            }
            Algorithm::FixedWindow => State::FixedWindow(FixedWindow::unpack(limit, size, packed)),
            Algorithm::TokenBucket => State::TokenBucket(TokenBucket::unpack(packed)),
            Algorithm::SlidingLog => State::SlidingLog(SlidingLog::unpack(limit, packed)),
            Algorithm::Concurrency => State::new(limit),
        }
    }

    /// Returns the number of log entries or permits it holds, or 0 for states of bounded size.
    pub fn entries(&self) -> usize {
        each!(self, state => state.held_entries())
    }

    /// Releases a permit. Returns `false` if it is not held, for example because its lease ended.
    pub fn release(&mut self, permit: PermitId) -> bool {
        match self {
            State::Concurrency(permits) => permits.release(permit),
            _ => false,
        }
    }

    /// Restarts the lease of a permit at `now`. Returns `false` if it is not held, for example
    /// because its lease ended.
    pub fn renew(&mut self, limit: &Limit, permit: PermitId, now: Timestamp) -> bool {
        match self {
            State::Concurrency(permits) => permits.renew(limit, permit, now),
            _ => false,
        }
    }
}

/// Dispatches to the algorithm. A decision dispatches once, in `finish`.
impl AlgorithmState for State {
    fn advance(&mut self, limit: &Limit, now: &WindowPosition) {
        each!(self, state => state.advance(limit, now));
    }

    fn available(&self, limit: &Limit, now: &WindowPosition) -> u64 {
        each!(self, state => state.available(limit, now))
    }

    fn wait_us(&self, limit: &Limit, cost: u64, now: &WindowPosition) -> u64 {
        each!(self, state => state.wait_us(limit, cost, now))
    }

    fn reset_after(&self, limit: &Limit, now: &WindowPosition) -> ResetAfter {
        each!(self, state => state.reset_after(limit, now))
    }

    fn charge(&mut self, limit: &Limit, units: u64, attempt: &Attempt, now: &WindowPosition) {
        each!(self, state => state.charge(limit, units, attempt, now));
    }

    fn admit(
        &mut self,
        limit: &Limit,
        units: u64,
        attempt: &Attempt,
        now: &WindowPosition,
        available: u64,
    ) -> u64 {
        each!(self, state => state.admit(limit, units, attempt, now, available))
    }

    fn refund(&mut self, limit: &Limit, units: u64) {
        each!(self, state => state.refund(limit, units));
    }

    fn expires_at(&self, limit: &Limit) -> Timestamp {
        each!(self, state => AlgorithmState::expires_at(state, limit))
    }

    fn held_entries(&self) -> usize {
        each!(self, state => state.held_entries())
    }

    fn merge_newest_entry(&mut self, now: Timestamp) {
        each!(self, state => state.merge_newest_entry(now));
    }

    fn apply_and_report(
        &mut self,
        limit: &Limit,
        attempt: &Attempt,
        now: &WindowPosition,
        admitted: bool,
    ) -> Decision {
        each!(self, state => state.apply_and_report(limit, attempt, now, admitted))
    }
}
