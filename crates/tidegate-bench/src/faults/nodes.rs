//! The nodes that share a limit, their callers, and what these write down.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::BoxError;
use tidegate::redis::{RedisOptions, RedisStore};
use tidegate::unstable::config::Config;
use tidegate::unstable::gate::{Gate, Question, Subject};
use tidegate::unstable::stats::{Decided, Stats};
use tidegate::{Clock, Limiter};
use tokio::task::JoinHandle;

/// Units per window, shared by all nodes.
pub const LIMIT: u32 = 40;
/// The window.
pub const WINDOW: Duration = Duration::from_secs(2);
/// Servers that share the limit.
pub const NODES: u32 = 2;
/// What a node may admit by itself.
pub const NODE_SHARE: u32 = LIMIT / NODES;
/// Keys asked for under every policy: so many that each is asked for a little more than
/// it may have. Fewer would be denied without asking the store most of the time.
pub const KEYS: u8 = 20;
/// Callers of every node.
const CALLERS: u8 = 6;
/// How long a caller does other things between two calls.
const PAUSE: Duration = Duration::from_millis(3);
/// How often it is looked whether all have recovered.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Three policies that differ only in what they answer for a store that fails.
const CONFIG: &str = r#"
nodes: 2
policies:
  - { name: local, key: "{client_ip}", limits: ["40 per 2s sliding-log"], on_store_failure: local }
  - { name: allow, key: "{client_ip}", limits: ["40 per 2s sliding-log"], on_store_failure: allow }
  - { name: deny, key: "{client_ip}", limits: ["40 per 2s sliding-log"], on_store_failure: deny }
"#;

/// A policy of these.
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

    /// Whether this is an answer such a policy can give.
    pub fn may_answer(self, call: &CallRecord) -> bool {
        match (self, call.decided) {
            (_, Decided::Exact) | (Policy::Local, Decided::Local) => true,
            (Policy::Allow, Decided::FailedOpen) => call.allowed,
            (Policy::Deny, Decided::FailedClosed) => !call.allowed,
            _ => false,
        }
    }
}

/// One call, as its caller saw it.
#[derive(Clone, Copy, Debug)]
pub struct CallRecord {
    /// When, since the first call.
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
    /// When each node last had an exact answer to a call, and when that call was made.
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
                    let turns = (0..KEYS).flat_map(|key| Policy::ALL.map(|policy| (policy, key)));
                    for (policy, key) in turns.cycle().skip(usize::from(caller)) {
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

    /// Waits until every node has had an exact answer to a call made after `since`, and
    /// says how long after it that was.
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
                return Err(format!("no exact answer within {within:?} of Redis being back").into());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Ends all callers and gathers what they wrote down.
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

/// A node as a server has it: policies in front of the shared store.
pub async fn connect_gate(policies: &str, url: &str) -> Result<Gate, BoxError> {
    let config = Config::parse(policies, "policies").map_err(|errors| errors.to_string())?;
    let store = RedisStore::connect(RedisOptions::new(url)).await?;
    let clock = Clock::precise();
    let limiter = Limiter::builder().clock(clock.clone()).build()?;
    let stats = Arc::new(Stats::new(clock));
    Ok(Gate::new(limiter, config.policies, stats).over(Arc::new(store), config.nodes))
}

async fn check(gate: &Gate, policy: Policy, key: u8) -> Result<(bool, Decided), String> {
    let rules = Arc::clone(&gate.rules());
    let key = [b'a' + key];
    let subject = Subject::Key { policy: policy.name(), key: &key, attributes: None };
    let question = Question::new(subject);
    let answer = gate.check(&rules, &[question]).await.map_err(|error| error.to_string())?;
    Ok((answer.allowed, answer.decided))
}
