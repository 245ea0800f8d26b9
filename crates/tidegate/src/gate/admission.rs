//! Admission of a request that this process then serves.
//!
//! Besides the verdict, admission returns the permits to hold while the request is served, and a
//! timer for the duration of the service.

use super::decide::DecideOptions;
use super::permits::AnyPermit;
use super::plan::{ConcurrencyMode, Plan};
use super::{
    ActivePolicies, Gate, GateError, GateRequest, GateVerdict, RequestContext, Timing, route_of,
};
use crate::futures::CallTracker;
use crate::stats::ServiceTimer;

/// The result of [`Gate::admit`].
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "a permit that is dropped is released"]
pub struct Admission<'a> {
    /// The verdict.
    pub verdict: GateVerdict<'a>,
    /// The permit, if the request was admitted and has `concurrency` limits. A permit of a shared
    /// store is not released on drop: see [`SharedPermit::release`](super::SharedPermit::release).
    pub permit: Option<AnyPermit>,
    /// Records the duration of the service, if this request is timed.
    pub timer: Option<ServiceTimer>,
}

impl Gate {
    /// Admits a request if every limit allows it: rate limits are charged, `concurrency` limits are
    /// held. Several requests are decided together, as in [`Gate::check`].
    ///
    /// A request with an enforced `concurrency` limit is decided without waiting. Permits of
    /// observed policies are acquired after the wait.
    ///
    /// If the future is dropped while a shared store decides, charges are kept. Permits end with
    /// their lease, unless the store releases them, as `RedisStore` does.
    ///
    /// # Errors
    /// Returns the errors of [`Gate::check`], except that `concurrency` limits are not an error.
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

    /// Admits a request if every limit of a plan allows it. The plan holds the result. The caller
    /// may be cancelled before the store has replied.
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

    /// Admits a request as [`Gate::admit_planned`] does, in local memory and without waiting. The
    /// future would take 2 to 3 % of a whole request through axum.
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

/// Starts the service timer of an admitted request. It is started for sampled requests, and for
/// every request that an observed policy would have denied: these are few, and their cost is the
/// reason to observe.
fn start_service_timer(plan: &mut Plan<'_>, timing: Timing) {
    let GateVerdict { allowed, results, .. } = &plan.verdict;
    let would_deny = || results.iter().any(|result| !result.decision.allowed);
    // A request that charges nothing is a peek, and is not timed.
    if *allowed
        && (would_deny() || (timing.is_sampled && !results.is_empty() && plan.changes_counts()))
    {
        set_service_timer(plan);
    }
}

#[cold]
fn set_service_timer(plan: &mut Plan<'_>) {
    plan.timer = Some(ServiceTimer::new(plan.outcomes()));
}
