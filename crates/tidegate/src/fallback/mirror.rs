//! This node's memory while the store answers: prepared for the moment it fails.
//!
//! Checks that are decided here when the store fails (`local`) must not begin an outage with
//! empty counts. So what the store charges on this node is charged here too, by these rules:
//!
//! - **A request with an id is charged once.** The id is remembered here with the charge: a
//!   replay charges nothing, and a retry during the outage is admitted again.
//! - **The store is right.** What this node has counted is part of what the store has counted.
//!   If an answer of the store says that a key has used less, something was given back through
//!   another node: a permit was released, or the key was reset. The difference is refunded
//!   here. This node's count is read before the store decides, so that charges in flight
//!   at the same time do not look like a difference, and again afterwards, so that units given
//!   back here meanwhile are not given back twice.
//! - **What a denial consumed** (`overflow: consume`) is taken from this node's share.
//!
//! A key is corrected with the next answer for it. Until then, and where other nodes have used
//! as much since, it stays counted here; it expires as usual. An answer to a request with an id
//! may be a replay, whose numbers are old: it corrects nothing.
//!
//! Counts are kept under the whole limit and divided by the nodes when they are needed. A
//! bucket is kept as this node's share: how fast it drains is part of its state.

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Cost, Decision, Limit, PermitId, RetryAfter};

use super::{Checks, FallbackRequest, LocalNode, consumes, deny_all, per_node_limit};
use crate::{Check, MAX_CHECKS, Request, Verdict};

/// The units this node has counted for a request, before the store decides.
pub(crate) struct LocalUsage {
    /// The limits counts are kept under, one per check.
    limits: SmallVec<[Limit; 4]>,
    /// Units counted here, one per check; 0 where that does not matter.
    counted: SmallVec<[u64; 4]>,
}

