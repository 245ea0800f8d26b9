//! What can be typed.

use std::path::Path;

use clap::{Parser, Subcommand};
use tidegate::Algorithm;

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
    Config(crate::config_cmd::ConfigArgs),
    Explain(crate::explain::ExplainArgs),
    Replay(crate::replay::ReplayArgs),
    Simulate(crate::simulate::SimulateArgs),
    Completions(crate::papers::CompletionsArgs),
    Man(crate::papers::ManArgs),
}

/// Which algorithms replace the limits' own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithms {
    One(Algorithm),
    /// Every algorithm that limits a rate, compared.
    All,
}

/// The algorithms a recorded trace can be decided by. `concurrency` is not one:
/// a trace says when requests begin, not when they end.
pub const RATE_ALGORITHMS: [Algorithm; 5] = [
    Algorithm::SlidingLog,
    Algorithm::SlidingWindow,
    Algorithm::SlidingCounter,
    Algorithm::FixedWindow,
    Algorithm::TokenBucket,
];

/// A name that is no algorithm of rates.
#[derive(Clone, Copy, Debug)]
pub struct UnknownAlgorithm;

impl std::fmt::Display for UnknownAlgorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("use ")?;
        for algorithm in RATE_ALGORITHMS {
            write!(f, "{algorithm}, ")?;
        }
        f.write_str("or all")
    }
}

impl std::error::Error for UnknownAlgorithm {}

/// An algorithm of rates.
pub fn rate_algorithm(name: &str) -> Result<Algorithm, String> {
    let known = Algorithm::from_name(name).filter(|one| RATE_ALGORITHMS.contains(one));
    known.ok_or_else(|| {
        let names = RATE_ALGORITHMS.map(|algorithm| algorithm.to_string());
        format!("use {} or {}", names[..4].join(", "), names[4])
    })
}

/// One algorithm of rates, or `all`.
pub fn algorithms(name: &str) -> Result<Algorithms, UnknownAlgorithm> {
    if name == "all" {
        return Ok(Algorithms::All);
    }
    match Algorithm::from_name(name) {
        Some(algorithm) if RATE_ALGORITHMS.contains(&algorithm) => Ok(Algorithms::One(algorithm)),
        _ => Err(UnknownAlgorithm),
    }
}

/// Whether a path stands for standard input or output.
pub fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}
