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

use super::Answer;
use super::plan::{Part, Plan};
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
    pub(super) fn ask_again(&mut self) -> bool {
        !self.answer.allowed && self.withholds && (self.spend() || self.consume())
    }

    /// After the last denial: lets the next one consume, if any part does. Not where the store
    /// failed: it may have been charged.
    fn consume(&mut self) -> bool {
        let consumes = |part: &Part<'_>| part.overflow == Overflow::Consume;
        let again =
            self.can_choose(&self.answer) && self.parts.iter().any(consumes) && self.charges();
        self.withholds &= !again;
        again
    }

    /// After a denial: passes over the quotas that denied, if nothing else did and another
    /// quota has room. Says whether it is worth asking again, which it is fewer times than
    /// there are quotas. A denial charges nothing, so that asking again is all there is to it.
    fn spend(&mut self) -> bool {
        if self.answer.allowed || !self.can_choose(&self.answer) {
            return false;
        }
        let waits = self.waits(&self.answer);
        let all = || self.parts.iter().zip(&waits).filter(|(part, _)| !part.spent);
        let others_deny = all().any(|(part, wait_us)| part.has_say() && *wait_us > 0);
        let has_room = all().any(|(part, wait_us)| part.quota && *wait_us == 0);
        if others_deny || !has_room {
            return false;
        }
        for (part, wait_us) in self.parts.iter_mut().zip(&waits) {
            part.spent |= part.quota && *wait_us > 0;
        }
        true
    }

    /// Begins anew: no quota is passed over.
    pub(super) fn spend_nothing(&mut self) {
        for part in &mut self.parts {
            part.spent = false;
        }
    }

    /// When a request that was answered so would pass if nothing else arrived: as soon as
    /// everything that is no quota admits it, and one of the quotas.
    pub(super) fn retry_after(&self, answer: &Answer<'_>) -> RetryAfter {
        if answer.allowed || !self.can_choose(answer) {
            return answer.retry_after();
        }
        let waits = self.waits(answer);
        let all = || self.parts.iter().zip(&waits);
        let others = all().filter(|(part, _)| part.has_say()).map(|(_, wait_us)| *wait_us).max();
        let quotas = all().filter(|(part, _)| part.quota).map(|(_, wait_us)| *wait_us).min();
        match others.max(quotas) {
            None | Some(0) => RetryAfter::Now,
            Some(u64::MAX) => RetryAfter::Never,
            Some(wait_us) => RetryAfter::Micros(wait_us),
        }
    }

    /// Whether the answer tells which quotas have room. What was not decided by the store is
    /// not asked again: it may have been charged.
    fn can_choose(&self, answer: &Answer<'_>) -> bool {
        self.has_choice() && !answer.no_room && answer.decided == Decided::Exact
    }

    /// How long each part would wait by itself: 0 if it admits, all there is if it never does.
    fn waits(&self, answer: &Answer<'_>) -> SmallVec<[u64; 4]> {
        let mut lines = answer.lines.iter();
        let waits = self.parts.iter().map(|part| {
            let own = lines.by_ref().take(part.limits.len());
            let denied = own.filter(|line| !line.decision.allowed);
            let wait_us = |retry: RetryAfter| retry.as_micros().map_or(u64::MAX, |us| us.max(1));
            denied.map(|line| wait_us(line.decision.retry_after)).max().unwrap_or(0)
        });
        waits.collect()
    }
}

impl Part<'_> {
    /// Whether it must admit, whatever others do.
    fn has_say(&self) -> bool {
        self.mode == Mode::Enforce && !self.quota
    }
}
