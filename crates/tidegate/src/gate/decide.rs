//! Decides a plan, in local memory or in the shared store.
//!
//! ```text
//!   GateRequest -> Plan -> store -> GateVerdict         decided: exact
//!                         |  \-> this node's memory, kept warm beside a shared store
//!                         v fails
//!                      on_store_failure            decided: local, failed-open, failed-closed
//! ```
//!
//! Decisions in local memory are neither awaited nor boxed.

use std::time::Duration;

use tidegate_core::{Decided, Decision};

use super::permits::{AnyPermit, SharedPermit};
use super::plan::{Plan, PlannedPolicy};
use super::shared_store::{SharedStore, was_sent};
use super::{Gate, GateError, GateVerdict, LimitResult, RequestContext};
use crate::fallback::StoreContext;
use crate::futures::CallTracker;
use crate::local_node::LocalNode;
use crate::policy::{Mode, OnStoreFailure};
use crate::request::consumed_if_denied;
use crate::stats::ServiceTimer;
use crate::{Check, CheckError, Request, StoreError, Verdict};

/// One call of the gate: a plan, and the results of deciding it. It is large, so it is created
/// empty, filled in place and moved at most once.
#[derive(Default)]
pub(crate) struct GateCall<'a> {
    pub(crate) plan: Plan<'a>,
    /// The verdict of the last attempt.
    pub(crate) verdict: GateVerdict<'a>,
    /// The permit, if one was acquired.
    pub(crate) permit: Option<AnyPermit>,
    /// Whether the request was sent to the shared store.
    pub(crate) was_sent: bool,
    /// Whether the request was admitted from units that the shared store has leased to this node.
    /// The remaining units are then those of the node, not those of the limit.
    pub(crate) was_leased: bool,
    /// A timer for the service of an admitted request, if that is timed.
    pub(crate) timer: Option<ServiceTimer>,
}

impl GateCall<'_> {
    /// Sets the verdict to the store's verdict on the checks of the plan.
    pub(super) fn set_verdict(&mut self, verdict: &Verdict) {
        self.verdict.set(&self.plan.policies, &self.plan.effective, verdict);
    }
}

/// Options for deciding a plan.
#[derive(Clone, Copy, Default)]
pub(super) struct DecideOptions<'i> {
    /// The idempotency id.
    pub(super) id: Option<&'i [u8]>,
    /// Whether permits are acquired for `concurrency` limits.
    pub(super) permit: bool,
    /// The lease of the permits, if it is not that of the limits.
    pub(super) lease: Option<Duration>,
}

impl DecideOptions<'_> {
    pub(super) const CHECK: Self = DecideOptions { id: None, permit: false, lease: None };
    pub(super) const PERMIT: Self = DecideOptions { permit: true, ..Self::CHECK };

    /// The options for admitting a request: permits are acquired if there are `concurrency` limits.
    pub(super) fn for_admission<'i>(
        plan: &Plan<'_>,
        context: &RequestContext<'i>,
    ) -> DecideOptions<'i> {
        DecideOptions { id: context.id, permit: plan.has_concurrency(), lease: None }
    }

    /// Drops the id if the plan charges nothing: such a request may be repeated, before and after
    /// the id is used.
    fn without_unused_id(self, plan: &Plan<'_>) -> Self {
        DecideOptions { id: self.id.filter(|_| plan.changes_counts()), ..self }
    }
}

impl Gate {
    /// Decides the plan of a call, and decides it again if a quota is exhausted and another one may
    /// have room. The call holds the verdict and, if one was acquired, the permit. The caller may
    /// be cancelled before a shared store has replied, so the call is tracked.
    pub(super) async fn decide(
        &self,
        tracker: &CallTracker,
        call: &mut GateCall<'_>,
        options: DecideOptions<'_>,
    ) -> Result<(), GateError> {
        match &self.shared {
            None => self.decide_in_memory(call, options),
            Some(shared) => {
                tracker.track(Box::pin(self.decide_shared(shared, call, options))).await
            }
        }
    }

    /// Decides the plan of a call in local memory, as [`Gate::decide`] does.
    pub(super) fn decide_in_memory(
        &self,
        call: &mut GateCall<'_>,
        options: DecideOptions<'_>,
    ) -> Result<(), GateError> {
        let options = options.without_unused_id(&call.plan);
        loop {
            self.attempt_in_memory(call, options)?;
            if !call.should_retry() {
                return Ok(());
            }
        }
    }

    fn attempt_in_memory(
        &self,
        call: &mut GateCall<'_>,
        options: DecideOptions<'_>,
    ) -> Result<(), GateError> {
        // A single enforced limit has nothing to combine, so it needs no `Request`.
        if options.id.is_none()
            && !options.permit
            && let Some(decided) = self.decide_single(call)
        {
            return Ok(decided?);
        }
        self.decide_request_in_memory(call, options)
    }

    /// Decides a plan directly if it has a single check, which is enforced and whose denial charges
    /// nothing. Returns `None` otherwise.
    fn decide_single(&self, call: &mut GateCall<'_>) -> Option<Result<(), CheckError>> {
        let plan = &call.plan;
        let [planned] = &plan.policies[..] else { return None };
        let (&PlannedPolicy { mode, cost, overflow, skipped, .. }, [limit]) =
            (planned, planned.limits)
        else {
            return None;
        };
        if mode != Mode::Enforce || skipped || consumed_if_denied(overflow, limit, cost) > 0 {
            return None;
        }
        let check = Check::new(plan.key_of(planned), limit, cost);
        let result = planned.result(limit, Decision::default(), Decided::Exact);
        Some(self.decide_one(&mut call.verdict, result, &check))
    }

