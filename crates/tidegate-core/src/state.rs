//! The state of any limit, and the way in to the algorithms.

use crate::algorithms::Window;
use crate::{
    Algorithm, Ask, Decision, FixedWindow, Limit, PermitId, Permits, SlidingCounter, SlidingLog,
    SlidingWindow, Timestamp, TokenBucket, View,
};
use crate::{Packed, PackedSize};

/// What one key has used of one limit: plain data, no clock, no lock.
#[derive(Clone, Debug)]
pub enum State {
    /// See [`SlidingLog`].
    SlidingLog(SlidingLog),
    /// See [`SlidingWindow`].
    SlidingWindow(SlidingWindow),
    /// See [`SlidingCounter`].
    SlidingCounter(SlidingCounter),
    /// See [`FixedWindow`].
    FixedWindow(FixedWindow),
    /// See [`TokenBucket`].
    TokenBucket(TokenBucket),
    /// See [`Permits`].
    Concurrency(Permits),
}

/// Runs the same expression on whichever state it is.
macro_rules! each {
    ($state:expr, $window:ident => $body:expr) => {
        match $state {
            State::SlidingLog($window) => $body,
            State::SlidingWindow($window) => $body,
            State::SlidingCounter($window) => $body,
            State::FixedWindow($window) => $body,
            State::TokenBucket($window) => $body,
            State::Concurrency($window) => $body,
        }
    };
}

impl State {
    /// The state of a key that has used nothing.
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

    /// Decides one ask alone: charged if admitted.
    pub fn decide(&mut self, limit: &Limit, ask: &Ask) -> Decision {
        each!(self, window => window.decide(limit, ask))
    }

    /// Brings the state up to `now` and says whether this limit admits the ask;
    /// charges nothing. With [`State::finish`] it lets several limits agree first.
    pub fn admits(&mut self, limit: &Limit, ask: &Ask) -> bool {
        let now = limit.window_position(ask.now);
        each!(self, window => { window.advance(limit, &now); window.admits(limit, ask, &now) })
    }

    /// The largest cost that passes at `now`. The state must have been brought up to it.
    pub fn available(&self, limit: &Limit, now: Timestamp) -> u64 {
        let now = limit.window_position(now);
        each!(self, window => window.available(limit, &now))
    }

    /// Charges the ask if it was `admitted` by everyone who had a say, and answers
    /// for this limit. The state must have been brought up to the ask's time.
    pub fn finish(&mut self, limit: &Limit, ask: &Ask, admitted: bool) -> Decision {
        let now = limit.window_position(ask.now);
        each!(self, window => window.finish(limit, ask, &now, admitted))
    }

    /// From when on the state is as good as none: nothing it counted matters any more.
    pub fn expires_at(&self, limit: &Limit) -> Timestamp {
        each!(self, window => window.expires_at(limit))
    }

    /// What it holds at `now`, in the terms of its algorithm. Looking changes nothing:
    /// a copy is brought up to that time.
    pub fn view(&self, limit: &Limit, now: Timestamp) -> View {
        let now = limit.window_position(now);
        let mut state = self.clone();
        each!(&mut state, window => window.advance(limit, &now));
        View::new(&state, limit, &now)
    }

    /// Packs the state for a store; `None` if it grows, does not fit the size, or matters for
    /// longer than a deadline can say.
    #[inline]
    pub fn pack(&self, limit: &Limit, size: PackedSize) -> Option<Packed> {
        match self {
            State::SlidingWindow(window) => window.pack(limit),
            State::SlidingCounter(counter) => counter.pack(limit, size),
            State::FixedWindow(window) => window.pack(limit, size),
            State::TokenBucket(bucket) => bucket.pack(limit),
            State::SlidingLog(_) | State::Concurrency(_) => None,
        }
    }

    /// The state that was packed in this size under a limit with this limit's id.
    #[inline]
    pub fn unpack(limit: &Limit, size: PackedSize, packed: &Packed) -> Self {
        match limit.algorithm() {
            Algorithm::SlidingWindow => State::SlidingWindow(SlidingWindow::unpack(limit, packed)),
            Algorithm::SlidingCounter => {
                State::SlidingCounter(SlidingCounter::unpack(limit, size, packed))
            }
            Algorithm::FixedWindow => State::FixedWindow(FixedWindow::unpack(limit, size, packed)),
            Algorithm::TokenBucket => State::TokenBucket(TokenBucket::unpack(packed)),
            Algorithm::SlidingLog | Algorithm::Concurrency => State::new(limit),
        }
    }

    /// How many log entries or permits it holds; 0 for states of bounded size.
    pub fn entries(&self) -> usize {
        each!(self, window => window.held_entries())
    }

    /// Gives a permit back; `false` if it is not held (any more).
    pub fn release(&mut self, permit: PermitId) -> bool {
        match self {
            State::Concurrency(permits) => permits.release(permit),
            _ => false,
        }
    }

    /// Starts a permit's lease anew; `false` if it is not held (any more).
    pub fn renew(&mut self, limit: &Limit, permit: PermitId, now: Timestamp) -> bool {
        match self {
            State::Concurrency(permits) => permits.renew(limit, permit, now),
            _ => false,
        }
    }
}
