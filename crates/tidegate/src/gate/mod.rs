//! The gate: policies in front of a limiter.
//!
//! ```text
//!   GateRequest -> select (policies, keys, limits) -> memory or shared store -> GateVerdict
//!                                                                            \-> Stats
//! ```
//!
//! All fronts decide through the gate, so that counting, observation and denials do not depend on
//! the protocol. A front loads the [`ActivePolicies`] once per request and passes them in. The
//! verdict borrows names and limits from them, and a reload does not affect requests in flight.
//!
//! A request is planned, decided by the store and turned into a verdict. If nodes share a store
//! ([`Gate::with_shared_store`]), the limiter is the local memory of this node, which decides for
//! policies with `on_store_failure: local` while the store fails. Without a shared store, nothing
//! has to be awaited: [`Gate::poll_now`] polls once.
//!
//! - `request.rs`: requests to the gate, and their errors; `verdict.rs`: verdicts;
//! - `plan.rs`: which policies apply to a request, and their checks; `conflicts.rs`: checks with
//!   different limits for one count; `quotas.rs`: requests that need room in one of several quotas;
//! - `decide.rs`: calls of the store, and decisions while it fails; `shared_store.rs`: a store that
//!   nodes share; `waiting.rs`: waiting requests; `record.rs`: what the statistics get;
//! - `active_policies.rs`: policies with their counters; `policy_keys.rs`: finds, peeks at and
//!   resets keys; `code_policy.rs`: policies in code;
//! - `permits.rs`: requests that are then served, and permits; `batch.rs`: pipelines of simple
//!   requests.

mod active_policies;
mod batch;
mod code_policy;
mod conflicts;
mod decide;
mod permits;
mod plan;
mod policy_keys;
mod quotas;
mod record;
mod request;
mod shared_store;
mod verdict;
mod waiting;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};

pub use self::active_policies::ActivePolicies;
#[cfg(feature = "tower")]
pub(crate) use self::code_policy::{Adjustment, ChargeRecord};
pub use self::code_policy::{CodeKey, CodePolicy};
pub use self::permits::{Admission, AnyPermit, PermitGrant, SharedPermit};
pub use self::policy_keys::{FoundKey, PolicyKeys};
pub use self::request::{GateError, GateRequest, Subject};
pub(crate) use self::shared_store::ErasedStore;
pub use self::verdict::{DenialReason, GateVerdict, LimitResult};

use self::decide::DecideOptions;
pub(crate) use self::decide::GateCall;
pub(crate) use self::plan::ConcurrencyMode;
#[cfg(feature = "tower")]
pub(crate) use self::plan::{KeyBytes, Plan};
pub(crate) use self::record::RequestContext;
use self::record::{Timing, route_of};
use self::shared_store::SharedStore;
use crate::futures::CallTracker;
pub use crate::futures::MAX_CONCURRENT_CHECKS;
use crate::futures::poll_once;
use crate::policy::Policies;
use crate::stats::Stats;
use crate::wait_queue::Queues;
use crate::{Limiter, Store, Timestamp};

/// Policies in front of a limiter. It is shared by reference.
#[derive(Debug)]
pub struct Gate {
    limiter: Limiter,
    /// The shared store. If there is none, counts are kept in the limiter.
    shared: Option<SharedStore>,
    active: ArcSwap<ActivePolicies>,
    /// Queues of requests whose wait cannot be computed in advance; see `waiting.rs`.
    queues: Queues,
    stats: Arc<Stats>,
}

impl Gate {
    /// Returns the time on the limiter's clock.
    pub fn now(&self) -> Timestamp {
        self.limiter.store().clock().now()
    }

    /// Creates a gate that applies `policies` in front of `limiter`.
    pub fn new(limiter: Limiter, policies: Policies, stats: Arc<Stats>) -> Self {
        let active = ArcSwap::from_pointee(ActivePolicies::new(policies, &stats));
        let queues = Queues::default();
        Gate { limiter, shared: None, active, queues, stats }
    }

    /// Keeps counts in a store that `nodes` gates share: `tidegate::redis::RedisStore` for many
    /// machines, or a [`MemoryStore`](crate::MemoryStore) for several gates of one process. The
    /// limiter is then the local memory of this node, for policies with `on_store_failure: local`.
    /// If `nodes` is 0, it is the number that the store knows ([`Store::nodes`]), or 1.
    #[must_use]
    pub fn with_shared_store<S: Store>(self, store: Arc<S>, nodes: u32) -> Self {
        self.with_erased_store(store, nodes)
    }

    pub(crate) fn with_erased_store(self, store: Arc<dyn ErasedStore>, nodes: u32) -> Self {
        Gate { shared: Some(SharedStore::new(store, nodes)), ..self }
    }

    /// Returns whether the gate uses a shared store, so that its futures must be awaited.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Changes the number of nodes that share the limits; 0 for as many as the store knows.
    pub fn set_nodes(&self, nodes: u32) {
        if let Some(shared) = &self.shared {
            shared.set_nodes(nodes);
        }
    }

    /// Replaces the policies, and returns the old ones. Counts are kept: a limit finds its counts
    /// by the name of its policy, the key, its algorithm and its window. A caller that keeps the
    /// old policies until no check uses them frees them itself; otherwise the last check does.
    pub fn reload(&self, policies: Policies) -> Arc<ActivePolicies> {
        self.active.swap(Arc::new(ActivePolicies::new(policies, &self.stats)))
    }

