//! Permits of the gate, in local memory or in the shared store, and the admission of a request that
//! this process then serves.
//!
//! Besides the verdict, admission returns the permits to hold while the request is served, and a
//! timer for the duration of the service.

use std::time::Duration;

use tidegate_core::{Limit, PermitId, bounds};

use super::decide::{DecideOptions, GateCall};
use super::plan::{ConcurrencyMode, Plan};
use super::record::{RequestContext, Timing, route_of};
use super::{ActivePolicies, Gate, GateError, GateRequest, GateVerdict};
use crate::futures::{CallTracker, join_all};
use crate::policy::is_concurrency;
use crate::request::charged_checks;
use crate::stats::ServiceTimer;
use crate::store::PermitOperation;
use crate::{MAX_CHECKS, Permit, Verdict};

/// The result of [`Gate::admit`].
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "a permit that is dropped is released"]
pub struct Admission<'a> {
    /// The verdict.
    pub verdict: GateVerdict<'a>,
    /// The permit, if the request was admitted and has `concurrency` limits. A permit of a shared
    /// store is not released on drop: see [`SharedPermit::release`].
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
        let mut call = GateCall::default();
        call.plan.build(active, requests, ConcurrencyMode::HoldIfAny)?;
        let route = || route_of(requests);
        let context = RequestContext::of(requests, &route);
        self.admit_planned(&CallTracker::default(), &mut call, &context).await?;
        Ok(Admission { verdict: call.verdict, permit: call.permit, timer: call.timer })
    }

    /// Admits a request if every limit of its plan allows it. The call holds the result. The caller
    /// may be cancelled before the store has replied.
    pub(crate) async fn admit_planned(
        &self,
        tracker: &CallTracker,
        call: &mut GateCall<'_>,
        context: &RequestContext<'_>,
    ) -> Result<(), GateError> {
        let timing = Timing::begin(self);
        let max_wait = context.max_wait.filter(|_| call.plan.can_wait());
        match max_wait {
            Some(max_wait) => Box::pin(self.admit_after_wait(tracker, call, max_wait)).await?,
            None => {
                let options = DecideOptions::for_admission(&call.plan, context);
                self.decide(tracker, call, options).await?;
            }
        }
        self.record(call, context, timing.elapsed(max_wait));
        start_service_timer(call, timing);
        Ok(())
    }

    /// Admits a request as [`Gate::admit_planned`] does, in local memory and without waiting. The
    /// future would take 2 to 3 % of a whole request through axum.
    #[cfg(feature = "tower")]
    #[inline(always)]
    pub(crate) fn admit_in_memory(
        &self,
        call: &mut GateCall<'_>,
        context: &RequestContext<'_>,
    ) -> Result<(), GateError> {
        let options = DecideOptions::for_admission(&call.plan, context);
        let timing = self.check_in_memory(call, context, options)?;
        start_service_timer(call, timing);
        Ok(())
    }
}

/// Starts the service timer of an admitted request. It is started for sampled requests, and for
/// every request that an observed policy would have denied: these are few, and their cost is the
/// reason to observe.
fn start_service_timer(call: &mut GateCall<'_>, timing: Timing) {
    let GateVerdict { allowed, results, .. } = &call.verdict;
    let would_deny =
        || results.iter().any(|result| !result.is_enforced() && !result.decision.allowed);
    // A request that charges nothing is a peek, and is not timed.
    if *allowed
        && (would_deny()
            || (timing.is_sampled && !results.is_empty() && call.plan.changes_counts()))
    {
        set_service_timer(call);
    }
}

#[cold]
fn set_service_timer(call: &mut GateCall<'_>) {
    call.timer = Some(ServiceTimer::new(call.outcomes()));
}

/// The result of [`Gate::acquire`].
#[derive(Debug)]
#[must_use = "a permit that is dropped is released"]
pub struct PermitGrant<'a> {
    /// The permit, if it was granted.
    pub permit: Option<AnyPermit>,
    /// The verdict.
    pub verdict: GateVerdict<'a>,
    /// The time after which the permit ends unless it is renewed.
    pub lease: Duration,
    /// The longest time between renewals: the shortest lease of the limits, or the longest lease
    /// that any limit can have if none is held.
    pub max_lease: Duration,
}

