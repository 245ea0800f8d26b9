//! The counters of a store, which all its connections share.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::{Failure, StoreError};

/// The maximum number of different warnings. Equal warnings of several servers are kept once.
const MAX_WARNINGS: usize = 16;

/// The counters of a Redis store since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisStats {
    /// Whether the store is connected and did not refuse the last call; in a cluster, whether this
    /// is so for every slot.
    pub up: bool,
    /// Requests to decide, including those that were answered from memory.
    pub requests: u64,
    /// Denials that were answered from memory.
    pub deny_cache_hits: u64,
    /// Calls that were sent. Several requests may share one.
    pub calls: u64,
    /// Writes to a connection. Several calls may share one.
    pub batches: u64,
    /// Requests that shared an entry of a call with an earlier one on the same states.
    pub coalesced: u64,
    /// Requests and other operations that were sent. `sent - coalesced` is the number of entries of
    /// the calls, so `sent / calls` is the number of requests per call.
    pub sent: u64,
    /// Requests and other operations that wait in this process to be sent.
    pub queued: u64,
    /// Calls that were sent and are not answered yet.
    pub calls_in_flight: u64,
    /// Calls that were sent again, because a reply proved that they were not carried out.
    pub resent: u64,
    /// Writes that were answered, or whose connection failed.
    pub round_trips: u64,
    /// The sum of the times of these writes, in microseconds.
    pub round_trip_us: u64,
    /// Requests that failed because too many requests waited. They were not sent.
    pub failed_overloaded: u64,
    /// Requests that waited for too long to be sent, so they failed as overloaded. They are part of
    /// `failed_overloaded`; the others found a full queue.
    pub queue_timeouts: u64,
    /// Requests that failed because the store was down. They were not sent, or not carried out.
    pub failed_down: u64,
    /// Requests that failed because the store did not answer in time. Requests that waited for too
    /// long before they were sent count as overloaded.
    pub failed_timed_out: u64,
    /// Requests that failed because the connection broke.
    pub failed_lost: u64,
    /// Requests that failed because the store answered with an error.
    pub failed_refused: u64,
    /// Requests that failed because the value at a key is not a state of tidegate.
    pub foreign: u64,
    /// The number of times that data was lost, in the order of [`DataLoss::ALL`].
    pub data_losses: [u64; DataLoss::ALL.len()],
    /// Connections that failed, or were given up, after they had been established.
    pub breaker_openings: u64,
    /// Connections that were established.
    pub connections: u64,
    /// Permits that were queued for release in the background, because nobody waited for their
    /// acquire any more or an earlier release failed.
    pub deferred_releases: u64,
    /// Permits that were not released in the background, because the queue was full. Such a permit
    /// is held until its lease ends.
    pub deferred_releases_dropped: u64,
    /// Requests that were answered from leases.
    pub lease_hits: u64,
    /// Units that the store granted to this node.
    pub lease_units_granted: u64,
    /// Units that were spent from leases.
    pub lease_units_spent: u64,
    /// Units that were given back to the store.
    pub lease_units_given_back: u64,
    /// Units that were neither spent nor given back before their lease ended. They count as used.
    pub lease_units_expired: u64,
    /// Leases with units that can be spent now.
    pub leases_active: u64,
    /// The number of times that leases were suspended, because the clocks of this node and of the
    /// store drifted apart.
    pub lease_clock_drifts: u64,
}

/// How a store lost data. The limits of lost keys start from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataLoss {
    /// A server restarted, or another one took its place. What was not saved or replicated is lost.
    Restart,
    /// `FLUSHALL` or `FLUSHDB` was run on a server.
    Flush,
    /// A server evicted keys for lack of memory.
    Eviction,
}

impl DataLoss {
    /// Every variant.
    pub const ALL: [DataLoss; 3] = [DataLoss::Restart, DataLoss::Flush, DataLoss::Eviction];

    /// Returns the name used in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            DataLoss::Restart => "restart",
            DataLoss::Flush => "flush",
            DataLoss::Eviction => "eviction",
        }
    }
}

/// A server of a store, and whether it is usable.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisServer {
    /// The host and the port, or the path of a unix socket.
    pub address: String,
    /// Whether the server is connected and did not refuse the last call.
    pub up: bool,
}

