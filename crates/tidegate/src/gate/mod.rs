//! The gate: policies in front of a limiter.
//!
//! ```text
//!   GateRequest -> select (policies, keys, limits) -> Limiter -> GateVerdict
//!                                                     \-> Stats
//! ```
//!
//! Every front asks here and nowhere else, so that what is counted, observed or
//! refused does not depend on the protocol. A front reads the [`ActivePolicies`] once per
//! request and passes them in: an answer borrows names and limits from them, and
//! a reload in between changes nothing for requests on their way.
//!
//! A question is planned, decided by the store and answered. Where nodes share a store
//! ([`Gate::with_shared_store`]), the limiter is this node's own memory, which decides where a policy wants that
//! when the store fails. Without one, nothing has to be awaited: [`Gate::sync`] polls once.
//!
//! - `request.rs`: requests to the gate; `verdict.rs`: verdicts; `error.rs`: invalid requests;
//! - `plan.rs`: which policies apply to a request; `checks.rs`: their checks; `conflicts.rs`:
//!   different limits for one count; `quotas.rs`: requests that need room in one of several quotas;
//! - `decide.rs`: calls of the store, and answers while it fails; `shared_store.rs`: a store that
//!   nodes share; `waiting.rs`: waiting requests;
//! - `active_policies.rs`: policies with their counters; `code_policy.rs`: policies in code;
//!   `policy_keys.rs`: peek and reset;
//! - `admission.rs`: requests that are then served; `permits.rs`: permits; `batch.rs`: pipelines of
//!   simple requests.

mod active_policies;
mod admission;
mod batch;
mod checks;
mod code_policy;
mod conflicts;
mod decide;
mod error;
mod permits;
mod plan;
mod policy_keys;
mod quotas;
mod request;
mod shared_store;
mod verdict;
mod waiting;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};
use smallvec::SmallVec;

pub use self::active_policies::ActivePolicies;
pub use self::admission::Admission;
#[cfg(feature = "tower")]
pub(crate) use self::code_policy::{Adjustment, ChargeRecord};
pub use self::code_policy::{CodeKey, CodePolicy};
pub use self::error::GateError;
pub use self::permits::{AnyPermit, PermitGrant, SharedPermit};
pub use self::policy_keys::{FoundKey, PolicyKeys};
pub use self::request::{GateRequest, Subject};
pub(crate) use self::shared_store::ErasedStore;
pub use self::verdict::{DenialReason, GateVerdict, LimitResult};

use self::decide::DecideOptions;
#[cfg(feature = "tower")]
pub(crate) use self::plan::KeyBytes;
pub(crate) use self::plan::{ConcurrencyMode, Plan};
use self::shared_store::SharedStore;
use crate::futures::CallTracker;
pub use crate::futures::MAX_CONCURRENT_CHECKS;
use crate::futures::poll_once;
use crate::policy::Policies;
use crate::stats::{self, Counting, RequestRecord, Stats, is_near, is_timed};
use crate::wait_queue::Queues;
use crate::{Limiter, Store, Timestamp};

/// Policies in front of a limiter. Shared by reference.
#[derive(Debug)]
pub struct Gate {
    limiter: Limiter,
    /// Where counts are kept, if not in the limiter.
    shared: Option<SharedStore>,
    active: ArcSwap<ActivePolicies>,
    /// Who waits where that cannot be played through, by what they wait for.
    queues: Queues,
    stats: Arc<Stats>,
}

impl Gate {
    /// The time on the limiter's clock.
    pub fn now(&self) -> Timestamp {
        self.limiter.store().clock().now()
    }

    /// These policies in front of this limiter.
    pub fn new(limiter: Limiter, policies: Policies, stats: Arc<Stats>) -> Self {
        let active = ArcSwap::from_pointee(ActivePolicies::new(policies, &stats));
        let queues = Queues::default();
        Gate { limiter, shared: None, active, queues, stats }
    }

    /// Keeps counts in a store that `nodes` gates share: `tidegate::redis::RedisStore` for many
    /// machines, or a [`MemoryStore`](crate::MemoryStore) for several gates of one process. The
    /// limiter then is this node's own memory, for policies that say `on_store_failure: local`.
    #[must_use]
    pub fn with_shared_store<S: Store>(self, store: Arc<S>, nodes: u32) -> Self {
        self.with_erased_store(store, nodes)
    }

    pub(crate) fn with_erased_store(self, store: Arc<dyn ErasedStore>, nodes: u32) -> Self {
        Gate { shared: Some(SharedStore::new(store, nodes)), ..self }
    }

