//! Policies defined in code, in addition to loaded ones.
//!
//! A reload replaces the [`ActivePolicies`] as a whole. A policy in code must outlive that, and is
//! owned by the code that defines it. So it is not looked up by name, but passed in with the
//! request. Its match, exemptions and overrides are ignored: the code decides when to apply it.

#[cfg(feature = "tower")]
use std::time::Duration;

#[cfg(feature = "tower")]
use tidegate_core::Timestamp;
use tidegate_core::{Cost, Limit};

use super::active_policies::PreparedLimits;
#[cfg(feature = "tower")]
use super::decide::{DecideOptions, GateCall};
use super::plan::{ConcurrencyMode, Plan};
#[cfg(feature = "tower")]
use super::record::RequestContext;
use super::{ActivePolicies, Gate, GateError, GateVerdict, LimitResult};
use crate::attributes::Attributes;
#[cfg(feature = "tower")]
use crate::futures::CallTracker;
use crate::policy::{Key, Policy, Template};
use crate::stats::{Decided, Stats};

/// A policy defined in code, with its counters.
#[derive(Debug)]
pub struct CodePolicy {
    policy: Policy,
    prepared: PreparedLimits,
    /// Counters for limits that come with a request, if the policy accepts them.
    request_limits: Option<PreparedLimits>,
}

impl CodePolicy {
    /// Creates a policy for [`Subject::CodePolicy`](super::Subject::CodePolicy), whose decisions
    /// are counted in `stats`.
    pub fn new(policy: Policy, stats: &Stats) -> Self {
        let prepared = PreparedLimits::new(&policy, policy.limits(), policy.mode(), stats);
        CodePolicy { policy, prepared, request_limits: None }
    }

    /// Accepts limits that come with a request.
    #[cfg(feature = "tower")]
    pub(crate) fn with_request_limits(mut self, stats: &Stats) -> Self {
        self.request_limits = Some(PreparedLimits::for_request_limits(&self.policy, stats));
        self
    }

    /// Returns the remaining units of a key under the policy's limits, without charging.
    ///
    /// # Errors
    /// Returns [`GateError::Store`] if the store failed.
    pub async fn peek(&self, gate: &Gate, key: CodeKey<'_>) -> Result<GateVerdict<'_>, GateError> {
        let mut plan = Plan::default();
        let key = plan.write_key(self.policy.count_name(), key.to_key().as_ref());
        plan.push_code_policy(self, None, key, Cost::PEEK);
        plan.finalize(&[], ConcurrencyMode::Peek)?;
        let verdict = gate.peek_checks(&plan.checks()).await?;
        Ok(plan.verdict_of(&verdict))
    }

    /// Resets the counts of a key under the policy's limits. Returns whether there were any.
    ///
    /// # Errors
    /// Returns [`GateError::Store`] if the store failed. Some of the limits may have been reset.
    pub async fn reset(&self, gate: &Gate, key: CodeKey<'_>) -> Result<bool, GateError> {
        gate.reset_key(&self.policy, &key.to_key()).await
    }

    /// Returns the policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The limits of a check and their counters: those that came with the request, or those of the
    /// policy.
    #[inline]
    pub(super) fn limits_or<'a>(
        &'a self,
        request_limits: Option<&'a [Limit]>,
    ) -> (&'a [Limit], &'a PreparedLimits) {
        match (request_limits, &self.request_limits) {
            (Some(limits), Some(prepared)) => (limits, prepared),
            _ => (self.policy.limits(), &self.prepared),
        }
    }
}

