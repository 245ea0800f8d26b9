//! Letting a request in: everything that holds for it, asked at once, and what is kept
//! while it is being served.
//!
//! [`Gate::check`] answers a question and is done. Who serves the request itself wants
//! more: places under `concurrency` limits for as long as that takes, and afterwards to say
//! how long it took. Both come with the answer here.

use std::time::{Duration, Instant};

use super::held::HeldPermit;
use super::plan::{Plan, Taking};
use super::{Answer, Gate, GateError, Named, Question, Rules};
use crate::asker::Asker;
use crate::stats::{ServiceTimer, is_timed};

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
        let mut plan = Plan::default();
        plan.fill_together(rules, questions, Taking::Places)?;
        self.enter_planned(&mut plan, Named::of(questions))
    }

    /// Lets a request in, if every limit of a plan admits it.
    pub(crate) fn enter_planned<'a>(
        &self,
        plan: &mut Plan<'a>,
        named: Named<'_>,
    ) -> Result<Entered<'a>, GateError> {
        self.in_memory()?;
        let begun = is_timed().then(Instant::now);
        let outcome = self.enter_here(plan, named.id)?;
        let elapsed = begun.map(|begun| begun.elapsed());
        let timing = Timing { elapsed, serving: begun.is_some() };
        Ok(self.entered(plan, named, outcome, timing))
    }

    /// The same over any store; and with `max_wait` at the earliest moment it passes, or at
    /// once if that would take longer, as in [`Gate::wait`]. Places are not waited for: a
    /// request that must have one is decided at once. One that is only observed is taken when
    /// the wait is over.
    ///
    /// If the future is dropped while a shared store decides, charges stay. Permits end with
    /// their lease, unless the store releases them, as `RedisStore` does.
    ///
    /// # Errors
    /// As [`Gate::enter`].
    pub async fn enter_async<'a>(
        &'a self,
        rules: &'a Rules,
        questions: &[Question<'a>],
        max_wait: Option<Duration>,
    ) -> Result<Entered<'a>, GateError> {
        let mut plan = Plan::default();
        plan.fill_together(rules, questions, Taking::Places)?;
        self.enter_for(&Asker::default(), &mut plan, Named::of(questions), max_wait).await
    }

    /// The same for somebody who may be gone before the store has answered.
    pub(crate) async fn enter_for<'a>(
        &self,
        asker: &Asker,
        plan: &mut Plan<'a>,
        named: Named<'_>,
        max_wait: Option<Duration>,
    ) -> Result<Entered<'a>, GateError> {
        let begun = Instant::now();
        let max_wait = max_wait.filter(|_| plan.can_wait());
        let outcome = match (&self.shared, max_wait) {
            (_, Some(max_wait)) => self.enter_in_turn(asker, plan, max_wait).await?,
            (None, None) => self.enter_here(plan, named.id)?,
            (Some(shared), None) if plan.holds() => {
                asker.asks(self.hold_shared(shared, plan, None)).await?
            }
            (Some(shared), None) => {
                let id = named.id.filter(|_| plan.charges());
                (asker.asks(self.decide_shared(shared, plan, id)).await?, None)
            }
        };
        // Who waited did not take long to decide.
        let elapsed = max_wait.is_none().then(|| begun.elapsed());
        let timing = Timing { elapsed, serving: is_timed() };
        Ok(self.entered(plan, named, outcome, timing))
    }

    /// What this process's memory says.
    fn enter_here<'a>(
        &self,
        plan: &mut Plan<'a>,
        id: Option<&[u8]>,
    ) -> Result<(Answer<'a>, Option<HeldPermit>), GateError> {
        if !plan.holds() {
            return Ok((self.answer_here(plan, id)?, None));
        }
        self.hold_here(plan)
    }

    fn entered<'a>(
        &self,
        plan: &Plan<'a>,
        named: Named<'_>,
        (answer, permit): (Answer<'a>, Option<HeldPermit>),
        timing: Timing,
    ) -> Entered<'a> {
        self.record(plan, &answer, named, timing.elapsed);
        let timer = service_timer(plan, &answer, timing.serving);
        Entered { answer, permit, timer }
    }
}

/// What is timed of a request.
struct Timing {
    /// How long it took to decide, if somebody looked.
    elapsed: Option<Duration>,
    /// Whether it is its turn to have its service timed.
    serving: bool,
}

/// A timer for one request in some; and for every one that an observed policy would
/// have denied: those are few, and what they cost is why one observes.
fn service_timer(plan: &Plan<'_>, answer: &Answer<'_>, timed: bool) -> Option<ServiceTimer> {
    if !answer.allowed || answer.lines.is_empty() {
        return None;
    }
    let would_deny = answer.lines.iter().any(|line| !line.decision.allowed);
    // What charges nothing was only asked about.
    let timed = would_deny || (timed && plan.charges());
    timed.then(|| ServiceTimer::new(plan.outcomes(answer)))
}
