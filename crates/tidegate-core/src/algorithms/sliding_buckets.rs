//! `sliding-buckets`: a log whose entries share places; never more than `L`, in constant memory.
//!
//! The usual cheap log cuts the window into `N` sub-windows, counts per
//! sub-window and weighs the oldest one by how much of it still overlaps. That
//! guess is what breaks: put everything at the end of the oldest sub-window and
//! it is forgotten while it is still recent, at any `N`; the worst case stays
//! near `2L`. Here nothing is weighed. Each bucket remembers the time of its
//! *last hit* and counts whole until that hit is `W` old.
//!
//! ```text
//!   limit 10 per 60 s, 6 buckets of 10 s
//!        |  3  x  x|     x 2 |         |  4 x    |    ?
//!        0    ^   10         20        30        40   45
//!             the bucket of 3 was last hit at 9.5: all 3 count until 69.5
//! ```
//!
//! **Admits** iff the live buckets' counts plus the cost stay within `L`.
//! **Retry-after** as for the log, with buckets for entries and last hits for times.
//!
//! **Bound: `L`, always.** A request is counted at least until it is `W` old,
//! because its bucket's last hit is not before it; so the count is never below
//! what the exact log would hold, and the log's proof carries over.
//! What is given up: a request may count until its bucket's last hit ages out,
//! less than `ceil(W/N)` later than in the log.
//!
//! **Cost**: at most `N + 2` entries of the packed queue. A bucket older than
//! `N` sub-windows has surely aged out (`N * ceil(W/N) >= W`), so `N + 1` are
//! ever live. The newest may take two places, what it held before its last hit
//! and what came with it, so that refunding a charge restores the hit before.

use super::Window;
use super::sliding_log::{expires_at, reenter_future, refund_newest, reset_after};
use crate::limit::Moment;
use crate::{Ask, Entries, Entry, Limit, ResetAfter, Timestamp};

/// The state of `sliding-buckets`.
#[derive(Clone, Debug, Default)]
pub struct SlidingBuckets {
    entries: Entries,
}

impl SlidingBuckets {
    /// The buckets it holds, oldest first, each at its last hit.
    pub fn entries(&self) -> &Entries {
        &self.entries
    }

    /// Where the newest bucket begins: entries from there on live as long as the newest.
    fn newest_bucket(&self, limit: &Limit) -> Option<(u64, Timestamp)> {
        let newest = self.entries.newest_at()?;
        let sub_window_us = limit.sub_window_us();
        Some((newest.as_micros() / sub_window_us * sub_window_us, newest))
    }
}

impl From<Entries> for SlidingBuckets {
    fn from(entries: Entries) -> Self {
        SlidingBuckets { entries }
    }
}

impl Window for SlidingBuckets {
    fn advance(&mut self, limit: &Limit, now: &Moment) {
        reenter_future(&mut self.entries, now.at);
        let Some(cutoff) = now.at.as_micros().checked_sub(limit.window_us()) else { return };
        let Some((start, newest)) = self.newest_bucket(limit) else { return };
        let last_to_go = if newest.as_micros() <= cutoff {
            cutoff
        } else {
            // The newest bucket is live, and so is all of it.
            match start.checked_sub(1) {
                Some(before) => cutoff.min(before),
                None => return,
            }
        };
        self.entries.drop_through(Timestamp::from_micros(last_to_go));
    }

    fn available(&self, limit: &Limit, _now: &Moment) -> u64 {
        limit.count().saturating_sub(self.entries.total())
    }

    fn wait_us(&self, limit: &Limit, cost: u64, now: &Moment) -> u64 {
        let to_free = (self.entries.total() + cost).saturating_sub(limit.count());
        if to_free == 0 {
            return 0;
        }
        let freed_by = match (self.entries.time_of_unit(to_free), self.newest_bucket(limit)) {
            (Some(at), Some((start, newest))) if at.as_micros() >= start => newest,
            (Some(at), _) => at,
            (None, _) => now.at,
        };
        limit.window_us() - (now.at.as_micros() - freed_by.as_micros())
    }

    fn reset_after(&self, limit: &Limit, now: &Moment) -> ResetAfter {
        reset_after(&self.entries, limit, now)
    }

    fn charge(&mut self, limit: &Limit, units: u64, ask: &Ask) {
        let room = limit.count_cap().saturating_sub(self.entries.total());
        let units = units.min(room);
        let newest_bucket = self.newest_bucket(limit);
        if let Some((start, newest)) = newest_bucket
            && newest < ask.now
            && units > 0
        {
            // Another hit in the newest bucket: what it held becomes one place.
            let mut held = 0;
            while self.entries.newest_at().is_some_and(|at| at.as_micros() >= start) {
                held += self.entries.pop_newest().map_or(0, |entry| entry.cost);
            }
            self.entries.push(Entry { at: newest, cost: held });
        }
        self.entries.push(Entry { at: ask.now, cost: units });
    }

    fn refund(&mut self, _limit: &Limit, units: u64) {
        refund_newest(&mut self.entries, units);
    }

    fn expires_at(&self, limit: &Limit) -> Timestamp {
        expires_at(&self.entries, limit)
    }
}
