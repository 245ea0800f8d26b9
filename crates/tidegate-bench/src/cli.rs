//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::http::{BaselineArgs, LoadArgs, Subject};
use crate::subjects::SubjectKind;
use crate::workloads::Workload;

/// Measures tidegate and other rate limiters side by side.
#[derive(Parser)]
#[command(name = "tidegate-bench", version)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Time and memory per decision; all subjects are interleaved in one process.
    Inprocess(InprocessArgs),
    /// Slowest single decisions while a table fills, expires and fills again.
    Pauses(PausesArgs),
    /// HTTP server compared with an axum handler without decisions and throttlecrab's server.
    Http(HttpArgs),
    /// gRPC front compared with a tonic service of the same proto that always answers OK.
    Grpc(GrpcArgs),
    /// Time that a large config from an xDS control plane takes to apply, and the slowest check
    /// meanwhile.
    Xds(XdsArgs),
    /// Cost that the tower layer adds to a request of an empty axum app, compared with
    /// tower_governor.
    Layer(LayerArgs),
    /// Cost of a shared decision for Redis, compared with common designs and INCR.
    Redis(RedisArgs),
    /// RESP front compared with Redis and throttlecrab, loaded by redis-benchmark.
    Resp(RespArgs),
    /// Calls and limits while Redis fails, checked against the documented bounds.
    Faults(FaultsArgs),
    /// Several nodes on one limit: over-admission, share of the limit used, and the cost for Redis.
    Fleet(FleetArgs),
    /// Many retrying clients on one key: how much of the limit they use, and how many requests they
    /// send.
    Storm(StormArgs),
    /// Handler without decisions; started by `http` as a separate process.
    #[command(hide = true)]
    HttpBaseline(BaselineArgs),
    /// Load generator; started by `http` as a separate process.
    #[command(hide = true)]
    HttpLoad(LoadArgs),
    /// Tonic service; started by `grpc` as a separate process.
    #[command(hide = true)]
    GrpcBaseline(crate::grpc::BaselineArgs),
    /// Load generator; started by `grpc` as a separate process.
    #[command(hide = true)]
    GrpcLoad(crate::grpc::LoadArgs),
    /// Node that is killed; started by `faults` as a separate process.
    #[command(hide = true)]
    FaultVictim(FaultVictimArgs),
    /// Resident bytes of one subject; started by `inprocess` as a separate process.
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
    /// Only these call modes.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub mode: Vec<Mode>,
    /// Fewer decisions and repeats: a quick estimate with more noise.
    #[arg(long)]
    pub quick: bool,
}

#[derive(Args)]
pub struct PausesArgs {
    /// Print JSON instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Distinct keys to fill, and to fill again after they expired.
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
    /// Fewer and shorter passes: a quick estimate with more noise.
    #[arg(long)]
    pub quick: bool,
    /// Path of a tidegate binary; default: build the release binary.
    #[arg(long, value_name = "PATH")]
    pub tidegate: Option<PathBuf>,
    /// Distinct keys in the requests; default: 100,000, or 1,000,000 with --soak.
    #[arg(long, value_parser = clap::value_parser!(u32).range(100..=3_000_000))]
    pub keys: Option<u32>,
    /// Keep-alive connections, each with one request in flight.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub connections: u32,
    /// Let servers and load share all processors instead of using one processor each.
    #[arg(long)]
    pub unbound: bool,
    /// Instead of timing: load tidegate for SECONDS while its config changes every second,
    /// and check every answer.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "60",
        value_parser = clap::value_parser!(u32).range(6..=86_400))]
    pub soak: Option<u32>,
    /// Instead of timing: load tidegate for SECONDS on one processor while its log is not read,
    /// and check the latency of the slowest requests.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "10",
        conflicts_with = "soak", value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub stalled_log: Option<u32>,
}

#[derive(Args)]
pub struct GrpcArgs {
    /// Print JSON instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Fewer rounds: a quick estimate with more noise.
    #[arg(long)]
    pub quick: bool,
    /// Path of a tidegate binary; default: build the release binary.
    #[arg(long, value_name = "PATH")]
    pub tidegate: Option<PathBuf>,
    /// Let servers and load share all processors instead of using one processor each.
    #[arg(long)]
    pub unbound: bool,
}

