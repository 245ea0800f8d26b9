//! The ground truth: an exact log of admitted costs per key, without the engine.
//!
//! An engine that reported its own counts would confirm itself. For each key this module keeps the
//! times and costs of the events that were admitted within the last window. It reports for every
//! event whether the cost fitted, and keeps the largest sum. It shares no code with the engine.
//!
//! If the time of a key steps back, entries with later times are moved to the current time, as in
//! the limiter: a correct clock would have recorded them no later than that.

use std::collections::VecDeque;

use crate::block::Row;
use crate::keys::PREFETCH_GROUP;

/// The rolling counts of all keys over one window.
#[derive(Debug)]
pub struct GroundTruth {
    window_us: u64,
    limit: u64,
    /// Indexed by key number.
    logs: Vec<Log>,
    largest: MaxCount,
    /// The counts that keys had between requests, if they are kept.
    held: Option<Vec<HeldCount>>,
}

/// A count that a key had between two times, both inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldCount {
    pub from_us: u64,
    pub to_us: u64,
    pub count: u64,
}

/// The largest number of units admitted for one key, net of refunds, in any half-open window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaxCount {
    pub count: u64,
    /// The key with the largest count. `time_us` is the time at which it was first reached.
    pub key: u32,
    pub time_us: u64,
}

/// The true count of a key when an event was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrueCount {
    /// The units admitted for the key within the window, including this event if it was admitted.
    pub count: u64,
    /// Whether the cost of the event fitted under the limit.
    pub fits: bool,
}

/// The units admitted for one key within the last window, oldest first. All entries have different
/// times.
///
/// Most keys of most traces have a few entries or none, and each read of a log is a cache miss. So
/// a log is one cache line with space for a few entries. Only busy keys, which are usually cached,
/// have a separate list.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Log {
    total: u64,
    /// The entries, if there is no list. Unused entries have cost 0, and are at the end.
    inline: [LogEntry; INLINE_ENTRIES],
    /// Holds all entries while there are more than fit inline.
    #[expect(clippy::box_collection, reason = "a whole list would not fit the line")]
    list: Option<Box<VecDeque<LogEntry>>>,
}

const INLINE_ENTRIES: usize = 3;

const _: () = assert!(size_of::<Log>() == 64, "one cache line");

#[derive(Clone, Copy, Debug, Default)]
struct LogEntry {
    at_us: u64,
    cost: u64,
}

impl GroundTruth {
    /// Creates counts for a limit of `limit` units per window.
    pub fn new(window_us: u64, limit: u64) -> Self {
        GroundTruth { window_us, limit, logs: Vec::new(), largest: MaxCount::default(), held: None }
    }

    /// Keeps the counts between requests from now on, for [`GroundTruth::take_held`].
    pub fn keep_held(&mut self) {
        self.held = Some(Vec::new());
    }

    /// Returns the counts that keys had until their last request, and forgets them.
    pub fn take_held(&mut self) -> impl Iterator<Item = HeldCount> {
        self.held.iter_mut().flat_map(|held| held.drain(..))
    }

    /// Ends the counts of all keys at this time. `on_held` receives the counts that each key had
    /// until then, with the number of the key, if counts between requests are kept.
    pub fn finish(&mut self, end_us: u64, mut on_held: impl FnMut(u32, HeldCount)) {
        if self.held.is_none() {
            return;
        }
        for (key, log) in (0..).zip(&mut self.logs) {
            log.expire(end_us, self.window_us, &mut self.held);
            self.held
                .iter_mut()
                .flat_map(|held| held.drain(..))
                .for_each(|held| on_held(key, held));
        }
    }

