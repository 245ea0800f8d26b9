//! Nodes that send requests at a given rate, and the judge of what they admit.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate::Limit;
use tokio::task::JoinSet;

use super::design::Node;
use super::{Design, Outcome, Scene};
use crate::BoxError;
use crate::cli::FleetArgs;
use crate::histogram::Histogram;
use crate::redis::server::{Server, processor_seconds};

/// The callers of a node: a server with 12,500 requests in a second has some hundred in progress if
/// they take some milliseconds. More do not raise the rate, because a caller that is late sends at
/// once.
const CALLERS: usize = 256;
/// The time between two requests on cold keys, on each node.
const COLD_INTERVAL: Duration = Duration::from_millis(5);
/// A cold key is used again after this many others.
const COLD_KEYS: u64 = 10_000;

/// The schedule of one node, and what it has seen.
struct NodeLoad {
    node: Node,
    limit: Limit,
    per_second: u64,
    sent: AtomicU64,
    start: Instant,
    until: Instant,
    seen: Mutex<Seen>,
}

struct Seen {
    latency: Histogram,
    cold: Histogram,
    decisions: u64,
    /// The times of admissions, in microseconds since the start.
    admitted: Vec<u32>,
}

impl NodeLoad {
    /// Sends requests on the hot key when they are due, until the end.
    async fn call(self: Arc<Self>) {
        let mut seen = (Histogram::new(), 0, Vec::new());
        loop {
            let number = self.sent.fetch_add(1, Relaxed);
            let due = self.start + Duration::from_micros(number * 1_000_000 / self.per_second);
            if due >= self.until || Instant::now() >= self.until {
                break;
            }
            tokio::time::sleep_until(due.into()).await;
            let began = Instant::now();
            let allowed = self.node.decide("hot", &self.limit).await;
            seen.0.record(began.elapsed());
            seen.1 += 1;
            if allowed {
                let at = self.start.elapsed().as_micros();
                seen.2.push(u32::try_from(at).unwrap_or(u32::MAX));
            }
        }
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        all.latency.add(&seen.0);
        all.decisions += seen.1;
        all.admitted.extend(seen.2);
    }

    /// Sends requests on cold keys.
    async fn call_cold(self: Arc<Self>, node: usize) {
        let mut latency = Histogram::new();
        for number in 0_u64.. {
            if Instant::now() >= self.until {
                break;
            }
            let key = format!("cold-{node}-{}", number % COLD_KEYS);
            let began = Instant::now();
            let _ = self.node.decide(&key, &self.limit).await;
            latency.record(began.elapsed());
            tokio::time::sleep(COLD_INTERVAL).await;
        }
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).cold.add(&latency);
    }
}

/// Runs one design in one scene.
pub async fn run(
    scene: Scene,
    design: Design,
    server: &Server,
    args: &FleetArgs,
) -> Result<Outcome, BoxError> {
    let duration = Duration::from_secs(args.seconds);
    let numbers = scene.numbers();
    let limit: Limit = numbers.limit.parse()?;
    let mut nodes = Vec::new();
    for _ in 0..numbers.nodes {
        nodes.push(Node::connect(design, limit, server).await?);
    }
    let mut connection = server.connect()?;
    let processor = processor_seconds(&mut connection)?;
    let start = Instant::now();
    let first = numbers.offered * numbers.first_percent / 100;
    let other = (numbers.offered - first) / (numbers.nodes as u64 - 1);
    let loads: Vec<Arc<NodeLoad>> = (nodes.iter().enumerate())
        .map(|(index, node)| {
            let seen = Seen {
                latency: Histogram::new(),
                cold: Histogram::new(),
                decisions: 0,
                admitted: Vec::new(),
            };
            Arc::new(NodeLoad {
                node: node.clone(),
                limit,
                per_second: if index == 0 { first } else { other },
                sent: AtomicU64::new(0),
                start,
                until: start + duration,
                seen: Mutex::new(seen),
            })
        })
        .collect();
    let mut callers = JoinSet::new();
    for (index, load) in loads.iter().enumerate() {
        for _ in 0..CALLERS {
            callers.spawn(Arc::clone(load).call());
        }
        if args.cold && design != Design::Sync {
            callers.spawn(Arc::clone(load).call_cold(index));
        }
    }
    callers.join_all().await;
    let processor = processor_seconds(&mut connection)? - processor;
    let commands = nodes.iter().map(Node::commands).sum();
    Ok(summarize(scene, design, &loads, duration, commands, processor))
}

fn summarize(
    scene: Scene,
    design: Design,
    loads: &[Arc<NodeLoad>],
    duration: Duration,
    commands: u64,
    processor: f64,
) -> Outcome {
    let (mut latency, mut cold) = (Histogram::new(), Histogram::new());
    let (mut decisions, mut admitted) = (0, Vec::new());
    for load in loads {
        let seen = load.seen.lock().unwrap_or_else(PoisonError::into_inner);
        latency.add(&seen.latency);
        cold.add(&seen.cold);
        decisions += seen.decisions;
        admitted.extend_from_slice(&seen.admitted);
    }
    admitted.sort_unstable();
    let limit = loads[0].limit;
    let fullest = fullest_window(&admitted, limit.window_us());
    // A run of several windows may use the limit once at its start, and then at its rate.
    let seconds = duration.as_secs_f64();
    let window_seconds = limit.window_us() as f64 / 1e6;
    let permitted = limit.count() as f64 * (seconds / window_seconds).max(1.0);
    let count = admitted.len() as f64;
    Outcome {
        scene,
        design,
        decisions,
        admitted: admitted.len() as u64,
        fullest_percent: 100.0 * fullest as f64 / limit.count() as f64,
        used_percent: 100.0 * count / permitted.min(decisions as f64),
        commands,
        redis_us: processor * 1e6 / decisions as f64,
        p50: Duration::from_nanos(latency.all_but_one_in(2)),
        p99: Duration::from_nanos(latency.all_but_one_in(100)),
        cold_p99: Duration::from_nanos(cold.all_but_one_in(100)),
    }
}

/// The most admissions within a window, from their sorted times.
fn fullest_window(times: &[u32], window_us: u64) -> usize {
    let (mut first, mut most) = (0, 0);
    for (last, &time) in times.iter().enumerate() {
        while u64::from(times[first]) + window_us <= u64::from(time) {
            first += 1;
        }
        most = most.max(last + 1 - first);
    }
    most
}
