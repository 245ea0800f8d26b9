//! The limiter over any store, with asynchronous methods and a fallback for when the store fails.

use std::sync::atomic::{AtomicU32, Ordering};

use smallvec::SmallVec;
use tidegate_core::{Cost, Decided, Decision, Limit, PermitId};

use super::{Acquired, Limiter};
use crate::Request;
use crate::fallback::{FallbackDecisions, OnStoreFailure, SharedRequest, StoreContext};
use crate::futures::{MAX_CONCURRENT_CHECKS, join_all};
use crate::local_node::LocalNode;
use crate::request::validate;
use crate::{Check, Permit, Store, StoreError, Verdict};

/// The fallback of a limiter whose store fails.
#[derive(Debug)]
pub(super) struct Fallback {
    pub(super) on_failure: OnStoreFailure,
    pub(super) nodes: AtomicU32,
    /// The local memory of this node, for [`OnStoreFailure::Local`].
    pub(super) memory: Option<Limiter>,
}

/// A decided request.
pub(super) struct DecidedRequest {
    pub(super) verdict: Verdict,
    /// The permit id of the request.
    pub(super) permit: Option<PermitId>,
    /// The permit that was acquired in local memory, because the store failed.
    pub(super) local: Option<Permit>,
}

impl Fallback {
    /// Adds the fallback of each check to a request.
    fn shared_request<'r>(&self, request: &Request<'r>) -> SharedRequest<'r> {
        let on_failure = request.checks.iter().map(|_| self.on_failure).collect();
        let is_enforced = |check: &Check<'_>| !check.observed;
        let denies =
            self.on_failure == OnStoreFailure::Deny && request.checks.iter().any(is_enforced);
        let (checks, id) = (SmallVec::from_slice(request.checks), request.id);
        SharedRequest { checks, on_failure, denies, id, permit: request.permit }
    }
}

impl<S: Store> Limiter<S> {
    /// Decides one check: `cost` units of `limit` for `key`.
    ///
    /// ```
    /// use tidegate::{Limit, Limiter, Store, StoreError};
    ///
    /// /// Uses Redis in production, and memory in tests.
    /// async fn may_send<S: Store>(limiter: &Limiter<S>, user: &str) -> Result<bool, StoreError> {
    ///     static LIMIT: Limit = Limit::per_minute(5);
    ///     Ok(limiter.check_async(user, &LIMIT, 1).await?.allowed)
    /// }
    /// # let _ = |limiter: &Limiter| drop(may_send(limiter, "alice"));
    /// ```
    ///
    /// # Errors
    /// Returns an error if the check is invalid, or if the store fails and
    /// [`Builder::on_store_failure`](crate::Builder::on_store_failure) is not set.
    pub async fn check_async(
        &self,
        key: impl AsRef<[u8]> + Send,
        limit: &Limit,
        cost: impl Into<Cost> + Send,
    ) -> Result<Decision, StoreError> {
        let check = Check::new(key.as_ref(), limit, cost);
        let verdict = self.decide_async(&Request::new(&[check])).await?;
        Ok(verdict.decisions.first().copied().unwrap_or_default())
    }

