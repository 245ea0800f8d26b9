//! `tidegate replay`: recorded traffic through the limiter on virtual time, in three threads.
//!
//! ```text
//! reader   files -> input (decompress, lines) -> format (events) -> trace_file -> reader_thread (merged blocks)
//! decider  blocks -> engine
//! counter  blocks and outcomes -> ground_truth -> tally, timeline -> report
//! ```

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tidegate::unstable::ParsedLimit;
use tidegate::unstable::config::Config;
use tidegate::{Algorithm, Limit};

use crate::algorithms::Algorithms;
use crate::args::{ReadingArgs, ReplayArgs};
use crate::block::Block;
use crate::engine::EventOutcome;
use crate::error::{FileFault, ReplayError};
use crate::file_identity::{is_dash, is_same_file, is_same_output};
use crate::format::{BadLine, KeySource, ParseOptions};
use crate::hints;
use crate::input::{self, BytesRead};
use crate::largest_burst::LargestBurst;
use crate::problems::{Problem, ProblemKind};
use crate::progress::Progress;
use crate::reader_thread::{BLOCKS, BlockChannels, ReadReport, Reader};
use crate::report::{AtomicFile, ReportWriter, Summary, SummaryOptions};
use crate::run::{self, OutcomeCounter, Run};
use crate::suggest::{self, Goal, Suggestion};
use crate::trace_file::FileReport;

/// The maximum number of input files. Each file that is read has separate buffers of half a
/// megabyte.
const MAX_FILES: usize = 256;

/// Replays the files and prints the report.
pub fn run(args: &ReplayArgs) -> Result<(), ReplayError> {
    check_args(args)?;
    let (mut runs, exact) = runs(args)?;
    if args.report.has_timeline() {
        runs = runs.into_iter().map(Run::keep_held).collect();
    }
    let sizes = args
        .files
        .iter()
        .map(|path| input::inspect(path).map_err(|error| explain_missing_json(args, error)));
    let total_bytes = sizes.sum::<Result<Option<u64>, _>>()?;
    let read: Vec<&Path> =
        args.files.iter().chain(&args.rules.config).map(PathBuf::as_path).collect();
    let report_writer = ReportWriter::create(&args.report, &read)?;
    let decisions = args.decisions.as_deref().map(|path| DecisionsFile::create(path, &read));
    let bytes_read = BytesRead::default();
    let mut replay = Replay {
        runs,
        exact,
        decisions: decisions.transpose()?,
        burst: burst_counter(args),
        events: 0,
        progress: Progress::new(total_bytes, bytes_read.clone()),
    };
    let key = match args.rules.config {
        Some(_) => KeySource::Attributes,
        None => KeySource::new(args.reading.key.as_ref()),
    };
    let parse_options = ParseOptions {
        key,
        fields: args.reading.fields.clone(),
        unit: args.reading.time_unit.unit(),
        zone: args.reading.zone.clone().unwrap_or_default(),
    };
    let reader = Reader {
        reading: &args.reading,
        parse_options: &parse_options,
        bytes_read: &bytes_read,
        late_after_us: late_after_us(&replay.runs),
    };
    let started = Instant::now();
    let report = replay.run(&reader, &args.files)?;
    let elapsed = started.elapsed();
    let suggestions = suggestions(args, &reader, &mut replay.progress, report.events())?;
    let Replay { mut runs, exact, decisions, burst, progress, .. } = replay;
    drop(progress);
    if report.events() == 0 {
        return Err(no_events(report));
    }
    runs.iter_mut().for_each(Run::finish);
    let to_stderr = decisions.as_ref().is_some_and(|decisions| is_dash(&decisions.path));
    if let Some(decisions) = decisions {
        decisions.finish()?;
    }
    let compared = runs.len() > 1 || exact.is_some();
    let options = SummaryOptions { elapsed, top: args.report.top, compared };
    let summary = Summary::of_replay(&report, &runs, options);
    let asked =
        args.rules.limits.first().map_or_else(Algorithm::default, |given| given.limit.algorithm());
    let summary = summary.with_suggestions(&suggestions).with_main(asked);
    let mut summary = summary.with_burst(burst.as_ref());
    let hint = args.suggest.and_then(|share| share.hint("--suggest"));
    summary.hints.extend(hint.into_iter().chain(args.headroom.hint("--headroom")));
    report_writer.print(&summary, to_stderr)
}

/// Adds that `--json` takes no file to the error about a missing file that looks like its output.
fn explain_missing_json(args: &ReplayArgs, error: ReplayError) -> ReplayError {
    match error {
        ReplayError::File { path, fault: FileFault::Missing }
            if args.report.json
                && args.files.len() > 1
                && path.extension().is_some_and(|extension| extension == "json") =>
        {
            FileFault::MissingJson(path.clone()).at(&path)
        }
        error => error,
    }
}

