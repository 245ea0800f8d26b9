//! Rounds of all subjects, and the ratios between subjects.
//!
//! A turn is one run of `redis-benchmark`. A round is one turn of every subject, and each round
//! starts with another subject. Ratios are taken within rounds, as in `http/rounds.rs`.

use std::io;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::servers::Server;
use super::subjects::Subject;
use crate::cli::RespArgs;
use crate::http::{AGEING_TIME, CpuPlacement, CpuTimes, Estimate, pinned_to, temp_directory};
use crate::inprocess::{load_average, selected_or_all};

/// Fraction of the keys that a server must hold after all rounds; keys are drawn at random.
const MIN_KEY_FRACTION: f64 = 0.5;

/// Results of a run.
pub struct Results {
    pub rows: Vec<Row>,
    pub pipelines: Vec<u16>,
    pub connections: u32,
    pub keys: u32,
    pub rounds: usize,
    pub bound: bool,
    pub load_before: String,
    pub load_after: String,
}

/// The turns of one subject with one pipeline depth.
pub struct Row {
    pub subject: Subject,
    pub pipeline: u16,
    pub turns: Vec<TurnResult>,
}

/// Measurements of one turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct TurnResult {
    pub per_second: f64,
    /// Microseconds of the server's processor time per command.
    pub server_us: f64,
    pub p99_ms: f64,
}

impl TurnResult {
    /// Returns the number of processors that the server kept busy.
    pub fn busy(&self) -> f64 {
        self.server_us * self.per_second / 1e6
    }
}

impl Row {
    pub fn estimate(&self, metric: fn(&TurnResult) -> f64) -> Estimate {
        Estimate::of(&self.turns.iter().map(metric).collect::<Vec<_>>())
    }

    /// Returns the median of the ratios to another subject in the same rounds.
    pub fn ratio(&self, other: &Row, metric: fn(&TurnResult) -> f64) -> Estimate {
        let pairs = self.turns.iter().zip(&other.turns);
        Estimate::of(
            &pairs
                .map(|(measured, baseline)| metric(measured) / metric(baseline))
                .collect::<Vec<_>>(),
        )
    }
}

impl Results {
    pub fn row(&self, subject: Subject, pipeline: u16) -> Option<&Row> {
        self.rows.iter().find(|row| (row.subject, row.pipeline) == (subject, pipeline))
    }
}

/// Runs the selected subjects.
pub fn run(args: &RespArgs) -> io::Result<Results> {
    let subjects: Vec<Subject> = selected_or_all(&args.subject);
    let placement = CpuPlacement::choose(args.unbound);
    let directory = temp_directory()?;
    let mut servers: Vec<Server> = Vec::new();
    for subject in &subjects {
        if servers.iter().all(|server| server.server_kind != subject.server_kind()) {
            servers.push(Server::start(subject.server_kind(), args, placement.server, &directory)?);
        }
    }
    for subject in &subjects {
        server_of(&servers, *subject)?.verify(*subject)?;
    }
    let load_before = load_average();
    let rounds = if args.quick { 5 } else { 15 };
    let mut rows = Vec::new();
    for &pipeline in &args.pipeline {
        eprintln!("pipelines of {pipeline}: {rounds} rounds");
        let settings = LoadSettings { args, placement, pipeline };
        if rows.is_empty() {
            settings.age(&servers, &subjects)?;
        }
        let turns = settings.rounds(&servers, &subjects, rounds)?;
        let pairs = subjects.iter().zip(turns);
        rows.extend(pairs.map(|(&subject, turns)| Row { subject, pipeline, turns }));
    }
    let has_keys = |server_kind| {
        subjects.iter().any(|of| of.server_kind() == server_kind && *of != Subject::Ping)
    };
    for server in servers.iter().filter(|server| has_keys(server.server_kind)) {
        let keys = server.keys()?;
        if keys.is_some_and(|keys| keys < MIN_KEY_FRACTION * f64::from(args.keys)) {
            let message = format!("{:?} holds {keys:?} of {} keys", server.server_kind, args.keys);
            return Err(io::Error::other(message));
        }
    }
    Ok(Results {
        rows,
        pipelines: args.pipeline.clone(),
        connections: args.connections,
        keys: args.keys,
        rounds,
        bound: placement.server.is_some(),
        load_before,
        load_after: load_average(),
    })
}

