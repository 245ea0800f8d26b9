//! Answers without the store that nodes share, while it fails.
//!
//! Each check has an answer for that case: allow, deny, or decide in this node's memory with the
//! limit divided by the number of nodes. For the last one the memory is kept warm (`usage.rs`). A
//! cost that the whole limit allows, but this node's share does not, is denied because the store
//! failed, not for ever.
//!
//! A denial charges nothing, or what is left where a check is consuming. If one check denies
//! because the store failed, nothing is charged: the others are only looked at.
//!
//! The limiter and the gate both answer here, the one with a single answer for all its checks, the
//! other with one per policy.

mod mirror;

use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Cost, Decided, Decision, Limit, PermitId, RetryAfter};

use crate::{Check, CheckError, Limiter, MAX_CHECKS, Overflow, Permit, Request};

/// The answer to a check when its store fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreFailure {
    /// The request passes.
    Allow,
    /// The request is refused.
    Deny,
    /// It is decided in memory, with the limit divided by the number of nodes.
    #[default]
    Local,
}

impl OnStoreFailure {
    /// Every answer.
    pub const ALL: [OnStoreFailure; 3] =
        [OnStoreFailure::Allow, OnStoreFailure::Deny, OnStoreFailure::Local];

    /// The name used in config.
    pub const fn name(self) -> &'static str {
        match self {
            OnStoreFailure::Allow => "allow",
            OnStoreFailure::Deny => "deny",
            OnStoreFailure::Local => "local",
        }
    }
}

/// When to ask again at the earliest after a denial because the store failed: by then it was
/// tried several times.
const MIN_RETRY: Duration = Duration::from_secs(1);

/// The node's knowledge of an outage of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    /// How many nodes share the limits.
    pub(crate) nodes: u32,
    /// How long until the store is tried again.
    pub(crate) next_attempt: Duration,
}

impl Outage {
    /// A node without a shared store.
    #[cfg(feature = "policies")]
    pub(crate) const MEMORY: Self = Outage { nodes: 1, next_attempt: Duration::ZERO };

    /// When a denial because the store failed may be over.
    pub(crate) fn retry_after(self) -> RetryAfter {
        let wait = self.next_attempt.max(MIN_RETRY);
        RetryAfter::from_micros(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX))
    }
}

/// A request to a shared store, with the answers for when that fails.
#[derive(Clone, Debug)]
pub(crate) struct FallbackRequest<'c> {
    pub(crate) checks: Checks<'c>,
    /// One per check.
    pub(crate) on_failure: SmallVec<[OnStoreFailure; 4]>,
    /// Whether one that is enforced denies.
    pub(crate) denies: bool,
    /// An idempotency id.
    pub(crate) id: Option<&'c [u8]>,
    /// The permit under which `concurrency` limits are held.
    pub(crate) permit: Option<PermitId>,
}

pub(crate) type Checks<'c> = SmallVec<[Check<'c>; 4]>;

impl FallbackRequest<'_> {
    /// Whether anything is charged or given back.
    fn charges(&self) -> bool {
        self.checks.iter().any(|check| check.cost != Cost::PEEK)
    }

    /// The indices of the checks that are decided here if the store fails.
    fn local_indices(&self) -> impl Iterator<Item = usize> {
        let local = |(_, answer): &(usize, &OnStoreFailure)| **answer == OnStoreFailure::Local;
        self.on_failure.iter().enumerate().filter(local).map(|(index, _)| index)
    }

    /// The checks that are decided here, under this node's shares of their limits.
    fn local<'s>(&'s self, node_limits: &'s [Limit]) -> Checks<'s> {
        self.local_indices()
            .map(|at| Check { limit: &node_limits[at], ..self.checks[at] })
            .collect()
    }

    fn node_limits(&self, nodes: u32) -> SmallVec<[Limit; 4]> {
        self.checks.iter().map(|check| per_node_limit(check.limit, nodes)).collect()
    }

    /// Answers a request whose store failed. Without a node none of its checks is local.
    pub(crate) fn resolve(
        &self,
        node: Option<LocalNode<'_>>,
        outage: Outage,
    ) -> Result<FallbackAnswer, CheckError> {
        let node_limits = self.node_limits(outage.nodes);
        let checks = self.local(&node_limits);
        let (decided, no_room, permit) = match node {
            None => (SmallVec::new(), false, None),
            Some(node) if self.denies => (node.dry_run(&checks)?, false, None),
            Some(node) => node.decide(self, &checks)?,
        };
        let mut decided = decided.into_iter();
        let each = self.checks.iter().zip(&self.on_failure);
        let decisions = each.map(|(check, answer)| match answer {
            OnStoreFailure::Allow => failed(check.limit, true, outage),
            OnStoreFailure::Deny => failed(check.limit, false, outage),
            OnStoreFailure::Local => match decided.next() {
                Some(decision) => local(decision, fits(check, &self.checks), outage),
                // There is one for every local check.
                None => failed(check.limit, false, outage),
            },
        });
        Ok(FallbackAnswer { decisions: decisions.collect(), no_room, permit })
    }
}