impl RedisStats {
    /// Returns the number of failures by the name of their kind.
    pub fn failures(&self) -> [(&'static str, u64); 5] {
        [
            (Failure::Overloaded.name(), self.failed_overloaded),
            (Failure::Down.name(), self.failed_down),
            (Failure::TimedOut.name(), self.failed_timed_out),
            (Failure::Lost.name(), self.failed_lost),
            (Failure::Refused("".into()).name(), self.failed_refused),
        ]
    }
}

/// The counters that all connections of a store share.
#[derive(Debug, Default)]
pub(super) struct StoreCounters {
    pub(super) requests: AtomicU64,
    pub(super) deny_cache_hits: AtomicU64,
    pub(super) calls: AtomicU64,
    pub(super) batches: AtomicU64,
    pub(super) coalesced: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) calls_in_flight: AtomicU64,
    pub(super) queue_timeouts: AtomicU64,
    pub(super) resent: AtomicU64,
    round_trips: AtomicU64,
    round_trip_us: AtomicU64,
    failed: [AtomicU64; 5],
    foreign: AtomicU64,
    last_foreign: Mutex<Option<String>>,
    data_losses: [AtomicU64; DataLoss::ALL.len()],
    last_data_loss: Mutex<Option<String>>,
    pub(super) breaker_openings: AtomicU64,
    pub(super) connections: AtomicU64,
    pub(super) deferred_releases: AtomicU64,
    pub(super) deferred_releases_dropped: AtomicU64,
    pub(super) lease_hits: AtomicU64,
    pub(super) lease_granted: AtomicU64,
    pub(super) lease_spent: AtomicU64,
    pub(super) lease_given_back: AtomicU64,
    pub(super) lease_expired: AtomicU64,
    pub(super) lease_drifts: AtomicU64,
    warnings: Mutex<BTreeSet<String>>,
    last_error: Mutex<Option<String>>,
    /// The time of the next attempt to connect to a server that is down. It is in the past once the
    /// attempt was made.
    next_attempt: Mutex<Option<Instant>>,
}

impl StoreCounters {
    pub(super) fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Relaxed);
    }

    pub(super) fn round_trip(&self, took: Duration) {
        self.round_trips.fetch_add(1, Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.round_trip_us.fetch_add(micros, Relaxed);
    }

    /// Counts a failure by its kind.
    pub(super) fn failed(&self, error: &StoreError) {
        let StoreError::Failed(failure) = error else { return };
        let index = match failure {
            Failure::Down => 0,
            Failure::TimedOut => 1,
            Failure::Lost => 2,
            Failure::Refused(_) => 3,
            Failure::Overloaded => 4,
        };
        self.failed[index].fetch_add(1, Relaxed);
    }

    pub(super) fn warn(&self, warning: Option<String>) {
        let Some(warning) = warning else { return };
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if warnings.len() < MAX_WARNINGS {
            warnings.insert(warning);
        }
    }

    pub(super) fn warnings(&self) -> Vec<String> {
        let warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        warnings.iter().cloned().collect()
    }

    pub(super) fn set_last_error(&self, error: Option<String>) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    pub(super) fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_next_attempt(&self, at: Instant) {
        *self.next_attempt.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
    }

    pub(super) fn next_attempt(&self) -> Instant {
        let next = *self.next_attempt.lock().unwrap_or_else(PoisonError::into_inner);
        next.unwrap_or_else(Instant::now)
    }

    /// Counts a value that is not a state. `location` describes its key.
    pub(super) fn found_foreign(&self, location: String) {
        self.foreign.fetch_add(1, Relaxed);
        *self.last_foreign.lock().unwrap_or_else(PoisonError::into_inner) = Some(location);
    }

    pub(super) fn last_foreign(&self) -> Option<String> {
        self.last_foreign.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts lost data. `server` is the address of the server.
    pub(super) fn lost_data(&self, server: &str, loss: DataLoss, text: &str) {
        self.data_losses[loss as usize].fetch_add(1, Relaxed);
        let text = format!("{server}: {text}");
        *self.last_data_loss.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }

    pub(super) fn last_data_loss(&self) -> Option<String> {
        self.last_data_loss.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn read(&self, up: bool, leases_active: u64) -> RedisStats {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        let [failed_down, failed_timed_out, failed_lost, failed_refused, failed_overloaded] =
            [0, 1, 2, 3, 4].map(|index: usize| read(&self.failed[index]));
        RedisStats {
            up,
            requests: read(&self.requests),
            deny_cache_hits: read(&self.deny_cache_hits),
            calls: read(&self.calls),
            batches: read(&self.batches),
            coalesced: read(&self.coalesced),
            sent: read(&self.sent),
            // The queues of the servers know it.
            queued: 0,
            calls_in_flight: read(&self.calls_in_flight),
            resent: read(&self.resent),
            round_trips: read(&self.round_trips),
            round_trip_us: read(&self.round_trip_us),
            failed_overloaded,
            queue_timeouts: read(&self.queue_timeouts),
            failed_down,
            failed_timed_out,
            failed_lost,
            failed_refused,
            foreign: read(&self.foreign),
            data_losses: std::array::from_fn(|index| read(&self.data_losses[index])),
            breaker_openings: read(&self.breaker_openings),
            connections: read(&self.connections),
            deferred_releases: read(&self.deferred_releases),
            deferred_releases_dropped: read(&self.deferred_releases_dropped),
            lease_hits: read(&self.lease_hits),
            lease_units_granted: read(&self.lease_granted),
            lease_units_spent: read(&self.lease_spent),
            lease_units_given_back: read(&self.lease_given_back),
            lease_units_expired: read(&self.lease_expired),
            leases_active,
            lease_clock_drifts: read(&self.lease_drifts),
        }
    }
}
