//! Stores keep state and decide.

mod memory;
mod merge;
#[cfg(feature = "redis")]
pub mod redis;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Limit, PermitId};

use crate::{CheckError, Request, Verdict};

#[cfg(feature = "policies")]
pub(crate) use memory::BATCH;
pub use memory::{MemoryOptions, MemoryStats, MemoryStore, OutOfMemory, WhenFull};
pub(crate) use merge::validate;

/// Keeps states and decides on them, atomically and in one call.
///
/// There is no get and set in it: a store that only kept bytes could not decide
/// without races. Others may implement it, for example around a store of this crate, to count its
/// calls or to make it fail in tests:
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use tidegate::{
///     Failure, Limit, MemoryStore, PermitAct, PermitId, Request, Store, StoreError, Verdict,
/// };
///
/// struct Unreliable {
///     store: MemoryStore,
///     fails: AtomicBool,
/// }
///
/// impl Store for Unreliable {
///     async fn decide(&self, request: &Request<'_>) -> Result<Verdict, StoreError> {
///         match self.fails.load(Ordering::Relaxed) {
///             true => Err(Failure::Down.into()),
///             false => Store::decide(&self.store, request).await,
///         }
///     }
///
///     async fn reset(&self, key: &[u8], limit: &Limit) -> Result<bool, StoreError> {
///         Store::reset(&self.store, key, limit).await
///     }
///
///     fn new_permit(&self) -> PermitId {
///         Store::new_permit(&self.store)
///     }
///
///     async fn with_permit(
///         &self,
///         key: &[u8],
///         limit: &Limit,
///         act: PermitAct,
///     ) -> Result<bool, StoreError> {
///         Store::with_permit(&self.store, key, limit, act).await
///     }
///
///     fn detach(&self, task: impl Future<Output = ()> + Send + 'static) {
///         self.store.detach(task);
///     }
/// }
/// ```
///
/// A store that decides by itself returns [`Verdict::new`].
pub trait Store: Send + Sync + 'static {
    /// Decides all checks of a request: all are charged or none.
    fn decide(
        &self,
        request: &Request<'_>,
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send;

    /// Forgets what a key has used of a limit; says whether there was anything.
    fn reset(
        &self,
        key: &[u8],
        limit: &Limit,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// A number no permit has had, and that nobody can guess if others may name it.
    fn new_permit(&self) -> PermitId;

    /// Gives a permit back, or renews it for as long as `limit` says; says whether it
    /// was held.
    fn with_permit(
        &self,
        key: &[u8],
        limit: &Limit,
        act: PermitAct,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Runs a task to its end that no caller waits for: the release of a permit that was dropped, or
    /// the refund of a reservation. A store on `tokio` spawns it there. A task that is dropped
    /// instead leaves the permit held until its lease ends, and the reservation charged.
    fn detach(&self, task: impl Future<Output = ()> + Send + 'static);

    /// How long until a store that is down is tried again; zero where that is not known.
    fn next_attempt(&self) -> Duration {
        Duration::ZERO
    }
}

/// A store that several limiters use.
impl<S: Store> Store for Arc<S> {
    async fn decide(&self, request: &Request<'_>) -> Result<Verdict, StoreError> {
        S::decide(self, request).await
    }

    async fn reset(&self, key: &[u8], limit: &Limit) -> Result<bool, StoreError> {
        S::reset(self, key, limit).await
    }

    fn new_permit(&self) -> PermitId {
        S::new_permit(self)
    }

    async fn with_permit(
        &self,
        key: &[u8],
        limit: &Limit,
        act: PermitAct,
    ) -> Result<bool, StoreError> {
        S::with_permit(self, key, limit, act).await
    }

    fn detach(&self, task: impl Future<Output = ()> + Send + 'static) {
        S::detach(self, task);
    }

    fn next_attempt(&self) -> Duration {
        S::next_attempt(self)
    }
}

/// What to do with a permit.
#[derive(Clone, Copy, Debug)]
pub enum PermitAct {
    /// Give it back.
    Release(PermitId),
    /// Start its lease anew.
    Renew(PermitId),
}

/// Why there is no verdict. A denial is not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The request makes no sense: no store would answer it.
    Check(CheckError),
    /// The store could not be asked, or gave no answer. Says nothing about the limit.
    Failed(Failure),
}

/// How a store failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// It was not asked, because it is not there or was not lately: nothing was charged.
    Down,
    /// The request was not sent, because too many requests wait for the store: nothing was charged.
    Overloaded,
    /// It did not answer in time. The request may have been charged, so it is not repeated.
    TimedOut,
    /// The connection broke while it was being asked. The request may have been charged.
    Lost,
    /// It answered with an error, and nothing was charged.
    Refused(Box<str>),
}

impl Failure {
    /// One word for it, as metrics have it.
    pub const fn name(&self) -> &'static str {
        match self {
            Failure::Down => "down",
            Failure::Overloaded => "overloaded",
            Failure::TimedOut => "timed-out",
            Failure::Lost => "lost",
            Failure::Refused(_) => "refused",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Down => f.write_str("the store is not there"),
            Failure::Overloaded => f.write_str("too many requests wait for the store"),
            Failure::TimedOut => f.write_str("the store did not answer in time"),
            Failure::Lost => f.write_str("the connection to the store broke"),
            Failure::Refused(error) => write!(f, "the store answered with an error: {error}"),
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Check(error) => error.fmt(f),
            StoreError::Failed(failure) => failure.fmt(f),
        }
    }
}

impl std::error::Error for StoreError {}

impl From<CheckError> for StoreError {
    fn from(error: CheckError) -> Self {
        StoreError::Check(error)
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        StoreError::Failed(failure)
    }
}
