//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::http::{BaselineArgs, LoadArgs, Subject};
use crate::subjects::SubjectKind;
use crate::workloads::Workload;

/// Measures tidegate beside other limiters.
#[derive(Parser)]
#[command(name = "tidegate-bench", version)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Time and memory per decision, all subjects interleaved in one process.
    Inprocess(InprocessArgs),
    /// The slowest single decisions while a table fills, expires and fills again.
    Pauses(PausesArgs),
    /// The server beside an axum handler that decides nothing and throttlecrab's server.
    Http(HttpArgs),
    /// The gRPC front beside a tonic service of the same proto that always answers OK.
    Grpc(GrpcArgs),
    /// What the tower layer adds to a request of an empty axum app, beside tower_governor.
    Layer(LayerArgs),
    /// What a shared decision costs Redis, beside the usual designs and INCR.
    Redis(RedisArgs),
    /// The RESP front beside Redis and throttlecrab, loaded by redis-benchmark.
    Resp(RespArgs),
    /// What callers and limits see while Redis fails, checked against the stated bounds.
    Faults(FaultsArgs),
    /// A crowd of retrying clients on one key: what they get of the limit, and what they send for it.
    Storm(StormArgs),
    /// The handler that decides nothing; `http` starts this in a process of its own.
    #[command(hide = true)]
    HttpBaseline(BaselineArgs),
    /// The load; `http` starts this in a process of its own.
    #[command(hide = true)]
    HttpLoad(LoadArgs),
    /// The tonic service; `grpc` starts this in a process of its own.
    #[command(hide = true)]
    GrpcBaseline(crate::grpc::BaselineArgs),
    /// The load; `grpc` starts this in a process of its own.
    #[command(hide = true)]
    GrpcLoad(crate::grpc::LoadArgs),
    /// Resident bytes one subject needs; `inprocess` starts this in a process of its own.
    #[command(hide = true)]
    RssOf(RssArgs),
}

#[derive(Args)]
pub struct InprocessArgs {
    /// Print JSON instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Only these workloads (comma-separated or repeated).
    #[arg(long, value_enum, value_delimiter = ',')]
    pub workload: Vec<Workload>,
    /// Only these subjects (comma-separated or repeated).
    #[arg(long, value_enum, value_delimiter = ',')]
    pub subject: Vec<SubjectKind>,
    /// Only these numbers of threads.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=2))]
    pub threads: Vec<u8>,
    /// Only these ways of calling.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub mode: Vec<Mode>,
    /// Fewer decisions and repeats: a first look, with more noise.
    #[arg(long)]
    pub quick: bool,
}

#[derive(Args)]
pub struct PausesArgs {
    /// Print JSON instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Distinct keys filled, and filled again after they expired.
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u32).range(1..=40_000_000))]
    pub keys: u32,
}

#[derive(Args)]
pub struct HttpArgs {
    /// Print JSON instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Only these subjects (comma-separated or repeated).
    #[arg(long, value_enum, value_delimiter = ',')]
    pub subject: Vec<Subject>,
    /// Fewer and shorter passes: a first look, with more noise.
    #[arg(long)]
    pub quick: bool,
    /// A tidegate that is built already; without it, the release build is made.
    #[arg(long, value_name = "PATH")]
    pub tidegate: Option<PathBuf>,
    /// Distinct keys asked for; a million with --soak.
    #[arg(long, value_parser = clap::value_parser!(u32).range(100..=3_000_000))]
    pub keys: Option<u32>,
    /// Kept-alive connections, each with one question on its way.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub connections: u32,
    /// Let servers and load share all processors, instead of one for each.
    #[arg(long)]
    pub unbound: bool,
    /// Instead of timing: load tidegate for SECONDS while its config changes every second,
    /// and check every answer.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "60",
        value_parser = clap::value_parser!(u32).range(6..=86_400))]
    pub soak: Option<u32>,
    /// Instead of timing: load tidegate for SECONDS on one processor while nobody reads its
    /// log, and judge the slowest checks.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "10",
        conflicts_with = "soak", value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub stalled_log: Option<u32>,
}

