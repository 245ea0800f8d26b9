//! Files to blocks of events, on a thread of its own.
//!
//! Parsing costs about as much as deciding, so one thread parses ahead of the
//! other. They hand each other blocks, a bounded number of them that go round:
//! no event allocates, and a slow engine stops a fast reader. Keys are numbered
//! here, so that whoever counts per key can use an array.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender};

use super::error::{FileFault, ReplayError};
use super::format::{BadLine, Event, Format};
use super::input::{BytesRead, Damage, Line, Lines};
use super::keys::Keys;
use crate::cli::{FormatChoice, KeyField, ReplayArgs};

/// Events in a block: enough to make handing over cheap, few enough to stay in the cache.
const BLOCK_EVENTS: usize = 4096;

/// Key bytes in a block, so that long keys end it early.
const BLOCK_KEY_BYTES: usize = 256 * 1024;

/// Blocks that go round besides the one being filled: one being decided, the others waiting.
pub const BLOCKS: usize = 4;

/// Lines looked at to tell a format: a few bad ones at the start do not matter.
const DETECT_LINES: usize = 16;

/// Problems remembered with their place; the rest are only counted.
const PROBLEMS_SHOWN: usize = 5;

/// Events in file order.
#[derive(Debug, Default)]
pub struct Block {
    pub rows: Vec<Row>,
    /// The keys, one after another; each ends where its row says.
    keys: Vec<u8>,
}

/// One event of a block.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub time_us: u64,
    pub cost: i64,
    /// The key's number: keys are numbered from 0 in the order they appear.
    pub key: u32,
    key_end: u32,
}

impl Row {
    #[cfg(test)]
    pub fn new(time_us: u64, cost: i64, key: u32) -> Self {
        Row { time_us, cost, key, key_end: 0 }
    }
}

impl Block {
    /// Events of cost 1, each a time and the number of a key, which is also its name.
    #[cfg(test)]
    pub fn of(events: &[(u64, u32)]) -> Self {
        let mut block = Block::default();
        for &(time_us, key) in events {
            block.push(&Event { time_us, key: key.to_le_bytes().to_vec().into(), cost: 1 });
            block.rows.last_mut().expect("just pushed").key = key;
        }
        block
    }

    /// Takes in an event, whose key has no number yet.
    fn push(&mut self, event: &Event<'_>) {
        self.keys.extend_from_slice(&event.key);
        let key_end = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        self.rows.push(Row { time_us: event.time_us, cost: event.cost, key: 0, key_end });
    }

    fn is_full(&self) -> bool {
        self.rows.len() >= BLOCK_EVENTS || self.keys.len() >= BLOCK_KEY_BYTES
    }

    pub fn clear(&mut self) {
        self.rows.clear();
        self.keys.clear();
    }

    /// The rows with their keys.
    pub fn events(&self) -> impl Iterator<Item = (&Row, &[u8])> {
        let mut start = 0;
        self.rows.iter().map(move |row| {
            let end = row.key_end as usize;
            let key = &self.keys[start..end];
            start = end;
            (row, key)
        })
    }
}

/// Something wrong at a line of a file.
#[derive(Debug)]
pub struct Problem {
    pub path: PathBuf,
    pub line: u64,
    pub what: What,
}

#[derive(Debug)]
pub enum What {
    Malformed(BadLine),
    /// The time is this much before the line before.
    SteppedBack {
        by_us: u64,
    },
    /// The file ends after this line, before its end.
    Damaged(Damage),
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Malformed(why) => write!(f, "{why}"),
            What::SteppedBack { by_us } => {
                write!(
                    f,
                    "{}.{:06} s before the event before",
                    by_us / 1_000_000,
                    by_us % 1_000_000
                )
            }
            What::Damaged(Damage::Truncated) => {
                f.write_str("the gzipped file is truncated: it was read up to here")
            }
            What::Damaged(Damage::Corrupt) => {
                f.write_str("the gzipped file is corrupt: it was read up to here")
            }
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.what)
    }
}

