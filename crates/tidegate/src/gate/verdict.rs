//! Verdicts of the gate.

use std::time::Duration;
use std::{iter, ptr};

use http::HeaderMap;
use smallvec::SmallVec;
#[doc(no_inline)]
pub use tidegate_core::DenialReason;
use tidegate_core::{Decision, Limit, ResetAfter, RetryAfter};

use super::code_policy::CodePolicy;
use super::conflicts::EffectiveCheck;
use super::plan::PlannedPolicy;
use crate::headers::{
    self, Fields, Form, Forms, LimitList, PrerenderedHeaders, Problem, ResponseView,
};
use crate::policy::Mode;
use crate::stats::Decided;
use crate::verdict::reported_limit;
use crate::wait_queue::QUEUED_RETRY_US;
use crate::{Timestamp, Verdict};

/// The verdict on a request. It is allowed if every enforced limit allows it.
#[derive(Clone, Debug, Default)]
pub struct GateVerdict<'a> {
    /// Whether the request may proceed. A denial charges nothing, unless a policy has
    /// [`Overflow::Consume`](crate::Overflow::Consume).
    pub allowed: bool,
    /// How the request was decided.
    pub decided: Decided,
    /// Whether the request was denied, or a forced charge was not recorded, only because the store
    /// is full.
    pub no_room: bool,
    /// The results, one per limit. Policies are in the order of the configuration.
    pub results: SmallVec<[LimitResult<'a>; 4]>,
    /// The indexes of the requests that matched a policy without limits, in order.
    pub unlimited: Vec<usize>,
    pub(super) reported: Option<usize>,
}

/// The result of one limit.
#[derive(Clone, Debug)]
pub struct LimitResult<'a> {
    /// The name of the policy; `None` for a limit that the caller provides.
    pub policy: Option<&'a str>,
    /// The policy, if it is defined in code. Charges are settled through it.
    pub(super) code_policy: Option<&'a CodePolicy>,
    /// The index of the request that the limit applies to.
    pub request_index: usize,
    /// The limit.
    pub limit: &'a Limit,
    /// The prerendered header text of the policy, if there is one.
    pub(super) prerendered: Option<&'a PrerenderedHeaders>,
    /// Whether the limit is enforced or only observed.
    pub mode: Mode,
    /// The decision of this limit. Numbers that are unknown because the store failed are 0; see
    /// [`LimitResult::remaining`].
    pub decision: Decision,
    /// How this limit was decided.
    pub decided: Decided,
    /// Whether the cost fits the whole limit, but not the share of this node.
    pub(super) exceeds_node_share: bool,
}

impl<'a> LimitResult<'a> {
    /// Returns the remaining units; `None` if they are unknown because the store failed.
    pub fn remaining(&self) -> Option<u64> {
        self.is_known().then_some(self.decision.remaining)
    }

    /// Returns the time until all units are available again; `None` if it is unknown because the
    /// store failed.
    pub fn reset_after(&self) -> Option<ResetAfter> {
        self.is_known().then_some(self.decision.reset_after)
    }

    fn is_known(&self) -> bool {
        matches!(self.decided, Decided::Exact | Decided::Local)
    }

    /// Returns whether the limit is enforced, and not only observed.
    pub fn is_enforced(&self) -> bool {
        self.mode == Mode::Enforce
    }

    /// Whether the limit denies because its policy fails closed.
    fn fails_closed(&self) -> bool {
        self.decided == Decided::FailedClosed && !self.decision.allowed
    }

    /// Whether the cost can never pass, with or without the store.
    fn is_never(&self) -> bool {
        self.decision.retry_after == RetryAfter::Never && !self.fails_closed()
    }
}

