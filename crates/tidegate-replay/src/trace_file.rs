//! Reads the events of one file.

use std::hash::{BuildHasher, Hasher};
use std::iter;
use std::path::{Path, PathBuf};

use foldhash::fast::FixedState;
use tidegate::unstable::policy::Template;

use crate::args::FormatChoice;
use crate::block::Block;
use crate::error::{FileFault, ReplayError};
use crate::format::{
    BadLine, Event, Format, KeySource, ParseOptions, Parser, ParserError, Unit, broken_json,
};
use crate::input::{Compression, Line, Lines};
use crate::problems::{Problem, ProblemKind, ProblemLog};
use crate::reader_thread::Reader;
use crate::report::escape_key;

/// The number of lines from which the format is detected, so that a few malformed lines at the
/// start do not matter.
const DETECT_LINES: usize = 16;

/// The report on one file.
#[derive(Debug)]
pub struct FileReport {
    pub path: PathBuf,
    /// `None` if the file is damaged before its first complete line.
    pub format: Option<Format>,
    /// The format that the first lines have, if `--format` names another.
    pub looks_like: Option<Format>,
    pub compression: Option<Compression>,
    /// The unit of numeric times, and whether it was guessed.
    pub unit: Option<(Unit, bool)>,
    pub lines: u64,
    pub events: u64,
    /// The number of times without a zone, if `--zone` was not given.
    pub zoneless: u64,
    /// The template of keys, if they come from one.
    pub template: Option<Template>,
    /// The number of requests whose key lacks a part of the template. Without a template, those
    /// whose key is `-`, which logs write for a missing value.
    pub incomplete: u64,
    /// Whether any time has a fraction of a second.
    pub has_fractions: bool,
    /// Whether `--field` was given, although it does not apply to the format of the file.
    pub field_unused: bool,
    /// Whether `--time-unit` was given, although no time is a number.
    pub unit_unused: bool,
    /// Whether it is csv without the names of its columns.
    pub unnamed_columns: bool,
    /// Whether the first field of log lines is taken as the client, although it may not be it.
    pub host_guessed: bool,
    /// The names of the fields that the first JSON lines have; empty for other formats.
    pub json_names: Vec<String>,
    /// The earliest and the latest time.
    pub span: Option<(u64, u64)>,
    /// The number of events that are late, see [`Reader::late_after_us`].
    pub late: u64,
}

/// Reads one file into blocks.
pub struct TraceFile {
    lines: Lines,
    parser: Option<Parser>,
    skip_duplicates: bool,
    is_zone_given: bool,
    /// For a header in the middle of the file.
    options: ParseOptions,
    may_be_header: bool,
    previous_us: u64,
    previous_hash: u64,
    late_after_us: Option<u64>,
    report: FileReport,
}

impl TraceFile {
    pub fn open(path: &Path, reader: &Reader<'_>) -> Result<Self, ReplayError> {
        let Reader { reading, parse_options: options, bytes_read, late_after_us } = *reader;
        let mut lines = Lines::open(path, bytes_read)?;
        let detected = parser(path, &mut lines, reading.format, options)?;
        let (format, looks_like, parser) = match detected {
            Some((format, looks_like, parser)) => (Some(format), looks_like, Some(parser)),
            None => (None, None, None),
        };
        let is_log = matches!(format, Some(Format::Clf | Format::Combined));
        let report = FileReport {
            path: path.to_path_buf(),
            format,
            looks_like,
            compression: lines.compression(),
            unit: None,
            lines: 0,
            events: 0,
            zoneless: 0,
            template: match &options.key {
                KeySource::Template(maker) => maker.template().cloned(),
                _ => None,
            },
            incomplete: 0,
            has_fractions: false,
            field_unused: is_log && !options.fields.is_empty(),
            unit_unused: is_log && options.unit.is_some(),
            unnamed_columns: format == Some(Format::Csv),
            host_guessed: false,
            json_names: Vec::new(),
            span: None,
            late: 0,
        };
        Ok(TraceFile {
            lines,
            parser,
            skip_duplicates: reading.skip_duplicates,
            is_zone_given: reading.zone.is_some(),
            options: options.clone(),
            may_be_header: true,
            previous_us: 0,
            previous_hash: 0,
            late_after_us,
            report,
        })
    }

