//! Rounds of both servers, for several numbers of connections.

use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::load::{ONE_LIMIT, TWO_LIMITS, Target};
use super::server::{Program, Server, config};
use crate::cli::GrpcArgs;
use crate::http::{
    AGEING_TIME, CpuPlacement, LoadReport, MAX_QUEUED, TurnResult, build_tidegate, pinned_to,
    temp_directory,
};
use crate::inprocess::load_average;

/// Duration of a turn. Long enough that its start and end are negligible, short enough that the
/// machine does not change much between the turns of two servers.
const TURN_MS: u64 = 50;

/// Distinct keys.
pub const KEYS: u32 = 100_000;

/// Numbers of connections and of requests in flight on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub connections: u32,
    pub in_flight: u32,
}

/// One connection per caller, as in a connection pool; a few shared connections; two, because
/// Envoy has one per worker thread.
const SHAPES: [Shape; 3] = [
    Shape { connections: 50, in_flight: 1 },
    Shape { connections: 8, in_flight: 16 },
    Shape { connections: 2, in_flight: 100 },
];

/// Results of a run.
pub struct Results {
    pub rows: Vec<Row>,
    pub rounds: usize,
    pub placement: CpuPlacement,
    pub load_before: String,
    pub load_after: String,
}

/// One shape of load: the turns of both servers, paired by round.
pub struct Row {
    pub shape: Shape,
    /// Number of limits that tidegate decided per request.
    pub limits: usize,
    pub tidegate: Vec<TurnResult>,
    pub tonic: Vec<TurnResult>,
    pub disturbed: usize,
}

/// Runs the benchmark.
pub fn run(args: &GrpcArgs) -> io::Result<Results> {
    let directory = temp_directory()?;
    let placement = CpuPlacement::choose(args.unbound);
    let file = directory.path().join("tidegate.yaml");
    std::fs::write(&file, config())?;
    let program = args.tidegate.clone().map_or_else(build_tidegate, Ok)?;
    let load_before = load_average();
    let start = |program| Server::start(&program, placement.server, directory.path());
    let tidegate = start(Program::Tidegate { program, config: file })?;
    let tonic = start(Program::Tonic)?;
    tidegate.verify()?;
    let rounds = if args.quick { 25 } else { 120 };
    let settings = LoadSettings { rounds, placement };
    for entry in [ONE_LIMIT, TWO_LIMITS] {
        settings.fill(&tidegate, entry)?;
    }
    let mut rows = Vec::new();
    for (at, shape) in SHAPES.into_iter().enumerate() {
        eprintln!("{} x {}: {rounds} rounds", shape.connections, shape.in_flight);
        let warm = if at == 0 { AGEING_TIME } else { Duration::ZERO };
        rows.extend(settings.turns(shape, warm, &tidegate, &tonic)?);
    }
    Ok(Results { rows, rounds, placement, load_before, load_after: load_average() })
}

/// Settings of the load.
struct LoadSettings {
    rounds: usize,
    placement: CpuPlacement,
}

impl LoadSettings {
    fn fill(&self, server: &Server, entry: &str) -> io::Result<()> {
        let shape = Shape { connections: 50, in_flight: 1 };
        self.load(self.command(shape, &[(server, entry)])?.arg("--fill"))?;
        eprintln!("{entry}: filled {KEYS} new keys");
        Ok(())
    }

    /// Runs the turns with one limit and with two, both compared with the same turns of tonic.
    fn turns(
        &self,
        shape: Shape,
        warm: Duration,
        tidegate: &Server,
        tonic: &Server,
    ) -> io::Result<[Row; 2]> {
        let servers = [(tidegate, ONE_LIMIT), (tidegate, TWO_LIMITS), (tonic, ONE_LIMIT)];
        let mut command = self.command(shape, &servers)?;
        let report = self.load(command.args(["--warm-ms", &warm.as_millis().to_string()]))?;
        let disturbed = report.disturbed;
        let Ok([one, two, tonic]) = <[Vec<TurnResult>; 3]>::try_from(report.turns) else {
            return Err(io::Error::other("the load reported an unexpected number of servers"));
        };
        if [&one, &two, &tonic].into_iter().flatten().any(|turn| turn.answers == 0) {
            return Err(io::Error::other("a turn had no answers"));
        }
        let row =
            |limits, tidegate| Row { shape, limits, tidegate, tonic: tonic.clone(), disturbed };
        Ok([row(1, one), row(2, two)])
    }

    fn load(&self, command: &mut Command) -> io::Result<LoadReport> {
        let output = pinned_to(self.placement.load, || command.output())??;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("the load failed: {}", stderr.trim())));
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    fn command(&self, shape: Shape, servers: &[(&Server, &str)]) -> io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("grpc-load");
        for &(server, entry) in servers {
            let (address, process) = (server.address, server.process());
            let target = Target { address, entry: entry.to_owned(), process };
            command.arg(target.to_string());
        }
        if self.placement.load.is_some() {
            // On shared processors, server and load would wait for each other in every turn.
            command.args(["--awake", "--max-queued", &MAX_QUEUED.to_string()]);
        }
        command
            .args(["--connections", &shape.connections.to_string()])
            .args(["--in-flight", &shape.in_flight.to_string()])
            .args(["--keys", &KEYS.to_string()])
            .args(["--time-ms", &TURN_MS.to_string()])
            .args(["--rounds", &self.rounds.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(command)
    }
}
