//! The fallback for requests while the shared store fails.
//!
//! Each check has a fallback: allow, deny, or decide in the local memory of this node with the
//! limit divided by the number of nodes. For the last one, local memory mirrors what the store
//! charges. A cost that fits the whole limit, but not the share of this node, is denied because the
//! store failed, and can be retried.
//!
//! A denial charges nothing or, if a check is consuming, what is left. If an enforced check denies
//! because the store failed, nothing is charged: the others are only checked.
//!
//! Both the limiter and the gate use this module. The limiter has one fallback for all of its
//! checks, and the gate has one per policy.
//!
//! # The mirror in local memory
//!
//! Checks with the fallback `local` must not start an outage with empty counts. So what the store
//! charges through this node is charged in local memory too, by these rules:
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

use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Cost, Decided, Decision, Limit, PermitId, RetryAfter};

use crate::{Check, CheckError, Limiter, MAX_CHECKS, Overflow, Permit, Request, Verdict};

/// The decision about a check when the store fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreFailure {
    /// The request is allowed.
    Allow,
    /// The request is denied.
    Deny,
    /// The check is decided in local memory, with the limit divided by the number of nodes.
    #[default]
    Local,
}

impl OnStoreFailure {
    /// Every variant.
    pub const ALL: [OnStoreFailure; 3] =
        [OnStoreFailure::Allow, OnStoreFailure::Deny, OnStoreFailure::Local];

    /// Returns the name used in the config.
    pub const fn name(self) -> &'static str {
        match self {
            OnStoreFailure::Allow => "allow",
            OnStoreFailure::Deny => "deny",
            OnStoreFailure::Local => "local",
        }
    }
}

/// The minimum retry-after of a denial because the store failed. The store is tried several times
/// in this period.
const MIN_RETRY: Duration = Duration::from_secs(1);

/// The number of nodes, and when a failed store is tried again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreContext {
    /// The number of nodes that share the limits.
    pub(crate) nodes: u32,
    /// The time until the store is tried again.
    pub(crate) next_attempt: Duration,
}

impl StoreContext {
    /// A node without a shared store.
    #[cfg(feature = "policies")]
    pub(crate) const MEMORY: Self = StoreContext { nodes: 1, next_attempt: Duration::ZERO };

    /// The retry-after of a denial because the store failed.
    pub(crate) fn retry_after(self) -> RetryAfter {
        let wait = self.next_attempt.max(MIN_RETRY);
        RetryAfter::from_micros(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX))
    }
}

/// A request to a shared store, with the fallback of each check.
#[derive(Clone, Debug)]
pub(crate) struct FallbackRequest<'c> {
    pub(crate) checks: Checks<'c>,
    /// The fallback of each check.
    pub(crate) on_failure: SmallVec<[OnStoreFailure; 4]>,
    /// Whether an enforced check is denied by its fallback.
    pub(crate) denies: bool,
    /// The idempotency id.
    pub(crate) id: Option<&'c [u8]>,
    /// The permit under which `concurrency` limits are held.
    pub(crate) permit: Option<PermitId>,
}

pub(crate) type Checks<'c> = SmallVec<[Check<'c>; 4]>;

