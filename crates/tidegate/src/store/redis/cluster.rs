//! Redis Cluster: the map from slots to servers, and requests whose keys are in different slots.
//!
//! A cluster has a client for each server, and a task that keeps the map current. The map is read
//! when the store starts, when a server replies that a slot has moved, and repeatedly while a
//! server of the map is down. The client of a server that is down and no longer in the map is
//! dropped.
//!
//! No single script can decide a request whose keys are in different slots. Its parts, one per
//! slot, are decided and charged in the order of the checks. When a part denies, the charges of the
//! parts before it are refunded, and all other parts are decided in a dry run, for their decisions.
//! So the request never admits more than the limits allow. If a denial consumes the units that are
//! left, the denying part does so in its own call, and the other parts in a second call, after
//! their charges were refunded.
//!
//! For the time of a round trip, concurrent callers see units that are about to be refunded, and
//! may be denied because of them. If a server fails midway, the earlier charges are refunded if
//! that is possible, and otherwise count until they expire. Permits are released later
//! (`deferred_release.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use redis::Value;
use tidegate_core::Timestamp;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::Inner;
use super::breaker::ReconnectBackoff;
use super::connection::{DialError, Dialer};
use super::error::ConnectError;
use super::plan::{ScriptMode, ScriptPlan, ScriptReply, SlotPart, Undo};
use super::script;
use super::server::{ServerClient, ServerStatus, ServerTarget};
use super::stats::{DataLoss, StoreCounters};
use super::url::{Address, RedisUrl};
use crate::{Failure, StoreError};

/// The maximum number of servers, far more than a cluster has in practice. It bounds the number of
/// clients that redirects can create.
const MAX_SERVERS: usize = 1024;

/// The servers of a cluster.
pub(super) struct Cluster {
    seeds: Vec<Address>,
    dialer: Arc<Dialer>,
    counters: Arc<StoreCounters>,
    servers: Mutex<BTreeMap<Address, Arc<ServerClient>>>,
    map: RwLock<Arc<Map>>,
    /// Notified when the map must be read again, or when the cluster was dropped.
    stale: Arc<Notify>,
}

/// The map from slots to servers.
#[derive(Default)]
struct Map {
    /// The first slot, the last slot and the server of each range. Sorted, without overlap.
    ranges: Vec<(u16, u16, Arc<ServerClient>)>,
}

impl Map {
    fn server(&self, slot: u16) -> Option<&Arc<ServerClient>> {
        let index = self.ranges.partition_point(|(_, last, _)| *last < slot);
        let (first, _, server) = self.ranges.get(index)?;
        (*first <= slot).then_some(server)
    }

    /// Whether every slot has a server, and `predicate` holds for the state of each.
    fn all(&self, predicate: impl Fn(ServerStatus) -> bool) -> bool {
        let covered: u32 =
            self.ranges.iter().map(|(first, last, _)| u32::from(last - first) + 1).sum();
        covered == u32::from(SLOTS)
            && self.ranges.iter().all(|(_, _, server)| predicate(server.state()))
    }
}

impl Cluster {
    /// Reads the map once. If the cluster cannot be reached, this is repeated in the background.
    pub(super) async fn start(
        url: &RedisUrl,
        dialer: Arc<Dialer>,
        counters: Arc<StoreCounters>,
    ) -> Result<Arc<Self>, ConnectError> {
        let cluster = Arc::new(Cluster {
            seeds: url.hosts.clone(),
            dialer,
            counters,
            servers: Mutex::default(),
            map: RwLock::default(),
            stale: Arc::default(),
        });
        match cluster.refresh().await {
            Err(DialError::Refused(error)) => return Err(error),
            Err(DialError::Unreachable(text)) => {
                cluster.counters.set_last_error(Some(format!("the store is unavailable: {text}")));
            }
            Ok(()) => {}
        }
        for server in cluster.clients() {
            server.started().await?;
        }
        let keeping = refresh_loop(Arc::downgrade(&cluster), Arc::clone(&cluster.stale));
        cluster.dialer.runtime.spawn(keeping);
        Ok(cluster)
    }

    /// The server that has a slot; `None` if none is known.
    pub(super) fn server(&self, slot: u16) -> Option<Arc<ServerClient>> {
        self.map().server(slot).cloned()
    }

    /// The clients of all servers, sorted by address.
    pub(super) fn clients(&self) -> Vec<Arc<ServerClient>> {
        self.servers().values().cloned().collect()
    }

