//! Ordered waiting: queues of callers that wait instead of being denied.
//!
//! Waiters with the same keys and limits form one queue, and only the first of them tries to pass.
//! When it is admitted, times out or is dropped, the next one tries. The wait of a new caller is
//! computed, not estimated: the states are copied, and the whole queue ahead of it is simulated on
//! the copy.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, RetryAfter, Timestamp};

use crate::Request;
use crate::clock::TimerKey;
use crate::limiter::ListenerGuard;
use crate::sync::Mutex;
use crate::{Check, CheckError, Clock, MemoryStore, Overflow, Verdict};

/// The default maximum number of waiters in a queue, beyond which callers are denied. Simulating a
/// queue of this length takes noticeable time, for which other new callers of the same limiter
/// wait. A caller that finds the queue full is denied without the simulation.
pub(crate) const MAX_WAITERS: usize = 1024;

/// The retry-after of a denial because others wait ahead. It is short, because the queue moves.
pub(crate) const QUEUED_RETRY_US: u64 = 1_000;

/// Queues of waiters, by the hash of their keys and limits.
#[derive(Debug)]
pub(crate) struct Queues {
    queues: Mutex<HashMap<u64, VecDeque<Waiter>>>,
    next_ticket: AtomicU64,
    /// The maximum number of waiters in a queue.
    max_waiters: usize,
}

impl Default for Queues {
    fn default() -> Self {
        Queues::new(MAX_WAITERS)
    }
}

/// A caller in a queue.
#[derive(Debug)]
struct Waiter {
    ticket: u64,
    costs: Box<[Cost]>,
    /// The computed time at which it passes.
    due: Timestamp,
    waker: Option<Waker>,
}

impl Queues {
    pub(crate) fn new(max_waiters: usize) -> Self {
        Queues { queues: Mutex::default(), next_ticket: AtomicU64::new(0), max_waiters }
    }

    /// Waits until the checks pass in memory; see [`Limiter::wait`](crate::Limiter::wait).
    pub(crate) async fn wait(
        &self,
        store: &MemoryStore,
        checks: &[Check<'_>],
        max_wait: Duration,
    ) -> Result<Verdict, CheckError> {
        let max_wait_us = u64::try_from(max_wait.as_micros()).unwrap_or(u64::MAX);
        let checks = &*without_overflow(checks);
        let (queue_id, costs) = store.queue_id(checks)?;
        let (ticket, until) = {
            let mut queues = self.queues.lock();
            let queue = queues.get(&queue_id).filter(|queue| !queue.is_empty());
            let is_full = queue.map_or(0, VecDeque::len) >= self.max_waiters;
            let mut verdict = match queue {
                None => store.decide_all(&Request::new(checks), None)?,
                Some(queue) if is_full => {
                    store.forecast_after(checks, queue.back().map(|last| last.due))?
                }
                Some(queue) => forecast(store, checks, queue.iter())?,
            };
            let wait_us = verdict.retry_after().as_micros().filter(|us| *us <= max_wait_us);
            let Some(wait_us) = wait_us.filter(|_| !verdict.allowed) else { return Ok(verdict) };
            if is_full {
                verdict.queue_full = true;
                return Ok(verdict);
            }
            let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
            let now = store.clock().now();
            let waiter = Waiter { ticket, costs, due: now.plus_micros(wait_us), waker: None };
            queues.entry(queue_id).or_default().push_back(waiter);
            (ticket, now.plus_micros(max_wait_us))
        };
        Waiting { queues: self, store, checks, queue_id, ticket, until, timer: None }.await
    }

    /// The denial of a waiter that was not first before its wait ended.
    fn denial_after_wait(&self, waiting: &Waiting<'_>) -> Result<Verdict, CheckError> {
        let queues = self.queues.lock();
        let queue = queues.get(&waiting.queue_id).into_iter().flatten();
        let ahead = queue.take_while(|waiter| waiter.ticket != waiting.ticket);
        forecast(waiting.store, waiting.checks, ahead)
    }

    /// Joins the end of a queue, for callers whose wait is not computed from the states. Returns
    /// `None` if the queue is full.
    pub(crate) fn join(&self, queue_id: u64) -> Option<u64> {
        let mut queues = self.queues.lock();
        if queues.get(&queue_id).map_or(0, VecDeque::len) >= self.max_waiters {
            return None;
        }
        let queue = queues.entry(queue_id).or_default();
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        let due = Timestamp::from_micros(0);
        queue.push_back(Waiter { ticket, costs: Box::default(), due, waker: None });
        Some(ticket)
    }

    /// Whether the queue with this id is empty.
    pub(crate) fn is_empty(&self, queue_id: u64) -> bool {
        !self.queues.lock().contains_key(&queue_id)
    }

    /// Whether this ticket is first in its queue. Otherwise `waker` is woken when that may have
    /// changed.
    pub(crate) fn is_first(&self, queue_id: u64, ticket: u64, waker: &Waker) -> bool {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(&queue_id) else { return true };
        if queue.front().is_none_or(|first| first.ticket == ticket) {
            return true;
        }
        if let Some(own) = queue.iter_mut().find(|waiter| waiter.ticket == ticket) {
            own.waker = Some(waker.clone());
        }
        false
    }

    /// Leaves the queue, and wakes the waiter that is first now.
    pub(crate) fn leave(&self, queue_id: u64, ticket: u64) {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(&queue_id) else { return };
        queue.retain(|waiter| waiter.ticket != ticket);
        let next = queue.front_mut().and_then(|first| first.waker.take());
        if queue.is_empty() {
            queues.remove(&queue_id);
        }
        drop(queues);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}

/// The checks of a waiter. Attempts to pass do not report usage, so none of them consumes.
pub(crate) fn without_overflow<'c>(checks: &[Check<'c>]) -> SmallVec<[Check<'c>; 4]> {
    checks.iter().map(|check| Check { overflow: Overflow::Refuse, ..*check }).collect()
}

