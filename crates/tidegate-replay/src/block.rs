//! Events on their way from whoever reads or makes them to whoever decides.

use crate::format::Event;

/// Events in a block: enough to make handing over cheap, few enough to stay in the cache.
pub const BLOCK_EVENTS: usize = 4096;

/// Key bytes in a block, so that long keys end it early.
const BLOCK_KEY_BYTES: usize = 256 * 1024;

/// Events in order.
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
    /// An event outside of any block, whose key is known by its number alone.
    pub fn numbered(time_us: u64, cost: i64, key: u32) -> Self {
        Row { time_us, cost, key, key_end: 0 }
    }
}

impl Block {
    /// Events of cost 1, each a time and the number of a key, which is also its name.
    #[cfg(test)]
    pub fn of(events: &[(u64, u32)]) -> Self {
        let mut block = Block::default();
        for &(time_us, key) in events {
            let name = key.to_le_bytes().to_vec().into();
            block.push_numbered(&Event { time_us, key: name, cost: 1 }, key);
        }
        block
    }

    /// Takes in an event, whose key has no number yet.
    #[inline]
    pub fn push(&mut self, event: &Event<'_>) {
        self.push_row(event.time_us, event.cost, &event.key);
    }

    /// The same for an event whose key has this number.
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

    /// The key of a row, by its place.
    pub fn key(&self, at: usize) -> &[u8] {
        let start = at.checked_sub(1).map_or(0, |before| self.rows[before].key_end as usize);
        &self.keys[start..self.rows[at].key_end as usize]
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

    /// Takes over the row at a place of another block.
    pub fn copy(&mut self, from: &Block, at: usize) {
        let row = from.rows[at];
        self.push_row(row.time_us, row.cost, from.key(at));
    }
}
