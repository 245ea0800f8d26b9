//! The limiter: what users hold.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Cost, Decision, Limit, Timestamp};

use crate::permit::{Acquired, Permit};
use crate::store::Request;
use crate::wait::Queues;
use crate::{
    Check, CheckError, Clock, MemoryOptions, MemoryStats, MemoryStore, OutOfMemory, Store,
    StoreError, Verdict, WhenFull,
};

/// Decides whether requests may go ahead.
///
/// Cheap to clone; clones share their counts. In memory every method is plain
/// and synchronous; over any [`Store`] the `_async` ones do the same.
///
/// ```
/// use tidegate::{Check, Limit, Limiter};
///
/// let limiter = Limiter::new();
/// let per_user: Limit = "100 per 1m".parse()?;
/// let per_org: Limit = "1000 per 1m sliding-window".parse()?;
///
/// // One key, one limit.
/// let decision = limiter.check("user:alice", &per_user, 1)?;
/// assert!(decision.allowed);
/// assert_eq!(decision.remaining, 99);
///
/// // Several at once: all are charged, or none.
/// let verdict = limiter.check_all(&[
///     Check::new("user:alice", &per_user, 1),
///     Check::new("org:acme", &per_org, 1),
/// ])?;
/// assert!(verdict.allowed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Limiter<S: Store = MemoryStore> {
    shared: Arc<Shared<S>>,
}

struct Shared<S> {
    store: S,
    queues: Queues,
}

impl Limiter {
    /// A limiter in memory with the default bounds: a million keys, then overflow.
    ///
    /// # Panics
    /// When 146 MB of address space cannot be had; [`Limiter::builder`] gives an error instead.
    #[expect(clippy::new_without_default, reason = "it reserves memory and reads a clock")]
    pub fn new() -> Self {
        Self::builder().build().expect("a million keys reserve 146 MB of address space")
    }

    /// Settings for a limiter in memory.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Decides one check: `cost` units of `limit` for `key`.
    ///
    /// # Errors
    /// [`CheckError::NeedsPermit`] for a `concurrency` limit. A denial is not an error.
    #[inline]
    pub fn check(
        &self,
        key: impl AsRef<[u8]>,
        limit: &Limit,
        cost: impl Into<Cost>,
    ) -> Result<Decision, CheckError> {
        self.store().decide_one(&Check::new(key.as_ref(), limit, cost), None)
    }

    /// Decides one check at a time of the caller's choosing, for replays and simulations.
    ///
    /// # Errors
    /// As [`Limiter::check`].
    #[inline]
    pub fn check_at(&self, now: Timestamp, check: &Check<'_>) -> Result<Decision, CheckError> {
        self.store().decide_one(check, Some(now.min(Timestamp::LAST)))
    }

