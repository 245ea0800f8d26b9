//! `tidegate replay`: recorded traffic through the real engine on virtual time.
//!
//! ```text
//! files -> input (gunzip, lines) -> format (events) -> feed (blocks)    one thread
//!                                                        |
//!          decisions, summary <- truth <- engine <- run <-+             another
//! ```

mod calendar;
mod engine;
mod error;
mod feed;
mod format;
mod input;
mod keys;
mod progress;
mod run;
mod summary;
mod truth;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread;
use std::time::Instant;

use crate::cli::{Algorithms, ReplayArgs, is_dash};
use error::ReplayError;
use feed::{BLOCKS, Block, Feed, Report, Ring};
use input::BytesRead;
use progress::Progress;
use run::Run;
use summary::Summary;

/// Replays the files and prints what came of it.
pub fn run(args: &ReplayArgs) -> Result<(), ReplayError> {
    let runs = run::plan(&args.limits, args.algorithm)?;
    if args.decisions.is_some() && args.algorithm == Some(Algorithms::All) {
        return Err(ReplayError::DecisionsOfAll);
    }
    if args.files.iter().filter(|path| is_dash(path)).count() > 1 {
        return Err(ReplayError::StdinTwice);
    }
    let sizes = args.files.iter().map(|path| input::inspect(path));
    let total_bytes = sizes.sum::<Result<Option<u64>, _>>()?;
    let decisions = args.decisions.as_deref().map(|path| Decisions::create(path, &args.files));
    let bytes_read = BytesRead::default();
    let mut replay = Replay {
        runs: runs.into_iter().map(Run::new).collect(),
        decisions: decisions.transpose()?,
        events: 0,
        progress: Progress::new(total_bytes, bytes_read.clone()),
    };
    let started = Instant::now();
    let report = replay.run(args, &bytes_read)?;
    let elapsed = started.elapsed();
    let Replay { runs, decisions, progress, .. } = replay;
    drop(progress);
    if report.events() == 0 {
        let malformed = report.malformed.count;
        let mut problems = report.damaged.first.into_iter().chain(report.malformed.first);
        return Err(ReplayError::NoEvents { malformed, first: problems.next() });
    }
    let to_stderr = decisions.as_ref().is_some_and(|decisions| is_dash(&decisions.path));
    if let Some(mut decisions) = decisions {
        decisions.flush()?;
    }
    let summary = Summary::new(&report, &runs, elapsed);
    let text = if args.json { summary.json()? } else { summary.to_string() };
    let written = if to_stderr {
        io::stderr().write_all(text.as_bytes())
    } else {
        io::stdout().write_all(text.as_bytes())
    };
    written.map_err(ReplayError::Output)
}

/// The deciding side.
struct Replay {
    runs: Vec<Run>,
    decisions: Option<Decisions>,
    events: u64,
    progress: Progress,
}

impl Replay {
    fn run(&mut self, args: &ReplayArgs, bytes_read: &BytesRead) -> Result<Report, ReplayError> {
        let (full_in, full) = sync_channel(BLOCKS);
        let (empty, empty_out) = channel();
        for _ in 0..BLOCKS {
            // The other end is still here.
            let _ = empty.send(Block::default());
        }
        let feed = Feed::new(args, Ring { full: full_in, empty: empty_out });
        thread::scope(|scope| {
            let feeding = scope.spawn(|| feed.run(&args.files, bytes_read));
            let decided = self.take_all(full, empty);
            let report = feeding.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            decided.and(report)
        })
    }

    fn take_all(&mut self, full: Receiver<Block>, empty: Sender<Block>) -> Result<(), ReplayError> {
        for mut block in full {
            self.take(&block)?;
            block.clear();
            // A feed that has read everything needs no more blocks.
            let _ = empty.send(block);
        }
        Ok(())
    }

    fn take(&mut self, block: &Block) -> Result<(), ReplayError> {
        for run in &mut self.runs {
            run.take(block)?;
        }
        let Some((first, others)) = self.runs.split_first_mut() else { return Ok(()) };
        for run in others {
            run.compare(first.answers());
        }
        if let Some(decisions) = &mut self.decisions {
            decisions.write(first.answers())?;
        }
        self.events += block.rows.len() as u64;
        self.progress.show(self.events);
        Ok(())
    }
}

/// Where the string of decisions goes.
struct Decisions {
    path: PathBuf,
    to: Box<dyn Write>,
    text: Vec<u8>,
}

impl Decisions {
    fn create(path: &Path, inputs: &[PathBuf]) -> Result<Self, ReplayError> {
        let path = path.to_path_buf();
        if is_dash(&path) {
            return Ok(Decisions { path, to: Box::new(io::stdout()), text: Vec::new() });
        }
        // A path that cannot be resolved does not exist yet, so it is no input.
        let same = |a: &Path, b: &Path| matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b);
        if inputs.iter().any(|input| !is_dash(input) && same(input, &path)) {
            return Err(ReplayError::DecisionsOverInput { path });
        }
        match File::create(&path) {
            Ok(file) => Ok(Decisions { path, to: Box::new(file), text: Vec::new() }),
            Err(error) => Err(ReplayError::Decisions { path, error }),
        }
    }

    /// A block at a time, which is buffering enough.
    fn write(&mut self, answers: &[bool]) -> Result<(), ReplayError> {
        self.text.clear();
        self.text.extend(answers.iter().map(|&admitted| b'0' + u8::from(admitted)));
        let written = self.to.write_all(&self.text);
        written.map_err(|error| ReplayError::Decisions { path: self.path.clone(), error })
    }

    fn flush(&mut self) -> Result<(), ReplayError> {
        let flushed = self.to.flush();
        flushed.map_err(|error| ReplayError::Decisions { path: self.path.clone(), error })
    }
}
