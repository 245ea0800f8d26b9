//! Both servers in turns, for each way of asking.

use std::io;
use std::process::{Command, Stdio};

use super::load::Target;
use super::server::{Program, Server, config};
use crate::cli::GrpcArgs;
use crate::http::{Counted, DISTURBED, Directory, Places, Report, bound_to, build_tidegate};
use crate::inprocess::load;

/// Long enough that beginning and ending do not show, short enough that a machine does not
/// change much between one server's turn and the next one's.
const TURN_MS: u64 = 50;

/// Distinct keys.
pub const KEYS: u32 = 100_000;

/// A way of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub connections: u32,
    pub in_flight: u32,
}

/// A connection per caller, as pools have it; some connections shared; two, as Envoy has one
/// per worker.
const SHAPES: [Shape; 3] = [
    Shape { connections: 50, in_flight: 1 },
    Shape { connections: 8, in_flight: 16 },
    Shape { connections: 2, in_flight: 100 },
];

/// What was measured.
pub struct Results {
    pub rows: Vec<Row>,
    pub rounds: usize,
    pub places: Places,
    pub load_before: String,
    pub load_after: String,
}

/// One way of asking: the turns of both servers, paired by round.
pub struct Row {
    pub shape: Shape,
    pub ours: Vec<Counted>,
    pub tonic: Vec<Counted>,
    pub disturbed: usize,
}

/// Runs what the arguments select.
pub fn run(args: &GrpcArgs) -> io::Result<Results> {
    let directory = Directory::create()?;
    let places = Places::choose(args.unbound);
    let file = directory.path().join("tidegate.yaml");
    std::fs::write(&file, config())?;
    let program = args.tidegate.clone().map_or_else(build_tidegate, Ok)?;
    let load_before = load();
    let start = |program| Server::start(&program, places.server, directory.path());
    let ours = start(Program::Tidegate { program, config: file })?;
    let tonic = start(Program::Tonic)?;
    ours.prove()?;
    let rounds = if args.quick { 25 } else { 120 };
    let asking = Asking { rounds, places };
    asking.fill(&ours)?;
    let mut rows = Vec::new();
    for shape in SHAPES {
        eprintln!("{} x {}: {rounds} rounds", shape.connections, shape.in_flight);
        rows.push(asking.turns(shape, &ours, &tonic)?);
    }
    Ok(Results { rows, rounds, places, load_before, load_after: load() })
}

/// How the load asks.
struct Asking {
    rounds: usize,
    places: Places,
}

impl Asking {
    fn fill(&self, server: &Server) -> io::Result<()> {
        let shape = Shape { connections: 50, in_flight: 1 };
        self.load(self.command(shape, &[server])?.arg("--fill"))?;
        eprintln!("{KEYS} keys, each new");
        Ok(())
    }

    fn turns(&self, shape: Shape, ours: &Server, tonic: &Server) -> io::Result<Row> {
        let report = self.load(&mut self.command(shape, &[ours, tonic])?)?;
        let disturbed = report.disturbed;
        let Ok([ours, tonic]) = <[Vec<Counted>; 2]>::try_from(report.turns) else {
            return Err(io::Error::other("the load counted other servers"));
        };
        if ours.iter().chain(&tonic).any(|turn| turn.answers == 0) {
            return Err(io::Error::other("a turn had no answers"));
        }
        Ok(Row { shape, ours, tonic, disturbed })
    }

    fn load(&self, command: &mut Command) -> io::Result<Report> {
        let output = bound_to(self.places.load, || command.output())??;
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("the load failed: {}", complaint.trim())));
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    fn command(&self, shape: Shape, servers: &[&Server]) -> io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("grpc-load");
        for server in servers {
            let target = Target { address: server.address, process: server.process() };
            command.arg(target.to_string());
        }
        if self.places.load.is_some() {
            // Sharing processors, server and load would stand in line for each other.
            command.args(["--awake", "--max-queued", &DISTURBED.to_string()]);
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
