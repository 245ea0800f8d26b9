//! The table: many small open-addressed shards in one block of memory.
//!
//! A decision about a key that was not seen lately costs what its cache misses cost, so the table
//! is laid out to have one: a slot has its state in it, four small slots or one large slot fill a
//! cache line, and a key's home line is computed, not looked up. A line that is full passes its
//! keys on to the next.
//!
//! Nothing ever stops the world. A shard holds a few hundred keys and has its own lock; it grows
//! by a fraction at a time and evicts expired slots when it would have to grow, some 20 us of work
//! in its own few pages. The block for all shards is reserved at once but its pages are only
//! touched, and so only take memory, as shards grow into them. Keys are never moved by the growth
//! of another shard, and an active key is never evicted.
//!
//! Most tables are nearly empty: they have room for a million keys and hold some thousands. So
//! shards begin side by side, in a few lines each, and move to where they have room to grow when
//! they need it. Few keys are then on few pages; otherwise there would be a page for every few of
//! ten thousand keys, and a processor does not keep the addresses of so many.
//!
//! All words are atomics, which cost the same as plain words and need no `unsafe`. `shard.rs` says
//! who may write them when.

use tidegate_core::{PackedSize, Timestamp};

use super::shard::{Geometry, LINE_WORDS, Line, Locked, Shard, ShardRef};
use super::slot;
use crate::sync::{AtomicU64, Mutex, Ordering::Relaxed};

const LINE_BYTES: usize = 64;
/// Keys a shard is meant to hold when the table is full. Its slots of either size can hold 787.
const SHARD_KEYS: usize = 480;
/// How many shards are searched for something expired when a key finds the table full, a load
/// each: some microseconds.
const SEARCHED_SHARDS: usize = 4096;
/// The sizes of slots, in the order of their lines in the block.
const SIZES: [PackedSize; 2] = [PackedSize::Small, PackedSize::Large];
/// Fewer shards would make threads meet at one lock even with few keys.
const MIN_SHARDS: usize = if cfg!(loom) { 2 } else { 64 };

#[derive(Debug)]
pub(super) struct Table {
    words: Box<[AtomicU64]>,
    shards: Box<[Shard]>,
    /// For each size, where each shard's lines begin and how many are in use. Apart from the
    /// shards, and so small that they stay in the cache: a key's line is found without waiting for
    /// its shard.
    headers: [Box<[ShardHeader]>; 2],
    /// Where the first line begins.
    first_word: usize,
    /// Slots that are not empty, in all shards.
    tracked: AtomicU64,
    max_keys: u64,
    /// How much longer than they matter slots are kept.
    grace_us: u64,
    /// Log entries and permits, in all slabs.
    entries: AtomicU64,
    /// The shard the next sweep begins with.
    hand: AtomicU64,
    /// How a full table's search for expired slots stands.
    search: Mutex<Search>,
}

/// A search through all shards for something expired. Deadlines fall on whole
/// units, so one that found nothing need not be repeated before the next.
#[derive(Debug, Default)]
struct Search {
    unit: u64,
    /// Shards asked in this unit without success.
    asked: usize,
}

impl Table {
    /// Room for `max_keys`; `None` when so much memory cannot be had.
    pub(super) fn new(max_keys: usize, grace_us: u64) -> Option<Self> {
        let shards = max_keys.div_ceil(SHARD_KEYS).max(MIN_SHARDS);
        let lines =
            SIZES.map(|size| usize::from(Geometry::of(size).near + Geometry::of(size).most));
        let words = shards.checked_mul((lines[0] + lines[1]) * LINE_WORDS)?;
        let words = words.checked_add(LINE_WORDS)?;
        let words = zeroed_words(words)?;
        // An address that cannot be aligned to cache lines costs speed, nothing else.
        let first_word = words.as_ptr().align_offset(LINE_BYTES) % LINE_WORDS;
        let table = Table {
            words,
            shards: try_collect(shards, Shard::new)?,
            headers: [
                try_collect(shards, ShardHeader::default)?,
                try_collect(shards, ShardHeader::default)?,
            ],
            first_word,
            tracked: AtomicU64::new(0),
            max_keys: max_keys as u64,
            grace_us,
            entries: AtomicU64::new(0),
            hand: AtomicU64::new(0),
            search: Mutex::default(),
        };
        for size in SIZES {
            let first = Geometry::of(size).first;
            (0..shards).for_each(|shard| table.set_lines(shard, size, first));
        }
        Some(table)
    }

    /// Deadlines up to this one have passed, and the grace after them.
    pub(super) fn units_passed(&self, now: Timestamp) -> u64 {
        let late = now.as_micros().saturating_sub(self.grace_us);
        slot::units_passed(Timestamp::from_micros(late))
    }

