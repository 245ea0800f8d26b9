//! A packed queue of (time, cost): what `sliding-log` remembers.
//!
//! The naive log is a list of 8-byte times. It is also most of the memory a
//! limiter uses, so here an entry is the *distance* to the one before, as a
//! variable-length number, and its cost only when that is not 1:
//!
//! ```text
//!   varint(distance << 1)                        an entry of cost 1
//!   varint(distance << 1) varint(cost << 1 | 1)  any other cost
//! ```
//!
//! A varint is little-endian groups of 7 bits with the top bit set on all but
//! the last. So the queue can be read from both ends: forwards an odd number is
//! the cost of the entry before it, backwards it announces one. A hundred
//! requests a minute lie 600 ms apart: 3 bytes each.
//!
//! Entries live in chunks of at most [`CHUNK_BYTES`], each with its sum and its
//! first and last time. Growing a log never copies more than one chunk, and
//! dropping or skipping a million old entries touches a few hundred headers.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;

use crate::Timestamp;

/// What was charged at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When.
    pub at: Timestamp,
    /// How much, at least 1.
    pub cost: u64,
}

/// A queue of entries, oldest first, packed.
///
/// ```
/// use tidegate_core::{Entries, Entry, Timestamp};
///
/// let mut entries = Entries::new();
/// let at = Timestamp::from_micros;
/// entries.push(Entry { at: at(10), cost: 1 });
/// entries.push(Entry { at: at(25), cost: 4 });
/// entries.drop_through(at(10));
/// assert_eq!(entries.total(), 4);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Entries(Shape);

#[derive(Clone, Debug, Default)]
enum Shape {
    #[default]
    Empty,
    One(Chunk),
    Many(Box<Many>),
}

#[derive(Clone, Debug)]
struct Many {
    total: u64,
    len: usize,
    chunks: VecDeque<Chunk>,
}

