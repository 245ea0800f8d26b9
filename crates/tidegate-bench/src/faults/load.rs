//! The effect of heavy load on one key, or of one caller's large batches, on other callers while
//! Redis is healthy.
//!
//! Many callers (the crowd) send checks as fast as they are answered, while a few others
//! (bystanders) send some under another policy. Both policies deny when the store fails, so every
//! answer that is not exact is visible.
//!
//! With leases, the crowd is one caller that floods a hot key, or the callers of a few hot keys
//! among 100,000 cold ones.

use std::future::poll_fn;
use std::iter::{repeat, repeat_n, successors};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde_json::{Value, json};
use tidegate::unstable::gate::{GateRequest, MAX_CONCURRENT_CHECKS, Subject};
use tidegate::unstable::stats::Decided;
use tokio::task::JoinSet;

use super::nodes::Node;
use super::oracle::max_admitted;
use crate::BoxError;
use crate::cli::{FaultsArgs, name_of};
use crate::redis::server::Server;
use crate::rss::resident_bytes_of;
use crate::thresholds::Threshold;

/// A load on a healthy Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Load {
    /// 1,024 callers check one key under two limits.
    HotKey,
    /// One caller sends batches of 1,000 checks of different keys under two limits.
    LargeBatches,
    /// One caller floods a leased key, with more checks at once than it may queue. Bystanders check
    /// cold keys.
    LeasedFlood,
    /// Two nodes check eight leased keys, and each of 100,000 cold keys once.
    MixedKeys,
}

/// The first two policies have two limits, so that every check calls the general script.
const CONFIG: &str = r#"
policies:
  - name: crowd
    key: "{client_ip}"
    limits: ["100000 per 1s", "6000000 per 1m"]
    on_store_failure: deny
  - name: bystander
    key: "{client_ip}"
    limits: ["100000 per 1s", "6000000 per 1m"]
    on_store_failure: deny
  - { name: flood, key: "{client_ip}", limits: ["20000 per 1s"], on_store_failure: deny, lease: auto }
  - { name: mixed, key: "{client_ip}", limits: ["10000 per 1h"], on_store_failure: deny, lease: auto }
"#;

impl Load {
    /// Returns the policy of the crowd, and the units and the window of its shortest limit.
    fn crowd(self) -> (&'static str, u32, Duration) {
        match self {
            Load::HotKey | Load::LargeBatches => ("crowd", 100_000, Duration::from_secs(1)),
            Load::LeasedFlood => ("flood", 20_000, Duration::from_secs(1)),
            Load::MixedKeys => ("mixed", 10_000, Duration::from_secs(3_600)),
        }
    }

    fn has_leases(self) -> bool {
        matches!(self, Load::LeasedFlood | Load::MixedKeys)
    }

    /// Describes the load in the names of thresholds.
    fn describe(self) -> &'static str {
        match self {
            Load::HotKey => "1,024 callers on a hot key",
            Load::LargeBatches => "batches of 1,000 checks",
            Load::LeasedFlood => "a flood on a leased key",
            Load::MixedKeys => "100,000 cold keys",
        }
    }
}

const CALLERS: u32 = 1_024;
const BATCH: u32 = 1_000;
const BYSTANDERS: u32 = 4;
/// Pause of a bystander between two calls.
const PAUSE: Duration = Duration::from_millis(2);
/// Checks that a flooding caller sends at once: more than the queue of the store has for a caller.
const FLOOD: u32 = 4_096;
/// The leased keys among cold ones, and the callers of each on each node with their pause. Also on
/// a slow machine they send 32 requests within 100 ms, so that the key is leased.
const HOT_KEYS: u32 = 8;
const HOT_CALLERS: usize = 12;
const HOT_PAUSE: Duration = Duration::from_millis(8);
/// The cold keys, and the callers of these on each node.
const COLD_KEYS: u32 = 100_000;
const COLD_CALLERS: usize = 16;
const MIXED_NODES: u32 = 2;
/// The most keys of which a node has leases.
const MAX_LEASED_KEYS: u64 = 1_024;
/// The most bytes that nodes may take more for the second half of the cold keys, with the records
/// of their calls.
const MAX_GROWTH: f64 = 16e6;

/// Answers by how they were decided, with their latencies.
#[derive(Default)]
pub struct Answers {
    pub exact: usize,
    pub failed: usize,
    took: Vec<Duration>,
    /// The key of every admitted call, and the times at which it was sent and answered.
    admitted: Vec<(u32, Duration, Duration)>,
}

