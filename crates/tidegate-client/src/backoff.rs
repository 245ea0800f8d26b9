//! The wait before a retry.
//!
//! With a fixed wait, clients that failed together retry together. Doubling the wait spreads
//! the groups out, but they stay groups. So the wait is drawn at random from the whole doubled
//! time ("full jitter"). If the server requests a wait, the random time is added to it, because
//! clients that were denied together received the same time.
//!
//! ```text
//!   failed      requested            drawn from here
//!     |------------------------|~~~~~~~~~~~~~~~~~~~~~~~|
//!     0                      wait        wait + min(cap, base * 2^n)
//! ```

use std::time::Duration;

/// Exponential backoff with full jitter, added to the wait that the server requests.
///
/// Time and randomness are arguments: the same arguments give the same delay.
///
/// ```
/// use std::time::Duration;
/// use tidegate_client::Backoff;
///
/// let backoff = Backoff::default();
/// // No requested wait: up to 100 ms before the first retry, up to 200 ms before the second.
/// assert_eq!(backoff.delay(0, None, 0.5), Some(Duration::from_millis(50)));
/// assert_eq!(backoff.delay(1, None, 0.5), Some(Duration::from_millis(100)));
/// // The server requests two seconds: the jitter is added to them.
/// let requested = Some(Duration::from_secs(2));
/// assert_eq!(backoff.delay(0, requested, 0.5), Some(Duration::from_millis(2050)));
/// // The server requests a century: an earlier retry would be denied, so there is none.
/// assert_eq!(backoff.delay(0, Some(Duration::from_secs(3_155_760_000)), 0.5), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    longest_wait: Duration,
}

impl Default for Backoff {
    /// From 100 ms, doubled up to 10 s. Ends the retries if a wait exceeds 30 s.
    fn default() -> Self {
        Backoff {
            base: Duration::from_millis(100),
            cap: Duration::from_secs(10),
            longest_wait: Duration::from_secs(30),
        }
    }
}

impl Backoff {
    /// Sets the largest random part before the first retry.
    #[must_use]
    pub fn base(mut self, base: Duration) -> Self {
        self.base = base;
        self
    }

    /// Sets the largest random part before any retry.
    #[must_use]
    pub fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// Sets the longest requested wait that is accepted. A longer one ends the retries.
    #[must_use]
    pub fn longest_wait(mut self, longest: Duration) -> Self {
        self.longest_wait = longest;
        self
    }

    /// Returns the delay before retry number `retry`, counted from 0. `requested` is the wait
    /// that the server requests ([`Fields::wait`](crate::Fields)), `chance` a random number
    /// from 0 up to 1.
    ///
    /// Returns `None` if the server requests more than the longest wait. The wait is not
    /// shortened, because an early retry is denied again.
    pub fn delay(&self, retry: u32, requested: Option<Duration>, chance: f64) -> Option<Duration> {
        let requested = requested.unwrap_or_default();
        if requested > self.longest_wait {
            return None;
        }
        Some(requested + self.jitter(retry, chance))
    }

    /// Returns the random part of the delay.
    pub fn jitter(&self, retry: u32, chance: f64) -> Duration {
        let doubled = self.base.saturating_mul(2_u32.saturating_pow(retry));
        doubled.min(self.cap).mul_f64(clamped_fraction(chance))
    }
}

/// Clamps a random number to 0 to 1, because `Duration::mul_f64` panics on NaN and negatives.
pub(crate) fn clamped_fraction(chance: f64) -> f64 {
    if chance.is_nan() { 0.0 } else { chance.clamp(0.0, 1.0) }
}
