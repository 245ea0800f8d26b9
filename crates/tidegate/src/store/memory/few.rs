//! A few counters at once: what most requests with several limits are.
//!
//! `many.rs` decides any request. When all its checks are `sliding-counter`s that
//! sit in their slots and are of the window we are in, all that machinery comes
//! down to seizing a few words, asking, and writing them back, without a lock on
//! any shard; this does just that, and leaves everything else to `many.rs`. The benchmark `tidegate-2limits`
//! shows what it is worth.

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Decision, Moment, SlidingCounter, Timestamp};

use super::MemoryStore;
use super::many::{FEW, Few};
use super::one::Located;
use super::shard::Place;
use super::slot::Inline;
use crate::{Check, Verdict};

/// A check whose counter was found in its slot.
struct Found<'a> {
    check: Located<'a>,
    now: Moment,
    inline: Inline,
    tag: u64,
    place: Place<'a>,
}

/// The slots of a request, seized. Let go, they are as they were, unless they
/// were released with something else.
struct Held<'f, 'a> {
    found: &'f [Found<'a>],
    bodies: Few<u64>,
}

impl<'f, 'a> Held<'f, 'a> {
    /// Seizes all slots, or none if one is not to be had at once: whoever has
    /// seized one must not wait for another.
    fn seize(found: &'f [Found<'a>]) -> Option<Self> {
        let mut held = Held { found, bodies: SmallVec::new() };
        for one in found {
            held.bodies.push(one.place.try_seize()?);
            if one.place.tag() != one.tag {
                return None;
            }
        }
        Some(held)
    }

    fn release(mut self, bodies: Few<u64>) {
        self.bodies = bodies;
    }
}

impl Drop for Held<'_, '_> {
    fn drop(&mut self) {
        for (found, &body) in self.found.iter().zip(&self.bodies) {
            found.place.release(body);
        }
    }
}

impl MemoryStore {
    /// The verdict on a request of a few counters; `None` if it is anything else,
    /// and then nothing was changed.
    pub(super) fn decide_few(&self, checks: &[Check<'_>], now: Timestamp) -> Option<Verdict> {
        if checks.len() > FEW {
            return None;
        }
        let mut found: Few<Found<'_>> = SmallVec::new();
        for check in checks {
            let next = self.find_counter(check, now)?;
            if found.iter().any(|other| other.check.fingerprint() == next.check.fingerprint()) {
                return None;
            }
            found.push(next);
        }
        let held = Held::seize(&found)?;
        let mut counters: Few<SlidingCounter> = SmallVec::new();
        for (found, &body) in found.iter().zip(&held.bodies) {
            counters.push(found.inline.unpack(body)?);
        }
        let each = || found.iter().zip(&counters);
        let admitted =
            each().all(|(f, counter)| counter.would_admit(f.check.limit, f.check.cost, &f.now));
        let mut decisions: SmallVec<[Decision; FEW]> = SmallVec::new();
        let mut bodies: Few<u64> = SmallVec::new();
        for (found, mut counter) in found.iter().zip(counters) {
            let Located { limit, cost, .. } = found.check;
            let outcome = counter.step_if(limit, cost, &found.now, admitted);
            bodies.push(found.inline.pack(&counter)?);
            decisions.push(counter.report(limit, cost, &found.now, outcome));
        }
        held.release(bodies);
        Some(Verdict::new(checks, decisions, false))
    }

    #[inline]
    fn find_counter<'a>(&'a self, check: &Check<'a>, now: Timestamp) -> Option<Found<'a>> {
        if check.limit.algorithm() != Algorithm::SlidingCounter || check.observed {
            return None;
        }
        if check.overflowing() > 0 {
            return None;
        }
        let now = check.limit.moment(now);
        let inline = Inline::counter(check.limit, &now)?;
        let check = self.locate(check);
        let tag = inline.tag(check.fingerprint());
        let place = self.table.extent(check.shard).glimpse(check.fingerprint(), tag)?;
        Some(Found { check, now, inline, tag, place })
    }
}
