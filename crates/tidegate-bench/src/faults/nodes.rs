//! The nodes that share a limit, their callers, and the records of all calls.

use std::iter::repeat;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::BoxError;
use tidegate::redis::{RedisOptions, RedisStore};
use tidegate::unstable::config::Config;
use tidegate::unstable::gate::{Gate, GateRequest, Subject};
use tidegate::unstable::stats::{Decided, Stats};
use tidegate::{Clock, Limiter};
use tokio::task::{JoinHandle, JoinSet};

/// Units per window, shared by all nodes.
pub const LIMIT: u32 = 40;
/// The window of the limit.
pub const WINDOW: Duration = Duration::from_secs(2);
/// Number of servers that share the limit.
pub const NODES: u32 = 2;
/// Units that a node may admit by itself.
pub const NODE_SHARE: u32 = LIMIT / NODES;
/// Keys checked under every policy. With this number, each key gets slightly more requests than
/// its limit. With fewer keys, most requests would be denied without a call to the store.
pub const KEYS: u8 = 20;
/// Units per window of the leased key. Its callers use them up in less than a window.
pub const LEASED_LIMIT: u32 = 4_000;
/// Callers per node.
const CALLERS: u8 = 6;
/// Pause of a caller between two calls.
const PAUSE: Duration = Duration::from_millis(3);
/// Callers per node of the leased key, and their pause. A node sends some 3,000 requests in a
/// second, so it takes leases while the limit has units left.
const HOT_CALLERS: u8 = 10;
const HOT_PAUSE: Duration = Duration::from_millis(2);
/// Time between two checks whether all nodes have recovered.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Three policies that differ only in `on_store_failure`, and one whose only key is leased.
pub const CONFIG: &str = r#"
nodes: 2
policies:
  - { name: local, key: "{client_ip}", limits: ["40 per 2s sliding-log"], on_store_failure: local }
  - { name: allow, key: "{client_ip}", limits: ["40 per 2s sliding-log"], on_store_failure: allow }
  - { name: deny, key: "{client_ip}", limits: ["40 per 2s sliding-log"], on_store_failure: deny }
  - { name: leased, key: "{client_ip}", limits: ["4000 per 2s"], on_store_failure: deny, lease: auto }
"#;

/// One of the policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Local,
    Allow,
    Deny,
    Leased,
}

impl Policy {
    pub const ALL: [Policy; 4] = [Policy::Local, Policy::Allow, Policy::Deny, Policy::Leased];

    pub fn name(self) -> &'static str {
        match self {
            Policy::Local => "local",
            Policy::Allow => "allow",
            Policy::Deny => "deny",
            Policy::Leased => "leased",
        }
    }

    /// Returns the number of keys that are checked.
    pub fn keys(self) -> u8 {
        if self == Policy::Leased { 1 } else { KEYS }
    }

    /// Returns whether this policy may give such an answer.
    pub fn may_answer(self, call: &CallRecord) -> bool {
        match (self, call.decided) {
            (_, Decided::Exact) | (Policy::Local, Decided::Local) => true,
            (Policy::Allow, Decided::FailedOpen) => call.allowed,
            (Policy::Deny | Policy::Leased, Decided::FailedClosed) => !call.allowed,
            _ => false,
        }
    }
}

/// One call as observed by its caller.
#[derive(Clone, Copy, Debug)]
pub struct CallRecord {
    /// Times since the first call.
    pub sent: Duration,
    pub received: Duration,
    pub policy: Policy,
    pub key: u8,
    pub allowed: bool,
    pub decided: Decided,
    pub remaining: Option<u64>,
}

/// All nodes with their callers.
pub struct Nodes {
    start: Instant,
    stopping: Arc<AtomicBool>,
    stores: Vec<RedisStore>,
    /// For each node, when its last exact answer was requested and received.
    exact: Arc<[Mutex<Option<(Duration, Duration)>>]>,
    callers: Vec<JoinHandle<Result<Vec<CallRecord>, BoxError>>>,
}

