//! The nodes that share a limit, their callers, and the records of all calls.

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
use tokio::task::JoinHandle;

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
/// Callers per node.
const CALLERS: u8 = 6;
/// Pause of a caller between two calls.
const PAUSE: Duration = Duration::from_millis(3);
/// Time between two checks whether all nodes have recovered.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Three policies that differ only in `on_store_failure`.
const CONFIG: &str = r#"
nodes: 2
policies:
  - { name: local, key: "{client_ip}", limits: ["40 per 2s sliding-log"], on_store_failure: local }
  - { name: allow, key: "{client_ip}", limits: ["40 per 2s sliding-log"], on_store_failure: allow }
  - { name: deny, key: "{client_ip}", limits: ["40 per 2s sliding-log"], on_store_failure: deny }
"#;

/// One of the policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Local,
    Allow,
    Deny,
}

impl Policy {
    pub const ALL: [Policy; 3] = [Policy::Local, Policy::Allow, Policy::Deny];

    pub fn name(self) -> &'static str {
        match self {
            Policy::Local => "local",
            Policy::Allow => "allow",
            Policy::Deny => "deny",
        }
    }

    /// Returns whether this policy may give such an answer.
    pub fn may_answer(self, call: &CallRecord) -> bool {
        match (self, call.decided) {
            (_, Decided::Exact) | (Policy::Local, Decided::Local) => true,
            (Policy::Allow, Decided::FailedOpen) => call.allowed,
            (Policy::Deny, Decided::FailedClosed) => !call.allowed,
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
}

/// All nodes with their callers.
pub struct Nodes {
    start: Instant,
    stopping: Arc<AtomicBool>,
    /// For each node, when its last exact answer was requested and received.
    exact: Arc<[Mutex<Option<(Duration, Duration)>>]>,
    callers: Vec<JoinHandle<Result<Vec<CallRecord>, String>>>,
}

impl Nodes {
    pub async fn start(url: &str, start: Instant) -> Result<Self, BoxError> {
        let stopping = Arc::new(AtomicBool::new(false));
        let exact: Arc<[_]> = (0..NODES).map(|_| Mutex::new(None)).collect();
        let mut callers = Vec::new();
        for node in 0..NODES {
            let gate = Arc::new(gate(url).await?);
            for caller in 0..CALLERS {
                let (gate, stopping, exact) = (gate.clone(), stopping.clone(), exact.clone());
                callers.push(tokio::spawn(async move {
                    let mut calls = Vec::new();
                    let checks = (0..KEYS).flat_map(|key| Policy::ALL.map(|policy| (policy, key)));
                    for (policy, key) in checks.cycle().skip(usize::from(caller)) {
                        if stopping.load(Relaxed) {
                            break;
                        }
                        let sent = start.elapsed();
                        let (allowed, decided) = check(&gate, policy, key).await?;
                        let received = start.elapsed();
                        if decided == Decided::Exact
                            && let Ok(mut last) = exact[node as usize].lock()
                        {
                            *last = Some((sent, received));
                        }
                        calls.push(CallRecord { sent, received, policy, key, allowed, decided });
                        tokio::time::sleep(PAUSE).await;
                    }
                    Ok(calls)
                }));
            }
        }
        Ok(Nodes { start, stopping, exact, callers })
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

async fn gate(url: &str) -> Result<Gate, BoxError> {
    connect_gate(CONFIG, url).await
}

/// Creates a node like a server does: policies in front of the shared store.
pub async fn connect_gate(policies: &str, url: &str) -> Result<Gate, BoxError> {
    let config = Config::parse(policies, "policies").map_err(|errors| errors.to_string())?;
    let store = RedisStore::connect(RedisOptions::new(url)).await?;
    let clock = Clock::precise();
    let limiter = Limiter::builder().clock(clock.clone()).build()?;
    let stats = Arc::new(Stats::new(clock));
    Ok(Gate::new(limiter, config.policies, stats).with_shared_store(Arc::new(store), config.nodes))
}

async fn check(gate: &Gate, policy: Policy, key: u8) -> Result<(bool, Decided), String> {
    let active = Arc::clone(&gate.active_policies());
    let key = [b'a' + key];
    let subject = Subject::Key { policy: policy.name(), key: &key, attributes: None };
    let request = GateRequest::new(subject);
    let verdict = gate.check(&active, &[request]).await.map_err(|error| error.to_string())?;
    Ok((verdict.allowed, verdict.decided))
}
