//! The largest burst of one key: the most units that it requested within a window, whether they
//! were admitted or not.

use tidegate::Limit;

use crate::block::Block;
use crate::ground_truth::{GroundTruth, MaxCount};

/// Counts the units that each key requests within the window of a limit.
#[derive(Debug)]
pub struct LargestBurst {
    counts: GroundTruth,
    largest: MaxCount,
    /// The name of the key with the largest count.
    key: Vec<u8>,
}

impl LargestBurst {
    pub fn new(limit: &Limit) -> Self {
        let counts = GroundTruth::new(limit.window_us(), limit.count());
        LargestBurst { counts, largest: MaxCount::default(), key: Vec::new() }
    }

    /// Counts the events of a block.
    pub fn take(&mut self, block: &Block) {
        self.counts.record_all(&block.rows, |_| true, |_, _| {});
        let largest = self.counts.largest();
        if largest != self.largest {
            self.largest = largest;
            // A new largest count was reached within this block, so the block has the key.
            if let Some(at) = block.rows.iter().position(|row| row.key == largest.key) {
                self.key = block.key(at).to_vec();
            }
        }
    }

    /// Returns the largest count and the name of its key, or `None` before any request.
    pub fn largest(&self) -> Option<(MaxCount, &[u8])> {
        (self.largest.count > 0).then_some((self.largest, &*self.key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_requests_that_are_denied() {
        let limit = "1 per 10s".parse().expect("a limit");
        let mut burst = LargestBurst::new(&limit);
        assert!(burst.largest().is_none());
        for (key, seconds) in [(0, &[1, 2, 3][..]), (1, &[4, 5, 6, 7, 99]), (0, &[99])] {
            let events: Vec<_> = seconds.iter().map(|second| (second * 1_000_000, key)).collect();
            burst.take(&Block::of(&events));
        }
        let (largest, key) = burst.largest().expect("a burst");
        assert_eq!((largest.count, largest.time_us), (4, 7_000_000));
        assert_eq!(key, 1_u32.to_le_bytes());
    }
}
