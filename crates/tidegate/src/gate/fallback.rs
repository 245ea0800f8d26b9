//! Answers of the gate while the shared store fails: as each policy says; see `crate::fallback`.

use tidegate_core::{Decided, PermitId};

use super::decide::DecideOptions;
use super::permits::AnyPermit;
use super::plan::Plan;
use super::{Gate, GateError, GateVerdict, LimitResult};
use crate::fallback::{FallbackRequest, LocalNode, Outage};
use crate::policy::{Mode, OnStoreFailure};

impl Gate {
    /// Returns this node's memory, with the number of nodes that share the limits.
    pub(super) fn local_node(&self, nodes: u32) -> LocalNode<'_> {
        LocalNode { memory: &self.limiter, nodes }
    }

    /// Answers as the policies say for when the store fails. The plan keeps the answer and the
    /// permit.
    pub(super) fn answer_without_store(
        &self,
        plan: &mut Plan<'_>,
        outage: Outage,
        options: DecideOptions<'_>,
    ) -> Result<(), GateError> {
        let permit = options.permit.then(|| self.limiter.store().new_permit());
        let fallback = {
            let fallback_request = plan.fallback_request(options.id, permit);
            fallback_request.resolve(Some(self.local_node(outage.nodes)), outage)?
        };
        let limits = plan.limits().zip(fallback.decisions);
        let results = limits.map(|((planned, limit), decision)| {
            let exceeds_node_share = planned.on_store_failure == OnStoreFailure::Local
                && decision.decided == Decided::FailedClosed;
            let decided = if exceeds_node_share { Decided::Local } else { decision.decided };
            LimitResult { exceeds_node_share, ..planned.result(limit, decision, decided) }
        });
        plan.verdict =
            GateVerdict { no_room: fallback.no_room, ..GateVerdict::of_lines(results.collect()) };
        plan.permit = fallback.permit.map(AnyPermit::Local);
        Ok(())
    }
}

impl Plan<'_> {
    /// The checks of the plan, with what each policy answers if the store fails.
    pub(super) fn fallback_request<'s>(
        &'s self,
        id: Option<&'s [u8]>,
        permit: Option<PermitId>,
    ) -> FallbackRequest<'s> {
        let on_failure = self.limits().map(|(planned, _)| planned.on_store_failure).collect();
        let denies = self.limits().any(|(planned, _)| {
            planned.on_store_failure == OnStoreFailure::Deny && planned.mode == Mode::Enforce
        });
        FallbackRequest { checks: self.checks(), on_failure, denies, id, permit }
    }
}
