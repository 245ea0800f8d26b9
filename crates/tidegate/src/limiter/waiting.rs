//! Callers that wait instead of being denied.
//!
//! In memory the wait for rate limits is computed in advance (`wait_queue.rs`). That is impossible
//! in two cases: a store that other nodes use too, and a permit, because it is not known when its
//! holder releases it. In these cases the first waiter of the queue tries, waits for the time that
//! the denial reports, and tries again. The others wait until they are first. A waiter for a permit
//! is also woken when one is released in this process.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::task::Waker;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Decided, Timestamp};

use super::any_store::DecidedRequest;
use super::{Acquired, Limiter};
use crate::futures::block_on;
use crate::request::{deny_all, dry_run_checks};
use crate::sync::Mutex;
use crate::wait_queue::{Ticket, sleep_until_release, without_overflow};
use crate::{Check, CheckError, MemoryStore, Request, Store, StoreError, Verdict};

/// The maximum time between attempts of a waiter to acquire a permit from a shared store, because
/// another node may have released one. Only the first waiter of a queue tries, so this bounds the
/// load.
const PERMIT_POLL_US: u64 = 100_000;

/// Returns a random time from zero to `up_to`. Callers that are denied together add it to their
/// wait, so that they do not retry together.
pub fn jitter(up_to: Duration) -> Duration {
    // Every `RandomState` has new keys.
    let random = RandomState::new().hash_one(0_u8);
    let micros = u64::try_from(up_to.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(random % micros.saturating_add(1).max(1))
}

impl DecidedRequest {
    /// Denies an attempt that would pass now, because others wait ahead of it.
    fn into_queued_denial(mut self) -> Self {
        self.verdict.deny_queued();
        self
    }
}

impl<S: Store> Limiter<S> {
    /// Admits the checks as soon as they pass, in the order in which the futures were first polled.
    /// Denies them immediately if that would take longer than `max_wait`.
    ///
    /// Waiters with the same keys and limits form a queue of at most
    /// [`Builder::max_waiters`](crate::Builder::max_waiters). In memory the wait is computed in
    /// advance from the state and the queue. It is exact if nothing else arrives. A `check` of
    /// another caller can make a waiter wait longer, up to `max_wait`, after which it is denied.
    /// Over a shared store, the first waiter tries again at the time that the last denial reported.
    ///
    /// A denial charges nothing, even if a check is [consuming](Check::consuming). Dropping the
    /// future leaves the queue and charges nothing, unless a shared store is just deciding. In
    /// memory the future runs on any runtime.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::check_async`].
    pub async fn wait(
        &self,
        checks: &[Check<'_>],
        max_wait: Duration,
    ) -> Result<Verdict, StoreError> {
        match self.memory() {
            Some(memory) => Ok(self.shared.queues.wait(memory, checks, max_wait).await?),
            // This is boxed, so that the future of a wait in memory stays small.
            None => Ok(Box::pin(self.wait_in_queue(Request::new(checks), max_wait)).await?.verdict),
        }
    }

    /// Waits as [`Limiter::wait`] does, until a point in time.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::wait`].
    pub async fn wait_until(
        &self,
        checks: &[Check<'_>],
        until: Instant,
    ) -> Result<Verdict, StoreError> {
        self.wait(checks, until.saturating_duration_since(Instant::now())).await
    }

    /// Acquires a permit as [`Limiter::acquire`] does, and waits for one up to `max_wait`.
    ///
    /// Waiters with the same keys and limits form a queue, as in [`Limiter::wait`]. It is not known
    /// in advance how long a permit is held, so a denial may take as long as `max_wait`. A permit
    /// that another node releases is noticed within 100 ms.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Check, Limit, Limiter};
    ///
    /// async fn report(limiter: &Limiter) -> Result<(), Box<dyn std::error::Error>> {
    ///     let two: Limit = "2 concurrent lease 30s".parse()?;
    ///     let checks = [Check::new("reports", &two, 1)];
    ///     let permit = limiter.acquire_wait(&checks, Duration::from_secs(5)).await?.or_deny()?;
    ///     // At most two callers are here.
    ///     drop(permit);
    ///     Ok(())
    /// }
    /// # let _ = |limiter: &Limiter| drop(report(limiter));
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::check_async`].
    pub async fn acquire_wait(
        &self,
        checks: &[Check<'_>],
        max_wait: Duration,
    ) -> Result<Acquired<S>, StoreError> {
        let permit = Some(self.store().new_permit());
        let request = Request { permit, ..Request::new(checks) };
        let decided = self.wait_in_queue(request, max_wait).await?;
        Ok(Acquired::of_decided(self, checks, decided))
    }

    /// The store, if it is a [`MemoryStore`].
    fn memory(&self) -> Option<&MemoryStore> {
        (self.store() as &dyn std::any::Any).downcast_ref()
    }

    async fn wait_in_queue(
        &self,
        request: Request<'_>,
        max_wait: Duration,
    ) -> Result<DecidedRequest, StoreError> {
        let checks = without_overflow(request.checks);
        let request = Request { checks: &checks, deny_cache: false, ..request };
        let clock = &self.shared.clock;
        let max_wait_us = u64::try_from(max_wait.as_micros()).unwrap_or(u64::MAX);
        let until = clock.now().plus_micros(max_wait_us);
        let (queues, queue_id) = (&self.shared.queues, self.queue_id(&checks));
        let is_alone = queues.is_empty(queue_id);
        let decided = match is_alone {
            true => self.decide_or_fall_back(&request).await?,
            false => self.dry_run(&request).await?,
        };
        let is_hopeless = self.retry_delay_us(&checks, &decided.verdict, until).is_none();
        if is_hopeless || (is_alone && decided.verdict.allowed) {
            return Ok(decided);
        }
        let Some(ticket) = Ticket::new(queues, queue_id) else {
            let mut denied = decided.into_queued_denial();
            denied.verdict.queue_full = true;
            return Ok(denied);
        };
        if !ticket.is_first() && !ticket.until_first(clock, until).await {
            return Ok(self.dry_run(&request).await?.into_queued_denial());
        }
        self.try_until(&request, &ticket, until).await
    }

    /// Tries until the request passes, as the first of its queue. Each attempt has a new permit id,
    /// because the store may still release that of an attempt that timed out.
    async fn try_until(
        &self,
        request: &Request<'_>,
        ticket: &Ticket<'_>,
        until: Timestamp,
    ) -> Result<DecidedRequest, StoreError> {
        let clock = &self.shared.clock;
        loop {
            let listener: ListenerGuard<'_> =
                self.shared.release_listeners.listen(ticket.number(), request.checks);
            let permit = request.permit.map(|_| self.store().new_permit());
            let decided = self.decide_or_fall_back(&Request { permit, ..*request }).await?;
            let retry_delay_us = self.retry_delay_us(request.checks, &decided.verdict, until);
            let Some(retry_delay_us) = retry_delay_us.filter(|_| !decided.verdict.allowed) else {
                return Ok(decided);
            };
            sleep_until_release(clock, clock.now().plus_micros(retry_delay_us), &listener).await;
        }
    }

    /// The delay before the next attempt of a denied request. Returns `None` if it cannot pass in
    /// time, or if the store failed, which is not waited for.
    fn retry_delay_us(
        &self,
        checks: &[Check<'_>],
        verdict: &Verdict,
        until: Timestamp,
    ) -> Option<u64> {
        let remaining_us = until.as_micros().saturating_sub(self.shared.clock.now().as_micros());
        if verdict.allowed {
            return Some(0);
        }
        if remaining_us == 0 || verdict.decided == Decided::FailedClosed {
            return None;
        }
        let (mut rate_us, mut permit_us) = (0, u64::MAX);
        let both = checks.iter().zip(&verdict.decisions);
        for (check, decision) in
            both.filter(|(check, decision)| !check.observed && !decision.allowed)
        {
            let us = decision.retry_after.as_micros()?;
            match check.limit.algorithm() {
                Algorithm::Concurrency => permit_us = permit_us.min(us),
                _ => rate_us = rate_us.max(us),
            }
        }
        if rate_us > remaining_us {
            return None;
        }
        let is_shared = self.memory().is_none();
        let jitter_us = if is_shared { jitter(self.shared.jitter).as_micros() } else { 0 };
        let permit_us = if is_shared { permit_us.min(PERMIT_POLL_US) } else { permit_us };
        let retry_delay_us = if rate_us > 0 { rate_us } else { permit_us };
        let jitter_us = u64::try_from(jitter_us).unwrap_or(u64::MAX);
        Some(retry_delay_us.saturating_add(jitter_us).min(remaining_us).max(1))
    }

    /// The verdict that a request would get, without charging it.
    async fn dry_run(&self, request: &Request<'_>) -> Result<DecidedRequest, StoreError> {
        let deny_all = deny_all();
        let dry_run = dry_run_checks(request.checks, &deny_all);
        let outcome =
            self.decide_or_fall_back(&Request { checks: &dry_run, ..*request }).await?.verdict;
        let skipped = dry_run.len() - request.checks.len();
        let mut verdict =
            Verdict::new(request.checks, outcome.decisions.iter().skip(skipped).copied());
        (verdict.decided, verdict.no_room) = (outcome.decided, outcome.no_room);
        Ok(DecidedRequest { verdict, permit: None, local: None })
    }

    /// The id of the queue of a request. It is equal for requests with the same keys and limits
    /// in any order.
    fn queue_id(&self, checks: &[Check<'_>]) -> u64 {
        let each = checks.iter().map(|check| {
            self.shared.hasher.hash_one((check.key, check.limit.id(), check.observed))
        });
        each.fold(0, u64::wrapping_add)
    }
}

impl Limiter {
    /// Waits as [`Limiter::wait`] does, and blocks the thread.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Check, Limit, Limiter};
    ///
    /// let limiter = Limiter::new();
    /// let limit: Limit = "2 per 10ms".parse()?;
    /// for _ in 0..4 {
    ///     let checks = [Check::new("mail", &limit, 1)];
    ///     limiter.wait_blocking(&checks, Duration::from_secs(5))?.or_deny()?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::check_all`].
    pub fn wait_blocking(
        &self,
        checks: &[Check<'_>],
        max_wait: Duration,
    ) -> Result<Verdict, CheckError> {
        block_on(self.shared.queues.wait(self.store(), checks, max_wait))
    }
}

/// The listeners for released permits, by the hash of the key.
#[derive(Debug, Default)]
pub(crate) struct ReleaseListeners {
    listeners: Mutex<HashMap<u64, Vec<ReleaseListener>>>,
    /// The number of listeners. A release reads only this if there are none.
    count: AtomicUsize,
    hasher: RandomState,
}

#[derive(Debug)]
struct ReleaseListener {
    ticket: u64,
    released: bool,
    waker: Option<Waker>,
}

impl ReleaseListeners {
    /// Listens for released permits of the `concurrency` limits among these checks, for the waiter
    /// with this ticket.
    pub(crate) fn listen(&self, ticket: u64, checks: &[Check<'_>]) -> ListenerGuard<'_> {
        let held = checks
            .iter()
            .filter(|check| check.limit.algorithm() == Algorithm::Concurrency && !check.observed);
        let key_hashes: SmallVec<[u64; 2]> =
            held.map(|check| self.hasher.hash_one(check.key)).collect();
        let mut listeners = self.listeners.lock();
        for key_hash in &key_hashes {
            let listener = ReleaseListener { ticket, released: false, waker: None };
            listeners.entry(*key_hash).or_default().push(listener);
        }
        self.count.fetch_add(key_hashes.len(), Ordering::SeqCst);
        drop(listeners);
        // Either a release sees the count, or it happened before the next attempt of the waiter,
        // which then gets the permit.
        fence(Ordering::SeqCst);
        ListenerGuard { release_listeners: self, ticket, key_hashes }
    }

    /// Wakes the listeners of a key, because one of its permits was released.
    pub(crate) fn notify(&self, key: &[u8]) {
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut woken = SmallVec::<[Waker; 4]>::new();
        let key_hash = self.hasher.hash_one(key);
        if let Some(listeners) = self.listeners.lock().get_mut(&key_hash) {
            for listener in listeners {
                listener.released = true;
                woken.extend(listener.waker.take());
            }
        }
        woken.into_iter().for_each(Waker::wake);
    }
}

/// A registered listener, which is removed on drop.
#[derive(Debug)]
pub(crate) struct ListenerGuard<'r> {
    release_listeners: &'r ReleaseListeners,
    ticket: u64,
    key_hashes: SmallVec<[u64; 2]>,
}

impl ListenerGuard<'_> {
    /// Whether a permit was released since this was created. Otherwise the next release wakes
    /// `waker`.
    pub(crate) fn poll_released(&self, waker: &Waker) -> bool {
        let mut listeners = self.release_listeners.listeners.lock();
        let mut released = false;
        for key_hash in &self.key_hashes {
            let own = listeners.get_mut(key_hash).into_iter().flatten();
            for listener in own.filter(|listener| listener.ticket == self.ticket) {
                released |= listener.released;
                listener.waker = Some(waker.clone());
            }
        }
        released
    }
}

impl Drop for ListenerGuard<'_> {
    fn drop(&mut self) {
        let mut listeners = self.release_listeners.listeners.lock();
        for key_hash in &self.key_hashes {
            if let Some(waiting) = listeners.get_mut(key_hash) {
                waiting.retain(|listener| listener.ticket != self.ticket);
                if waiting.is_empty() {
                    listeners.remove(key_hash);
                }
            }
        }
        self.release_listeners.count.fetch_sub(self.key_hashes.len(), Ordering::SeqCst);
    }
}
