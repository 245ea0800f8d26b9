//! The table: many small open-addressed shards in one block of memory.
//!
//! The cost of a decision about a key that was not used recently is that of its cache misses, so
//! the table is laid out to have one. A state is in its slot, four small slots or one large slot
//! fill a cache line, and the slot is found by tag bytes that stay in the cache.
//!
//! No operation stops all threads. A shard holds a few hundred keys and has its own lock. It grows
//! by a fraction at a time, and evicts expired slots before it grows, which takes some 20 us in a
//! few pages. The block for all shards is allocated when the table is created, but its pages are
//! touched, and so take memory, only as shards grow into them. The growth of a shard never moves
//! the keys of another, and an active key is never evicted.
//!
//! Most tables are nearly empty: they have room for a million keys and hold some thousands. So
//! shards are adjacent at first, with one or two groups each, and move to a larger area when they
//! grow. A few keys are then on few pages. Otherwise ten thousand keys would be on thousands of
//! pages, more than the TLB of a processor has entries.

use tidegate_core::{PackedSize, Timestamp};

use super::shard::{FIRST_GROUPS, LockedShard, MOST_GROUPS, NEAR_GROUPS, Shard, ShardRef};
use super::slot;
use super::slot_groups::{GROUP, SlotGroups, slot_words};
use crate::sync::{AtomicU8, AtomicU64, Mutex, Ordering::Relaxed};

const LINE_BYTES: usize = 64;
const LINE_WORDS: usize = LINE_BYTES / size_of::<u64>();
/// The average number of keys of a shard when the table is full. Its slots of either size can hold
/// 787.
const SHARD_KEYS: usize = 480;
/// The number of shards that are searched for expired slots when a new key finds the table full.
/// That is one load for each, which takes some microseconds.
const SEARCHED_SHARDS: usize = 4096;
/// The sizes of slots, in the order of their discriminants.
const SIZES: [PackedSize; 2] = [PackedSize::Small, PackedSize::Large];
/// The smallest number of shards. With fewer, threads would contend for locks even with few keys.
const MIN_SHARDS: usize = if cfg!(loom) { 2 } else { 64 };

#[derive(Debug)]
pub(super) struct Table {
    words: Box<[AtomicU64]>,
    shards: Box<[Shard]>,
    /// For each size, the number of groups of slots that each shard uses. These bytes are separate
    /// from the shards, and those of a million keys fit the smallest cache: a slot is found without
    /// waiting for its shard.
    groups: [Box<[AtomicU8]>; 2],
    /// For each size, the position of the groups.
    regions: [Region; 2],
    /// The number of slots that are not empty, in all shards.
    tracked: AtomicU64,
    max_keys: u64,
    /// The time for which expired slots are kept.
    grace_us: u64,
    /// The number of log entries and permits of all states.
    entries: AtomicU64,
    /// The number of shards swept so far, which determines the next one.
    next_swept: AtomicU64,
    /// The progress of the search for expired slots in a full table.
    search: Mutex<Search>,
}

/// A search through all shards for expired slots. Deadlines are whole steps, so a search that found
/// nothing does not have to be repeated before the next step.
#[derive(Debug, Default)]
struct Search {
    /// The deadline step in which the search began.
    step: u64,
    /// The number of shards searched in this step without success.
    searched: usize,
}

impl Table {
    /// Creates a table for `max_keys` keys. Returns `None` if there is not enough memory.
    pub(super) fn new(max_keys: usize, grace_us: u64) -> Option<Self> {
        let shards = max_keys.div_ceil(SHARD_KEYS).max(MIN_SHARDS);
        let words = shards.checked_mul(SHARD_WORDS)?.checked_add(LINE_WORDS)?;
        let words = zeroed_words(words)?;
        // If the address cannot be aligned to cache lines, the table is only slower.
        let mut next_word = words.as_ptr().align_offset(LINE_BYTES) % LINE_WORDS;
        let mut take = |words: usize| {
            let at = next_word;
            next_word += shards * words;
            at
        };
        // Slots come first: they fill whole cache lines.
        let slots_at = SIZES.map(|size| take(SHARD_GROUPS * group_words(size)));
        let tags_at = SIZES.map(|_| take(SHARD_GROUPS));
        let groups = || try_collect(shards, |_| AtomicU8::new(FIRST_GROUPS));
        Some(Table {
            words,
            shards: try_collect(shards, |_| Shard::new())?,
            groups: [groups()?, groups()?],
            regions: [0, 1].map(|size| Region { tags_at: tags_at[size], slots_at: slots_at[size] }),
            tracked: AtomicU64::new(0),
            max_keys: max_keys as u64,
            grace_us,
            entries: AtomicU64::new(0),
            next_swept: AtomicU64::new(0),
            search: Mutex::default(),
        })
    }

