//! The effect of heavy load on one key, or of one caller's large batches, on other callers while
//! Redis is healthy.
//!
//! Many callers (the crowd) send checks as fast as they are answered, while a few others
//! (bystanders) send some under another policy. Both policies deny when the store fails, so every
//! answer that is not exact is visible.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde_json::{Value, json};
use tidegate::unstable::gate::{Gate, GateRequest, MAX_CONCURRENT_CHECKS, Subject};
use tidegate::unstable::stats::Decided;
use tokio::task::JoinSet;

use super::nodes::connect_gate;
use crate::BoxError;
use crate::cli::{FaultsArgs, name_of};
use crate::redis::server::Server;
use crate::thresholds::Threshold;

/// A load on a healthy Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Load {
    /// 1,024 callers check one key under two limits.
    HotKey,
    /// One caller sends batches of 1,000 checks of different keys under two limits.
    LargeBatches,
}

/// Policies with two limits, so that every check calls the general script.
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
"#;

const CALLERS: u32 = 1_024;
const BATCH: u32 = 1_000;
const BYSTANDERS: u32 = 4;
/// Pause of a bystander between two calls.
const PAUSE: Duration = Duration::from_millis(2);

/// Answers by how they were decided, with their latencies.
#[derive(Default)]
pub struct Answers {
    pub exact: usize,
    pub failed: usize,
    took: Vec<Duration>,
}

impl Answers {
    fn add(&mut self, decided: Decided, took: Duration) {
        match decided {
            Decided::Exact => self.exact += 1,
            _ => self.failed += 1,
        }
        self.took.push(took);
    }

    fn merge(&mut self, other: Answers) {
        self.exact += other.exact;
        self.failed += other.failed;
        self.took.extend(other.took);
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
}

/// Starts a Redis server and runs a load on it.
pub async fn run(load: Load, args: &FaultsArgs) -> Result<LoadResult, BoxError> {
    let lasts = Duration::from_millis(if args.short { 1_000 } else { 5_000 });
    let server = Server::start(&args.server)?;
    let gate = Arc::new(connect_gate(CONFIG, &server.url()).await?);
    let stopping = Arc::new(AtomicBool::new(false));
    let (mut crowd, mut bystanders) = (JoinSet::new(), JoinSet::new());
    match load {
        Load::HotKey => (0..CALLERS).for_each(|_| {
            crowd.spawn(check_one_key(Arc::clone(&gate), "crowd", 0, Arc::clone(&stopping), None));
        }),
        Load::LargeBatches => {
            crowd.spawn(check_batches(Arc::clone(&gate), Arc::clone(&stopping)));
        }
    }
    for key in 0..BYSTANDERS {
        let (gate, stopping) = (Arc::clone(&gate), Arc::clone(&stopping));
        bystanders.spawn(check_one_key(gate, "bystander", key, stopping, Some(PAUSE)));
    }
    tokio::time::sleep(lasts).await;
    stopping.store(true, Relaxed);
    let mut result = LoadResult { load, crowd: Answers::default(), bystanders: Answers::default() };
    for answers in crowd.join_all().await {
        result.crowd.merge(answers?);
    }
    for answers in bystanders.join_all().await {
        result.bystanders.merge(answers?);
    }
    Ok(result)
}

async fn check(
    gate: &Gate,
    policy: &'static str,
    key: u32,
) -> Result<(Decided, Duration), BoxError> {
    let (active, key) = (Arc::clone(&gate.active_policies()), key.to_le_bytes());
    let request = GateRequest::new(Subject::Key { policy, key: &key, attributes: None });
    let sent = Instant::now();
    let verdict = gate.check(&active, &[request]).await.map_err(|error| error.to_string())?;
    Ok((verdict.decided, sent.elapsed()))
}

async fn check_one_key(
    gate: Arc<Gate>,
    policy: &'static str,
    key: u32,
    stopping: Arc<AtomicBool>,
    pause: Option<Duration>,
) -> Result<Answers, BoxError> {
    let mut answers = Answers::default();
    while !stopping.load(Relaxed) {
        let (decided, took) = check(&gate, policy, key).await?;
        answers.add(decided, took);
        match pause {
            Some(pause) => tokio::time::sleep(pause).await,
            // In a server, a connection waits for its next request here. Without yielding, denials
            // from memory would occupy the thread.
            None => tokio::task::yield_now().await,
        }
    }
    Ok(answers)
}

/// Sends batches as the HTTP front does.
async fn check_batches(gate: Arc<Gate>, stopping: Arc<AtomicBool>) -> Result<Answers, BoxError> {
    let mut answers = Answers::default();
    let keys: Vec<u32> = (0..BATCH).collect();
    while !stopping.load(Relaxed) {
        for chunk in keys.chunks(MAX_CONCURRENT_CHECKS) {
            let checks = chunk.iter().map(|key| check(&gate, "crowd", *key));
            for (decided, took) in join_all(checks).await? {
                answers.add(decided, took);
            }
        }
    }
    Ok(answers)
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
    let LoadResult { load, crowd, bystanders } = result;
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

pub fn thresholds(result: &[LoadResult]) -> Vec<Threshold> {
    let each = result.iter().flat_map(|result| {
        let (exact, closed) = match result.load {
            Load::HotKey => (
                "1,024 callers on a hot key: exact answers, %",
                "1,024 callers on a hot key: a bystander fails closed, times",
            ),
            Load::LargeBatches => (
                "batches of 1,000 checks: exact answers, %",
                "batches of 1,000 checks: a bystander fails closed, times",
            ),
        };
        let all = (result.crowd.exact + result.bystanders.exact) as f64
            / (result.crowd.all() + result.bystanders.all()).max(1) as f64;
        [
            Threshold {
                at_least: true,
                ..Threshold::at_most(exact, Some(100.0 * all), Some(99.0), None)
            },
            Threshold::at_most(closed, Some(result.bystanders.failed as f64), Some(0.0), None),
        ]
    });
    each.collect()
}

pub fn json(result: &LoadResult) -> Value {
    let answers = |answers: &Answers| {
        json!({ "answers": answers.all(), "exact": answers.exact, "failed": answers.failed,
            "p99_ms": answers.p99_ms() })
    };
    json!({ "load": name_of(&result.load), "crowd": answers(&result.crowd),
        "bystanders": answers(&result.bystanders) })
}
