//! Problems in the input. They are counted, and the first ones of each kind are shown with their
//! positions.

use std::fmt;
use std::path::PathBuf;

use crate::error::ReplayError;
use crate::format::{BadLine, Format};
use crate::input::{Compression, Damage};
use crate::report::escape_path;

/// The number of problems of each kind that are kept with their positions. Further ones are only
/// counted.
const PROBLEMS_SHOWN: usize = 5;

/// A problem at a line of a file.
#[derive(Debug)]
pub struct Problem {
    pub path: PathBuf,
    pub line: u64,
    pub what: ProblemKind,
}

#[derive(Debug)]
pub enum ProblemKind {
    /// The line is not an event. The second field is another format that the line matches, if any.
    Malformed(BadLine, Option<Format>),
    /// The time is earlier than that of the line before.
    SteppedBack { by_us: u64 },
    /// The line is the same as the line before.
    Duplicate,
    /// The compressed file is damaged after this line.
    Damaged(Damage, Compression),
}

impl fmt::Display for ProblemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProblemKind::Malformed(why, None) => write!(f, "{why}"),
            ProblemKind::Malformed(why, Some(other)) => {
                let name = other.name();
                write!(
                    f,
                    "{why}; the line has format {name}, replay such lines separately with --format {name}"
                )
            }
            ProblemKind::SteppedBack { by_us } => {
                let (seconds, rest) = (by_us / 1_000_000, by_us % 1_000_000);
                write!(f, "{seconds}.{rest:06} s earlier than the event before it")
            }
            ProblemKind::Duplicate => f.write_str("equal to the line before"),
            ProblemKind::Damaged(damage, compression) => {
                let state = match (damage, compression) {
                    // A few bytes after the end look like the start of another member.
                    (Damage::Truncated, Compression::Gzip) => {
                        "truncated, or has extra bytes at its end"
                    }
                    (Damage::Truncated, _) => "truncated",
                    (Damage::Corrupt, _) => "corrupt",
                };
                let name = match compression {
                    Compression::Gzip => "gzipped",
                    other => other.name(),
                };
                write!(f, "the {name} file is {state}: it was read up to here")
            }
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", escape_path(&self.path), self.line, self.what)
    }
}

/// The number of problems of one kind, and the first ones.
#[derive(Debug, Default)]
pub struct Problems {
    pub count: u64,
    pub first: Vec<Problem>,
}

/// All problems of the input.
#[derive(Debug, Default)]
pub struct ProblemLog {
    strict: bool,
    pub malformed: Problems,
    pub out_of_order: Problems,
    pub duplicates: Problems,
    pub damaged: Problems,
    /// The largest step back in time.
    pub largest_step_us: u64,
}

impl ProblemLog {
    pub fn new(strict: bool) -> Self {
        ProblemLog { strict, ..ProblemLog::default() }
    }

    /// Returns whether the next malformed line will be shown, so that its format is worth
    /// detecting.
    pub fn shows_malformed(&self) -> bool {
        self.strict || self.malformed.first.len() < PROBLEMS_SHOWN
    }

    /// Counts a problem, or returns it as an error with `--strict`.
    #[cold]
    pub fn add(&mut self, problem: Problem) -> Result<(), ReplayError> {
        // Duplicate lines are not errors: they occur in logs with times in whole seconds.
        if self.strict && !matches!(problem.what, ProblemKind::Duplicate) {
            return Err(ReplayError::Strict(problem));
        }
        let problems = match problem.what {
            ProblemKind::Malformed(..) => &mut self.malformed,
            ProblemKind::SteppedBack { by_us } => {
                self.largest_step_us = self.largest_step_us.max(by_us);
                &mut self.out_of_order
            }
            ProblemKind::Duplicate => &mut self.duplicates,
            ProblemKind::Damaged(..) => &mut self.damaged,
        };
        problems.count += 1;
        if problems.first.len() < PROBLEMS_SHOWN {
            problems.first.push(problem);
        }
        Ok(())
    }
}
