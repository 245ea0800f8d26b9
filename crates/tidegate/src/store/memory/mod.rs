//! The memory store: every key's state in this process, bounded.
//!
//! ```text
//!   check -> hash -> shard -> slot (seize) -> algorithm -> slot (release) -> decision
//!                               \-> slab, for logs and permits
//! ```
//!
//! - `request.rs`: the states a request counts in, and what they answer;
//! - `fast_path.rs`: one attempt without a shard's lock; `locked_path.rs`: the same with it;
//! - `hash.rs` hashes keys; `table.rs` is the block of shards; `shard.rs` places keys, grows and
//!   evicts; `span.rs` finds slots by their `tags.rs`; `slot.rs` is a slot; `slab.rs` holds what
//!   does not fit one; `lock.rs` locks;
//! - `idempotency.rs` remembers answers by id; `wait_forecast.rs` replays a queue on copies of
//!   states.
//!
//! Keys are not stored, only 53 bits of a keyed hash per slot beside the shard it
//! is in: for ten million keys the chance that *any* two share a state is about
//! 3 in a million. The hash is seeded from the operating system, so nobody
//! outside can make keys collide.

#![expect(
    clippy::cast_possible_truncation,
    reason = "shards, lines and slots are counted in 32 bits"
)]

mod fast_path;
mod hash;
mod idempotency;
mod lock;
mod locked_path;
mod request;
mod shard;
mod slab;
mod slot;
mod span;
mod table;
mod tags;
mod wait_forecast;

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
use crate::block_on::poll_once;
use crate::check::MAX_CHECKS;
use crate::store::{PermitAct, Request, Store, StoreError};
use crate::{Check, Clock, Verdict};

/// What happens to a key the store has no room for.
///
/// A key that is already tracked is never affected: dropping it would reset its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// All such keys share one state per limit: strangers slow each other down,
    /// known keys do not notice.
    #[default]
    Overflow,
    /// They are denied.
    Deny,
    /// They are allowed, uncounted.
    Allow,
}

/// The bounds of a memory store.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// The most keys tracked at once, counted per key and limit.
    pub max_keys: usize,
    /// The most log entries and permits held in all. When they are used up a log
    /// merges new entries into its newest, which then counts longer: nothing more
    /// is admitted for it. What cannot merge, a permit or the first entry of a
    /// log, is treated as a key there is no room for.
    pub max_log_entries: u64,
    /// The most idempotency ids remembered at once. Beyond it an answer is not
    /// remembered, and a retry is charged again.
    pub max_ids: usize,
    /// What happens to keys beyond `max_keys`.
    pub when_full: WhenFull,
    /// How much longer than it matters a key is kept before its place may go to
    /// another. Zero unless times can arrive late, as in a replay of a log that
    /// is not quite in order.
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

/// What a memory store holds and what it had to give up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Keys tracked, counted per key and limit; expired ones count until their
    /// place is needed or swept.
    pub tracked_keys: u64,
    /// Log entries and permits held.
    pub log_entries: u64,
    /// Idempotency ids remembered.
    pub remembered_ids: u64,
    /// Decisions for keys there was no room for.
    pub overflowed: u64,
    /// Log entries merged for want of room.
    pub merged_entries: u64,
    /// Admitted answers that could not be remembered for want of room.
    pub forgotten_ids: u64,
}

/// Counts what happens rarely.
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
    /// The key that stands for all there is no room for.
    overflow_hash: u64,
    idempotency: IdempotencyCache,
    next_permit: AtomicU64,
    counters: Counters,
}

/// The memory a store asked for cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The number of keys it was asked to have room for.
    pub max_keys: usize,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no memory for max_keys = {}: use a smaller number", self.max_keys)
    }
}

impl std::error::Error for OutOfMemory {}

impl MemoryStore {
    /// An empty store.
    ///
    /// # Errors
    /// When there cannot be memory for so many keys.
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

    /// The clock it reads.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// What it holds.
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

    /// Lets go of expired keys and ids in a part of the store and returns how many keys.
    ///
    /// Never needed for correctness or bounds: room is made when it is needed.
    /// A service that wants its metrics current calls it now and then; a
    /// hundred calls go once round the store.
    pub fn sweep(&self) -> u64 {
        let now = self.clock.now();
        self.idempotency.sweep(now);
        self.table.sweep(self.table.shards().div_ceil(100), now, u64::MAX)
    }

    /// Forgets what a key has used of a limit; says whether it was tracked and
    /// not yet expired.
    pub(crate) fn reset_now(&self, key: &[u8], limit: &Limit) -> bool {
        let check = self.hashed(&Check::new(key, limit, 0));
        let mut locked = self.table.lock(check.shard);
        let Some(slot_ref) = locked_path::find(&locked, &check) else { return false };
        let held = !slot_ref.read().is_expired(slot::units_passed(self.clock.now()));
        locked.clear(slot_ref);
        held
    }

    /// A number no permit of this store has had.
    pub(crate) fn new_permit(&self) -> PermitId {
        PermitId(self.next_permit.fetch_add(1, Ordering::Relaxed))
    }

    /// Gives a permit back, or renews it; says whether it was held.
    pub(crate) fn with_permit(&self, key: &[u8], limit: &Limit, act: PermitAct) -> bool {
        let overflowed = self.counters.overflowed.load(Ordering::Relaxed) > 0;
        // A key there was no room for holds its permits under an overflow key.
        let hash = self.hash(key);
        self.with_permit_of(hash, limit, act)
            || self.with_permit_of(hash ^ OBSERVED_MARK, limit, act)
            || overflowed
                && self.overflow_hashes().any(|hash| self.with_permit_of(hash, limit, act))
    }

    /// The keys that stand for all there is no room for: the first, and one more
    /// for every further such key a single request can have.
    fn overflow_hashes(&self) -> impl Iterator<Item = u64> {
        (0..MAX_CHECKS as u64).map(|number| self.overflow_hash.wrapping_add(number))
    }

    fn with_permit_of(&self, hash: u64, limit: &Limit, act: PermitAct) -> bool {
        let check = self.with_hash(hash, &Check::new(&[], limit, 0));
        let mut locked = self.table.lock(check.shard);
        let Some(slot_ref) = locked_path::find(&locked, &check) else { return false };
        let slot = slot_ref.read();
        let permits = slot.is_in_slab().then(|| locked.slab().permits(slot.head()));
        let Some(permits) = permits.flatten() else { return false };
        let before = permits.len();
        let done = match act {
            PermitAct::Release(permit) => permits.release(permit),
            PermitAct::Renew(permit) => permits.renew(limit, permit, self.clock.now()),
        };
        self.table.count_entries(before, permits.len());
        let deadline = slot::deadline(permits.expires_at(limit));
        locked_path::set_deadline(&mut locked, slot_ref, slot, deadline);
        done
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash(key)
    }

    /// The time of a decision: given, or read here and now.
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

    async fn with_permit(
        &self,
        key: &[u8],
        limit: &Limit,
        act: PermitAct,
    ) -> Result<bool, StoreError> {
        Ok(MemoryStore::with_permit(self, key, limit, act))
    }

    /// Nothing in memory has to be waited for.
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
