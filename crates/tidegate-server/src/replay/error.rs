//! What can stop a replay, and what to do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use tidegate::{CheckError, Limit, OutOfMemory};

use super::feed::Problem;
use super::format::Format;
use super::input::Compression;
use crate::cli::KeyField;

/// Why a replay ended without a summary.
#[derive(Debug)]
pub enum ReplayError {
    /// A limit that traces cannot be decided by.
    Concurrency {
        limit: Limit,
    },
    /// Two limits that would count in one state.
    SharedState(Box<[Limit; 2]>),
    DecisionsOfAll,
    DecisionsOverInput {
        path: PathBuf,
    },
    StdinTwice,
    File {
        path: PathBuf,
        fault: FileFault,
    },
    /// `--strict`, and something was wrong.
    Strict(Problem),
    NoEvents {
        malformed: u64,
        first: Option<Problem>,
    },
    Decisions {
        path: PathBuf,
        error: io::Error,
    },
    Output(io::Error),
    Build(OutOfMemory),
    Check(CheckError),
}

impl ReplayError {
    /// 2 for what was typed, 1 for what was found.
    pub const fn exit_code(&self) -> u8 {
        match self {
            ReplayError::Concurrency { .. }
            | ReplayError::SharedState(_)
            | ReplayError::DecisionsOfAll
            | ReplayError::DecisionsOverInput { .. }
            | ReplayError::StdinTwice => 2,
            _ => 1,
        }
    }

    /// Whether a reader of our output went away, which is no fault.
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
            Self::DecisionsOfAll => f.write_str(
                "--decisions needs one algorithm, not `all`: run once for each, \
                 e.g. --algorithm sliding-log",
            ),
            Self::DecisionsOverInput { path } => write!(
                f,
                "--decisions {} would overwrite the file that is replayed; name another file",
                path.display()
            ),
            Self::StdinTwice => f.write_str("`-` can be read only once: name it once"),
            Self::Strict(problem) => {
                write!(f, "{problem} (--strict stops here; without it the rest is replayed)")
            }
            Self::NoEvents { malformed, first } => {
                write!(f, "nothing to replay: no event in any line, {malformed} malformed")?;
                match first {
                    Some(problem) => write!(f, ", the first {problem}; is --format right?"),
                    None => Ok(()),
                }
            }
            Self::Output(error) => write!(f, "cannot write the summary: {error}"),
            Self::Build(error) => write!(f, "{error}"),
            Self::Check(error) => write!(f, "{error}"),
            Self::File { path, fault } => write!(f, "{}: {fault}", path.display()),
            Self::Decisions { path, error } => {
                write!(f, "{}: decisions cannot be written ({error})", path.display())
            }
        }
    }
}

/// What is wrong with a file to replay.
#[derive(Debug)]
pub enum FileFault {
    Missing,
    Directory,
    Open(io::Error),
    Read(io::Error),
    Empty,
    Compressed(Compression),
    UnknownFormat { first_line: String },
    NoSuchKey { format: Format, key: KeyField },
}

impl FileFault {
    pub fn of(self, path: &Path) -> ReplayError {
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
                "is compressed with {0}; only gzip is read directly, so use \
                 `{0} -dc FILE | tidegate replay - ...`",
                compression.program()
            ),
            Self::UnknownFormat { first_line } => write!(
                f,
                "its first lines are in no known format; say which with --format csv, clf, \
                 combined or jsonl (it begins `{first_line}`)"
            ),
            Self::NoSuchKey { format, key } => write!(
                f,
                "lines of format {0} have no {1}; leave out --key {1}, or say another --format",
                format.name(),
                key.name()
            ),
        }
    }
}

impl From<CheckError> for ReplayError {
    fn from(error: CheckError) -> Self {
        ReplayError::Check(error)
    }
}
