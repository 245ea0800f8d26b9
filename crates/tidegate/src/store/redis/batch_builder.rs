//! Assembles the jobs of one write into calls.
//!
//! Jobs that touch the same key keep their order: a job joins a call only if no later call of
//! the write touches one of its keys. `queue.rs` keeps the order between writes, and decides which
//! equal requests share a call.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use tidegate_core::{Limit, Timestamp};

use super::batch::{BatchedCommand, MergedRequests, Waiter, Waiters};
use super::cluster::slot_of;
use super::counter::{self, CounterEntry, FastCheck, MAX_TIMES};
use super::key_names::slot_key;
use super::server::{SendMode, key_hash};
use super::url::Deployment;

/// The maximum number of keys in one call of the counter script. Larger calls gain little, and
/// other clients of the server wait while they run.
const MAX_KEYS: usize = 64;

/// The calls of a batch that is being assembled, in the order in which they will be sent.
pub(super) struct BatchBuilder {
    deployment: Deployment,
    calls: Vec<BatchEntry>,
    /// The newest counter call with a batch key.
    latest: HashMap<BatchKey, usize, RandomState>,
    /// The calls of merged requests, by group.
    groups: HashMap<usize, usize, RandomState>,
    /// The last call that touches a key, by the key's hash.
    last: HashMap<u64, usize, RandomState>,
}

/// One call of a batch.
pub(super) enum BatchEntry {
    Whole(BatchedCommand),
    CounterCall(CounterCall),
    MergedRequests(Box<MergedRequests>),
}

/// The properties that counter requests must share to be in one call.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct BatchKey {
    count: u64,
    window_us: u64,
    at: Option<Timestamp>,
    slot: u16,
}

/// A call of the counter script that is being assembled.
pub(super) struct CounterCall {
    limit: Limit,
    at: Option<Timestamp>,
    entries: Vec<CounterEntry>,
    replies: Vec<Vec<Waiter>>,
    /// The index in `entries` of each key.
    index: HashMap<Vec<u8>, usize, RandomState>,
}

impl BatchBuilder {
    pub(super) fn new(deployment: Deployment) -> Self {
        let (latest, groups, last) = Default::default();
        BatchBuilder { deployment, calls: Vec::new(), latest, groups, last }
    }

    pub(super) fn push(&mut self, entry: BatchEntry, keys: &[u64]) -> usize {
        let index = self.calls.len();
        self.calls.push(entry);
        self.last.extend(keys.iter().map(|key| (*key, index)));
        index
    }

    /// Adds a counter request. Returns whether it joined an equal one.
    pub(super) fn count(
        &mut self,
        fast_check: FastCheck,
        at: Option<Timestamp>,
        send_mode: SendMode,
        waiter: Waiter,
    ) -> bool {
        let key = key_hash(&fast_check.key);
        if send_mode != SendMode::Batched {
            let mut single = CounterCall::new(fast_check.limit, at);
            single.add(fast_check, waiter);
            self.push(BatchEntry::Whole(single.finish(send_mode)), &[key]);
            return false;
        }
        let slot = if self.deployment == Deployment::Cluster {
            slot_of(slot_key(&fast_check.key))
        } else {
            0
        };
        let (count, window_us) = (fast_check.limit.count(), fast_check.limit.window_us());
        let batch_key = BatchKey { count, window_us, at, slot };
        let after = self.last.get(&key).copied().unwrap_or(0);
        let latest = self.latest.get(&batch_key).copied().filter(|index| *index >= after);
        let fits = |calls: &[BatchEntry], index: usize| match &calls[index] {
            BatchEntry::CounterCall(counting) => counting.has_room_for(&fast_check),
            BatchEntry::Whole(_) | BatchEntry::MergedRequests(_) => false,
        };
        let index = latest.filter(|index| fits(&self.calls, *index)).unwrap_or_else(|| {
            self.push(BatchEntry::CounterCall(CounterCall::new(fast_check.limit, at)), &[])
        });
        self.latest.insert(batch_key, index);
        self.last.insert(key, index);
        match &mut self.calls[index] {
            BatchEntry::CounterCall(counting) => counting.add(fast_check, waiter),
            BatchEntry::Whole(_) | BatchEntry::MergedRequests(_) => false,
        }
    }

    /// Adds a request to the call of its group. Returns whether it joined an equal one.
    pub(super) fn merge(
        &mut self,
        one: MergedRequests,
        send_mode: SendMode,
        keys: &[u64],
        group: usize,
    ) -> bool {
        if send_mode != SendMode::Batched {
            self.push(BatchEntry::Whole(one.command(send_mode == SendMode::Asking)), keys);
            return false;
        }
        // Requests whose hashes collide are not equal, and do not share a call.
        if let Some(&index) = self.groups.get(&group)
            && let BatchEntry::MergedRequests(merged) = &mut self.calls[index]
            && merged.is_equal(&one)
        {
            merged.waiters.extend(one.waiters);
            merged.sent_count = merged.waiters.len();
            return true;
        }
        let index = self.push(BatchEntry::MergedRequests(Box::new(one)), keys);
        self.groups.insert(group, index);
        false
    }

    pub(super) fn finish(self) -> Vec<BatchedCommand> {
        let finish = |entry| match entry {
            BatchEntry::Whole(command) => command,
            BatchEntry::CounterCall(counting) => counting.finish(SendMode::Batched),
            BatchEntry::MergedRequests(merged) => merged.command(false),
        };
        self.calls.into_iter().map(finish).collect()
    }
}

impl CounterCall {
    fn new(limit: Limit, at: Option<Timestamp>) -> Self {
        let index = HashMap::default();
        CounterCall { limit, at, entries: Vec::new(), replies: Vec::new(), index }
    }

    /// Whether a request can join the call, which holds each key once and with one cost.
    fn has_room_for(&self, fast_check: &FastCheck) -> bool {
        match self.index.get(&fast_check.key) {
            Some(&index) => {
                let CounterEntry { units, times, .. } = self.entries[index];
                units == fast_check.units && times < MAX_TIMES
            }
            None => self.entries.len() < MAX_KEYS,
        }
    }

    /// Adds a request. Returns whether it joined an equal one.
    fn add(&mut self, fast_check: FastCheck, waiter: Waiter) -> bool {
        if let Some(&index) = self.index.get(&fast_check.key) {
            self.entries[index].times += 1;
            self.replies[index].push(waiter);
            return true;
        }
        self.index.insert(fast_check.key.clone(), self.entries.len());
        self.entries.push(CounterEntry { key: fast_check.key, units: fast_check.units, times: 1 });
        self.replies.push(vec![waiter]);
        false
    }

    fn finish(self, send_mode: SendMode) -> BatchedCommand {
        let CounterCall { limit, at, entries, replies, .. } = self;
        let cmd = counter::call(&limit, &entries, at).cmd();
        BatchedCommand::new(cmd, send_mode, Waiters::Counted(limit, entries, replies))
    }
}
