//! The errors that can stop a replay, with a remedy.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use tidegate::unstable::config::ConfigErrors;
use tidegate::unstable::policy::{PoliciesError, PolicyError};
use tidegate::{Algorithm, CheckError, Limit, OutOfMemory};

use crate::format::{BadLine, Format};
use crate::input::Compression;
use crate::problems::Problem;

/// Why a replay or a simulation ended without a report.
#[derive(Debug)]
pub enum ReplayError {
    /// A concurrency limit, which traces cannot be decided by.
    Concurrency {
        /// The limit.
        limit: Box<Limit>,
    },
    /// Two limits that would count in one state.
    SharedState(Box<[Limit; 2]>),
    /// `--decisions` with `--algorithm all`.
    DecisionsOfAll,
    /// An output file that is also read.
    OverInput {
        /// The option that names the output.
        option: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// Two outputs to one file.
    OutputTwice {
        /// The file.
        path: PathBuf,
    },
    /// Standard input is named twice.
    StdinTwice,
    /// `--suggest` with an input that can be read only once.
    SuggestOfStdin,
    /// An input file is named twice.
    FileTwice {
        /// The file.
        path: PathBuf,
    },
    /// More input files than are read at once.
    TooManyFiles {
        /// The largest number.
        most: usize,
    },
    /// An input file that cannot be replayed.
    File {
        /// The file.
        path: PathBuf,
        /// The fault of the file.
        fault: FileFault,
    },
    /// A problem in the input, with `--strict`.
    Strict(Problem),
    /// None of the lines is an event.
    NoEvents {
        /// The number of malformed lines.
        malformed: u64,
        /// The first problem.
        first: Option<Problem>,
    },
    /// The decisions cannot be written.
    Decisions {
        /// Where they are written.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The page cannot be written.
    Html {
        /// Where it is written.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The summary cannot be written.
    Output(io::Error),
    /// A policy that cannot have its limits under this algorithm.
    Policy {
        /// The name of the policy.
        policy: String,
        /// The algorithm.
        algorithm: Algorithm,
        /// Why it cannot.
        error: PolicyError,
    },
    /// Policies that contradict each other under another algorithm.
    Policies(PoliciesError),
    /// An invalid config file.
    Config(Box<ConfigErrors>),
    /// `--suggest` with `--config`.
    SuggestOfConfig,
    /// `--traffic all` without `--table`.
    TableOfAll,
    /// `--load` for traffic that does not depend on it.
    LoadOfBoundary,
    /// Traffic of more requests than are simulated.
    TooMuchTraffic {
        /// The name of the traffic.
        name: &'static str,
    },
    /// A simulated time that is longer than timestamps allow.
    TooLongTraffic {
        /// The number of windows.
        windows: u32,
        /// The limit that has these windows.
        limit: Box<Limit>,
    },
    /// The limiter cannot be built.
    Build(OutOfMemory),
    /// The limiter rejected a check.
    Check(CheckError),
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
            ReplayError::Decisions { error, .. } | ReplayError::Output(error) => {
                error.kind() == io::ErrorKind::BrokenPipe
            }
            _ => false,
        }
    }
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DecisionsOfAll => f.write_str(
                "--decisions needs one algorithm, not `all`: run once for each, \
                 e.g. --algorithm sliding-log",
            ),
            Self::Strict(problem) => {
                write!(f, "{problem} (--strict stops here; without it the rest is replayed)")
            }
            Self::NoEvents { malformed, first } => {
                write!(f, "nothing to replay: no event in any line, {malformed} malformed")?;
                match first {
                    Some(problem) => write!(f, ", the first {problem}; is --format right?"),
                    None => f.write_str("; there are only names of columns"),
                }
            }
            Self::Output(error) => write!(f, "cannot write the summary: {error}"),
            Self::Policies(error) => write!(f, "{error}"),
            Self::Config(errors) => write!(f, "{errors}"),
            Self::Build(error) => write!(f, "{error}"),
            Self::Check(error) => write!(f, "{error}"),
            Self::File { path, fault } => write!(f, "{}: {fault}", path.display()),
            Self::Html { path, error } => {
                write!(f, "{}: the page cannot be written ({error})", path.display())
            }
            Self::Decisions { path, error } => {
                write!(f, "{}: decisions cannot be written ({error})", path.display())
            }
            argument_error => argument_error.write_argument_error(f),
        }
    }
}