    /// Whether it shares its store with others, so that answers must be awaited.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// How many share the limits, from now on.
    pub fn set_nodes(&self, nodes: u32) {
        if let Some(shared) = &self.shared {
            shared.set_nodes(nodes);
        }
    }

    /// Other policies from now on. What was counted stays: a limit finds its
    /// counts by its policy's name, the key, its algorithm and its window.
    pub fn reload(&self, policies: Policies) {
        self.active.store(Arc::new(ActivePolicies::new(policies, &self.stats)));
    }

    /// The rules now in force, for as long as one question takes. Clone the `Arc` to keep them for
    /// longer.
    pub fn active_policies(&self) -> Guard<Arc<ActivePolicies>> {
        self.active.load()
    }

    /// The limiter behind it: where counts are kept, or this node's own memory.
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// What it has counted.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// Polls a future of this gate once. Where counts are kept in memory it is ready then, unless the
    /// question has a `max_wait`.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tidegate::Limiter;
    /// use tidegate::unstable::gate::{Gate, GateRequest, Subject};
    /// use tidegate::unstable::identity::Identity;
    /// use tidegate::unstable::policy::Policies;
    /// use tidegate::unstable::stats::Stats;
    ///
    /// let policies = Policies::new(Vec::new(), Identity::default())?;
    /// let gate = Gate::new(Limiter::new(), policies, Arc::new(Stats::default()));
    /// let policies = gate.active_policies();
    /// let limits = ["10 per 1m".parse()?];
    /// let request = GateRequest::new(Subject::Limits { key: b"alice", limits: &limits });
    /// let verdict = gate.sync(gate.check(&policies, &[request]))?;
    /// assert!(verdict.allowed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`GateError::MustAwait`] over a shared store, without asking it, and for a question that
    /// waits; else those of the future.
    #[inline]
    pub fn sync<T>(
        &self,
        future: impl Future<Output = Result<T, GateError>>,
    ) -> Result<T, GateError> {
        if self.is_shared() {
            return Err(GateError::MustAwait);
        }
        poll_once(future).unwrap_or(Err(GateError::MustAwait))
    }

