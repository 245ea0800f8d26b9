//! Heavy hitters in bounded memory: Space-Saving.
//!
//! The naive way counts every name and grows with their number. This keeps a
//! fixed number of counters. A name that has one is counted. A new name takes
//! the smallest counter over, *count included*, and remembers that count as its
//! error:
//!
//! ```text
//!   two counters   a b a c        a:2          c took b's place: b had 1, so c
//!                  1 1 2 2        c:2 error 1  has been seen 1 to 2 times
//! ```
//!
//! So a count is never too low and at most `error` too high; a name that is not
//! listed was seen at most as often as the smallest counter says; and with `m`
//! counters and `n` sightings no error exceeds `n / m`: whoever made up more than
//! that share is listed.
//!
//! A list of the hashes and a list of the counts, both searched from end to end:
//! at this size that is a few cache lines, quicker than a map with a heap.

use std::sync::Arc;

use super::mask::StoredKey;
use crate::policy::Template;

/// Counters per sketch: whoever makes up 1/128 of the denials is listed.
pub const SKETCH_ENTRIES: usize = 128;

#[derive(Debug, Default)]
pub(super) struct Sketch {
    /// Names are told apart by a keyed hash of 64 bits: that two of a million
    /// names share one has a chance of 3 in 10^8.
    hashes: Vec<u64>,
    counts: Vec<u64>,
    names: Vec<Name>,
}

#[derive(Debug)]
struct Name {
    error: u64,
    stored: StoredKey,
}

/// A counter, borrowed.
pub(super) struct Counter<'a> {
    pub hash: u64,
    pub count: u64,
    pub error: u64,
    pub stored: &'a StoredKey,
}

impl Sketch {
    /// Counts a sighting. `template` is the one that made the name, if it is to be masked.
    pub(super) fn add(&mut self, hash: u64, name: &[u8], template: Option<&Arc<Template>>) {
        if let Some(index) = self.find(hash) {
            self.counts[index] += 1;
            return;
        }
        if self.hashes.len() < SKETCH_ENTRIES {
            self.hashes.push(hash);
            self.counts.push(1);
            let mut stored = StoredKey::default();
            stored.set(name, template);
            self.names.push(Name { error: 0, stored });
            return;
        }
        // The least first and then its place: two simple passes outrun a clever one.
        let error = self.floor();
        let Some(index) = self.counts.iter().position(|count| *count == error) else { return };
        self.hashes[index] = hash;
        self.counts[index] = error + 1;
        // In the same memory: a flood of new names must not become a flood of allocations.
        self.names[index].error = error;
        self.names[index].stored.set(name, template);
    }

    fn find(&self, hash: u64) -> Option<usize> {
        self.hashes.iter().position(|known| *known == hash)
    }

    /// The most a name that has no counter can have been seen.
    pub(super) fn floor(&self) -> u64 {
        if self.hashes.len() < SKETCH_ENTRIES {
            return 0;
        }
        self.counts.iter().copied().min().unwrap_or(0)
    }

    /// The most, and by how much that is too high, that a name can have been seen.
    pub(super) fn estimate(&self, hash: u64) -> (u64, u64) {
        match self.find(hash) {
            Some(index) => (self.counts[index], self.names[index].error),
            None => (self.floor(), self.floor()),
        }
    }

    pub(super) fn contains(&self, hash: u64) -> bool {
        self.find(hash).is_some()
    }

    pub(super) fn counters(&self) -> impl Iterator<Item = Counter<'_>> {
        let both = self.hashes.iter().zip(&self.counts).zip(&self.names);
        both.map(|((&hash, &count), name)| Counter {
            hash,
            count,
            error: name.error,
            stored: &name.stored,
        })
    }

    pub(super) fn clear(&mut self) {
        *self = Sketch::default();
    }
}
