//! Letting a request in: everything that holds for it, asked at once, and what is kept
//! while it is being served.
//!
//! [`Gate::check`] answers a question and is done. Who serves the request itself wants
//! more: places under `concurrency` limits for as long as that takes, and afterwards to say
//! how long it took. Both come with the answer here.

use std::time::{Duration, Instant};

use tidegate_core::Cost;

use super::held::HeldPermit;
use super::plain::Plain;
use super::plan::{Plan, Taking};
use super::together::first_id;
use super::{Answer, Gate, GateError, OwnPolicy, Question, Rules, is_timed};
use crate::asker::Asker;
use crate::stats::{LimitStats, ServiceTimer};
use crate::store::Told;

/// What came of asking to be let in.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "a permit that is dropped is given back"]
pub struct Entered<'a> {
    /// The answer.
    pub answer: Answer<'a>,
    /// The places it holds, if it was admitted and there are any to hold. One of a shared
    /// store is not given back on drop: see [`Gate::release`].
    pub permit: Option<HeldPermit>,
    /// For telling how long it took to serve, if this request is one of those that are timed.
    pub timer: Option<ServiceTimer>,
}

impl Gate {
    /// Lets a request in, if every limit admits it: rate limits are charged, `concurrency` limits
    /// are held. Several questions are one request, as in [`Gate::check_together`].
    ///
    /// # Errors
    /// As [`Gate::check_together`]; but `concurrency` limits are welcome.
    pub fn enter<'a>(
        &'a self,
        rules: &'a Rules,
        questions: &[Question<'a>],
    ) -> Result<Entered<'a>, GateError> {
        self.in_memory()?;
        let begun = is_timed().then(Instant::now);
        let mut plan = Plan::default();
        plan.fill_together(self, rules, questions, Taking::Places)?;
        let (answer, permit) = self.enter_here(&mut plan, questions)?;
        let elapsed = begun.map(|begun| begun.elapsed());
        Ok(self.entered(&plan, questions, (answer, permit), elapsed))
    }

    /// The same over any store; and with `max_wait` at the earliest moment it passes, or at
    /// once if that would take longer, as in [`Gate::wait`]. Places are not waited for: a
    /// request that must have one is decided at once. One that is only observed is taken when
    /// the wait is over.
    ///
    /// Dropped while a shared store decides, it leaves what that charges and holds: places there
    /// end with their lease.
    ///
    /// # Errors
    /// As [`Gate::enter`].
    pub async fn enter_async<'a>(
        &'a self,
        rules: &'a Rules,
        questions: &[Question<'a>],
        max_wait: Option<Duration>,
    ) -> Result<Entered<'a>, GateError> {
        self.enter_for(&Asker::default(), rules, questions, max_wait).await
    }

    /// The same for somebody who may be gone before the store has answered.
    pub(crate) async fn enter_for<'a>(
        &'a self,
        asker: &Asker,
        rules: &'a Rules,
        questions: &[Question<'a>],
        max_wait: Option<Duration>,
    ) -> Result<Entered<'a>, GateError> {
        let begun = Instant::now();
        let mut plan = Plan::default();
        plan.fill_together(self, rules, questions, Taking::Places)?;
        let max_wait = max_wait.filter(|_| plan.can_wait());
        let outcome = match (&self.shared, max_wait) {
            (_, Some(max_wait)) => self.enter_in_turn(asker, &mut plan, max_wait).await?,
            (None, None) => self.enter_here(&mut plan, questions)?,
            (Some(shared), None) if plan.holds() => {
                asker.asks(self.hold_shared(shared, &mut plan, None)).await?
            }
            (Some(shared), None) => {
                let id = first_id(questions).filter(|_| plan.charges());
                (asker.asks(self.decide_shared(shared, &mut plan, id)).await?, None)
            }
        };
        // Who waited did not take long to decide.
        let elapsed = max_wait.is_none().then(|| begun.elapsed());
        Ok(self.entered(&plan, questions, outcome, elapsed))
    }

    /// What this process's memory says.
    fn enter_here<'a>(
        &self,
        plan: &mut Plan<'a>,
        questions: &[Question<'a>],
    ) -> Result<(Answer<'a>, Option<HeldPermit>), GateError> {
        if !plan.holds() {
            return Ok((self.answer_here(plan, first_id(questions))?, None));
        }
        self.hold_here(plan)
    }

    fn entered<'a>(
        &self,
        plan: &Plan<'a>,
        questions: &[Question<'a>],
        (answer, permit): (Answer<'a>, Option<HeldPermit>),
        elapsed: Option<Duration>,
    ) -> Entered<'a> {
        let route = questions.iter().find_map(|question| question.subject.route());
        let request_id = questions.iter().find_map(|question| question.request_id);
        self.record(plan, &answer, (route, request_id), elapsed);
        let timer = service_timer(plan, &answer);
        Entered { answer, permit, timer }
    }

    /// Lets a request in under one policy of the program's own that
    /// [is plain](OwnPolicy::is_plain), in memory: what [`Gate::enter`] does, without a plan.
    /// `name` is the key as the store sees it, behind the policy's prefix.
    #[inline(always)]
    pub(crate) fn enter_own<'q>(
        &self,
        own: &OwnPolicy,
        name: &[u8],
        units: u64,
        route: impl FnOnce() -> &'q str,
    ) -> Result<Told, GateError> {
        let plain = Plain {
            policy: None,
            limit: &own.policy().limits()[0],
            cost: Cost::Ask(units),
            stats: &own.stats()[0],
            key: 0..name.len(),
            bare: own.prefix().len(),
        };
        self.decide_plain(&plain, name, || (Some(route()), None))
    }
}

/// A timer for one request in some of each policy; and for every one that an observed policy would
/// have denied: those are few, and what they cost is why one observes.
fn service_timer(plan: &Plan<'_>, answer: &Answer<'_>) -> Option<ServiceTimer> {
    if !answer.allowed || answer.lines.is_empty() {
        return None;
    }
    let would_deny = answer.lines.iter().any(|line| !line.decision.allowed);
    // What charges nothing is not counted, so that its turn would never pass.
    let is_timed = |stats: &LimitStats| would_deny || (plan.charges() && stats.is_due());
    let mut timed = plan.outcomes(answer).filter(|(stats, _)| is_timed(stats));
    let first = timed.next()?;
    Some(ServiceTimer::new(std::iter::once(first).chain(timed)))
}