impl Entries {
    /// No entries, and no allocation.
    pub const fn new() -> Self {
        Entries(Shape::Empty)
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        match &self.0 {
            Shape::Empty => 0,
            Shape::One(chunk) => chunk.len(),
            Shape::Many(many) => many.len,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        matches!(self.0, Shape::Empty)
    }

    /// The sum of all costs.
    pub fn total(&self) -> u64 {
        match &self.0 {
            Shape::Empty => 0,
            Shape::One(chunk) => chunk.total(),
            Shape::Many(many) => many.total,
        }
    }

    /// The time of the newest entry.
    pub fn newest_at(&self) -> Option<Timestamp> {
        self.chunks().next_back().map(|chunk| Timestamp::from_micros(chunk.last_at()))
    }

    /// Appends an entry. A time before the newest is taken as the newest's; an
    /// entry at the newest's time joins it; a cost of 0 is nothing, one of 2^63
    /// or more counts as 2^63 - 1, and a sum beyond 64 bits is cut off.
    pub fn push(&mut self, entry: Entry) {
        let Entry { mut at, mut cost } = entry;
        if cost == 0 {
            return;
        }
        if let Some(newest_at) = self.newest_at().filter(|&newest_at| newest_at >= at)
            && let Some(newest) = self.pop_newest()
        {
            at = newest_at;
            cost = cost.saturating_add(newest.cost);
        }
        let cost = cost.min(MAX_NUMBER).min(u64::MAX - self.total());
        if cost > 0 {
            self.append(at.as_micros(), cost);
        }
    }

    fn append(&mut self, at: u64, cost: u64) {
        match &mut self.0 {
            Shape::Empty => self.0 = Shape::One(Chunk::first(at, cost)),
            Shape::One(chunk) => {
                if !chunk.append(at, cost) {
                    let Shape::One(full) = core::mem::take(&mut self.0) else { return };
                    let many = Many {
                        total: full.total().saturating_add(cost),
                        len: full.len() + 1,
                        chunks: VecDeque::from([full, Chunk::first(at, cost)]),
                    };
                    self.0 = Shape::Many(Box::new(many));
                }
            }
            Shape::Many(many) => {
                many.total = many.total.saturating_add(cost);
                many.len += 1;
                if !many.chunks.back_mut().is_some_and(|chunk| chunk.append(at, cost)) {
                    many.chunks.push_back(Chunk::first(at, cost));
                }
            }
        }
    }

    /// Removes and returns the newest entry.
    pub fn pop_newest(&mut self) -> Option<Entry> {
        let popped = match &mut self.0 {
            Shape::Empty => return None,
            Shape::One(chunk) => chunk.pop_newest(),
            Shape::Many(many) => {
                let last = many.chunks.back_mut()?;
                let entry = last.pop_newest();
                if last.len() == 0 {
                    many.chunks.pop_back();
                }
                many.total -= entry.cost;
                many.len -= 1;
                entry
            }
        };
        self.tidy();
        Some(popped)
    }

    /// Removes every entry at `cutoff` or before.
    pub fn drop_through(&mut self, cutoff: Timestamp) {
        let cutoff = cutoff.as_micros();
        match &mut self.0 {
            Shape::Empty => return,
            Shape::One(chunk) => {
                if chunk.first_at() > cutoff {
                    return;
                }
                chunk.drop_through(cutoff);
            }
            Shape::Many(many) => {
                while let Some(chunk) = many.chunks.front_mut() {
                    if chunk.first_at() > cutoff {
                        break;
                    }
                    let before = (chunk.total(), chunk.len());
                    chunk.drop_through(cutoff);
                    many.total -= before.0 - chunk.total();
                    many.len -= before.1 - chunk.len();
                    if chunk.len() == 0 {
                        many.chunks.pop_front();
                    }
                }
            }
        }
        self.tidy();
    }

    /// The time of the entry with which, counted from the oldest, `cost` units
    /// are reached: once it has gone, at least so many are free.
    pub fn time_of_unit(&self, cost: u64) -> Option<Timestamp> {
        let mut before = 0;
        for chunk in self.chunks() {
            if before + chunk.total() < cost {
                before += chunk.total();
                continue;
            }
            for entry in chunk.iter() {
                before += entry.cost;
                if before >= cost {
                    return Some(entry.at);
                }
            }
        }
        None
    }

    /// The entries, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = Entry> {
        self.chunks().flat_map(Chunk::iter)
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        let chunks: usize = self.chunks().map(|chunk| chunk.0.len()).sum();
        match &self.0 {
            Shape::Many(many) => {
                chunks + size_of::<Many>() + many.chunks.capacity() * size_of::<Chunk>()
            }
            _ => chunks,
        }
    }