impl LocalNode<'_> {
    /// Reads what this node has counted for a request.
    pub(crate) fn read_usage(self, fallback_request: &FallbackRequest<'_>) -> LocalUsage {
        let local_limit = |check: &Check<'_>| local_limit(check.limit, self.nodes);
        let limits: SmallVec<[Limit; 4]> =
            fallback_request.checks.iter().map(local_limit).collect();
        let mut counted = SmallVec::from_elem(0, fallback_request.checks.len());
        if fallback_request.id.is_none() && fallback_request.charges() {
            let indices: SmallVec<[usize; 4]> = fallback_request.local_indices().collect();
            let kept = |&at: &usize| Check { limit: &limits[at], ..fallback_request.checks[at] };
            let checks: Checks<'_> = indices.iter().map(kept).collect();
            for (&at, units) in indices.iter().zip(self.counted(&checks, fallback_request.permit)) {
                counted[at] = units;
            }
        }
        LocalUsage { limits, counted }
    }

    /// The units counted here for each of these checks; none for a key without room, which is
    /// counted together with others.
    fn counted(self, checks: &[Check<'_>], permit: Option<PermitId>) -> SmallVec<[u64; 4]> {
        if checks.is_empty() {
            return SmallVec::new();
        }
        let peeks: Checks<'_> =
            checks.iter().map(|check| Check { cost: Cost::PEEK, ..*check }).collect();
        let peeked = self.memory.decide(&Request { permit, ..Request::new(&peeks) });
        let peeked = peeked.ok().filter(|peeked| !peeked.overflowed);
        let decisions = peeked.iter().flat_map(|peeked| &peeked.decisions);
        checks.iter().zip(decisions).map(|(check, decision)| used(check.limit, decision)).collect()
    }

    /// Charges here what the store has charged, where checks are decided here if it fails.
    pub(crate) fn mirror(
        self,
        fallback_request: &FallbackRequest<'_>,
        verdict: &Verdict,
        usage: &LocalUsage,
    ) {
        match (verdict.allowed, verdict.consumed) {
            (true, _) => self.mirror_admission(fallback_request, verdict, usage),
            (false, true) => self.mirror_consumption(fallback_request),
            (false, false) => {}
        }
    }

    /// Charges what the store has admitted.
    fn mirror_admission(
        self,
        fallback_request: &FallbackRequest<'_>,
        verdict: &Verdict,
        usage: &LocalUsage,
    ) {
        let all = &fallback_request.checks;
        let (mut charges, mut refunds) = (Checks::new(), Checks::new());
        for at in fallback_request.local_indices().filter(|&at| verdict.decisions[at].allowed) {
            let limit = &usage.limits[at];
            let Some(charge) = mirror_charge(&Check { limit, ..all[at] }) else { continue };
            let mut excess = excess(&all[at], &verdict.decisions[at], usage.counted[at]);
            if excess > 0 {
                // Units released here while the store decided are no longer counted.
                let now = self.counted(std::slice::from_ref(&charge), fallback_request.permit);
                let released = usage.counted[at].saturating_sub(now.first().copied().unwrap_or(0));
                excess = excess.saturating_sub(released);
            }
            if excess > 0 && !refunds.iter().any(|other| other.shares_state(&charge)) {
                refunds.push(Check { cost: Cost::Refund(excess), ..charge });
            }
            charges.push(charge);
        }
        if charges.is_empty() {
            return;
        }
        // What makes no sense here made none to the store.
        let charge = |checks: &[Check<'_>]| {
            let request = Request { permit: fallback_request.permit, ..Request::new(checks) };
            drop(self.memory.decide(&request));
        };
        if !refunds.is_empty() {
            charge(&refunds);
        }
        let Some(id) = fallback_request.id else { return charge(&charges) };
        let node_limits = fallback_request.node_limits(self.nodes);
        let local = fallback_request.local(&node_limits);
        let request = Request::new(&local).with_id(id);
        drop(self.memory.store().decide_once(&request, || {
            charge(&charges);
            self.admitted(&local)
        }));
    }

    /// Uses up this node's shares as the store used up the limits.
    fn mirror_consumption(self, fallback_request: &FallbackRequest<'_>) {
        let node_limits = fallback_request.node_limits(self.nodes);
        let local = fallback_request.local(&node_limits);
        let deny_all = deny_all();
        let denied: Checks<'_> = local.iter().filter(|one| consumes(one)).copied().collect();
        let (Some(deny_all), Some(first)) = (&deny_all, denied.first()) else { return };
        let deny_all = Check::new(first.key, deny_all, 1);
        let consume = || {
            // Requests that are denied here as well, so that they consume. The check that denies
            // them may be one more than a request can hold.
            for part in denied.chunks(MAX_CHECKS - 1) {
                let checks: Checks<'_> = std::iter::once(&deny_all).chain(part).copied().collect();
                // Limits that are held cannot be decided without a permit; a denial holds nothing.
                let request = Request { permit: fallback_request.permit, ..Request::new(&checks) };
                drop(self.memory.decide(&request));
            }
            let mut verdict = self.peeked(&local);
            (verdict.allowed, verdict.consumed) = (false, true);
            verdict
        };
        match fallback_request.id {
            None => drop(consume()),
            Some(id) => {
                let request = Request::new(&local).with_id(id);
                drop(self.memory.store().decide_once(&request, consume));
            }
        }
    }

    /// The answer to a retry of an admitted request during an outage.
    fn admitted(self, local: &[Check<'_>]) -> Verdict {
        let decisions = self.peeked(local).decisions;
        let admitted =
            |decision| Decision { allowed: true, retry_after: RetryAfter::Now, ..decision };
        Verdict::new(local, decisions.into_iter().map(admitted))
    }

    /// The remaining units of a request's limits on this node.
    fn peeked(self, local: &[Check<'_>]) -> Verdict {
        let peeks: Checks<'_> =
            local.iter().map(|check| Check { cost: Cost::PEEK, ..*check }).collect();
        let peeked = self.memory.decide(&Request::new(&peeks));
        peeked.unwrap_or_else(|_| Verdict::new(local, []))
    }
}

fn local_limit(limit: &Limit, nodes: u32) -> Limit {
    match limit.algorithm() {
        Algorithm::TokenBucket => per_node_limit(limit, nodes),
        _ => *limit,
    }
}

fn used(limit: &Limit, decision: &Decision) -> u64 {
    limit.capacity().saturating_sub(decision.remaining)
}

/// The units counted here that the store does not count any more, as it was before this request.
fn excess(check: &Check<'_>, decided: &Decision, counted: u64) -> u64 {
    let used = used(check.limit, decided);
    let used_before = match check.cost {
        Cost::Ask(units) => used.saturating_sub(units),
        // With nothing left it may have used more than the limit: how much is not known.
        Cost::Force(_) | Cost::Refund(_) if decided.remaining == 0 => return 0,
        Cost::Force(units) => used.saturating_sub(units),
        Cost::Refund(units) => used.saturating_add(units),
    };
    counted.saturating_sub(used_before)
}

/// The local charge of an admitted check. It counts in full, also beyond this node's share.
/// A bucket is charged only if it holds the units (as an observed check, so that others are
/// not affected): its debt would otherwise grow without end on a node that has more than its
/// share of the traffic.
fn mirror_charge<'c>(check: &Check<'c>) -> Option<Check<'c>> {
    match check.cost {
        Cost::Ask(0) => None,
        Cost::Ask(_) if check.limit.algorithm() == Algorithm::TokenBucket => Some(check.observed()),
        Cost::Ask(units) => Some(Check { cost: Cost::Force(units), ..*check }),
        Cost::Force(_) | Cost::Refund(_) => Some(*check),
    }
}