    /// The latest deadline that has passed, and the grace after it.
    pub(super) fn deadline_steps_passed(&self, now: Timestamp) -> u64 {
        let late = now.as_micros().saturating_sub(self.grace_us);
        slot::deadline_steps_passed(Timestamp::from_micros(late))
    }

    /// The shard of a hash: its top bits, scaled to the number of shards.
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
    pub(super) fn lock(&self, index: usize) -> LockedShard<'_> {
        self.shard(index).lock()
    }

    /// The slots of a size that a shard uses.
    #[inline(always)]
    pub(super) fn slot_groups(&self, shard: usize, size: PackedSize) -> SlotGroups<'_> {
        let count = self.groups[size as usize][shard].load(Relaxed);
        let first = self.first_group(shard, count);
        let region = &self.regions[size as usize];
        let tags_at = region.tags_at + first;
        let slots_at = region.slots_at + first * group_words(size);
        SlotGroups { words: &self.words, tags_at, slots_at, groups: count, size }
    }

    /// The first of the groups that a shard uses, if it uses `count`. Those of a shard that has
    /// grown are behind the few that every shard begins with.
    #[inline(always)]
    fn first_group(&self, shard: usize, count: u8) -> usize {
        if count > NEAR_GROUPS {
            self.shards.len() * usize::from(NEAR_GROUPS) + shard * usize::from(MOST_GROUPS)
        } else {
            shard * usize::from(NEAR_GROUPS)
        }
    }

    /// Sets the number of groups of slots of a size that a shard uses. The caller holds the lock of
    /// the shard, and has emptied all of its slots.
    pub(super) fn set_groups(&self, shard: usize, size: PackedSize, count: u8) {
        self.groups[size as usize][shard].store(count, Relaxed);
    }

    /// Starts to load the cache lines of these words without waiting for them. The result is
    /// meaningless, but using it keeps the compiler from removing the loads.
    pub(super) fn prefetch(&self, words: &[usize]) -> u64 {
        if cfg!(loom) {
            // The model checker would try every value that the load might return.
            return 0;
        }
        let at = |word: usize| self.words.get(word).map_or(0, |word| word.load(Relaxed));
        words.iter().fold(0, |all, &word| all ^ at(word))
    }

    /// The number of slots in use, including expired ones that are not evicted yet.
    pub(super) fn tracked(&self) -> u64 {
        self.tracked.load(Relaxed)
    }

    /// Whether all `max_keys` are in use.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.tracked.load(Relaxed) >= self.max_keys
    }

    /// Reserves one of the `max_keys`. With `over_capacity` it succeeds even if none is left.
    pub(super) fn reserve(&self, over_capacity: bool) -> bool {
        let had_room = self.tracked.fetch_add(1, Relaxed) < self.max_keys;
        if !had_room && !over_capacity {
            self.unreserve(1);
        }
        had_room || over_capacity
    }

    /// Returns reserved or used keys to the `max_keys`.
    pub(super) fn unreserve(&self, count: u64) {
        self.tracked.fetch_sub(count, Relaxed);
    }

    /// The number of log entries and permits of all states.
    pub(super) fn entries(&self) -> u64 {
        self.entries.load(Relaxed)
    }

    /// Records that the number of entries of a state changed from `before` to `after`.
    #[inline]
    pub(super) fn count_entries(&self, before: u64, after: u64) {
        // A log at its limit drops as many entries as it adds, and then nothing is written.
        if after > before {
            self.entries.fetch_add(after - before, Relaxed);
        } else if before > after {
            self.entries.fetch_sub(before - after, Relaxed);
        }
    }

    /// Evicts expired slots in the next `shards` shards, or until `enough` are evicted. Returns how
    /// many.
    pub(super) fn sweep(&self, shards: usize, now: Timestamp, enough: u64) -> u64 {
        let mut freed = 0;
        for _ in 0..shards.min(self.shards.len()) {
            if freed >= enough {
                break;
            }
            let next = self.next_swept.fetch_add(1, Relaxed) as usize % self.shards.len();
            // A locked shard is skipped: the thread that uses it evicts slots when it has to.
            let shard = Some(self.shard(next)).filter(|shard| shard.has_expired(now));
            if let Some(mut locked) = shard.and_then(ShardRef::try_lock) {
                freed += locked.evict_expired(now);
            }
        }
        freed
    }

    /// Evicts an expired slot in any shard, and returns how many were evicted. Each call searches a
    /// bounded number of shards, and calls within a deadline step search all shards at most once
    /// without success.
    pub(super) fn reclaim(&self, now: Timestamp) -> u64 {
        let step = self.deadline_steps_passed(now);
        let mut search = self.search.lock();
        if search.step != step {
            *search = Search { step, searched: 0 };
        }
        if search.searched >= self.shards.len() {
            return 0;
        }
        let freed = self.sweep(SEARCHED_SHARDS, now, 1);
        search.searched = if freed > 0 { 0 } else { search.searched + SEARCHED_SHARDS };
        freed
    }

    /// Restarts a search that found nothing, because a slot was cleared before its deadline.
    pub(super) fn search_again(&self) {
        *self.search.lock() = Search::default();
    }

    pub(super) fn shards(&self) -> usize {
        self.shards.len()
    }
}

