//! Answers of the gate while the shared store fails: as each policy says; see `crate::fallback`.

use tidegate_core::{Decided, PermitId};

use super::decide::Asking;
use super::held::HeldPermit;
use super::plan::Plan;
use super::{Answer, Gate, GateError, Line};
use crate::fallback::{Asked, LocalNode, Outage};
use crate::policy::{Mode, OnStoreFailure};

impl Gate {
    /// Returns this node's memory, with the number of nodes that share the limits.
    pub(super) fn local_node(&self, nodes: u32) -> LocalNode<'_> {
        LocalNode { memory: &self.limiter, nodes }
    }

    /// Answers as the policies say for when the store fails. The plan keeps the answer and the
    /// permit.
    pub(super) fn answer_alone(
        &self,
        plan: &mut Plan<'_>,
        outage: Outage,
        asking: Asking<'_>,
    ) -> Result<(), GateError> {
        let permit = asking.permit.then(|| self.limiter.store().new_permit());
        let fallback = {
            let asked = plan.asked(asking.id, permit);
            asked.answer(Some(self.local_node(outage.nodes)), outage)?
        };
        let each = plan.each().zip(fallback.decisions);
        let lines = each.map(|((part, limit), decision)| {
            let beyond_share = part.on_store_failure == OnStoreFailure::Local
                && decision.decided == Decided::FailedClosed;
            let decided = if beyond_share { Decided::Local } else { decision.decided };
            Line { beyond_share, ..part.line(limit, decision, decided) }
        });
        plan.answer = Answer { no_room: fallback.no_room, ..Answer::of_lines(lines.collect()) };
        plan.permit = fallback.permit.map(HeldPermit::Here);
        Ok(())
    }
}

impl Plan<'_> {
    /// The checks of the plan, with what each policy answers if the store fails.
    pub(super) fn asked<'s>(&'s self, id: Option<&'s [u8]>, permit: Option<PermitId>) -> Asked<'s> {
        let on_failure = self.each().map(|(part, _)| part.on_store_failure).collect();
        let denies = self.each().any(|(part, _)| {
            part.on_store_failure == OnStoreFailure::Deny && part.mode == Mode::Enforce
        });
        Asked { checks: self.checks(), on_failure, denies, id, permit }
    }
}