/// How often something was wrong, and where first.
#[derive(Debug, Default)]
pub struct Problems {
    pub count: u64,
    pub first: Vec<Problem>,
}

impl Problems {
    fn add(&mut self, problem: Problem) {
        self.count += 1;
        if self.first.len() < PROBLEMS_SHOWN {
            self.first.push(problem);
        }
    }
}

/// What was read of one file.
#[derive(Debug)]
pub struct FileReport {
    pub path: PathBuf,
    /// None where damage left no line to tell it by.
    pub format: Option<Format>,
    pub gzip: bool,
    pub lines: u64,
    pub events: u64,
}

/// What was read of all files.
#[derive(Debug, Default)]
pub struct Report {
    pub files: Vec<FileReport>,
    pub malformed: Problems,
    pub out_of_order: Problems,
    pub damaged: Problems,
    pub keys: u64,
    /// The earliest and the latest time.
    pub span: Option<(u64, u64)>,
}

impl Report {
    pub fn events(&self) -> u64 {
        self.files.iter().map(|file| file.events).sum()
    }

    pub fn lines(&self) -> u64 {
        self.files.iter().map(|file| file.lines).sum()
    }
}

/// The two ends a feed holds of the ring of blocks.
pub struct Ring {
    pub full: SyncSender<Block>,
    pub empty: Receiver<Block>,
}

/// Whoever takes the blocks has gone; it says why itself.
struct Gone;

/// Reads files into blocks.
pub struct Feed {
    ring: Ring,
    block: Block,
    keys: Keys,
    /// The hashes of the block's keys.
    hashes: Vec<u64>,
    format: FormatChoice,
    key: KeyField,
    strict: bool,
    previous_us: u64,
    report: Report,
}

impl Feed {
    pub fn new(args: &ReplayArgs, ring: Ring) -> Self {
        Feed {
            ring,
            block: Block::default(),
            keys: Keys::new(),
            hashes: Vec::with_capacity(BLOCK_EVENTS),
            format: args.format,
            key: args.key,
            strict: args.strict,
            previous_us: 0,
            report: Report::default(),
        }
    }

    /// Reads the files one after another.
    pub fn run(mut self, files: &[PathBuf], bytes_read: &BytesRead) -> Result<Report, ReplayError> {
        for path in files {
            let mut lines = Lines::open(path, bytes_read)?;
            let format = self.format_of(path, &mut lines)?;
            let gzip = lines.is_gzip();
            let file = FileReport { path: path.clone(), format, gzip, lines: 0, events: 0 };
            self.report.files.push(file);
            if let Some(format) = format
                && let Err(stop) = self.read(path, format, &mut lines)
            {
                return match stop {
                    Stop::Error(error) => Err(error),
                    Stop::Gone(Gone) => Ok(self.report),
                };
            }
            if let Some(damage) = lines.damage() {
                let line = self.report.files.last().map_or(0, |file| file.lines);
                let path = path.clone();
                self.note(Problem { path, line, what: What::Damaged(damage) })?;
            }
        }
        // If the taker has gone, the report is of no use to it.
        let _ = self.hand_over();
        self.report.keys = self.keys.count();
        Ok(self.report)
    }

    fn format_of(&self, path: &Path, lines: &mut Lines) -> Result<Option<Format>, ReplayError> {
        lines.peek(DETECT_LINES)?;
        let (damaged, begins) = (lines.damage().is_some(), lines.overlong());
        let first = lines.peek(DETECT_LINES)?;
        // A first line that does not even fit the buffer is malformed, not the end.
        let first_line = match (first.first(), &begins) {
            (Some(line), _) => line,
            (None, Some(begins)) => &begins[..],
            (None, None) if damaged => return Ok(None),
            (None, None) => return Err(FileFault::Empty.of(path)),
        };
        let format = match self.format {
            FormatChoice::Csv => Format::Csv,
            FormatChoice::Jsonl => Format::Jsonl,
            FormatChoice::Clf => Format::Clf,
            FormatChoice::Combined => Format::Combined,
            FormatChoice::Auto => Format::detect(first.iter().copied()).ok_or_else(|| {
                FileFault::UnknownFormat { first_line: shown(first_line) }.of(path)
            })?,
        };
        if format.has(self.key) {
            Ok(Some(format))
        } else {
            Err(FileFault::NoSuchKey { format, key: self.key }.of(path))
        }
    }

