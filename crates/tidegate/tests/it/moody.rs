//! A store in memory that fails when told to.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tidegate::{
    Failure, Limit, ManualClock, MemoryOptions, MemoryStore, PermitAct, PermitId, Request, Store,
    StoreError, Verdict,
};

pub struct Moody {
    store: MemoryStore,
    mood: Mutex<Mood>,
    /// How many have asked while it was silent.
    unanswered: AtomicUsize,
    is_far: bool,
}

/// What it does when it is asked.
#[derive(Clone, Copy, Debug)]
pub enum Mood {
    Well,
    Down,
    TimedOut,
    Lost,
    /// Nobody is ever answered.
    Silent,
}

impl Moody {
    /// One that answers at once.
    pub fn near(clock: &ManualClock) -> Self {
        let store = MemoryStore::new(
            MemoryOptions { max_keys: 10_000, ..MemoryOptions::default() },
            clock.clock(),
        )
        .expect("memory");
        let mood = Mutex::new(Mood::Well);
        Moody { store, mood, unanswered: AtomicUsize::new(0), is_far: false }
    }

    /// One that questions take a turn to reach, and decisions another to come back from.
    pub fn far(clock: &ManualClock) -> Self {
        Moody { is_far: true, ..Moody::near(clock) }
    }

    pub fn set_mood(&self, mood: Mood) {
        *self.mood.lock().unwrap_or_else(PoisonError::into_inner) = mood;
    }

    pub fn unanswered(&self) -> usize {
        self.unanswered.load(Ordering::Relaxed)
    }

    async fn travel(&self) {
        if self.is_far {
            tokio::task::yield_now().await;
        }
    }

    async fn arrive(&self) -> Result<(), StoreError> {
        self.travel().await;
        let mood = *self.mood.lock().unwrap_or_else(PoisonError::into_inner);
        let failure = match mood {
            Mood::Well => return Ok(()),
            Mood::Down => Failure::Down,
            Mood::TimedOut => Failure::TimedOut,
            Mood::Lost => Failure::Lost,
            Mood::Silent => {
                self.unanswered.fetch_add(1, Ordering::Relaxed);
                std::future::pending().await
            }
        };
        Err(failure.into())
    }
}

impl Store for Moody {
    async fn decide(&self, request: &Request<'_>) -> Result<Verdict, StoreError> {
        self.arrive().await?;
        let decided = self.store.decide(request).await;
        self.travel().await;
        decided
    }

    async fn reset(&self, key: &[u8], limit: &Limit) -> Result<bool, StoreError> {
        self.arrive().await?;
        self.store.reset(key, limit).await
    }

    fn new_permit(&self) -> PermitId {
        self.store.new_permit()
    }

    async fn with_permit(
        &self,
        key: &[u8],
        limit: &Limit,
        act: PermitAct,
    ) -> Result<bool, StoreError> {
        self.arrive().await?;
        self.store.with_permit(key, limit, act).await
    }

    fn detach(&self, task: impl Future<Output = ()> + Send + 'static) {
        // Off a runtime the task is run to its end here, unless the store is silent.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(task)),
            Err(_) => self.store.detach(task),
        }
    }
}