impl Nodes {
    pub async fn start(url: &str, start: Instant) -> Result<Self, BoxError> {
        let exact = (0..NODES).map(|_| Mutex::new(None)).collect();
        let stopping = Arc::new(AtomicBool::new(false));
        let mut nodes = Nodes { start, stopping, stores: Vec::new(), exact, callers: Vec::new() };
        for node in 0..NODES {
            let Node { gate, store } = Node::connect(CONFIG, url).await?;
            nodes.stores.push(store);
            let gate = Arc::new(gate);
            for caller in 0..CALLERS {
                let cold = Policy::ALL.into_iter().filter(|policy| *policy != Policy::Leased);
                let checks =
                    (0..KEYS).flat_map(move |key| cold.clone().map(move |policy| (policy, key)));
                let checks = checks.cycle().skip(usize::from(caller));
                nodes.spawn_caller(node, gate.clone(), checks, PAUSE);
            }
            for _ in 0..HOT_CALLERS {
                nodes.spawn_caller(node, gate.clone(), repeat((Policy::Leased, 0)), HOT_PAUSE);
            }
        }
        Ok(nodes)
    }

    fn spawn_caller(
        &mut self,
        node: u32,
        gate: Arc<Gate>,
        checks: impl Iterator<Item = (Policy, u8)> + Send + 'static,
        pause: Duration,
    ) {
        let (start, stopping, exact) = (self.start, self.stopping.clone(), self.exact.clone());
        self.callers.push(tokio::spawn(async move {
            let mut calls = Vec::new();
            for (policy, key) in checks.take_while(|_| !stopping.load(Relaxed)) {
                let call = check(&gate, policy, key, start).await?;
                if call.decided == Decided::Exact
                    && let Ok(mut last) = exact[node as usize].lock()
                {
                    *last = Some((call.sent, call.received));
                }
                calls.push(call);
                tokio::time::sleep(pause).await;
            }
            Ok(calls)
        }));
    }