    /// Fills a block, or part of it at the end of the file. Returns whether there may be more
    /// events.
    pub fn fill(
        &mut self,
        block: &mut Block,
        problems: &mut ProblemLog,
    ) -> Result<bool, ReplayError> {
        let Some(parser) = &mut self.parser else { return self.end(problems) };
        while !block.is_full() {
            let Some(line) = self.lines.next()? else { return self.end(problems) };
            self.report.lines += 1;
            let text = match line {
                Line::Text(range) => self.lines.text(range),
                Line::TooLong => {
                    let what = ProblemKind::Malformed(BadLine::TooLong, None);
                    problems.add(problem_at(&self.report, what))?;
                    continue;
                }
            };
            if text.is_empty() {
                continue;
            }
            let is_first = std::mem::replace(&mut self.may_be_header, false);
            match parser.take_header(text, is_first, &self.options) {
                Ok(false) => {}
                Ok(true) => {
                    self.report.unnamed_columns = false;
                    continue;
                }
                Err(error) => {
                    let format = self.report.format.unwrap_or(Format::W3c);
                    return Err(FileFault::new(format, error).at(&self.report.path));
                }
            }
            let hash = hash(text);
            if std::mem::replace(&mut self.previous_hash, hash) == hash {
                problems.add(problem_at(&self.report, ProblemKind::Duplicate))?;
                if self.skip_duplicates {
                    continue;
                }
            }
            match parser.parse(text) {
                Ok(event) => {
                    block.push(&event);
                    self.report.count(&event, self.late_after_us);
                    let time_us = event.time_us;
                    if time_us < self.previous_us {
                        let by_us = self.previous_us - time_us;
                        problems
                            .add(problem_at(&self.report, ProblemKind::SteppedBack { by_us }))?;
                    }
                    self.previous_us = time_us;
                }
                Err(why) => {
                    let other =
                        problems.shows_malformed().then(|| other_format(text, &self.report));
                    problems.add(problem_at(
                        &self.report,
                        ProblemKind::Malformed(why, other.flatten()),
                    ))?;
                }
            }
        }
        Ok(true)
    }

    /// Records damage after the last line.
    fn end(&mut self, problems: &mut ProblemLog) -> Result<bool, ReplayError> {
        if let (Some(damage), Some(compression)) = (self.lines.damage(), self.lines.compression()) {
            problems.add(problem_at(&self.report, ProblemKind::Damaged(damage, compression)))?;
        }
        Ok(false)
    }

    /// Returns the report on the file.
    pub fn into_report(self) -> FileReport {
        let parser = self.parser.as_ref();
        FileReport {
            unit: parser.and_then(Parser::unit),
            zoneless: parser.filter(|_| !self.is_zone_given).map_or(0, Parser::zoneless),
            host_guessed: parser.is_some_and(Parser::is_host_guessed),
            unit_unused: self.report.unit_unused && !parser.is_some_and(Parser::has_numbers),
            json_names: self.parser.map_or_else(Vec::new, Parser::into_json_names),
            ..self.report
        }
    }
}

impl FileReport {
    #[inline]
    fn count(&mut self, event: &Event<'_>, late_after_us: Option<u64>) {
        let time_us = event.time_us;
        self.events += 1;
        // A missing part of a key is a NUL, which no field of a log contains.
        let is_incomplete = match &self.template {
            Some(_) => event.key.contains(&0),
            None => &*event.key == b"-",
        };
        self.incomplete += u64::from(is_incomplete);
        self.has_fractions |= !time_us.is_multiple_of(1_000_000);
        if let (Some((_, latest_us)), Some(after_us)) = (self.span, late_after_us) {
            self.late += u64::from(latest_us.saturating_sub(time_us) > after_us);
        }
        widen(&mut self.span, time_us);
    }
}

