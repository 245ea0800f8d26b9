//! Policies, with the counters and header text that are prepared when they are loaded.

use std::sync::Arc;

use tidegate_core::Limit;

use super::plan::{ConcurrencyMode, Plan};
use super::{GateError, GateRequest};
use crate::headers::PrerenderedHeaders;
use crate::policy::{Mode, Policies, Policy, SelectedPolicy};
use crate::stats::{LimitStats, Stats};

/// The policies in force, with their counters and header text.
#[derive(Debug)]
pub struct ActivePolicies {
    policies: Policies,
    /// The prepared limits, by policy and variant.
    prepared: Vec<Vec<PreparedLimits>>,
    /// The counter of limits that callers provide.
    caller_limits: PreparedLimits,
}

/// Counters and header text for the limits of a policy.
#[derive(Debug)]
pub(super) struct PreparedLimits {
    /// The counter of each limit. Limits that callers provide share one counter.
    pub(super) stats: Box<[Arc<LimitStats>]>,
    /// The header text of the policy; `None` if it has to be rendered for each response.
    pub(super) prerendered: Option<PrerenderedHeaders>,
}

impl PreparedLimits {
    pub(super) fn new(policy: &Policy, limits: &[Limit], mode: Mode, stats: &Stats) -> Self {
        let prerendered = PrerenderedHeaders::new(policy.name(), limits);
        PreparedLimits { stats: stats.limits(policy, limits, mode).into(), prerendered }
    }

    /// For limits that come with a request. Their header text is not known in advance.
    #[cfg(feature = "tower")]
    pub(super) fn for_request_limits(policy: &Policy, stats: &Stats) -> Self {
        PreparedLimits { stats: [stats.request_limits(policy)].into(), prerendered: None }
    }
}

impl ActivePolicies {
    pub(super) fn new(policies: Policies, stats: &Stats) -> Self {
        let prepared = policies.iter().map(|policy| {
            let variants = policy.variants().iter();
            let prepared =
                variants.map(|one| PreparedLimits::new(policy, one.limits(), one.mode(), stats));
            prepared.collect()
        });
        let prepared = prepared.collect();
        let caller_limits = PreparedLimits { stats: [stats.caller()].into(), prerendered: None };
        ActivePolicies { policies, prepared, caller_limits }
    }

    /// Returns the policies.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    /// Validates a request without deciding it.
    ///
    /// # Errors
    /// Returns the errors of [`Gate::check`](super::Gate::check), except those that are found only
    /// when a request is decided.
    pub fn validate(&self, request: &GateRequest<'_>) -> Result<(), GateError> {
        Plan::default().build(self, std::slice::from_ref(request), ConcurrencyMode::Reject)
    }

    pub(super) fn caller_limits(&self) -> &PreparedLimits {
        &self.caller_limits
    }

    /// The counters and header text of a selected policy.
    pub(super) fn prepared(&self, selected: &SelectedPolicy<'_>) -> &PreparedLimits {
        &self.prepared[selected.policy_index][selected.variant]
    }

    /// The policy with this name, with the counters and header text that it has without overrides.
    #[inline]
    pub(super) fn find(&self, policy: &str) -> Option<(&Policy, &PreparedLimits)> {
        let (index, policy) = self.policies.find(policy)?;
        Some((policy, &self.prepared[index][0]))
    }
}
