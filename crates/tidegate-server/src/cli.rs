//! What can be typed.

use clap::{Parser, Subcommand};
use tidegate_replay::{ReplayArgs, SimulateArgs};

/// A rate limiter with sliding windows, and what it would do to your traffic.
#[derive(Debug, Parser)]
#[command(
    name = "tidegate",
    version,
    after_help = "Try:  tidegate serve\n\
                  Or:   tidegate replay access.log --limit \"10 per 10s\" --algorithm all\n\
                  Then: tidegate serve --help, tidegate replay --help"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Serve(crate::serve::ServeArgs),
    Config(crate::commands::config::ConfigArgs),
    Explain(crate::commands::explain::ExplainArgs),
    Replay(ReplayArgs),
    Simulate(SimulateArgs),
    Completions(crate::commands::man_and_completions::CompletionsArgs),
    Man(crate::commands::man_and_completions::ManArgs),
}
