//! Counts the outcomes of one run.

use std::collections::HashMap;

use crate::timeline::Timeline;

/// The number of bytes of a key that are kept for display.
const NAME_BYTES: usize = 256;

/// The number of bytes of all kept names. Names are kept only for keys that were denied, or nearly
/// denied. Once this is exceeded, further keys are counted without a name.
const NAMES_BYTES: usize = 64 << 20;

/// The counts of one run.
#[derive(Debug)]
pub struct Tally {
    pub admitted: u64,
    pub denied: u64,
    /// Events admitted with at most a twentieth of some limit left.
    pub near: u64,
    /// Events admitted although the true count had no capacity.
    pub over_admitted: u64,
    /// Events denied although the true count had capacity.
    pub false_denials: u64,
    /// Events that the exact log denied. `only_denied` counts those that it admitted.
    pub only_admitted: u64,
    pub only_denied: u64,
    pub keys: KeyCounts,
    pub timeline: Timeline,
}

impl Tally {
    /// Creates counts for `limits` limits.
    pub fn new(limits: usize) -> Self {
        Tally {
            admitted: 0,
            denied: 0,
            near: 0,
            over_admitted: 0,
            false_denials: 0,
            only_admitted: 0,
            only_denied: 0,
            keys: KeyCounts::default(),
            timeline: Timeline::new(limits),
        }
    }

    /// Counts an outcome in a bin of the timeline. `fits` is whether the true count had capacity.
    #[inline]
    pub fn count(&mut self, place: usize, allowed: bool, fits: bool) {
        let bin = self.timeline.bin(place);
        let (over, wrongly) = (u64::from(allowed & !fits), u64::from(!allowed & fits));
        bin.admitted += u64::from(allowed);
        bin.denied += u64::from(!allowed);
        bin.over_admitted += over;
        bin.false_denials += wrongly;
        self.admitted += u64::from(allowed);
        self.denied += u64::from(!allowed);
        self.over_admitted += over;
        self.false_denials += wrongly;
    }

    /// Counts an outcome that differs from the exact log.
    #[cold]
    pub fn differs(&mut self, time_us: u64, allowed: bool) {
        self.only_admitted += u64::from(allowed);
        self.only_denied += u64::from(!allowed);
        let place = self.timeline.bin_index(time_us);
        self.timeline.bin(place).differ += 1;
    }
}

/// Counts by key number, and the names of keys that have any counts.
#[derive(Debug, Default)]
pub struct KeyCounts {
    denied: Vec<u32>,
    near: Vec<u32>,
    names: HashMap<u32, Box<[u8]>, foldhash::fast::RandomState>,
    name_bytes: usize,
    /// The number of keys that were denied at least once.
    pub denied_keys: u64,
}

/// The counts of one key, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyCount {
    pub key: u32,
    pub name: Option<Box<[u8]>>,
    pub denied: u64,
    pub near: u64,
}

/// The count by which keys are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankBy {
    Denied,
    Near,
}

impl KeyCounts {
    #[cold]
    pub fn denied(&mut self, key: u32, name: &[u8]) {
        let count = at(&mut self.denied, key);
        let is_first = *count == 0;
        *count = count.saturating_add(1);
        if is_first {
            self.denied_keys += 1;
            self.keep(key, name);
        }
    }

    #[cold]
    pub fn near(&mut self, key: u32, name: &[u8]) {
        let count = at(&mut self.near, key);
        let is_first = *count == 0;
        *count = count.saturating_add(1);
        if is_first {
            self.keep(key, name);
        }
    }

    fn keep(&mut self, key: u32, name: &[u8]) {
        let name = &name[..name.len().min(NAME_BYTES)];
        if self.name_bytes + name.len() <= NAMES_BYTES && !self.names.contains_key(&key) {
            self.name_bytes += name.len();
            self.names.insert(key, name.into());
        }
    }

    /// Returns the name of a key, if it was kept.
    pub fn name(&self, key: u32) -> Option<&[u8]> {
        self.names.get(&key).map(|name| &**name)
    }

    /// Returns the number of keys with near misses.
    pub fn near_keys(&self) -> u64 {
        self.near.iter().filter(|&&count| count > 0).count() as u64
    }

    /// Returns the keys with the highest counts, at most `count`. Equal keys are in the order in
    /// which they first appeared.
    pub fn top(&self, by: RankBy, count: usize) -> Vec<KeyCount> {
        let (counts, others) = match by {
            RankBy::Denied => (&self.denied, &self.near),
            RankBy::Near => (&self.near, &self.denied),
        };
        let mut keys: Vec<(std::cmp::Reverse<u32>, u32)> = (0_u32..)
            .zip(counts)
            .filter(|(_, count)| **count > 0)
            .map(|(key, &count)| (std::cmp::Reverse(count), key))
            .collect();
        if keys.len() > count {
            keys.select_nth_unstable(count);
            keys.truncate(count);
        }
        keys.sort_unstable();
        let other = |key: u32| others.get(key as usize).copied().unwrap_or(0);
        let shown = keys.into_iter().map(|(std::cmp::Reverse(count), key)| {
            let (denied, near) = match by {
                RankBy::Denied => (count, other(key)),
                RankBy::Near => (other(key), count),
            };
            let name = self.name(key).map(Into::into);
            KeyCount { key, name, denied: denied.into(), near: near.into() }
        });
        shown.collect()
    }
}

fn at(counts: &mut Vec<u32>, key: u32) -> &mut u32 {
    let key = key as usize;
    if key >= counts.len() {
        counts.resize(key + 1, 0);
    }
    &mut counts[key]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_is_ordered_and_bounded() {
        let mut keys = KeyCounts::default();
        for (key, times) in [(7, 3), (2, 1), (5, 3), (0, 2)] {
            (0..times).for_each(|_| keys.denied(key, &[b'a' + u8::try_from(key).expect("small")]));
        }
        keys.near(5, b"f");
        keys.near(9, &[b'x'; 1_000]);
        let shown = |by, count| {
            let top = keys.top(by, count).into_iter();
            top.map(|one| (one.key, one.denied, one.near)).collect::<Vec<_>>()
        };
        assert_eq!(shown(RankBy::Denied, 9), [(5, 3, 1), (7, 3, 0), (0, 2, 0), (2, 1, 0)]);
        assert_eq!(shown(RankBy::Denied, 2), [(5, 3, 1), (7, 3, 0)]);
        assert_eq!(shown(RankBy::Near, 9), [(5, 3, 1), (9, 0, 1)]);
        assert_eq!(shown(RankBy::Denied, 0), []);
        assert_eq!(keys.denied_keys, 4);
        assert_eq!(keys.name(7), Some(&b"h"[..]));
        assert_eq!(keys.name(9).map(<[u8]>::len), Some(NAME_BYTES));
    }
}
