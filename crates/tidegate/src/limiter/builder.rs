//! The builder of a limiter.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::Limiter;
use super::any_store::Fallback;
use crate::fallback::OnStoreFailure;
use crate::wait_queue::MAX_WAITERS;
use crate::{Clock, MemoryOptions, MemoryStore, OutOfMemory, Store, WhenFull};

/// Builds a limiter in memory ([`Builder::build`]) or over a store that nodes share
/// ([`Builder::build_with_store`]).
#[derive(Clone, Debug, Default)]
pub struct Builder {
    options: MemoryOptions,
    settings: LimiterSettings,
    on_failure: Option<OnStoreFailure>,
    nodes: u32,
}

/// The settings that apply to any store.
#[derive(Clone, Debug)]
pub(super) struct LimiterSettings {
    pub(super) clock: Clock,
    pub(super) max_waiters: usize,
    pub(super) jitter: Duration,
}

impl Default for LimiterSettings {
    fn default() -> Self {
        LimiterSettings {
            clock: Clock::default(),
            max_waiters: MAX_WAITERS,
            jitter: Duration::ZERO,
        }
    }
}

impl Builder {
    /// Sets the maximum number of tracked keys, counted per key and limit. Memory is allocated as
    /// keys are added: about 37 bytes for a `sliding-counter` and 97 for a `sliding-window` or a
    /// `token-bucket`, including overhead. In addition, a sixth of a byte per possible key is
    /// allocated in advance.
    #[must_use]
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.options.max_keys = max_keys;
        self
    }

    /// Sets the maximum total number of log entries and permits; see [`MemoryOptions`].
    #[must_use]
    pub fn max_log_entries(mut self, max_log_entries: u64) -> Self {
        self.options.max_log_entries = max_log_entries;
        self
    }

    /// Sets the maximum number of idempotency ids that are kept.
    #[must_use]
    pub fn max_ids(mut self, max_ids: usize) -> Self {
        self.options.max_ids = max_ids;
        self
    }

    /// Sets how keys beyond `max_keys` are treated.
    #[must_use]
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.options.when_full = when_full;
        self
    }

    /// Sets how long an expired key is kept, for times that arrive late (default: zero); see
    /// [`MemoryOptions`]. A late time still moves what its key has used since then to that time;
    /// see [`Limiter::check_at`].
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = grace;
        self
    }

    /// Sets the clock. A shared store decides by the clock of its server, and this one times only
    /// the waiting.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.settings.clock = clock;
        self
    }

    /// Sets the maximum length of a queue of callers that wait for the same keys and limits; 1,024
    /// by default. The next caller is denied with
    /// [`Verdict::queue_full`](crate::Verdict::queue_full). In memory, the wait of a new caller is
    /// computed from all callers ahead of it, so it takes longer the more there are.
    #[must_use]
    pub fn max_waiters(mut self, max_waiters: usize) -> Self {
        self.settings.max_waiters = max_waiters;
        self
    }

    /// Sets the maximum random delay before a caller that waits for a shared store tries again, so
    /// that the callers of several nodes do not try together. The default is zero. It is not used
    /// in memory, where callers are admitted one after the other.
    #[must_use]
    pub fn jitter(mut self, up_to: Duration) -> Self {
        self.settings.jitter = up_to;
        self
    }

    /// Sets the fallback for when a shared store fails.
    /// [`Verdict::decided`](crate::Verdict::decided) and
    /// [`Decision::decided`](crate::Decision::decided) report it. By default, the failure is
    /// returned as an error. A store in memory does not fail.
    #[must_use]
    pub fn on_store_failure(mut self, behavior: OnStoreFailure) -> Self {
        self.on_failure = Some(behavior);
        self
    }

    /// Sets the number of nodes that share the limits, for [`OnStoreFailure::Local`]: each node
    /// then decides under its share of a limit. The default is 1.
    #[must_use]
    pub fn nodes(mut self, nodes: u32) -> Self {
        self.nodes = nodes;
        self
    }

    /// Builds a limiter in memory.
    ///
    /// # Errors
    /// Returns [`OutOfMemory`] if the memory for `max_keys` cannot be reserved.
    pub fn build(self) -> Result<Limiter, OutOfMemory> {
        let store = MemoryStore::new(self.options, self.settings.clock.clone())?;
        Ok(Limiter::with_settings(store, self.settings, None))
    }

    /// Builds a limiter over a store, such as `tidegate::redis::RedisStore`. The settings for
    /// memory apply to the local memory of this node, which decides if the store fails and
    /// [`OnStoreFailure::Local`] is set.
    ///
    /// # Errors
    /// Returns [`OutOfMemory`] if the memory for `max_keys` cannot be reserved.
    pub fn build_with_store<S: Store>(self, store: S) -> Result<Limiter<S>, OutOfMemory> {
        let fallback = match self.on_failure {
            None => None,
            Some(on_failure) => {
                let memory = match on_failure {
                    OnStoreFailure::Local => Some(self.clone().build()?),
                    OnStoreFailure::Allow | OnStoreFailure::Deny => None,
                };
                Some(Fallback { on_failure, nodes: AtomicU32::new(self.nodes.max(1)), memory })
            }
        };
        Ok(Limiter::with_settings(store, self.settings, fallback))
    }
}
