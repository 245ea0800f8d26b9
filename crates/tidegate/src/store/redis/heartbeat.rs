//! Heartbeats: which nodes share a store, and whether their policies agree.
//!
//! ```text
//!   node --> heartbeat.lua --> table of all nodes, under one key
//!     ^                            |
//!     +---- live nodes <-----------+
//! ```
//!
//! Every [`INTERVAL`], a node writes its name and the fingerprint of its policies, and receives
//! those of all nodes. The entries of all nodes are in one value and not under separate keys,
//! because keys cannot be listed in a cluster, nor with the permissions of the store's user. An
//! entry counts for [`MAX_AGE`], on the clock of the server.
//!
//! The number of nodes is the largest of the last [`MAX_AGE`]: a store that lost its data knows
//! only one node at first, and the share of a node must not grow because of that. While the store
//! fails, the last number stays.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::Value;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Inner;
use super::key_names::KeyNames;
use super::script::{Script, ScriptCall, time_arg, unexpected_reply};
use crate::{Failure, StoreError};

/// The time between two heartbeats of a node.
const INTERVAL: Duration = Duration::from_secs(5);
/// The time after which a node without a heartbeat counts as gone: two may be lost.
const MAX_AGE: Duration = Duration::from_secs(15);
/// The maximum number of nodes in the table. It bounds the value that each heartbeat reads.
pub(super) const MAX_NODES: usize = 256;
/// The length of the longest name of a node. Names of hosts have at most 63 bytes, and a port may
/// follow.
const MAX_NAME_BYTES: usize = 72;

/// A node that shares a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveNode {
    /// A random number that identifies the node until it is restarted.
    pub id: u64,
    /// The name that the node announced.
    pub name: String,
    /// The fingerprint of the policies of the node.
    pub fingerprint: u64,
    /// The time since the last heartbeat of the node.
    pub last_seen: Duration,
    /// Whether this is the node that asks.
    pub is_self: bool,
}

/// The data that a node publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Announcement {
    name: String,
    fingerprint: u64,
}

/// The announcement of this node, and the nodes that it knows.
#[derive(Debug)]
pub(super) struct Heartbeats {
    id: u64,
    announcement: Mutex<Option<Announcement>>,
    /// Notified when the announcement has changed.
    changed: Notify,
    known: Mutex<KnownNodes>,
    /// The number of nodes; 0 if it is unknown.
    nodes: AtomicU32,
}

/// The nodes in the last reply.
#[derive(Debug, Default)]
struct KnownNodes {
    nodes: Vec<LiveNode>,
    received: Option<Instant>,
    /// The numbers of nodes in the replies of the last [`MAX_AGE`].
    counts: VecDeque<(Instant, u32)>,
}

impl Heartbeats {
    pub(super) fn new() -> Self {
        Heartbeats {
            id: RandomState::new().hash_one(0),
            announcement: Mutex::default(),
            changed: Notify::new(),
            known: Mutex::default(),
            nodes: AtomicU32::new(0),
        }
    }

    /// Sets what this node announces. Returns whether nothing was announced before.
    pub(super) fn announce(&self, name: &str, fingerprint: u64) -> bool {
        let name = name.chars().filter(|char| char.is_ascii_graphic()).take(MAX_NAME_BYTES);
        let next = Some(Announcement { name: name.collect(), fingerprint });
        let mut announcement = lock(&self.announcement);
        if *announcement == next {
            return false;
        }
        let is_first = announcement.is_none();
        *announcement = next;
        self.changed.notify_one();
        is_first
    }

    /// The number of nodes; `None` before the first reply.
    pub(super) fn count(&self) -> Option<u32> {
        Some(self.nodes.load(Relaxed)).filter(|nodes| *nodes > 0)
    }

    /// The nodes in the last reply, sorted by name.
    pub(super) fn live_nodes(&self) -> Vec<LiveNode> {
        let known = lock(&self.known);
        let since = known.received.map_or(Duration::ZERO, |at| at.elapsed());
        let aged = |node: &LiveNode| LiveNode { last_seen: node.last_seen + since, ..node.clone() };
        known.nodes.iter().map(aged).collect()
    }

    /// The call that announces this node, or removes it from the table.
    fn call(&self, key_names: &KeyNames, announcement: Option<&Announcement>) -> ScriptCall {
        let description = announcement.map_or(Vec::new(), |announcement| {
            [&announcement.fingerprint.to_le_bytes()[..], announcement.name.as_bytes()].concat()
        });
        let args = vec![
            time_arg(None),
            self.id.to_le_bytes().to_vec(),
            description,
            MAX_AGE.as_micros().to_string().into_bytes(),
            MAX_NODES.to_string().into_bytes(),
        ];
        ScriptCall { script: Script::Heartbeat, keys: vec![key_names.nodes()], args }
    }

    /// Adopts the nodes of a reply.
    fn adopt(&self, mut nodes: Vec<LiveNode>, now: Instant) {
        nodes.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        // A node that found the table full is not in it.
        let others = nodes.iter().filter(|node| !node.is_self).count();
        let count = u32::try_from(others + 1).unwrap_or(u32::MAX);
        let mut known = lock(&self.known);
        known.counts.retain(|(at, _)| now.saturating_duration_since(*at) < MAX_AGE);
        known.counts.push_back((now, count));
        let most = known.counts.iter().map(|(_, count)| *count).max().unwrap_or(1);
        self.nodes.store(most, Relaxed);
        (known.nodes, known.received) = (nodes, Some(now));
    }