fn problem_at(report: &FileReport, what: ProblemKind) -> Problem {
    Problem { path: report.path.clone(), line: report.lines, what }
}

/// Returns the format of a line, if it differs from the format of the file.
fn other_format(line: &[u8], report: &FileReport) -> Option<Format> {
    // In the middle of a file, a row of names does not indicate a format.
    let found =
        Format::detect([line].into_iter(), None).filter(|&found| Some(found) != report.format)?;
    let mut parser = Parser::new(found, &ParseOptions::default(), [line].into_iter()).ok()?;
    parser.parse(line).is_ok().then_some(found)
}

#[inline]
fn widen(span: &mut Option<(u64, u64)>, time_us: u64) {
    *span = Some(match *span {
        Some((first, last)) => (first.min(time_us), last.max(time_us)),
        None => (time_us, time_us),
    });
}

/// Hashes a line. The result is never 0, which stands for no line.
#[inline]
fn hash(line: &[u8]) -> u64 {
    let mut hasher = FixedState::default().build_hasher();
    hasher.write(line);
    hasher.finish() | 1
}

/// Detects the format and creates a parser for it. Returns `None` if the file is damaged before its
/// first complete line. The second format is that of the first lines, if `choice` is another.
fn parser(
    path: &Path,
    lines: &mut Lines,
    choice: FormatChoice,
    options: &ParseOptions,
) -> Result<Option<(Format, Option<Format>, Parser)>, ReplayError> {
    lines.peek(DETECT_LINES)?;
    let (damaged, begins) = (lines.damage().is_some(), lines.overlong());
    let first = lines.peek(DETECT_LINES)?;
    // A first line that does not fit the buffer is malformed. It is not the end of the file.
    let first_line = match (first.first(), &begins) {
        (Some(line), _) => line,
        (None, Some(begins)) => &begins[..],
        (None, None) if damaged => return Ok(None),
        (None, None) => return Err(FileFault::Empty.at(path)),
    };
    if matches!(choice, FormatChoice::Auto | FormatChoice::Jsonl) && begins_array(first_line) {
        return Err(FileFault::JsonArray.at(path));
    }
    let detected = Format::detect(first.iter().copied(), options.unit);
    let format = match choice {
        FormatChoice::Csv => Format::Csv,
        FormatChoice::Jsonl => Format::Jsonl,
        FormatChoice::Clf => Format::Clf,
        FormatChoice::Combined => Format::Combined,
        FormatChoice::Envoy => Format::Envoy,
        FormatChoice::Alb => Format::Alb,
        FormatChoice::W3c => Format::W3c,
        FormatChoice::Auto => detected.ok_or_else(|| {
            let is_binary = iter::once(&first_line).chain(&first).any(|line| line.contains(&0));
            let fault = if is_binary { FileFault::Binary } else { unknown_format(first_line) };
            fault.at(path)
        })?,
    };
    let looks_like = detected.filter(|&detected| detected != format);
    let broken = || first.iter().find_map(|line| broken_json(line));
    match Parser::new(format, options, first.iter().copied()) {
        Ok(parser) => Ok(Some((format, looks_like, parser))),
        Err(ParserError::Time(names))
            if names.is_empty()
                && let Some(why) = broken() =>
        {
            Err(FileFault::BrokenJson(why).at(path))
        }
        Err(error) => Err(match looks_like {
            Some(looks_like) => FileFault::OtherFormat { format, looks_like },
            None => FileFault::new(format, error),
        }
        .at(path)),
    }
}

/// Returns whether a file with this first line is a JSON array of objects.
fn begins_array(first_line: &[u8]) -> bool {
    let inside = first_line.trim_ascii().strip_prefix(b"[").map(<[u8]>::trim_ascii_start);
    inside.is_some_and(|inside| inside.is_empty() || inside.starts_with(b"{"))
}

fn unknown_format(first_line: &[u8]) -> FileFault {
    match broken_json(first_line) {
        Some(why) => FileFault::BrokenJson(why),
        None => FileFault::UnknownFormat {
            first_line: escape_key(first_line),
            may_be_csv: first_line.contains(&b','),
        },
    }
}