#[derive(Args)]
pub struct GrpcArgs {
    /// Print JSON instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Fewer rounds: a first look, with more noise.
    #[arg(long)]
    pub quick: bool,
    /// A tidegate that is built already; without it, the release build is made.
    #[arg(long, value_name = "PATH")]
    pub tidegate: Option<PathBuf>,
    /// Let servers and load share all processors, instead of one for each.
    #[arg(long)]
    pub unbound: bool,
}

#[derive(Args)]
pub struct LayerArgs {
    /// Print JSON instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Fewer processes: a first look, with more noise.
    #[arg(long)]
    pub quick: bool,
    /// Measure in this process alone, for the one that adds up.
    #[arg(long, hide = true)]
    pub once: bool,
}

#[derive(Args)]
pub struct RedisArgs {
    /// Print JSON instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Only these subjects (comma-separated or repeated).
    #[arg(long, value_enum, value_delimiter = ',')]
    pub subject: Vec<crate::redis::Subject>,
    /// Fewer and shorter rounds: a first look, with more noise.
    #[arg(long)]
    pub quick: bool,
    /// The server to start: a redis-server or valkey-server.
    #[arg(long, value_name = "PATH", default_value = "redis-server")]
    pub server: PathBuf,
    /// Commands that are sent together.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub pipeline: u16,
}

#[derive(Args)]
pub struct RespArgs {
    /// Print JSON instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Only these subjects (comma-separated or repeated).
    #[arg(long, value_enum, value_delimiter = ',')]
    pub subject: Vec<crate::resp::Subject>,
    /// Fewer and shorter rounds: a first look, with more noise.
    #[arg(long)]
    pub quick: bool,
    /// A tidegate that is built already; without it, the release build is made.
    #[arg(long, value_name = "PATH")]
    pub tidegate: Option<PathBuf>,
    /// The Redis to start beside it.
    #[arg(long, value_name = "PATH", default_value = "redis-server")]
    pub server: PathBuf,
    /// Commands that are sent together (comma-separated or repeated).
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64], value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub pipeline: Vec<u16>,
    /// Distinct keys asked for.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    pub keys: u32,
    /// Connections, each with one pipeline on its way.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub connections: u32,
    /// Let servers and load share all processors, instead of one for each.
    #[arg(long)]
    pub unbound: bool,
}

#[derive(Args)]
pub struct FaultsArgs {
    /// Print JSON instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Only these faults (comma-separated or repeated).
    #[arg(long, value_enum, value_delimiter = ',')]
    pub fault: Vec<crate::faults::Fault>,
    /// Only these loads on a Redis that is healthy (comma-separated or repeated).
    #[arg(long, value_enum, value_delimiter = ',')]
    pub load: Vec<crate::faults::Load>,
    /// Shorter faults: enough to see that bounds hold, not to time anything.
    #[arg(long)]
    pub short: bool,
    /// The server to start: a redis-server or valkey-server.
    #[arg(long, value_name = "PATH", default_value = "redis-server")]
    pub server: PathBuf,
}

#[derive(Args)]
pub struct StormArgs {
    /// Print JSON instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Only these ways of retrying (comma-separated or repeated).
    #[arg(long = "way", value_name = "WAY", value_enum, value_delimiter = ',')]
    pub strategy: Vec<crate::storm::RetryStrategy>,
    /// On virtual time and without a network, in every scene: seconds instead of minutes, and
    /// the same every time.
    #[arg(long = "virtual")]
    pub on_virtual_time: bool,
    /// Another course of chance, with --virtual.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How long each way is let loose, of which the first sixth is left out; without --virtual.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(6..=3_600))]
    pub seconds: u32,
    /// A tidegate that is built already; without it, the release build is made.
    #[arg(long, value_name = "PATH")]
    pub tidegate: Option<PathBuf>,
}

#[derive(Args)]
pub struct RssArgs {
    pub subject: SubjectKind,
    pub keys: u32,
    /// Keys the subject has room for, where that is more.
    #[arg(long)]
    pub max_keys: Option<u32>,
    /// Decisions per key, 600 ms of virtual time apart (tidegate's subjects only).
    #[arg(long, default_value_t = 0)]
    pub entries: u32,
}

/// How decisions are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// One call, one decision.
    Single,
    /// One call, 32 decisions.
    Batch32,
}

/// The name a value has on the command line, in tables and in JSON.
pub fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