/// Returns the reason that no line of the input is an event.
fn no_events(report: ReadReport) -> ReplayError {
    let mistaken = report.files.iter().find_map(|file| {
        let fault = FileFault::OtherFormat { format: file.format?, looks_like: file.looks_like? };
        Some(fault.at(&file.path))
    });
    mistaken.unwrap_or_else(|| {
        let malformed = report.problems.malformed.count;
        let problems = report.problems;
        let mut problems = problems.damaged.first.into_iter().chain(problems.malformed.first);
        let first = problems.next();
        let names = first.as_ref().and_then(|problem| names_without(problem, &report.files));
        ReplayError::NoEvents { malformed, first, names: names.unwrap_or_default().into() }
    })
}

/// Returns the names of the fields of JSON lines, if the field that a problem names is not among
/// them.
fn names_without(problem: &Problem, files: &[FileReport]) -> Option<Vec<String>> {
    let ProblemKind::Malformed(BadLine::EmptyField { name, .. }, _) = &problem.what else {
        return None;
    };
    let names = &files.iter().find(|file| file.path == problem.path)?.json_names;
    (!names.contains(&name.to_string())).then(|| names.clone())
}

/// Returns [`Reader::late_after_us`] for these runs, which have the same windows.
fn late_after_us(runs: &[Run]) -> Option<u64> {
    runs.first().and_then(Run::shortest_limit).map(hints::late_after_us)
}

/// Reads one file with the default settings and passes its events to `take` in blocks.
pub fn read_blocks(
    path: &Path,
    late_after_us: Option<u64>,
    take: impl FnMut(&Block) -> Result<(), ReplayError>,
) -> Result<ReadReport, ReplayError> {
    input::inspect(path)?;
    let (reading, parse_options, bytes_read) =
        (ReadingArgs::default(), ParseOptions::default(), BytesRead::default());
    let reader = Reader {
        reading: &reading,
        parse_options: &parse_options,
        bytes_read: &bytes_read,
        late_after_us,
    };
    drive(&reader, &[path.to_path_buf()], take)
}

/// Replays one file under each set of limits in `plan` and returns the summary. The file is read
/// once.
pub fn replay_file(path: &Path, plan: Vec<Vec<Limit>>) -> Result<Summary, ReplayError> {
    let mut runs: Vec<Run> = plan.into_iter().map(Run::new).collect();
    let report = read_blocks(path, late_after_us(&runs), |block| {
        runs.iter_mut().try_for_each(|run| run.take(block))?;
        run::compare(block, &mut runs, None);
        Ok(())
    })?;
    let options =
        SummaryOptions { elapsed: Duration::ZERO, top: Some(0), compared: runs.len() > 1 };
    Ok(Summary::of_replay(&report, &runs, options))
}

/// Rejects combinations of arguments that cannot be replayed.
fn check_args(args: &ReplayArgs) -> Result<(), ReplayError> {
    if args.decisions.is_some() && args.rules.algorithm == Some(Algorithms::All) {
        return Err(ReplayError::DecisionsOfAll);
    }
    let stdin = args.files.iter().filter(|path| is_dash(path)).count();
    if stdin > 1 {
        return Err(ReplayError::StdinTwice);
    }
    if args.rules.config.is_some() && args.suggest.is_some() {
        return Err(ReplayError::SuggestOfConfig);
    }
    if args.suggest.is_some() && args.files.iter().any(|path| is_read_once(path)) {
        return Err(ReplayError::SuggestOfStdin);
    }
    if let (Some(html), Some(decisions)) = (&args.report.html, &args.decisions)
        && is_same_output(html, decisions)
    {
        return Err(ReplayError::OutputTwice { path: html.clone() });
    }
    if args.files.len() > MAX_FILES {
        return Err(ReplayError::TooManyFiles { most: MAX_FILES });
    }
    for (index, path) in args.files.iter().enumerate() {
        let before = &args.files[..index];
        if before.contains(path) || before.iter().any(|other| is_same_file(other, path)) {
            return Err(ReplayError::FileTwice { path: path.clone() });
        }
    }
    Ok(())
}

/// Returns whether a path can be read only once: standard input, a pipe or another stream.
fn is_read_once(path: &Path) -> bool {
    let is_stream = |kind: std::fs::Metadata| !kind.is_file() && !kind.is_dir();
    is_dash(path) || path.metadata().is_ok_and(is_stream)
}

