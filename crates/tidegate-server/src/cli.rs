//! What can be typed.

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use tidegate::{Algorithm, Limit};

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
    Replay(ReplayArgs),
    Completions(crate::papers::CompletionsArgs),
    Man(crate::papers::ManArgs),
}

/// Send recorded traffic through the rate limiter and see what it would have done
///
/// Events are decided in file order at their own times, as fast as they can be
/// read: an hour of traffic takes no hour. A summary says how much was admitted
/// and denied, and the most that truly passed for any one key within the window,
/// counted apart from the limiter.
#[derive(Debug, Args)]
#[command(after_long_help = REPLAY_HELP)]
pub struct ReplayArgs {
    /// Files to read one after another, plain or gzipped; `-` is standard input
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// A limit on each key, e.g. "10 per 10s" or "600 per 1m token-bucket burst 50"
    ///
    /// Given several times, an event passes if every limit admits it; if one
    /// does not, none is charged.
    #[arg(long = "limit", value_name = "LIMIT", required = true, allow_hyphen_values = true)]
    pub limits: Vec<Limit>,

    /// The algorithm to use in place of the limits' own, or `all` to compare them
    #[arg(long, value_name = "NAME|all", value_parser = algorithms)]
    pub algorithm: Option<Algorithms>,

    /// How lines are written
    #[arg(long, value_enum, default_value_t = FormatChoice::Auto)]
    pub format: FormatChoice,

    /// Which field of a log line is limited: `user` needs clf or combined, `agent` combined
    #[arg(long, value_enum, default_value_t = KeyField::Host)]
    pub key: KeyField,

    /// Write one `1` (admitted) or `0` (denied) per event, in order, to FILE or `-` for
    /// standard output; the summary then goes to standard error
    #[arg(long, value_name = "FILE|-")]
    pub decisions: Option<PathBuf>,

    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,

    /// Stop with an error at the first bad line, step back in time or damaged file
    #[arg(long)]
    pub strict: bool,
}

const REPLAY_HELP: &str = "\
Formats:
  csv       time_us,key[,cost]   a header line `time_us,key...` is skipped
  jsonl     {\"time_us\":1700000000000000,\"key\":\"alice\",\"cost\":1}
  clf       Apache common log:   host ident user [time] \"request\" status bytes
  combined  the same, then \"referer\" \"agent\"
  auto      whichever of these the first lines of each file are

Times are microseconds since 1970. A cost of 0 looks without charging, a negative one refunds.

Examples:
  tidegate replay access.log.gz --limit \"10 per 10s\" --algorithm all
  tidegate replay trace.csv --limit \"10 per 1s\" --limit \"600 per 1m sliding-log\" --json
  zstd -dc trace.csv.zst | tidegate replay - --limit \"5 per 1m\" --decisions decisions.txt";

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
    Algorithm::SlidingBuckets,
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

fn algorithms(name: &str) -> Result<Algorithms, UnknownAlgorithm> {
    if name == "all" {
        return Ok(Algorithms::All);
    }
    match Algorithm::from_name(name) {
        Some(algorithm) if RATE_ALGORITHMS.contains(&algorithm) => Ok(Algorithms::One(algorithm)),
        _ => Err(UnknownAlgorithm),
    }
}

/// How lines are written, or that it is to be found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormatChoice {
    Auto,
    Clf,
    Combined,
    Csv,
    Jsonl,
}

/// Which field of a log line names who is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KeyField {
    Host,
    User,
    Agent,
}

impl KeyField {
    pub const fn name(self) -> &'static str {
        match self {
            KeyField::Host => "host",
            KeyField::User => "user",
            KeyField::Agent => "agent",
        }
    }
}

/// Whether a path stands for standard input or output.
pub fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}
