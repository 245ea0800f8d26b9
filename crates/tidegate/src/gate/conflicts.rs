//! What several questions of one request make of one count.
//!
//! Two descriptors of a request may be counted in one place: the same policy, the same key. A
//! value that a client chose may choose an override for one of them, so that their limits
//! differ; or one gives back what the other takes. A store refuses such checks, because
//! it cannot know what was meant. Here it must not come to that: a gateway lets requests pass
//! when its question is refused, so whoever could arrange for that would not be limited.
//!
//! - Of limits that differ, the strictest holds for all of them: the smallest count, then the
//!   smallest burst.
//! - What is asked for and what is given back are set off against each other. Where nothing is
//!   left of either, the count stays as it is, and that is allowed.
//! - Costs of one kind are added up by the store.

use std::mem::discriminant;

use smallvec::SmallVec;
use tidegate_core::{Cost, Limit};

use super::plan::Plan;

/// What a check is decided under, in place of what its own part says.
pub(super) type EffectiveCheck<'a> = (&'a Limit, Cost);

impl<'a> Plan<'a> {
    /// What each check is decided under, in order; nothing in the usual case, where no two
    /// that are counted in one place differ.
    pub(super) fn effective_checks(&self) -> Vec<EffectiveCheck<'a>> {
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

    /// Whether two parts have one key, but not the same limits or kind of cost.
    fn has_conflict(&self) -> bool {
        let policies = self.policies();
        policies.iter().enumerate().any(|(index, planned)| {
            let unlike = |other: &&super::plan::PlannedPolicy<'_>| {
                discriminant(&other.cost) != discriminant(&planned.cost)
                    || other.limits != planned.limits
            };
            let mut others = policies[..index].iter().filter(unlike);
            others.any(|other| self.key_of(other) == self.key_of(planned))
        })
    }
}

/// What is left where some ask and some give back: the first has all of it, the others
/// nothing. `None` where all costs are of one kind, or some are forced.
fn net_cost(costs: impl Iterator<Item = Cost>, is_first: bool) -> Option<Cost> {
    let (mut fallback_request, mut returned) = (None::<u64>, None::<u64>);
    for cost in costs {
        let (sum, units) = match cost {
            Cost::Ask(units) => (&mut fallback_request, units),
            Cost::Refund(units) => (&mut returned, units),
            Cost::Force(_) => return None,
        };
        *sum = Some(sum.unwrap_or_default().saturating_add(units));
    }
    let (fallback_request, returned) = (fallback_request?, returned?);
    let share = |units: u64| if is_first { units } else { 0 };
    Some(match fallback_request.checked_sub(returned) {
        Some(left @ 1..) => Cost::Ask(share(left)),
        _ => Cost::Refund(share(returned - fallback_request)),
    })
}
