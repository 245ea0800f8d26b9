//! Records decisions in the statistics, and what is known of a request for that.

use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tidegate_core::{Cost, Limit};

use super::decide::GateCall;
use super::plan::PlannedPolicy;
use super::{Gate, GateRequest, LimitResult};
use crate::policy::Mode;
use crate::stats::{
    self, CountedResult, Counting, LimitStats, Outcome, RequestRecord, is_near, is_sampled,
};

impl Gate {
    /// Records the request and the decisions of a call, with the path and the request id. Peeks,
    /// refunds and forced charges are not recorded.
    pub(super) fn record(
        &self,
        call: &GateCall<'_>,
        context: &RequestContext<'_>,
        elapsed: Option<Duration>,
    ) {
        let mut counting = Counting::new(call.verdict.allowed);
        let reported = call.verdict.reported_limit();
        call.for_each_counted(|_, result, stats| {
            let near_miss = is_near(result.limit, call.remaining(result));
            let (allowed, decided) = (result.decision.allowed, result.decided);
            let is_reported = reported.is_some_and(|reported| ptr::eq(reported, result));
            counting.add(stats, CountedResult { allowed, near_miss, decided }, is_reported);
        });
        let unlimited = if counting.has_limits() { None } else { call.unlimited_stats() };
        let is_counted =
            counting.has_limits() || unlimited.is_some() || call.plan.policies().is_empty();
        if context.is_counted && is_counted {
            self.stats.count_request(&counting, unlimited);
        }
        if counting.has_limits() && self.stats.add(&mut counting, elapsed) {
            self.record_notable(call, context, &counting, elapsed);
        }
    }

    #[cold]
    fn record_notable(
        &self,
        call: &GateCall<'_>,
        context: &RequestContext<'_>,
        counting: &Counting<'_>,
        elapsed: Option<Duration>,
    ) {
        let mut results = SmallVec::<[stats::LimitRecord<'_>; 4]>::new();
        call.for_each_counted(|planned, result, stats| {
            results.push(stats::LimitRecord {
                stats,
                limit: result.limit,
                key: call.plan.key_without_policy(planned),
                allowed: result.decision.allowed,
                remaining: call.remaining(result),
                retry_after: result.decision.retry_after,
                decided: result.decided,
            });
        });
        let (allowed, route) = (call.verdict.allowed, (context.route)());
        let request_id = context.request_id;
        let (is_shared, was_sent) = (self.is_shared(), call.was_sent);
        let limits = &results;
        let record =
            RequestRecord { limits, allowed, route, request_id, elapsed, is_shared, was_sent };
        self.stats.record_notable(&record, counting);
    }
}

impl<'a> GateCall<'a> {
    /// The units of a limit that remain for all nodes; `None` if they are unknown.
    fn remaining(&self, result: &LimitResult<'_>) -> Option<u64> {
        result.remaining().filter(|_| !self.was_leased)
    }

    /// The outcome of each policy of an admitted request, with the counter of its first limit.
    /// Quotas that were skipped are left out.
    pub(super) fn outcomes(&self) -> impl Iterator<Item = (&LimitStats, Outcome)> {
        let mut results = self.verdict.results.iter();
        self.plan.policies.iter().filter_map(move |planned| {
            let results = results.by_ref().take(planned.limits.len());
            let denied = results.filter(|result| !result.decision.allowed).count() > 0;
            let outcome = match (denied, planned.mode) {
                (false, _) => Outcome::Allowed,
                (true, Mode::Observe) => Outcome::WouldDeny,
                (true, _) => return None,
            };
            Some((&**planned.prepared.stats.first()?, outcome))
        })
    }

    /// The counter of a limit.
    fn stats_of(&self, limit: &Limit) -> Option<&'a Arc<LimitStats>> {
        self.plan.policies.iter().find_map(|planned| {
            let index = planned.limits.iter().position(|other| std::ptr::eq(other, limit))?;
            planned.stats_at(index)
        })
    }

    /// Calls `visit` with every result that is recorded in the statistics, its policy and its
    /// counter. Peeks, refunds and forced charges are not recorded.
    #[inline]
    pub(super) fn for_each_counted<'s>(
        &'s self,
        mut visit: impl FnMut(&'s PlannedPolicy<'a>, &'s LimitResult<'a>, &'s LimitStats),
    ) {
        let mut results = self.verdict.results.iter();
        for planned in &self.plan.policies {
            let is_charged = matches!(planned.cost, Cost::Ask(1..));
            for (index, result) in results.by_ref().take(planned.limits.len()).enumerate() {
                if !is_charged {
                    continue;
                }
                // If requests conflict, the decision is recorded for the limit that was applied.
                let decisive =
                    if self.plan.effective.is_empty() { None } else { self.stats_of(result.limit) };
                if let Some(stats) = decisive.or_else(|| planned.stats_at(index)) {
                    visit(planned, result, stats);
                }
            }
        }
    }

    /// The counter of the first policy without limits that applies and charges.
    pub(super) fn unlimited_stats(&self) -> Option<&LimitStats> {
        let is_unlimited = |planned: &&PlannedPolicy<'_>| {
            planned.limits.is_empty() && matches!(planned.cost, Cost::Ask(1..))
        };
        Some(self.plan.policies.iter().find(is_unlimited)?.prepared.stats.first()?)
    }
}

/// The settings that requests decided together share. Each is taken from the first request that has
/// it.
#[derive(Clone, Copy)]
pub(crate) struct RequestContext<'q> {
    /// The idempotency id.
    pub(crate) id: Option<&'q [u8]>,
    /// Returns the path. It is called only for denials, would-be denials, near misses and samples.
    pub(crate) route: &'q (dyn Fn() -> Option<&'q str> + Sync),
    pub(crate) request_id: Option<&'q str>,
    /// The longest wait; see [`GateRequest::max_wait`].
    pub(crate) max_wait: Option<Duration>,
    /// Whether this is counted as a request. Peeks, refunds, forced charges and charges that are
    /// added to an earlier request are not.
    pub(crate) is_counted: bool,
}

impl<'q> RequestContext<'q> {
    pub(super) fn of(
        requests: &[GateRequest<'q>],
        route: &'q (dyn Fn() -> Option<&'q str> + Sync),
    ) -> Self {
        RequestContext {
            id: requests.iter().find_map(|request| request.id),
            route,
            request_id: requests.iter().find_map(|request| request.request_id),
            max_wait: requests.iter().find_map(|request| request.max_wait),
            is_counted: requests.iter().any(|request| matches!(request.cost(1), Cost::Ask(1..))),
        }
    }
}

/// The path of the first request that has one.
pub(super) fn route_of<'q>(requests: &[GateRequest<'q>]) -> Option<&'q str> {
    requests.iter().find_map(|request| request.subject.route())
}

/// The start of a decision, and whether the decision is sampled for timing.
#[derive(Clone, Copy)]
pub(super) struct Timing {
    started: Option<Instant>,
    pub(super) is_sampled: bool,
}

impl Timing {
    /// Samples one decision in `TIMED_EVERY`. Over a shared store every decision is timed, because
    /// reading the clock is cheap compared with a round trip.
    pub(super) fn begin(gate: &Gate) -> Self {
        let is_sampled = is_sampled();
        Timing { started: (is_sampled || gate.is_shared()).then(Instant::now), is_sampled }
    }

    /// The duration of the decision. `None` for a request that may have waited, because the wait is
    /// not part of deciding.
    pub(super) fn elapsed(self, max_wait: Option<Duration>) -> Option<Duration> {
        self.started.filter(|_| max_wait.is_none()).map(|started| started.elapsed())
    }
}
