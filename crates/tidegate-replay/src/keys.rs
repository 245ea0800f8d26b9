//! Numbers keys in the order in which they first appear.
//!
//! Only a seeded hash of 64 bits is kept of each key, so a lookup costs one cache miss and long
//! keys take no memory. With ten million keys, the probability that any two of them collide is 3 in
//! a million. The lookups of a block are started in groups, so that their cache misses overlap.

use std::hash::{BuildHasher, Hasher};

use foldhash::quality::RandomState;

use crate::block::Block;

/// The number of lookups started together: more than a core can run in parallel, few enough that
/// the cache lines are still cached when they are used.
pub const PREFETCH_GROUP: usize = 64;

/// The initial number of slots. The number is always a power of two.
const FIRST_SLOTS: usize = 1 << 12;

/// The numbers of the keys seen so far.
#[derive(Debug)]
pub struct KeyNumbers {
    hasher: RandomState,
    /// Open addressing, at most seven eighths full.
    slots: Vec<KeyRecord>,
    count: u32,
}

/// A slot of the table: one key, or none.
#[derive(Clone, Copy, Debug, Default)]
struct KeyRecord {
    hash: u64,
    /// One more than the key's number; 0 in an empty slot.
    order: u32,
    /// How often the key was looked up. The cache line is already loaded, so counting here costs
    /// nothing.
    events: u32,
}

impl KeyNumbers {
    pub fn new() -> Self {
        let slots = vec![KeyRecord::default(); FIRST_SLOTS];
        KeyNumbers { hasher: RandomState::default(), slots, count: 0 }
    }

    pub fn count(&self) -> u64 {
        u64::from(self.count)
    }

    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    /// Returns how often each key was looked up, by key number.
    pub fn events(&self) -> Vec<u32> {
        let mut events = vec![0; self.count as usize];
        for record in self.slots.iter().filter(|record| record.order > 0) {
            events[record.order as usize - 1] = record.events;
        }
        events
    }

    /// Numbers the keys of a block. `hashes` is a buffer.
    pub fn number_block(&mut self, block: &mut Block, hashes: &mut Vec<u64>) {
        hashes.clear();
        hashes.extend(block.events().map(|(_, key)| self.hash(key)));
        let rows = &mut block.rows;
        self.number(hashes, |index, number| rows[index].key = number);
    }

    /// Returns the number of one key.
    pub fn number_of(&mut self, key: &[u8]) -> u32 {
        let hash = self.hash(key);
        self.number_one(hash)
    }

    /// Numbers the keys with these hashes, and calls `each` with the index and number of each. New
    /// keys get the next number.
    pub fn number(&mut self, hashes: &[u64], mut each: impl FnMut(usize, u32)) {
        for (group, hashes) in hashes.chunks(PREFETCH_GROUP).enumerate() {
            let begun = hashes.iter().map(|&hash| self.slots[self.home(hash)].hash);
            std::hint::black_box(begun.fold(0, |all, hash| all ^ hash));
            for (index, &hash) in hashes.iter().enumerate() {
                each(group * PREFETCH_GROUP + index, self.number_one(hash));
            }
        }
    }

    #[inline]
    fn number_one(&mut self, hash: u64) -> u32 {
        let mut index = self.home(hash);
        loop {
            let record = self.slots[index];
            if record.order == 0 {
                return self.add(index, hash);
            }
            if record.hash == hash {
                self.slots[index].events = record.events.saturating_add(1);
                return record.order - 1;
            }
            index = (index + 1) & (self.slots.len() - 1);
        }
    }

    /// Returns the first slot of the lookup of a hash: its low bits.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the mask leaves fewer bits than an index")]
    fn home(&self, hash: u64) -> usize {
        hash as usize & (self.slots.len() - 1)
    }

    #[cold]
    fn add(&mut self, index: usize, hash: u64) -> u32 {
        self.count += 1;
        self.slots[index] = KeyRecord { hash, order: self.count, events: 1 };
        if self.count as usize > self.slots.len() / 8 * 7 {
            self.grow();
        }
        self.count - 1
    }

    fn grow(&mut self) {
        let larger = vec![KeyRecord::default(); self.slots.len() * 2];
        for record in std::mem::replace(&mut self.slots, larger) {
            if record.order == 0 {
                continue;
            }
            let mut index = self.home(record.hash);
            while self.slots[index].order != 0 {
                index = (index + 1) & (self.slots.len() - 1);
            }
            self.slots[index] = record;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_numbers_survive_table_growth() {
        let mut keys = KeyNumbers::new();
        let count = 50_000_u32;
        let hashes: Vec<u64> = (0..count).map(|key| keys.hash(&key.to_le_bytes())).collect();
        for _ in 0..2 {
            let mut numbers = Vec::new();
            keys.number(&hashes, |index, number| numbers.push((index, number)));
            let expected: Vec<_> = (0..count).map(|number| (number as usize, number)).collect();
            assert_eq!(numbers, expected);
            assert_eq!(keys.count(), u64::from(count));
        }
        assert!(keys.events().iter().all(|&events| events == 2));
    }

    #[test]
    fn numbers_repeated_key_once_per_group() {
        let mut keys = KeyNumbers::new();
        let [a, b] = [b"a", b"b"].map(|key| keys.hash(key));
        let mut numbers = Vec::new();
        keys.number(&[a, b, a, b, b], |_, number| numbers.push(number));
        assert_eq!(numbers, [0, 1, 0, 1, 1]);
    }
}
