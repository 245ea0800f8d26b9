//! The local memory of a node that uses a shared store. It decides checks with the fallback `local`
//! while the store fails (`fallback.rs`), and mirrors the store while it works.
//!
//! Such checks must not start an outage with empty counts. So what the store charges through this
//! node is charged in local memory too, by these rules:
//!
//! - **A request with an id is charged once.** The id is stored with the charge in local memory: a
//!   replay charges nothing, and a retry during the outage is admitted again.
//! - **The store is authoritative.** The local count is part of the store's count. If a verdict of
//!   the store shows that a key has used less, something was refunded through another node: a
//!   permit was released, or the key was reset. The difference is refunded locally. The local count
//!   is read before the store decides, so that charges in flight are not taken for a difference,
//!   and again afterwards, so that units that were refunded locally in the meantime are not
//!   refunded twice.
//! - **Units that a denial consumed** (`overflow: consume`) are taken from the share of this node.
//!
//! A key is corrected by the next verdict on it. Until then, and if other nodes have used as much
//! since, its local count is too high; it expires as usual. The verdict on a request with an id may
//! be a replay, whose numbers are old, so it corrects nothing.
//!
//! Counts are kept under the whole limit, which is divided by the number of nodes when they are
//! needed. A token bucket is kept under the share of this node, because its state depends on the
//! rate at which it refills.

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Cost, Decision, Limit, PermitId, RetryAfter};

use crate::fallback::{SharedRequest, per_node_limit};
use crate::request::{Checks, deny_all, dry_run_checks, is_charged};
use crate::{Check, CheckError, Limiter, MAX_CHECKS, Overflow, Permit, Request, Verdict};

/// The local memory of a node that uses a shared store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalNode<'n> {
    pub(crate) memory: &'n Limiter,
    /// The number of nodes that share the limits.
    pub(crate) nodes: u32,
}

/// The local usage of a request's limits, before the store decides.
pub(crate) struct LocalUsage {
    /// The limits that local counts are kept under, one per check.
    limits: SmallVec<[Limit; 4]>,
    /// The units in the local count of each check; 0 if they are not needed.
    counted: SmallVec<[u64; 4]>,
}

