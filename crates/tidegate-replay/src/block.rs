//! Blocks of events, which the reader or the traffic generator passes to the deciding thread.

use crate::format::Event;

/// The number of events in a block: enough to make handing a block over cheap, few enough to stay
/// in the cache.
pub const BLOCK_EVENTS: usize = 4096;

/// The number of key bytes in a block, so that long keys end a block early.
const BLOCK_KEY_BYTES: usize = 256 * 1024;

/// A sequence of events.
#[derive(Debug, Default)]
pub struct Block {
    pub rows: Vec<Row>,
    /// The keys, one after another. Each row stores the end of its key.
    keys: Vec<u8>,
}

/// One event of a block.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub time_us: u64,
    pub cost: i64,
    /// The number of the key. Keys are numbered from 0 in the order in which they first appear.
    pub key: u32,
    key_end: u32,
}

impl Row {
    /// Creates an event outside of any block. Only the number of its key is known.
    pub fn numbered(time_us: u64, cost: i64, key: u32) -> Self {
        Row { time_us, cost, key, key_end: 0 }
    }
}

impl Block {
    /// Creates a block of events of cost 1. Each event is a time and a key number, which is also
    /// the name of the key.
    #[cfg(test)]
    pub fn of(events: &[(u64, u32)]) -> Self {
        let mut block = Block::default();
        for &(time_us, key) in events {
            let name = key.to_le_bytes().to_vec().into();
            block.push_numbered(&Event { time_us, key: name, cost: 1 }, key);
        }
        block
    }

    /// Appends an event whose key has not been numbered yet.
    #[inline]
    pub fn push(&mut self, event: &Event<'_>) {
        self.push_row(event.time_us, event.cost, &event.key);
    }

    /// Appends an event whose key has the number `key`.
    pub fn push_numbered(&mut self, event: &Event<'_>, key: u32) {
        self.push(event);
        if let Some(row) = self.rows.last_mut() {
            row.key = key;
        }
    }

    #[inline]
    fn push_row(&mut self, time_us: u64, cost: i64, key: &[u8]) {
        self.keys.extend_from_slice(key);
        let key_end = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        self.rows.push(Row { time_us, cost, key: 0, key_end });
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.rows.len() >= BLOCK_EVENTS || self.keys.len() >= BLOCK_KEY_BYTES
    }

    pub fn clear(&mut self) {
        self.rows.clear();
        self.keys.clear();
    }

    /// Returns the key of the row at index `at`.
    pub fn key(&self, at: usize) -> &[u8] {
        let start = at.checked_sub(1).map_or(0, |before| self.rows[before].key_end as usize);
        &self.keys[start..self.rows[at].key_end as usize]
    }

    /// Returns the rows with their keys.
    pub fn events(&self) -> impl Iterator<Item = (&Row, &[u8])> {
        let mut start = 0;
        self.rows.iter().map(move |row| {
            let end = row.key_end as usize;
            let key = &self.keys[start..end];
            start = end;
            (row, key)
        })
    }

    /// Appends a copy of the row at index `at` of another block.
    pub fn copy(&mut self, from: &Block, at: usize) {
        let row = from.rows[at];
        self.push_row(row.time_us, row.cost, from.key(at));
    }
}
