//! Reads files into blocks of events, on a separate thread.
//!
//! Parsing costs about as much as deciding, so one thread parses ahead of the other. The threads
//! exchange a bounded number of blocks, which are reused: no event allocates, and a slow engine
//! stops a fast reader. Keys are numbered here, so that counts per key can be arrays.
//!
//! Several files are merged by time: of the next events of all files, the earliest comes first.
//! Among equal times the file that was named first wins. The order within a file does not change.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender};

use crate::args::ReadingArgs;
use crate::block::{BLOCK_EVENTS, Block};
use crate::error::ReplayError;
use crate::format::{KeySource, ParseOptions};
use crate::input::BytesRead;
use crate::keys::KeyNumbers;
use crate::problems::ProblemLog;
use crate::trace_file::{FileReport, TraceFile};

/// The number of blocks in circulation besides the one being filled: one is being decided, one
/// counted, and the others wait. On a busy machine a thread that is scheduled late then still finds
/// work.
pub const BLOCKS: usize = 16;

/// The report on all files that were read.
#[derive(Debug, Default)]
pub struct ReadReport {
    pub files: Vec<FileReport>,
    pub problems: ProblemLog,
    pub keys: u64,
    /// The number of events of each key, by key number.
    pub events_of: Vec<u32>,
}

impl ReadReport {
    pub fn events(&self) -> u64 {
        self.files.iter().map(|file| file.events).sum()
    }

    pub fn lines(&self) -> u64 {
        self.files.iter().map(|file| file.lines).sum()
    }

    /// Returns the earliest and the latest time.
    pub fn span(&self) -> Option<(u64, u64)> {
        let spans = || self.files.iter().filter_map(|file| file.span);
        Some((spans().map(|span| span.0).min()?, spans().map(|span| span.1).max()?))
    }
}

/// The reader's ends of the channels in which blocks circulate.
pub struct BlockChannels {
    pub full: SyncSender<Block>,
    pub empty: Receiver<Block>,
}

/// The receiver of blocks has stopped. The receiver reports the reason itself.
struct ReceiverGone;

/// Reads files into blocks.
pub struct Reader<'a> {
    pub reading: &'a ReadingArgs,
    pub parse_options: &'a ParseOptions,
    pub bytes_read: &'a BytesRead,
    /// How much earlier than the latest event before it in its file an event must be to count as
    /// late. `None` if no limit depends on time.
    pub late_after_us: Option<u64>,
}

impl Reader<'_> {
    /// Reads the files to their ends, or until the receiver of blocks stops.
    pub fn run(&self, files: &[PathBuf], ring: BlockChannels) -> Result<ReadReport, ReplayError> {
        let open = |path: &PathBuf| TraceFile::open(path, self);
        let mut sources = files.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let mut problems = ProblemLog::new(self.reading.strict);
        let mut sender =
            BlockSender::new(ring, matches!(self.parse_options.key, KeySource::Attributes));
        let stopped = match &mut sources[..] {
            [only] => read_one(only, &mut sender, &mut problems),
            several => merge_by_time(several, &mut sender, &mut problems),
        };
        match stopped {
            // Without a receiver the report is not used.
            Ok(()) | Err(StopReason::ReceiverGone(ReceiverGone)) => {}
            Err(StopReason::Error(error)) => return Err(error),
        }
        let keys = sender.keys.count();
        let files = sources.into_iter().map(TraceFile::into_report).collect();
        Ok(ReadReport { files, problems, keys, events_of: sender.keys.events() })
    }
}

fn read_one(
    source: &mut TraceFile,
    sender: &mut BlockSender,
    problems: &mut ProblemLog,
) -> Result<(), StopReason> {
    loop {
        let more = source.fill(&mut sender.block, problems)?;
        sender.send()?;
        if !more {
            return Ok(());
        }
    }
}

/// A file with a block of events that were read ahead.
struct BufferedFile<'s> {
    source: &'s mut TraceFile,
    block: Block,
    next: usize,
    more: bool,
}