    /// Measures the following events against another limit.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    pub fn largest(&self) -> MaxCount {
        self.largest
    }

    /// Records events in order. `admitted` returns whether the event at an index was admitted, and
    /// `on_count` receives the true count of each event.
    pub fn record_all(
        &mut self,
        rows: &[Row],
        admitted: impl Fn(usize) -> bool,
        mut on_count: impl FnMut(usize, TrueCount),
    ) {
        let keys = rows.iter().map(|row| row.key as usize + 1).max().unwrap_or(0);
        self.ensure_keys(keys);
        for (group, rows) in rows.chunks(PREFETCH_GROUP).enumerate() {
            self.prefetch(rows);
            for (index, row) in rows.iter().enumerate() {
                let at = group * PREFETCH_GROUP + index;
                on_count(at, self.record(row, admitted(at)));
            }
        }
    }

    /// Records one event.
    pub fn record_one(&mut self, row: &Row, admitted: bool) -> TrueCount {
        self.ensure_keys(row.key as usize + 1);
        self.record(row, admitted)
    }

    fn ensure_keys(&mut self, keys: usize) {
        if keys > self.logs.len() {
            self.logs.resize_with(keys, Log::default);
        }
    }

    /// Starts to load the logs of these rows. Counting alone would wait for one log after another;
    /// many loads that are started first run in parallel.
    fn prefetch(&self, rows: &[Row]) {
        let logs = || rows.iter().map(|row| &self.logs[row.key as usize]);
        std::hint::black_box(logs().fold(0, |all, log| all ^ log.total));
        let ends = |list: &VecDeque<LogEntry>| {
            let [oldest, newest] = [list.front(), list.back()];
            oldest.map_or(0, |entry| entry.at_us) ^ newest.map_or(0, |entry| entry.at_us)
        };
        let lists = logs().filter_map(|log| log.list.as_deref());
        std::hint::black_box(lists.fold(0, |all, list| all ^ ends(list)));
    }

    #[inline]
    fn record(&mut self, row: &Row, admitted: bool) -> TrueCount {
        let log = &mut self.logs[row.key as usize];
        if log.newest().is_some_and(|newest| newest.at_us > row.time_us) {
            log.step_back(row.time_us);
        }
        log.expire(row.time_us, self.window_us, &mut self.held);
        let cost = row.cost.unsigned_abs();
        let fits = log.total.saturating_add(cost.max(1)) <= self.limit;
        if admitted && row.cost < 0 {
            log.refund(cost);
        } else if admitted && row.cost > 0 {
            log.admit(row.time_us, cost);
            if log.total > self.largest.count {
                let Row { key, time_us, .. } = *row;
                self.largest = MaxCount { count: log.total, key, time_us };
            }
        }
        TrueCount { count: log.total, fits }
    }
}

impl Log {
    /// Drops entries that are at least a window old. If counts between requests are kept, adds
    /// those since the newest entry to `held`.
    #[inline]
    fn expire(&mut self, now_us: u64, window_us: u64, held: &mut Option<Vec<HeldCount>>) {
        if let Some(held) = held {
            self.push_held(now_us, window_us, held);
        }
        while let Some(oldest) = self.oldest()
            && oldest.at_us.saturating_add(window_us) <= now_us
        {
            self.total -= oldest.cost;
            self.drop_oldest();
        }
    }

    /// Adds the counts from the newest entry until now: a count ends when its oldest entry expires.
    fn push_held(&self, now_us: u64, window_us: u64, held: &mut Vec<HeldCount>) {
        let Some(newest) = self.newest() else { return };
        let (mut from_us, mut count) = (newest.at_us, self.total);
        let (inline, list) = match &self.list {
            None => (&self.inline[..self.inline_count()], None),
            Some(list) => (&[][..], Some(list.iter())),
        };
        for entry in inline.iter().chain(list.into_iter().flatten()) {
            let end_us = entry.at_us.saturating_add(window_us);
            held.push(HeldCount { from_us, to_us: now_us.min(end_us - 1), count });
            if end_us > now_us {
                return;
            }
            (from_us, count) = (end_us, count - entry.cost);
        }
    }

    #[inline]
    fn admit(&mut self, at_us: u64, cost: u64) {
        // The cost is capped so that the total cannot overflow and stays the sum of the entries.
        let cost = cost.min(u64::MAX - self.total);
        self.total += cost;
        match self.newest_mut() {
            Some(newest) if newest.at_us == at_us => newest.cost += cost,
            // An entry of cost 0 would mark an unused entry.
            _ if cost == 0 => {}
            _ => self.push(LogEntry { at_us, cost }),
        }
    }