/// The position of the groups of all shards: first those of shards with few groups, then those of
/// shards that have grown.
#[derive(Clone, Copy, Debug)]
struct Region {
    /// The first word of tag bytes. Each group has one.
    tags_at: usize,
    slots_at: usize,
}

/// The number of groups reserved for each shard: those of a small shard, and those of a grown one.
const SHARD_GROUPS: usize = NEAR_GROUPS as usize + MOST_GROUPS as usize;

/// The number of words of the block for each shard: in both sizes, a word of tag bytes and the
/// slots of each group.
const SHARD_WORDS: usize =
    SHARD_GROUPS * (2 + group_words(PackedSize::Small) + group_words(PackedSize::Large));

/// The number of words of the slots of a group.
#[inline(always)]
const fn group_words(size: PackedSize) -> usize {
    GROUP * slot_words(size)
}

/// Creates `count` values from their indexes. Returns `None` if there is not enough memory.
fn try_collect<T>(count: usize, new: impl Fn(usize) -> T) -> Option<Box<[T]>> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).ok()?;
    list.extend((0..count).map(new));
    Some(list.into_boxed_slice())
}

#[cfg(not(loom))]
fn zeroed_words(count: usize) -> Option<Box<[AtomicU64]>> {
    // Zeroed memory is mapped and not written, so a page takes memory only when a shard uses it.
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

    /// The number of pages with a word that is not zero.
    fn pages(table: &Table) -> usize {
        let is_used = |page: &&[AtomicU64]| page.iter().any(|word| word.load(Relaxed) != 0);
        table.words.chunks(4096 / size_of::<AtomicU64>()).filter(is_used).count()
    }

    /// A pseudorandom hash (splitmix64), so that some shards grow long before others.
    fn hash(key: u64) -> u64 {
        let mut bits = key.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for (shift, factor) in [(30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB)] {
            bits = (bits ^ (bits >> shift)).wrapping_mul(factor);
        }
        bits ^ (bits >> 31)
    }

    /// The number of shards that have moved to the area of grown shards.
    fn moved(table: &Table) -> usize {
        let groups = |shard: usize| table.slot_groups(shard, PackedSize::Small).groups;
        (0..table.shards()).filter(|&shard| groups(shard) > NEAR_GROUPS).count()
    }

    #[test]
    fn keeps_few_keys_on_few_pages_and_finds_them_all() {
        let table = Table::new(1_000_000, 0).expect("so much memory");
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let mut begin = 0;
        // Shards that are not adjacent would take a page each, 2,084 of them.
        for (keys, most) in [(1_000, 200), (10_000, 200), (20_000, 500), (200_000, 3_500)] {
            for key in begin..keys {
                let mut locked = table.lock(table.shard_of(hash(key)));
                let claimed =
                    locked.claim(Fingerprint::of(hash(key), false), PackedSize::Small, now, false);
                assert!(claimed.is_some());
            }
            begin = keys;
            assert_eq!(moved(&table) > 0, keys >= 20_000, "{keys} keys");
            assert_eq!(moved(&table) == table.shards(), keys >= 200_000, "{keys} keys");
            assert!(pages(&table) <= most, "{keys} keys on {} pages", pages(&table));
            let mut preferred = 0;
            for key in 0..keys {
                let locked = table.lock(table.shard_of(hash(key)));
                let fingerprint = Fingerprint::of(hash(key), false);
                let found = locked.find(fingerprint, PackedSize::Small).expect("the key is held");
                preferred += u64::from(found.index % GROUP == fingerprint.preferred_slot());
            }
            let share = preferred as f64 / keys as f64;
            assert!(share > 0.65, "{share} of {keys} keys are in their preferred slot");
        }
        assert_eq!(table.tracked(), begin);
    }
}