impl Answers {
    fn add(&mut self, call: &Answer) {
        match call.decided {
            Decided::Exact => self.exact += 1,
            _ => self.failed += 1,
        }
        self.took.push(call.received - call.sent);
        if call.allowed {
            self.admitted.push((call.key, call.sent, call.received));
        }
    }

    fn merge(&mut self, other: Answers) {
        self.exact += other.exact;
        self.failed += other.failed;
        self.took.extend(other.took);
        self.admitted.extend(other.admitted);
    }

    /// Returns the most that was admitted of any key in a window.
    fn max_in_window(&self, window: Duration) -> u32 {
        let mut admitted = self.admitted.clone();
        admitted.sort_unstable();
        let keys = admitted.chunk_by(|one, other| one.0 == other.0);
        let times = |calls: &[(u32, Duration, Duration)]| {
            max_admitted(calls.iter().map(|&(_, sent, received)| (sent, received)), window)
        };
        keys.map(times).max().unwrap_or(0)
    }

    fn all(&self) -> usize {
        self.exact + self.failed
    }

    fn exact_percent(&self) -> f64 {
        100.0 * self.exact as f64 / self.all().max(1) as f64
    }

    fn p99_ms(&self) -> f64 {
        let mut took = self.took.clone();
        took.sort_unstable();
        let index = (took.len() * 99).div_ceil(100).saturating_sub(1);
        took.get(index).map_or(0.0, |took| took.as_secs_f64() * 1e3)
    }
}

/// The answers during a load.
pub struct LoadResult {
    pub load: Load,
    pub crowd: Answers,
    pub bystanders: Answers,
    pub leases: LeaseFigures,
}

/// The use of leases during a load.
#[derive(Default)]
pub struct LeaseFigures {
    /// Requests that were answered from leases.
    hits: u64,
    /// The most leases that a node had at the same time.
    most: u64,
    /// How much more memory this process had after the second half of the cold keys than after the
    /// first, in bytes.
    growth: f64,
}

/// Starts a Redis server and runs a load on it.
pub async fn run(load: Load, args: &FaultsArgs) -> Result<LoadResult, BoxError> {
    let lasts = Duration::from_millis(if args.short { 1_000 } else { 5_000 });
    let server = Server::start(&args.server)?;
    let mut nodes = Vec::new();
    for _ in 0..if load == Load::MixedKeys { MIXED_NODES } else { 1 } {
        nodes.push(Arc::new(Node::connect(CONFIG, &server.url()).await?));
    }
    let calls =
        Calls { node: Arc::clone(&nodes[0]), start: Instant::now(), stopping: Arc::default() };
    let leases = tokio::spawn(watch_leases(nodes.clone(), Arc::clone(&calls.stopping)));
    let (mut crowd, mut bystanders) = (JoinSet::new(), JoinSet::new());
    let policy = load.crowd().0;
    match load {
        Load::HotKey => (0..CALLERS).for_each(|_| {
            crowd.spawn(calls.clone().check_keys(policy, repeat(0), None));
        }),
        Load::LargeBatches => {
            let keys = (0..BATCH).collect();
            crowd.spawn(calls.clone().check_batches(policy, keys, MAX_CONCURRENT_CHECKS));
        }
        Load::LeasedFlood => {
            let keys = vec![0; FLOOD as usize];
            crowd.spawn(calls.clone().check_batches(policy, keys, FLOOD as usize));
        }
        Load::MixedKeys => {
            for (node, key) in
                nodes.iter().flat_map(|node| (0..HOT_KEYS).map(move |key| (node, key)))
            {
                let calls = Calls { node: Arc::clone(node), ..calls.clone() };
                for calls in repeat_n(calls, HOT_CALLERS) {
                    crowd.spawn(calls.check_keys(policy, repeat(key), Some(HOT_PAUSE)));
                }
            }
        }
    }
    let (mut answers, mut growth) = (Answers::default(), 0.0);
    if load == Load::MixedKeys {
        (answers, growth) = check_cold_keys(policy, &nodes, &calls).await?;
    } else {
        // Each bystander has a key, or checks another one every time.
        let step = if load == Load::LeasedFlood { BYSTANDERS } else { 0 };
        for first in 0..BYSTANDERS {
            let keys = successors(Some(first), move |key| Some(key + step));
            bystanders.spawn(calls.clone().check_keys("bystander", keys, Some(PAUSE)));
        }
        tokio::time::sleep(lasts).await;
    }
    calls.stopping.store(true, Relaxed);
    let leases = LeaseFigures { growth, ..leases.await? };
    let mut result = LoadResult { load, crowd: Answers::default(), bystanders: answers, leases };
    for answers in crowd.join_all().await {
        result.crowd.merge(answers?);
    }
    for answers in bystanders.join_all().await {
        result.bystanders.merge(answers?);
    }
    Ok(result)
}