fn forecast<'w>(
    store: &MemoryStore,
    checks: &[Check<'_>],
    ahead: impl Iterator<Item = &'w Waiter>,
) -> Result<Verdict, CheckError> {
    let ahead: Vec<&[Cost]> = ahead.map(|waiter| &*waiter.costs).collect();
    store.forecast(checks, &ahead)
}

/// A waiter in a queue, which it leaves on drop.
struct Waiting<'a> {
    queues: &'a Queues,
    store: &'a MemoryStore,
    checks: &'a [Check<'a>],
    queue_id: u64,
    ticket: u64,
    /// The end of the caller's wait.
    until: Timestamp,
    timer: Option<TimerKey>,
}

impl Future for Waiting<'_> {
    type Output = Result<Verdict, CheckError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.cancel_timer();
        if !self.queues.is_first(self.queue_id, self.ticket, context.waker()) {
            // Other callers may delay the waiters ahead, but the end of the wait stays the same.
            let remaining_us = self.remaining_us();
            if remaining_us > 0 {
                self.wake_after(remaining_us, context);
                return Poll::Pending;
            }
            return Poll::Ready(self.queues.denial_after_wait(&self));
        }
        let verdict = match self.store.decide_all(&Request::new(self.checks), None) {
            Ok(verdict) => verdict,
            Err(error) => return Poll::Ready(Err(error)),
        };
        match verdict.retry_after() {
            RetryAfter::Micros(us) if !verdict.allowed && us <= self.remaining_us() => {
                self.wake_after(us, context);
                Poll::Pending
            }
            _ => Poll::Ready(Ok(verdict)),
        }
    }
}

impl Waiting<'_> {
    fn remaining_us(&self) -> u64 {
        self.until.as_micros().saturating_sub(self.store.clock().now().as_micros())
    }

    fn wake_after(&mut self, us: u64, context: &Context<'_>) {
        self.timer = Some(self.store.clock().wake_after(us, context.waker().clone()));
    }

    fn cancel_timer(&mut self) {
        if let Some(timer) = self.timer.take() {
            self.store.clock().cancel(timer);
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.cancel_timer();
        self.queues.leave(self.queue_id, self.ticket);
    }
}

/// A position in a queue, which is left on drop.
pub(crate) struct Ticket<'q> {
    queues: &'q Queues,
    queue_id: u64,
    number: u64,
}

impl<'q> Ticket<'q> {
    /// Joins the end of the queue with this id. Returns `None` if the queue is full.
    pub(crate) fn new(queues: &'q Queues, queue_id: u64) -> Option<Self> {
        queues.join(queue_id).map(|number| Ticket { queues, queue_id, number })
    }

    /// A number that is unique among the tickets of these queues.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn is_first(&self) -> bool {
        self.queues.is_first(self.queue_id, self.number, Waker::noop())
    }

    /// Waits until the ticket is first. Resolves to `true` then, and to `false` at `until`.
    pub(crate) fn until_first<'a>(&'a self, clock: &'a Clock, until: Timestamp) -> WaitUntil<'a> {
        WaitUntil { until_first: Some(self), ..sleep(clock, until) }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.queues.leave(self.queue_id, self.number);
    }
}

/// Waits until a time.
pub(crate) fn sleep(clock: &Clock, until: Timestamp) -> WaitUntil<'_> {
    WaitUntil { until_first: None, listener: None, clock, until, timer: None }
}

/// Waits until a time, or until a permit that is listened for is released.
pub(crate) fn sleep_until_release<'a>(
    clock: &'a Clock,
    until: Timestamp,
    listener: &'a ListenerGuard<'a>,
) -> WaitUntil<'a> {
    WaitUntil { listener: Some(listener), ..sleep(clock, until) }
}

/// Waits for a time or, before that, for the first position in a queue or for the release of a
/// permit.
pub(crate) struct WaitUntil<'a> {
    until_first: Option<&'a Ticket<'a>>,
    listener: Option<&'a ListenerGuard<'a>>,
    clock: &'a Clock,
    until: Timestamp,
    timer: Option<TimerKey>,
}

impl Future for WaitUntil<'_> {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        self.cancel_timer();
        let is_first = |ticket: &Ticket<'_>| {
            ticket.queues.is_first(ticket.queue_id, ticket.number, context.waker())
        };
        let is_released = |listener: &ListenerGuard<'_>| listener.poll_released(context.waker());
        if self.until_first.is_some_and(is_first) || self.listener.is_some_and(is_released) {
            return Poll::Ready(true);
        }
        let remaining_us = self.until.as_micros().saturating_sub(self.clock.now().as_micros());
        if remaining_us == 0 {
            return Poll::Ready(false);
        }
        self.timer = Some(self.clock.wake_after(remaining_us, context.waker().clone()));
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
