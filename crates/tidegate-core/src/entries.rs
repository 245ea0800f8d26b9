//! A packed queue of times and costs: the memory of `sliding-log`.
//!
//! The naive log is a list of 8-byte times. Such logs would be most of the memory
//! that a limiter uses. So an entry here is the *distance* to the previous one as a
//! variable-length number, followed by its cost only if that is not 1:
//!
//! ```text
//!   varint(distance << 1)                        an entry of cost 1
//!   varint(distance << 1) varint(cost << 1 | 1)  any other cost
//! ```
//!
//! A varint is little-endian groups of 7 bits with the top bit set on all but
//! the last. The queue can be read from both ends: forwards, an odd number is the
//! cost of the entry before it; backwards, an odd number means that the distance
//! follows. A hundred requests a minute are 600 ms apart and take 3 bytes each.
//!
//! Entries are in chunks of at most [`CHUNK_BYTES`], each with its sum and its
//! first and last time. Growing a log never copies more than one chunk, and
//! dropping or skipping a million old entries touches a few hundred chunk headers.
//! Stores pack the shortest logs without a queue (see `sliding_log/short_log.rs`).

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;

use crate::Timestamp;

/// The units charged at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The time of the charge.
    pub at: Timestamp,
    /// The units charged, at least 1.
    pub cost: u64,
}

