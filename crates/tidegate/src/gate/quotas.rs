//! Several quotas, of which one with room is enough to admit a request.
//!
//! A store admits a request only if all of its checks do. So after a denial the exhausted quotas
//! are skipped, which means that they are only observed, and the request is decided again. A
//! waiting request waits until the first quota has room, and then starts again with all of them,
//! because another one may have room by then.
//!
//! A denial that consumes what is left is final. So the first attempts do not consume. If no other
//! quota has room, the request is decided once more, and that denial consumes. A skipped quota is
//! not charged: its limits are observed together.

use smallvec::SmallVec;
use tidegate_core::{Decision, RetryAfter};

use super::decide::GateCall;
use super::plan::{Plan, PlannedPolicy};
use super::{GateRequest, GateVerdict, LimitResult};
use crate::Overflow;
use crate::policy::Mode;
use crate::stats::Decided;

impl GateCall<'_> {
    /// Whether the request has to be decided again: without the quotas that denied it, or to
    /// consume what is left. If not, the verdict is final.
    #[inline]
    pub(super) fn should_retry(&mut self) -> bool {
        if self.verdict.allowed || !self.plan.has_choice() {
            return false;
        }
        let again = self.plan.defers_overflow && (self.skip_exhausted() || self.allow_overflow());
        if !again {
            self.plan.report_awaited(&mut self.verdict);
        }
        again
    }

    /// Lets the denial of the next attempt consume, if a policy consumes. Returns whether to decide
    /// again. After a failure of the store it does not, because the request may have been charged.
    fn allow_overflow(&mut self) -> bool {
        let consumes = |planned: &PlannedPolicy<'_>| planned.overflow == Overflow::Consume;
        let again = self.plan.can_choose(&self.verdict)
            && self.plan.policies.iter().any(consumes)
            && self.plan.changes_counts();
        self.plan.defers_overflow &= !again;
        again
    }

    /// Skips the quotas that denied, if only quotas denied and another one has room. Returns
    /// whether to decide again, which is true fewer times than there are quotas. The denial charged
    /// nothing, so there is nothing to undo.
    fn skip_exhausted(&mut self) -> bool {
        if self.verdict.allowed || !self.plan.can_choose(&self.verdict) {
            return false;
        }
        let waits = self.plan.waits(&self.verdict);
        let all = || self.plan.policies.iter().zip(&waits).filter(|(planned, _)| !planned.skipped);
        let others_deny = all().any(|(planned, wait_us)| planned.is_required() && *wait_us > 0);
        let has_room = self.plan.has_free_quota
            || all().any(|(planned, wait_us)| planned.is_enforced_quota && *wait_us == 0);
        if others_deny || !has_room {
            return false;
        }
        for (planned, wait_us) in self.plan.policies.iter_mut().zip(&waits) {
            planned.skipped |= planned.is_enforced_quota && *wait_us > 0;
        }
        true
    }
}

impl Plan<'_> {
    /// Counts the quotas among the policies and the requests.
    pub(super) fn count_quotas(&mut self, requests: &[GateRequest<'_>]) {
        let planned = |index: usize| self.policies.iter().filter(move |p| p.request_index == index);
        let has_room = |(index, request): &(usize, &GateRequest<'_>)| {
            // A policy that matches has no limits, or is enforced.
            let binds = |p: &PlannedPolicy<'_>| p.limits.is_empty() || p.mode == Mode::Enforce;
            request.is_quota && !planned(*index).any(binds)
        };
        let free = requests.iter().enumerate().filter(has_room).count();
        let enforced = self.policies.iter().filter(|planned| planned.is_enforced_quota).count();
        self.has_free_quota = free > 0;
        self.quotas = enforced + free;
        self.defers_overflow = self.has_choice();
    }

    /// Whether there are several quotas, of which one is enough.
    pub(super) fn has_choice(&self) -> bool {
        self.quotas >= 2
    }

    /// Stops skipping quotas, for a new attempt.
    pub(super) fn reset_skips(&mut self) {
        for planned in &mut self.policies {
            planned.skipped = false;
        }
    }

    /// The time after which a request with this verdict would pass if nothing else arrived: when
    /// all policies that are not quotas and one of the quotas admit it.
    pub(super) fn retry_after(&self, verdict: &GateVerdict<'_>) -> RetryAfter {
        if verdict.allowed || !self.can_choose(verdict) {
            return verdict.retry_after();
        }
        let waits = self.waits(verdict);
        let all = || self.policies.iter().zip(&waits);
        let others =
            all().filter(|(planned, _)| planned.is_required()).map(|(_, wait_us)| *wait_us).max();
        let quotas = all()
            .filter(|(planned, _)| planned.is_enforced_quota)
            .map(|(_, wait_us)| if self.has_free_quota { 0 } else { *wait_us })
            .min();
        match others.max(quotas) {
            None | Some(0) => RetryAfter::Now,
            Some(u64::MAX) => RetryAfter::Never,
            Some(wait_us) => RetryAfter::Micros(wait_us),
        }
    }

    /// Reports the limit that a denied request waits for: the last of the policies that are not
    /// quotas, or the first of the quotas if that is later. So the wait that is reported is that of
    /// the request.
    pub(super) fn report_awaited(&self, verdict: &mut GateVerdict<'_>) {
        if !self.can_choose(verdict) {
            return;
        }
        let awaited = self.retry_after(verdict);
        let is_awaited = |result: &LimitResult<'_>| {
            let Decision { allowed, retry_after, .. } = result.decision;
            result.is_enforced() && !allowed && retry_after == awaited
        };
        let index = verdict.results.iter().position(is_awaited);
        verdict.reported = index.or(verdict.reported);
    }

    /// Whether the verdict shows which quotas have room. A request that was not decided by the
    /// store is not repeated, because it may have been charged.
    fn can_choose(&self, verdict: &GateVerdict<'_>) -> bool {
        self.has_choice() && !verdict.no_room && verdict.decided == Decided::Exact
    }

    /// The wait of each policy on its own: 0 if it admits the request, `u64::MAX` if it never does.
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
    /// Whether this policy must admit the request, whatever the quotas do.
    fn is_required(&self) -> bool {
        self.mode == Mode::Enforce && !self.is_enforced_quota
    }
}
