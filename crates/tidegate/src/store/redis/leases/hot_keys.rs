//! Finds hot keys: those with many requests on this node within a short time.
//!
//! Keys are counted in a table of fixed size by their hash. Two keys may share a cell, so a key may
//! look hotter than it is. It is then leased in vain for a moment, and dropped when its own demand
//! was measured.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tidegate_core::Timestamp;

/// The number of cells: 32 KiB. A few hot keys among 100,000 cold ones share a cell with some of
/// these, which adds few requests to their count.
const CELLS: usize = 4096;
/// The interval in which requests are counted, in microseconds.
const INTERVAL_US: u64 = 100_000;
/// The requests in an interval from which on a key is hot. A lease takes two commands to take and
/// to give back, so it pays off quickly.
const HOT_REQUESTS: u64 = 32;
/// The rate of requests at which a key becomes hot, in a second.
pub(super) const RATE: u64 = HOT_REQUESTS * 1_000_000 / INTERVAL_US;

/// Counts of requests by the hash of their keys.
pub(super) struct HotKeys {
    /// Each cell has the number of its interval in the upper half, and a count in the lower one.
    cells: Box<[AtomicU64]>,
}

impl HotKeys {
    pub(super) fn new() -> Self {
        HotKeys { cells: (0..CELLS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Counts a request. Returns whether the key has just become hot in this interval.
    pub(super) fn note(&self, hash: u64, now: Timestamp) -> bool {
        let interval = (now.as_micros() / INTERVAL_US) << 32 >> 32;
        let cell = &self.cells[usize::try_from(hash % CELLS as u64).unwrap_or(0)];
        let counted = cell.load(Relaxed);
        // Counts that are lost because of a race do not matter.
        if counted >> 32 == interval {
            (cell.fetch_add(1, Relaxed) & u64::from(u32::MAX)) + 1 == HOT_REQUESTS
        } else {
            cell.store(interval << 32 | 1, Relaxed);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_requests_in_an_interval_make_a_key_hot_once() {
        let hot_keys = HotKeys::new();
        let at = |interval: u64, part: u64| Timestamp::from_micros(interval * INTERVAL_US + part);
        let notes = |interval, count: u64| {
            (0..count).filter(|part| hot_keys.note(7, at(interval, *part))).count()
        };
        assert_eq!(notes(5, HOT_REQUESTS - 1), 0);
        assert_eq!(notes(6, HOT_REQUESTS - 1), 0);
        assert_eq!(notes(6, 1), 1);
        assert_eq!(notes(6, 1_000), 0);
        assert!((0..1_000).all(|hash| !hot_keys.note(hash, at(7, 0))));
    }
}
