//! Waiting for a store that cannot be looked into.
//!
//! In memory a newcomer's wait is played through on a copy of the states; see
//! `mod.rs`. A shared store has no copy here, and other nodes' callers come in
//! between anyway. So whoever is first asks, sleeps for as long as it is told to and asks
//! again; those behind only wait for their turn.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tidegate_core::Timestamp;

use super::{Listening, Queues};
use crate::Clock;
use crate::timer::TimerKey;

/// A place in a queue, left on drop.
pub(crate) struct Place<'q> {
    queues: &'q Queues,
    name: u64,
    ticket: u64,
}

impl<'q> Place<'q> {
    /// At the end of the queue of this name; `None` if it is full.
    pub(crate) fn new(queues: &'q Queues, name: u64) -> Option<Self> {
        queues.enter(name).map(|ticket| Place { queues, name, ticket })
    }

    /// A number that no other place of these queues has.
    pub(crate) fn ticket(&self) -> u64 {
        self.ticket
    }

    pub(crate) fn is_first(&self) -> bool {
        self.queues.is_first(self.name, self.ticket, Waker::noop())
    }

    /// Ends with `true` when it is first, with `false` at the time given.
    pub(crate) fn turn<'a>(&'a self, clock: &'a Clock, until: Timestamp) -> Pause<'a> {
        Pause { turn: Some(self), ..sleep(clock, until) }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.queues.leave(self.name, self.ticket);
    }
}

/// Ends at the time given.
pub(crate) fn sleep(clock: &Clock, until: Timestamp) -> Pause<'_> {
    Pause { turn: None, listening: None, clock, until, timer: None }
}

/// Ends at the time given, or before it when a permit that is listened for is released.
pub(crate) fn sleep_listening<'a>(
    clock: &'a Clock,
    until: Timestamp,
    listening: &'a Listening<'a>,
) -> Pause<'a> {
    Pause { listening: Some(listening), ..sleep(clock, until) }
}

/// Waiting for a time, or for a turn or a release before it.
pub(crate) struct Pause<'a> {
    turn: Option<&'a Place<'a>>,
    listening: Option<&'a Listening<'a>>,
    clock: &'a Clock,
    until: Timestamp,
    timer: Option<TimerKey>,
}

impl Future for Pause<'_> {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        self.call_off_timer();
        let is_first =
            |place: &Place<'_>| place.queues.is_first(place.name, place.ticket, context.waker());
        let is_released = |listening: &Listening<'_>| listening.poll_released(context.waker());
        if self.turn.is_some_and(is_first) || self.listening.is_some_and(is_released) {
            return Poll::Ready(true);
        }
        let left_us = self.until.as_micros().saturating_sub(self.clock.now().as_micros());
        if left_us == 0 {
            return Poll::Ready(false);
        }
        self.timer = Some(self.clock.wake_after(left_us, context.waker().clone()));
        Poll::Pending
    }
}

impl Pause<'_> {
    fn call_off_timer(&mut self) {
        if let Some(timer) = self.timer.take() {
            self.clock.cancel(timer);
        }
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.call_off_timer();
    }
}