/// A permit in local memory or in the shared store.
#[derive(Debug)]
pub enum AnyPermit {
    /// A permit in local memory, released on drop.
    Local(Permit),
    /// A permit in the store that all nodes share.
    Shared(SharedPermit),
}

impl AnyPermit {
    /// Returns the permit if it is in local memory.
    pub fn local(self) -> Option<Permit> {
        match self {
            AnyPermit::Local(permit) => Some(permit),
            AnyPermit::Shared(_) => None,
        }
    }

    /// Returns the permit if it is in the shared store.
    pub fn shared(self) -> Option<SharedPermit> {
        match self {
            AnyPermit::Local(_) => None,
            AnyPermit::Shared(permit) => Some(permit),
        }
    }
}

/// The maximum size of an encoded permit: as many keys of the longest kind as fit in the head of a
/// request, with room to spare.
const MAX_PERMIT_BYTES: usize = 40 * 1024;

/// A permit held in a shared store, as plain data. It can be renewed and released on any node.
/// Dropping it does nothing; its lease ends by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedPermit {
    id: PermitId,
    lease_us: u64,
    max_lease_us: u64,
    /// The keys that it is held under, as the store sees them.
    keys: Vec<Box<[u8]>>,
}

impl SharedPermit {
    /// Creates the permit of an admitted request. Observed limits that would have denied the
    /// request are not held.
    pub(super) fn new(
        plan: &Plan<'_>,
        id: PermitId,
        verdict: &Verdict,
        requested_lease: Option<Duration>,
    ) -> Self {
        let checks = plan.checks();
        let held = charged_checks(&checks, &verdict.decisions);
        let held = held.filter(|check| is_concurrency(check.limit));
        let keys = held.map(|check| check.key.into()).collect();
        let (lease, max_lease) = leases(plan, requested_lease);
        let us = |length: Duration| u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
        SharedPermit { id, lease_us: us(lease), max_lease_us: us(max_lease), keys }
    }

    /// The keys that it is held under.
    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.keys.iter().map(|key| &**key)
    }

    /// Releases the permit. Returns whether it was held.
    ///
    /// # Errors
    /// Returns [`GateError::Store`] if the store failed. The permit then ends with its lease,
    /// unless this is called again or the store retries, as `RedisStore` does.
    pub async fn release(&self, gate: &Gate) -> Result<bool, GateError> {
        self.apply(gate, self.lease(), PermitOperation::Release(self.id)).await
    }

    /// Restarts the lease, with the original duration or with `lease`. Returns the new duration;
    /// `None` if the permit is not held (any more).
    ///
    /// # Errors
    /// Returns [`GateError::LeaseTooLong`], or [`GateError::Store`] if the store failed. The lease
    /// may or may not have been restarted then.
    pub async fn renew(
        &self,
        gate: &Gate,
        lease: Option<Duration>,
    ) -> Result<Option<Duration>, GateError> {
        let lease = lease.unwrap_or_else(|| self.lease());
        if lease > self.max_lease() {
            return Err(GateError::LeaseTooLong { max_lease: self.max_lease() });
        }
        let held = self.apply(gate, lease, PermitOperation::Renew(self.id)).await?;
        Ok(held.then_some(lease))
    }

    /// Releases or renews the permit under each of its keys, even if one of the calls fails.
    async fn apply(
        &self,
        gate: &Gate,
        lease: Duration,
        operation: PermitOperation,
    ) -> Result<bool, GateError> {
        let (Some(limit), Some(shared)) = (Self::limit(lease), &gate.shared) else {
            return Ok(false);
        };
        let calls = self.keys().map(|key| {
            // Local memory holds the permit too, if it was acquired on this node.
            gate.limiter.store().update_permit(key, &limit, operation);
            shared.store().update_permit(key, &limit, operation)
        });
        let mut all_held = true;
        for held in join_all(calls.collect()).await {
            all_held &= held?;
        }
        Ok(all_held)
    }

    /// Returns the time after which the permit ends unless it is renewed.
    pub fn lease(&self) -> Duration {
        Duration::from_micros(self.lease_us)
    }

    /// Returns the longest time between renewals.
    pub fn max_lease(&self) -> Duration {
        Duration::from_micros(self.max_lease_us)
    }

    /// A limit with this lease that identifies the states of the permit. Returns `None` if the
    /// lease is out of bounds.
    fn limit(lease: Duration) -> Option<Limit> {
        // States of `concurrency` are identified by their key alone.
        Limit::concurrent(1, lease).ok()
    }

    /// Encodes the permit for [`SharedPermit::from_bytes`] on any node. The bytes contain the keys
    /// in plain form. They contain no secret of the store, but anyone who has them can release the
    /// permit.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        for number in [self.id.0, self.lease_us, self.max_lease_us] {
            put_number(&mut out, number);
        }
        for key in self.keys() {
            put_number(&mut out, key.len() as u64);
            out.extend_from_slice(key);
        }
        out
    }

    /// Decodes a permit. Returns `None` if the bytes are not a valid permit. They come from a
    /// caller, so the number of keys is bounded: each is a call to the store, and a permit has at
    /// most as many keys as a request has checks.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        if bytes.len() > MAX_PERMIT_BYTES {
            return None;
        }
        let [id, lease_us, max_lease_us] =
            [take_number(&mut bytes)?, take_number(&mut bytes)?, take_number(&mut bytes)?];
        let mut keys = Vec::new();
        while !bytes.is_empty() {
            let length = usize::try_from(take_number(&mut bytes)?).ok()?;
            let (key, rest) = bytes.split_at_checked(length)?;
            if keys.len() == MAX_CHECKS {
                return None;
            }
            keys.push(key.into());
            bytes = rest;
        }
        let permit = SharedPermit { id: PermitId(id), lease_us, max_lease_us, keys };
        let is_lease = |length| Self::limit(length).is_some();
        let fits = permit.lease_us <= permit.max_lease_us && is_lease(permit.lease());
        (fits && is_lease(permit.max_lease())).then_some(permit)
    }
}