    /// The server that a redirect or the map names. Its client is created if it does not exist;
    /// `None` if there are too many.
    pub(super) fn server_at(&self, address: &Address) -> Option<Arc<ServerClient>> {
        let mut servers = self.servers();
        if let Some(server) = servers.get(address) {
            return Some(Arc::clone(server));
        }
        if servers.len() >= MAX_SERVERS {
            return None;
        }
        let server = Arc::new(ServerClient::start(
            ServerTarget::Fixed(address.clone()),
            Arc::clone(&self.dialer),
            Arc::clone(&self.counters),
            Some(Arc::clone(&self.stale)),
        ));
        servers.insert(address.clone(), Arc::clone(&server));
        Some(server)
    }

    /// Requests that the map is read again.
    pub(super) fn mark_stale(&self) {
        self.stale.notify_one();
    }

    pub(super) fn is_up(&self) -> bool {
        self.map().all(|state| state == ServerStatus::Up)
    }

    /// Whether all servers of the map are connected.
    fn is_current(&self) -> bool {
        self.map().all(ServerStatus::is_connected)
    }

    /// Reads the map from the first server that returns it. Connected servers are tried first.
    async fn refresh(&self) -> Result<(), DialError> {
        let mut queried: Vec<Address> = Vec::new();
        queried.extend(self.known(ServerStatus::is_connected));
        queried.extend(self.seeds.iter().cloned());
        queried.extend(self.known(|state| state == ServerStatus::Down));
        let mut tried = BTreeSet::new();
        let mut last_error = DialError::Unreachable("it has no servers".into());
        for address in queried {
            if !tried.insert(address.clone()) {
                continue;
            }
            match self.read_map(&address).await {
                Ok(ranges) => {
                    self.adopt(ranges);
                    return Ok(());
                }
                Err(error) if !matches!(last_error, DialError::Refused(_)) => last_error = error,
                Err(_) => {}
            }
        }
        Err(last_error)
    }

    fn known(&self, predicate: impl Fn(ServerStatus) -> bool) -> Vec<Address> {
        let servers = self.servers();
        let known = servers.iter().filter(|(_, server)| predicate(server.state()));
        known.map(|(address, _)| address.clone()).collect()
    }

    async fn read_map(&self, address: &Address) -> Result<Vec<Range>, DialError> {
        let command = ["CLUSTER", "SLOTS"];
        let reply = self.dialer.send_once(address, &self.dialer.login, &command).await;
        let reply = reply.map_err(|error| match error {
            // "This instance has cluster support disabled", in wording that varies by version.
            DialError::Refused(ConnectError::Unusable(_)) => {
                DialError::Refused(ConnectError::NotCluster)
            }
            error => error,
        })?;
        match read_ranges(&reply, address) {
            // The server was just started, or has forgotten the other servers.
            Some(ranges) if ranges.is_empty() => {
                Err(DialError::Unreachable("it serves no slots yet".into()))
            }
            Some(ranges) => Ok(ranges),
            None => {
                let text = "it does not answer CLUSTER SLOTS with a map";
                Err(DialError::Refused(ConnectError::Unusable(text.into())))
            }
        }
    }

    fn adopt(&self, mut ranges: Vec<Range>) {
        ranges.sort_unstable_by_key(|range| range.first);
        let kept: BTreeSet<Address> = ranges.iter().map(|range| range.primary.clone()).collect();
        let servers = ranges
            .into_iter()
            .filter_map(|range| Some((range.first, range.last, self.server_at(&range.primary)?)));
        let map = Arc::new(Map { ranges: servers.collect() });
        self.count_failovers(&kept);
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = map;
        // Slots may be on their way to a connected server that has none yet.
        let keep = |address: &Address, server: &mut Arc<ServerClient>| {
            kept.contains(address) || server.state() != ServerStatus::Down
        };
        self.servers().retain(keep);
    }

    /// Counts the servers of the current map that are down and not in the next one: replicas took
    /// their place, which may have missed writes. A server whose slots were moved is not down.
    fn count_failovers(&self, kept: &BTreeSet<Address>) {
        let map = self.map();
        for (address, server) in self.servers().iter() {
            let had_slots = || map.ranges.iter().any(|range| Arc::ptr_eq(&range.2, server));
            if server.state() == ServerStatus::Down && !kept.contains(address) && had_slots() {
                let text = "it is down, and other servers have its slots";
                self.counters.lost_data(&address.to_string(), DataLoss::Restart, text);
            }
        }
    }

    fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn servers(&self) -> MutexGuard<'_, BTreeMap<Address, Arc<ServerClient>>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the map whenever it is stale, and repeatedly while a server is down. Returns when the
/// cluster is dropped.
async fn refresh_loop(cluster: Weak<Cluster>, stale: Arc<Notify>) {
    let Some(seed) = cluster.upgrade().map(|it| it.dialer.machine.random()) else { return };
    let mut backoff = ReconnectBackoff::new(seed);
    loop {
        let is_current = match cluster.upgrade() {
            None => return,
            Some(cluster) => cluster.is_current(),
        };
        if is_current {
            backoff.reset();
            stale.notified().await;
        }
        match cluster.upgrade() {
            None => return,
            // The clients report the error; here the attempt is only repeated.
            Some(cluster) => drop(cluster.refresh().await),
        }
        tokio::time::sleep(backoff.next(false)).await;
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stale.notify_one();
    }
}

/// The number of slots of a cluster.
pub(super) const SLOTS: u16 = 16384;

/// The slot of the text in a key's braces.
pub(super) fn slot_of(tag: &[u8]) -> u16 {
    crc16(tag) % SLOTS
}

/// CRC-16/XMODEM, which Redis Cluster uses.
const fn crc16(bytes: &[u8]) -> u16 {
    let mut crc: u16 = 0;
    let mut index = 0;
    while index < bytes.len() {
        let table = CRC16[((crc >> 8) as u8 ^ bytes[index]) as usize];
        crc = (crc << 8) ^ table;
        index += 1;
    }
    crc
}

const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte: u16 = 0;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
};

/// The slots `first` to `last`, and the primary that has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) primary: Address,
}

/// Decodes the reply to `CLUSTER SLOTS`; `None` if it has another form.
pub(super) fn read_ranges(reply: &Value, queried: &Address) -> Option<Vec<Range>> {
    let Value::Array(rows) = reply else { return None };
    rows.iter().map(|row| read_range(row, queried)).collect()
}

fn read_range(row: &Value, queried: &Address) -> Option<Range> {
    let Value::Array(row) = row else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = row.as_slice() else {
        return None;
    };
    let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
    let host = match host {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        Value::SimpleString(text) => text,
        Value::Nil => "",
        _ => return None,
    };
    let slot = |number: &i64| u16::try_from(*number).ok().filter(|slot| *slot < SLOTS);
    let (first, last) = (slot(first)?, slot(last)?);
    let primary = Address::reported(host, u16::try_from(*port).ok()?, queried);
    (first <= last).then_some(Range { first, last, primary })
}

/// Decides the parts of `plan`. Refunds continue after the caller has dropped the future.
pub(super) async fn decide_across_slots(
    inner: &Arc<Inner>,
    plan: ScriptPlan,
    parts: Vec<SlotPart>,
    at: Option<Timestamp>,
) -> Result<ScriptReply, StoreError> {
    let (sender, receiver) = oneshot::channel();
    let until = Instant::now() + inner.timeout;
    let cross_slot = CrossSlotRequest { inner: Arc::clone(inner), plan, parts, at, until };
    let (read, is_read) = oneshot::channel();
    inner.io_thread.runtime().spawn(cross_slot.run(sender, is_read));
    // The task is dropped only together with the runtime.
    let decided = receiver.await.unwrap_or(Err(StoreError::Failed(Failure::Lost)));
    // If the caller drops the future before this line, the answer counts as not received.
    let _ = read.send(());
    decided
}

struct CrossSlotRequest {
    inner: Arc<Inner>,
    plan: ScriptPlan,
    parts: Vec<SlotPart>,
    at: Option<Timestamp>,
    /// When the caller stops waiting. From then on nothing more is charged.
    until: Instant,
}

impl CrossSlotRequest {
    async fn run(
        self,
        sender: oneshot::Sender<Result<ScriptReply, StoreError>>,
        is_read: oneshot::Receiver<()>,
    ) {
        let mut charged = Vec::with_capacity(self.parts.len());
        let decided = self.decide(&mut charged).await;
        let admitted = decided.as_ref().is_ok_and(|script_reply| script_reply.admitted);
        // An admission that the caller does not receive is refunded.
        drop(sender.send(decided));
        if admitted && is_read.await.is_err() {
            self.refund(&charged).await;
        }
    }