/// Returns the runs to decide, and the exact log that a single inexact run is compared with on the
/// HTML page.
fn runs(args: &ReplayArgs) -> Result<(Vec<Run>, Option<Run>), ReplayError> {
    let log = Some(Algorithms::One(Algorithm::SlidingLog));
    let with_exact = args.report.html.is_some() && args.rules.algorithm != Some(Algorithms::All);
    if let Some(path) = &args.rules.config {
        let config = Config::load(path).map_err(|errors| ReplayError::Config(Box::new(errors)))?;
        let runs = run::runs_of_config(&config, args.rules.algorithm)?;
        // Policies without a `sliding-log` form, because two of their limits would then share a
        // state, are shown without the exact log.
        let exact = run::runs_of_config(&config, log).ok().and_then(|mut runs| runs.pop());
        return Ok((runs, exact.filter(|_| with_exact)));
    }
    let plan = run::limits_per_run(&args.rules.limits(), args.rules.algorithm)?;
    let exact = with_exact.then(|| run::exact_log(&plan)).flatten().map(Run::new);
    Ok((plan.into_iter().map(Run::new).collect(), exact))
}

/// Returns the counter of the largest burst, which only the page shows. It counts by one key and
/// one window, so it does not apply to policies.
fn burst_counter(args: &ReplayArgs) -> Option<LargestBurst> {
    let given = args.rules.limits.first()?;
    args.report.html.is_some().then(|| LargestBurst::new(&given.limit))
}

fn suggestions(
    args: &ReplayArgs,
    reader: &Reader<'_>,
    progress: &mut Progress,
    events: u64,
) -> Result<Vec<Suggestion>, ReplayError> {
    let Some(share) = args.suggest.filter(|_| events > 0) else { return Ok(Vec::new()) };
    let goal = Goal { share, headroom: args.headroom };
    let plan = run::limits_per_run(&args.rules.limits(), args.rules.algorithm)?;
    // Each run has all limits in order. Only a limit that keeps its algorithm keeps its burst.
    let replayed = |(limit, given): (Limit, &ParsedLimit)| {
        let is_kept = limit.algorithm() == given.limit.algorithm();
        ParsedLimit { limit, burst: given.burst.filter(|_| is_kept) }
    };
    let runs = plan.into_iter().map(|limits| limits.into_iter().zip(&args.rules.limits));
    let limits: Vec<_> = runs.flatten().map(replayed).collect();
    suggest::suggest(&limits, goal, |pass| {
        progress.restart();
        let mut done = 0;
        drive(reader, &args.files, |block| {
            done += block.rows.len() as u64;
            progress.show(done);
            pass.take(block)
        })
        .map(drop)
    })
}

/// Reads the files on a separate thread and passes blocks of their events to `take` on this one.
fn drive(
    reader: &Reader<'_>,
    files: &[PathBuf],
    mut take: impl FnMut(&Block) -> Result<(), ReplayError>,
) -> Result<ReadReport, ReplayError> {
    let (ring, full, empty) = ring();
    thread::scope(|scope| {
        let reading = scope.spawn(|| reader.run(files, ring));
        let mut taken = Ok(());
        for mut block in full {
            taken = take(&block);
            if taken.is_err() {
                break;
            }
            block.clear();
            // The reader needs no more blocks once it has read everything.
            let _ = empty.send(block);
        }
        drop(empty);
        taken.and(join(reading.join()))
    })
}

/// Creates the blocks that circulate between the threads. Returns the reader's ends of the
/// channels, and the ends for the other threads.
fn ring() -> (BlockChannels, Receiver<Block>, Sender<Block>) {
    let (full_in, full) = sync_channel(BLOCKS);
    let (empty, empty_out) = channel();
    for _ in 0..BLOCKS {
        // The receiver exists: it is `empty_out`.
        let _ = empty.send(Block::default());
    }
    (BlockChannels { full: full_in, empty: empty_out }, full, empty)
}