#[derive(Args)]
pub struct XdsArgs {
    /// Print JSON instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Configs to send, one after the other. Each has other limits than the one before.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(2..=1_000))]
    pub pushes: u32,
    /// Descriptors with a limit in each config.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub descriptors: u32,
    /// Path of a tidegate binary; default: build the release binary.
    #[arg(long, value_name = "PATH")]
    pub tidegate: Option<PathBuf>,
}

#[derive(Args)]
pub struct LayerArgs {
    /// Print JSON instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Fewer processes: a quick estimate with more noise.
    #[arg(long)]
    pub quick: bool,
    /// Measure in this process only and print the samples, for the parent process.
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
    /// Fewer and shorter rounds: a quick estimate with more noise.
    #[arg(long)]
    pub quick: bool,
    /// Server to start: redis-server or valkey-server.
    #[arg(long, value_name = "PATH", default_value = "redis-server")]
    pub server: PathBuf,
    /// Commands per pipeline.
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
    /// Fewer and shorter rounds: a quick estimate with more noise.
    #[arg(long)]
    pub quick: bool,
    /// Path of a tidegate binary; default: build the release binary.
    #[arg(long, value_name = "PATH")]
    pub tidegate: Option<PathBuf>,
    /// Redis server to start for the comparison.
    #[arg(long, value_name = "PATH", default_value = "redis-server")]
    pub server: PathBuf,
    /// Commands per pipeline (comma-separated or repeated).
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64], value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub pipeline: Vec<u16>,
    /// Distinct keys in the commands.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    pub keys: u32,
    /// Connections, each with one pipeline in flight.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub connections: u32,
    /// Let servers and load share all processors instead of using one processor each.
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
    /// Only these loads on a healthy Redis (comma-separated or repeated).
    #[arg(long, value_enum, value_delimiter = ',')]
    pub load: Vec<crate::faults::Load>,
    /// Shorter faults: long enough to check the bounds, too short to time anything.
    #[arg(long)]
    pub short: bool,
    /// Server to start: redis-server or valkey-server.
    #[arg(long, value_name = "PATH", default_value = "redis-server")]
    pub server: PathBuf,
}

#[derive(Args)]
pub struct FaultVictimArgs {
    /// URL of Redis.
    pub url: String,
    /// Time of the first call, in microseconds since 1970.
    pub start_us: u64,
}

#[derive(Args)]
pub struct FleetArgs {
    /// Print JSON instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Only these scenes (comma-separated or repeated).
    #[arg(long, value_enum, value_delimiter = ',')]
    pub scene: Vec<crate::fleet::Scene>,
    /// Only these designs (comma-separated or repeated).
    #[arg(long, value_enum, value_delimiter = ',')]
    pub design: Vec<crate::fleet::Design>,
    /// Duration of each scene and design, in seconds.
    #[arg(long, default_value_t = 20)]
    pub seconds: u64,
    /// Send requests on cold keys too, 200 in a second on every node, and report their latency.
    /// Their commands are then counted with the others.
    #[arg(long)]
    pub cold: bool,
    /// Server to start: redis-server or valkey-server.
    #[arg(long, value_name = "PATH", default_value = "redis-server")]
    pub server: PathBuf,
}

#[derive(Args)]
pub struct StormArgs {
    /// Print JSON instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Only these retry strategies (comma-separated or repeated).
    #[arg(long = "way", value_name = "WAY", value_enum, value_delimiter = ',')]
    pub strategy: Vec<crate::storm::RetryStrategy>,
    /// Simulate all scenarios in virtual time without a network: takes seconds instead of minutes
    /// and is reproducible.
    #[arg(long = "virtual")]
    pub on_virtual_time: bool,
    /// Seed of the random numbers; only with --virtual.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Duration per strategy; the first sixth is not counted. Not with --virtual.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(6..=3_600))]
    pub seconds: u32,
    /// Path of a tidegate binary; default: build the release binary.
    #[arg(long, value_name = "PATH")]
    pub tidegate: Option<PathBuf>,
}

#[derive(Args)]
pub struct RssArgs {
    pub subject: SubjectKind,
    pub keys: u32,
    /// Key capacity of the subject, if larger than the number of keys.
    #[arg(long)]
    pub max_keys: Option<u32>,
    /// Log entries per key, 600 ms of virtual time apart (only for the sliding-log subject).
    #[arg(long, default_value_t = 0)]
    pub entries: u32,
}

/// Number of decisions per call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// One call, one decision.
    Single,
    /// One call, 32 decisions.
    Batch32,
}

/// Returns the name of a value on the command line, in tables and in JSON.
pub fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
