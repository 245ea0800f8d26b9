//! The fallback for requests while the shared store fails.
//!
//! Each check has a fallback: allow, deny, or decide in the local memory of this node with the
//! limit divided by the number of nodes. For the last one, local memory mirrors what the store
//! charges while it works (`local_node.rs`). A cost that fits the whole limit, but not the share
//! of this node, is denied because the store failed, and can be retried.
//!
//! A denial charges nothing or, if a check is consuming, what is left. If an enforced check denies
//! because the store failed, nothing is charged: the others are only checked.
//!
//! Both the limiter and the gate use this module. The limiter has one fallback for all of its
//! checks, and the gate has one per policy.

use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Cost, Decided, Decision, Limit, PermitId, RetryAfter};

use crate::local_node::LocalNode;
use crate::request::Checks;
use crate::{Check, CheckError, Permit};

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
pub(crate) struct SharedRequest<'c> {
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

impl SharedRequest<'_> {
    /// Whether anything is charged or refunded.
    pub(crate) fn changes_counts(&self) -> bool {
        self.checks.iter().any(|check| check.cost != Cost::PEEK)
    }

    /// The indexes of the checks that are decided in local memory if the store fails.
    pub(crate) fn local_indices(&self) -> impl Iterator<Item = usize> {
        let local =
            |(_, on_failure): &(usize, &OnStoreFailure)| **on_failure == OnStoreFailure::Local;
        self.on_failure.iter().enumerate().filter(local).map(|(index, _)| index)
    }

    /// The checks that are decided in local memory, under the shares of this node.
    pub(crate) fn local_checks<'s>(&'s self, node_limits: &'s [Limit]) -> Checks<'s> {
        self.local_indices()
            .map(|index| Check { limit: &node_limits[index], ..self.checks[index] })
            .collect()
    }

    pub(crate) fn node_limits(&self, nodes: u32) -> SmallVec<[Limit; 4]> {
        self.checks.iter().map(|check| per_node_limit(check.limit, nodes)).collect()
    }

    /// Decides a request whose store failed. `node` is `None` only if no check is decided locally.
    pub(crate) fn resolve(
        &self,
        node: Option<LocalNode<'_>>,
        store_context: StoreContext,
    ) -> Result<FallbackDecisions, CheckError> {
        let node_limits = self.node_limits(store_context.nodes);
        let checks = self.local_checks(&node_limits);
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
                Some(decision) => as_local(decision, fits(check, &self.checks), store_context),
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
fn as_local(decision: Decision, fits: bool, store_context: StoreContext) -> Decision {
    match decision.retry_after {
        RetryAfter::Never if fits => {
            let retry_after = store_context.retry_after();
            Decision { decided: Decided::FailedClosed, retry_after, ..decision }
        }
        _ => Decision { decided: Decided::Local, ..decision },
    }
}

/// The share of this node of a limit: rounded down, but at least 1 unless the limit is 0.
pub(crate) fn per_node_limit(limit: &Limit, nodes: u32) -> Limit {
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