fn join<T>(result: thread::Result<T>) -> T {
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The deciding and counting side of a replay.
struct Replay {
    runs: Vec<Run>,
    /// The exact log that a single run is compared with. Several runs are compared with the first
    /// of them.
    exact: Option<Run>,
    decisions: Option<DecisionsFile>,
    burst: Option<LargestBurst>,
    events: u64,
    progress: Progress,
}

/// A decided block, with the outcomes of every run.
type DecidedBlock = (Block, Vec<Vec<EventOutcome>>);

impl Replay {
    /// Reads on one thread, decides on another and counts on this one.
    fn run(&mut self, reader: &Reader<'_>, files: &[PathBuf]) -> Result<ReadReport, ReplayError> {
        let (ring, full, empty) = ring();
        let (decided_in, decided) = sync_channel::<DecidedBlock>(BLOCKS);
        let (spare, spare_out) = channel::<Vec<Vec<EventOutcome>>>();
        let has_exact = self.exact.is_some();
        let all = self.exact.iter_mut().chain(&mut self.runs);
        let (mut deciders, mut counts): (Vec<_>, Vec<_>) =
            all.map(|run| (&mut run.decider, &mut run.counts)).unzip();
        let mut consumer = BlockConsumer {
            has_exact,
            decisions: self.decisions.as_mut(),
            burst: self.burst.as_mut(),
            events: &mut self.events,
            progress: &mut self.progress,
        };
        thread::scope(|scope| {
            let reading = scope.spawn(|| reader.run(files, ring));
            let deciding = scope.spawn(move || {
                for block in full {
                    let mut answers = spare_out.try_recv().unwrap_or_default();
                    answers.resize_with(deciders.len(), Vec::new);
                    for (decider, answers) in deciders.iter_mut().zip(&mut answers) {
                        decider.decide(&block, answers)?;
                    }
                    // The counting thread has stopped. It reports the reason itself.
                    if decided_in.send((block, answers)).is_err() {
                        break;
                    }
                }
                Ok(())
            });
            let mut taken = Ok(());
            for (mut block, mut answers) in decided {
                taken = consumer.take(&block, &mut answers, &mut counts);
                if taken.is_err() {
                    break;
                }
                block.clear();
                // The reader needs no more blocks once it has read everything.
                let _ = empty.send(block);
                let _ = spare.send(answers);
            }
            drop((empty, spare));
            let decided: Result<(), ReplayError> = join(deciding.join());
            taken.and(decided).and(join(reading.join()))
        })
    }
}

/// Counts decided blocks, writes their decisions and shows the progress.
struct BlockConsumer<'r> {
    has_exact: bool,
    decisions: Option<&'r mut DecisionsFile>,
    burst: Option<&'r mut LargestBurst>,
    events: &'r mut u64,
    progress: &'r mut Progress,
}

impl BlockConsumer<'_> {
    /// Counts a block for every run. With `has_exact`, the first run is the exact log.
    fn take(
        &mut self,
        block: &Block,
        answers: &mut [Vec<EventOutcome>],
        counts: &mut [&mut OutcomeCounter],
    ) -> Result<(), ReplayError> {
        for (counts, answers) in counts.iter_mut().zip(answers.iter_mut()) {
            counts.take(block, answers);
        }
        if let Some(burst) = &mut self.burst {
            burst.take(block);
        }
        let Some((exact, others)) = answers.split_first() else { return Ok(()) };
        for (counts, answers) in counts[1..].iter_mut().zip(others) {
            counts.compare(block, answers, exact);
        }
        if let Some(decisions) = &mut self.decisions {
            decisions.write(others.first().filter(|_| self.has_exact).unwrap_or(exact))?;
        }
        *self.events += block.rows.len() as u64;
        self.progress.show(*self.events);
        Ok(())
    }
}

/// The output of `--decisions`.
struct DecisionsFile {
    path: PathBuf,
    /// `None` for standard output.
    to: Option<AtomicFile>,
    text: Vec<u8>,
}

impl DecisionsFile {
    fn create(path: &Path, inputs: &[&Path]) -> Result<Self, ReplayError> {
        let path = path.to_path_buf();
        if is_dash(&path) {
            return Ok(DecisionsFile { path, to: None, text: Vec::new() });
        }
        if inputs.iter().any(|input| is_same_file(input, &path)) {
            return Err(ReplayError::OverInput { option: "--decisions", path });
        }
        match AtomicFile::create(&path) {
            Ok(file) => Ok(DecisionsFile { path, to: Some(file), text: Vec::new() }),
            Err(error) => Err(ReplayError::Decisions { path, error }),
        }
    }

    /// Writes the decisions of one block. Blocks are large enough that no further buffering is
    /// needed.
    fn write(&mut self, answers: &[EventOutcome]) -> Result<(), ReplayError> {
        self.text.clear();
        self.text.extend(answers.iter().map(|answer| b'0' + u8::from(answer.allowed)));
        let written = match &mut self.to {
            Some(file) => file.write_all(&self.text),
            None => io::stdout().write_all(&self.text),
        };
        written.map_err(|error| ReplayError::Decisions { path: self.path.clone(), error })
    }

    fn finish(self) -> Result<(), ReplayError> {
        let finished = match self.to {
            Some(file) => file.finish(),
            None => io::stdout().flush(),
        };
        finished.map_err(|error| ReplayError::Decisions { path: self.path, error })
    }
}