impl<'a> GateVerdict<'a> {
    /// Sets the verdict to that of the store on the limits of `policies`. If requests conflict,
    /// `effective` has the limits that were applied instead.
    pub(super) fn set(
        &mut self,
        policies: &[PlannedPolicy<'a>],
        effective: &[EffectiveCheck<'a>],
        verdict: &Verdict,
    ) {
        (self.allowed, self.decided) = (verdict.allowed, Decided::Exact);
        (self.no_room, self.reported) = (verdict.no_room, verdict.reported_index());
        self.results.clear();
        let mut decisions = verdict.decisions.iter();
        for planned in policies {
            for (limit, decision) in planned.limits.iter().zip(decisions.by_ref()) {
                let limit = effective.get(self.results.len()).map_or(limit, |(limit, _)| *limit);
                self.results.push(planned.result(limit, *decision, Decided::Exact));
            }
        }
    }

    /// Combines results that were not all decided by the store. Any denial by an enforced limit
    /// denies the request, and `decided` is that of the least certain enforced limit.
    pub(super) fn from_results(results: SmallVec<[LimitResult<'a>; 4]>) -> Self {
        let enforced = || results.iter().enumerate().filter(|(_, result)| result.is_enforced());
        let decided = enforced().map(|(_, result)| result.decided).max().unwrap_or_default();
        let limits =
            enforced().map(|(index, result)| (index, &result.decision, result.remaining()));
        let (allowed, reported) = reported_limit(limits);
        GateVerdict { allowed, decided, no_room: false, results, unlimited: Vec::new(), reported }
    }

    /// Turns a verdict that would pass into a denial, because other requests wait ahead of this one
    /// and the remaining units are theirs.
    pub(super) fn into_queued_denial(mut self) -> Self {
        if let Some(result) = self.reported.and_then(|reported| self.results.get_mut(reported)) {
            result.decision.allowed = false;
            result.decision.retry_after = RetryAfter::Micros(QUEUED_RETRY_US);
            self.allowed = false;
        }
        self
    }

    /// Returns the result that is reported: of a denial the denying limit with the longest wait,
    /// otherwise the limit with the least remaining. `None` if no limit is enforced.
    pub fn reported_limit(&self) -> Option<&LimitResult<'a>> {
        self.results.get(self.reported?)
    }

    /// Returns the result that is reported for one of several requests, chosen as in
    /// [`GateVerdict::reported_limit`].
    pub fn reported_limit_of(&self, request_index: usize) -> Option<&LimitResult<'a>> {
        let is_of_request = |result: &LimitResult<'_>| {
            result.is_enforced() && result.request_index == request_index
        };
        let results = self.results.iter().enumerate().filter(|(_, result)| is_of_request(result));
        let limits = results.map(|(index, result)| (index, &result.decision, result.remaining()));
        let (_, reported) = reported_limit(limits);
        self.results.get(reported?)
    }

    /// Returns the time after which the request would pass if nothing else arrived.
    pub fn retry_after(&self) -> RetryAfter {
        match self.reported_limit() {
            Some(result) if !self.allowed => result.decision.retry_after,
            _ => RetryAfter::Now,
        }
    }