/// The key that is counted under a policy defined in code.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum CodeKey<'a> {
    /// The bytes of the key.
    Bytes(&'a [u8]),
    /// A key that was rendered before.
    Key(&'a Key),
}

/// The charge of a request under a policy defined in code, to be settled later. All limits of the
/// policy were charged, or none.
#[cfg(feature = "tower")]
#[derive(Clone, Debug)]
pub(crate) struct ChargeRecord {
    pub(crate) key: Key,
    is_charged: bool,
    /// Whether they were charged in local memory, because the store failed.
    is_local: bool,
}

#[cfg(feature = "tower")]
impl ChargeRecord {
    /// Records what an allowed verdict charged. Limits that were not counted because the store
    /// failed were not charged.
    pub(crate) fn of(code_policy: &CodePolicy, key: Key, verdict: &GateVerdict<'_>) -> Self {
        let counted =
            |result: &LimitResult<'_>| matches!(result.decided, Decided::Exact | Decided::Local);
        let is_charged = verdict.allowed
            && Self::admits(code_policy, verdict)
            && Self::results(code_policy, verdict).all(counted);
        ChargeRecord {
            key,
            is_charged,
            is_local: Self::results(code_policy, verdict).any(|one| one.decided == Decided::Local),
        }
    }

    /// Whether all limits of a policy admit the request. An observed policy that would have denied
    /// an allowed request has charged nothing.
    pub(crate) fn admits(code_policy: &CodePolicy, verdict: &GateVerdict<'_>) -> bool {
        Self::results(code_policy, verdict).all(|result| result.decision.allowed)
    }

    /// The results of a policy. They are matched by its address, because a loaded policy may have
    /// the same name.
    fn results<'v, 'a>(
        code_policy: &CodePolicy,
        verdict: &'v GateVerdict<'a>,
    ) -> impl Iterator<Item = &'v LimitResult<'a>> {
        let is_own = move |result: &&LimitResult<'_>| {
            result.code_policy.is_some_and(|one| std::ptr::eq(one, code_policy))
        };
        verdict.results.iter().filter(is_own)
    }

    /// Whether the units were charged in local memory, because the store failed.
    pub(crate) fn is_local(&self) -> bool {
        self.is_local
    }
}

/// A change to what was charged under a policy.
#[cfg(feature = "tower")]
#[derive(Clone, Copy)]
pub(crate) struct Adjustment<'a> {
    pub(crate) code_policy: &'a CodePolicy,
    /// The limits that came with the request, if any.
    pub(crate) limits: Option<&'a [Limit]>,
    pub(crate) charged: &'a ChargeRecord,
    pub(crate) charged_at: Timestamp,
    pub(crate) cost: Cost,
}

#[cfg(feature = "tower")]
impl<'a> Adjustment<'a> {
    /// The limits that were charged.
    pub(crate) fn limits(&self) -> impl Iterator<Item = &'a Limit> {
        let (limits, _) = self.code_policy.limits_or(self.limits);
        limits.iter().filter(|_| self.charged.is_charged)
    }

    /// Whether this is a refund of units that no longer count under the limit.
    pub(super) fn is_expired_refund(&self, limit: &Limit, now: Timestamp) -> bool {
        matches!(self.cost, Cost::Refund(_)) && !limit.may_refund(self.charged_at, now)
    }
}

#[cfg(feature = "tower")]
impl Gate {
    /// Charges or refunds the difference to the actual cost.
    pub(crate) async fn settle(&self, change: Adjustment<'_>) -> Result<(), GateError> {
        self.change(&mut GateCall::default(), &[change], None).await
    }

    /// Charges additional units: all changes or none. Waits up to `max_wait` until they pass.
    pub(crate) async fn charge_more<'a>(
        &self,
        changes: &[Adjustment<'a>],
        max_wait: Option<Duration>,
    ) -> Result<GateVerdict<'a>, GateError> {
        let mut call = GateCall::default();
        self.change(&mut call, changes, max_wait).await?;
        let route = || None;
        let context = RequestContext {
            id: None,
            route: &route,
            request_id: None,
            max_wait: None,
            is_counted: false,
        };
        self.record(&call, &context, None);
        Ok(call.verdict)
    }

    /// Decides changes. Units that were charged in local memory while the store was failing are
    /// changed there, because the store does not know of them.
    async fn change<'a>(
        &self,
        call: &mut GateCall<'a>,
        changes: &[Adjustment<'a>],
        max_wait: Option<Duration>,
    ) -> Result<(), GateError> {
        let now = self.now();
        for change in changes {
            call.plan.push_adjustment(change, now);
        }
        // A denial charges nothing, because the whole reservation is refunded then.
        call.plan.disable_overflow();
        let tracker = CallTracker::default();
        match (&self.shared, max_wait.filter(|_| call.plan.can_wait())) {
            (Some(shared), _) if changes.iter().any(|change| change.charged.is_local()) => {
                self.decide_by_fallback(call, shared.store_context(), DecideOptions::CHECK)
            }
            (_, Some(max_wait)) => Box::pin(self.wait_planned(&tracker, call, max_wait)).await,
            _ => self.decide(&tracker, call, DecideOptions::CHECK).await,
        }
    }
}

impl CodeKey<'_> {
    pub(super) fn to_key(self) -> Key {
        match self {
            CodeKey::Bytes(bytes) => Key::literal(bytes),
            CodeKey::Key(key) => key.clone(),
        }
    }
}

impl ActivePolicies {
    /// Renders the key of a request from a template. Addresses are grouped as these policies
    /// specify.
    pub fn key(&self, template: &Template, attributes: &Attributes<'_>) -> Key {
        self.policies().render(template, attributes)
    }
}