impl LocalNode<'_> {
    /// Decides checks in local memory, and acquires a permit there if the request has one.
    pub(crate) fn decide(
        self,
        shared_request: &SharedRequest<'_>,
        checks: &[Check<'_>],
    ) -> Result<(SmallVec<[Decision; 4]>, bool, Option<Permit>), CheckError> {
        let id = shared_request.id.filter(|_| shared_request.permit.is_none());
        let request = Request { id, permit: shared_request.permit, ..Request::new(checks) };
        let verdict = self.memory.decide(&request)?;
        let permit = shared_request.permit.filter(|_| verdict.allowed);
        let permit = permit.map(|id| Permit::new(self.memory.clone(), id, checks, &verdict));
        Ok((verdict.decisions, verdict.no_room, permit))
    }

    /// The decisions of local memory, without charging anything.
    pub(crate) fn dry_run(
        self,
        checks: &[Check<'_>],
    ) -> Result<SmallVec<[Decision; 4]>, CheckError> {
        if checks.is_empty() {
            return Ok(SmallVec::new());
        }
        let permit = Some(self.memory.store().new_permit());
        let deny_all = deny_all();
        let dry_run = dry_run_checks(checks, &deny_all);
        let mut decisions =
            self.memory.decide(&Request { permit, ..Request::new(&dry_run) })?.decisions;
        decisions.drain(..dry_run.len() - checks.len());
        Ok(decisions)
    }

    /// Reads the local usage for a request.
    pub(crate) fn read_usage(self, shared_request: &SharedRequest<'_>) -> LocalUsage {
        let local_limit = |check: &Check<'_>| local_limit(check.limit, self.nodes);
        let limits: SmallVec<[Limit; 4]> = shared_request.checks.iter().map(local_limit).collect();
        let mut counted = SmallVec::from_elem(0, shared_request.checks.len());
        if shared_request.id.is_none() && shared_request.changes_counts() {
            let indices: SmallVec<[usize; 4]> = shared_request.local_indices().collect();
            let kept =
                |&index: &usize| Check { limit: &limits[index], ..shared_request.checks[index] };
            let checks: Checks<'_> = indices.iter().map(kept).collect();
            for (&index, units) in indices.iter().zip(self.counted(&checks, shared_request.permit))
            {
                counted[index] = units;
            }
        }
        LocalUsage { limits, counted }
    }

    /// The units in the local count of each check. It is empty if a key overflowed, because such
    /// keys are counted together.
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

    /// Charges what the store has charged, for the checks that are decided locally if it fails.
    pub(crate) fn mirror(
        self,
        shared_request: &SharedRequest<'_>,
        verdict: &Verdict,
        usage: &LocalUsage,
    ) {
        match (verdict.allowed, verdict.consumed) {
            (true, _) => self.mirror_admission(shared_request, verdict, usage),
            (false, true) => self.mirror_consumption(shared_request),
            (false, false) => {}
        }
    }

    /// Charges what the store has admitted.
    fn mirror_admission(
        self,
        shared_request: &SharedRequest<'_>,
        verdict: &Verdict,
        usage: &LocalUsage,
    ) {
        let all = &shared_request.checks;
        let (mut charges, mut refunds) = (Checks::new(), Checks::new());
        for index in shared_request
            .local_indices()
            .filter(|&index| is_charged(all, &verdict.decisions, index))
        {
            let limit = &usage.limits[index];
            let Some(charge) = mirror_charge(&Check { limit, ..all[index] }) else { continue };
            let mut excess = excess(&all[index], &verdict.decisions[index], usage.counted[index]);
            if excess > 0 {
                // Units that were released locally while the store decided are no longer counted.
                let now = self.counted(std::slice::from_ref(&charge), shared_request.permit);
                let released =
                    usage.counted[index].saturating_sub(now.first().copied().unwrap_or(0));
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
        // Errors are ignored, because checks that are invalid here were invalid for the store too.
        let decide = |checks: &[Check<'_>]| {
            let request = Request { permit: shared_request.permit, ..Request::new(checks) };
            drop(self.memory.decide(&request));
        };
        // A token bucket may deny its charge, which must not affect the others.
        let (buckets, others): (Checks<'_>, Checks<'_>) = charges
            .iter()
            .copied()
            .partition(|charge: &Check<'_>| matches!(charge.cost, Cost::Ask(_)));
        let charge = || {
            decide(&others);
            buckets.chunks(1).for_each(decide);
        };
        if !refunds.is_empty() {
            decide(&refunds);
        }
        let Some(id) = shared_request.id else { return charge() };
        let node_limits = shared_request.node_limits(self.nodes);
        let local = shared_request.local_checks(&node_limits);
        let request = Request::new(&local).with_id(id);
        drop(self.memory.store().decide_once(&request, || {
            charge();
            self.admitted(&local)
        }));
    }

    /// Consumes the shares of this node as the store consumed the limits.
    fn mirror_consumption(self, shared_request: &SharedRequest<'_>) {
        let node_limits = shared_request.node_limits(self.nodes);
        let local = shared_request.local_checks(&node_limits);
        let deny_all = deny_all();
        let denied: Checks<'_> = local.iter().filter(|one| consumes(one)).copied().collect();
        let (Some(deny_all), Some(first)) = (&deny_all, denied.first()) else { return };
        let deny_all = Check::new(first.key, deny_all, 1);
        let consume = || {
            // These requests are denied locally too, so that they consume. The check that denies
            // them may exceed the maximum number of checks, so they are split.
            for chunk in denied.chunks(MAX_CHECKS - 1) {
                let checks: Checks<'_> = std::iter::once(&deny_all).chain(chunk).copied().collect();
                // `concurrency` limits cannot be decided without a permit. A denial holds nothing.
                let request = Request { permit: shared_request.permit, ..Request::new(&checks) };
                drop(self.memory.decide(&request));
            }
            let mut verdict = self.peeked(&local);
            (verdict.allowed, verdict.consumed) = (false, true);
            verdict
        };
        match shared_request.id {
            None => drop(consume()),
            Some(id) => {
                let request = Request::new(&local).with_id(id);
                drop(self.memory.store().decide_once(&request, consume));
            }
        }
    }

    /// The verdict for a retry of an admitted request during an outage.
    fn admitted(self, local: &[Check<'_>]) -> Verdict {
        let decisions = self.peeked(local).decisions;
        let admitted =
            |decision| Decision { allowed: true, retry_after: RetryAfter::Now, ..decision };
        Verdict::new(local, decisions.into_iter().map(admitted))
    }

    /// The verdict of a peek at the limits of a request in local memory.
    fn peeked(self, local: &[Check<'_>]) -> Verdict {
        let peeks: Checks<'_> =
            local.iter().map(|check| Check { cost: Cost::PEEK, ..*check }).collect();
        let peeked = self.memory.decide(&Request::new(&peeks));
        peeked.unwrap_or_else(|_| Verdict::new(local, []))
    }
}

/// Whether a denial charges the check what is left.
fn consumes(check: &Check<'_>) -> bool {
    check.overflow == Overflow::Consume && !check.observed
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

/// The units by which the local count exceeds the count of the store before this request.
fn excess(check: &Check<'_>, decided: &Decision, counted: u64) -> u64 {
    let used = used(check.limit, decided);
    let used_before = match check.cost {
        Cost::Ask(units) => used.saturating_sub(units),
        // If nothing remains, the usage may exceed the limit by an unknown amount.
        Cost::Force(_) | Cost::Refund(_) if decided.remaining == 0 => return 0,
        Cost::Force(units) => used.saturating_sub(units),
        Cost::Refund(units) => used.saturating_add(units),
    };
    counted.saturating_sub(used_before)
}

/// The local charge of an admitted check. It is charged in full, even beyond the share of this
/// node. A token bucket is charged only if it holds the units. Otherwise its debt would grow
/// without bound on a node that has more than its share of the traffic.
fn mirror_charge<'c>(check: &Check<'c>) -> Option<Check<'c>> {
    match check.cost {
        Cost::Ask(0) => None,
        Cost::Ask(_) if check.limit.algorithm() == Algorithm::TokenBucket => Some(*check),
        Cost::Ask(units) => Some(Check { cost: Cost::Force(units), ..*check }),
        Cost::Force(_) | Cost::Refund(_) => Some(*check),
    }
}
