//! Turns of all apps, and the cost of each layer per round.
//!
//! The addresses of code, stack and heap in a process change figures of this size by a fifth, for
//! the lifetime of the process. So several processes of this binary are measured, and each
//! contributes one value to a figure.

use std::hint::black_box;
use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

use super::apps::{AGEING_TIME, App, Subject, request};
use crate::cli::LayerArgs;
use crate::http::Estimate;
use crate::inprocess::load_average;
use crate::measure::CpuWait;

/// Requests per block. They are made before the block is timed, and few enough to stay in the
/// cache.
const BLOCK: u32 = 256;
/// Blocks per turn.
const BLOCKS: u32 = 16;

/// Numbers of clients: one that is always in the cache, and many.
pub const CLIENTS: [u32; 2] = [1, 10_000];

/// Rounds per process.
const ROUNDS: usize = 21;

/// Results of a run.
pub struct Results {
    pub rows: Vec<Row>,
    pub processes: usize,
    pub load_before: String,
    pub load_after: String,
}

/// One subject with one number of clients.
pub struct Row {
    pub subject: Subject,
    pub clients: u32,
    /// Nanoseconds per request, one value per process.
    pub ns: Vec<f64>,
    /// Nanoseconds that the layer added; empty for the app without a layer.
    pub added: Vec<f64>,
}

/// One process's result for a row: nanoseconds per request, and the part that the layer added.
type Sample = (f64, Option<f64>);

/// Measures in several child processes.
pub fn run(args: &LayerArgs) -> io::Result<Results> {
    let processes = if args.quick { 5 } else { 31 };
    let load_before = load_average();
    let subjects = || CLIENTS.into_iter().flat_map(|clients| Subject::ALL.map(|of| (of, clients)));
    let row = |(subject, clients)| Row { subject, clients, ns: Vec::new(), added: Vec::new() };
    let mut rows: Vec<Row> = subjects().map(row).collect();
    for _ in 0..processes {
        let output = Command::new(std::env::current_exe()?).args(["layer", "--once"]).output()?;
        if !output.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        let samples: Vec<Sample> = serde_json::from_slice(&output.stdout)?;
        for (row, (ns, added)) in rows.iter_mut().zip(samples) {
            row.ns.push(ns);
            row.added.extend(added);
        }
    }
    Ok(Results { rows, processes, load_before, load_after: load_average() })
}

/// Measures in this process and returns the rows in the order of [`run`].
pub fn measure_once() -> Vec<Sample> {
    let mut groups = CLIENTS.map(Group::new);
    let start = Instant::now();
    // Untimed rounds until more than a window has passed and keys hold cells of several ages.
    while start.elapsed() < AGEING_TIME {
        groups.iter_mut().for_each(|group| group.round(0));
    }
    groups.into_iter().flat_map(|group| summarize(&group.measure())).collect()
}

/// Computes the median of each subject. The cost of a layer is the difference within a round.
fn summarize(rounds: &[(Subject, Vec<f64>)]) -> Vec<Sample> {
    let bare = rounds.iter().find(|(subject, _)| *subject == Subject::Bare);
    let added = |ns: &[f64]| {
        let (_, bare) = bare?;
        let each: Vec<f64> = ns.iter().zip(bare).map(|(ns, bare)| ns - bare).collect();
        Some(Estimate::of(&each).median)
    };
    let samples = rounds.iter().map(|(subject, ns)| {
        (Estimate::of(ns).median, added(ns).filter(|_| *subject != Subject::Bare))
    });
    samples.collect()
}

/// All apps with the same number of clients.
struct Group {
    clients: u32,
    apps: Vec<(Subject, App)>,
    cpu_wait: CpuWait,
    /// Nanoseconds per request of every app, one value per round.
    rounds: Vec<(Subject, Vec<f64>)>,
}

impl Group {
    fn new(clients: u32) -> Self {
        Group {
            clients,
            apps: Subject::ALL.map(|subject| (subject, App::new(subject))).into(),
            cpu_wait: CpuWait::new(),
            rounds: Subject::ALL.map(|subject| (subject, Vec::new())).into(),
        }
    }

    /// Runs one turn of every app. Each round starts with another app, so that the order favours
    /// none.
    fn round(&mut self, round: usize) {
        for turn in 0..self.apps.len() {
            let index = (round + turn) % self.apps.len();
            let app = &mut self.apps[index].1;
            let took = run_turn(app, self.clients, round, &mut self.cpu_wait);
            self.rounds[index].1.push(took.as_nanos() as f64 / f64::from(BLOCK * BLOCKS));
        }
    }

    /// Times the apps; the set-up is checked before and after.
    fn measure(mut self) -> Vec<(Subject, Vec<f64>)> {
        self.verify();
        self.rounds.iter_mut().for_each(|(_, ns)| ns.clear());
        (0..ROUNDS).for_each(|round| self.round(round));
        self.verify();
        self.rounds
    }

    fn verify(&mut self) {
        for (subject, app) in &mut self.apps {
            verify(*subject, app, self.clients);
        }
    }
}

/// Asserts that an app admits every client, sends the expected header fields and tracks every
/// client separately.
fn verify(subject: Subject, app: &mut App, clients: u32) {
    for client in 0..clients {
        let response = app.call(request(client));
        assert_eq!(response.status(), 200, "{} denies", subject.name());
        let mut names: Vec<&str> = response.headers().keys().map(|name| name.as_str()).collect();
        names.retain(|name| name.contains("ratelimit"));
        names.sort_unstable();
        assert_eq!(names, subject.fields(), "the fields of {}", subject.name());
    }
    if let Some(tracked_clients) = app.tracked_clients() {
        assert_eq!(tracked_clients, u64::from(clients), "the clients of {}", subject.name());
    }
}

fn run_turn(app: &mut App, clients: u32, round: usize, cpu_wait: &mut CpuWait) -> Duration {
    let mut took = Duration::ZERO;
    let mut next = u32::try_from(round).unwrap_or_default().wrapping_mul(7919);
    for _ in 0..BLOCKS {
        let requests: Vec<_> = (0..BLOCK)
            .map(|_| {
                // Steps of a prime: all clients are used, and consecutive ones are far apart.
                next = next.wrapping_add(6_151) % clients;
                request(next)
            })
            .collect();
        cpu_wait.reset();
        let begun = Instant::now();
        for request in requests {
            black_box(app.call(request));
        }
        took += cpu_wait.exclude_wait(begun.elapsed());
    }
    took
}
