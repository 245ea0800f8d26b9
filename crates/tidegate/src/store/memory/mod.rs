//! The memory store, which keeps the states of all keys in this process, in bounded memory.
//!
//! ```text
//!   check -> hash -> shard -> slot (seize) -> algorithm -> slot (release) -> decision
//!                               \-> slab, for long logs and permits
//! ```
//!
//! - `request.rs`: the states in which a request counts, and their decisions;
//! - `when_full.rs`: what happens when there is no room for a key or a log entry;
//! - `fast_path.rs` decides one check without the lock of a shard if it can, `fast_path_several.rs`
//!   several checks, and `locked_path.rs` any request with the locks;
//! - `hash.rs` hashes keys; `table.rs` is the block of shards; `shard.rs` inserts keys, grows and
//!   evicts; `slot_groups.rs` finds slots by their tag bytes; `slot.rs` is a slot;
//!   `slab.rs` holds states that do not fit a slot;
//! - `idempotency.rs` remembers answers by id; `wait_forecast.rs` replays a queue on copies of
//!   states.
//!
//! The functions that decide, with the conditions under which they call each other:
//!
//! ```text
//! decide_one                       one check
//! |- decide_packed                 its states fit a slot; compiled for each kind of them
//! |  '- decide_hashed
//! |     |- try_one                 the most probable slot
//! |     |  |- decide_and_release   a packed state, without a lock
//! |     |  '- decide_on_log        a log in the slab
//! |     '- decide_after_miss       another slot, a new key, or a slot that is seized
//! |        |- decide_and_release   any slot of the key, without a lock
//! |        '- decide_one_locked, decide_locked
//! '- decide_slowly
//!    '- decide_all                 `Overflow::Consume`
//! decide_batch                     several requests with one check: prefetches, then as decide_one
//! |- decide_hashed
//! '- decide_slowly
//! decide_all                       one request with any number of checks
//! |- decide_with_id                a request with an id: decide_into, unless it is remembered
//! '- decide_into
//!    |- decide_unlocked            all checks without a lock
//!    |  '- decide_rest, decide_with_rest    call each other, once for each check
//!    '- merge_and_decide_locked    any request
//!       '- decide_locked           locks the shards
//!          '- decide_holding_locks
//! decide_once                      remembers by its id what the caller decides
//! ```
//!
//! Keys are not stored. A slot has the low 53 bits of a keyed hash, and the top bits
//! choose its shard. For ten million keys the probability that *any* two share a state is
//! about 3 in a million. The hash is seeded by the operating system, so a client cannot
//! choose keys that collide.

#![expect(
    clippy::cast_possible_truncation,
    reason = "shards, lines and slots are counted in 32 bits"
)]

mod fast_path;
mod fast_path_several;
mod hash;
mod idempotency;
mod locked_path;
mod request;
mod shard;
mod slab;
mod slot;
mod slot_groups;
mod table;
mod wait_forecast;
mod when_full;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::{DynState, Limit, PermitId, Timestamp};

#[cfg(feature = "policies")]
pub(crate) use self::fast_path::BATCH;
use self::hash::{KeyHasher, random_bits};
use self::idempotency::IdempotencyCache;
use self::request::OBSERVED_MARK;
use self::table::Table;
pub use self::when_full::WhenFull;
use crate::Request;
use crate::futures::poll_once;
use crate::request::MAX_CHECKS;
use crate::store::{PermitOperation, Store, StoreError};
use crate::{Check, Clock, Verdict};

