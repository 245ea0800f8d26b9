//! `concurrency`: limits the requests in flight.
//!
//! A rate does not limit slow requests: ten a second that each take a minute are
//! 600 in flight. Here a request holds a permit while it runs. The naive version, a
//! counter that goes up and down, leaks a permit for ever when a holder dies between
//! the two. So every permit has a *lease*: it is released when the lease ends, unless
//! it is renewed.
//!
//! ```text
//!   limit 2, lease 60 s
//!   a  |========= released
//!   b     |=======~~~~~~~~~~~~~~~~~~~~~| holder died: released 60 s after it began
//!   c        |? denied, retry when the lease of a or b ends, whichever is first
//! ```
//!
//! **Admits** iff the permits held plus the cost stay within `L`.
//! **Retry-after**: the time until enough leases will have ended, if no permit is
//! released earlier. A release is a refund, and waits never assume refunds.
//!
//! **Bound: `L` in flight**, as long as every holder stops working when its lease ends.
//!
//! **Cost**: 40 bytes per held permit.

use alloc::vec::Vec;

use super::AlgorithmState;
use crate::limit::WindowPosition;
use crate::{Attempt, Limit, PermitId, Timestamp};

/// The state of a `concurrency` limit.
#[derive(Clone, Debug, Default)]
pub struct Permits {
    /// The held permits, in the order in which their leases end.
    held: Vec<Held>,
    total: u64,
    /// The number of permits ever held, which orders them by age.
    count: u64,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    id: PermitId,
    cost: u64,
    since: Timestamp,
    lease_us: u64,
    /// Its number among all permits ever held. The newest has the largest.
    order: u64,
}

impl Held {
    fn ends(&self) -> Timestamp {
        self.since.plus_micros(self.lease_us)
    }
}

impl Permits {
    /// Creates permits without ids that are held since `now`, from their costs and the ends of
    /// their leases.
    pub fn until(now: Timestamp, held: impl IntoIterator<Item = (u64, Timestamp)>) -> Self {
        let mut permits = Permits::default();
        for (cost, ends) in held {
            permits.count += 1;
            permits.hold(Held {
                id: PermitId::default(),
                cost,
                since: now,
                lease_us: ends.as_micros().saturating_sub(now.as_micros()),
                order: permits.count,
            });
        }
        permits
    }

    /// Returns the held permits with their costs and the ends of their leases, in the order in
    /// which the leases end.
    pub fn held(&self) -> impl Iterator<Item = (PermitId, u64, Timestamp)> {
        self.held.iter().map(|held| (held.id, held.cost, held.ends()))
    }

    /// Returns the number of held permits.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Returns whether no permit is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Releases a permit. Returns `false` if it is not held, for example because its lease ended.
    pub fn release(&mut self, permit: PermitId) -> bool {
        self.take(permit).is_some()
    }

    /// Restarts the lease of a permit at `now`. Returns `false` if it is not held, for example
    /// because its lease ended.
    pub fn renew(&mut self, limit: &Limit, permit: PermitId, now: Timestamp) -> bool {
        self.advance(limit, &limit.window_position(now));
        match self.take(permit) {
            Some(held) => {
                self.hold(Held { since: now, lease_us: limit.window_us(), ..held });
                true
            }
            None => false,
        }
    }

    fn take(&mut self, permit: PermitId) -> Option<Held> {
        let index = self.held.iter().position(|held| held.id == permit)?;
        let held = self.held.remove(index);
        self.total -= held.cost;
        Some(held)
    }

    fn hold(&mut self, held: Held) {
        let index = self.held.partition_point(|other| other.ends() <= held.ends());
        self.held.insert(index, held);
        self.total += held.cost;
    }
}

impl AlgorithmState for Permits {
    fn advance(&mut self, _limit: &Limit, now: &WindowPosition) {
        let from_the_future = |held: &Held| held.since > now.at;
        if self.held.iter().any(from_the_future) {
            for held in self.held.iter_mut().filter(|held| from_the_future(held)) {
                held.since = now.at;
            }
            self.held.sort_by_key(Held::ends);
        }
        let ended = self.held.partition_point(|held| held.ends() <= now.at);
        self.total -= self.held.drain(..ended).map(|held| held.cost).sum::<u64>();
    }

    fn available(&self, limit: &Limit, _now: &WindowPosition) -> u64 {
        limit.count().saturating_sub(self.total)
    }

    fn wait_us(&self, limit: &Limit, cost: u64, now: &WindowPosition) -> u64 {
        let to_free = (self.total + cost).saturating_sub(limit.count());
        let mut freed = 0;
        let mut ends = now.at;
        for held in &self.held {
            if freed >= to_free {
                break;
            }
            freed += held.cost;
            ends = held.ends();
        }
        ends.as_micros() - now.at.as_micros()
    }

    fn charge(&mut self, limit: &Limit, units: u64, attempt: &Attempt, _now: &WindowPosition) {
        let cost = units.min(limit.count_cap().saturating_sub(self.total));
        if cost > 0 {
            self.count += 1;
            let (since, lease_us, order) = (attempt.now, limit.window_us(), self.count);
            self.hold(Held { id: attempt.permit, cost, since, lease_us, order });
        }
    }

    fn refund(&mut self, _limit: &Limit, mut units: u64) {
        while units > 0
            && let Some(newest) = self.held.iter().enumerate().max_by_key(|(_, held)| held.order)
        {
            let index = newest.0;
            let taken = units.min(self.held[index].cost);
            self.held[index].cost -= taken;
            self.total -= taken;
            units -= taken;
            if self.held[index].cost == 0 {
                self.held.remove(index);
            }
        }
    }

    fn held_entries(&self) -> usize {
        self.len()
    }

    fn expires_at(&self, _limit: &Limit) -> Timestamp {
        self.held.last().map_or(Timestamp::EPOCH, Held::ends)
    }
}