    fn chunks(&self) -> impl DoubleEndedIterator<Item = &Chunk> {
        let (one, many) = match &self.0 {
            Shape::Empty => (None, None),
            Shape::One(chunk) => (Some(chunk), None),
            Shape::Many(many) => (None, Some(many.chunks.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// Restores the smallest shape after a removal, so that empty means `Empty`.
    fn tidy(&mut self) {
        match &mut self.0 {
            Shape::One(chunk) if chunk.len() == 0 => self.0 = Shape::Empty,
            Shape::Many(many) if many.chunks.len() <= 1 => {
                self.0 = many.chunks.pop_front().map_or(Shape::Empty, Shape::One);
            }
            _ => {}
        }
    }
}

/// The largest chunk: about a thousand entries, a copy of well under a microsecond.
const CHUNK_BYTES: usize = 4096;
/// Two varints of up to 64 bits.
const MAX_ENTRY_BYTES: usize = 20;
/// The largest cost or distance an entry can spell: one bit of the varint tells them apart.
const MAX_NUMBER: u64 = u64::MAX >> 1;
const FIRST_AT: usize = 0;
const LAST_AT: usize = 8;
const TOTAL: usize = 16;
const LEN: usize = 24;
const HEAD: usize = 28;
const TAIL: usize = 30;
const HEADER_BYTES: usize = 32;

/// One allocation: a header (first and last time, sum, number of entries, where
/// the bytes start and end) and the packed entries. The distance of the oldest
/// entry is there but means nothing: its time is `FIRST_AT`.
#[derive(Clone, Debug)]
struct Chunk(Box<[u8]>);

impl Chunk {
    fn first(at: u64, cost: u64) -> Self {
        let mut bytes = [0; MAX_ENTRY_BYTES];
        let used = encode(0, cost, &mut bytes);
        // Room for the entry and a few like it.
        let mut chunk = Chunk(vec![0; HEADER_BYTES + used + 7].into_boxed_slice());
        chunk.set_u64(FIRST_AT, at);
        chunk.set_u64(LAST_AT, at);
        chunk.set_u64(TOTAL, cost);
        chunk.set_len(1);
        chunk.set_u16(HEAD, HEADER_BYTES);
        chunk.set_u16(TAIL, HEADER_BYTES + used);
        chunk.0[HEADER_BYTES..HEADER_BYTES + used].copy_from_slice(&bytes[..used]);
        chunk
    }

    /// Appends an entry not older than the last; `false` when a new chunk must begin.
    fn append(&mut self, at: u64, cost: u64) -> bool {
        let distance = at - self.last_at();
        let mut bytes = [0; MAX_ENTRY_BYTES];
        let used = encode(distance, cost, &mut bytes);
        if distance > MAX_NUMBER || !self.make_room(used) {
            return false;
        }
        let tail = self.u16(TAIL);
        self.0[tail..tail + used].copy_from_slice(&bytes[..used]);
        self.set_u16(TAIL, tail + used);
        self.set_u64(LAST_AT, at);
        self.set_u64(TOTAL, self.total().saturating_add(cost));
        self.set_len(self.len() + 1);
        true
    }

    /// Makes `wanted` bytes free after the tail: by moving the entries down over
    /// those that were dropped, or by growing an eighth at a time, so that a log
    /// carries little slack.
    fn make_room(&mut self, wanted: usize) -> bool {
        let (head, tail) = (self.u16(HEAD), self.u16(TAIL));
        if tail + wanted <= self.0.len() {
            return true;
        }
        let used = tail - head;
        let dropped = head - HEADER_BYTES;
        let worth_moving = dropped >= wanted && dropped >= used / 8;
        if !worth_moving {
            let capacity = (HEADER_BYTES + used + wanted + used / 8 + 7).min(CHUNK_BYTES);
            if HEADER_BYTES + used + wanted > capacity {
                return false;
            }
            let mut grown = vec![0; capacity].into_boxed_slice();
            grown[..HEADER_BYTES].copy_from_slice(&self.0[..HEADER_BYTES]);
            grown[HEADER_BYTES..HEADER_BYTES + used].copy_from_slice(&self.0[head..tail]);
            self.0 = grown;
        } else {
            self.0.copy_within(head..tail, HEADER_BYTES);
        }
        self.set_u16(HEAD, HEADER_BYTES);
        self.set_u16(TAIL, HEADER_BYTES + used);
        true
    }

    fn pop_newest(&mut self) -> Entry {
        let tail = self.u16(TAIL);
        let mut start = self.varint_before(tail);
        let (mut number, _) = decode(&self.0[start..]);
        let mut cost = 1;
        if number & 1 == 1 {
            cost = number >> 1;
            start = self.varint_before(start);
            number = decode(&self.0[start..]).0;
        }
        let at = self.last_at();
        self.set_u16(TAIL, start);
        self.set_u64(TOTAL, self.total() - cost);
        self.set_len(self.len() - 1);
        self.set_u64(LAST_AT, if self.len() == 0 { at } else { at - (number >> 1) });
        Entry { at: Timestamp::from_micros(at), cost }
    }

    /// Where the varint that ends at `end` starts: after the last byte before
    /// it that ends another.
    fn varint_before(&self, end: usize) -> usize {
        let mut start = end - 1;
        while start > self.u16(HEAD) && self.0[start - 1] & 0x80 != 0 {
            start -= 1;
        }
        start
    }

    fn drop_through(&mut self, cutoff: u64) {
        if self.last_at() <= cutoff {
            self.set_u64(TOTAL, 0);
            self.set_len(0);
            return;
        }
        // The last entry is newer than the cutoff, so this stops before the end.
        let (mut dropped, mut freed, mut head, mut first_at) = (0, 0, self.u16(HEAD), 0);
        for (start, entry) in self.positions() {
            if entry.at.as_micros() > cutoff {
                (head, first_at) = (start, entry.at.as_micros());
                break;
            }
            dropped += 1;
            freed += entry.cost;
        }
        self.set_u16(HEAD, head);
        self.set_u64(FIRST_AT, first_at);
        self.set_u64(TOTAL, self.total() - freed);
        self.set_len(self.len() - dropped);
    }

    fn iter(&self) -> impl Iterator<Item = Entry> {
        self.positions().map(|(_, entry)| entry)
    }

    /// Every entry with the offset it starts at.
    fn positions(&self) -> impl Iterator<Item = (usize, Entry)> {
        let mut next = self.u16(HEAD);
        let mut at = self.first_at();
        let mut first = true;
        core::iter::from_fn(move || {
            let start = next;
            let packed = &self.0[..self.u16(TAIL)];
            if start == packed.len() {
                return None;
            }
            let (number, used) = decode(&packed[start..]);
            next = start + used;
            at += if core::mem::take(&mut first) { 0 } else { number >> 1 };
            let mut cost = 1;
            if next < packed.len() {
                let (number, used) = decode(&packed[next..]);
                if number & 1 == 1 {
                    cost = number >> 1;
                    next += used;
                }
            }
            Some((start, Entry { at: Timestamp::from_micros(at), cost }))
        })
    }

    fn first_at(&self) -> u64 {
        self.u64(FIRST_AT)
    }

    fn last_at(&self) -> u64 {
        self.u64(LAST_AT)
    }

    fn total(&self) -> u64 {
        self.u64(TOTAL)
    }

    fn len(&self) -> usize {
        self.0[LEN..LEN + 4].iter().rev().fold(0, |n, &byte| n << 8 | usize::from(byte))
    }

    fn set_len(&mut self, len: usize) {
        self.0[LEN..LEN + 4].copy_from_slice(&len.to_le_bytes()[..4]);
    }

    fn u64(&self, at: usize) -> u64 {
        self.0[at..at + 8].iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte))
    }

    fn set_u64(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn u16(&self, at: usize) -> usize {
        usize::from(self.0[at]) | usize::from(self.0[at + 1]) << 8
    }

    fn set_u16(&mut self, at: usize, value: usize) {
        self.0[at..at + 2].copy_from_slice(&value.to_le_bytes()[..2]);
    }
}

/// Writes an entry and says how many bytes it took.
fn encode(distance: u64, cost: u64, into: &mut [u8; MAX_ENTRY_BYTES]) -> usize {
    let mut used = 0;
    let mut put = |mut number: u64| {
        while number >= 0x80 {
            into[used] = number.to_le_bytes()[0] | 0x80;
            number >>= 7;
            used += 1;
        }
        into[used] = number.to_le_bytes()[0];
        used += 1;
    };
    put(distance << 1);
    if cost != 1 {
        put(cost << 1 | 1);
    }
    used
}

/// Reads a varint and how many bytes it took.
fn decode(bytes: &[u8]) -> (u64, usize) {
    let mut number = 0;
    for (index, &byte) in bytes.iter().enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return (number, index + 1);
        }
    }
    (number, bytes.len())
}
