//! The side of the node: the units it may spend, and until when.

use super::{Grant, GrantId};
use crate::Timestamp;

/// The part of a duration by which the clocks of a node and of the store may differ: one in this
/// number. A clock that NTP adjusts is off by at most half of it.
const DRIFT_DIVISOR: u64 = 1_000;

/// Units that a node has taken from the shared store.
///
/// All times are those of one clock of the node that never steps back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    id: GrantId,
    /// The units that may be spent in total, as the store counts them.
    units: u64,
    /// The units that were spent and not refunded.
    spent: u64,
    sent: Timestamp,
    stop: Timestamp,
}

/// A message to the store: the node keeps only some units of a grant.
///
/// It carries the units that are kept, not those that are given back. So it may arrive twice, late
/// or out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GiveBack {
    /// The grant.
    pub id: GrantId,
    /// The units that the node has spent, or may still spend.
    pub keep: u64,
}

impl Lease {
    /// Creates the lease of a grant for which the request was *sent* at this time.
    ///
    /// The lease ends the duration of the grant after that, less one part in a thousand and one
    /// microsecond for the drift of the clocks, and less `margin_us`. The margin is the resolution
    /// of the clock that [`Lease::spend`] is called with: the most by which it may be behind.
    pub fn new(grant: &Grant, sent: Timestamp, margin_us: u64) -> Self {
        let drift_us = grant.duration_us.div_ceil(DRIFT_DIVISOR) + 1;
        let spent_within_us = grant.duration_us.saturating_sub(drift_us.saturating_add(margin_us));
        let stop = sent.plus_micros(spent_within_us);
        Lease { id: grant.id, units: grant.units, spent: 0, sent, stop }
    }

    /// Returns the name of the grant.
    pub fn id(&self) -> GrantId {
        self.id
    }

    /// Returns the first time at which nothing can be spent any more.
    pub fn stop(&self) -> Timestamp {
        self.stop
    }

    /// Returns the units that can be spent at `now`.
    ///
    /// It is never more than the limit has left, because the store counts these units as used by
    /// nobody else.
    pub fn left(&self, now: Timestamp) -> u64 {
        if self.sent <= now && now < self.stop { self.units - self.spent } else { 0 }
    }

    /// Returns the units that were not spent, whether or not the lease has ended.
    pub fn unspent(&self) -> u64 {
        self.units - self.spent
    }

    /// Spends units and returns how many are left. A cost of 0 spends nothing, and needs one unit
    /// as a peek does. Returns `None`, and spends nothing, if the store has to decide: if too few
    /// units are left, or the lease has ended.
    pub fn spend(&mut self, units: u64, now: Timestamp) -> Option<u64> {
        let left = self.left(now);
        if units.max(1) > left {
            return None;
        }
        self.spent += units;
        Some(left - units)
    }

    /// Refunds units that were spent, and returns how many. The store has to refund the others.
    pub fn refund(&mut self, units: u64, now: Timestamp) -> u64 {
        let refunded = if now < self.stop { units.min(self.spent) } else { 0 };
        self.spent -= refunded;
        refunded
    }

    /// Gives back all but `left` of the units that are not spent. They cannot be spent any more
    /// from then on, whether or not the message arrives.
    pub fn give_back(&mut self, left: u64) -> GiveBack {
        self.units = self.units.min(self.spent.saturating_add(left));
        GiveBack { id: self.id, keep: self.units }
    }
}