    /// Answers one or several questions as one request: all are charged or none. Each has its own
    /// subject and cost; what one of them meets may replace what another meets. Where two are
    /// counted in one place, the strictest of their limits holds for both, and what one gives
    /// back is set off against what the other asks for. Of idempotency ids, request ids, paths and
    /// waits the first that is given holds for all.
    ///
    /// A store that fails is not an error: the policies say what is answered then, and
    /// [`GateVerdict::decided`] says that it was so.
    ///
    /// # Errors
    /// When a question makes no sense; see [`GateError`]. A denial is not an error.
    pub async fn check<'a>(
        &self,
        active: &'a ActivePolicies,
        requests: &[GateRequest<'a>],
    ) -> Result<GateVerdict<'a>, GateError> {
        let mut plan = Plan::default();
        self.check_in(&mut plan, active, requests).await?;
        Ok(plan.verdict)
    }

    /// Answers questions as [`Gate::check`] does. The plan, which was empty, keeps the answer.
    async fn check_in<'a>(
        &self,
        plan: &mut Plan<'a>,
        active: &'a ActivePolicies,
        requests: &[GateRequest<'a>],
    ) -> Result<(), GateError> {
        plan.build(active, requests, ConcurrencyMode::Reject)?;
        let route = || route_of(requests);
        let context = RequestContext::of(requests, &route);
        let (timing, tracker) = (Timing::begin(self), &CallTracker::default());
        match context.max_wait {
            None => {
                self.decide(tracker, plan, DecideOptions { id: context.id, ..DecideOptions::CHECK })
                    .await?
            }
            Some(max_wait) => Box::pin(self.wait_planned(tracker, plan, max_wait)).await?,
        }
        plan.verdict.unlimited = plan.unlimited();
        self.record(plan, &context, timing.elapsed(context.max_wait));
        Ok(())
    }

    /// Decides a plan in this process's memory, and counts what was decided.
    #[inline]
    fn check_in_memory(
        &self,
        plan: &mut Plan<'_>,
        context: &RequestContext<'_>,
        options: DecideOptions<'_>,
    ) -> Result<Timing, GateError> {
        let timing = Timing::begin(self);
        self.decide_in_memory(plan, options)?;
        self.record(plan, context, timing.elapsed(None));
        Ok(timing)
    }

    /// Takes a permit: `concurrency` limits are held until it is dropped or its lease
    /// ends, rate limits are charged. The lease is the shortest of the limits'
    /// own, or `lease` if that is given and no longer than any. A permit of a shared store is not
    /// given back on drop: see [`SharedPermit::release`].
    ///
    /// # Errors
    /// As [`Gate::check`]; and when there is no `concurrency` limit to hold, or
    /// the lease is too long.
    pub async fn acquire<'a>(
        &self,
        active: &'a ActivePolicies,
        request: &GateRequest<'a>,
        lease: Option<Duration>,
    ) -> Result<PermitGrant<'a>, GateError> {
        let requests = std::slice::from_ref(request);
        let mut plan = Plan::default();
        plan.build(active, requests, ConcurrencyMode::AcquirePermit(lease))?;
        let timing = Timing::begin(self);
        self.decide(
            &CallTracker::default(),
            &mut plan,
            DecideOptions { lease, ..DecideOptions::PERMIT },
        )
        .await?;
        let route = || route_of(requests);
        self.record(&plan, &RequestContext::of(requests, &route), timing.elapsed(None));
        let (lease, max_lease) = permits::leases(&plan, lease);
        Ok(PermitGrant { permit: plan.permit, verdict: plan.verdict, lease, max_lease })
    }

    /// The keys of a policy, to look them up, peek at them and reset them.
    ///
    /// # Errors
    /// [`GateError::UnknownPolicy`].
    pub fn keys<'a>(
        &'a self,
        active: &'a ActivePolicies,
        policy: &str,
    ) -> Result<PolicyKeys<'a>, GateError> {
        Ok(PolicyKeys::new(self, active, active.policies().get_or_err(policy)?))
    }

    /// Counts what was decided, under its path and request id. Peeks, refunds and forced charges are
    /// not counted.
    fn record(&self, plan: &Plan<'_>, context: &RequestContext<'_>, elapsed: Option<Duration>) {
        let mut counting = Counting::new(plan.verdict.allowed);
        plan.for_each_counted(|_, result, stats| {
            let near = is_near(result.limit, result.remaining());
            counting.add(stats, result.decision.allowed, near, result.decided);
        });
        if counting.has_limits && self.stats.add(counting, elapsed) {
            self.record_notable(plan, context, elapsed);
        }
    }

    #[cold]
    fn record_notable(
        &self,
        plan: &Plan<'_>,
        context: &RequestContext<'_>,
        elapsed: Option<Duration>,
    ) {
        let mut results = SmallVec::<[stats::LimitRecord<'_>; 4]>::new();
        plan.for_each_counted(|planned, result, stats| {
            results.push(stats::LimitRecord {
                stats,
                limit: result.limit,
                key: plan.key_without_policy(planned),
                allowed: result.decision.allowed,
                remaining: result.remaining(),
                retry_after: result.decision.retry_after,
                decided: result.decided,
            });
        });
        let (allowed, route) = (plan.verdict.allowed, (context.route)());
        let request_id = context.request_id;
        self.stats.record_notable(&RequestRecord {
            limits: &results,
            allowed,
            route,
            request_id,
            elapsed,
        });
    }
}

/// Settings that the questions of a request share: the first question that has one sets it.
#[derive(Clone, Copy)]
pub(crate) struct RequestContext<'q> {
    /// An idempotency id.
    pub(crate) id: Option<&'q [u8]>,
    /// Returns the path. It is called only if the key of the request is noted.
    pub(crate) route: &'q (dyn Fn() -> Option<&'q str> + Sync),
    pub(crate) request_id: Option<&'q str>,
    /// The longest wait; see [`GateRequest::max_wait`].
    pub(crate) max_wait: Option<Duration>,
}

impl<'q> RequestContext<'q> {
    fn of(requests: &[GateRequest<'q>], route: &'q (dyn Fn() -> Option<&'q str> + Sync)) -> Self {
        RequestContext {
            id: requests.iter().find_map(|request| request.id),
            route,
            request_id: requests.iter().find_map(|request| request.request_id),
            max_wait: requests.iter().find_map(|request| request.max_wait),
        }
    }
}

/// The path that the first question with one asks for.
fn route_of<'q>(requests: &[GateRequest<'q>]) -> Option<&'q str> {
    requests.iter().find_map(|request| request.subject.route())
}

/// When a decision began, and whether it is among those that are timed.
#[derive(Clone, Copy)]
struct Timing {
    started: Option<Instant>,
    is_timed: bool,
}

impl Timing {
    /// One decision in some is timed, and every one over a shared store: beside its round trip, the
    /// clock costs nothing.
    fn begin(gate: &Gate) -> Self {
        let is_timed = is_timed();
        Timing { started: (is_timed || gate.is_shared()).then(Instant::now), is_timed }
    }

    /// How long the decision took. A request that waited did not take long to decide.
    fn elapsed(self, max_wait: Option<Duration>) -> Option<Duration> {
        self.started.filter(|_| max_wait.is_none()).map(|started| started.elapsed())
    }
}
