//! A store that other nodes use too, as the gate sees it.
//!
//! The gate's own memory answers at once and so is asked by plain functions; a
//! store over the network is asked by futures. They are boxed: beside a round trip an
//! allocation is nothing, and the gate stays one type whatever is behind it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use tidegate_core::{Limit, PermitId};

use super::fallback::Outage;
use crate::stats::Stats;
use crate::store::PermitAct;
use crate::{CheckError, Failure, Request, Store, StoreError, Verdict};

/// The number of checks of one caller that a front submits to a shared store concurrently. It is
/// the share of a connection that one caller may use. Each check has its own deadline, so a
/// larger batch that is submitted in parts does not time out.
pub const MAX_TOGETHER: usize = 128;

/// What a store is asked for, on its way.
pub type Asked<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A [`Store`] that several gates share, whichever it is: every store is one.
///
/// `tidegate::redis::RedisStore` is the one for many machines; a
/// [`MemoryStore`](crate::MemoryStore) serves several gates in one process.
pub trait SharedStore: Send + Sync + 'static {
    /// Decides all checks of a request: all are charged or none.
    fn decide<'a>(&'a self, request: &'a Request<'a>) -> Asked<'a, Verdict>;

    /// Forgets what a key has used of a limit; says whether there was anything.
    fn reset<'a>(&'a self, key: &'a [u8], limit: &'a Limit) -> Asked<'a, bool>;

    /// A number no permit has had, and that nobody can guess if others may name it.
    fn new_permit(&self) -> PermitId;

    /// Gives a permit back, or renews it; says whether it was held.
    fn with_permit<'a>(
        &'a self,
        key: &'a [u8],
        limit: &'a Limit,
        act: PermitAct,
    ) -> Asked<'a, bool>;

    /// How long until a store that is down is tried again; zero where that is not known.
    fn next_attempt(&self) -> Duration {
        Duration::ZERO
    }
}

impl<S: Store> SharedStore for S {
    fn decide<'a>(&'a self, request: &'a Request<'a>) -> Asked<'a, Verdict> {
        Box::pin(Store::decide(self, request))
    }

    fn reset<'a>(&'a self, key: &'a [u8], limit: &'a Limit) -> Asked<'a, bool> {
        Box::pin(Store::reset(self, key, limit))
    }

    fn new_permit(&self) -> PermitId {
        Store::new_permit(self)
    }

    fn with_permit<'a>(
        &'a self,
        key: &'a [u8],
        limit: &'a Limit,
        act: PermitAct,
    ) -> Asked<'a, bool> {
        Box::pin(Store::with_permit(self, key, limit, act))
    }

    fn next_attempt(&self) -> Duration {
        Store::next_attempt(self)
    }
}

/// The shared store of a gate, and what the gate needs beside it.
pub(super) struct Shared {
    store: Arc<dyn SharedStore>,
    /// How many share the limits.
    nodes: AtomicU32,
}

impl Shared {
    pub(super) fn new(store: Arc<dyn SharedStore>, nodes: u32) -> Self {
        Shared { store, nodes: AtomicU32::new(nodes.max(1)) }
    }

    pub(super) fn store(&self) -> &dyn SharedStore {
        &*self.store
    }

    pub(super) fn nodes(&self) -> u32 {
        self.nodes.load(Ordering::Relaxed)
    }

    /// The outage, if the store fails now.
    pub(super) fn outage(&self) -> Outage {
        Outage { nodes: self.nodes(), next_attempt: self.store.next_attempt() }
    }

    pub(super) fn set_nodes(&self, nodes: u32) {
        self.nodes.store(nodes.max(1), Ordering::Relaxed);
    }

    /// Sends a request to the store. Records the duration if the request reached the store.
    pub(super) async fn decide(
        &self,
        stats: &Stats,
        request: &Request<'_>,
    ) -> Result<Verdict, StoreError> {
        let begun = Instant::now();
        let decided = self.store.decide(request).await;
        if was_sent(&decided) {
            stats.record_store(begun.elapsed());
        }
        decided
    }
}

/// Whether a request reached the store: not if a remembered denial answered it, and not if
/// it failed before it was sent.
fn was_sent(decided: &Result<Verdict, StoreError>) -> bool {
    match decided {
        Ok(verdict) => !verdict.remembered,
        Err(StoreError::Check(error)) => *error == CheckError::IdReused,
        Err(StoreError::Failed(Failure::Down | Failure::Overloaded)) => false,
        Err(StoreError::Failed(_)) => true,
    }
}

/// Waits for all of them at once: each has its deadline, and together they take no longer.
pub(super) async fn all<T>(mut asked: Vec<Asked<'_, T>>) -> Vec<Result<T, StoreError>> {
    let mut answers: Vec<Option<Result<T, StoreError>>> = asked.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (asked, answer) in asked.iter_mut().zip(&mut answers) {
            if answer.is_none()
                && let Poll::Ready(answered) = asked.as_mut().poll(context)
            {
                *answer = Some(answered);
            }
        }
        if answers.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    answers.into_iter().flatten().collect()
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("nodes", &self.nodes()).finish_non_exhaustive()
    }
}
