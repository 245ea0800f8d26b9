//! Resolves conflicts between requests that are decided together.
//!
//! Two descriptors of a request may count in the same state: they have the same policy and the same
//! key. A value that a client chose can select an override for one of them, so that their limits
//! differ, or one of them refunds what the other charges. A store rejects such checks, because it
//! cannot know what was meant. The gate must not return that error: a gateway lets a request pass
//! if its rate limit call fails, so a client that provokes the error would not be limited. The gate
//! therefore resolves the conflict.
//!
//! - If the limits differ, the strictest applies to all checks: the one with the smallest count,
//!   then with the smallest burst.
//! - Charges and refunds are offset against each other. If nothing remains, the count does not
//!   change and the request is allowed.
//! - Costs of the same kind are added up by the store.

use std::mem::discriminant;

use smallvec::SmallVec;
use tidegate_core::{Cost, Limit};

use super::plan::{Plan, PlannedPolicy};

/// The limit and the cost that replace those of a planned check.
pub(super) type EffectiveCheck<'a> = (&'a Limit, Cost);

impl<'a> Plan<'a> {
    /// Resolves conflicts between checks that count in the same state; see the top of this file.
    pub(super) fn resolve_conflicts(&mut self) {
        self.effective.clear();
        self.effective = self.effective_checks();
    }

    /// The limit and cost of each check, in order. It is empty without a conflict, which is the
    /// usual case.
    fn effective_checks(&self) -> Vec<EffectiveCheck<'a>> {
        if !self.has_conflict() {
            return Vec::new();
        }
        let checks = self.checks();
        let limits: SmallVec<[&'a Limit; 4]> = self.limits().map(|(_, limit)| limit).collect();
        let effective = checks.iter().enumerate().map(|(index, one)| {
            let sharing = || (0..checks.len()).filter(|&other| checks[other].shares_state(one));
            let strictest = sharing()
                .map(|other| limits[other])
                .min_by_key(|limit| (limit.count(), limit.burst()));
            let is_first = sharing().next() == Some(index);
            let net = net_cost(sharing().map(|other| checks[other].cost), is_first);
            (strictest.unwrap_or(limits[index]), net.unwrap_or(one.cost))
        });
        effective.collect()
    }

    /// Whether two policies have the same key, but different limits or kinds of cost.
    fn has_conflict(&self) -> bool {
        let policies = self.policies();
        policies.iter().enumerate().any(|(index, planned)| {
            let unlike = |other: &&PlannedPolicy<'_>| {
                discriminant(&other.cost) != discriminant(&planned.cost)
                    || other.limits != planned.limits
            };
            let mut others = policies[..index].iter().filter(unlike);
            others.any(|other| self.key_of(other) == self.key_of(planned))
        })
    }
}

/// The net cost of charges and refunds. The first check gets all of it, and the others get 0.
/// Returns `None` if all costs are of the same kind, or if one is forced.
fn net_cost(costs: impl Iterator<Item = Cost>, is_first: bool) -> Option<Cost> {
    let (mut charged, mut refunded) = (None::<u64>, None::<u64>);
    for cost in costs {
        let (sum, units) = match cost {
            Cost::Ask(units) => (&mut charged, units),
            Cost::Refund(units) => (&mut refunded, units),
            Cost::Force(_) => return None,
        };
        *sum = Some(sum.unwrap_or_default().saturating_add(units));
    }
    let (charged, refunded) = (charged?, refunded?);
    let share = |units: u64| if is_first { units } else { 0 };
    Some(match charged.checked_sub(refunded) {
        Some(left @ 1..) => Cost::Ask(share(left)),
        _ => Cost::Refund(share(refunded - charged)),
    })
}
