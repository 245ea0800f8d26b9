//! Waiting for one's turn.
//!
//! Where memory decides, a newcomer's wait is played through beforehand (`wait/mod.rs`). Two
//! kinds cannot be: a shared store, which others use too, and several quotas, of which nobody
//! knows yet which will have room first. There who is first in line asks, sleeps for as
//! long as it is told to and asks again; those behind wait for their turn (`wait/turns.rs`).

use std::time::Duration;

use tidegate_core::{RetryAfter, Timestamp};

use super::decide::Asking;
use super::plan::Plan;
use super::shared_store::Shared;
use super::{Answer, DenialReason, Gate, GateError};
use crate::asker::Asker;
use crate::fallback::{Outage, looking, never};
use crate::wait::{Place, sleep};
use crate::{Clock, Request, StoreError};

impl Gate {
    pub(super) async fn wait_planned(
        &self,
        asker: &Asker,
        plan: &mut Plan<'_>,
        max_wait: Duration,
    ) -> Result<(), GateError> {
        // Attempts to pass are not reports of usage: none of them consumes.
        plan.refuse_overflow();
        if self.shared.is_none() && !plan.has_choice() {
            let verdict = self.limiter.wait(&plan.checks(), max_wait).await?;
            plan.set_answer(&verdict);
            return Ok(());
        }
        let max_wait_us = u64::try_from(max_wait.as_micros()).unwrap_or(u64::MAX);
        let until = self.limiter.store().clock().now().plus_micros(max_wait_us);
        let (name, _) = self.limiter.store().queue_key(&plan.checks())?;
        match Place::new(&self.queues, name) {
            Some(place) => self.wait_in_line(asker, plan, (&place, until)).await,
            None => self.turn_down(plan).await,
        }
    }

    /// The same with places beside it that are only observed, and so not waited for: they are
    /// taken when everything else has admitted the request. One that is denied would have
    /// taken none, and nothing is said of them.
    pub(super) async fn enter_in_turn(
        &self,
        asker: &Asker,
        plan: &mut Plan<'_>,
        max_wait: Duration,
    ) -> Result<(), GateError> {
        let mut watched = plan.set_aside_places();
        self.wait_planned(asker, plan, max_wait).await?;
        if !plan.answer.allowed || watched.is_empty() {
            return Ok(());
        }
        self.decide(asker, &mut watched, Asking::PERMIT).await?;
        plan.rejoin(watched);
        Ok(())
    }

    async fn wait_in_line(
        &self,
        asker: &Asker,
        plan: &mut Plan<'_>,
        (place, until): (&Place<'_>, Timestamp),
    ) -> Result<(), GateError> {
        let clock = self.limiter.store().clock();
        if !place.is_first() {
            let looked = self.look(plan).await?;
            let hopeless = |answer: &Answer<'_>| !passes_by(plan, answer, clock, until);
            // Even alone it would wait for too long.
            if let Some(answer) = looked.filter(hopeless) {
                plan.answer = answer;
                return Ok(());
            }
            if !place.turn(clock, until).await {
                return self.turn_down(plan).await;
            }
        }
        loop {
            plan.spend_nothing();
            self.decide(asker, plan, Asking::CHECK).await?;
            let answer = &plan.answer;
            if answer.allowed || asker.is_gone() || !passes_by(plan, answer, clock, until) {
                return Ok(());
            }
            let wait_us = plan.retry_after(answer).as_micros().unwrap_or_default();
            sleep(clock, clock.now().plus_micros(wait_us)).await;
        }
    }

    /// The denial of somebody whose turn does not come.
    async fn turn_down(&self, plan: &mut Plan<'_>) -> Result<(), GateError> {
        let Some(answer) = self.look(plan).await? else {
            // Where the store fails there is no line to stand in.
            let outage = self.shared.as_ref().map_or(Outage::MEMORY, Shared::outage);
            return self.answer_alone(plan, outage, Asking::CHECK);
        };
        let is_free = plan.retry_after(&answer) == RetryAfter::Now;
        plan.answer = if is_free { answer.in_line() } else { answer };
        Ok(())
    }

    /// What would be answered, without charging anything; `None` if the store fails.
    async fn look<'a>(&self, plan: &Plan<'a>) -> Result<Option<Answer<'a>>, GateError> {
        let (checks, never) = (plan.checks(), never());
        let looks = looking(&checks, &never);
        let request = Request { deny_cache: false, ..Request::new(&looks) };
        match self.ask_store(&request).await {
            Ok(mut verdict) => {
                verdict.decisions.drain(..looks.len() - checks.len());
                Ok(Some(Answer::of_lines(plan.answer_of(&verdict).lines)))
            }
            Err(StoreError::Check(error)) => Err(error.into()),
            Err(StoreError::Failed(_)) => Ok(None),
        }
    }
}

/// Whether a request that was answered so would pass by then. A store's failure does not.
fn passes_by(plan: &Plan<'_>, answer: &Answer<'_>, clock: &Clock, until: Timestamp) -> bool {
    let left_us = until.as_micros().saturating_sub(clock.now().as_micros());
    let wait_us = plan.retry_after(answer).as_micros();
    let has_failed = answer.denial_reason() == Some(DenialReason::StoreFailed);
    !has_failed && wait_us.is_some_and(|us| us <= left_us)
}
