//! How many retries a client may add to its requests.
//!
//! When a server fails, every client that retries three times sends it four times the
//! traffic, just when it can bear the least. Layers multiply: three of them make 64. A
//! budget bounds it: retries are paid for by requests, a part of one each, so that however
//! long the outage lasts a fleet sends at most so much more than it would without retries.
//! A client that asks rarely could never pay; so a small reserve fills up with time.
//!
//! With the defaults, 1,000 requests that all fail make at most 200 retries and 10 more in
//! each minute.

use std::time::Duration;

/// Accounts are kept in thousandths of a retry.
const RETRY: u64 = 1000;

/// A retry budget. Time is an argument: what has passed since any start you choose.
///
/// ```
/// use std::time::Duration;
/// use tidegate_client::Budget;
///
/// let mut budget = Budget::new(0.5, 1);
/// let now = Duration::ZERO;
/// assert!(budget.spend(now), "the reserve");
/// assert!(!budget.spend(now));
/// budget.earn(now);
/// budget.earn(now);
/// assert!(budget.spend(now), "two requests pay for a retry");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    per_request: u64,
    reserve: u64,
    balance: u64,
    at: Duration,
}

impl Default for Budget {
    /// A retry for every five requests, and ten in a minute.
    fn default() -> Self {
        Budget::new(0.2, 10)
    }
}

impl Budget {
    /// The time in which the reserve fills up.
    pub const FILLS_IN: Duration = Duration::from_secs(60);

    /// How many reserves can be saved up by requests: an hour of successes must not pay for
    /// an hour of retries.
    const SAVINGS: u64 = 10;

    /// `share` of a retry is earned by every request; `reserve` retries are there from the
    /// start and come back within [`FILLS_IN`](Self::FILLS_IN).
    pub fn new(share: f64, reserve: u32) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000")]
        #[expect(clippy::cast_precision_loss, reason = "a thousand is exact")]
        let per_request = (crate::backoff::part(share) * RETRY as f64).round() as u64;
        let reserve = u64::from(reserve) * RETRY;
        Budget { per_request, reserve, balance: reserve, at: Duration::ZERO }
    }

    /// A request is made, not a retry.
    pub fn earn(&mut self, now: Duration) {
        self.fill(now);
        let most = self.reserve.max(RETRY).saturating_mul(Self::SAVINGS);
        // Savings above the bound, there from elsewhere, are not taken away.
        self.balance = self.balance.max((self.balance + self.per_request).min(most));
    }

    /// Pays for a retry, or says that there is nothing left.
    #[must_use]
    pub fn spend(&mut self, now: Duration) -> bool {
        self.fill(now);
        let left = self.balance.checked_sub(RETRY);
        self.balance = left.unwrap_or(self.balance);
        left.is_some()
    }

    /// Only up to the reserve: time alone saves nothing up.
    fn fill(&mut self, now: Duration) {
        if self.balance >= self.reserve {
            self.at = self.at.max(now);
            return;
        }
        let passed = now.saturating_sub(self.at).min(Self::FILLS_IN);
        let grown = u128::from(self.reserve) * passed.as_micros() / Self::FILLS_IN.as_micros();
        // What is less than a thousandth waits until it is one.
        if grown > 0 {
            let grown = u64::try_from(grown).unwrap_or(self.reserve);
            self.balance = (self.balance + grown).min(self.reserve);
            self.at = now;
        }
    }
}
