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

use tidegate_core::{Decided, PermitId};

use super::permits::{AnyPermit, SharedPermit};
use super::plan::Plan;
use super::shared_store::SharedStore;
use super::{Gate, GateError, GateVerdict, LimitResult, RequestContext};
use crate::fallback::{LocalNode, SharedRequest, StoreContext};
use crate::futures::CallTracker;
use crate::policy::{Mode, OnStoreFailure};
use crate::{Check, Request, StoreError, Verdict};

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
    /// Decides a plan, and decides it again if a quota is exhausted and another one may have room.
    /// The plan holds the verdict and, if one was acquired, the permit. The caller may be cancelled
    /// before a shared store has replied, so the call is tracked.
    pub(super) async fn decide(
        &self,
        tracker: &CallTracker,
        plan: &mut Plan<'_>,
        options: DecideOptions<'_>,
    ) -> Result<(), GateError> {
        match &self.shared {
            None => self.decide_in_memory(plan, options),
            Some(shared) => {
                tracker.track(Box::pin(self.decide_shared(shared, plan, options))).await
            }
        }
    }

    /// Decides a plan in local memory, as [`Gate::decide`] does.
    pub(super) fn decide_in_memory(
        &self,
        plan: &mut Plan<'_>,
        options: DecideOptions<'_>,
    ) -> Result<(), GateError> {
        let options = options.without_unused_id(plan);
        loop {
            self.attempt_in_memory(plan, options)?;
            if !plan.should_retry() {
                return Ok(());
            }
        }
    }

    fn attempt_in_memory(
        &self,
        plan: &mut Plan<'_>,
        options: DecideOptions<'_>,
    ) -> Result<(), GateError> {
        // A single enforced limit has nothing to combine, so it needs no `Request`.
        if options.id.is_none()
            && !options.permit
            && let Some(decided) = plan.decide_single(&self.limiter)
        {
            return Ok(decided?);
        }
        self.request_in_memory(plan, options)
    }

    fn request_in_memory(
        &self,
        plan: &mut Plan<'_>,
        options: DecideOptions<'_>,
    ) -> Result<(), GateError> {
        if options.permit {
            let acquired = self.limiter.acquire(&plan.checks())?;
            plan.set_verdict(acquired.verdict());
            plan.permit = acquired.permit().map(AnyPermit::Local);
            return Ok(());
        }
        let verdict = {
            let checks = plan.checks();
            self.limiter.decide(&Request { id: options.id, ..Request::new(&checks) })?
        };
        plan.set_verdict(&verdict);
        Ok(())
    }

    async fn decide_shared(
        &self,
        shared: &SharedStore,
        plan: &mut Plan<'_>,
        options: DecideOptions<'_>,
    ) -> Result<(), GateError> {
        let options = options.without_unused_id(plan);
        loop {
            self.attempt_shared(shared, plan, options).await?;
            if !plan.should_retry() {
                return Ok(());
            }
        }
    }

    async fn attempt_shared(
        &self,
        shared: &SharedStore,
        plan: &mut Plan<'_>,
        options: DecideOptions<'_>,
    ) -> Result<(), GateError> {
        if plan.is_empty() {
            // No limit applies, so the store is not called.
            return self.decide_by_fallback(plan, shared.store_context(), options);
        }
        let permit = options.permit.then(|| shared.store().new_permit());
        let decided = {
            let (shared_request, node) =
                (plan.shared_request(options.id, permit), self.local_node(shared.nodes()));
            let deny_cache = plan.caches_denials();
            let request = Request {
                id: options.id,
                permit,
                deny_cache,
                ..Request::new(&shared_request.checks)
            };
            let usage = node.read_usage(&shared_request);
            let decided = shared.decide(&self.stats, &request).await;
            decided.inspect(|verdict| node.mirror(&shared_request, verdict, &usage))
        };
        match decided {
            Ok(verdict) => {
                plan.set_verdict(&verdict);
                let permit = permit.filter(|_| verdict.allowed);
                let permit = permit.map(|id| SharedPermit::new(plan, id, &verdict, options.lease));
                plan.permit = permit.map(AnyPermit::Shared);
                Ok(())
            }
            Err(StoreError::Check(error)) => Err(error.into()),
            Err(StoreError::Failed(_)) => {
                self.decide_by_fallback(plan, shared.store_context(), options)
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

    /// Applies the policies' `on_store_failure`. The plan holds the verdict and the permit.
    pub(super) fn decide_by_fallback(
        &self,
        plan: &mut Plan<'_>,
        store_context: StoreContext,
        options: DecideOptions<'_>,
    ) -> Result<(), GateError> {
        let permit = options.permit.then(|| self.limiter.store().new_permit());
        let fallback = {
            let shared_request = plan.shared_request(options.id, permit);
            shared_request.resolve(Some(self.local_node(store_context.nodes)), store_context)?
        };
        let limits = plan.limits().zip(fallback.decisions);
        let results = limits.map(|((planned, limit), decision)| {
            let exceeds_node_share = planned.on_store_failure == OnStoreFailure::Local
                && decision.decided == Decided::FailedClosed;
            let decided = if exceeds_node_share { Decided::Local } else { decision.decided };
            LimitResult { exceeds_node_share, ..planned.result(limit, decision, decided) }
        });
        plan.verdict = GateVerdict {
            no_room: fallback.no_room,
            ..GateVerdict::from_results(results.collect())
        };
        plan.permit = fallback.permit.map(AnyPermit::Local);
        Ok(())
    }
}

impl Plan<'_> {
    /// The checks of the plan, with the `on_store_failure` of each.
    pub(super) fn shared_request<'s>(
        &'s self,
        id: Option<&'s [u8]>,
        permit: Option<PermitId>,
    ) -> SharedRequest<'s> {
        let on_failure = self.limits().map(|(planned, _)| planned.on_store_failure).collect();
        let denies = self.limits().any(|(planned, _)| {
            planned.on_store_failure == OnStoreFailure::Deny && planned.mode == Mode::Enforce
        });
        SharedRequest { checks: self.checks(), on_failure, denies, id, permit }
    }
}
