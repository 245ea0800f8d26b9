//! How long to wait before a retry.
//!
//! Waiting a fixed time brings everyone who failed together back together. Doubling it
//! thins the crowd out but keeps it a crowd. So the wait is drawn at random from the whole
//! of the doubled time ("full jitter"). Where the server says when to come back, that is
//! waited for first and the random time comes on top: those who were denied together were
//! told the same time.
//!
//! ```text
//!   failed      asked for            drawn from here
//!     |------------------------|~~~~~~~~~~~~~~~~~~~~~~~|
//!     0                      wait        wait + min(cap, base * 2^n)
//! ```

use std::time::Duration;

/// Exponential backoff with full jitter, on top of what the server asks for.
///
/// Time and chance are arguments: the same arguments give the same delay.
///
/// ```
/// use std::time::Duration;
/// use tidegate_client::Backoff;
///
/// let backoff = Backoff::default();
/// // The server said nothing: up to 100 ms before the first retry, up to 200 before the second.
/// assert_eq!(backoff.delay(0, None, 0.5), Some(Duration::from_millis(50)));
/// assert_eq!(backoff.delay(1, None, 0.5), Some(Duration::from_millis(100)));
/// // It said two seconds: not earlier, and not all at once.
/// let asked = Some(Duration::from_secs(2));
/// assert_eq!(backoff.delay(0, asked, 0.5), Some(Duration::from_millis(2050)));
/// // It said a century: coming earlier would be in vain, so there is no retry.
/// assert_eq!(backoff.delay(0, Some(Duration::from_secs(3_155_760_000)), 0.5), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    longest_wait: Duration,
}

impl Default for Backoff {
    /// From 100 ms, doubled up to 10 s; waits of more than 30 s are not waited for.
    fn default() -> Self {
        Backoff {
            base: Duration::from_millis(100),
            cap: Duration::from_secs(10),
            longest_wait: Duration::from_secs(30),
        }
    }
}

impl Backoff {
    /// The random part before the first retry is up to `base`.
    #[must_use]
    pub fn base(mut self, base: Duration) -> Self {
        self.base = base;
        self
    }

    /// The random part is never more than `cap`.
    #[must_use]
    pub fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// A server that asks for more than this is not asked again.
    #[must_use]
    pub fn longest_wait(mut self, longest: Duration) -> Self {
        self.longest_wait = longest;
        self
    }

    /// The delay before retry number `retry`, counted from 0. `asked` is what the server
    /// said ([`Fields::wait`](crate::Fields)), `chance` a number from 0 up to 1.
    ///
    /// `None`: the server asks for more than this client waits. The time is not shortened,
    /// because whoever comes early is denied again.
    pub fn delay(&self, retry: u32, asked: Option<Duration>, chance: f64) -> Option<Duration> {
        let asked = asked.unwrap_or_default();
        if asked > self.longest_wait {
            return None;
        }
        Some(asked + self.jitter(retry, chance))
    }

    /// The random part alone.
    pub fn jitter(&self, retry: u32, chance: f64) -> Duration {
        let doubled = self.base.saturating_mul(2_u32.saturating_pow(retry));
        doubled.min(self.cap).mul_f64(part(chance))
    }
}

/// A chance that is no number, or outside of 0 to 1, would make for a panic further down.
pub(crate) fn part(chance: f64) -> f64 {
    if chance.is_nan() { 0.0 } else { chance.clamp(0.0, 1.0) }
}