impl FallbackRequest<'_> {
    /// Whether anything is charged or refunded.
    fn charges(&self) -> bool {
        self.checks.iter().any(|check| check.cost != Cost::PEEK)
    }

    /// The indexes of the checks that are decided in local memory if the store fails.
    fn local_indices(&self) -> impl Iterator<Item = usize> {
        let local =
            |(_, on_failure): &(usize, &OnStoreFailure)| **on_failure == OnStoreFailure::Local;
        self.on_failure.iter().enumerate().filter(local).map(|(index, _)| index)
    }

    /// The checks that are decided in local memory, under the shares of this node.
    fn local<'s>(&'s self, node_limits: &'s [Limit]) -> Checks<'s> {
        self.local_indices()
            .map(|at| Check { limit: &node_limits[at], ..self.checks[at] })
            .collect()
    }

    fn node_limits(&self, nodes: u32) -> SmallVec<[Limit; 4]> {
        self.checks.iter().map(|check| per_node_limit(check.limit, nodes)).collect()
    }

    /// Decides a request whose store failed. `node` is `None` only if no check is decided locally.
    pub(crate) fn resolve(
        &self,
        node: Option<LocalNode<'_>>,
        store_context: StoreContext,
    ) -> Result<FallbackDecisions, CheckError> {
        let node_limits = self.node_limits(store_context.nodes);
        let checks = self.local(&node_limits);
        let (decided, no_room, permit) = match node {
            None => (SmallVec::new(), false, None),
            Some(node) if self.denies => (node.dry_run(&checks)?, false, None),
            Some(node) => node.decide(self, &checks)?,
        };
        let mut decided = decided.into_iter();
        let each = self.checks.iter().zip(&self.on_failure);
        let decisions = each.map(|(check, on_failure)| match on_failure {
            OnStoreFailure::Allow => failed(check.limit, true, store_context),
            OnStoreFailure::Deny => failed(check.limit, false, store_context),
            OnStoreFailure::Local => match decided.next() {
                Some(decision) => local(decision, fits(check, &self.checks), store_context),
                // There is a decision for every local check.
                None => failed(check.limit, false, store_context),
            },
        });
        Ok(FallbackDecisions { decisions: decisions.collect(), no_room, permit })
    }
}

/// The decisions about a request whose store failed.
#[derive(Debug)]
pub(crate) struct FallbackDecisions {
    /// The decision about each check. A local one that [failed closed](Decided::FailedClosed) fits
    /// the whole limit, but not the share of this node.
    pub(crate) decisions: SmallVec<[Decision; 4]>,
    /// Whether local memory denied the request only because it is full.
    pub(crate) no_room: bool,
    /// The permit in local memory, if the request acquires one and was admitted.
    pub(crate) permit: Option<Permit>,
}

/// The decision about a check that is not decided locally.
fn failed(limit: &Limit, allowed: bool, store_context: StoreContext) -> Decision {
    let (retry_after, decided) = match allowed {
        true => (RetryAfter::Now, Decided::FailedOpen),
        false => (store_context.retry_after(), Decided::FailedClosed),
    };
    Decision { allowed, limit: limit.count(), retry_after, decided, ..Decision::default() }
}

/// Converts a decision of local memory. `fits` means that the whole limit can admit the cost. If
/// only the share of this node cannot, the failure of the store is the reason for the denial.
fn local(decision: Decision, fits: bool, store_context: StoreContext) -> Decision {
    match decision.retry_after {
        RetryAfter::Never if fits => {
            let retry_after = store_context.retry_after();
            Decision { decided: Decided::FailedClosed, retry_after, ..decision }
        }
        _ => Decision { decided: Decided::Local, ..decision },
    }
}

/// The local memory of a node that uses a shared store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalNode<'n> {
    pub(crate) memory: &'n Limiter,
    /// The number of nodes that share the limits.
    pub(crate) nodes: u32,
}