    /// Waits until every node has a lease.
    pub async fn wait_leased(&self, within: Duration) -> Result<(), BoxError> {
        let deadline = Instant::now() + within;
        while !self.stores.iter().all(|store| store.stats().leases_active > 0) {
            if Instant::now() > deadline {
                return Err(format!("a node had no lease within {within:?}").into());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Returns the units that the nodes were granted so far.
    pub fn units_granted(&self) -> u64 {
        self.stores.iter().map(|store| store.stats().lease_units_granted).sum()
    }

    /// Returns the units that the nodes have taken and not spent. It is at most too high.
    pub fn units_out(&self) -> u64 {
        self.stores.iter().map(units_out).sum()
    }

    /// Waits until every node has had an exact answer to a call made after `since`, and returns how
    /// long after `since` the last one was received.
    pub async fn wait_recovered(
        &self,
        since: Duration,
        within: Duration,
    ) -> Result<Duration, BoxError> {
        let mut recovered = [None; NODES as usize];
        loop {
            for (node, recovered) in recovered.iter_mut().enumerate() {
                let last = self.exact[node].lock().ok().and_then(|last| *last);
                if let Some((_, received)) = last.filter(|(sent, _)| *sent >= since) {
                    recovered.get_or_insert(received.saturating_sub(since));
                }
            }
            if let Some(last) = recovered.iter().copied().collect::<Option<Vec<_>>>() {
                return Ok(last.into_iter().max().unwrap_or_default());
            }
            if self.start.elapsed() > since + within {
                return Err(format!(
                    "no exact answer within {within:?} after the end of the fault"
                )
                .into());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Stops all callers and collects their records.
    pub async fn stop(self) -> Result<Vec<CallRecord>, BoxError> {
        self.stopping.store(true, Relaxed);
        let mut calls = Vec::new();
        for caller in self.callers {
            calls.extend(caller.await??);
        }
        calls.sort_unstable_by_key(|call: &CallRecord| call.sent);
        Ok(calls)
    }
}

/// Returns the units that a node has taken and not spent, given back or lost.
fn units_out(store: &RedisStore) -> u64 {
    let stats = store.stats();
    stats.lease_units_granted.saturating_sub(
        stats.lease_units_spent + stats.lease_units_given_back + stats.lease_units_expired,
    )
}

/// A node: policies in front of the shared store.
pub struct Node {
    pub gate: Gate,
    pub store: RedisStore,
}

impl Node {
    /// Creates a node like a server does.
    pub async fn connect(policies: &str, url: &str) -> Result<Self, BoxError> {
        let config = Config::parse(policies, "policies").map_err(|errors| errors.to_string())?;
        let options = RedisOptions { leases: true, ..RedisOptions::new(url) };
        let store = RedisStore::connect(options).await?;
        let clock = Clock::precise();
        let limiter = Limiter::builder().clock(clock.clone()).build()?;
        let gate = Gate::new(limiter, config.policies, Arc::new(Stats::new(clock)))
            .with_shared_store(Arc::new(store.clone()), config.nodes);
        Ok(Node { gate, store })
    }
}

/// Returns how many units of the leased key still count when no node has used it for a window, and
/// for as long as leases last and units may count longer. A few checks keep the key from expiring;
/// their units are not counted.
pub async fn units_left_behind(url: &str, within: Duration) -> Result<u64, BoxError> {
    let Node { gate, .. } = Node::connect(CONFIG, url).await?;
    let (start, mut checks) = (Instant::now(), 0);
    loop {
        let is_last = start.elapsed() > WINDOW + WINDOW / 8;
        let call = check(&gate, Policy::Leased, 0, start).await?;
        checks += 1;
        match call.remaining {
            Some(left) if is_last => {
                return Ok(u64::from(LEASED_LIMIT).saturating_sub(left + checks));
            }
            None if call.sent > within => return Err("no exact answer about the leased key".into()),
            _ => tokio::time::sleep(WINDOW / 16).await,
        }
    }
}

/// Checks the leased key until the process is killed, and prints every call that was admitted:
/// when it was sent and answered, and how many units the node then had out.
pub async fn run_victim(url: &str, start: Instant) -> Result<(), BoxError> {
    let Node { gate, store } = Node::connect(CONFIG, url).await?;
    let gate = Arc::new(gate);
    let mut callers = JoinSet::new();
    for _ in 0..HOT_CALLERS {
        let (gate, store) = (gate.clone(), store.clone());
        callers.spawn(async move {
            loop {
                let call = check(&gate, Policy::Leased, 0, start).await?;
                if call.allowed {
                    let (sent, received) = (call.sent.as_micros(), call.received.as_micros());
                    println!("{sent} {received} {}", units_out(&store));
                }
                tokio::time::sleep(HOT_PAUSE).await;
            }
        });
    }
    match callers.join_next().await {
        Some(ended) => ended?,
        None => Ok(()),
    }
}

/// Asks for one unit of a key, and records the call.
pub async fn check(
    gate: &Gate,
    policy: Policy,
    key: u8,
    start: Instant,
) -> Result<CallRecord, BoxError> {
    let active = Arc::clone(&gate.active_policies());
    let name = [b'a' + key];
    let subject = Subject::Key { policy: policy.name(), key: &name, attributes: None };
    let sent = start.elapsed();
    let request = GateRequest::new(subject);
    let verdict = gate.check(&active, &[request]).await.map_err(|error| error.to_string())?;
    let (received, (allowed, decided)) = (start.elapsed(), (verdict.allowed, verdict.decided));
    let remaining = verdict.results.first().and_then(|result| result.remaining());
    Ok(CallRecord { sent, received, policy, key, allowed, decided, remaining })
}