    fn read(&mut self, path: &Path, format: Format, lines: &mut Lines) -> Result<(), Stop> {
        let mut line_number = 0;
        let mut events = 0;
        let mut may_be_header = true;
        let place = |line, what| Problem { path: path.to_path_buf(), line, what };
        while let Some(line) = lines.next()? {
            line_number += 1;
            let parsed = match line {
                Line::Text(range) if range.is_empty() => continue,
                Line::Text(range) => {
                    let text = lines.text(range);
                    if may_be_header {
                        may_be_header = text.is_empty();
                        if may_be_header || format.is_header(text) {
                            continue;
                        }
                    } else if text.is_empty() {
                        continue;
                    }
                    format.parse(text, self.key)
                }
                Line::TooLong => Err(BadLine::TooLong),
            };
            match parsed {
                Ok(event) => {
                    events += 1;
                    if let Some(what) = self.accept(&event)? {
                        self.note(place(line_number, what))?;
                    }
                }
                Err(why) => self.note(place(line_number, What::Malformed(why)))?,
            }
        }
        if let Some(file) = self.report.files.last_mut() {
            file.lines = line_number;
            file.events = events;
        }
        Ok(())
    }

    /// Takes an event in, and says what is odd about it.
    #[inline]
    fn accept(&mut self, event: &Event<'_>) -> Result<Option<What>, Stop> {
        self.hashes.push(self.keys.hash(&event.key));
        self.block.push(event);
        if self.block.is_full() {
            self.hand_over()?;
        }
        let time_us = event.time_us;
        let previous_us = std::mem::replace(&mut self.previous_us, time_us);
        self.report.span = Some(match self.report.span {
            Some((first, last)) => (first.min(time_us), last.max(time_us)),
            None => (time_us, time_us),
        });
        Ok((time_us < previous_us).then(|| What::SteppedBack { by_us: previous_us - time_us }))
    }

    /// Counts a problem, or stops at it.
    fn note(&mut self, problem: Problem) -> Result<(), ReplayError> {
        if self.strict {
            return Err(ReplayError::Strict(problem));
        }
        match problem.what {
            What::Malformed(_) => &mut self.report.malformed,
            What::SteppedBack { .. } => &mut self.report.out_of_order,
            What::Damaged(_) => &mut self.report.damaged,
        }
        .add(problem);
        Ok(())
    }

    fn hand_over(&mut self) -> Result<(), Gone> {
        if self.block.rows.is_empty() {
            return Ok(());
        }
        let rows = &mut self.block.rows;
        self.keys.number(&self.hashes, |at, number| rows[at].key = number);
        self.hashes.clear();
        let next = self.ring.empty.recv().map_err(|_| Gone)?;
        let full = std::mem::replace(&mut self.block, next);
        self.ring.full.send(full).map_err(|_| Gone)
    }
}

/// Why reading stops before the end.
enum Stop {
    Error(ReplayError),
    Gone(Gone),
}

impl From<ReplayError> for Stop {
    fn from(error: ReplayError) -> Self {
        Stop::Error(error)
    }
}

impl From<Gone> for Stop {
    fn from(gone: Gone) -> Self {
        Stop::Gone(gone)
    }
}

/// The start of a line as an error may repeat it: short, and nothing that moves the cursor.
fn shown(line: &[u8]) -> String {
    const SHOWN_CHARS: usize = 60;
    let text = String::from_utf8_lossy(&line[..line.len().min(4 * SHOWN_CHARS)]);
    let printable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(SHOWN_CHARS).map(printable).collect()
}