    /// Which shard a hash belongs to: its top bits, spread over any number of shards.
    #[inline]
    pub(super) fn shard_of(&self, hash: u64) -> usize {
        let wide = u128::from(hash) * self.shards.len() as u128;
        (wide >> 64) as usize
    }

    #[inline]
    pub(super) fn shard(&self, index: usize) -> ShardRef<'_> {
        ShardRef { table: self, shard: &self.shards[index], index }
    }

    #[inline]
    pub(super) fn lock(&self, index: usize) -> Locked<'_> {
        self.shard(index).lock()
    }

    /// Which lines a shard uses for slots of a size.
    #[inline]
    pub(super) fn span(&self, shard: usize, size: PackedSize) -> Span<'_> {
        let header = self.headers[size as usize][shard].0.load(Relaxed);
        let (begin, lines) = ((header >> LINES_BITS) as usize, header as u16);
        Span { words: &self.words, begin, lines, size }
    }

    /// Begins to load the lines at these words, without waiting for them, and the
    /// lines after: one key in 13 is not in its home line. The value is of no use,
    /// but using it keeps the loads.
    pub(super) fn touch(&self, words: &[usize]) -> u64 {
        if cfg!(loom) {
            // A model would try every value it might be.
            return 0;
        }
        let at = |word: usize| self.words.get(word).map_or(0, |word| word.load(Relaxed));
        words.iter().fold(0, |all, &word| all ^ at(word) ^ at(word + LINE_WORDS))
    }

    /// Has a shard use so many lines for slots of a size from now on. It must have removed what
    /// was in the others, under its lock.
    pub(super) fn set_lines(&self, shard: usize, size: PackedSize, lines: u16) {
        let shards = self.shards.len();
        // The block has the near lines of all shards, then the others, each by size.
        let [small, large] = SIZES.map(Geometry::of);
        let near = [0, usize::from(small.near)];
        let all_near = usize::from(small.near + large.near);
        let far = [all_near, all_near + usize::from(small.most)];
        let geometry = Geometry::of(size);
        let line = if lines <= geometry.near {
            near[size as usize] * shards + shard * usize::from(geometry.near)
        } else {
            far[size as usize] * shards + shard * usize::from(geometry.most)
        };
        let begin = (self.first_word + line * LINE_WORDS) as u64;
        let header = begin << LINES_BITS | u64::from(lines);
        self.headers[size as usize][shard].0.store(header, Relaxed);
    }

    /// Slots in use, expired ones that nobody has needed yet included.
    pub(super) fn tracked(&self) -> u64 {
        self.tracked.load(Relaxed)
    }

    /// Whether a key that has no slot could not be given a new one.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.tracked.load(Relaxed) >= self.max_keys
    }

    /// Takes one of the `max_keys`; with `beyond`, even when none is left.
    pub(super) fn reserve(&self, beyond: bool) -> bool {
        let had_room = self.tracked.fetch_add(1, Relaxed) < self.max_keys;
        if !had_room && !beyond {
            self.give_back(1);
        }
        had_room || beyond
    }

    /// Gives reserved or used places back.
    pub(super) fn give_back(&self, count: u64) {
        self.tracked.fetch_sub(count, Relaxed);
    }

    /// Log entries and permits held in all.
    pub(super) fn entries(&self) -> u64 {
        self.entries.load(Relaxed)
    }

    /// Notes that a state's entries went from so many to so many.
    pub(super) fn count_entries(&self, before: usize, after: usize) {
        // At its limit a log drops as many as it takes on: nothing to note.
        if after > before {
            self.entries.fetch_add((after - before) as u64, Relaxed);
        } else if before > after {
            self.entries.fetch_sub((before - after) as u64, Relaxed);
        }
    }

    /// Lets go of expired slots in the next `shards` shards, or until it has `enough`;
    /// returns how many.
    pub(super) fn sweep(&self, shards: usize, now: Timestamp, enough: u64) -> u64 {
        let mut freed = 0;
        for _ in 0..shards.min(self.shards.len()) {
            if freed >= enough {
                break;
            }
            let next = self.hand.fetch_add(1, Relaxed) as usize % self.shards.len();
            // A shard that is busy is in good hands: its user rebuilds it when it must.
            let shard = Some(self.shard(next)).filter(|shard| shard.has_expired(now));
            if let Some(mut locked) = shard.and_then(ShardRef::try_lock) {
                freed += locked.evict_expired(now);
            }
        }
        freed
    }

    /// Lets go of something expired, wherever it is, and returns how much: asks a
    /// bounded number of shards at a time, and all of them once per unit of time.
    pub(super) fn reclaim(&self, now: Timestamp) -> u64 {
        let unit = self.units_passed(now);
        let mut search = self.search.lock();
        if search.unit != unit {
            *search = Search { unit, asked: 0 };
        }
        if search.asked >= self.shards.len() {
            return 0;
        }
        let freed = self.sweep(SEARCHED_SHARDS, now, 1);
        search.asked = if freed > 0 { 0 } else { search.asked + SEARCHED_SHARDS };
        freed
    }

    /// Has a fruitless search begun anew: somebody let go of a slot early.
    pub(super) fn search_again(&self) {
        *self.search.lock() = Search::default();
    }

    pub(super) fn shards(&self) -> usize {
        self.shards.len()
    }
}

