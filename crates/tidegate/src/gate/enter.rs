//! Admission of a request that is then served here.
//!
//! Besides the answer of [`Gate::check`] it returns the permits to hold while the request runs, and
//! a timer for how long that takes.

use super::decide::Asking;
use super::held::HeldPermit;
use super::plan::{Plan, Taking};
use super::{Answer, Gate, GateError, Named, Question, Rules, Timing, route_of};
use crate::asker::Asker;
use crate::stats::ServiceTimer;

/// What came of asking to be let in.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "a permit that is dropped is given back"]
pub struct Entered<'a> {
    /// The answer.
    pub answer: Answer<'a>,
    /// The places it holds, if it was admitted and there are any to hold. One of a shared
    /// store is not given back on drop: see [`SharedPermit::release`](super::SharedPermit::release).
    pub permit: Option<HeldPermit>,
    /// For telling how long it took to serve, if this request is one of those that are timed.
    pub timer: Option<ServiceTimer>,
}

impl Gate {
    /// Lets a request in, if every limit admits it: rate limits are charged, `concurrency` limits
    /// are held. Several questions are one request, as in [`Gate::check`].
    ///
    /// A request that needs a permit is decided without waiting. Permits of observed policies are
    /// taken when the wait is over.
    ///
    /// If the future is dropped while a shared store decides, charges stay. Permits end with
    /// their lease, unless the store releases them, as `RedisStore` does.
    ///
    /// # Errors
    /// As [`Gate::check`]; but `concurrency` limits are welcome.
    pub async fn enter<'a>(
        &self,
        rules: &'a Rules,
        questions: &[Question<'a>],
    ) -> Result<Entered<'a>, GateError> {
        let mut plan = Plan::default();
        plan.fill(rules, questions, Taking::Places)?;
        let route = || route_of(questions);
        let named = Named::of(questions, &route);
        self.enter_planned(&Asker::default(), &mut plan, &named).await?;
        Ok(Entered { answer: plan.answer, permit: plan.permit, timer: plan.timer })
    }

    /// Lets a request in, if every limit of a plan admits it. The plan keeps what comes of it. The
    /// caller may be gone before the store has answered.
    pub(crate) async fn enter_planned(
        &self,
        asker: &Asker,
        plan: &mut Plan<'_>,
        named: &Named<'_>,
    ) -> Result<(), GateError> {
        let timing = Timing::begin(self);
        let max_wait = named.max_wait.filter(|_| plan.can_wait());
        match max_wait {
            Some(max_wait) => Box::pin(self.enter_in_turn(asker, plan, max_wait)).await?,
            None => {
                let asking = Asking::entering(plan, named);
                self.decide(asker, plan, asking).await?;
            }
        }
        self.record(plan, named, timing.elapsed(max_wait));
        conclude(plan, timing);
        Ok(())
    }

    /// Lets a request in as [`Gate::enter_planned`] does, where counts are kept in memory and
    /// nothing is waited for. The future would take 2 to 3 % of a whole request through axum.
    #[cfg(feature = "tower")]
    #[inline(always)]
    pub(crate) fn enter_here(
        &self,
        plan: &mut Plan<'_>,
        named: &Named<'_>,
    ) -> Result<(), GateError> {
        let asking = Asking::entering(plan, named);
        let timing = self.check_here(plan, named, asking)?;
        conclude(plan, timing);
        Ok(())
    }
}

/// Begins to time the service of what was let in: of one request in some, and of every one that an
/// observed policy would have denied. Those are few, and what they cost is why one observes.
fn conclude(plan: &mut Plan<'_>, timing: Timing) {
    let Answer { allowed, lines, .. } = &plan.answer;
    let would_deny = || lines.iter().any(|line| !line.decision.allowed);
    // A request that charges nothing is a peek, and is not timed.
    if *allowed && (would_deny() || (timing.is_timed && !lines.is_empty() && plan.charges())) {
        begin_timer(plan);
    }
}

#[cold]
fn begin_timer(plan: &mut Plan<'_>) {
    plan.timer = Some(ServiceTimer::new(plan.outcomes()));
}
