//! Of several quotas one that has room is enough.
//!
//! A store knows nothing of that: what it is asked, all must admit. So after a denial the
//! quotas that denied are passed over, which is to say that they are only watched, and it is
//! asked again. Who waits does so until the first of them has room, and then begins anew:
//! by then it may be another.
//!
//! A denial that consumes what is left is final. So the first attempts consume nothing; when no
//! other quota has room, the request is decided once more, and a denial then consumes. Quotas
//! that were passed over are not charged.

use smallvec::SmallVec;
use tidegate_core::RetryAfter;

use super::GateVerdict;
use super::plan::{Plan, PlannedPolicy};
use crate::Overflow;
use crate::policy::Mode;
use crate::stats::Decided;

impl Plan<'_> {
    /// Whether there are several quotas, of which one is enough.
    pub(super) fn has_choice(&self) -> bool {
        self.quotas >= 2
    }

    /// Whether the request is to be made again: without the quotas that denied it, or to
    /// consume what is left.
    #[inline]
    pub(super) fn should_retry(&mut self) -> bool {
        !self.verdict.allowed
            && self.defers_overflow
            && (self.skip_exhausted() || self.allow_overflow())
    }

    /// After the last denial: lets the next one consume, if any part does. Not where the store
    /// failed: it may have been charged.
    fn allow_overflow(&mut self) -> bool {
        let consumes = |planned: &PlannedPolicy<'_>| planned.overflow == Overflow::Consume;
        let again =
            self.can_choose(&self.verdict) && self.policies.iter().any(consumes) && self.charges();
        self.defers_overflow &= !again;
        again
    }

    /// After a denial: passes over the quotas that denied, if nothing else did and another
    /// quota has room. Says whether it is worth asking again, which it is fewer times than
    /// there are quotas. A denial charges nothing, so that asking again is all there is to it.
    fn skip_exhausted(&mut self) -> bool {
        if self.verdict.allowed || !self.can_choose(&self.verdict) {
            return false;
        }
        let waits = self.waits(&self.verdict);
        let all = || self.policies.iter().zip(&waits).filter(|(planned, _)| !planned.skipped);
        let others_deny = all().any(|(planned, wait_us)| planned.is_required() && *wait_us > 0);
        let has_room = all().any(|(planned, wait_us)| planned.quota && *wait_us == 0);
        if others_deny || !has_room {
            return false;
        }
        for (planned, wait_us) in self.policies.iter_mut().zip(&waits) {
            planned.skipped |= planned.quota && *wait_us > 0;
        }
        true
    }

    /// Begins anew: no quota is passed over.
    pub(super) fn reset_skips(&mut self) {
        for planned in &mut self.policies {
            planned.skipped = false;
        }
    }

    /// When a request that was answered so would pass if nothing else arrived: as soon as
    /// everything that is no quota admits it, and one of the quotas.
    pub(super) fn retry_after(&self, verdict: &GateVerdict<'_>) -> RetryAfter {
        if verdict.allowed || !self.can_choose(verdict) {
            return verdict.retry_after();
        }
        let waits = self.waits(verdict);
        let all = || self.policies.iter().zip(&waits);
        let others =
            all().filter(|(planned, _)| planned.is_required()).map(|(_, wait_us)| *wait_us).max();
        let quotas = all().filter(|(planned, _)| planned.quota).map(|(_, wait_us)| *wait_us).min();
        match others.max(quotas) {
            None | Some(0) => RetryAfter::Now,
            Some(u64::MAX) => RetryAfter::Never,
            Some(wait_us) => RetryAfter::Micros(wait_us),
        }
    }

    /// Whether the answer tells which quotas have room. What was not decided by the store is
    /// not asked again: it may have been charged.
    fn can_choose(&self, verdict: &GateVerdict<'_>) -> bool {
        self.has_choice() && !verdict.no_room && verdict.decided == Decided::Exact
    }

    /// How long each part would wait by itself: 0 if it admits, all there is if it never does.
    fn waits(&self, verdict: &GateVerdict<'_>) -> SmallVec<[u64; 4]> {
        let mut results = verdict.results.iter();
        let waits = self.policies.iter().map(|planned| {
            let results = results.by_ref().take(planned.limits.len());
            let denied = results.filter(|result| !result.decision.allowed);
            let wait_us = |retry: RetryAfter| retry.as_micros().map_or(u64::MAX, |us| us.max(1));
            denied.map(|result| wait_us(result.decision.retry_after)).max().unwrap_or(0)
        });
        waits.collect()
    }
}

impl PlannedPolicy<'_> {
    /// Whether it must admit, whatever others do.
    fn is_required(&self) -> bool {
        self.mode == Mode::Enforce && !self.quota
    }
}
