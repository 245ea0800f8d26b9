//! `sliding-log`: remembers every admitted request, and is exact.
//!
//! The naive limiter counts per calendar window and admits twice the limit across
//! a window boundary. The log has no boundaries: it keeps the time and cost of each
//! admitted request and counts exactly the last `W`.
//!
//! ```text
//!   limit 5 per 60 s                    window (3660, 3720]
//!   3650     3680     3695     3710     3720
//!     x--------+--------+--------+--------? 3 in the window, the 4th fits
//!     |
//!     70 s old: no longer counts (an entry exactly 60 s old does not either)
//! ```
//!
//! A denied request records nothing, so a client that keeps sending while it is
//! denied neither fills memory nor extends its denial. A denied request does drop
//! entries that have expired, which is visible only if the clock then steps back.
//!
//! **Admits** iff the costs in `(now - W, now]` plus this one stay within `L`.
//! **Retry-after**: costs are added up from the oldest entry on until enough would be
//! free. The wait ends when that entry is `W` old.
//!
//! **Bound: `L`, exactly.** Take any window `(t - W, t]` and the last request
//! admitted in it, at `s <= t`. When it was admitted the log held everything
//! admitted in `(s - W, s]`, which contains everything the window holds, and the
//! sum with it was at most `L`.
//!
//! **Cost**: about 3 bytes per entry on the heap (see `entries.rs`), in amortised
//! constant time. Requests in the same microsecond share an entry. A store packs a log
//! of a few units in 64 bytes (see `short_log.rs`).

mod short_log;

pub(crate) use short_log::{decide_short_log, packed_entries};

use super::AlgorithmState;
use crate::limit::WindowPosition;
use crate::{Attempt, Decision, Entries, Entry, Limit, ResetAfter, Timestamp};

/// The state of a `sliding-log`.
#[derive(Clone, Debug, Default)]
pub struct SlidingLog {
    entries: Entries,
}

impl SlidingLog {
    /// Returns the entries, oldest first.
    pub fn entries(&self) -> &Entries {
        &self.entries
    }

    /// Decides for one limit on its own: the cost is charged if the limit admits it.
    #[inline(always)]
    pub fn decide(&mut self, limit: &Limit, attempt: &Attempt) -> Decision {
        AlgorithmState::decide(self, limit, attempt)
    }

    /// Moves the newest entry to `now`, so that an entry that is pushed at `now` is merged with it.
    ///
    /// The log then does not grow. The units of the moved entry expire later, so no more is
    /// admitted than before.
    pub fn merge_newest(&mut self, now: Timestamp) {
        if let Some(newest) = self.entries.pop_newest() {
            self.entries.push(Entry { at: now, cost: newest.cost });
        }
    }
}

impl From<Entries> for SlidingLog {
    fn from(entries: Entries) -> Self {
        SlidingLog { entries }
    }
}

impl AlgorithmState for SlidingLog {
    #[inline]
    fn advance(&mut self, limit: &Limit, now: &WindowPosition) {
        reenter_future(&mut self.entries, now.at);
        if let Some(cutoff) = now.at.as_micros().checked_sub(limit.window_us()) {
            self.entries.drop_through(Timestamp::from_micros(cutoff));
        }
    }

    #[inline]
    fn available(&self, limit: &Limit, _now: &WindowPosition) -> u64 {
        limit.count().saturating_sub(self.entries.total())
    }

    fn wait_us(&self, limit: &Limit, cost: u64, now: &WindowPosition) -> u64 {
        let to_free = (self.entries.total() + cost).saturating_sub(limit.count());
        if to_free == 0 {
            return 0;
        }
        let freed_by = self.entries.time_of_unit(to_free).unwrap_or(now.at);
        limit.window_us() - (now.at.as_micros() - freed_by.as_micros())
    }

    #[inline]
    fn reset_after(&self, limit: &Limit, now: &WindowPosition) -> ResetAfter {
        // The time until the newest entry is a window old. All others are older.
        let newest = self.entries.newest_at().filter(|_| limit.count() > 0);
        let passed = newest.map(|at| now.at.as_micros() - at.as_micros());
        ResetAfter::from_micros(passed.map_or(0, |us| limit.window_us() - us))
    }

    #[inline]
    fn charge(&mut self, limit: &Limit, units: u64, attempt: &Attempt, _now: &WindowPosition) {
        let room = limit.count_cap().saturating_sub(self.entries.total());
        self.entries.push(Entry { at: attempt.now, cost: units.min(room) });
    }

    fn refund(&mut self, _limit: &Limit, units: u64) {
        refund_newest(&mut self.entries, units);
    }

    #[inline]
    fn expires_at(&self, limit: &Limit) -> Timestamp {
        let newest = self.entries.newest_at();
        newest.map_or(Timestamp::EPOCH, |at| at.plus_micros(limit.window_us()))
    }

    fn held_entries(&self) -> usize {
        self.entries.len()
    }

    fn merge_newest_entry(&mut self, now: Timestamp) {
        self.merge_newest(now);
    }
}

/// Merges all entries later than `now` into one entry at `now`.
#[inline]
fn reenter_future(entries: &mut Entries, now: Timestamp) {
    if entries.newest_at().is_some_and(|newest| newest > now) {
        let mut cost = 0;
        while entries.newest_at().is_some_and(|newest| newest > now) {
            cost += entries.pop_newest().map_or(0, |entry| entry.cost);
        }
        entries.push(Entry { at: now, cost });
    }
}

/// Removes `units` from the newest entries.
fn refund_newest(entries: &mut Entries, mut units: u64) {
    while units > 0
        && let Some(newest) = entries.pop_newest()
    {
        let kept = newest.cost.saturating_sub(units);
        units -= newest.cost - kept;
        entries.push(Entry { at: newest.at, cost: kept });
    }
}