impl ReplayError {
    /// Writes an error in the arguments, and the arguments to use instead.
    fn write_argument_error(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Concurrency { limit } => write!(
                f,
                "`{limit}` cannot be replayed: a trace says when requests begin, not when they end; \
                 use a limit such as `10 per 10s`"
            ),
            Self::SharedState(limits) => write!(
                f,
                "`{}` and `{}` have the same algorithm and window, so they would count \
                 in one state; keep the lower one, or give one another window or algorithm",
                limits[0], limits[1]
            ),
            Self::OverInput { option, path } => write!(
                f,
                "{option} {} would overwrite a file that is read; name another file",
                path.display()
            ),
            Self::OutputTwice { path } => write!(
                f,
                "--html and --decisions would both be written to {}; name two files",
                path.display()
            ),
            Self::SuggestOfStdin => f.write_str(
                "--suggest reads everything several times, which standard input and pipes \
                 cannot; save it to a file first",
            ),
            Self::FileTwice { path } => {
                write!(f, "{} is named twice; its events would count twice", path.display())
            }
            Self::TooManyFiles { most } => write!(
                f,
                "more than {most} files; put them together first, e.g. `cat FILES | tidegate replay -`"
            ),
            Self::StdinTwice => f.write_str("`-` can be read only once: name it once"),
            Self::Policy { policy, algorithm, error } => write!(
                f,
                "policy `{policy}` cannot be under {algorithm} as a whole: {error}; \
                 leave out --algorithm to replay it as it is"
            ),
            Self::SuggestOfConfig => f.write_str(
                "--suggest is for --limit, not for whole policies: give the limit in question, \
                 with --key for its key",
            ),
            Self::TableOfAll => {
                f.write_str("--traffic all is for --table; name one traffic for a report of it")
            }
            Self::LoadOfBoundary => f.write_str(
                "--load says nothing about boundary, whose attackers send what the limit tells \
                 them to; leave it out",
            ),
            Self::TooMuchTraffic { name } => write!(
                f,
                "{name} would be more than a billion requests; lower the limit, or --clients, --windows or --load where they apply"
            ),
            Self::TooLongTraffic { windows, limit } => write!(
                f,
                "--windows {windows} of --limit `{limit}` are more than 200 years; \
                 lower --windows, or take a limit with a shorter window"
            ),
            // The caller writes all other errors.
            _ => Ok(()),
        }
    }
}

/// The reason that a file cannot be replayed.
#[derive(Debug)]
pub enum FileFault {
    Missing,
    Directory,
    Open(io::Error),
    Read(io::Error),
    Empty,
    Compressed(Compression),
    /// The decompressed data is compressed as well.
    CompressedTwice([Compression; 2]),
    Utf16,
    BrokenJson(BadLine),
    UnknownFormat {
        first_line: String,
    },
    NoTime {
        format: Format,
        names: Vec<String>,
    },
    NoKey {
        format: Format,
        key: Option<Box<str>>,
        names: Vec<String>,
    },
}

impl FileFault {
    pub fn at(self, path: &Path) -> ReplayError {
        ReplayError::File { path: path.to_path_buf(), fault: self }
    }
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str(
                "there is no such file; check the path, or use `-` to read standard input",
            ),
            Self::Directory => f.write_str("is a directory; name its files instead"),
            Self::Open(error) => write!(f, "cannot be opened ({error}); check its permissions"),
            Self::Read(error) => write!(f, "cannot be read to its end ({error})"),
            Self::Empty => f.write_str(
                "is empty, there is nothing to replay; leave it out or name another file",
            ),
            Self::Compressed(compression) => write!(
                f,
                "is compressed with {0}; only gzip and zstd are read directly, so use \
                 `{0} -dc FILE | tidegate replay - ...`",
                compression.name()
            ),
            Self::CompressedTwice([outer, inner]) => write!(
                f,
                "is compressed twice, with {inner} and that with {outer}; use \
                 `{outer} -dc FILE | tidegate replay - ...`",
                inner = inner.name(),
                outer = outer.name()
            ),
            Self::Utf16 => f.write_str(
                "is text in UTF-16; make it UTF-8 first, e.g. \
                 `iconv -f UTF-16 -t UTF-8 FILE | tidegate replay - ...`",
            ),
            Self::BrokenJson(why) => write!(
                f,
                "begins as JSON, but its first line is broken: {why}; each line must be one \
                 whole object"
            ),
            Self::UnknownFormat { first_line } => write!(
                f,
                "its first lines are in no known format; say which with --format csv, clf, \
                 combined or jsonl (it begins `{first_line}`)"
            ),
            Self::NoTime { format, names } => write!(
                f,
                "lines of format {} have no field that is known to be the time; \
                 say which with --field time=NAME ({})",
                format.name(),
                listed(names)
            ),
            Self::NoKey { format, key: Some(key), names } => write!(
                f,
                "lines of format {} have no {key}; leave out --key {key}, or say another ({})",
                format.name(),
                listed(names)
            ),
            Self::NoKey { format, key: None, names } => write!(
                f,
                "lines of format {} have no field that is known to be the key; \
                 say which with --key NAME ({})",
                format.name(),
                listed(names)
            ),
        }
    }
}

impl From<CheckError> for ReplayError {
    fn from(error: CheckError) -> Self {
        ReplayError::Check(error)
    }
}

/// Lists the names of the fields of a file in a form that is safe in an error message.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 20;
    if names.is_empty() {
        return "its columns have no names".into();
    }
    let printable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let shown = names.iter().take(SHOWN).map(|name| name.chars().take(40).map(printable).collect());
    let shown: Vec<String> = shown.collect();
    let more = if names.len() > SHOWN { ", ..." } else { "" };
    format!("there are {}{more}", shown.join(", "))
}
