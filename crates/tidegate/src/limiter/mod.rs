//! The limiter, the main type of this crate.
//!
//! - this file: synchronous decisions in memory;
//! - `any_store.rs`: asynchronous decisions over any store, with a fallback for when it fails;
//! - `waiting.rs`: callers that wait; `permit.rs`: held permits; `reservation.rs`: estimates that
//!   are settled later;
//! - `builder.rs`: settings.

mod any_store;
mod builder;
mod permit;
mod reservation;
mod waiting;

use std::any::Any;
use std::fmt;
use std::hash::RandomState;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Cost, Decision, Limit, Timestamp};

pub use self::builder::Builder;
pub use self::permit::{Acquired, Permit};
pub use self::reservation::Reserved;
pub(crate) use self::waiting::ListenerGuard;
pub use self::waiting::jitter;

use self::any_store::Fallback;
use self::builder::LimiterSettings;
use self::waiting::ReleaseListeners;
use crate::Request;
use crate::wait_queue::Queues;
use crate::{Check, CheckError, Clock, MemoryStats, MemoryStore, Store, Verdict};

/// Decides whether requests may proceed.
///
/// A limiter is cheap to clone, and clones share their counts. Over memory its methods are
/// synchronous. The methods that end in `_async`, and those that wait, work over any [`Store`].
///
/// ```
/// use tidegate::{Check, Limit, Limiter};
///
/// let limiter = Limiter::new();
/// let per_user: Limit = "100 per 1m".parse()?;
/// let per_org: Limit = "1000 per 1m sliding-window".parse()?;
///
/// // One key, one limit. `or_deny` turns a denial into an error, so that `?` enforces the limit.
/// limiter.check("user:alice", &per_user, 1)?.or_deny()?;
/// assert_eq!(limiter.peek("user:alice", &per_user)?.remaining, 99);
///
/// // Several checks: all are charged, or none.
/// let checks = [Check::new("user:alice", &per_user, 1), Check::new("org:acme", &per_org, 1)];
/// limiter.check_all(&checks)?.or_deny()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Limiter<S: Store = MemoryStore> {
    shared: Arc<Inner<S>>,
}

struct Inner<S> {
    store: S,
    /// The fallback for when the store fails; `None` to return the error.
    fallback: Option<Fallback>,
    queues: Queues,
    release_listeners: ReleaseListeners,
    /// The clock that waiting is timed by.
    clock: Clock,
    /// The maximum random delay before a caller that waits for a shared store tries again.
    jitter: Duration,
    /// Hashes the keys and limits of a request to the name of its queue.
    hasher: RandomState,
}

impl Limiter {
    /// Creates a limiter in memory with the default bounds: at most a million keys, beyond which
    /// new keys overflow.
    ///
    /// # Panics
    /// Panics if 146 MB of address space cannot be reserved; [`Limiter::builder`] returns an error
    /// instead.
    pub fn new() -> Self {
        Self::builder().build().expect("a million keys reserve 146 MB of address space")
    }

    /// Returns a builder with the default settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Decides one check: `cost` units of `limit` for `key`.
    ///
    /// An unused decision is a compiler warning, because a denial would be ignored:
    ///
    /// ```compile_fail
    /// #![deny(unused_must_use)]
    /// # use tidegate::{Limit, Limiter};
    /// # let (limiter, limit) = (Limiter::new(), Limit::per_second(1));
    /// limiter.check("alice", &limit, 1)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// ```
    /// #![deny(unused_must_use)]
    /// # use tidegate::{Limit, Limiter};
    /// # let (limiter, limit) = (Limiter::new(), Limit::per_second(1));
    /// limiter.check("alice", &limit, 1)?.or_deny()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`CheckError::NeedsPermit`] for a `concurrency` limit. A denial is not an error.
    #[inline]
    pub fn check(
        &self,
        key: impl AsRef<[u8]>,
        limit: &Limit,
        cost: impl Into<Cost>,
    ) -> Result<Decision, CheckError> {
        self.store().decide_one(&Check::new(key.as_ref(), limit, cost), None)
    }

    /// Decides one check at a given time, for replays and simulations.
    ///
    /// ```
    /// use std::time::SystemTime;
    /// use tidegate::{Limit, Limiter};
    ///
    /// let limiter = Limiter::new();
    /// let limit = Limit::per_minute(5);
    /// limiter.check_at(SystemTime::now(), "alice", &limit, 1)?.or_deny()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The times of a key should be in order. A check at an earlier time than the last one moves
    /// the units that the key has used since then to the earlier time, so they expire sooner. Clamp
    /// times that arrive late to the newest time of the key.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::check`].
    #[inline]
    pub fn check_at(
        &self,
        now: impl Into<Timestamp>,
        key: impl AsRef<[u8]>,
        limit: &Limit,
        cost: impl Into<Cost>,
    ) -> Result<Decision, CheckError> {
        let now = now.into().min(Timestamp::LAST);
        self.store().decide_one(&Check::new(key.as_ref(), limit, cost), Some(now))
    }

