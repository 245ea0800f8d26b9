//! The gate over a shared store: the same questions, asked over the network.
//!
//! ```text
//!   Question -> Plan -> the store -> Answer        decided: exact
//!                         |  \-> this node's memory, kept warm
//!                         v fails
//!                      on_store_failure            decided: local, failed-open, failed-closed
//! ```

use std::time::{Duration, Instant};

use tidegate_core::Limit;

use super::fallback::{Alone, Asking, looking, never};
use super::held::{Held, HeldPermit, SharedPermit, leases};
use super::plan::{self, Plan, Taking};
use super::shared::{Shared, all};
use super::{Answer, Gate, GateError, Named, Question, Rules};
use crate::policy::{Key, Policy};
use crate::store::PermitAct;
use crate::{Request, StoreError, Verdict};

impl Gate {
    pub(super) async fn check_shared<'a>(
        &'a self,
        shared: &'a Shared,
        rules: &'a Rules,
        question: &Question<'a>,
    ) -> Result<Answer<'a>, GateError> {
        let begun = Instant::now();
        let mut plan = Plan::default();
        plan.fill(rules, question, Taking::Nothing)?;
        // What charges nothing may be asked again and again, before and after.
        let id = question.id.filter(|_| plan.charges());
        let answer = self.decide_shared(shared, &mut plan, id).await?;
        self.record(
            &plan,
            &answer,
            Named::of(std::slice::from_ref(question)),
            Some(begun.elapsed()),
        );
        Ok(answer)
    }

    /// Asks the store, or those who answer when it fails; again where a quota was used up
    /// and another has room.
    pub(super) async fn decide_shared<'a>(
        &self,
        shared: &Shared,
        plan: &mut Plan<'a>,
        id: Option<&[u8]>,
    ) -> Result<Answer<'a>, GateError> {
        loop {
            let answer = self.decide_once(shared, plan, id).await?;
            if !plan.ask_again(&answer) {
                return Ok(answer);
            }
        }
    }

    async fn decide_once<'a>(
        &self,
        shared: &Shared,
        plan: &Plan<'a>,
        id: Option<&[u8]>,
    ) -> Result<Answer<'a>, GateError> {
        if plan.is_empty() {
            return Ok(Answer::of_lines(Default::default()));
        }
        let checks = plan.checks();
        let deny_cache = plan.caches_denials();
        let request = Request { id, deny_cache, ..Request::new(&checks) };
        let warm = self.warm(plan, shared.nodes(), (id, None));
        match shared.decide(&self.stats, &request).await {
            Ok(verdict) => {
                self.keep_warm(plan, &verdict, &warm);
                Ok(plan.answer(&verdict))
            }
            Err(StoreError::Check(error)) => Err(error.into()),
            Err(StoreError::Failed(_)) => {
                let asking = Asking { id, ..Asking::CHECK };
                Ok(self.answer_alone(plan, shared.outage(), asking)?.answer)
            }
        }
    }

    /// What the store would answer, without charging anything; `None` if it fails.
    pub(super) async fn look_shared<'a>(
        &self,
        shared: &Shared,
        plan: &Plan<'a>,
    ) -> Result<Option<Answer<'a>>, GateError> {
        let (checks, never) = (plan.checks(), never());
        let looks = looking(&checks, &never);
        let request = Request { deny_cache: false, ..Request::new(&looks) };
        match shared.decide(&self.stats, &request).await {
            Ok(mut verdict) => {
                verdict.decisions.drain(..looks.len() - checks.len());
                Ok(Some(Answer::of_lines(plan.answer(&verdict).lines)))
            }
            Err(StoreError::Check(error)) => Err(error.into()),
            Err(StoreError::Failed(_)) => Ok(None),
        }
    }

    pub(super) async fn acquire_shared<'a>(
        &'a self,
        shared: &'a Shared,
        rules: &'a Rules,
        question: &Question<'a>,
        lease: Option<Duration>,
    ) -> Result<Held<'a>, GateError> {
        let begun = Instant::now();
        let mut plan = Plan::default();
        plan.fill(rules, question, Taking::Permit(lease))?;
        let (answer, permit) = self.hold_shared(shared, &mut plan, lease).await?;
        self.record(
            &plan,
            &answer,
            Named::of(std::slice::from_ref(question)),
            Some(begun.elapsed()),
        );
        let (lease, most) = leases(&plan, lease);
        Ok(Held { permit, answer, lease, most })
    }

    /// Takes places in the store, or with those who answer when it fails; again where a quota
    /// was used up and another has room.
    pub(super) async fn hold_shared<'a>(
        &self,
        shared: &Shared,
        plan: &mut Plan<'a>,
        lease: Option<Duration>,
    ) -> Result<(Answer<'a>, Option<HeldPermit>), GateError> {
        loop {
            let (answer, permit) = self.hold_once(shared, plan, lease).await?;
            if !plan.ask_again(&answer) {
                return Ok((answer, permit));
            }
        }
    }

    async fn hold_once<'a>(
        &self,
        shared: &Shared,
        plan: &Plan<'a>,
        lease: Option<Duration>,
    ) -> Result<(Answer<'a>, Option<HeldPermit>), GateError> {
        if plan.is_empty() {
            // Nothing to hold, and nothing to ask.
            let Alone { answer, permit } =
                self.answer_alone(plan, shared.outage(), Asking::PERMIT)?;
            return Ok((answer, permit.map(HeldPermit::Here)));
        }
        let id = shared.store().new_permit();
        let checks = plan.checks();
        let request = Request { permit: Some(id), ..Request::new(&checks) };
        let warm = self.warm(plan, shared.nodes(), (None, Some(id)));
        match shared.decide(&self.stats, &request).await {
            Ok(verdict) => {
                self.keep_warm(plan, &verdict, &warm);
                let permit = verdict.allowed.then(|| SharedPermit::new(plan, id, &verdict, lease));
                Ok((plan.answer(&verdict), permit.map(HeldPermit::Shared)))
            }
            Err(StoreError::Check(error)) => Err(error.into()),
            Err(StoreError::Failed(_)) => {
                let Alone { answer, permit } =
                    self.answer_alone(plan, shared.outage(), Asking::PERMIT)?;
                Ok((answer, permit.map(HeldPermit::Here)))
            }
        }
    }

    /// Gives a permit of the shared store back; says whether it was held.
    ///
    /// # Errors
    /// [`GateError::Store`] if the store failed. The permit then ends with its lease, unless
    /// this is called again or the store repeats it, as `RedisStore` does.
    pub async fn release(&self, permit: &SharedPermit) -> Result<bool, GateError> {
        let Some(limit) = SharedPermit::limit(permit.lease()) else { return Ok(false) };
        self.with_permit(permit, &limit, PermitAct::Release(permit.id())).await
    }

    /// Starts the lease of a permit of the shared store anew, as long as it was taken for or
    /// as `lease` says. Says how long that is; `None` if the permit is not held (any more).
    ///
    /// # Errors
    /// [`GateError::LeaseTooLong`], or [`GateError::Store`] if the store failed: then the
    /// lease may or may not have begun anew.
    pub async fn renew(
        &self,
        permit: &SharedPermit,
        lease: Option<Duration>,
    ) -> Result<Option<Duration>, GateError> {
        let lease = lease.unwrap_or_else(|| permit.lease());
        if lease > permit.most() {
            return Err(GateError::LeaseTooLong { most: permit.most() });
        }
        let Some(limit) = SharedPermit::limit(lease) else { return Ok(None) };
        let held = self.with_permit(permit, &limit, PermitAct::Renew(permit.id())).await?;
        Ok(held.then_some(lease))
    }

    /// Acts on a permit under every key it is held under, also after one that failed.
    async fn with_permit(
        &self,
        permit: &SharedPermit,
        limit: &Limit,
        act: PermitAct,
    ) -> Result<bool, GateError> {
        let Some(shared) = &self.shared else { return Ok(false) };
        let asked = permit.keys().map(|key| {
            // What was kept warm here, if it was taken here.
            self.limiter.store().with_permit(key, limit, act);
            shared.store().with_permit(key, limit, act)
        });
        let held = all(asked.collect()).await.into_iter();
        Ok(held.collect::<Result<Vec<bool>, StoreError>>()?.into_iter().all(|held| held))
    }

    pub(super) async fn peek_shared<'a>(
        &'a self,
        shared: &'a Shared,
        plan: &Plan<'a>,
    ) -> Result<Answer<'a>, GateError> {
        if plan.is_empty() {
            return Ok(Answer::of_lines(Default::default()));
        }
        let checks = plan.checks();
        // A permit of cost 0 holds nothing: this looks at concurrency limits too.
        let permit = Some(shared.store().new_permit());
        let request = Request { permit, deny_cache: false, ..Request::new(&checks) };
        let verdict: Verdict = shared.decide(&self.stats, &request).await?;
        Ok(plan.answer(&verdict))
    }

    pub(super) async fn reset_shared(
        &self,
        shared: &Shared,
        policy: &Policy,
        key: &Key,
    ) -> Result<bool, GateError> {
        let (name, limits) = plan::states(policy, key);
        let asked = limits.into_iter().map(|limit| {
            self.limiter.reset(&name, limit);
            shared.store().reset(&name, limit)
        });
        let reset = all(asked.collect()).await.into_iter();
        Ok(reset.collect::<Result<Vec<bool>, StoreError>>()?.into_iter().any(|reset| reset))
    }
}
