//! Estimates that are charged first and settled when the actual cost is known.

use std::fmt;
use std::mem;

use tidegate_core::{Cost, Decided, Denied, Limit, Timestamp};

use super::Limiter;
use crate::Request;
use crate::futures::poll_once;
use crate::request::is_charged;
use crate::{Check, CheckError, MemoryStore, Store, StoreError, Verdict};

/// A charged estimate, to be settled when the actual cost is known.
///
/// A reservation that is dropped without being settled is refunded, because the work was not done.
/// Units are refunded newest first, as by [`Limiter::refund`]. An estimate that has left the window
/// is not refunded, because that would refund units that others have charged since.
///
/// ```
/// use tidegate::{Limit, Limiter};
///
/// let limiter = Limiter::new();
/// let tokens = Limit::per_minute(10_000);
/// let reserved = limiter.reserve("alice", &tokens, 500)?.or_deny()?;
/// assert_eq!(limiter.peek("alice", &tokens)?.remaining, 9_500);
/// reserved.commit(620); // the actual cost
/// assert_eq!(limiter.peek("alice", &tokens)?.remaining, 9_380);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a reservation that is dropped is refunded"]
pub struct Reserved<S: Store = MemoryStore> {
    limiter: Limiter<S>,
    verdict: Verdict,
    charged: Vec<Charged>,
    charged_at: Timestamp,
    /// Whether local memory was charged, because the store failed.
    charged_locally: bool,
}

/// An estimate under one limit.
struct Charged {
    key: Box<[u8]>,
    limit: Limit,
    estimate: u64,
}

impl Charged {
    /// The check that changes the charge from the estimate to `actual`. Returns `None` if they are
    /// equal, or if it is too late to refund units.
    fn settling(&self, actual: u64, is_too_late: impl FnOnce(&Limit) -> bool) -> Option<Check<'_>> {
        let cost = match actual.checked_sub(self.estimate) {
            Some(0) => return None,
            Some(more) => Cost::Force(more),
            None if is_too_late(&self.limit) => return None,
            None => Cost::Refund(self.estimate - actual),
        };
        Some(Check::new(&*self.key, &self.limit, cost))
    }
}