fn server_of(servers: &[Server], subject: Subject) -> io::Result<&Server> {
    let found = servers.iter().find(|server| server.server_kind == subject.server_kind());
    found.ok_or_else(|| io::Error::other("the server of a subject was not started"))
}

struct LoadSettings<'a> {
    args: &'a RespArgs,
    placement: CpuPlacement,
    pipeline: u16,
}

impl LoadSettings<'_> {
    /// Loads all subjects until more than a window has passed and keys hold cells of several ages.
    fn age(&self, servers: &[Server], subjects: &[Subject]) -> io::Result<()> {
        let start = Instant::now();
        while start.elapsed() < AGEING_TIME {
            for &subject in subjects {
                self.turn(server_of(servers, subject)?, subject)?;
            }
        }
        Ok(())
    }

    /// Runs the rounds and returns the turns per subject. The first round is a warm-up and not
    /// counted.
    fn rounds(
        &self,
        servers: &[Server],
        subjects: &[Subject],
        rounds: usize,
    ) -> io::Result<Vec<Vec<TurnResult>>> {
        let mut turns = vec![Vec::new(); subjects.len()];
        for round in 0..=rounds {
            for at in 0..subjects.len() {
                let at = (at + round) % subjects.len();
                let turn = self.turn(server_of(servers, subjects[at])?, subjects[at])?;
                if round > 0 {
                    turns[at].push(turn);
                }
            }
        }
        Ok(turns)
    }

    fn turn(&self, server: &Server, subject: Subject) -> io::Result<TurnResult> {
        let process = server.process().to_string();
        let requests = subject.requests(self.pipeline, self.args.quick);
        let before = CpuTimes::of(&process)?;
        let output =
            pinned_to(self.placement.load, || self.load(server, subject, requests).output())?;
        let output = output.map_err(|error| {
            io::Error::other(format!("redis-benchmark: {error}; install redis-tools"))
        })?;
        let took = CpuTimes::of(&process)?.since(before);
        let printed = String::from_utf8_lossy(&output.stdout);
        let (per_second, p99_ms) = read_csv(&printed).ok_or_else(|| {
            let stderr = String::from_utf8_lossy(&output.stderr);
            io::Error::other(format!("unexpected output of redis-benchmark: {printed}{stderr}"))
        })?;
        let server_us = took.ran.as_secs_f64() * 1e6 / requests as f64;
        Ok(TurnResult { per_second, server_us, p99_ms })
    }

    fn load(&self, server: &Server, subject: Subject, requests: u64) -> Command {
        let mut command = Command::new("redis-benchmark");
        let numbers = [
            ("-p", u64::from(server.port)),
            ("-c", u64::from(self.args.connections)),
            ("-P", u64::from(self.pipeline)),
            ("-r", u64::from(self.args.keys)),
            ("-n", requests),
        ];
        for (flag, number) in numbers {
            command.args([flag, &number.to_string()]);
        }
        command.arg("--csv").args(subject.arguments()).stdin(Stdio::null());
        command
    }
}

/// Reads commands per second and the 99th percentile from the last line of
/// `"test","rps","avg_latency_ms","min","p50","p95","p99","max"`.
fn read_csv(printed: &str) -> Option<(f64, f64)> {
    let last = printed.lines().rfind(|line| line.starts_with('"'))?;
    // The command itself may contain commas, so fields are read from the end.
    let mut fields = last.trim().trim_matches('"').rsplit("\",\"");
    let p99_ms = fields.nth(1)?.parse().ok()?;
    let per_second: f64 = fields.nth(4)?.parse().ok()?;
    (per_second > 0.0).then_some((per_second, p99_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_csv_of_redis_benchmark() {
        let printed = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
             \"TG.CHECK loose key:__rand_int__\",\"1234.50\",\"0.100\",\"0.050\",\"0.090\",\"0.200\",\"0.300\",\"1.000\"\n";
        assert_eq!(read_csv(printed), Some((1234.5, 0.3)));
        assert_eq!(read_csv("Could not connect to Redis"), None);
        assert_eq!(read_csv(""), None);
    }
}
