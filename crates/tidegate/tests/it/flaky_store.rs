//! A memory store that fails on demand.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tidegate::{
    Failure, Limit, ManualClock, MemoryOptions, MemoryStore, PermitId, PermitOperation, Request,
    Store, StoreError, Verdict,
};

pub struct FlakyStore {
    store: MemoryStore,
    behavior: Mutex<Behavior>,
    /// The number of calls while the store was silent.
    unanswered: AtomicUsize,
    is_delayed: bool,
}

/// How the store responds.
#[derive(Clone, Copy, Debug)]
pub enum Behavior {
    Healthy,
    /// Requests are admitted from units that the store has leased to the node.
    Leased,
    Down,
    TimedOut,
    Lost,
    /// Calls never complete.
    Silent,
}

impl FlakyStore {
    /// Creates a store that responds immediately.
    pub fn immediate(clock: &ManualClock) -> Self {
        let store = MemoryStore::new(
            MemoryOptions { max_keys: 10_000, ..MemoryOptions::default() },
            clock.clock(),
        )
        .expect("memory");
        let behavior = Mutex::new(Behavior::Healthy);
        FlakyStore { store, behavior, unanswered: AtomicUsize::new(0), is_delayed: false }
    }

    /// Creates a store where calls take one poll to arrive, and decisions one more to return.
    pub fn delayed(clock: &ManualClock) -> Self {
        FlakyStore { is_delayed: true, ..FlakyStore::immediate(clock) }
    }

    pub fn set_behavior(&self, behavior: Behavior) {
        *self.behavior.lock().unwrap_or_else(PoisonError::into_inner) = behavior;
    }

    pub fn unanswered(&self) -> usize {
        self.unanswered.load(Ordering::Relaxed)
    }

    async fn delay(&self) {
        if self.is_delayed {
            tokio::task::yield_now().await;
        }
    }

    async fn arrive(&self) -> Result<(), StoreError> {
        self.delay().await;
        let behavior = *self.behavior.lock().unwrap_or_else(PoisonError::into_inner);
        let failure = match behavior {
            Behavior::Healthy | Behavior::Leased => return Ok(()),
            Behavior::Down => Failure::Down,
            Behavior::TimedOut => Failure::TimedOut,
            Behavior::Lost => Failure::Lost,
            Behavior::Silent => {
                self.unanswered.fetch_add(1, Ordering::Relaxed);
                std::future::pending().await
            }
        };
        Err(failure.into())
    }
}

impl Store for FlakyStore {
    async fn decide(&self, request: &Request<'_>) -> Result<Verdict, StoreError> {
        self.arrive().await?;
        let mut decided = self.store.decide(request).await;
        self.delay().await;
        let behavior = *self.behavior.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Behavior::Leased, Ok(verdict)) = (behavior, &mut decided) {
            verdict.remembered = true;
        }
        decided
    }

    async fn reset(&self, key: &[u8], limit: &Limit) -> Result<bool, StoreError> {
        self.arrive().await?;
        self.store.reset(key, limit).await
    }

    fn new_permit(&self) -> PermitId {
        self.store.new_permit()
    }

    async fn update_permit(
        &self,
        key: &[u8],
        limit: &Limit,
        operation: PermitOperation,
    ) -> Result<bool, StoreError> {
        self.arrive().await?;
        self.store.update_permit(key, limit, operation).await
    }

    fn detach(&self, task: impl Future<Output = ()> + Send + 'static) {
        // Without a runtime the task is run to completion here, unless the store is silent.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(task)),
            Err(_) => self.store.detach(task),
        }
    }
}