    #[cold]
    fn refund(&mut self, mut units: u64) {
        while units > 0
            && let Some(LogEntry { at_us, cost }) = self.newest()
        {
            let taken = units.min(cost);
            units -= taken;
            self.total -= taken;
            self.drop_newest();
            if cost > taken {
                self.push(LogEntry { at_us, cost: cost - taken });
            }
        }
    }

    #[cold]
    fn step_back(&mut self, now_us: u64) {
        let mut ahead = 0;
        while let Some(newest) = self.newest()
            && newest.at_us >= now_us
        {
            ahead += newest.cost;
            self.drop_newest();
        }
        self.push(LogEntry { at_us: now_us, cost: ahead });
    }

    #[inline]
    fn inline_count(&self) -> usize {
        self.inline.iter().take_while(|admitted| admitted.cost > 0).count()
    }

    #[inline]
    fn oldest(&self) -> Option<LogEntry> {
        match &self.list {
            None => Some(self.inline[0]).filter(|oldest| oldest.cost > 0),
            Some(list) => list.front().copied(),
        }
    }

    #[inline]
    fn newest(&self) -> Option<LogEntry> {
        match &self.list {
            None => self.inline[..self.inline_count()].last().copied(),
            Some(list) => list.back().copied(),
        }
    }

    #[inline]
    fn newest_mut(&mut self) -> Option<&mut LogEntry> {
        let count = self.inline_count();
        match &mut self.list {
            None => self.inline[..count].last_mut(),
            Some(list) => list.back_mut(),
        }
    }

    #[inline]
    fn drop_oldest(&mut self) {
        match &mut self.list {
            None => {
                self.inline.rotate_left(1);
                self.inline[INLINE_ENTRIES - 1] = LogEntry::default();
            }
            Some(list) => {
                list.pop_front();
                // The list is kept until one entry is left, so that a key with about as many
                // entries as fit inline does not switch back and forth.
                if list.len() <= 1 {
                    self.inline[0] = list.front().copied().unwrap_or_default();
                    self.list = None;
                }
            }
        }
    }

    fn drop_newest(&mut self) {
        let count = self.inline_count();
        match &mut self.list {
            None => {
                if let Some(newest) = self.inline[..count].last_mut() {
                    *newest = LogEntry::default();
                }
            }
            Some(list) => drop(list.pop_back()),
        }
    }

