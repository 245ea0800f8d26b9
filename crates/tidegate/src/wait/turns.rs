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
pub(crate) struct Ticket<'q> {
    queues: &'q Queues,
    name: u64,
    number: u64,
}

impl<'q> Ticket<'q> {
    /// At the end of the queue of this name; `None` if it is full.
    pub(crate) fn new(queues: &'q Queues, name: u64) -> Option<Self> {
        queues.join(name).map(|number| Ticket { queues, name, number })
    }

    /// A number that no other place of these queues has.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn is_first(&self) -> bool {
        self.queues.is_first(self.name, self.number, Waker::noop())
    }

    /// Ends with `true` when it is first, with `false` at the time given.
    pub(crate) fn until_first<'a>(&'a self, clock: &'a Clock, until: Timestamp) -> WaitUntil<'a> {
        WaitUntil { until_first: Some(self), ..sleep(clock, until) }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.queues.leave(self.name, self.number);
    }
}

/// Ends at the time given.
pub(crate) fn sleep(clock: &Clock, until: Timestamp) -> WaitUntil<'_> {
    WaitUntil { until_first: None, listening: None, clock, until, timer: None }
}

/// Ends at the time given, or before it when a permit that is listened for is released.
pub(crate) fn sleep_listening<'a>(
    clock: &'a Clock,
    until: Timestamp,
    listening: &'a Listening<'a>,
) -> WaitUntil<'a> {
    WaitUntil { listening: Some(listening), ..sleep(clock, until) }
}

/// Waiting for a time, or for a turn or a release before it.
pub(crate) struct WaitUntil<'a> {
    until_first: Option<&'a Ticket<'a>>,
    listening: Option<&'a Listening<'a>>,
    clock: &'a Clock,
    until: Timestamp,
    timer: Option<TimerKey>,
}

impl Future for WaitUntil<'_> {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        self.cancel_timer();
        let is_first = |ticket: &Ticket<'_>| {
            ticket.queues.is_first(ticket.name, ticket.number, context.waker())
        };
        let is_released = |listening: &Listening<'_>| listening.poll_released(context.waker());
        if self.until_first.is_some_and(is_first) || self.listening.is_some_and(is_released) {
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

impl WaitUntil<'_> {
    fn cancel_timer(&mut self) {
        if let Some(timer) = self.timer.take() {
            self.clock.cancel(timer);
        }
    }
}

impl Drop for WaitUntil<'_> {
    fn drop(&mut self) {
        self.cancel_timer();
    }
}
