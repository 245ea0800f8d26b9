//! The [`Store`] trait: a store keeps states and decides on them.

mod memory;
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

/// Keeps states and decides on them, atomically and in one call.
///
/// The trait deliberately lacks get and set operations, because a caller that reads, decides and
/// writes would race with others. It can be implemented outside of this crate, for example around
/// one of its stores, to count calls or to make them fail in tests:
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use tidegate::{
///     Failure, Limit, MemoryStore, PermitOperation, PermitId, Request, Store, StoreError, Verdict,
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
///     async fn update_permit(
///         &self,
///         key: &[u8],
///         limit: &Limit,
///         operation: PermitOperation,
///     ) -> Result<bool, StoreError> {
///         Store::update_permit(&self.store, key, limit, operation).await
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
    /// Decides all checks of a request. Either all of them are charged or none.
    fn decide(
        &self,
        request: &Request<'_>,
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send;

    /// Removes the usage of a limit by a key. Returns whether there was any.
    fn reset(
        &self,
        key: &[u8],
        limit: &Limit,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Returns a new permit id, which no permit has had before. If permit ids can be chosen by
    /// clients, it must not be possible to guess it.
    fn new_permit(&self) -> PermitId;

    /// Releases a permit, or renews it with the lease of `limit`. Returns whether the permit was
    /// held.
    fn update_permit(
        &self,
        key: &[u8],
        limit: &Limit,
        operation: PermitOperation,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Runs a task to completion although no caller waits for it: the release of a dropped permit,
    /// or the refund of a dropped reservation. A store on `tokio` spawns it there. If the task is
    /// dropped instead, the permit stays held until its lease ends, and the reservation stays
    /// charged.
    fn detach(&self, task: impl Future<Output = ()> + Send + 'static);

    /// Returns the time until a store that is down is tried again; zero if it is not known.
    fn next_attempt(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the number of nodes that share the store, at least 1; `None` if it is not known.
    fn nodes(&self) -> Option<u32> {
        None
    }
}

/// A store that is shared by several limiters.
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

    async fn update_permit(
        &self,
        key: &[u8],
        limit: &Limit,
        operation: PermitOperation,
    ) -> Result<bool, StoreError> {
        S::update_permit(self, key, limit, operation).await
    }

    fn detach(&self, task: impl Future<Output = ()> + Send + 'static) {
        S::detach(self, task);
    }

    fn next_attempt(&self) -> Duration {
        S::next_attempt(self)
    }

    fn nodes(&self) -> Option<u32> {
        S::nodes(self)
    }
}

/// An operation on a held permit.
#[derive(Clone, Copy, Debug)]
pub enum PermitOperation {
    /// Releases the permit.
    Release(PermitId),
    /// Restarts the lease of the permit.
    Renew(PermitId),
}

/// The reason that a store returned no verdict. A denial is not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The request is invalid for every store.
    Check(CheckError),
    /// The store could not be reached, or returned no verdict. The usage of the limit is unknown.
    Failed(Failure),
}

/// The failure of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The request was not sent, because the store is unavailable or was a short time ago. Nothing
    /// was charged.
    Down,
    /// The request was not sent, because too many requests wait for the store. Nothing was charged.
    Overloaded,
    /// The store did not reply in time. The request may have been charged, so it is not repeated.
    TimedOut,
    /// The connection broke before the reply. The request may have been charged.
    Lost,
    /// The store replied with an error. Nothing was charged.
    Refused(Box<str>),
}

impl Failure {
    /// Returns the name used in metrics.
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
            Failure::Down => f.write_str("the store is unavailable"),
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