/// Checks every cold key once, half of them on each node. Returns how much the memory of this
/// process grew with the second half of the keys.
async fn check_cold_keys(
    policy: &'static str,
    nodes: &[Arc<Node>],
    calls: &Calls,
) -> Result<(Answers, f64), BoxError> {
    let (mut all, mut resident) = (Answers::default(), Vec::new());
    for half in 0..2 {
        let mut callers = JoinSet::new();
        let first = HOT_KEYS + half * (COLD_KEYS / 2);
        let callers_nodes = nodes.iter().flat_map(|node| repeat_n(node, COLD_CALLERS));
        for (caller, node) in callers_nodes.enumerate() {
            let calls = Calls { node: Arc::clone(node), ..calls.clone() };
            let keys = (first..first + COLD_KEYS / 2).skip(caller);
            let keys = keys.step_by(COLD_CALLERS * nodes.len());
            callers.spawn(calls.check_keys(policy, keys, None));
        }
        for answers in callers.join_all().await {
            all.merge(answers?);
        }
        resident.push(resident_bytes_of("self").ok_or("the memory of this process is unknown")?);
    }
    Ok((all, resident[1] - resident[0]))
}

/// Watches the leases of nodes.
async fn watch_leases(nodes: Vec<Arc<Node>>, stopping: Arc<AtomicBool>) -> LeaseFigures {
    let mut figures = LeaseFigures::default();
    while !stopping.load(Relaxed) {
        let stats = || nodes.iter().map(|node| node.store.stats());
        figures.hits = stats().map(|stats| stats.lease_hits).sum();
        figures.most = stats().map(|stats| stats.leases_active).fold(figures.most, u64::max);
        tokio::time::sleep(PAUSE).await;
    }
    figures
}

/// An answered check.
struct Answer {
    key: u32,
    allowed: bool,
    decided: Decided,
    /// Times since the load began.
    sent: Duration,
    received: Duration,
}

/// The node that a caller uses, when the load began, and whether it ends.
#[derive(Clone)]
struct Calls {
    node: Arc<Node>,
    start: Instant,
    stopping: Arc<AtomicBool>,
}

impl Calls {
    async fn check(&self, policy: &'static str, key: u32) -> Result<Answer, BoxError> {
        let gate = &self.node.gate;
        let (active, name) = (Arc::clone(&gate.active_policies()), key.to_le_bytes());
        let request = GateRequest::new(Subject::Key { policy, key: &name, attributes: None });
        let sent = self.start.elapsed();
        let verdict = gate.check(&active, &[request]).await.map_err(|error| error.to_string())?;
        let received = self.start.elapsed();
        Ok(Answer { key, allowed: verdict.allowed, decided: verdict.decided, sent, received })
    }

    async fn check_keys(
        self,
        policy: &'static str,
        keys: impl Iterator<Item = u32>,
        pause: Option<Duration>,
    ) -> Result<Answers, BoxError> {
        let mut answers = Answers::default();
        for key in keys.take_while(|_| !self.stopping.load(Relaxed)) {
            answers.add(&self.check(policy, key).await?);
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                // In a server, a connection waits for its next request here. Without yielding,
                // denials from memory would occupy the thread.
                None => tokio::task::yield_now().await,
            }
        }
        Ok(answers)
    }

    /// Sends batches as the HTTP front does, with at most `concurrent` checks at once.
    async fn check_batches(
        self,
        policy: &'static str,
        keys: Vec<u32>,
        concurrent: usize,
    ) -> Result<Answers, BoxError> {
        let mut answers = Answers::default();
        while !self.stopping.load(Relaxed) {
            for chunk in keys.chunks(concurrent) {
                let checks = chunk.iter().map(|key| self.check(policy, *key));
                join_all(checks).await?.iter().for_each(|answer| answers.add(answer));
            }
            tokio::task::yield_now().await;
        }
        Ok(answers)
    }
}

