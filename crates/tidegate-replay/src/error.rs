//! The errors that can stop a replay, with a remedy.

use std::io;
use std::path::{Path, PathBuf};

use tidegate::unstable::config::ConfigErrors;
use tidegate::unstable::policy::{PoliciesError, PolicyError, RequestField};
use tidegate::{Algorithm, CheckError, Limit, OutOfMemory};

use crate::format::{BadLine, Format, ParserError};
use crate::input::Compression;
use crate::problems::Problem;
use crate::report::{counted, escape_key, escape_path};

/// Why a replay or a simulation ended without a report.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A concurrency limit, which traces cannot be decided by.
    #[error(
        "`{limit}` cannot be replayed: a trace has the start of a request, but not its end; use a \
         limit such as `10 per 10s`"
    )]
    Concurrency {
        /// The limit.
        limit: Box<Limit>,
    },
    /// Two limits that would count in one state.
    #[error(
        "`{}` and `{}` have the same algorithm and window, so they would count in one state; keep \
         the lower one, or give one another window or algorithm",
        .0[0],
        .0[1]
    )]
    SharedState(Box<[Limit; 2]>),
    /// `--decisions` with `--algorithm all`.
    #[error(
        "--decisions needs one algorithm, not `all`: run once for each, e.g. --algorithm \
         sliding-log"
    )]
    DecisionsOfAll,
    /// An output file that is also read.
    #[error("{option} {path} would overwrite a file that is read; name another file")]
    OverInput {
        /// The option that names the output.
        option: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// Two outputs to one file.
    #[error("--html and --decisions would both be written to {path}; name two files")]
    OutputTwice {
        /// The file.
        path: PathBuf,
    },
    /// Standard input is named twice.
    #[error("`-` can be read only once: name it once")]
    StdinTwice,
    /// `--suggest` with an input that can be read only once.
    #[error(
        "--suggest reads the input several times, which is impossible for standard input and pipes; \
         save it to a file first"
    )]
    SuggestOfStdin,
    /// An input file is named twice.
    #[error("{path} is named twice; its events would count twice")]
    FileTwice {
        /// The file.
        path: PathBuf,
    },
    /// More input files than are read at once.
    #[error(
        "more than {most} files; put them together first, e.g. `cat FILES | tidegate replay -`"
    )]
    TooManyFiles {
        /// The largest number.
        most: usize,
    },
    /// An input file that cannot be replayed.
    #[error("{}: {fault}", escape_path(.path))]
    File {
        /// The file.
        path: PathBuf,
        /// The fault of the file.
        fault: FileFault,
    },
    /// A problem in the input, with `--strict`.
    #[error("{0} (--strict stops here; without it the rest is replayed)")]
    Strict(Problem),
    /// None of the lines is an event.
    #[error(
        "no request to replay: {}",
        match .first {
            Some(problem) if *malformed == 0 => problem.to_string(),
            Some(problem) => format!(
                "{} skipped, the first {problem}{}",
                counted(*malformed, "line"),
                if names.is_empty() { String::new() } else { format!(" ({})", listed(names)) }
            ),
            None => "the input has column names and no lines below them".into(),
        }
    )]
    NoEvents {
        /// The number of malformed lines.
        malformed: u64,
        /// The first problem.
        first: Option<Problem>,
        /// The names of all fields, if no line has the field that the first problem names.
        names: Box<[String]>,
    },
    /// The decisions cannot be written.
    #[error("{path}: decisions cannot be written ({error})")]
    Decisions {
        /// Where they are written.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The page cannot be written.
    #[error("{path}: the page cannot be written ({error})")]
    Html {
        /// Where it is written.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The summary cannot be written.
    #[error("cannot write the summary: {0}")]
    Output(io::Error),
    /// A policy that cannot have its limits under this algorithm.
    #[error(
        "policy `{policy}` cannot use {algorithm} for all of its limits: {error}; leave out \
         --algorithm"
    )]
    Policy {
        /// The name of the policy.
        policy: String,
        /// The algorithm.
        algorithm: Algorithm,
        /// Why it cannot.
        error: PolicyError,
    },
    /// Policies that contradict each other under another algorithm.
    #[error(transparent)]
    Policies(PoliciesError),
    /// An invalid config file.
    #[error("{0}")]
    Config(Box<ConfigErrors>),
    /// `--suggest` with `--config`.
    #[error(
        "--suggest works with --limit, not with --config; give the limit with --limit and its key \
         with --key"
    )]
    SuggestOfConfig,
    /// `--traffic all` without `--table`.
    #[error("--traffic all requires --table; name one traffic for a report")]
    TableOfAll,
    /// `--load` for traffic that does not depend on it.
    #[error(
        "--load has no effect on the traffic boundary, which follows from the limit; leave it out"
    )]
    LoadOfBoundary,
    /// Traffic of more requests than are simulated.
    #[error(
        "the traffic {name} would have more than a billion requests; lower --limit, --clients, \
         --windows or --load"
    )]
    TooMuchTraffic {
        /// The name of the traffic.
        name: &'static str,
    },
    /// A simulated time that is longer than timestamps allow.
    #[error(
        "--windows {windows} with --limit `{limit}` is more than 200 years; lower --windows, or use \
         a limit with a shorter window"
    )]
    TooLongTraffic {
        /// The number of windows.
        windows: u32,
        /// The limit that has these windows.
        limit: Box<Limit>,
    },
    /// The limiter cannot be built.
    #[error(transparent)]
    Build(OutOfMemory),
    /// The limiter rejected a check.
    #[error(transparent)]
    Check(#[from] CheckError),
}

