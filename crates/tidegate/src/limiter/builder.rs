//! Settings of a limiter.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::Limiter;
use super::any_store::Fallback;
use crate::fallback::OnStoreFailure;
use crate::wait_queue::MAX_WAITERS;
use crate::{Clock, MemoryOptions, MemoryStore, OutOfMemory, Store, WhenFull};

/// Settings for a limiter, in memory ([`Builder::build`]) or over a store that nodes share
/// ([`Builder::build_with_store`]).
#[derive(Clone, Debug, Default)]
pub struct Builder {
    options: MemoryOptions,
    settings: Settings,
    on_failure: Option<OnStoreFailure>,
    nodes: u32,
}

/// The settings that hold over any store.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) clock: Clock,
    pub(super) max_waiters: usize,
    pub(super) jitter: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { clock: Clock::default(), max_waiters: MAX_WAITERS, jitter: Duration::ZERO }
    }
}

impl Builder {
    /// The maximum number of keys tracked, counted per key and limit. Memory is allocated
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

    /// The maximum number of idempotency ids that are remembered.
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

    /// Sets how long an expired key is kept, for times that arrive late (default: zero); see
    /// [`MemoryOptions`]. A late time still moves what its key has used since then to that time; see
    /// [`Limiter::check_at`].
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = grace;
        self
    }

    /// The source of time. A shared store decides by the clock of its server; waiting is timed by
    /// this one.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.settings.clock = clock;
        self
    }

    /// The maximum length of a queue, that is of callers that wait for the same keys and limits:
    /// 1,024 by default. The next caller is denied with [`Verdict::queue_full`](crate::Verdict::queue_full). A newcomer's wait in
    /// memory is worked out from all that wait before it, which takes longer the more there are.
    #[must_use]
    pub fn max_waiters(mut self, max_waiters: usize) -> Self {
        self.settings.max_waiters = max_waiters;
        self
    }

    /// The maximum random delay before a caller that waits for a shared store tries again, so that
    /// the callers of several nodes do not try together. Zero by default. In memory it is not used:
    /// callers are admitted one after the other.
    #[must_use]
    pub fn jitter(mut self, up_to: Duration) -> Self {
        self.settings.jitter = up_to;
        self
    }

    /// The answer when a shared store fails, which [`Verdict::decided`](crate::Verdict::decided)
    /// and [`Decision::decided`](crate::Decision::decided) report. Unless set, the failure is
    /// an error. A store in memory does not fail.
    #[must_use]
    pub fn on_store_failure(mut self, answer: OnStoreFailure) -> Self {
        self.on_failure = Some(answer);
        self
    }

    /// The number of nodes that share the limits, for [`OnStoreFailure::Local`]: each then decides under its
    /// share. 1 by default.
    #[must_use]
    pub fn nodes(mut self, nodes: u32) -> Self {
        self.nodes = nodes;
        self
    }

    /// Returns a limiter in memory.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the memory for `max_keys` cannot be reserved.
    pub fn build(self) -> Result<Limiter, OutOfMemory> {
        let store = MemoryStore::new(self.options, self.settings.clock.clone())?;
        Ok(Limiter::with_settings(store, self.settings, None))
    }

    /// Returns a limiter over a store, such as `tidegate::redis::RedisStore`. The settings of
    /// memory are those of this node's memory, which decides if the store fails and
    /// [`OnStoreFailure::Local`] is set.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the memory for `max_keys` cannot be reserved.
    pub fn build_with_store<S: Store>(self, store: S) -> Result<Limiter<S>, OutOfMemory> {
        let fallback = match self.on_failure {
            None => None,
            Some(answer) => {
                let memory = match answer {
                    OnStoreFailure::Local => Some(self.clone().build()?),
                    OnStoreFailure::Allow | OnStoreFailure::Deny => None,
                };
                Some(Fallback { answer, nodes: AtomicU32::new(self.nodes.max(1)), memory })
            }
        };
        Ok(Limiter::with_settings(store, self.settings, fallback))
    }
}