    /// Decides a single enforced check in local memory, and sets the verdict to the result, which
    /// has everything but the decision.
    #[inline(always)]
    pub(super) fn decide_one<'a>(
        &self,
        verdict: &mut GateVerdict<'a>,
        result: LimitResult<'a>,
        check: &Check<'_>,
    ) -> Result<(), CheckError> {
        verdict.results.clear();
        verdict.results.push(result);
        let decision = &mut verdict.results[0].decision;
        *decision = self.limiter.store().decide_one(check, None)?;
        (verdict.allowed, verdict.decided) = (decision.allowed, Decided::Exact);
        (verdict.no_room, verdict.reported) = (decision.no_room, Some(0));
        Ok(())
    }

    fn decide_request_in_memory(
        &self,
        call: &mut GateCall<'_>,
        options: DecideOptions<'_>,
    ) -> Result<(), GateError> {
        if options.permit {
            let acquired = self.limiter.acquire(&call.plan.checks())?;
            call.set_verdict(acquired.verdict());
            call.permit = acquired.permit().map(AnyPermit::Local);
            return Ok(());
        }
        let verdict = {
            let checks = call.plan.checks();
            self.limiter.decide(&Request { id: options.id, ..Request::new(&checks) })?
        };
        call.set_verdict(&verdict);
        Ok(())
    }

    async fn decide_shared(
        &self,
        shared: &SharedStore,
        call: &mut GateCall<'_>,
        options: DecideOptions<'_>,
    ) -> Result<(), GateError> {
        let options = options.without_unused_id(&call.plan);
        loop {
            self.attempt_shared(shared, call, options).await?;
            if !call.should_retry() {
                return Ok(());
            }
        }
    }

    async fn attempt_shared(
        &self,
        shared: &SharedStore,
        call: &mut GateCall<'_>,
        options: DecideOptions<'_>,
    ) -> Result<(), GateError> {
        if call.plan.is_empty() {
            // No limit applies, so the store is not called.
            return self.decide_by_fallback(call, shared.store_context(), options);
        }
        let permit = options.permit.then(|| shared.store().new_permit());
        let decided = {
            let (shared_request, node) =
                (call.plan.shared_request(options.id, permit), self.local_node(shared.nodes()));
            let (deny_cache, lease) = (call.plan.caches_denials(), call.plan.leases());
            let request = Request {
                id: options.id,
                permit,
                deny_cache,
                lease,
                ..Request::new(&shared_request.checks)
            };
            let usage = node.read_usage(&shared_request);
            let decided = shared.decide(&self.stats, &request).await;
            decided.inspect(|verdict| node.mirror(&shared_request, verdict, &usage))
        };
        call.was_sent |= was_sent(&decided);
        call.was_leased =
            decided.as_ref().is_ok_and(|verdict| verdict.allowed && verdict.remembered);
        match decided {
            Ok(verdict) => {
                call.set_verdict(&verdict);
                let permit = permit.filter(|_| verdict.allowed);
                let permit =
                    permit.map(|id| SharedPermit::new(&call.plan, id, &verdict, options.lease));
                call.permit = permit.map(AnyPermit::Shared);
                Ok(())
            }
            Err(StoreError::Check(error)) => Err(error.into()),
            Err(StoreError::Failed(_)) => {
                self.decide_by_fallback(call, shared.store_context(), options)
            }
        }
    }

    /// Sends a request to the store that keeps the counts. A failure is returned as it is.
    pub(super) async fn send_to_store(&self, request: &Request<'_>) -> Result<Verdict, StoreError> {
        match &self.shared {
            None => Ok(self.limiter.decide(request)?),
            Some(_) if request.checks.is_empty() => Ok(Verdict::new(request.checks, [])),
            Some(shared) => Box::pin(shared.decide(&self.stats, request)).await,
        }
    }

    /// Peeks at checks of cost 0, including those of `concurrency` limits.
    pub(super) async fn peek_checks(&self, checks: &[Check<'_>]) -> Result<Verdict, GateError> {
        // A permit of cost 0 holds nothing.
        let permit = Some(match &self.shared {
            None => self.limiter.store().new_permit(),
            Some(shared) => shared.store().new_permit(),
        });
        let request = Request { permit, deny_cache: false, ..Request::new(checks) };
        Ok(self.send_to_store(&request).await?)
    }
}

impl Gate {
    /// Returns this node's memory, with the number of nodes that share the limits.
    pub(super) fn local_node(&self, nodes: u32) -> LocalNode<'_> {
        LocalNode { memory: &self.limiter, nodes }
    }

    /// Applies the policies' `on_store_failure`. The call holds the verdict and the permit.
    pub(super) fn decide_by_fallback(
        &self,
        call: &mut GateCall<'_>,
        store_context: StoreContext,
        options: DecideOptions<'_>,
    ) -> Result<(), GateError> {
        let permit = options.permit.then(|| self.limiter.store().new_permit());
        let fallback = {
            let shared_request = call.plan.shared_request(options.id, permit);
            shared_request.resolve(Some(self.local_node(store_context.nodes)), store_context)?
        };
        let limits = call.plan.limits().zip(fallback.decisions);
        let results = limits.map(|((planned, limit), decision)| {
            let exceeds_node_share = planned.on_store_failure == OnStoreFailure::Local
                && decision.decided == Decided::FailedClosed;
            let decided = if exceeds_node_share { Decided::Local } else { decision.decided };
            LimitResult { exceeds_node_share, ..planned.result(limit, decision, decided) }
        });
        call.verdict = GateVerdict {
            no_room: fallback.no_room,
            ..GateVerdict::from_results(results.collect())
        };
        call.permit = fallback.permit.map(AnyPermit::Local);
        Ok(())
    }
}