    /// Returns the reason for the denial; `None` if the request was allowed.
    ///
    /// The reason is the failure of the store if a policy fails closed, or if the cost exceeds the
    /// share of this node. Such a denial does not describe the key, so it is never a 429, even if
    /// another limit denies as well. The exception is a cost above the share of this node that
    /// another limit can never admit, which is reported as a denial by that limit.
    pub fn denial_reason(&self) -> Option<DenialReason> {
        if self.allowed {
            return None;
        }
        let enforced = || self.results.iter().filter(|result| result.is_enforced());
        let is_never = enforced().any(LimitResult::is_never);
        let fails = |result: &LimitResult<'_>| {
            result.fails_closed() || result.exceeds_node_share && !is_never
        };
        Some(match self.no_room {
            _ if enforced().any(fails) => DenialReason::StoreFailed,
            true => DenialReason::StoreFull,
            false => DenialReason::LimitReached,
        })
    }

    /// Returns the problem document of a denial.
    pub fn problem<'s>(&self, response: &'s ResponseView<'s>) -> Problem<'s> {
        match self.denial_reason() {
            Some(DenialReason::StoreFailed) => Problem::ReducedCapacity(response),
            Some(DenialReason::StoreFull) => Problem::NoRoom(response),
            Some(DenialReason::LimitReached | DenialReason::QueueFull) | None => {
                Problem::QuotaExceeded(response)
            }
        }
    }

    /// Writes the header fields of a response to `out`, as [`headers::render`] does. `now` is the
    /// time on the limiter's clock.
    pub fn write_fields(&self, forms: Forms, now: Timestamp, out: &mut HeaderMap) {
        let mut fields = Fields::EMPTY;
        self.fill_fields(forms, || now, &mut fields);
        fields.write(out);
    }

    /// Fills in the header fields of a response. The clock is read only if a field needs the time.
    pub(crate) fn fill_fields(
        &self,
        forms: Forms,
        now: impl FnOnce() -> Timestamp,
        fields: &mut Fields,
    ) {
        let Some(result) = self.reported_limit() else { return };
        fields.forms = forms;
        fields.reported.allowed = self.allowed;
        fields.reported.remaining = result.remaining();
        fields.reported.reset_after_us = result.decision.reset_after.as_micros();
        fields.reported.set_wait(result.decision.retry_after);
        if forms.contains(Form::XRateLimit) {
            fields.reported.now = now();
        }
        if forms.states_limit() {
            let count = result.limit.count();
            let known = result.prerendered.and_then(|fields| fields.count(count));
            fields.limit = Some(known.unwrap_or_else(|| headers::number(count)));
        }
        let is_newest = forms.contains(Form::Draft10);
        if forms.lists_limits()
            && !(is_newest && self.use_prerendered(&mut fields.limit_list).is_some())
        {
            fields.limit_list = self.with_view(|response| LimitList::of(forms, response));
        }
    }

    /// Lists the enforced policies from their prerendered text. Returns `None` if one has none, or
    /// if the list depends on all of the policies.
    fn use_prerendered(&self, limit_list: &mut LimitList) -> Option<()> {
        let reported = self.reported_enforced_index()?;
        let mut policies = self.prerendered_policies();
        let first = policies.next()??;
        match policies.next() {
            None => first.list(reported, limit_list),
            Some(_) => self.join_prerendered(reported, limit_list),
        }
    }

    #[inline(never)]
    fn join_prerendered(&self, reported: usize, limit_list: &mut LimitList) -> Option<()> {
        let policies: Option<SmallVec<[_; 4]>> = self.prerendered_policies().collect();
        PrerenderedHeaders::join(&policies?, reported, limit_list)
    }

    /// The prerendered text of each enforced policy. `None` if it has none, or if the policy is not
    /// listed once with all of its limits.
    #[inline]
    fn prerendered_policies(&self) -> impl Iterator<Item = Option<&'a PrerenderedHeaders>> {
        let mut enforced = self.results.iter().filter(|result| result.is_enforced());
        iter::from_fn(move || {
            let prerendered = enforced.next()?.prerendered;
            let is_same = |result: &LimitResult<'_>| match (result.prerendered, prerendered) {
                (Some(one), Some(other)) => ptr::eq(one, other),
                _ => false,
            };
            let others = prerendered.map_or(0, |prerendered| prerendered.len().saturating_sub(1));
            let is_whole = (0..others).all(|_| enforced.next().is_some_and(is_same));
            Some(prerendered.filter(|_| is_whole))
        })
    }

    /// Calls `render` with the enforced limits, in the form that headers and problem documents
    /// need.
    pub fn with_view<R>(&self, render: impl FnOnce(&ResponseView<'_>) -> R) -> R {
        let results: SmallVec<[headers::LimitView<'_>; 4]> =
            self.results.iter().filter(|result| result.is_enforced()).map(response).collect();
        render(&ResponseView {
            allowed: self.allowed,
            limits: &results,
            reported: self.reported_enforced_index(),
        })
    }

    /// The index of the reported result among the enforced ones.
    #[inline]
    fn reported_enforced_index(&self) -> Option<usize> {
        let before = |reported| self.results[..reported].iter().filter(|l| l.is_enforced()).count();
        self.reported.map(before)
    }
}

fn response<'a>(result: &LimitResult<'a>) -> headers::LimitView<'a> {
    headers::LimitView {
        policy: result.policy.unwrap_or_default(),
        limit: result.limit,
        remaining: result.remaining(),
        retry_after: result.decision.retry_after,
        reset_after: Duration::from_micros(result.decision.reset_after.as_micros()),
    }
}