impl Plan<'_> {
    /// Sets the lease of the `concurrency` limits. There must be one, unless no policy applies.
    pub(super) fn set_lease(&mut self, lease: Option<Duration>) -> Result<(), GateError> {
        let concurrency_limits = || {
            self.policies.iter().flat_map(|planned| planned.limits).filter(|l| is_concurrency(l))
        };
        if concurrency_limits().next().is_none() && !self.policies.is_empty() {
            let policy = match &self.policies[..] {
                [only] => only.policy.map(Into::into),
                _ => None,
            };
            return Err(GateError::NoConcurrencyLimit { policy });
        }
        let Some(lease) = lease else { return Ok(()) };
        let leased: Option<Vec<Limit>> = concurrency_limits()
            .map(|limit| {
                let fits = lease <= Duration::from_micros(limit.window_us());
                fits.then(|| Limit::concurrent(limit.count(), lease).ok()).flatten()
            })
            .collect();
        let max_lease = Duration::from_micros(self.max_lease_us());
        self.leased =
            leased.filter(|_| lease <= max_lease).ok_or(GateError::LeaseTooLong { max_lease })?;
        Ok(())
    }

    /// The longest lease that can be requested: the shortest lease of the `concurrency` limits or,
    /// if there are none, the longest that any limit can have.
    pub(super) fn max_lease_us(&self) -> u64 {
        let limits = self.policies.iter().flat_map(|planned| planned.limits);
        let leases = limits.filter(|limit| is_concurrency(limit)).map(Limit::window_us);
        leases.min().unwrap_or(bounds::MAX_WINDOW_US)
    }

    /// The shortest lease of the limits that are held.
    pub(super) fn lease_us(&self) -> Option<u64> {
        let checks = self.checks();
        checks
            .iter()
            .filter(|check| is_concurrency(check.limit))
            .map(|check| check.limit.window_us())
            .min()
    }
}

/// The lease of a permit, and the longest lease it can have. If no limit is held, the lease is
/// `requested_lease`.
pub(super) fn leases(plan: &Plan<'_>, requested_lease: Option<Duration>) -> (Duration, Duration) {
    let free = requested_lease.unwrap_or(Duration::from_micros(bounds::DEFAULT_LEASE_US));
    let lease = plan.lease_us().map_or(free, Duration::from_micros);
    (lease, Duration::from_micros(plan.max_lease_us()))
}

/// Writes seven bits per byte, lowest first. The highest bit is set if more bytes follow.
fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