/// Waits for all futures concurrently, in this task.
async fn join_all<T>(
    checks: impl Iterator<Item = impl Future<Output = Result<T, BoxError>>>,
) -> Result<Vec<T>, BoxError> {
    let mut checks: Vec<(Pin<Box<_>>, Option<Result<T, BoxError>>)> =
        checks.map(|check| (Box::pin(check), None)).collect();
    poll_fn(|context| {
        for (check, result) in checks.iter_mut().filter(|(_, result)| result.is_none()) {
            if let Poll::Ready(polled) = check.as_mut().poll(context) {
                *result = Some(polled);
            }
        }
        let is_done = checks.iter().all(|(_, result)| result.is_some());
        if is_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    checks.into_iter().filter_map(|(_, result)| result).collect()
}

/// Formats one row of the table.
pub fn table_row(result: &LoadResult) -> String {
    let LoadResult { load, crowd, bystanders, .. } = result;
    format!(
        "{:<17}{:>10}{:>10.2}{:>10.1}{:>12}{:>10.2}{:>10.1}\n",
        name_of(load),
        crowd.all(),
        crowd.exact_percent(),
        crowd.p99_ms(),
        bystanders.all(),
        bystanders.exact_percent(),
        bystanders.p99_ms(),
    )
}

/// Formats the header of the table.
pub fn header() -> String {
    format!(
        "{:<17}{:>10}{:>10}{:>10}{:>12}{:>10}{:>10}\n",
        "load", "answers", "exact %", "p99 ms", "bystanders", "exact %", "p99 ms"
    )
}

pub fn thresholds(results: &[LoadResult]) -> Vec<Threshold> {
    results.iter().flat_map(thresholds_of).collect()
}

fn thresholds_of(result: &LoadResult) -> Vec<Threshold> {
    let LoadResult { load, crowd, bystanders, leases } = result;
    let name = |figure: &str| format!("{}: {figure}", load.describe());
    // A caller that floods is shed.
    let shed = if *load == Load::LeasedFlood { &Answers::default() } else { crowd };
    let exact = 100.0 * (shed.exact + bystanders.exact) as f64
        / (shed.all() + bystanders.all()).max(1) as f64;
    let failed = bystanders.failed as f64;
    let (_, limit, window) = load.crowd();
    let most = f64::from(crowd.max_in_window(window));
    let mut thresholds = vec![
        Threshold::at_least(&name("exact answers, %"), Some(exact), Some(99.0), None),
        Threshold::at_most(&name("a bystander fails closed, times"), Some(failed), Some(0.0), None),
        Threshold::at_most(
            &name("most of a key in a window"),
            Some(most),
            Some(limit.into()),
            None,
        ),
    ];
    if load.has_leases() {
        let (most, max) = (Some(leases.most as f64), Some(MAX_LEASED_KEYS as f64));
        thresholds.push(Threshold::at_most(&name("leases of a node"), most, max, None));
    }
    if *load == Load::MixedKeys {
        let growth = leases.growth / 1e6;
        let max = Some(MAX_GROWTH / 1e6);
        thresholds.push(Threshold::at_most(&name("more memory, MB"), Some(growth), max, None));
    }
    thresholds
}

/// Describes the violated expectations. Those about time are only thresholds, because they depend
/// on the machine.
pub fn violations(result: &LoadResult) -> Vec<String> {
    let LoadResult { load, crowd, bystanders, leases } = result;
    let (_, limit, window) = load.crowd();
    let mut violations = Vec::new();
    let most = crowd.max_in_window(window);
    if most > limit {
        violations.push(format!("{most} were admitted in a window; the limit is {limit}"));
    }
    if bystanders.exact <= bystanders.failed {
        let (failed, all) = (bystanders.failed, bystanders.all());
        violations.push(format!("{failed} of {all} answers to bystanders were not exact"));
    }
    if load.has_leases() && leases.hits == 0 {
        violations.push("nothing was answered from a lease".to_owned());
    }
    if leases.most > MAX_LEASED_KEYS {
        violations.push(format!("a node had {} leases", leases.most));
    }
    if leases.growth > MAX_GROWTH {
        violations.push(format!("cold keys took {:.0} bytes of memory", leases.growth));
    }
    let name = name_of(load);
    violations.into_iter().map(|violation| format!("{name}: {violation}")).collect()
}

pub fn json(result: &LoadResult) -> Value {
    let answers = |answers: &Answers| {
        json!({ "answers": answers.all(), "exact": answers.exact, "failed": answers.failed,
            "p99_ms": answers.p99_ms() })
    };
    json!({ "load": name_of(&result.load), "crowd": answers(&result.crowd),
        "bystanders": answers(&result.bystanders), "lease_hits": result.leases.hits,
        "most_leases": result.leases.most, "growth_bytes": result.leases.growth })
}
