//! `Entries` compared with a plain queue of pairs, and its size in bytes.

use std::collections::VecDeque;

use proptest::prelude::*;
use tidegate_core::{Entries, Entry, Timestamp};

/// A queue of times and costs that is not packed.
#[derive(Default)]
pub struct Model(VecDeque<(u64, u64)>);

impl Model {
    /// The largest cost of one entry.
    const MAX_COST: u64 = u64::MAX >> 1;

    pub fn total(&self) -> u64 {
        self.0.iter().map(|&(_, cost)| cost).sum()
    }

    /// Appends as documented: an entry that is not newer than the newest is added to it, a cost of
    /// 0 adds nothing, and an entry is at most 2^63 - 1.
    pub fn push(&mut self, at: u64, cost: u64) {
        match self.0.back_mut() {
            Some(newest) if at <= newest.0 => {
                newest.1 = newest.1.saturating_add(cost).min(Self::MAX_COST);
            }
            _ if cost > 0 => self.0.push_back((at, cost.min(Self::MAX_COST))),
            _ => {}
        }
    }

    fn drop_through(&mut self, cutoff: u64) {
        self.0.retain(|&(at, _)| at > cutoff);
    }

    fn time_of_unit(&self, unit: u64) -> Option<u64> {
        let mut sum = 0;
        let reached = self.0.iter().find(|(_, cost)| {
            sum += cost;
            sum >= unit
        });
        reached.map(|&(at, _)| at)
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// Appends an entry this long after the newest, with this cost.
    Push(u64, u64),
    /// Appends entries with equal gaps and costs, to fill chunks.
    Fill(u64, u64, u16),
    /// Appends an entry this long before the newest.
    PushEarlier(u64, u64),
    PopNewest(u16),
    /// Drops entries up to the one at this index, or up to just before it.
    DropThrough(u16, bool),
    DropFurther(u64),
}

/// Both queues, which are compared after every operation.
#[derive(Default)]
pub struct Queues {
    packed: Entries,
    model: Model,
}

fn entry(at: u64, cost: u64) -> Entry {
    Entry { at: Timestamp::from_micros(at), cost }
}

impl Queues {
    fn push(&mut self, at: u64, cost: u64, times: u16, gap: u64) {
        // Sums that exceed 64 bits are tested in `sums_beyond_64_bits_are_cut_off`.
        let mut room = u64::MAX - self.model.total();
        let mut at = at;
        for _ in 0..times {
            let cost = cost.min(room);
            room -= cost;
            self.packed.push(entry(at, cost));
            self.model.push(at, cost);
            at = at.saturating_add(gap);
        }
    }

    fn newest(&self) -> u64 {
        self.model.0.back().map_or(0, |newest| newest.0)
    }

    pub fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Push(gap, cost) => {
                self.push(self.newest().saturating_add(gap), cost, 1, 0);
            }
            Operation::Fill(gap, cost, times) => {
                self.push(self.newest().saturating_add(gap), cost, times, gap);
            }
            Operation::PushEarlier(by, cost) => {
                self.push(self.newest().saturating_sub(by), cost, 1, 0);
            }
            Operation::PopNewest(times) => {
                for _ in 0..times {
                    let popped = self.packed.pop_newest().map(|e| (e.at.as_micros(), e.cost));
                    assert_eq!(popped, self.model.0.pop_back());
                }
            }
            Operation::DropThrough(index, itself) => {
                let Some(last) = self.model.0.len().checked_sub(1) else { return };
                let at = self.model.0[usize::from(index).min(last)].0;
                self.drop_through(if itself { at } else { at.saturating_sub(1) });
            }
            Operation::DropFurther(by) => {
                let oldest = self.model.0.front().map_or(0, |oldest| oldest.0);
                self.drop_through(oldest.saturating_add(by));
            }
        }
    }

    fn drop_through(&mut self, cutoff: u64) {
        self.packed.drop_through(Timestamp::from_micros(cutoff));
        self.model.drop_through(cutoff);
    }

    pub fn check(&self) {
        let unpacked = self.packed.iter().map(|e| (e.at.as_micros(), e.cost));
        assert!(unpacked.eq(self.model.0.iter().copied()), "the same entries");
        assert_eq!(self.packed.len(), self.model.0.len());
        assert_eq!(self.packed.is_empty(), self.model.0.is_empty());
        assert_eq!(self.packed.total(), self.model.total());
        let newest = self.packed.newest_at().map(Timestamp::as_micros);
        assert_eq!(newest, self.model.0.back().map(|newest| newest.0));
        let total = self.model.total();
        for unit in [1, 2, total / 3, total.saturating_sub(1), total, total.saturating_add(1)] {
            // Unit 0 is not valid: it is reached before any entry.
            let time = self.packed.time_of_unit(unit.max(1)).map(Timestamp::as_micros);
            assert_eq!(time, self.model.time_of_unit(unit.max(1)), "unit {unit} of {total}");
        }
        if self.packed.is_empty() {
            assert_eq!(self.packed.heap_bytes(), 0, "an empty queue holds no memory");
        }
    }
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => Just(1_u64),
        2 => 0_u64..300,
        2 => (0_u32..64, any::<u64>()).prop_map(|(shift, bits)| bits >> shift),
        1 => Just(u64::MAX),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (number(), number()).prop_map(|(gap, cost)| Operation::Push(gap, cost)),
        2 => (0_u64..2_000_000, 1_u64..400, 1_u16..3_000)
            .prop_map(|(gap, cost, times)| Operation::Fill(gap, cost, times)),
        1 => (number(), number()).prop_map(|(by, cost)| Operation::PushEarlier(by, cost)),
        2 => (1_u16..5).prop_map(Operation::PopNewest),
        1 => (1_u16..4_000).prop_map(Operation::PopNewest),
        2 => (0_u16..4_000, any::<bool>()).prop_map(|(at, own)| Operation::DropThrough(at, own)),
        1 => number().prop_map(Operation::DropFurther),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn packed_queue_matches_the_model(operations in prop::collection::vec(operation(), 1..40)) {
        let mut queues = Queues::default();
        for operation in operations {
            queues.apply(operation);
            queues.check();
        }
    }
}