    /// Decides several checks together: all are charged or none, unless some are
    /// [consuming](Check::consuming).
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::check_async`].
    pub async fn check_all_async(&self, checks: &[Check<'_>]) -> Result<Verdict, StoreError> {
        self.decide_async(&Request::new(checks)).await
    }

    /// Decides a request, which may have an idempotency id.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::check_async`].
    pub async fn decide_async(&self, request: &Request<'_>) -> Result<Verdict, StoreError> {
        Ok(self.decide_or_fall_back(request).await?.verdict)
    }

    /// Decides independent checks and appends a decision for each. They are sent together, and take
    /// effect in order.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::check_async`]. If the store fails, the decisions before the
    /// failure are appended. A `concurrency` limit is an error before anything is decided.
    pub async fn check_batch_async(
        &self,
        checks: &[Check<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        for check in checks {
            validate(std::slice::from_ref(check), false)?;
        }
        for chunk in checks.chunks(MAX_CONCURRENT_CHECKS) {
            let each = chunk.iter().map(|check| async move {
                self.decide_async(&Request::new(std::slice::from_ref(check))).await
            });
            for verdict in join_all(each.map(Box::pin).collect()).await {
                decisions.extend(verdict?.decisions);
            }
        }
        Ok(())
    }

    /// Returns the decision that a cost of 1 would get now, without charging it.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::check_async`].
    pub async fn peek_async(
        &self,
        key: impl AsRef<[u8]> + Send,
        limit: &Limit,
    ) -> Result<Decision, StoreError> {
        self.check_async(key, limit, Cost::PEEK).await
    }

    /// Charges units even beyond the limit, for a cost that is known only afterwards. Returns the
    /// remaining units.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::check_async`].
    pub async fn charge_async(
        &self,
        key: impl AsRef<[u8]> + Send,
        limit: &Limit,
        units: u64,
    ) -> Result<u64, StoreError> {
        Ok(self.check_async(key, limit, Cost::Force(units)).await?.remaining)
    }

    /// Refunds units, newest first, never below zero usage. Returns the remaining units.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::check_async`].
    pub async fn refund_async(
        &self,
        key: impl AsRef<[u8]> + Send,
        limit: &Limit,
        units: u64,
    ) -> Result<u64, StoreError> {
        Ok(self.check_async(key, limit, Cost::Refund(units)).await?.remaining)
    }

    /// Resets the usage of a limit by a key. Returns whether there was any.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    /// [`Builder::on_store_failure`](crate::Builder::on_store_failure) does not apply.
    pub async fn reset_async(
        &self,
        key: impl AsRef<[u8]> + Send,
        limit: &Limit,
    ) -> Result<bool, StoreError> {
        if let Some(memory) = self.local_memory() {
            memory.reset(key.as_ref(), limit);
        }
        self.store().reset(key.as_ref(), limit).await
    }

    /// Acquires a permit if every check allows it, as [`Limiter::acquire`] does.
    ///
    /// A permit that is dropped is released in the background.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::check_async`].
    pub async fn acquire_async(&self, checks: &[Check<'_>]) -> Result<Acquired<S>, StoreError> {
        let permit = Some(self.store().new_permit());
        let decided = self.decide_or_fall_back(&Request { permit, ..Request::new(checks) }).await?;
        Ok(Acquired::of_decided(self, checks, decided))
    }

    /// Changes the number of nodes that share the limits; see
    /// [`Builder::nodes`](crate::Builder::nodes).
    pub fn set_nodes(&self, nodes: u32) {
        if let Some(fallback) = &self.shared.fallback {
            fallback.nodes.store(nodes.max(1), Ordering::Relaxed);
        }
    }

    /// The local memory of this node, if it decides when the store fails.
    pub(super) fn local_memory(&self) -> Option<&Limiter> {
        self.shared.fallback.as_ref()?.memory.as_ref()
    }

    /// Decides a request in the store or, if that fails, by the fallback.
    pub(super) async fn decide_or_fall_back(
        &self,
        request: &Request<'_>,
    ) -> Result<DecidedRequest, StoreError> {
        let decided = |verdict, local| DecidedRequest { verdict, permit: request.permit, local };
        let Some(fallback) = &self.shared.fallback else {
            return Ok(decided(self.store().decide(request).await?, None));
        };
        let shared_request = fallback.shared_request(request);
        let nodes = fallback.nodes.load(Ordering::Relaxed);
        let node = fallback.memory.as_ref().map(|memory| LocalNode { memory, nodes });
        let usage = node.map(|node| (node, node.read_usage(&shared_request)));
        match self.store().decide(request).await {
            Ok(verdict) => {
                if let Some((node, usage)) = &usage {
                    node.mirror(&shared_request, &verdict, usage);
                }
                Ok(decided(verdict, None))
            }
            Err(StoreError::Failed(_)) => {
                let store_context =
                    StoreContext { nodes, next_attempt: self.store().next_attempt() };
                let resolved = shared_request.resolve(node, store_context)?;
                Ok(decided(combine(request.checks, &resolved), resolved.permit))
            }
            Err(error) => Err(error),
        }
    }
}

/// The verdict on checks that the fallback decided.
fn combine(checks: &[Check<'_>], fallback: &FallbackDecisions) -> Verdict {
    let mut verdict = Verdict::new(checks, fallback.decisions.iter().copied());
    let enforced = checks.iter().zip(&verdict.decisions).filter(|(check, _)| !check.observed);
    let decided = enforced.map(|(_, decision)| decision.decided).max();
    verdict.decided = decided.unwrap_or(Decided::Exact);
    verdict.no_room = fallback.no_room;
    verdict
}
