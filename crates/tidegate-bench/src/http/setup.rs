//! Prepares the servers and checks that they enforce limits.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::baseline::Answers;
use super::load::{Job, LoadReport, Target};
use super::process::{pinned_to, processors};
use super::programs;
use super::server::{Client, Program, Server};
use super::wire::{Budget, LIMITS, Request, RequestKind, config};
use crate::cli::{HttpArgs, name_of};

/// Requests for one key in the check that a server enforces limits; more than any tight limit.
const PROBES: u64 = 10;

/// Maximum fraction of a turn that server and load may wait for a processor. With one processor
/// each they hardly ever wait; above this value other programs ran, and the turn is repeated.
pub const MAX_QUEUED: f64 = 0.05;

/// The processors of servers and load.
///
/// With one processor each, the server limits the throughput, so throughput compares servers. On
/// shared processors both wait for each other, by amounts that vary from run to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuPlacement {
    pub server: Option<usize>,
    pub load: Option<usize>,
}

impl CpuPlacement {
    pub fn choose(unbound: bool) -> Self {
        match processors()[..] {
            [server, load, ..] if !unbound => {
                CpuPlacement { server: Some(server), load: Some(load) }
            }
            _ => CpuPlacement { server: None, load: None },
        }
    }
}

/// Creates a directory for the files of a run. Dropping it deletes the files.
pub fn temp_directory() -> io::Result<TempDir> {
    tempfile::Builder::new().prefix("tidegate-bench-").tempdir()
}

/// Returns the tidegate program, built or given, with a config of these limits.
pub fn tidegate(args: &HttpArgs, limits: &[&str], directory: &Path) -> io::Result<Program> {
    let program = match &args.tidegate {
        Some(path) => path.clone(),
        None => programs::tidegate()?,
    };
    let file = directory.join(format!("tidegate-{}.yaml", limits.len()));
    std::fs::write(&file, config(limits, LIMITS.tight))?;
    Ok(Program::Tidegate { program, config: file })
}

/// Returns the axum handlers. They answer like tidegate if it is measured too.
pub fn axum(like: Option<&Server>, directory: &Path) -> io::Result<Program> {
    let answers = like.map_or_else(|| Ok(Answers::usual()), answers_of)?;
    let file = directory.join("answers.json");
    std::fs::write(&file, serde_json::to_string(&answers)?)?;
    Ok(Program::Axum { answers: file })
}

fn answers_of(tidegate: &Server) -> io::Result<Answers> {
    let mut client = Client::connect(tidegate.address)?;
    let mut answer_to = |kind| {
        let request = Request::render(kind, Budget::Loose, tidegate.address);
        client.send_request(request.bytes(), |response| {
            let fields =
                response.head.split("\r\n").skip(1).filter_map(|line| line.split_once(": "));
            let own = fields.filter(|(name, _)| !["content-length", "date"].contains(name));
            let own = own.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            Ok((own, String::from_utf8_lossy(response.body).into_owned()))
        })
    };
    let (_, check): (Vec<_>, _) = answer_to(RequestKind::Check)?;
    let (auth_fields, auth_body) = answer_to(RequestKind::ForwardAuth)?;
    Ok(Answers { check, auth_fields, auth_body })
}

/// Checks that a server enforces limits and holds all keys: a tight limit admits exactly its
/// number, and every key of the loose limit is new on its first request.
pub fn verify(server: &Server, kind: RequestKind, settings: &LoadSettings) -> io::Result<()> {
    let name = name_of(&kind);
    let mut client = Client::connect(server.address)?;
    let mut request = Request::render(kind, Budget::Tight, server.address);
    let mut admitted = 0;
    for _ in 0..PROBES {
        admitted += u64::from(client.verdict(&request, kind)?.allowed);
    }
    request.set_key(1);
    let other = client.verdict(&request, kind)?.allowed;
    if (admitted, other) != (LIMITS.tight, true) {
        return Err(server.error_with_log(&format!(
            "{name}: a limit of {} admitted {admitted} of {PROBES} (another key: {other})",
            LIMITS.tight
        )));
    }
    let filled = settings.load(Job::Fill, &[(server, kind)])?;
    let filled: u64 = filled.turns.iter().flatten().map(|turn| turn.allowed).sum();
    if filled != u64::from(settings.keys) {
        return Err(io::Error::other(format!("{name}: filled {filled} of {} keys", settings.keys)));
    }
    eprintln!(
        "{name}: a limit of {admitted} admitted {admitted} of {PROBES} requests; filled {} new keys",
        settings.keys
    );
    Ok(())
}

/// Settings of the load.
#[derive(Clone, Copy, Debug)]
pub struct LoadSettings {
    pub connections: u32,
    pub keys: u32,
    pub time_ms: u64,
    pub rounds: usize,
    /// How long the load runs before turns are counted.
    pub warm: Duration,
    pub placement: CpuPlacement,
}

impl LoadSettings {
    /// Runs the load to its end.
    pub fn load(&self, job: Job, servers: &[(&Server, RequestKind)]) -> io::Result<LoadReport> {
        let output = pinned_to(self.placement.load, || self.command(job, servers)?.output())??;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("the load failed: {}", stderr.trim())));
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Builds the command of the load, for callers that work while it runs.
    pub fn command(&self, job: Job, servers: &[(&Server, RequestKind)]) -> io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["http-load", &name_of(&job)]);
        for &(server, kind) in servers {
            let target = Target { address: server.address, kind, process: server.process() };
            command.arg(target.to_string());
        }
        if self.placement.load.is_some() {
            // On shared processors, server and load would wait for each other in every turn.
            command.args(["--awake", "--max-queued", &MAX_QUEUED.to_string()]);
        }
        command
            .args(["--connections", &self.connections.to_string()])
            .args(["--keys", &self.keys.to_string()])
            .args(["--time-ms", &self.time_ms.to_string()])
            .args(["--rounds", &self.rounds.to_string()])
            .args(["--warm-ms", &self.warm.as_millis().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(command)
    }
}