/// Entries are added at one end and dropped at the other, over many chunks.
#[test]
fn packed_queue_matches_the_model_while_a_log_slides() {
    let mut queues = Queues::default();
    for round in 0..60_u64 {
        queues.apply(Operation::Fill(600_000 + round, 1 + round % 3, 900));
        queues.check();
        queues.apply(Operation::DropThrough(700, round % 2 == 0));
        queues.check();
    }
    assert!(queues.packed.len() > 10_000, "{} entries span many chunks", queues.packed.len());
}

/// A sum that exceeds 64 bits must not corrupt the queue.
#[test]
fn sums_beyond_64_bits_are_cut_off() {
    let mut entries = Entries::new();
    for index in 0..6 {
        entries.push(entry(index << 61, u64::MAX));
    }
    assert_eq!((entries.total(), entries.len()), (u64::MAX, 3));
    assert!(entries.time_of_unit(u64::MAX).is_some());
    let mut popped = 0_u64;
    while let Some(newest) = entries.pop_newest() {
        popped += newest.cost;
    }
    assert_eq!((popped, entries.total(), entries.len()), (u64::MAX, 0, 0));
}

/// A hundred requests a minute take at most 4 bytes each, including headers and unused bytes.
#[test]
fn a_hundred_a_minute_take_four_bytes_each() {
    let mut entries = Entries::new();
    for index in 0..100 {
        entries.push(entry(1_700_000_000_000_000 + index * 600_000, 1));
    }
    println!("100 entries: {} bytes on the heap", entries.heap_bytes());
    assert_eq!(entries.len(), 100);
    assert!(entries.heap_bytes() <= 400, "{} bytes", entries.heap_bytes());

    // It stays so while the window moves, because the bytes of dropped entries are reused.
    for index in 100..10_000 {
        let at = 1_700_000_000_000_000 + index * 600_000;
        entries.drop_through(Timestamp::from_micros(at - 60_000_000));
        entries.push(entry(at, 1));
        assert_eq!(entries.len(), 100);
        assert!(entries.heap_bytes() <= 450, "{} bytes at {index}", entries.heap_bytes());
    }
}

#[test]
fn packs_a_long_log_in_about_three_bytes_per_entry() {
    let mut entries = Entries::new();
    for index in 0..100_000 {
        entries.push(entry(1_700_000_000_000_000 + index * 600_000, 1));
    }
    println!("100000 entries: {} bytes on the heap", entries.heap_bytes());
    assert_eq!((entries.len(), entries.total()), (100_000, 100_000));
    assert!(entries.heap_bytes() <= 320_000, "{} bytes", entries.heap_bytes());
    let middle = 1_700_000_000_000_000 + 49_999 * 600_000;
    assert_eq!(entries.time_of_unit(50_000), Some(Timestamp::from_micros(middle)));
    entries.drop_through(Timestamp::from_micros(middle));
    assert_eq!((entries.len(), entries.total()), (50_000, 50_000));
    assert!(entries.heap_bytes() <= 170_000, "{} bytes", entries.heap_bytes());
}
