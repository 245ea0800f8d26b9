//! A few counters at once: what most requests with several limits are.
//!
//! `many.rs` decides any request. When all its checks are `sliding-counter`s that
//! sit in their slots and are of the window we are in, all that machinery comes
//! down to reading a few words, asking, and writing them back; this does just
//! that, and leaves everything else to `many.rs`. The benchmark `tidegate-2limits`
//! shows what it is worth.

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Decision, Moment, SlidingCounter, Timestamp};

use super::MemoryStore;
use super::many::{FEW, Few};
use super::one::Located;
use super::shard::{Locked, Place};
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
        let mut shards: Few<usize> = found.iter().map(|found| found.check.shard).collect();
        shards.sort_unstable();
        shards.dedup();
        // In order, as everybody locks several.
        let locks: Few<Locked<'_>> = shards.iter().map(|&shard| self.table.lock(shard)).collect();
        let mut counters: Few<SlidingCounter> = SmallVec::new();
        for found in &found {
            let slot = found.place.read();
            counters.push(found.inline.unpack(slot.body).filter(|_| slot.tag == found.tag)?);
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
        for (found, body) in found.iter().zip(bodies) {
            found.place.write_body(body);
        }
        drop(locks);
        Some(Verdict::new(checks, decisions, false))
    }

    #[inline]
    fn find_counter<'a>(&'a self, check: &Check<'a>, now: Timestamp) -> Option<Found<'a>> {
        if check.limit.algorithm() != Algorithm::SlidingCounter || check.observed {
            return None;
        }
        let now = check.limit.moment(now);
        let inline = Inline::counter(check.limit, &now)?;
        let check = self.locate(check);
        let tag = inline.tag(check.fingerprint());
        let place = self.table.shard(check.shard).glimpse(check.fingerprint(), tag)?;
        Some(Found { check, now, inline, tag, place })
    }
}
