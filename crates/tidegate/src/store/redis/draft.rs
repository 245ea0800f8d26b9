//! How the jobs of one write become calls.
//!
//! Jobs that touch the same key keep their order: a job joins a call only if no later call of
//! the write touches one of its keys. `queue.rs` keeps the order between writes, and decides which
//! equal requests share a call.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use tidegate_core::{Limit, Timestamp};

use super::batch::{Members, Merged, Unit, Waiter};
use super::counter::{self, Entry, MAX_TIMES, Quick};
use super::lane::{Manner, key_hash};
use super::names::slot_key;
use super::topology::slot_of;
use super::url::Kind;

/// Keys in one call of the counter script. Beyond this a call gains little, and
/// everybody else's has to wait for it.
const MAX_KEYS: usize = 64;

/// The calls of a batch while it is put together, in the order they will be sent.
pub(super) struct Drafts {
    kind: Kind,
    calls: Vec<Draft>,
    /// The newest call of a kin.
    latest: HashMap<Kin, usize, RandomState>,
    /// The calls of merged requests, by group.
    groups: HashMap<usize, usize, RandomState>,
    /// The last call that touches a key, by the key's hash.
    last: HashMap<u64, usize, RandomState>,
}

/// One call.
pub(super) enum Draft {
    Whole(Unit),
    Counting(Counting),
    Merged(Box<Merged>),
}

/// What makes asks go in one call.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Kin {
    count: u64,
    window_us: u64,
    at: Option<Timestamp>,
    slot: u16,
}

/// A counter call while it is put together.
pub(super) struct Counting {
    limit: Limit,
    at: Option<Timestamp>,
    entries: Vec<Entry>,
    replies: Vec<Vec<Waiter>>,
    /// Where in `entries` a key is.
    index: HashMap<Vec<u8>, usize, RandomState>,
}

impl Drafts {
    pub(super) fn new(kind: Kind) -> Self {
        let (latest, groups, last) = Default::default();
        Drafts { kind, calls: Vec::new(), latest, groups, last }
    }

    pub(super) fn push(&mut self, draft: Draft, keys: &[u64]) -> usize {
        let index = self.calls.len();
        self.calls.push(draft);
        self.last.extend(keys.iter().map(|key| (*key, index)));
        index
    }

    /// Adds a counter ask; returns whether there was an equal one to join.
    pub(super) fn count(
        &mut self,
        quick: Quick,
        at: Option<Timestamp>,
        manner: Manner,
        waiter: Waiter,
    ) -> bool {
        let key = key_hash(&quick.key);
        if manner != Manner::Together {
            let mut alone = Counting::new(quick.limit, at);
            alone.add(quick, waiter);
            self.push(Draft::Whole(alone.finish(manner)), &[key]);
            return false;
        }
        let slot = if self.kind == Kind::Cluster { slot_of(slot_key(&quick.key)) } else { 0 };
        let (count, window_us) = (quick.limit.count(), quick.limit.window_us());
        let kin = Kin { count, window_us, at, slot };
        let after = self.last.get(&key).copied().unwrap_or(0);
        let latest = self.latest.get(&kin).copied().filter(|index| *index >= after);
        let fits = |calls: &[Draft], index: usize| match &calls[index] {
            Draft::Counting(counting) => counting.has_room_for(&quick),
            Draft::Whole(_) | Draft::Merged(_) => false,
        };
        let index = latest
            .filter(|index| fits(&self.calls, *index))
            .unwrap_or_else(|| self.push(Draft::Counting(Counting::new(quick.limit, at)), &[]));
        self.latest.insert(kin, index);
        self.last.insert(key, index);
        match &mut self.calls[index] {
            Draft::Counting(counting) => counting.add(quick, waiter),
            Draft::Whole(_) | Draft::Merged(_) => false,
        }
    }

    /// Adds a request to the call of its group; returns whether there was one to join.
    pub(super) fn merge(
        &mut self,
        one: Merged,
        manner: Manner,
        keys: &[u64],
        group: usize,
    ) -> bool {
        if manner != Manner::Together {
            self.push(Draft::Whole(one.unit(manner == Manner::Asking)), keys);
            return false;
        }
        // Requests whose hashes collide are not equal, and do not share a call.
        if let Some(&index) = self.groups.get(&group)
            && let Draft::Merged(merged) = &mut self.calls[index]
            && merged.is_equal(&one)
        {
            merged.waiters.extend(one.waiters);
            merged.asked = merged.waiters.len();
            return true;
        }
        let index = self.push(Draft::Merged(Box::new(one)), keys);
        self.groups.insert(group, index);
        false
    }

    pub(super) fn finish(self) -> Vec<Unit> {
        let finish = |draft| match draft {
            Draft::Whole(unit) => unit,
            Draft::Counting(counting) => counting.finish(Manner::Together),
            Draft::Merged(merged) => merged.unit(false),
        };
        self.calls.into_iter().map(finish).collect()
    }
}

impl Counting {
    fn new(limit: Limit, at: Option<Timestamp>) -> Self {
        let index = HashMap::default();
        Counting { limit, at, entries: Vec::new(), replies: Vec::new(), index }
    }

    /// A call holds each key once, with one cost.
    fn has_room_for(&self, quick: &Quick) -> bool {
        match self.index.get(&quick.key) {
            Some(&index) => {
                let Entry { units, times, .. } = self.entries[index];
                units == quick.units && times < MAX_TIMES
            }
            None => self.entries.len() < MAX_KEYS,
        }
    }

    /// Adds an ask; returns whether there was an equal one.
    fn add(&mut self, quick: Quick, waiter: Waiter) -> bool {
        if let Some(&index) = self.index.get(&quick.key) {
            self.entries[index].times += 1;
            self.replies[index].push(waiter);
            return true;
        }
        self.index.insert(quick.key.clone(), self.entries.len());
        self.entries.push(Entry { key: quick.key, units: quick.units, times: 1 });
        self.replies.push(vec![waiter]);
        false
    }

    fn finish(self, manner: Manner) -> Unit {
        let Counting { limit, at, entries, replies, .. } = self;
        let command = counter::call(&limit, &entries, at).cmd();
        Unit::new(command, manner, Members::Counted(limit, entries, replies))
    }
}
