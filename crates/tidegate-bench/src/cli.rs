//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::subjects::Kind;
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
    pub subject: Vec<Kind>,
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
pub struct RssArgs {
    pub subject: Kind,
    pub keys: u32,
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
