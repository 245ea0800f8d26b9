//! Admission of a request that is then served here.
//!
//! Besides the answer of [`Gate::check`] it returns the permits to hold while the request runs, and
//! a timer for how long that takes.

use super::decide::DecideOptions;
use super::permits::AnyPermit;
use super::plan::{ConcurrencyMode, Plan};
use super::{
    ActivePolicies, Gate, GateError, GateRequest, GateVerdict, RequestContext, Timing, route_of,
};
use crate::futures::CallTracker;
use crate::stats::ServiceTimer;

/// What came of asking to be let in.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "a permit that is dropped is given back"]
pub struct Admission<'a> {
    /// The answer.
    pub verdict: GateVerdict<'a>,
    /// The places it holds, if it was admitted and there are any to hold. One of a shared
    /// store is not given back on drop: see [`SharedPermit::release`](super::SharedPermit::release).
    pub permit: Option<AnyPermit>,
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
    pub async fn admit<'a>(
        &self,
        active: &'a ActivePolicies,
        requests: &[GateRequest<'a>],
    ) -> Result<Admission<'a>, GateError> {
        let mut plan = Plan::default();
        plan.build(active, requests, ConcurrencyMode::Acquire)?;
        let route = || route_of(requests);
        let context = RequestContext::of(requests, &route);
        self.admit_planned(&CallTracker::default(), &mut plan, &context).await?;
        Ok(Admission { verdict: plan.verdict, permit: plan.permit, timer: plan.timer })
    }

    /// Lets a request in, if every limit of a plan admits it. The plan keeps what comes of it. The
    /// caller may be gone before the store has answered.
    pub(crate) async fn admit_planned(
        &self,
        tracker: &CallTracker,
        plan: &mut Plan<'_>,
        context: &RequestContext<'_>,
    ) -> Result<(), GateError> {
        let timing = Timing::begin(self);
        let max_wait = context.max_wait.filter(|_| plan.can_wait());
        match max_wait {
            Some(max_wait) => Box::pin(self.admit_after_wait(tracker, plan, max_wait)).await?,
            None => {
                let options = DecideOptions::for_admission(plan, context);
                self.decide(tracker, plan, options).await?;
            }
        }
        self.record(plan, context, timing.elapsed(max_wait));
        start_service_timer(plan, timing);
        Ok(())
    }

    /// Lets a request in as [`Gate::admit_planned`] does, where counts are kept in memory and
    /// nothing is waited for. The future would take 2 to 3 % of a whole request through axum.
    #[cfg(feature = "tower")]
    #[inline(always)]
    pub(crate) fn admit_in_memory(
        &self,
        plan: &mut Plan<'_>,
        context: &RequestContext<'_>,
    ) -> Result<(), GateError> {
        let options = DecideOptions::for_admission(plan, context);
        let timing = self.check_in_memory(plan, context, options)?;
        start_service_timer(plan, timing);
        Ok(())
    }
}

/// Begins to time the service of what was let in: of one request in some, and of every one that an
/// observed policy would have denied. Those are few, and what they cost is why one observes.
fn start_service_timer(plan: &mut Plan<'_>, timing: Timing) {
    let GateVerdict { allowed, results, .. } = &plan.verdict;
    let would_deny = || results.iter().any(|result| !result.decision.allowed);
    // A request that charges nothing is a peek, and is not timed.
    if *allowed && (would_deny() || (timing.is_timed && !results.is_empty() && plan.charges())) {
        set_service_timer(plan);
    }
}

#[cold]
fn set_service_timer(plan: &mut Plan<'_>) {
    plan.timer = Some(ServiceTimer::new(plan.outcomes()));
}