impl BufferedFile<'_> {
    /// Returns the time of the next event, or `None` at the end.
    fn time_us(&self) -> Option<u64> {
        self.block.rows.get(self.next).map(|row| row.time_us)
    }

    fn refill(&mut self, problems: &mut ProblemLog) -> Result<(), ReplayError> {
        while self.next == self.block.rows.len() && self.more {
            self.block.clear();
            self.next = 0;
            self.more = self.source.fill(&mut self.block, problems)?;
        }
        Ok(())
    }
}

fn merge_by_time(
    sources: &mut [TraceFile],
    sender: &mut BlockSender,
    problems: &mut ProblemLog,
) -> Result<(), StopReason> {
    let ahead = |source| BufferedFile { source, block: Block::default(), next: 0, more: true };
    let mut ahead: Vec<BufferedFile<'_>> = sources.iter_mut().map(ahead).collect();
    for file in &mut ahead {
        file.refill(problems)?;
    }
    loop {
        let next_events =
            ahead.iter().enumerate().filter_map(|(at, file)| Some((file.time_us()?, at)));
        let (first, second) = two_least(next_events);
        let Some((_, at)) = first else { return sender.send().map_err(StopReason::from) };
        let file = &mut ahead[at];
        // Copies all events that are earlier than the next event of every other file.
        while let Some(time_us) = file.time_us()
            && second.is_none_or(|second| (time_us, at) < second)
        {
            sender.block.copy(&file.block, file.next);
            file.next += 1;
            if sender.block.is_full() {
                sender.send()?;
            }
            file.refill(problems)?;
        }
    }
}

fn two_least<T: Ord + Copy>(all: impl Iterator<Item = T>) -> (Option<T>, Option<T>) {
    all.fold((None, None), |(first, second), read_one| match (first, second) {
        (Some(least), _) if read_one >= least => {
            (first, Some(second.map_or(read_one, |known: T| known.min(read_one))))
        }
        _ => (Some(read_one), first),
    })
}

/// Numbers the keys of blocks and sends the blocks.
struct BlockSender {
    ring: BlockChannels,
    block: Block,
    keys: KeyNumbers,
    hashes: Vec<u64>,
    /// Whether the keys are packed attributes, which are not counted and need no numbers.
    is_unnumbered: bool,
}

impl BlockSender {
    fn new(ring: BlockChannels, is_unnumbered: bool) -> Self {
        let hashes = Vec::with_capacity(BLOCK_EVENTS);
        BlockSender {
            ring,
            block: Block::default(),
            keys: KeyNumbers::new(),
            hashes,
            is_unnumbered,
        }
    }

    fn send(&mut self) -> Result<(), ReceiverGone> {
        if self.block.rows.is_empty() {
            return Ok(());
        }
        if !self.is_unnumbered {
            self.keys.number_block(&mut self.block, &mut self.hashes);
        }
        let next = self.ring.empty.recv().map_err(|_| ReceiverGone)?;
        let full = std::mem::replace(&mut self.block, next);
        self.ring.full.send(full).map_err(|_| ReceiverGone)
    }
}

/// The reason that reading stops before the end.
enum StopReason {
    Error(ReplayError),
    ReceiverGone(ReceiverGone),
}

impl From<ReplayError> for StopReason {
    fn from(error: ReplayError) -> Self {
        StopReason::Error(error)
    }
}

impl From<ReceiverGone> for StopReason {
    fn from(gone: ReceiverGone) -> Self {
        StopReason::ReceiverGone(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_two_smallest() {
        for (all, least) in [
            (&[][..], (None, None)),
            (&[3], (Some(3), None)),
            (&[3, 1], (Some(1), Some(3))),
            (&[1, 3, 2], (Some(1), Some(2))),
            (&[2, 2, 1, 5], (Some(1), Some(2))),
        ] {
            assert_eq!(two_least(all.iter().copied()), least, "{all:?}");
        }
    }
}