/// A packed queue of entries, oldest first.
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
    /// Creates an empty queue without allocating.
    pub const fn new() -> Self {
        Entries(Shape::Empty)
    }

    /// Returns the number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            Shape::Empty => 0,
            Shape::One(chunk) => usize::from(chunk.len),
            Shape::Many(many) => many.len,
        }
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        matches!(self.0, Shape::Empty)
    }

    /// Returns the sum of all costs.
    #[inline]
    pub fn total(&self) -> u64 {
        match &self.0 {
            Shape::Empty => 0,
            Shape::One(chunk) => chunk.total,
            Shape::Many(many) => many.total,
        }
    }

    /// Returns the time of the newest entry.
    #[inline]
    pub fn newest_at(&self) -> Option<Timestamp> {
        let newest = match &self.0 {
            Shape::Empty => None,
            Shape::One(chunk) => Some(chunk),
            Shape::Many(many) => many.chunks.back(),
        };
        newest.map(|chunk| Timestamp::from_micros(chunk.last_at))
    }

    /// Appends an entry.
    ///
    /// An entry that is not newer than the newest one is added to that one. A cost of 0 adds
    /// nothing, a cost of 2^63 or more counts as 2^63 - 1, and the sum of all costs is cut off at
    /// `u64::MAX`.
    #[inline]
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

    #[inline]
    fn append(&mut self, at: u64, cost: u64) {
        match &mut self.0 {
            Shape::Empty => self.0 = Shape::One(Chunk::first(at, cost)),
            Shape::One(chunk) => {
                if !chunk.append(at, cost) {
                    let Shape::One(full) = core::mem::take(&mut self.0) else { return };
                    let many = Many {
                        total: full.total.saturating_add(cost),
                        len: usize::from(full.len) + 1,
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
                if last.len == 0 {
                    many.chunks.pop_back();
                }
                many.total -= entry.cost;
                many.len -= 1;
                entry
            }
        };
        self.shrink();
        Some(popped)
    }

    /// Removes every entry at `cutoff` or before.
    #[inline]
    pub fn drop_through(&mut self, cutoff: Timestamp) {
        let cutoff = cutoff.as_micros();
        match &mut self.0 {
            Shape::Empty => return,
            Shape::One(chunk) => {
                if chunk.first_at > cutoff {
                    return;
                }
                chunk.drop_through(cutoff);
            }
            Shape::Many(many) => {
                while let Some(chunk) = many.chunks.front_mut() {
                    if chunk.first_at > cutoff {
                        break;
                    }
                    let before = (chunk.total, chunk.len);
                    chunk.drop_through(cutoff);
                    many.total -= before.0 - chunk.total;
                    many.len -= usize::from(before.1 - chunk.len);
                    if chunk.len == 0 {
                        many.chunks.pop_front();
                    }
                }
            }
        }
        self.shrink();
    }

    /// Returns the time of the entry with which the sum of costs, counted from the oldest entry,
    /// reaches `cost`. Once that entry is dropped, at least `cost` units are free.
    pub fn time_of_unit(&self, cost: u64) -> Option<Timestamp> {
        let mut before = 0;
        for chunk in self.chunks() {
            if before + chunk.total < cost {
                before += chunk.total;
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

    /// Returns the entries, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = Entry> {
        self.chunks().flat_map(Chunk::iter)
    }

    /// Returns the number of bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        let chunks: usize = self.chunks().map(|chunk| chunk.bytes.len()).sum();
        match &self.0 {
            Shape::Many(many) => {
                chunks + size_of::<Many>() + many.chunks.capacity() * size_of::<Chunk>()
            }
            _ => chunks,
        }
    }

    fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        let (one, many) = match &self.0 {
            Shape::Empty => (None, None),
            Shape::One(chunk) => (Some(chunk), None),
            Shape::Many(many) => (None, Some(many.chunks.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// Changes to the smallest shape after a removal, so that an empty queue is `Empty`.
    #[inline]
    fn shrink(&mut self) {
        match &mut self.0 {
            Shape::One(chunk) if chunk.len == 0 => self.0 = Shape::Empty,
            Shape::Many(many) if many.chunks.len() <= 1 => {
                self.0 = many.chunks.pop_front().map_or(Shape::Empty, Shape::One);
            }
            _ => {}
        }
    }
}

/// The largest chunk: about a thousand entries, which are copied in well under a microsecond.
const CHUNK_BYTES: usize = 4096;
/// The bytes that an allocator adds to an allocation, and the multiple that it rounds the sum up
/// to.
const ALLOCATION_BYTES: [usize; 2] = [8, 16];
/// The largest cost or distance of an entry. The lowest bit of its varint marks which one it is.
const MAX_NUMBER: u64 = u64::MAX >> 1;

/// A part of the queue that is not empty: its sums, and its packed entries. The distance of the
/// oldest entry is kept but has no meaning, because its time is `first_at`.
#[derive(Clone, Debug)]
struct Chunk {
    first_at: u64,
    last_at: u64,
    total: u64,
    len: u16,
    /// The index of the first byte of the packed entries.
    head: u16,
    /// The index after their last byte.
    tail: u16,
    bytes: Box<[u8]>,
}

impl Chunk {
    fn first(at: u64, cost: u64) -> Self {
        let bytes = Box::default();
        let mut chunk =
            Chunk { first_at: at, last_at: at, total: 0, len: 0, head: 0, tail: 0, bytes };
        let is_appended = chunk.append(at, cost);
        debug_assert!(is_appended, "an entry fits a chunk");
        chunk
    }

    /// Appends an entry that is not older than the last one. Returns `false` if it needs a new
    /// chunk.
    #[inline(always)]
    fn append(&mut self, at: u64, cost: u64) -> bool {
        let distance = at - self.last_at;
        let needed =
            varint_len(distance << 1) + if cost == 1 { 0 } else { varint_len(cost << 1 | 1) };
        if distance > MAX_NUMBER || !self.make_room(needed) {
            return false;
        }
        let bytes = &mut self.bytes[usize::from(self.tail)..];
        let used = encode(distance << 1, bytes);
        if cost != 1 {
            encode(cost << 1 | 1, &mut bytes[used..]);
        }
        self.tail += short(needed);
        self.last_at = at;
        self.total = self.total.saturating_add(cost);
        self.len += 1;
        true
    }

    /// Makes `needed` bytes free after the tail. Returns `false` if the chunk is full.
    #[inline]
    fn make_room(&mut self, needed: usize) -> bool {
        usize::from(self.tail) + needed <= self.bytes.len() || self.move_or_grow(needed)
    }

    /// Makes `needed` bytes free after the tail by moving the entries over those that were dropped,
    /// or by growing. A chunk grows by an eighth, so that little memory is unused.
    fn move_or_grow(&mut self, needed: usize) -> bool {
        let (head, tail) = (usize::from(self.head), usize::from(self.tail));
        let used = tail - head;
        let is_worth_moving = head >= needed && head >= used / 8;
        if is_worth_moving {
            self.bytes.copy_within(head..tail, 0);
        } else {
            let [added, unit] = ALLOCATION_BYTES;
            let capacity = used + needed + used / 8;
            let capacity = ((capacity + added).next_multiple_of(unit) - added).min(CHUNK_BYTES);
            if used + needed > capacity {
                return false;
            }
            let mut grown = vec![0; capacity].into_boxed_slice();
            grown[..used].copy_from_slice(&self.bytes[head..tail]);
            self.bytes = grown;
        }
        (self.head, self.tail) = (0, short(used));
        true
    }

    fn pop_newest(&mut self) -> Entry {
        let bytes = &self.bytes;
        let mut start = self.varint_before(usize::from(self.tail));
        let (mut number, _) = decode(bytes, start);
        let mut cost = 1;
        if number & 1 == 1 {
            cost = number >> 1;
            start = self.varint_before(start);
            number = decode(bytes, start).0;
        }
        let at = self.last_at;
        self.tail = short(start);
        self.total -= cost;
        self.len -= 1;
        self.last_at = if self.len == 0 { at } else { at - (number >> 1) };
        Entry { at: Timestamp::from_micros(at), cost }
    }

    /// The start of the varint that ends at `end`: the index after the previous byte that ends a
    /// varint.
    fn varint_before(&self, end: usize) -> usize {
        let mut start = end - 1;
        while start > usize::from(self.head) && self.bytes[start - 1] & 0x80 != 0 {
            start -= 1;
        }
        start
    }

    #[inline(always)]
    fn drop_through(&mut self, cutoff: u64) {
        if self.last_at <= cutoff {
            (self.total, self.len) = (0, 0);
            return;
        }
        let (bytes, mut head) = (&self.bytes, usize::from(self.head));
        // The last entry is newer than the cutoff, so another entry follows each of these.
        while self.first_at <= cutoff {
            head = decode(bytes, head).1;
            let (mut number, next) = decode(bytes, head);
            let mut cost = 1;
            if number & 1 == 1 {
                cost = number >> 1;
                head = next;
                number = decode(bytes, head).0;
            }
            self.first_at += number >> 1;
            self.total -= cost;
            self.len -= 1;
        }
        self.head = short(head);
    }

    fn iter(&self) -> impl Iterator<Item = Entry> {
        let packed = &self.bytes[..usize::from(self.tail)];
        let mut next = usize::from(self.head);
        let (mut at, mut is_first) = (self.first_at, true);
        core::iter::from_fn(move || {
            if next == packed.len() {
                return None;
            }
            let (number, end) = decode(packed, next);
            next = end;
            at += if core::mem::take(&mut is_first) { 0 } else { number >> 1 };
            let mut cost = 1;
            if next < packed.len() && packed[next] & 1 == 1 {
                let (number, end) = decode(packed, next);
                (cost, next) = (number >> 1, end);
            }
            Some(Entry { at: Timestamp::from_micros(at), cost })
        })
    }
}

/// Converts a position in a chunk, or the length of a part of it.
#[expect(clippy::cast_possible_truncation, reason = "a chunk has at most CHUNK_BYTES bytes")]
fn short(position: usize) -> u16 {
    position as u16
}

/// The number of bytes that a varint takes.
#[inline]
fn varint_len(number: u64) -> usize {
    ((u64::BITS - (number | 1).leading_zeros()) as usize).div_ceil(7)
}

/// Writes a varint and returns its length. Bytes after it may change.
#[inline]
fn encode(mut number: u64, into: &mut [u8]) -> usize {
    if number < 1 << WORD_BITS
        && let Some(word) = into.first_chunk_mut()
    {
        let used = varint_len(number);
        let continued = CONTINUED & !(u64::MAX << (8 * used - 8));
        *word = (spread(number) | continued).to_le_bytes();
        return used;
    }
    let mut used = 0;
    while number >= 0x80 {
        into[used] = number.to_le_bytes()[0] | 0x80;
        number >>= 7;
        used += 1;
    }
    into[used] = number.to_le_bytes()[0];
    used + 1
}

/// Reads the varint at `start`. Returns it and the index after it.
#[inline]
fn decode(bytes: &[u8], start: usize) -> (u64, usize) {
    let bytes = &bytes[start..];
    if let Some(word) = bytes.first_chunk() {
        let word = u64::from_le_bytes(*word);
        let last = !word & CONTINUED;
        if last != 0 {
            // All bits up to the top bit of the last byte.
            let used = last ^ (last - 1);
            return (gather(word & used), start + last.trailing_zeros() as usize / 8 + 1);
        }
    }
    let mut number = 0;
    for (index, &byte) in bytes.iter().enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return (number, start + index + 1);
        }
    }
    (number, start + bytes.len())
}

/// The number of bits of a number whose varint fits a word. Nearly all do, and they are read and
/// written without a loop.
const WORD_BITS: u32 = 56;
/// The top bits of the bytes of a word: set in all bytes of a varint but the last.
const CONTINUED: u64 = 0x8080_8080_8080_8080;

/// Joins the low seven bits of each byte.
#[inline]
fn gather(word: u64) -> u64 {
    let word = word & !CONTINUED;
    let word = word & 0x007f_007f_007f_007f | (word & 0x7f00_7f00_7f00_7f00) >> 1;
    let word = word & 0x0000_3fff_0000_3fff | (word & 0x3fff_0000_3fff_0000) >> 2;
    word & 0x0fff_ffff | (word & 0x0fff_ffff_0000_0000) >> 4
}

/// Spreads a number over the low seven bits of each byte.
#[inline]
fn spread(number: u64) -> u64 {
    let word = number & 0x0fff_ffff | (number & 0x00ff_ffff_f000_0000) << 4;
    let word = word & 0x0000_3fff_0000_3fff | (word & 0x0fff_c000_0fff_c000) << 2;
    word & 0x007f_007f_007f_007f | (word & 0x3f80_3f80_3f80_3f80) << 1
}