/// Where a shard's lines begin, in words, above the number in use.
#[derive(Debug, Default)]
struct ShardHeader(AtomicU64);

/// Bits of the number of lines.
const LINES_BITS: u32 = 16;

/// The lines a shard uses for slots of one size, as of a moment.
#[derive(Clone, Copy)]
pub(super) struct Span<'a> {
    words: &'a [AtomicU64],
    begin: usize,
    pub(super) lines: u16,
    pub(super) size: PackedSize,
}

impl<'a> Span<'a> {
    /// A line by its number.
    #[inline(always)]
    pub(super) fn line(&self, line: usize) -> &'a Line {
        let line = self.words[self.word(line)..].first_chunk();
        line.expect("a shard's lines are within the block")
    }

    /// Where it begins.
    #[inline]
    pub(super) fn word(&self, line: usize) -> usize {
        self.begin + line * LINE_WORDS
    }
}

/// So many of them, or `None` when there is no memory for them.
fn try_collect<T>(count: usize, new: impl Fn() -> T) -> Option<Box<[T]>> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).ok()?;
    list.extend((0..count).map(|_| new()));
    Some(list.into_boxed_slice())
}

#[cfg(not(loom))]
fn zeroed_words(count: usize) -> Option<Box<[AtomicU64]>> {
    // Zeroed memory is mapped, not written: pages come as shards grow into them.
    bytemuck::allocation::try_zeroed_slice_box(count).ok()
}

#[cfg(loom)]
fn zeroed_words(count: usize) -> Option<Box<[AtomicU64]>> {
    Some((0..count).map(|_| AtomicU64::new(0)).collect())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::slot::Fingerprint;
    use super::*;

    /// Pages that have something on them.
    fn pages(table: &Table) -> usize {
        let is_used = |page: &&[AtomicU64]| page.iter().any(|word| word.load(Relaxed) != 0);
        table.words.chunks(4096 / size_of::<AtomicU64>()).filter(is_used).count()
    }

    /// Spread as at random, so that some shards grow long before others (splitmix64).
    fn hash(key: u64) -> u64 {
        let mut bits = key.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for (shift, factor) in [(30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB)] {
            bits = (bits ^ (bits >> shift)).wrapping_mul(factor);
        }
        bits ^ (bits >> 31)
    }

    /// Shards that have moved to where they can grow.
    fn moved(table: &Table) -> usize {
        let small = PackedSize::Small;
        let lines = |shard: &usize| table.span(*shard, small).lines;
        (0..table.shards()).filter(|shard| lines(shard) > Geometry::of(small).near).count()
    }

    #[test]
    fn few_keys_are_on_few_pages_and_all_are_found() {
        let table = Table::new(1_000_000, 0).expect("so much memory");
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let mut begin = 0;
        // Shards that lie apart would take a page each, 2,084 of them.
        for (keys, most) in [(1_000, 200), (10_000, 200), (20_000, 500), (200_000, 3_500)] {
            for key in begin..keys {
                let mut locked = table.lock(table.shard_of(hash(key)));
                let claimed =
                    locked.claim(Fingerprint::new(hash(key)), PackedSize::Small, now, false);
                assert!(claimed.is_some());
            }
            begin = keys;
            assert_eq!(moved(&table) > 0, keys >= 20_000, "{keys} keys");
            assert_eq!(moved(&table) == table.shards(), keys >= 200_000, "{keys} keys");
            assert!(pages(&table) <= most, "{keys} keys on {} pages", pages(&table));
            for key in 0..keys {
                let locked = table.lock(table.shard_of(hash(key)));
                let found = locked.find(Fingerprint::new(hash(key)), PackedSize::Small);
                assert!(found.is_some(), "{key} of {keys}");
            }
        }
        assert_eq!(table.tracked(), begin);
    }
}