impl ReplayError {
    /// The exit code: 2 for errors in the arguments, 1 for all others.
    pub const fn exit_code(&self) -> u8 {
        match self {
            ReplayError::Concurrency { .. }
            | ReplayError::SharedState(_)
            | ReplayError::DecisionsOfAll
            | ReplayError::OverInput { .. }
            | ReplayError::OutputTwice { .. }
            | ReplayError::StdinTwice
            | ReplayError::SuggestOfStdin
            | ReplayError::SuggestOfConfig
            | ReplayError::TableOfAll
            | ReplayError::TooMuchTraffic { .. }
            | ReplayError::LoadOfBoundary
            | ReplayError::TooLongTraffic { .. }
            | ReplayError::Policy { .. }
            | ReplayError::FileTwice { .. }
            | ReplayError::TooManyFiles { .. } => 2,
            _ => 1,
        }
    }

    /// Whether the reader of the output has closed it, which is not a fault.
    pub fn is_closed_pipe(&self) -> bool {
        match self {
            ReplayError::Decisions { error, .. }
            | ReplayError::Html { error, .. }
            | ReplayError::Output(error) => error.kind() == io::ErrorKind::BrokenPipe,
            _ => false,
        }
    }
}

/// The error of one input file.
#[derive(Debug, thiserror::Error)]
pub enum FileFault {
    #[error("there is no such file; check the path, or use `-` to read standard input")]
    Missing,
    /// A missing file that was probably meant as the output of `--json`.
    #[error("{}; `--json` takes no file: write `--json > {}`", FileFault::Missing, escape_path(.0))]
    MissingJson(PathBuf),
    #[error("is a directory; name its files instead")]
    Directory,
    #[error("cannot be opened ({0}); check its permissions")]
    Open(io::Error),
    #[error("cannot be read to its end ({0})")]
    Read(io::Error),
    #[error("is empty; leave it out or name another file")]
    Empty,
    #[error(
        "is compressed with {}; only gzip and zstd are read directly, so use `{} FILE | tidegate \
         replay - ...`",
        .0.name(),
        .0.command()
    )]
    Compressed(Compression),
    /// The decompressed data is compressed again.
    #[error(
        "is compressed twice, {} inside {}; use `{} FILE | tidegate replay - ...`",
        .0[1].name(),
        .0[0].name(),
        .0[0].command()
    )]
    CompressedTwice([Compression; 2]),
    #[error(
        "is text in UTF-16; make it UTF-8 first, e.g. `iconv -f UTF-16 -t UTF-8 FILE | tidegate \
         replay - ...`"
    )]
    Utf16,
    #[error("is a binary file; name a text file, see `tidegate replay --help` for the formats")]
    Binary,
    #[error(
        "begins as JSON, but its first line is broken: {0}; each line must be one whole object"
    )]
    BrokenJson(BadLine),
    #[error(
        "is a JSON array; write one object per line: `jq -c '.[]' FILE | tidegate replay - ...`"
    )]
    JsonArray,
    #[error(
        "the format of its first lines is unknown (it begins `{first_line}`); {}the known formats are \
         {}: set one with --format, or see `tidegate replay --help`",
        if *.may_be_csv {
            "csv without column names is time_us,key[,cost]: set --time-unit (s for seconds and \
             dates, or ms or ns), or add a first line with the names of the columns; "
        } else {
            ""
        },
        Format::ALL.map(Format::name).join(", ")
    )]
    UnknownFormat { first_line: String, may_be_csv: bool },
    #[error(
        "is a tar archive; extract its files and name them, or if it has a single file, use `tar \
         -xOf FILE | tidegate replay - ...`"
    )]
    Tar,
    #[error("no `#Fields:` line before the first event; a w3c log names its columns there")]
    NoDirective,
    /// The option names another format than that of the file.
    #[error(
        "does not have the format {}; it looks like {other}: use --format {other}, or leave out --format",
        .format.name(),
        other = .looks_like.name()
    )]
    OtherFormat { format: Format, looks_like: Format },
    #[error(
        "no field of format {} is known to be the time; name it with --field time=NAME ({})",
        .format.name(),
        listed(.names)
    )]
    NoTime { format: Format, names: Vec<String> },
    /// No field has one of the usual names for a key.
    #[error(
        "no field of format {} is known to be the key; name it with --key NAME, or count all \
         requests together with --key all ({})",
        .format.name(),
        listed(.names)
    )]
    NoUsualKey { format: Format, names: Vec<String> },
    /// No field has the name that an option gives.
    #[error(
        "{option}: lines of format {} have no such field{} ({})",
        .format.name(),
        .part.as_ref().map(|part| format!("; write --key \"{{{part}}}\"")).unwrap_or_default(),
        listed(.names)
    )]
    NoSuchField {
        format: Format,
        option: String,
        names: Vec<String>,
        /// The part of a template that has the name, if the lines provide it.
        part: Option<RequestField>,
    },
}

impl FileFault {
    pub fn new(format: Format, error: ParserError) -> Self {
        match error {
            ParserError::Time(names) => FileFault::NoTime { format, names },
            ParserError::Key(names) => FileFault::NoUsualKey { format, names },
            ParserError::Named { option, names, part } => {
                FileFault::NoSuchField { format, option, names, part }
            }
            ParserError::NoDirective => FileFault::NoDirective,
        }
    }

    pub fn at(self, path: &Path) -> ReplayError {
        ReplayError::File { path: path.to_path_buf(), fault: self }
    }
}

/// Formats the names of the fields of a file for an error.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 20;
    if names.is_empty() {
        return "its columns have no names".into();
    }
    let shown: Vec<String> =
        names.iter().take(SHOWN).map(|name| escape_key(name.as_bytes())).collect();
    let more = if names.len() > SHOWN { ", ..." } else { "" };
    format!("its fields: {}{more}", shown.join(", "))
}
