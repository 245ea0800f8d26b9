//! Permits, which hold `concurrency` limits while a request runs.

use std::fmt;
use std::mem;
use std::time::Duration;

use tidegate_core::{Algorithm, Decided, Denied, Limit, LimitError, PermitId};

use super::Limiter;
use super::any_store::DecidedRequest;
use crate::request::charged_checks;
use crate::store::PermitOperation;
use crate::{Check, MemoryStore, Store, StoreError, Verdict};

/// The result of acquiring a permit.
///
/// [`Acquired::or_deny`] turns a denial into an error, so that `?` enforces the limits.
#[derive(Debug)]
#[must_use = "a permit that is dropped is released"]
pub enum Acquired<S: Store = MemoryStore> {
    /// The permit, which is held until it is dropped.
    Permit(Permit<S>, Verdict),
    /// The permit was denied. Nothing was charged, unless a check is [consuming](Check::consuming).
    Denied(Verdict),
}

impl<S: Store> Acquired<S> {
    pub(super) fn new(
        limiter: &Limiter<S>,
        id: PermitId,
        checks: &[Check<'_>],
        verdict: Verdict,
    ) -> Self {
        match verdict.allowed {
            true => Acquired::Permit(Permit::new(limiter.clone(), id, checks, &verdict), verdict),
            false => Acquired::Denied(verdict),
        }
    }

    /// The permit of a decided request. A permit that local memory granted is held there.
    pub(super) fn of_decided(
        limiter: &Limiter<S>,
        checks: &[Check<'_>],
        decided: DecidedRequest,
    ) -> Self {
        let DecidedRequest { verdict, permit, local } = decided;
        let id = permit.unwrap_or_default();
        if verdict.decided == Decided::Exact || !verdict.allowed {
            return Self::new(limiter, id, checks, verdict);
        }
        let local = local.map(Box::new);
        let permit = Permit { limiter: limiter.clone(), id, held: Vec::new(), local };
        Acquired::Permit(permit, verdict)
    }

    /// Returns the permit, if it was granted.
    pub fn permit(self) -> Option<Permit<S>> {
        match self {
            Acquired::Permit(permit, _) => Some(permit),
            Acquired::Denied(_) => None,
        }
    }

    /// Returns the permit, or a denial as an error.
    ///
    /// # Errors
    /// Returns [`Denied`] if the permit was denied.
    pub fn or_deny(self) -> Result<Permit<S>, Denied> {
        match self {
            Acquired::Permit(permit, _) => Ok(permit),
            Acquired::Denied(verdict) => Err(verdict.denied()),
        }
    }

    /// Returns the verdict.
    pub fn verdict(&self) -> &Verdict {
        match self {
            Acquired::Permit(_, verdict) | Acquired::Denied(verdict) => verdict,
        }
    }
}

/// A held permit under one or several `concurrency` limits. It is released on drop.
///
/// The permit ends with its lease, unless it is renewed.
#[must_use = "a permit that is dropped is released"]
pub struct Permit<S: Store = MemoryStore> {
    limiter: Limiter<S>,
    id: PermitId,
    held: Vec<(Box<[u8]>, Limit)>,
    /// The permit in local memory, if that decided because the store failed.
    local: Option<Box<Permit>>,
}

impl<S: Store> Permit<S> {
    /// Creates the permit of an admitted request. Observed limits that would have denied the
    /// request are not held.
    pub(crate) fn new(
        limiter: Limiter<S>,
        id: PermitId,
        checks: &[Check<'_>],
        verdict: &Verdict,
    ) -> Self {
        let held = charged_checks(checks, &verdict.decisions)
            .filter(|check| check.limit.algorithm() == Algorithm::Concurrency)
            .map(|check| (check.key.into(), *check.limit))
            .collect();
        Permit { limiter, id, held, local: None }
    }

    /// Returns the id of the permit within its limiter.
    pub fn id(&self) -> PermitId {
        self.id
    }

    /// Restarts the lease. Returns `false` if it had already ended under one of the limits.
    ///
    /// # Errors
    /// Returns an error if the store fails. The lease may or may not have been restarted then.
    pub async fn renew_async(&self) -> Result<bool, StoreError> {
        match &self.local {
            Some(local) => Ok(local.renew()),
            None => apply(&self.limiter, &self.held, PermitOperation::Renew(self.id)).await,
        }
    }

    /// Releases the permit, as a drop does, and waits for completion. Returns `false` if it had
    /// already ended under one of the limits.
    ///
    /// # Errors
    /// Returns an error if the store fails. The permit then ends with its lease, unless the store
    /// retries the release, as `RedisStore` does.
    pub async fn release_async(mut self) -> Result<bool, StoreError> {
        if let Some(local) = self.local.take() {
            self.held.clear();
            return Ok(local.release());
        }
        // If the future is dropped, the drop of the permit releases all of it again.
        let released = apply(&self.limiter, &self.held, PermitOperation::Release(self.id)).await;
        self.held.clear();
        released
    }
}

impl Permit {
    /// Restarts the lease. Returns `false` if it had already ended under one of the limits.
    pub fn renew(&self) -> bool {
        self.all(PermitOperation::Renew(self.id))
    }

    /// Restarts the lease with this duration, which also applies to later renewals. Returns `false`
    /// if it had already ended under one of the limits.
    ///
    /// # Errors
    /// Returns an error if the lease is out of bounds. Nothing is changed then.
    pub fn renew_for(&mut self, lease: Duration) -> Result<bool, LimitError> {
        let leased = self.held.iter().map(|(_, limit)| Limit::concurrent(limit.count(), lease));
        let leased: Vec<Limit> = leased.collect::<Result<_, _>>()?;
        for ((_, limit), leased) in self.held.iter_mut().zip(leased) {
            *limit = leased;
        }
        Ok(self.renew())
    }

    /// Releases the permit, as a drop does. Returns `false` if it had already ended under one of
    /// the limits.
    pub fn release(mut self) -> bool {
        let was_held = self.all(PermitOperation::Release(self.id));
        for (key, _) in mem::take(&mut self.held) {
            self.limiter.shared.release_listeners.notify(&key);
        }
        was_held
    }

    fn all(&self, operation: PermitOperation) -> bool {
        let store = self.limiter.store();
        // Every limit is released or renewed, even after one that was not held.
        self.held
            .iter()
            .fold(true, |all, (key, limit)| store.update_permit(key, limit, operation) && all)
    }
}

/// Releases or renews a permit under all of its limits, even after one of the calls failed. A
/// permit that the store granted is held in local memory too.
async fn apply<S: Store>(
    limiter: &Limiter<S>,
    held: &[(Box<[u8]>, Limit)],
    operation: PermitOperation,
) -> Result<bool, StoreError> {
    let mut all = Ok(true);
    for (key, limit) in held {
        if let Some(memory) = limiter.local_memory() {
            memory.store().update_permit(key, limit, operation);
        }
        let done = limiter.store().update_permit(key, limit, operation).await;
        all = match (all, done) {
            (Ok(all), Ok(was_held)) => Ok(all && was_held),
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        if let PermitOperation::Release(_) = operation {
            limiter.shared.release_listeners.notify(key);
        }
    }
    all
}

impl<S: Store> Drop for Permit<S> {
    fn drop(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let (held, limiter) = (mem::take(&mut self.held), self.limiter.clone());
        let release = PermitOperation::Release(self.id);
        // An error is ignored, because the permit ends with its lease.
        self.limiter.store().detach(async move { drop(apply(&limiter, &held, release).await) });
    }
}

impl<S: Store> fmt::Debug for Permit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("id", &self.id.0).finish()
    }
}