impl<S: Store> Reserved<S> {
    /// Collects the charges of a verdict. Observed checks that would have denied were not charged,
    /// and neither was a check that was allowed because the store failed. An observed check beside
    /// an enforced one with the same key and window is counted separately and is not settled: its
    /// estimate stays charged.
    fn new(limiter: &Limiter<S>, checks: &[Check<'_>], verdict: Verdict) -> Self {
        let (mut charged, mut charged_locally) = (Vec::new(), false);
        let charged_at = limiter.now();
        for (index, (check, decision)) in checks.iter().zip(&verdict.decisions).enumerate() {
            let counted = matches!(decision.decided, Decided::Exact | Decided::Local);
            let enforced = Check { observed: false, ..*check };
            let is_separately_observed =
                check.observed && checks.iter().any(|other| other.shares_state(&enforced));
            if let Cost::Ask(estimate @ 1..) = check.cost
                && !is_separately_observed
                && verdict.allowed
                && is_charged(checks, &verdict.decisions, index)
                && counted
            {
                charged_locally |= decision.decided == Decided::Local;
                charged.push(Charged { key: check.key.into(), limit: *check.limit, estimate });
            }
        }
        Reserved { limiter: limiter.clone(), verdict, charged, charged_at, charged_locally }
    }

    /// Returns a denial as an error.
    ///
    /// # Errors
    /// Returns [`Denied`] if the estimate was denied.
    pub fn or_deny(self) -> Result<Self, Denied> {
        if self.verdict.allowed { Ok(self) } else { Err(self.verdict.denied()) }
    }

    /// Returns the verdict on the estimate.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// Keeps the estimate as the actual cost.
    pub fn keep(mut self) {
        self.charged.clear();
    }

    /// Settles the actual cost. If it is less than the estimate, the difference is refunded; if it
    /// is more, the difference is charged, even beyond the limit. With several limits, this is the
    /// cost under each of them.
    ///
    /// # Errors
    /// Returns an error if the store fails and
    /// [`Builder::on_store_failure`](crate::Builder::on_store_failure) is not set. Charges that
    /// were not settled stay at the estimate.
    pub async fn commit_async(mut self, actual: u64) -> Result<(), StoreError> {
        let charged = mem::take(&mut self.charged);
        let settling =
            Settling { charged_at: self.charged_at, actual, charged_locally: self.charged_locally };
        settling.settle(&self.limiter, &charged).await
    }
}

impl Reserved {
    /// Settles the actual cost. If it is less than the estimate, the difference is refunded; if it
    /// is more, the difference is charged, even beyond the limit. With several limits, this is the
    /// cost under each of them.
    pub fn commit(self, actual: u64) {
        // In memory the first poll completes it. The checks were valid when they were reserved.
        drop(poll_once(self.commit_async(actual)));
    }
}

/// A settlement of charges.
struct Settling {
    charged_at: Timestamp,
    actual: u64,
    /// Whether local memory was charged, because the store failed.
    charged_locally: bool,
}

impl Settling {
    /// Changes the charges to `actual`, in the store that was charged.
    async fn settle<S: Store>(
        self,
        limiter: &Limiter<S>,
        charged: &[Charged],
    ) -> Result<(), StoreError> {
        let now = limiter.now();
        let is_too_late = |limit: &Limit| !limit.may_refund(self.charged_at, now);
        let mut settled = Ok(());
        for one in charged {
            let Some(check) = one.settling(self.actual, is_too_late) else { continue };
            let checks = [check];
            let decided = match limiter.local_memory().filter(|_| self.charged_locally) {
                Some(memory) => memory.decide(&Request::new(&checks)).map_err(Into::into),
                None => limiter.decide_async(&Request::new(&checks)).await,
            };
            settled = settled.and(decided.map(drop));
        }
        settled
    }
}

impl<S: Store> Drop for Reserved<S> {
    fn drop(&mut self) {
        if self.charged.is_empty() {
            return;
        }
        let (charged, limiter) = (mem::take(&mut self.charged), self.limiter.clone());
        let settling = Settling {
            charged_at: self.charged_at,
            actual: 0,
            charged_locally: self.charged_locally,
        };
        // An error is ignored, because the charge leaves the window by itself.
        let task = async move { drop(settling.settle(&limiter, &charged).await) };
        self.limiter.store().detach(task);
    }
}

impl<S: Store> fmt::Debug for Reserved<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserved").field("verdict", &self.verdict).finish_non_exhaustive()
    }
}

impl Limiter {
    /// Charges an estimate, to be settled when the actual cost is known; see [`Reserved`].
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::check`].
    pub fn reserve(
        &self,
        key: impl AsRef<[u8]>,
        limit: &Limit,
        estimate: u64,
    ) -> Result<Reserved, CheckError> {
        self.reserve_all(&[Check::new(key.as_ref(), limit, estimate)])
    }

    /// Charges estimates under several limits, all or none; see [`Reserved`].
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::check_all`].
    pub fn reserve_all(&self, checks: &[Check<'_>]) -> Result<Reserved, CheckError> {
        Ok(Reserved::new(self, checks, self.check_all(checks)?))
    }
}

impl<S: Store> Limiter<S> {
    /// Charges an estimate, to be settled when the actual cost is known; see [`Reserved`]. A
    /// reservation that is dropped is refunded in the background.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::check_async`].
    pub async fn reserve_async(
        &self,
        key: impl AsRef<[u8]> + Send,
        limit: &Limit,
        estimate: u64,
    ) -> Result<Reserved<S>, StoreError> {
        self.reserve_all_async(&[Check::new(key.as_ref(), limit, estimate)]).await
    }

    /// Charges estimates under several limits, all or none; see [`Reserved`].
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::check_async`].
    pub async fn reserve_all_async(&self, checks: &[Check<'_>]) -> Result<Reserved<S>, StoreError> {
        Ok(Reserved::new(self, checks, self.check_all_async(checks).await?))
    }
}