    /// Decides several checks together: all are charged or none, unless some are
    /// [consuming](Check::consuming).
    ///
    /// # Errors
    /// Returns a [`CheckError`] if the checks are invalid together.
    #[inline]
    pub fn check_all(&self, checks: &[Check<'_>]) -> Result<Verdict, CheckError> {
        self.decide(&Request::new(checks))
    }

    /// Decides several checks together, as [`Limiter::check_all`] does, at a given time. The times
    /// of a key should be in order; see [`Limiter::check_at`].
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::check_all`].
    #[inline]
    pub fn check_all_at(
        &self,
        now: Timestamp,
        checks: &[Check<'_>],
    ) -> Result<Verdict, CheckError> {
        self.store().decide_all(&Request::new(checks), Some(now.min(Timestamp::LAST)))
    }

    /// Decides a request, which may have an idempotency id.
    ///
    /// ```
    /// use tidegate::{Check, Limit, Limiter, Request};
    ///
    /// let limiter = Limiter::new();
    /// let limit: Limit = "10 per 1m".parse()?;
    /// let checks = [Check::new("alice", &limit, 1)];
    /// let request = Request::new(&checks).with_id("order-17");
    /// limiter.decide(&request)?.or_deny()?;
    /// limiter.decide(&request)?.or_deny()?; // a retry: the same verdict, not charged again
    /// assert_eq!(limiter.peek("alice", &limit)?.remaining, 9);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::check_all`], and [`CheckError::IdReused`].
    #[inline]
    pub fn decide(&self, request: &Request<'_>) -> Result<Verdict, CheckError> {
        self.store().decide_all(request, None)
    }

    /// Decides independent checks in order and appends a decision for each.
    ///
    /// This is faster than single calls if there are more keys than fit in the CPU cache, because
    /// the states of the next checks are prefetched.
    ///
    /// # Errors
    /// Returns [`CheckError::NeedsPermit`] if one of the limits is a `concurrency` limit. Nothing
    /// is decided then.
    pub fn check_batch(
        &self,
        checks: &[Check<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<(), CheckError> {
        self.store().decide_batch(checks, |_| None, decisions)
    }

    /// Decides independent checks as [`Limiter::check_batch`] does, each at the time with the same
    /// index. The times of a key should be in order; see [`Limiter::check_at`].
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::check_batch`].
    ///
    /// # Panics
    /// Panics if there are fewer times than checks.
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

    /// Returns the decision that a cost of 1 would get now, without charging it.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::check`].
    pub fn peek(&self, key: impl AsRef<[u8]>, limit: &Limit) -> Result<Decision, CheckError> {
        self.check(key, limit, Cost::PEEK)
    }

    /// Charges units even beyond the limit, for a cost that is known only afterwards. Returns the
    /// remaining units; [`Limiter::check`] with [`Cost::Force`] returns the whole decision.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::check`].
    pub fn charge(
        &self,
        key: impl AsRef<[u8]>,
        limit: &Limit,
        units: u64,
    ) -> Result<u64, CheckError> {
        Ok(self.check(key, limit, Cost::Force(units))?.remaining)
    }

    /// Refunds units, newest first, never below zero usage. Returns the remaining units;
    /// [`Limiter::check`] with [`Cost::Refund`] returns the whole decision.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::check`].
    pub fn refund(
        &self,
        key: impl AsRef<[u8]>,
        limit: &Limit,
        units: u64,
    ) -> Result<u64, CheckError> {
        Ok(self.check(key, limit, Cost::Refund(units))?.remaining)
    }

    /// Resets the usage of a limit by a key. Returns whether the key was tracked and not yet
    /// expired. Idempotency ids are kept.
    pub fn reset(&self, key: impl AsRef<[u8]>, limit: &Limit) -> bool {
        self.store().reset_now(key.as_ref(), limit)
    }

    /// Acquires a permit if every check allows it. `concurrency` limits are held until the permit
    /// is dropped or its lease ends; rate limits are charged. The permit of a cost of 0 holds
    /// nothing.
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
    /// Returns the errors of [`Limiter::check_all`].
    pub fn acquire(&self, checks: &[Check<'_>]) -> Result<Acquired, CheckError> {
        let id = self.store().new_permit();
        let verdict = self.decide(&Request { permit: Some(id), ..Request::new(checks) })?;
        Ok(Acquired::new(self, id, checks, verdict))
    }

    /// Returns the contents of the store, and how often it was full.
    pub fn stats(&self) -> MemoryStats {
        self.store().stats()
    }

    /// Evicts expired keys in a part of the store; see [`MemoryStore::sweep`].
    pub fn sweep(&self) -> u64 {
        self.store().sweep()
    }
}

impl<S: Store> Limiter<S> {
    /// Creates a limiter over any store, with the default settings; see
    /// [`Builder::build_with_store`].
    pub fn with_store(store: S) -> Self {
        Self::with_settings(store, LimiterSettings::default(), None)
    }

    fn with_settings(store: S, settings: LimiterSettings, fallback: Option<Fallback>) -> Self {
        let memory = (&store as &dyn Any).downcast_ref::<MemoryStore>();
        let clock = memory.map_or(settings.clock, |memory| memory.clock().clone());
        let shared = Inner {
            store,
            fallback,
            queues: Queues::new(settings.max_waiters),
            release_listeners: ReleaseListeners::default(),
            clock,
            jitter: settings.jitter,
            hasher: RandomState::new(),
        };
        Limiter { shared: Arc::new(shared) }
    }

    /// The time on the clock that waiting is timed by.
    fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// Returns the store.
    #[inline]
    pub fn store(&self) -> &S {
        &self.shared.store
    }
}

impl Default for Limiter {
    /// Creates a limiter in memory, as [`Limiter::new`] does.
    fn default() -> Self {
        Self::new()
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