/// The bounds of a memory store.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// The largest number of tracked keys, counted per key and limit.
    pub max_keys: usize,
    /// The largest number of log entries and permits of all keys. When it is reached, a log merges
    /// new entries into its newest one, which then counts longer; no more is admitted than without
    /// merging. A permit, or the first entry of a log, cannot be merged and is treated as a new key
    /// of a full store.
    pub max_log_entries: u64,
    /// The largest number of remembered idempotency ids. When it is reached, further verdicts are
    /// not remembered, and a retry is charged again.
    pub max_ids: usize,
    /// The treatment of keys beyond `max_keys`.
    pub when_full: WhenFull,
    /// The time for which an expired key is kept before its slot may be used by another key. It
    /// should be zero unless times can arrive out of order, as in a replay of a log that is not
    /// sorted exactly.
    pub grace: Duration,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        MemoryOptions {
            max_keys: 1_000_000,
            max_log_entries: 16_000_000,
            max_ids: 100_000,
            when_full: WhenFull::Overflow,
            grace: Duration::ZERO,
        }
    }
}

/// The contents of a memory store, and how often it was full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Tracked keys, counted per key and limit. Expired keys are included until they are swept or
    /// their slots are needed.
    pub tracked_keys: u64,
    /// Log entries and permits of all keys.
    pub log_entries: u64,
    /// Remembered idempotency ids.
    pub remembered_ids: u64,
    /// Decisions about new keys while the store was full.
    pub overflowed: u64,
    /// Log entries that were merged because the store was full.
    pub merged_entries: u64,
    /// Verdicts with an id that were not remembered because too many are.
    pub forgotten_ids: u64,
}

/// Counters of rare events.
#[derive(Debug, Default)]
struct Counters {
    overflowed: AtomicU64,
    merged_entries: AtomicU64,
    forgotten_ids: AtomicU64,
}

/// Keeps states in memory and decides on them.
pub struct MemoryStore {
    table: Table,
    hasher: KeyHasher,
    clock: Clock,
    when_full: WhenFull,
    max_log_entries: u64,
    /// The hash that is used for all new keys of a full store.
    overflow_hash: u64,
    idempotency: IdempotencyCache,
    next_permit: AtomicU64,
    counters: Counters,
}

/// The memory for a store could not be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The number of keys in [`MemoryOptions::max_keys`].
    pub max_keys: usize,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot allocate memory for max_keys = {}: use a smaller number", self.max_keys)
    }
}

impl std::error::Error for OutOfMemory {}

impl MemoryStore {
    /// Creates an empty store.
    ///
    /// # Errors
    /// Returns an error if the memory for `max_keys` cannot be allocated.
    pub fn new(options: MemoryOptions, clock: Clock) -> Result<Self, OutOfMemory> {
        let grace_us = u64::try_from(options.grace.as_micros()).unwrap_or(u64::MAX);
        let out_of_memory = OutOfMemory { max_keys: options.max_keys };
        Ok(MemoryStore {
            table: Table::new(options.max_keys, grace_us).ok_or(out_of_memory)?,
            overflow_hash: random_bits(),
            idempotency: IdempotencyCache::new(options.max_ids),
            hasher: KeyHasher::new(),
            clock,
            when_full: options.when_full,
            max_log_entries: options.max_log_entries,
            next_permit: AtomicU64::new(1),
            counters: Counters::default(),
        })
    }

    /// Returns the clock of the store.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the numbers of keys, entries and ids, and how often the store was full.
    pub fn stats(&self) -> MemoryStats {
        MemoryStats {
            tracked_keys: self.table.tracked(),
            log_entries: self.table.entries(),
            remembered_ids: self.idempotency.len() as u64,
            overflowed: self.counters.overflowed.load(Ordering::Relaxed),
            merged_entries: self.counters.merged_entries.load(Ordering::Relaxed),
            forgotten_ids: self.counters.forgotten_ids.load(Ordering::Relaxed),
        }
    }

    /// Removes expired keys and ids from a hundredth of the store. Returns the number of keys
    /// removed.
    ///
    /// It is not needed for correctness or to bound memory, because expired keys are removed when
    /// their slots are needed. A service can call it periodically to keep its metrics current.
    pub fn sweep(&self) -> u64 {
        let now = self.clock.now();
        self.idempotency.sweep(now);
        self.table.sweep(self.table.shards().div_ceil(100), now, u64::MAX)
    }

