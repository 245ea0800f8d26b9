//! Waiting for one's turn.
//!
//! Where memory decides, a newcomer's wait is played through beforehand (`wait.rs`). Two
//! kinds cannot be: a shared store, which others use too, and several quotas, of which nobody
//! knows yet which will have room first. There who is first in line asks, sleeps for as
//! long as it is told to and asks again; those behind wait for their turn (`turns.rs`).

use std::time::Duration;

use tidegate_core::{RetryAfter, Timestamp};

use super::fallback::{Asking, Outage};
use super::held::HeldPermit;
use super::plan::Plan;
use super::shared::Shared;
use super::turns::{Place, sleep};
use super::{Answer, Gate, GateError};
use crate::asker::Asker;
use crate::{Clock, Verdict};

impl Gate {
    pub(super) async fn wait_planned<'a>(
        &self,
        asker: &Asker,
        plan: &mut Plan<'a>,
        max_wait: Duration,
    ) -> Result<Answer<'a>, GateError> {
        // Attempts to pass are not reports of usage: none of them consumes.
        plan.refuse_overflow();
        if self.shared.is_none() && !plan.has_choice() {
            let verdict = self.limiter.wait(&plan.checks(), max_wait).await?;
            return Ok(plan.answer(&verdict));
        }
        let max_wait_us = u64::try_from(max_wait.as_micros()).unwrap_or(u64::MAX);
        let until = self.limiter.store().clock().now().plus_micros(max_wait_us);
        let (name, _) = self.limiter.store().shape(&plan.checks())?;
        match Place::new(&self.queues, name) {
            Some(place) => self.wait_in_line(asker, plan, (&place, until)).await,
            None => self.turn_down(plan).await,
        }
    }

    /// The same with places beside it that are only observed, and so not waited for: they are
    /// taken when everything else has admitted the request. One that is denied would have
    /// taken none, and nothing is said of them.
    pub(super) async fn enter_in_turn<'a>(
        &self,
        asker: &Asker,
        plan: &mut Plan<'a>,
        max_wait: Duration,
    ) -> Result<(Answer<'a>, Option<HeldPermit>), GateError> {
        let mut watched = plan.set_aside_places();
        let mut answer = self.wait_planned(asker, plan, max_wait).await?;
        if !answer.allowed || watched.is_empty() {
            return Ok((answer, None));
        }
        let (seen, permit) = match &self.shared {
            Some(shared) => asker.asks(self.hold_shared(shared, &mut watched, None)).await?,
            None => self.hold_here(&mut watched)?,
        };
        answer.lines.extend(seen.lines);
        plan.rejoin(watched);
        Ok((answer, permit))
    }

    async fn wait_in_line<'a>(
        &self,
        asker: &Asker,
        plan: &mut Plan<'a>,
        (place, until): (&Place<'_>, Timestamp),
    ) -> Result<Answer<'a>, GateError> {
        let clock = self.limiter.store().clock();
        if !place.is_first() {
            let looked = self.look(plan).await?;
            let hopeless = |answer: &Answer<'_>| !passes_by(plan, answer, clock, until);
            // Even alone it would wait for too long.
            if let Some(answer) = looked.filter(hopeless) {
                return Ok(answer);
            }
            if !place.turn(clock, until).await {
                return self.turn_down(plan).await;
            }
        }
        loop {
            plan.spend_nothing();
            let answer = match &self.shared {
                Some(shared) => asker.asks(self.decide_shared(shared, plan, None)).await?,
                None => self.answer_here(plan, None)?,
            };
            if answer.allowed || asker.is_gone() || !passes_by(plan, &answer, clock, until) {
                return Ok(answer);
            }
            let wait_us = plan.retry_after(&answer).as_micros().unwrap_or_default();
            sleep(clock, clock.now().plus_micros(wait_us)).await;
        }
    }

    /// The denial of somebody whose turn does not come.
    async fn turn_down<'a>(&self, plan: &Plan<'a>) -> Result<Answer<'a>, GateError> {
        match (self.look(plan).await?, &self.shared) {
            (Some(answer), _) if plan.retry_after(&answer) == RetryAfter::Now => {
                Ok(answer.in_line())
            }
            (Some(answer), _) => Ok(answer),
            // Where the store fails there is no line to stand in.
            (None, shared) => {
                let outage = shared.as_ref().map_or(Outage::MEMORY, Shared::outage);
                Ok(self.answer_alone(plan, outage, Asking::CHECK)?.answer)
            }
        }
    }

    /// What would be answered, without charging anything; `None` if the store fails.
    async fn look<'a>(&self, plan: &Plan<'a>) -> Result<Option<Answer<'a>>, GateError> {
        if let Some(shared) = &self.shared {
            return self.look_shared(shared, plan).await;
        }
        let checks = plan.checks();
        let decisions = self.look_here(&checks)?;
        Ok(Some(plan.answer(&Verdict::new(&checks, decisions, false))))
    }
}

/// Whether a request that was answered so would pass by then. A store's failure does not.
fn passes_by(plan: &Plan<'_>, answer: &Answer<'_>, clock: &Clock, until: Timestamp) -> bool {
    let left_us = until.as_micros().saturating_sub(clock.now().as_micros());
    let wait_us = plan.retry_after(answer).as_micros();
    !answer.is_store_failure() && wait_us.is_some_and(|us| us <= left_us)
}
