//! A bound on the retries that a client adds to its requests.
//!
//! When a server fails, a client that retries three times sends it four times the traffic, when
//! the server can bear the least. Layers multiply: three of them send 64 times. A budget bounds
//! this. Every request earns a fraction of a retry, so the extra traffic is at most that
//! fraction, however long the outage lasts. A client with few requests would never earn a
//! retry; so a small reserve refills with time.
//!
//! With the defaults, 1,000 requests that all fail cause at most 200 retries, and 10 more per
//! minute.

use std::time::Duration;

/// One retry. Balances are in thousandths of a retry.
const RETRY: u64 = 1000;

/// A retry budget. Time is an argument: the time since any fixed start.
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
    /// One retry for every five requests, and ten per minute.
    fn default() -> Self {
        Budget::new(0.2, 10)
    }
}

impl Budget {
    /// The time in which an empty reserve refills.
    pub const FILLS_IN: Duration = Duration::from_secs(60);

    /// The largest balance that requests can earn, in reserves: an hour of successes must not
    /// pay for an hour of retries.
    const SAVINGS: u64 = 10;

    /// Creates a budget. Every request earns `share` of a retry. `reserve` retries are available
    /// from the start, and again after [`FILLS_IN`](Self::FILLS_IN).
    pub fn new(share: f64, reserve: u32) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000")]
        #[expect(clippy::cast_precision_loss, reason = "a thousand is exact")]
        let per_request = (crate::backoff::clamped_fraction(share) * RETRY as f64).round() as u64;
        let reserve = u64::from(reserve) * RETRY;
        Budget { per_request, reserve, balance: reserve, at: Duration::ZERO }
    }

    /// Records a request that is not a retry.
    pub fn earn(&mut self, now: Duration) {
        self.fill(now);
        let most = self.reserve.max(RETRY).saturating_mul(Self::SAVINGS);
        // A balance above the bound is kept.
        self.balance = self.balance.max((self.balance + self.per_request).min(most));
    }

    /// Pays for a retry. Returns whether the balance was sufficient.
    #[must_use]
    pub fn spend(&mut self, now: Duration) -> bool {
        self.fill(now);
        let left = self.balance.checked_sub(RETRY);
        self.balance = left.unwrap_or(self.balance);
        left.is_some()
    }

    /// Refills the balance with time, up to the reserve.
    fn fill(&mut self, now: Duration) {
        if self.balance >= self.reserve {
            self.at = self.at.max(now);
            return;
        }
        let passed = now.saturating_sub(self.at).min(Self::FILLS_IN);
        let grown = u128::from(self.reserve) * passed.as_micros() / Self::FILLS_IN.as_micros();
        // Time for less than a thousandth is kept until it amounts to one.
        if grown > 0 {
            let grown = u64::try_from(grown).unwrap_or(self.reserve);
            self.balance = (self.balance + grown).min(self.reserve);
            self.at = now;
        }
    }
}