    async fn decide(&self, charged: &mut Vec<ScriptReply>) -> Result<ScriptReply, StoreError> {
        for part in &self.parts {
            let decided = if Instant::now() < self.until {
                self.call_plan(part, ScriptMode::Decide).await
            } else {
                Err(StoreError::Failed(Failure::TimedOut))
            };
            match decided {
                Ok(script_reply) if script_reply.admitted => charged.push(script_reply),
                Ok(denied) => {
                    self.refund(charged).await;
                    return self.denied(charged.len(), denied).await;
                }
                Err(error) => {
                    self.refund(charged).await;
                    return Err(error);
                }
            }
        }
        Ok(self.plan.combine(self.parts.iter().zip(&*charged)))
    }

    /// The decisions of all parts after `parts[index]` has denied. The other parts consume the
    /// units that are left, if the request does so and the deadline has not passed.
    async fn denied(&self, index: usize, denied: ScriptReply) -> Result<ScriptReply, StoreError> {
        let consumes = self.plan.consumes() && Instant::now() < self.until;
        let mode = if consumes { ScriptMode::Consume } else { ScriptMode::Dry };
        let mut script_reply = Vec::with_capacity(self.parts.len());
        for (other, part) in self.parts.iter().enumerate() {
            script_reply.push(match other == index {
                true => denied.clone(),
                false => self.call_plan(part, mode).await?,
            });
        }
        Ok(self.plan.combine(self.parts.iter().zip(&script_reply)))
    }

    async fn call_plan(
        &self,
        part: &SlotPart,
        mode: ScriptMode,
    ) -> Result<ScriptReply, StoreError> {
        self.inner.submit_plan(&part.plan, mode, self.at).await
    }

    async fn refund(&self, charged: &[ScriptReply]) {
        for (part, script_reply) in self.parts.iter().zip(charged) {
            let Undo { releases, plan } = part.plan.undo(script_reply);
            let mut is_undone = true;
            for state in releases {
                let call = script::release_call(vec![state], part.plan.permit(), self.at);
                is_undone &= self.inner.call(&call).await.is_ok();
            }
            if let Some(plan) = plan {
                let undone = self.inner.submit_plan(&plan, ScriptMode::Undo, self.at).await;
                is_undone &= undone.is_ok();
            }
            // Units that could not be refunded count until they expire. Permits are released as
            // soon as that is possible.
            if !is_undone && let Some(pending_permit) = self.inner.pending_permit(&part.plan) {
                pending_permit.release_later();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_match_the_documentation() {
        // The check value of CRC-16/XMODEM, and slots that `CLUSTER KEYSLOT` returns.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        let rows = [(&b""[..], 0), (b"foo", 12182), (b"somekey", 11058), (b"user1000", 3443)];
        for (tag, slot) in rows {
            assert_eq!(slot_of(tag), slot, "{tag:?}");
        }
    }

    #[test]
    fn slot_maps_parse_or_fail() {
        let queried = Address { host: "seed".into(), port: 1 };
        let row = |first, last, host: Value, port| {
            let server =
                Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".into())]);
            Value::Array(vec![Value::Int(first), Value::Int(last), server])
        };
        let text = |text: &str| Value::BulkString(text.into());
        let good = Value::Array(vec![row(0, 5, text("a"), 7), row(6, 16383, Value::Nil, 8)]);
        let ranges = read_ranges(&good, &queried).expect("good");
        assert_eq!(ranges[0].primary.to_string(), "a:7");
        assert_eq!((ranges[1].first, ranges[1].last), (6, 16383));
        assert_eq!(ranges[1].primary.to_string(), "seed:8");
        let bad = [
            Value::Nil,
            Value::Array(vec![Value::Nil]),
            Value::Array(vec![row(5, 4, text("a"), 7)]),
            Value::Array(vec![row(0, 16384, text("a"), 7)]),
            Value::Array(vec![row(-1, 4, text("a"), 7)]),
            Value::Array(vec![row(0, 4, text("a"), 70_000)]),
            Value::Array(vec![row(0, 4, Value::Int(1), 7)]),
        ];
        for reply in bad {
            assert_eq!(read_ranges(&reply, &queried), None, "{reply:?}");
        }
    }
}