impl LocalNode<'_> {
    /// Decides checks in local memory, and acquires a permit there if the request has one.
    fn decide(
        self,
        fallback_request: &FallbackRequest<'_>,
        checks: &[Check<'_>],
    ) -> Result<(SmallVec<[Decision; 4]>, bool, Option<Permit>), CheckError> {
        let id = fallback_request.id.filter(|_| fallback_request.permit.is_none());
        let request = Request { id, permit: fallback_request.permit, ..Request::new(checks) };
        let verdict = self.memory.decide(&request)?;
        let permit = fallback_request.permit.filter(|_| verdict.allowed);
        let permit = permit.map(|id| Permit::new(self.memory.clone(), id, checks, &verdict));
        Ok((verdict.decisions, verdict.no_room, permit))
    }

    /// The decisions of local memory, without charging anything.
    fn dry_run(self, checks: &[Check<'_>]) -> Result<SmallVec<[Decision; 4]>, CheckError> {
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
}

/// Whether a denial charges the check what is left.
fn consumes(check: &Check<'_>) -> bool {
    check.overflow == Overflow::Consume && !check.observed
}

/// A limit that never admits anything.
pub(crate) fn deny_all() -> Option<Limit> {
    Limit::new(0, Duration::from_millis(1), Algorithm::FixedWindow).ok()
}

/// Returns checks that get the same decisions and charge nothing. A check that never passes is
/// added before them, so the request is denied and charges nothing. It has the key of the first
/// check, so that it is decided in the same shard or slot. A request that already has
/// [`MAX_CHECKS`] is peeked at instead, and decided as a cost of 1.
pub(crate) fn dry_run_checks<'c>(checks: &[Check<'c>], deny_all: &'c Option<Limit>) -> Checks<'c> {
    match (deny_all, checks) {
        (Some(deny_all), [first, ..]) if checks.len() < MAX_CHECKS => {
            let before = Check::new(first.key, deny_all, 1_u64);
            let dry_run = checks.iter().map(|check| Check { overflow: Overflow::Refuse, ..*check });
            std::iter::once(before).chain(dry_run).collect()
        }
        _ => checks.iter().map(|check| Check { cost: Cost::PEEK, ..*check }).collect(),
    }
}

/// The share of this node of a limit: rounded down, but at least 1 unless the limit is 0.
fn per_node_limit(limit: &Limit, nodes: u32) -> Limit {
    if nodes <= 1 || limit.count() == 0 {
        return *limit;
    }
    let node_share = |count: u64| (count / u64::from(nodes)).max(1);
    let shared =
        limit.with_count(node_share(limit.count())).and_then(|shared| match limit.algorithm() {
            Algorithm::TokenBucket => shared.with_burst(node_share(limit.burst())),
            _ => Ok(shared),
        });
    // A smaller count is never out of range.
    shared.unwrap_or(*limit)
}

/// Whether the whole limit of a check can ever admit the cost of the request.
fn fits(check: &Check<'_>, all: &[Check<'_>]) -> bool {
    let sharing = all.iter().filter(|other| check.shares_state(other));
    let units = sharing.fold(0_u64, |sum, other| match other.cost {
        Cost::Ask(units) => sum.saturating_add(units),
        Cost::Force(_) | Cost::Refund(_) => sum,
    });
    units.max(1) <= check.limit.capacity()
}

/// The local usage of a request's limits, before the store decides.
pub(crate) struct LocalUsage {
    /// The limits that local counts are kept under, one per check.
    limits: SmallVec<[Limit; 4]>,
    /// The units in the local count of each check; 0 if they are not needed.
    counted: SmallVec<[u64; 4]>,
}

impl LocalNode<'_> {
    /// Reads the local usage for a request.
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
                // Units that were released locally while the store decided are no longer counted.
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
        // Errors are ignored, because checks that are invalid here were invalid for the store too.
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

    /// Consumes the shares of this node as the store consumed the limits.
    fn mirror_consumption(self, fallback_request: &FallbackRequest<'_>) {
        let node_limits = fallback_request.node_limits(self.nodes);
        let local = fallback_request.local(&node_limits);
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
/// node. A token bucket is charged only if it holds the units (as an observed check, so that other
/// checks are not affected). Otherwise its debt would grow without bound on a node that has more
/// than its share of the traffic.
fn mirror_charge<'c>(check: &Check<'c>) -> Option<Check<'c>> {
    match check.cost {
        Cost::Ask(0) => None,
        Cost::Ask(_) if check.limit.algorithm() == Algorithm::TokenBucket => Some(check.observed()),
        Cost::Ask(units) => Some(Check { cost: Cost::Force(units), ..*check }),
        Cost::Force(_) | Cost::Refund(_) => Some(*check),
    }
}
