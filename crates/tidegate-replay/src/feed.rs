//! Files to blocks of events, on a thread of its own.
//!
//! Parsing costs about as much as deciding, so one thread parses ahead of the
//! other. They hand each other blocks, a bounded number of them that go round:
//! no event allocates, and a slow engine stops a fast reader. Keys are numbered
//! here, so that whoever counts per key can use an array.
//!
//! Several files are merged by time: of the next event of each, the earliest goes
//! first, and the file named first among equals. Within a file the order stays.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender};

use crate::args::ReadingArgs;
use crate::block::{BLOCK_EVENTS, Block};
use crate::error::ReplayError;
use crate::format::{KeyOf, Wanted};
use crate::input::BytesRead;
use crate::keys::Keys;
use crate::problems::Notes;
use crate::source::{FileReport, Source};

/// Blocks that go round besides the one being filled: one being decided, one being
/// counted, the others waiting. So many that on a busy machine a thread that has its turn
/// has something to do with it.
pub const BLOCKS: usize = 16;

/// What was read of all files.
#[derive(Debug, Default)]
pub struct Report {
    pub files: Vec<FileReport>,
    pub notes: Notes,
    pub keys: u64,
    /// How many events each key has, by its number.
    pub events_of: Vec<u32>,
}

impl Report {
    pub fn events(&self) -> u64 {
        self.files.iter().map(|file| file.events).sum()
    }

    pub fn lines(&self) -> u64 {
        self.files.iter().map(|file| file.lines).sum()
    }

    /// The earliest and the latest time.
    pub fn span(&self) -> Option<(u64, u64)> {
        let spans = || self.files.iter().filter_map(|file| file.span);
        Some((spans().map(|span| span.0).min()?, spans().map(|span| span.1).max()?))
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
pub struct Feed<'a> {
    pub reading: &'a ReadingArgs,
    pub wanted: &'a Wanted,
    pub bytes_read: &'a BytesRead,
}

impl Feed<'_> {
    /// Reads the files to their ends, or until nobody takes blocks any more.
    pub fn run(&self, files: &[PathBuf], ring: Ring) -> Result<Report, ReplayError> {
        let open = |path: &PathBuf| Source::open(path, self.reading, self.wanted, self.bytes_read);
        let mut sources = files.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let mut notes = Notes::new(self.reading.strict);
        let mut hand = Hand::new(ring, matches!(self.wanted.key, KeyOf::Facts));
        let stopped = match &mut sources[..] {
            [only] => one(only, &mut hand, &mut notes),
            several => merge(several, &mut hand, &mut notes),
        };
        match stopped {
            // If the taker has gone, the report is of no use to it.
            Ok(()) | Err(Stop::Gone(Gone)) => {}
            Err(Stop::Error(error)) => return Err(error),
        }
        let keys = hand.keys.count();
        let files = sources.into_iter().map(Source::into_report).collect();
        Ok(Report { files, notes, keys, events_of: hand.keys.events() })
    }
}

fn one(source: &mut Source, hand: &mut Hand, notes: &mut Notes) -> Result<(), Stop> {
    loop {
        let more = source.fill(&mut hand.block, notes)?;
        hand.over()?;
        if !more {
            return Ok(());
        }
    }
}

/// A file with the events read ahead of it.
struct Ahead<'s> {
    source: &'s mut Source,
    block: Block,
    next: usize,
    more: bool,
}

impl Ahead<'_> {
    /// The time of the next event; `None` at the end.
    fn time_us(&self) -> Option<u64> {
        self.block.rows.get(self.next).map(|row| row.time_us)
    }

    fn refill(&mut self, notes: &mut Notes) -> Result<(), ReplayError> {
        while self.next == self.block.rows.len() && self.more {
            self.block.clear();
            self.next = 0;
            self.more = self.source.fill(&mut self.block, notes)?;
        }
        Ok(())
    }
}

fn merge(sources: &mut [Source], hand: &mut Hand, notes: &mut Notes) -> Result<(), Stop> {
    let ahead = |source| Ahead { source, block: Block::default(), next: 0, more: true };
    let mut ahead: Vec<Ahead<'_>> = sources.iter_mut().map(ahead).collect();
    for file in &mut ahead {
        file.refill(notes)?;
    }
    loop {
        let heads = ahead.iter().enumerate().filter_map(|(at, file)| Some((file.time_us()?, at)));
        let (first, second) = two_least(heads);
        let Some((_, at)) = first else { return hand.over().map_err(Stop::from) };
        let file = &mut ahead[at];
        // All that is earlier than every other file's next.
        while let Some(time_us) = file.time_us()
            && second.is_none_or(|second| (time_us, at) < second)
        {
            hand.block.copy(&file.block, file.next);
            file.next += 1;
            if hand.block.is_full() {
                hand.over()?;
            }
            file.refill(notes)?;
        }
    }
}

fn two_least<T: Ord + Copy>(all: impl Iterator<Item = T>) -> (Option<T>, Option<T>) {
    all.fold((None, None), |(first, second), one| match (first, second) {
        (Some(least), _) if one >= least => {
            (first, Some(second.map_or(one, |known: T| known.min(one))))
        }
        _ => (Some(one), first),
    })
}

/// Hands blocks over, with their keys numbered.
struct Hand {
    ring: Ring,
    block: Block,
    keys: Keys,
    hashes: Vec<u64>,
    /// Whether keys are facts, which nobody counts by.
    unnumbered: bool,
}

impl Hand {
    fn new(ring: Ring, unnumbered: bool) -> Self {
        let hashes = Vec::with_capacity(BLOCK_EVENTS);
        Hand { ring, block: Block::default(), keys: Keys::new(), hashes, unnumbered }
    }

    fn over(&mut self) -> Result<(), Gone> {
        if self.block.rows.is_empty() {
            return Ok(());
        }
        if !self.unnumbered {
            self.keys.number_block(&mut self.block, &mut self.hashes);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_least() {
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
