//! The checks of a plan: their leases, the limits they are decided under, and their results.
//!
//! # Conflicts
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
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Decision, Limit, bounds};

use super::plan::{Plan, PlannedPolicy};
use super::{GateError, GateVerdict, LimitResult};
use crate::policy::{Mode, is_concurrency};
use crate::request::{Checks, consumed_if_denied};
use crate::stats::{Decided, LimitStats, Outcome};
use crate::{Check, CheckError, Limiter, Overflow, Verdict};

impl<'a> Plan<'a> {
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

    pub(super) fn checks(&self) -> Checks<'_> {
        let mut leased = self.leased.iter();
        let mut checks = SmallVec::new();
        for planned in &self.policies {
            for limit in planned.limits {
                let limit =
                    if is_concurrency(limit) { leased.next().unwrap_or(limit) } else { limit };
                let planned_cost = (limit, planned.cost);
                let (limit, cost) =
                    self.effective.get(checks.len()).copied().unwrap_or(planned_cost);
                let overflow =
                    if self.defers_overflow { Overflow::Refuse } else { planned.overflow };
                let check = Check { overflow, ..Check::new(self.key_of(planned), limit, cost) };
                let observed = planned.mode == Mode::Observe || planned.skipped;
                checks.push(if observed { check.observed() } else { check });
            }
        }
        checks
    }

    /// Decides the plan directly if it has a single check, which is enforced and whose denial
    /// charges nothing. Returns `None` otherwise.
    pub(super) fn decide_single(&mut self, limiter: &Limiter) -> Option<Result<(), CheckError>> {
        let [planned] = &self.policies[..] else { return None };
        let (&PlannedPolicy { mode, cost, overflow, .. }, [limit]) = (planned, planned.limits)
        else {
            return None;
        };
        if mode != Mode::Enforce || consumed_if_denied(overflow, limit, cost) > 0 {
            return None;
        }
        let check = Check::new(&self.keys[planned.key.start..planned.key.end], limit, cost);
        let result = planned.result(limit, Decision::default(), Decided::Exact);
        Some(self.verdict.decide_one(result, limiter, &check))
    }

    /// Whether an allowed request charges or refunds anything.
    pub(super) fn changes_counts(&self) -> bool {
        let units = |planned: &PlannedPolicy<'_>| match planned.cost {
            Cost::Ask(units) | Cost::Force(units) | Cost::Refund(units) => units,
        };
        self.policies.iter().any(|planned| units(planned) > 0)
    }

    /// Makes denials charge nothing, whatever the policies specify.
    pub(super) fn disable_overflow(&mut self) {
        for planned in &mut self.policies {
            planned.overflow = Overflow::Refuse;
        }
    }

    /// Whether a policy has a `concurrency` limit.
    pub(super) fn has_concurrency(&self) -> bool {
        self.policies.iter().any(PlannedPolicy::has_concurrency)
    }

    /// Whether the request can wait: a limit is enforced, and no enforced policy has a
    /// `concurrency` limit.
    pub(super) fn can_wait(&self) -> bool {
        let mut enforced = self.policies.iter().filter(|planned| planned.mode == Mode::Enforce);
        enforced.clone().any(|planned| !planned.limits.is_empty())
            && !enforced.any(PlannedPolicy::has_concurrency)
    }

    /// Moves the observed policies with `concurrency` limits to a separate plan.
    pub(super) fn split_off_observed(&mut self) -> Plan<'a> {
        let mut split = Plan::default();
        let is_observed = |planned: &PlannedPolicy<'_>| {
            planned.mode == Mode::Observe && planned.has_concurrency()
        };
        if !self.policies.iter().any(is_observed) {
            return split;
        }
        // All keys are copied, so that the key ranges stay valid.
        split.keys.clone_from(&self.keys);
        let (observed, rest) = self.policies.drain(..).partition(is_observed);
        (split.policies, self.policies) = (observed, rest);
        self.resolve_conflicts();
        split.resolve_conflicts();
        split
    }

    /// Appends the policies, results and permit of a plan that was split off.
    pub(super) fn rejoin(&mut self, split: Plan<'a>) {
        self.permit = split.permit;
        self.policies.extend(split.policies);
        self.verdict.results.extend(split.verdict.results);
        self.resolve_conflicts();
    }

    /// The outcome of each policy, with the counter of its first limit.
    pub(super) fn outcomes(&self) -> impl Iterator<Item = (&LimitStats, Outcome)> {
        let mut results = self.verdict.results.iter();
        self.policies.iter().filter_map(move |planned| {
            let results = results.by_ref().take(planned.limits.len());
            let denied = results.filter(|result| !result.decision.allowed).count() > 0;
            let outcome = if denied { Outcome::WouldDeny } else { Outcome::Allowed };
            Some((&**planned.prepared.stats.first()?, outcome))
        })
    }

    /// Whether no limit applies.
    pub(super) fn is_empty(&self) -> bool {
        self.limits().next().is_none()
    }

    /// The indexes of the requests that matched a policy without limits.
    pub(super) fn unlimited(&self) -> Vec<usize> {
        let unlimited = self.policies.iter().filter(|planned| planned.limits.is_empty());
        unlimited.map(|planned| planned.request_index).collect()
    }

    /// Whether the store may return a cached denial, which every policy must permit. With several
    /// quotas it may not, because a cached denial does not report which of them are exhausted.
    pub(super) fn caches_denials(&self) -> bool {
        self.quotas < 2 && self.policies.iter().all(|planned| planned.deny_cache)
    }

    /// Resolves conflicts between checks that count in the same state; see the
    /// top of this file.
    pub(super) fn resolve_conflicts(&mut self) {
        self.effective.clear();
        if self.policies.len() > 1 {
            self.effective = self.effective_checks();
        }
    }

    pub(super) fn policies(&self) -> &[PlannedPolicy<'a>] {
        &self.policies
    }

    /// The key of a planned policy as the store sees it.
    pub(super) fn key_of(&self, planned: &PlannedPolicy<'_>) -> &[u8] {
        &self.keys[planned.key.start..planned.key.end]
    }

    /// Every limit with its policy, in the order of the checks.
    pub(super) fn limits(&self) -> impl Iterator<Item = (&PlannedPolicy<'a>, &'a Limit)> {
        let limits = self
            .policies
            .iter()
            .flat_map(|planned| planned.limits.iter().map(move |l| (planned, l)));
        let effective = |index: usize| self.effective.get(index).map(|(limit, _)| *limit);
        limits
            .enumerate()
            .map(move |(index, (planned, limit))| (planned, effective(index).unwrap_or(limit)))
    }

    /// Converts the store's verdict on the checks.
    pub(super) fn verdict_of(&self, verdict: &Verdict) -> GateVerdict<'a> {
        let mut combined = GateVerdict::default();
        combined.set(&self.policies, &self.effective, verdict);
        combined
    }

    /// Sets the verdict of the plan to the store's verdict on the checks.
    pub(super) fn set_verdict(&mut self, verdict: &Verdict) {
        self.verdict.set(&self.policies, &self.effective, verdict);
    }

    /// The counter of a limit.
    fn stats_of(&self, limit: &Limit) -> Option<&'a Arc<LimitStats>> {
        self.policies.iter().find_map(|planned| {
            let index = planned.limits.iter().position(|other| std::ptr::eq(other, limit))?;
            planned.stats_at(index)
        })
    }

    /// Calls `visit` with every result that is recorded in the statistics, its policy and its
    /// counter. Peeks, refunds and forced charges are not recorded.
    #[inline]
    pub(super) fn for_each_counted<'s>(
        &'s self,
        mut visit: impl FnMut(&'s PlannedPolicy<'a>, &'s LimitResult<'a>, &'s LimitStats),
    ) {
        let mut results = self.verdict.results.iter();
        for planned in &self.policies {
            let is_charged = matches!(planned.cost, Cost::Ask(1..));
            for (index, result) in results.by_ref().take(planned.limits.len()).enumerate() {
                if !is_charged {
                    continue;
                }
                // If requests conflict, the decision is recorded for the limit that was applied.
                let decisive =
                    if self.effective.is_empty() { None } else { self.stats_of(result.limit) };
                if let Some(stats) = decisive.or_else(|| planned.stats_at(index)) {
                    visit(planned, result, stats);
                }
            }
        }
    }

    /// The counter of the first policy without limits that applies and charges.
    pub(super) fn unlimited_stats(&self) -> Option<&LimitStats> {
        let is_unlimited = |planned: &&PlannedPolicy<'_>| {
            planned.limits.is_empty() && matches!(planned.cost, Cost::Ask(1..))
        };
        Some(self.policies.iter().find(is_unlimited)?.prepared.stats.first()?)
    }

    /// The key of a planned policy, without the name of the policy.
    pub(super) fn key_without_policy(&self, planned: &PlannedPolicy<'_>) -> &[u8] {
        &self.keys[planned.key.key_offset..planned.key.end]
    }
}

/// The limit and the cost that replace those of a planned check.
pub(super) type EffectiveCheck<'a> = (&'a Limit, Cost);

impl<'a> Plan<'a> {
    /// The limit and cost of each check, in order. It is empty without a conflict, which is the
    /// usual case.
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
