//! Policies, and where each of their limits is counted.

use std::sync::Arc;

use crate::policy::{Policies, Policy, Selected};
use crate::stats::{LimitStats, Stats};

/// The policies in force, with their counters resolved.
#[derive(Debug)]
pub struct Rules {
    policies: Policies,
    /// Per policy, variant and limit.
    stats: Vec<Vec<Vec<Arc<LimitStats>>>>,
}

impl Rules {
    pub(super) fn new(policies: Policies, stats: &Stats) -> Self {
        let resolved = policies.iter().map(|policy| {
            let variants = policy.variants().iter();
            variants.map(|variant| stats.limits(policy, variant.limits(), variant.mode())).collect()
        });
        Rules { stats: resolved.collect(), policies }
    }

    /// The policies.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    /// Where the limits of a selected policy are counted, in their order.
    pub(super) fn stats(&self, selected: &Selected<'_>) -> &[Arc<LimitStats>] {
        self.stats_of(selected.policy, selected.variant)
    }

    /// Where the limits of a policy's variant are counted, in their order.
    pub(super) fn stats_of(&self, policy: &Policy, variant: usize) -> &[Arc<LimitStats>] {
        let all = self.policies.iter().as_slice();
        let index = all.element_offset(policy);
        index.map_or(&[], |index| &self.stats[index][variant])
    }
}