    /// Decides several checks together: all are charged or none, unless some are
    /// [consuming](Check::consuming).
    ///
    /// # Errors
    /// When the checks make no sense together; see [`CheckError`].
    pub fn check_all(&self, checks: &[Check<'_>]) -> Result<Verdict, CheckError> {
        self.decide(&Request::new(checks))
    }

    /// As [`Limiter::check_all`], at a time of the caller's choosing.
    ///
    /// # Errors
    /// As [`Limiter::check_all`].
    pub fn check_all_at(
        &self,
        now: Timestamp,
        checks: &[Check<'_>],
    ) -> Result<Verdict, CheckError> {
        self.store().decide_all(&Request::new(checks), Some(now.min(Timestamp::LAST)))
    }

    /// Decides a request, perhaps under an idempotency id.
    ///
    /// ```
    /// use tidegate::{Check, Limit, Limiter, Request};
    ///
    /// let limiter = Limiter::new();
    /// let limit: Limit = "10 per 1m".parse()?;
    /// let checks = [Check::new("alice", &limit, 1)];
    /// let request = Request::new(&checks).with_id("order-17");
    /// limiter.decide(&request)?;
    /// limiter.decide(&request)?; // a retry: answered again, not charged again
    /// assert_eq!(limiter.peek("alice", &limit)?.remaining, 9);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Limiter::check_all`], and [`CheckError::IdReused`].
    pub fn decide(&self, request: &Request<'_>) -> Result<Verdict, CheckError> {
        self.store().decide_all(request, None)
    }

    /// Decides independent checks in order and appends a decision for each.
    ///
    /// Faster per check than single calls once there are more keys than fit the
    /// cache: the memory behind the next checks is fetched while one is decided.
    ///
    /// # Errors
    /// [`CheckError::NeedsPermit`] for a `concurrency` limit; nothing is decided then.
    pub fn check_batch(
        &self,
        checks: &[Check<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<(), CheckError> {
        self.store().decide_batch(checks, |_| None, decisions)
    }

    /// As [`Limiter::check_batch`], each check at the time beside it.
    ///
    /// # Errors
    /// As [`Limiter::check_batch`].
    ///
    /// # Panics
    /// When there are fewer times than checks.
    pub fn check_batch_at(
        &self,
        times: &[Timestamp],
        checks: &[Check<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<(), CheckError> {
        assert!(times.len() >= checks.len(), "every check needs a time");
        let time = |index: usize| Some(times[index].min(Timestamp::LAST));
        self.store().decide_batch(checks, time, decisions)
    }

    /// Looks without touching: what would be allowed now?
    ///
    /// # Errors
    /// As [`Limiter::check`].
    pub fn peek(&self, key: impl AsRef<[u8]>, limit: &Limit) -> Result<Decision, CheckError> {
        self.check(key, limit, Cost::PEEK)
    }

    /// Charges without asking, as when the true cost is known only afterwards.
    ///
    /// # Errors
    /// As [`Limiter::check`].
    pub fn charge(
        &self,
        key: impl AsRef<[u8]>,
        limit: &Limit,
        units: u64,
    ) -> Result<Decision, CheckError> {
        self.check(key, limit, Cost::Force(units))
    }

    /// Gives units back, newest first, never below zero.
    ///
    /// # Errors
    /// As [`Limiter::check`].
    pub fn refund(
        &self,
        key: impl AsRef<[u8]>,
        limit: &Limit,
        units: u64,
    ) -> Result<Decision, CheckError> {
        self.check(key, limit, Cost::Refund(units))
    }

    /// Forgets what a key has used of a limit; says whether it was tracked and not
    /// yet expired. Remembered idempotency ids are not forgotten.
    pub fn reset(&self, key: impl AsRef<[u8]>, limit: &Limit) -> bool {
        self.store().reset_now(key.as_ref(), limit)
    }

    /// Takes a permit if every check admits it; `concurrency` limits among them
    /// are held until the permit is dropped or its lease ends, rate limits are charged.
    /// A cost of 0 only looks: its permit holds nothing.
    ///
    /// ```
    /// use tidegate::{Check, Limit, Limiter};
    ///
    /// let limiter = Limiter::new();
    /// let two: Limit = "2 concurrent lease 30s".parse()?;
    /// let take = || limiter.acquire(&[Check::new("reports", &two, 1)]);
    /// let (first, second) = (take()?.permit(), take()?.permit());
    /// assert!(first.is_some() && second.is_some());
    /// assert!(take()?.permit().is_none());
    /// drop(first);
    /// assert!(take()?.permit().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Limiter::check_all`].
    pub fn acquire(&self, checks: &[Check<'_>]) -> Result<Acquired, CheckError> {
        let id = self.store().new_permit();
        let verdict = self.decide(&Request { permit: Some(id), ..Request::new(checks) })?;
        Ok(if verdict.allowed {
            Acquired::Permit(Permit::new(self.clone(), id, checks, &verdict), verdict)
        } else {
            Acquired::Denied(verdict)
        })
    }

    /// Admits the checks at the earliest moment they pass, in the order in which
    /// the futures were first polled, or says no at once if that would take longer than `max_wait`.
    ///
    /// Waiters with the same keys and limits form a queue. The wait is worked out
    /// beforehand from the state and the queue, exactly, if nothing else arrives;
    /// a plain `check` may still come in between and make a waiter wait longer,
    /// up to `max_wait`, after which it is denied. A denial charges nothing here, also where a
    /// check is [consuming](Check::consuming). Dropping the future leaves the
    /// queue and charges nothing. It runs on any runtime.
    ///
    /// # Errors
    /// As [`Limiter::check_all`].
    pub async fn wait(
        &self,
        checks: &[Check<'_>],
        max_wait: Duration,
    ) -> Result<Verdict, CheckError> {
        self.shared.queues.wait(self.store(), checks, max_wait).await
    }

    /// What the store holds and what it had to give up.
    pub fn stats(&self) -> MemoryStats {
        self.store().stats()
    }

    /// Lets go of expired keys in a part of the store; see [`MemoryStore::sweep`].
    pub fn sweep(&self) -> u64 {
        self.store().sweep()
    }
}

impl<S: Store> Limiter<S> {
    /// A limiter over any store.
    pub fn over(store: S) -> Self {
        Limiter { shared: Arc::new(Shared { store, queues: Queues::default() }) }
    }

    /// The store it decides with.
    #[inline]
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// Decides one check, over any store.
    ///
    /// # Errors
    /// When the check makes no sense or the store fails; see [`StoreError`].
    pub async fn check_async(&self, check: Check<'_>) -> Result<Decision, StoreError> {
        let verdict = self.decide_async(&Request::new(&[check])).await?;
        Ok(verdict.decisions[0])
    }

    /// Decides a request, over any store: all checks are charged or none.
    ///
    /// # Errors
    /// When the request makes no sense or the store fails; see [`StoreError`].
    pub async fn decide_async(&self, request: &Request<'_>) -> Result<Verdict, StoreError> {
        self.shared.store.decide(request).await
    }

    /// Forgets what a key has used of a limit, over any store.
    ///
    /// # Errors
    /// None in memory; other stores may fail, see [`StoreError`].
    pub async fn reset_async(
        &self,
        key: impl AsRef<[u8]> + Send,
        limit: &Limit,
    ) -> Result<bool, StoreError> {
        self.shared.store.reset(key.as_ref(), limit).await
    }
}

impl<S: Store> Clone for Limiter<S> {
    fn clone(&self) -> Self {
        Limiter { shared: Arc::clone(&self.shared) }
    }
}

impl<S: Store + fmt::Debug> fmt::Debug for Limiter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("store", self.store()).finish()
    }
}

/// Settings for a limiter in memory.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    options: MemoryOptions,
    clock: Clock,
}

impl Builder {
    /// The most keys tracked at once, counted per key and limit. Memory is taken
    /// as keys come: about 37 bytes for a `sliding-counter`, 97 for a `sliding-window` or a
    /// `token-bucket`, all in, and a sixth of a byte per possible key beforehand.
    #[must_use]
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.options.max_keys = max_keys;
        self
    }

    /// The most log entries and permits held in all; see [`MemoryOptions`].
    #[must_use]
    pub fn max_log_entries(mut self, max_log_entries: u64) -> Self {
        self.options.max_log_entries = max_log_entries;
        self
    }

    /// The most idempotency ids remembered at once.
    #[must_use]
    pub fn max_ids(mut self, max_ids: usize) -> Self {
        self.options.max_ids = max_ids;
        self
    }

    /// What happens to keys beyond `max_keys`.
    #[must_use]
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.options.when_full = when_full;
        self
    }

    /// How much longer than it matters a key is kept; see [`MemoryOptions`].
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = grace;
        self
    }

    /// Where the time comes from.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The limiter.
    ///
    /// # Errors
    /// When there cannot be memory for so many keys.
    pub fn build(self) -> Result<Limiter, OutOfMemory> {
        Ok(Limiter::over(MemoryStore::new(self.options, self.clock)?))
    }
}