    /// Returns the policies in force. The guard is meant for the duration of one request; clone the
    /// `Arc` to keep the policies for longer.
    pub fn active_policies(&self) -> Guard<Arc<ActivePolicies>> {
        self.active.load()
    }

    /// Returns the limiter, which keeps the counts or, with a shared store, is the local memory of
    /// this node.
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// Returns the statistics.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// Polls a future of this gate exactly once, for callers that are not async. If counts are kept
    /// in memory, the future is ready then, unless the request has a `max_wait`.
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
    /// let verdict = gate.poll_now(gate.check(&policies, &[request]))?;
    /// assert!(verdict.allowed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`GateError::MustAwait`] if the store is shared, without polling the future, and if
    /// the request waits; otherwise the errors of the future.
    #[inline]
    pub fn poll_now<T, E: From<GateError>>(
        &self,
        future: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        if self.is_shared() {
            return Err(GateError::MustAwait.into());
        }
        poll_once(future).unwrap_or_else(|| Err(GateError::MustAwait.into()))
    }

    /// Decides one or several requests together: all are charged or none.
    ///
    /// Each request has its own subject and cost. A policy that one of them matches can replace a
    /// policy that another one matches. If two requests count in the same state, the strictest of
    /// their limits applies to both, and refunds are offset against charges. The idempotency id,
    /// the request id, the path and `max_wait` are those of the first request that sets them.
    ///
    /// A failure of the store is not an error: the policies determine the verdict, and
    /// [`GateVerdict::decided`] reports how it was decided.
    ///
    /// # Errors
    /// Returns a [`GateError`] if a request is invalid. A denial is not an error.
    pub async fn check<'a>(
        &self,
        active: &'a ActivePolicies,
        requests: &[GateRequest<'a>],
    ) -> Result<GateVerdict<'a>, GateError> {
        let mut call = GateCall::default();
        self.check_into(&mut call, active, requests).await?;
        Ok(call.verdict)
    }

    /// Decides requests as [`Gate::check`] does. The call must be empty; it holds the verdict
    /// afterwards.
    async fn check_into<'a>(
        &self,
        call: &mut GateCall<'a>,
        active: &'a ActivePolicies,
        requests: &[GateRequest<'a>],
    ) -> Result<(), GateError> {
        call.plan.build(active, requests, ConcurrencyMode::Reject)?;
        let route = || route_of(requests);
        let context = RequestContext::of(requests, &route);
        let (timing, tracker) = (Timing::begin(self), &CallTracker::default());
        match context.max_wait {
            None => {
                self.decide(tracker, call, DecideOptions { id: context.id, ..DecideOptions::CHECK })
                    .await?
            }
            Some(max_wait) => Box::pin(self.wait_planned(tracker, call, max_wait)).await?,
        }
        call.verdict.unlimited = call.plan.unlimited();
        self.record(call, &context, timing.elapsed(context.max_wait));
        Ok(())
    }

    /// Decides the plan of a call in local memory and records the decisions.
    #[inline]
    fn check_in_memory(
        &self,
        call: &mut GateCall<'_>,
        context: &RequestContext<'_>,
        options: DecideOptions<'_>,
    ) -> Result<Timing, GateError> {
        let timing = Timing::begin(self);
        self.decide_in_memory(call, options)?;
        self.record(call, context, timing.elapsed(None));
        Ok(timing)
    }

    /// Acquires a permit. `concurrency` limits are held until the permit is dropped or its lease
    /// ends; rate limits are charged. The lease is `lease`, which must not exceed the lease of any
    /// of the limits, or by default the shortest of theirs. A permit of a shared store is not
    /// released on drop: see [`SharedPermit::release`].
    ///
    /// # Errors
    /// Returns the errors of [`Gate::check`]; an error if no `concurrency` limit applies; and
    /// [`GateError::LeaseTooLong`].
    pub async fn acquire<'a>(
        &self,
        active: &'a ActivePolicies,
        request: &GateRequest<'a>,
        lease: Option<Duration>,
    ) -> Result<PermitGrant<'a>, GateError> {
        let requests = std::slice::from_ref(request);
        let mut call = GateCall::default();
        call.plan.build(active, requests, ConcurrencyMode::RequirePermit(lease))?;
        let timing = Timing::begin(self);
        self.decide(
            &CallTracker::default(),
            &mut call,
            DecideOptions { lease, ..DecideOptions::PERMIT },
        )
        .await?;
        let route = || route_of(requests);
        self.record(&call, &RequestContext::of(requests, &route), timing.elapsed(None));
        let (lease, max_lease) = permits::leases(&call.plan, lease);
        Ok(PermitGrant { permit: call.permit, verdict: call.verdict, lease, max_lease })
    }

    /// Returns the keys of a policy, to find, peek at and reset them.
    ///
    /// # Errors
    /// Returns [`GateError::UnknownPolicy`] if the policy does not exist.
    pub fn keys<'a>(
        &'a self,
        active: &'a ActivePolicies,
        policy: &str,
    ) -> Result<PolicyKeys<'a>, GateError> {
        Ok(PolicyKeys::new(self, active, active.policies().get_or_err(policy)?))
    }
}