    /// Decodes the reply of the script.
    fn decode(&self, reply: &Value) -> Result<Vec<LiveNode>, StoreError> {
        let unexpected = || StoreError::from(unexpected_reply(reply));
        let Value::Array(parts) = reply else { return Err(unexpected()) };
        let [Value::BulkString(now), Value::BulkString(table)] = parts.as_slice() else {
            return Err(unexpected());
        };
        let now = std::str::from_utf8(now).ok().and_then(|now| now.parse::<u64>().ok());
        let now = now.ok_or_else(unexpected)?;
        let (mut nodes, mut rest) = (Vec::new(), table.as_slice());
        while !rest.is_empty() && nodes.len() < MAX_NODES {
            let (node, after) = self.decode_entry(rest, now).ok_or_else(unexpected)?;
            nodes.push(node);
            rest = after;
        }
        Ok(nodes)
    }

    /// Decodes the first entry of a table. Returns it and the other entries.
    fn decode_entry<'t>(&self, table: &'t [u8], now: u64) -> Option<(LiveNode, &'t [u8])> {
        let (id, rest) = table.split_first_chunk::<8>()?;
        let (seen, rest) = rest.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first()?;
        let (description, rest) = rest.split_at_checked(usize::from(*length))?;
        let (fingerprint, name) = description.split_first_chunk::<8>()?;
        let id = u64::from_le_bytes(*id);
        let age = now.saturating_sub(u64::from_le_bytes(*seen));
        let node = LiveNode {
            id,
            name: String::from_utf8_lossy(name).into_owned(),
            fingerprint: u64::from_le_bytes(*fingerprint),
            last_seen: Duration::from_micros(age),
            is_self: id == self.id,
        };
        Some((node, rest))
    }
}

/// Sends heartbeats until the store is dropped, or nothing is announced any more.
pub(super) async fn beat(store: Weak<Inner>) {
    loop {
        let Some(inner) = store.upgrade() else { return };
        let Some(announcement) = lock(&inner.heartbeats.announcement).clone() else { return };
        // A heartbeat that fails is followed by the next one.
        drop(inner.send_heartbeat(Some(&announcement)).await);
        let heartbeats = Arc::clone(&inner.heartbeats);
        drop(inner);
        tokio::select! {
            () = heartbeats.changed.notified() => {}
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}

impl Inner {
    async fn send_heartbeat(&self, announcement: Option<&Announcement>) -> Result<(), StoreError> {
        let call = self.heartbeats.call(&self.key_names, announcement);
        // Nobody waits for it, so it is not counted as a failed request.
        let reply = tokio::time::timeout(self.timeout, self.call(&call)).await;
        let nodes = self.heartbeats.decode(&reply.unwrap_or(Err(Failure::TimedOut.into()))?)?;
        if announcement.is_some() {
            self.heartbeats.adopt(nodes, Instant::now());
        }
        Ok(())
    }

    /// Removes this node from the table, so that others do not count it any more.
    pub(super) async fn withdraw(&self) {
        if lock(&self.heartbeats.announcement).take().is_some() {
            drop(self.send_heartbeat(None).await);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u64, name: &str) -> LiveNode {
        let last_seen = Duration::ZERO;
        LiveNode { id, name: name.into(), fingerprint: 7, last_seen, is_self: false }
    }

    /// A store that lost its data lists only this node at first.
    #[test]
    fn number_of_nodes_falls_only_after_a_while() {
        let heartbeats = Heartbeats::new();
        assert_eq!(heartbeats.count(), None);
        let start = Instant::now();
        let all = || vec![node(1, "b"), LiveNode { is_self: true, ..node(2, "a") }];
        heartbeats.adopt(all(), start);
        assert_eq!(heartbeats.count(), Some(2));
        let names: Vec<String> = heartbeats.live_nodes().into_iter().map(|it| it.name).collect();
        assert_eq!(names, ["a", "b"]);
        let alone = || all().split_off(1);
        heartbeats.adopt(alone(), start + INTERVAL);
        assert_eq!(heartbeats.count(), Some(2));
        heartbeats.adopt(alone(), start + MAX_AGE);
        assert_eq!(heartbeats.count(), Some(1));
        // The table was full, so this node is not in it.
        heartbeats.adopt(all().split_off(2), start + 2 * MAX_AGE);
        assert_eq!(heartbeats.count(), Some(1));
    }

    #[test]
    fn other_replies_are_refused() {
        let heartbeats = Heartbeats::new();
        let text = |bytes: &[u8]| Value::BulkString(bytes.to_vec());
        let table = [&[1; 16][..], &[9], &[2; 8], b"n"].concat();
        let reply = |table: &[u8]| Value::Array(vec![text(b"72340172838076700"), text(table)]);
        let nodes = heartbeats.decode(&reply(&table)).expect("a table");
        assert_eq!((nodes.len(), nodes[0].name.as_str()), (1, "n"));
        assert_eq!(nodes[0].last_seen, Duration::from_micros(27));
        for length in 1..table.len() {
            assert!(heartbeats.decode(&reply(&table[..length])).is_err(), "{length}");
        }
        for other in [Value::Nil, Value::Array(vec![]), Value::Array(vec![text(b"x"), text(b"")])] {
            assert!(heartbeats.decode(&other).is_err(), "{other:?}");
        }
    }

    #[test]
    fn names_are_short_and_printable() {
        let heartbeats = Heartbeats::new();
        assert!(heartbeats.announce(&format!("a\n b{}", "é".repeat(99)), 1));
        assert!(!heartbeats.announce("x".repeat(99).as_str(), 1));
        let announced = lock(&heartbeats.announcement).clone().expect("an announcement");
        assert_eq!(announced.name, "x".repeat(MAX_NAME_BYTES));
    }
}
