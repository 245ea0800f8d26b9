//! Decides a plan, in this process's memory or in the store that nodes share.
//!
//! ```text
//!   Question -> Plan -> store -> Answer            decided: exact
//!                         |  \-> this node's memory, kept warm beside a shared store
//!                         v fails
//!                      on_store_failure            decided: local, failed-open, failed-closed
//! ```
//!
//! In memory nothing is awaited, and nothing is boxed.

use std::time::Duration;

use super::held::{HeldPermit, SharedPermit};
use super::plan::Plan;
use super::shared_store::Shared;
use super::{Gate, GateError, Named};
use crate::asker::Asker;
use crate::{Check, Request, StoreError, Verdict};

/// How a plan is decided.
#[derive(Clone, Copy, Default)]
pub(super) struct Asking<'i> {
    /// An idempotency id.
    pub(super) id: Option<&'i [u8]>,
    /// Whether places are taken under `concurrency` limits.
    pub(super) permit: bool,
    /// How long they are to be held, if not as long as the limits allow.
    pub(super) lease: Option<Duration>,
}

impl Asking<'_> {
    pub(super) const CHECK: Self = Asking { id: None, permit: false, lease: None };
    pub(super) const PERMIT: Self = Asking { permit: true, ..Self::CHECK };

    /// Lets a request in. Permits are taken where there are any to hold.
    pub(super) fn entering<'i>(plan: &Plan<'_>, named: &Named<'i>) -> Asking<'i> {
        Asking { id: named.id, permit: plan.holds(), lease: None }
    }

    /// Drops the id if the plan charges nothing: such a request may be repeated, before and after
    /// its id is used.
    fn of(self, plan: &Plan<'_>) -> Self {
        Asking { id: self.id.filter(|_| plan.charges()), ..self }
    }
}

impl Gate {
    /// Decides a plan, and again where a quota is used up and another may have room. The plan keeps
    /// the answer and the permit, if one was taken. The asker may be gone before a shared store has
    /// answered.
    pub(super) async fn decide(
        &self,
        asker: &Asker,
        plan: &mut Plan<'_>,
        asking: Asking<'_>,
    ) -> Result<(), GateError> {
        match &self.shared {
            None => self.decide_here(plan, asking),
            Some(shared) => asker.asks(Box::pin(self.decide_shared(shared, plan, asking))).await,
        }
    }

    /// Decides a plan in this process's memory, as [`Gate::decide`] does.
    pub(super) fn decide_here(
        &self,
        plan: &mut Plan<'_>,
        asking: Asking<'_>,
    ) -> Result<(), GateError> {
        let asking = asking.of(plan);
        loop {
            self.attempt_here(plan, asking)?;
            if !plan.ask_again() {
                return Ok(());
            }
        }
    }

    fn attempt_here(&self, plan: &mut Plan<'_>, asking: Asking<'_>) -> Result<(), GateError> {
        // A single enforced limit needs no request: there is nothing to combine.
        if asking.id.is_none()
            && !asking.permit
            && let Some(decided) = plan.decide_single(&self.limiter)
        {
            return Ok(decided?);
        }
        self.request_here(plan, asking)
    }

    fn request_here(&self, plan: &mut Plan<'_>, asking: Asking<'_>) -> Result<(), GateError> {
        if asking.permit {
            let acquired = self.limiter.acquire(&plan.checks())?;
            plan.set_answer(acquired.verdict());
            plan.permit = acquired.permit().map(HeldPermit::Here);
            return Ok(());
        }
        let verdict = {
            let checks = plan.checks();
            self.limiter.decide(&Request { id: asking.id, ..Request::new(&checks) })?
        };
        plan.set_answer(&verdict);
        Ok(())
    }

    async fn decide_shared(
        &self,
        shared: &Shared,
        plan: &mut Plan<'_>,
        asking: Asking<'_>,
    ) -> Result<(), GateError> {
        let asking = asking.of(plan);
        loop {
            self.attempt_shared(shared, plan, asking).await?;
            if !plan.ask_again() {
                return Ok(());
            }
        }
    }

    async fn attempt_shared(
        &self,
        shared: &Shared,
        plan: &mut Plan<'_>,
        asking: Asking<'_>,
    ) -> Result<(), GateError> {
        if plan.is_empty() {
            // No limit applies, so there is nothing to ask.
            return self.answer_alone(plan, shared.outage(), asking);
        }
        let permit = asking.permit.then(|| shared.store().new_permit());
        let decided = {
            let (asked, node) = (plan.asked(asking.id, permit), self.local_node(shared.nodes()));
            let deny_cache = plan.caches_denials();
            let request =
                Request { id: asking.id, permit, deny_cache, ..Request::new(&asked.checks) };
            let warm = node.read(&asked);
            let decided = shared.decide(&self.stats, &request).await;
            decided.inspect(|verdict| node.mirror(&asked, verdict, &warm))
        };
        match decided {
            Ok(verdict) => {
                plan.set_answer(&verdict);
                let permit = permit.filter(|_| verdict.allowed);
                let permit = permit.map(|id| SharedPermit::new(plan, id, &verdict, asking.lease));
                plan.permit = permit.map(HeldPermit::Shared);
                Ok(())
            }
            Err(StoreError::Check(error)) => Err(error.into()),
            Err(StoreError::Failed(_)) => self.answer_alone(plan, shared.outage(), asking),
        }
    }

    /// Sends a request to where counts are kept. Nobody answers instead if that fails.
    pub(super) async fn ask_store(&self, request: &Request<'_>) -> Result<Verdict, StoreError> {
        match &self.shared {
            None => Ok(self.limiter.decide(request)?),
            Some(_) if request.checks.is_empty() => Ok(Verdict::new(request.checks, [])),
            Some(shared) => Box::pin(shared.decide(&self.stats, request)).await,
        }
    }

    /// Looks at checks of cost 0, also at those of `concurrency` limits.
    pub(super) async fn peek_checks(&self, checks: &[Check<'_>]) -> Result<Verdict, GateError> {
        // A permit of cost 0 holds nothing.
        let permit = Some(match &self.shared {
            None => self.limiter.store().new_permit(),
            Some(shared) => shared.store().new_permit(),
        });
        let request = Request { permit, deny_cache: false, ..Request::new(checks) };
        Ok(self.ask_store(&request).await?)
    }
}