    /// Removes the usage of a limit by a key. Returns whether the key was tracked and had not
    /// expired.
    pub(crate) fn reset_now(&self, key: &[u8], limit: &Limit) -> bool {
        let check = self.hashed(&Check::new(key, limit, 0));
        let mut locked = self.table.lock(check.shard);
        let Some(slot_ref) = locked_path::find(&locked, &check) else { return false };
        let held = !slot_ref.read().is_expired(slot::deadline_steps_passed(self.clock.now()));
        locked.clear(slot_ref);
        held
    }

    /// Returns an id that no permit of this store has had.
    pub(crate) fn new_permit(&self) -> PermitId {
        PermitId(self.next_permit.fetch_add(1, Ordering::Relaxed))
    }

    /// Releases or renews a permit. Returns whether it was held.
    pub(crate) fn update_permit(
        &self,
        key: &[u8],
        limit: &Limit,
        operation: PermitOperation,
    ) -> bool {
        let overflowed = self.counters.overflowed.load(Ordering::Relaxed) > 0;
        let hash = self.hash(key);
        self.update_permit_of(hash, limit, operation)
            // An observed permit may be under its own key (`set_observed_apart`).
            || self.update_permit_of(hash ^ OBSERVED_MARK, limit, operation)
            // A key that was new when the store was full holds its permits under an overflow key.
            || overflowed
                && self.overflow_hashes().any(|hash| self.update_permit_of(hash, limit, operation))
    }

    /// The hashes that are used for new keys of a full store: one for the first such key of a
    /// request, and another for every further one.
    fn overflow_hashes(&self) -> impl Iterator<Item = u64> {
        (0..MAX_CHECKS as u64).map(|number| self.overflow_hash.wrapping_add(number))
    }

    fn update_permit_of(&self, hash: u64, limit: &Limit, operation: PermitOperation) -> bool {
        let check = self.with_hash(hash, &Check::new(&[], limit, 0));
        let mut locked = self.table.lock(check.shard);
        let Some(slot_ref) = locked_path::find(&locked, &check) else { return false };
        let slot = slot_ref.read();
        let permits = slot.is_in_slab().then(|| locked.slab().permits(slot.head()));
        let Some(permits) = permits.flatten() else { return false };
        let before = permits.len();
        let done = match operation {
            PermitOperation::Release(permit) => permits.release(permit),
            PermitOperation::Renew(permit) => permits.renew(limit, permit, self.clock.now()),
        };
        self.table.count_entries(before as u64, permits.len() as u64);
        let deadline = slot::deadline(permits.expires_at(limit));
        locked_path::set_deadline(&mut locked, slot_ref, slot, deadline);
        done
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash(key)
    }

    /// The time of a decision: `at` or, by default, the time of the clock.
    #[inline]
    fn time(&self, at: Option<Timestamp>) -> Timestamp {
        at.unwrap_or_else(|| self.clock.now())
    }
}

impl Store for MemoryStore {
    async fn decide(&self, request: &Request<'_>) -> Result<Verdict, StoreError> {
        Ok(self.decide_all(request, None)?)
    }

    async fn reset(&self, key: &[u8], limit: &Limit) -> Result<bool, StoreError> {
        Ok(self.reset_now(key, limit))
    }

    fn new_permit(&self) -> PermitId {
        MemoryStore::new_permit(self)
    }

    async fn update_permit(
        &self,
        key: &[u8],
        limit: &Limit,
        operation: PermitOperation,
    ) -> Result<bool, StoreError> {
        Ok(MemoryStore::update_permit(self, key, limit, operation))
    }

    /// Polls the task once, because tasks of this store never wait.
    fn detach(&self, task: impl Future<Output = ()> + Send + 'static) {
        let _ = poll_once(task);
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("clock", &self.clock)
            .field("stats", &self.stats())
            .finish()
    }
}