/// The answer to a request whose store failed.
#[derive(Debug)]
pub(crate) struct FallbackAnswer {
    /// One per check. A local one that [failed closed](Decided::FailedClosed) is within the whole
    /// limit, but not within this node's share.
    pub(crate) decisions: SmallVec<[Decision; 4]>,
    /// Whether this node's memory had no room, and denied for that reason alone.
    pub(crate) no_room: bool,
    /// The permit in this node's memory, if the request has one and was admitted.
    pub(crate) permit: Option<Permit>,
}

/// The answer to a check that is not decided here.
fn failed(limit: &Limit, allowed: bool, outage: Outage) -> Decision {
    let (retry_after, decided) = match allowed {
        true => (RetryAfter::Now, Decided::FailedOpen),
        false => (outage.retry_after(), Decided::FailedClosed),
    };
    Decision { allowed, limit: limit.count(), retry_after, decided, ..Decision::default() }
}

/// The answer of this node's memory. `fits` says whether the whole limit can admit the cost: then
/// only this node's share cannot, and the store's failure is why it is denied.
fn local(decision: Decision, fits: bool, outage: Outage) -> Decision {
    match decision.retry_after {
        RetryAfter::Never if fits => {
            let retry_after = outage.retry_after();
            Decision { decided: Decided::FailedClosed, retry_after, ..decision }
        }
        _ => Decision { decided: Decided::Local, ..decision },
    }
}

/// This node's memory beside a store that nodes share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalNode<'n> {
    pub(crate) memory: &'n Limiter,
    /// How many share the limits.
    pub(crate) nodes: u32,
}

impl LocalNode<'_> {
    /// Decides in this node's memory, and takes a permit there if the request has one.
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

    /// Returns the answers of this node's memory, without charging any.
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

/// Whether a denial charges this check what is left.
fn consumes(check: &Check<'_>) -> bool {
    check.overflow == Overflow::Consume && !check.observed
}

/// The limit nothing passes.
pub(crate) fn deny_all() -> Option<Limit> {
    Limit::new(0, Duration::from_millis(1), Algorithm::FixedWindow).ok()
}

/// Returns checks that get the same answers and charge nothing. A check that never passes goes
/// before them, so the request is denied and charges nothing. It has the key of the first check, so
/// that it is decided in the same shard or slot. The checks of a request that already has
/// [`MAX_CHECKS`] peek instead, and are answered as a cost of 1.
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

/// This node's part of a limit: rounded down, but not to nothing.
fn per_node_limit(limit: &Limit, nodes: u32) -> Limit {
    if nodes <= 1 || limit.count() == 0 {
        return *limit;
    }
    let part = |count: u64| (count / u64::from(nodes)).max(1);
    let shared = limit.with_count(part(limit.count())).and_then(|shared| match limit.algorithm() {
        Algorithm::TokenBucket => shared.with_burst(part(limit.burst())),
        _ => Ok(shared),
    });
    // A smaller count is never out of range.
    shared.unwrap_or(*limit)
}

/// Whether the whole limit of a check can ever admit the cost of a request.
fn fits(check: &Check<'_>, all: &[Check<'_>]) -> bool {
    let sharing = all.iter().filter(|other| check.shares_state(other));
    let units = sharing.fold(0_u64, |sum, other| match other.cost {
        Cost::Ask(units) => sum.saturating_add(units),
        Cost::Force(_) | Cost::Refund(_) => sum,
    });
    units.max(1) <= check.limit.capacity()
}
