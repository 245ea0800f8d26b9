//! The lower bound: counting by index, without any lookup.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Subject;
use crate::measure::{Outcome, Pass, time_shared};

pub struct Floor {
    counts: Vec<AtomicU64>,
}

impl Floor {
    pub fn new(keys: u32) -> Self {
        Floor { counts: (0..keys).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Subject for Floor {
    fn pass(&mut self, pass: &Pass<'_>) -> Outcome {
        let counts = &self.counts;
        time_shared(pass, |_, number, _| {
            let before = counts[number as usize].fetch_add(1, Ordering::Relaxed);
            black_box(before) < u64::MAX
        })
    }

    fn tracked_keys(&self) -> Option<u64> {
        let used = self.counts.iter().filter(|count| count.load(Ordering::Relaxed) > 0);
        Some(used.count() as u64)
    }
}
