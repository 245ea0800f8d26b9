//! The store that several gates share.
//!
//! Its type is erased, so that `Gate` is not generic. This boxes the futures of the store,
//! which is cheap compared with a round trip. Calls of the local memory are not boxed.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tidegate_core::{Limit, PermitId};

use crate::fallback::StoreContext;
use crate::stats::Stats;
use crate::store::PermitOperation;
use crate::{CheckError, Failure, Request, Store, StoreError, Verdict};

/// The boxed future of a store's method.
pub(super) type StoreFuture<'a, T> =
    Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A [`Store`] with an erased type. Each method calls the one of the same name.
pub(crate) trait ErasedStore: Send + Sync {
    fn decide<'a>(&'a self, request: &'a Request<'a>) -> StoreFuture<'a, Verdict>;
    fn reset<'a>(&'a self, key: &'a [u8], limit: &'a Limit) -> StoreFuture<'a, bool>;
    fn new_permit(&self) -> PermitId;
    fn update_permit<'a>(
        &'a self,
        key: &'a [u8],
        limit: &'a Limit,
        operation: PermitOperation,
    ) -> StoreFuture<'a, bool>;
    fn next_attempt(&self) -> Duration;
    fn nodes(&self) -> Option<u32>;
}

impl<S: Store> ErasedStore for S {
    fn decide<'a>(&'a self, request: &'a Request<'a>) -> StoreFuture<'a, Verdict> {
        Box::pin(Store::decide(self, request))
    }

    fn reset<'a>(&'a self, key: &'a [u8], limit: &'a Limit) -> StoreFuture<'a, bool> {
        Box::pin(Store::reset(self, key, limit))
    }

    fn new_permit(&self) -> PermitId {
        Store::new_permit(self)
    }

    fn update_permit<'a>(
        &'a self,
        key: &'a [u8],
        limit: &'a Limit,
        operation: PermitOperation,
    ) -> StoreFuture<'a, bool> {
        Box::pin(Store::update_permit(self, key, limit, operation))
    }

    fn next_attempt(&self) -> Duration {
        Store::next_attempt(self)
    }

    fn nodes(&self) -> Option<u32> {
        Store::nodes(self)
    }
}

/// The shared store of a gate, with the number of nodes that share it.
pub(super) struct SharedStore {
    store: Arc<dyn ErasedStore>,
    /// The number of nodes that share the limits; 0 for as many as the store knows.
    nodes: AtomicU32,
}

impl SharedStore {
    pub(super) fn new(store: Arc<dyn ErasedStore>, nodes: u32) -> Self {
        SharedStore { store, nodes: AtomicU32::new(nodes) }
    }

    pub(super) fn store(&self) -> &dyn ErasedStore {
        &*self.store
    }

    /// The number of nodes that share the limits; 1 as long as it is not known.
    pub(super) fn nodes(&self) -> u32 {
        match self.nodes.load(Ordering::Relaxed) {
            0 => self.store.nodes().unwrap_or(1),
            nodes => nodes,
        }
    }

    /// The context of the fallback if the store fails now.
    pub(super) fn store_context(&self) -> StoreContext {
        StoreContext { nodes: self.nodes(), next_attempt: self.store.next_attempt() }
    }

    pub(super) fn set_nodes(&self, nodes: u32) {
        self.nodes.store(nodes, Ordering::Relaxed);
    }

    /// Sends a request to the store. Records the duration if the request reached the store.
    pub(super) async fn decide(
        &self,
        stats: &Stats,
        request: &Request<'_>,
    ) -> Result<Verdict, StoreError> {
        let started = Instant::now();
        let decided = self.store.decide(request).await;
        if was_sent(&decided) {
            stats.record_store(started.elapsed());
        }
        decided
    }
}

/// Whether a request reached the store. It did not if a cached denial was returned, or if it failed
/// before it was sent.
pub(super) fn was_sent(decided: &Result<Verdict, StoreError>) -> bool {
    match decided {
        Ok(verdict) => !verdict.remembered,
        Err(StoreError::Check(error)) => *error == CheckError::IdReused,
        Err(StoreError::Failed(Failure::Down | Failure::Overloaded)) => false,
        Err(StoreError::Failed(_)) => true,
    }
}

impl fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStore").field("nodes", &self.nodes()).finish_non_exhaustive()
    }
}