    #[inline]
    fn push(&mut self, admitted: LogEntry) {
        let count = self.inline_count();
        match &mut self.list {
            None if count < INLINE_ENTRIES => self.inline[count] = admitted,
            None => {
                let inline = std::mem::take(&mut self.inline);
                self.list = Some(Box::new(inline.into_iter().chain([admitted]).collect()));
            }
            Some(list) => list.push_back(admitted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Row;

    /// Runs rows of (time, cost, largest count afterwards), all admitted, for one key and a window
    /// of 10.
    fn run(rows: &[(u64, i64, u64)]) {
        let mut ground_truth = GroundTruth::new(10, 5);
        for (step, &(time_us, cost, largest)) in rows.iter().enumerate() {
            ground_truth.record_one(&Row::numbered(time_us, cost, 0), true);
            assert_eq!(ground_truth.largest().count, largest, "step {step}");
        }
    }

    #[test]
    fn window_is_half_open() {
        run(&[(5, 1, 1), (14, 1, 2), (15, 1, 2), (24, 1, 2), (24, 1, 3)]);
    }

    #[test]
    fn refunds_remove_newest_and_peeks_nothing() {
        run(&[
            (1, 2, 2),
            (5, 3, 5),
            (6, -4, 5),
            (6, 0, 5),
            (7, 4, 5),
            (7, 1, 6),
            (8, -99, 6),
            (8, 6, 6),
        ]);
        // The refund leaves the older entry, which expires at 11.
        run(&[(1, 2, 2), (5, 3, 5), (6, -3, 5), (11, 5, 5), (12, 1, 6)]);
    }

    #[test]
    fn saturates_at_maximum_count() {
        let most = i64::MAX.unsigned_abs();
        run(&[
            (1, i64::MAX, most),
            (2, i64::MAX, 2 * most),
            (3, i64::MAX, u64::MAX),
            (4, i64::MAX, u64::MAX),
            (30, 1, u64::MAX),
        ]);
    }

    #[test]
    fn clock_step_back_moves_future_entries() {
        run(&[(100, 3, 3), (50, 1, 4), (59, 1, 5), (60, 1, 5), (60, 4, 6)]);
    }

    #[test]
    fn denied_events_only_advance_time() {
        let mut ground_truth = GroundTruth::new(10, 5);
        let rows = [100, 50, 60].map(|at| Row::numbered(at, 1, 7));
        ground_truth.record_all(&rows, |at| at != 1, |_, _| ());
        assert_eq!(ground_truth.largest().count, 1, "the first is as of 50, so it is gone at 60");
    }

    #[test]
    fn keeps_counts_between_requests() {
        let mut ground_truth = GroundTruth::new(10, 5);
        ground_truth.keep_held();
        let held = |(from_us, to_us, count)| HeldCount { from_us, to_us, count };
        for (time_us, cost, admitted, expected) in [
            (1, 1, true, &[][..]),
            (5, 2, true, &[(1, 5, 1)]),
            (8, 1, false, &[(5, 8, 3)]),
            (30, 1, true, &[(5, 10, 3), (11, 14, 2)]),
        ] {
            ground_truth.record_one(&Row::numbered(time_us, cost, 0), admitted);
            let expected: Vec<_> = expected.iter().copied().map(held).collect();
            assert_eq!(ground_truth.take_held().collect::<Vec<_>>(), expected, "at {time_us}");
        }
        let mut last = Vec::new();
        ground_truth.finish(99, |key, held| last.push((key, held)));
        assert_eq!(last, [(0, held((30, 39, 1)))]);
    }

    #[test]
    fn reports_whether_cost_fits() {
        let mut ground_truth = GroundTruth::new(10, 2);
        let steps = [
            (1, 1, true, (1, true)),
            (2, 1, true, (2, true)),
            (3, 1, true, (3, false)),
            (4, 1, false, (3, false)),
            (11, 1, false, (2, false)),
            (12, 1, false, (1, true)),
            (12, 0, true, (1, true)),
            (12, 2, false, (1, false)),
        ];
        for (step, (time_us, cost, admitted, (count, fits))) in steps.into_iter().enumerate() {
            let true_count = ground_truth.record_one(&Row::numbered(time_us, cost, 0), admitted);
            assert_eq!(true_count, TrueCount { count, fits }, "step {step}");
        }
        assert_eq!(ground_truth.largest(), MaxCount { count: 3, key: 0, time_us: 3 });
    }

    #[test]
    fn matches_brute_force_count() {
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        // Keys with a few entries and keys with many, on both sides of the inline capacity.
        let mut now_us = 0;
        let mut rows = Vec::new();
        for _ in 0..2_000 {
            now_us += random(4);
            let cost = i64::try_from(random(3)).expect("small");
            let key = u32::try_from(random(5)).expect("small");
            rows.push((Row::numbered(now_us, cost, key), random(3) > 0));
        }
        let mut ground_truth = GroundTruth::new(20, 5);
        let (only_rows, admitted): (Vec<_>, Vec<_>) = rows.iter().copied().unzip();
        ground_truth.record_all(&only_rows, |at| admitted[at], |_, _| ());
        let in_window = |end: &Row| {
            let inside = |row: &Row| {
                row.key == end.key && row.time_us <= end.time_us && row.time_us + 20 > end.time_us
            };
            let costs = rows.iter().filter(|(row, ok)| *ok && inside(row)).map(|(row, _)| row.cost);
            costs.sum::<i64>().unsigned_abs()
        };
        let largest = rows.iter().map(|(row, _)| in_window(row)).max().expect("rows");
        assert_eq!(ground_truth.largest().count, largest);
    }
}
