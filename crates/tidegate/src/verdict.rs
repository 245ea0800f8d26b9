//! The verdict on a request: the decisions on its checks, combined.

use smallvec::SmallVec;
use tidegate_core::{Decided, Decision, DenialReason, Denied, RetryAfter};

use crate::Check;

/// When to ask again after a denial because others wait: soon, they take turns.
pub(crate) const QUEUED_RETRY_US: u64 = 1_000;

/// The answer to a request: allowed if every enforced check allows it.
///
/// It speaks for one limit: when denied, the denying one with the longest wait;
/// when allowed, the one with the least remaining.
/// [`Verdict::or_deny`] makes an error of a denial, so that `?` enforces the limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a denial is a value: look at `allowed`, or use `or_deny()?`"]
pub struct Verdict {
    /// Whether the request may go ahead. If not, nothing was charged, unless it `consumed`.
    pub allowed: bool,
    /// Whether it was denied and charged some limit what that had left; see
    /// [`Overflow::Consume`](crate::Overflow::Consume). Every decision then describes its limit after that: `allowed` says
    /// whether the same cost would pass now.
    pub consumed: bool,
    /// Whether the store had no room for some key; see [`WhenFull`](crate::WhenFull).
    pub overflowed: bool,
    /// Whether that alone is why it was denied, or why a forced charge was not recorded:
    /// no enforced limit is used up.
    pub no_room: bool,
    pub(crate) decisions: SmallVec<[Decision; 4]>,
    reported: Option<usize>,
    /// Whether it repeats an earlier denial without a call to the shared store.
    pub remembered: bool,
    /// Whether it was denied because the queue of waiting callers is full.
    pub queue_full: bool,
    /// How it was decided: the least certain way among the enforced limits.
    pub decided: Decided,
}

impl Verdict {
    /// Combines the answers to the checks of a request, one per check and in their order, as a
    /// [`Store`](crate::Store) returns them.
    pub fn new(checks: &[Check<'_>], decisions: impl IntoIterator<Item = Decision>) -> Self {
        let mut verdict =
            Verdict { decisions: decisions.into_iter().collect(), ..Verdict::default() };
        verdict.conclude(checks);
        verdict
    }

    /// Returns a denial as an error.
    ///
    /// ```
    /// use tidegate::{Check, Limit, Limiter};
    ///
    /// fn send(limiter: &Limiter, user: &str) -> Result<(), Box<dyn std::error::Error>> {
    ///     static BURST: Limit = Limit::per_second(10);
    ///     static TOTAL: Limit = Limit::per_day(1_000);
    ///     let checks = [Check::new(user, &BURST, 1), Check::new(user, &TOTAL, 1)];
    ///     limiter.check_all(&checks)?.or_deny()?;
    ///     // Only what both limits admit comes here.
    ///     Ok(())
    /// }
    /// send(&Limiter::new(), "alice")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Denied`] if the request was not allowed.
    pub fn or_deny(&self) -> Result<(), Denied> {
        if self.allowed { Ok(()) } else { Err(self.denied()) }
    }

    /// The denial as an error.
    pub(crate) fn denied(&self) -> Denied {
        let reason = self.denial_reason().unwrap_or(DenialReason::LimitReached);
        Denied::new(self.decision().copied().unwrap_or_default(), reason)
    }

    /// Why it was denied; `None` if it was allowed.
    pub fn denial_reason(&self) -> Option<DenialReason> {
        let is_never = || {
            let reported = self.decision();
            reported.is_some_and(|decision| decision.retry_after == RetryAfter::Never)
        };
        match self.decided {
            _ if self.allowed => None,
            _ if self.queue_full => Some(DenialReason::QueueFull),
            Decided::FailedClosed if !is_never() => Some(DenialReason::StoreFailed),
            _ if self.no_room => Some(DenialReason::StoreFull),
            _ => Some(DenialReason::LimitReached),
        }
    }

    /// Denies what would pass now, because others wait before it.
    pub(crate) fn deny_queued(&mut self) {
        let reported = self.reported.and_then(|reported| self.decisions.get_mut(reported));
        if let Some(decision) = reported.filter(|_| self.allowed) {
            decision.allowed = false;
            decision.retry_after = RetryAfter::Micros(QUEUED_RETRY_US);
            self.allowed = false;
        }
    }

    /// Works out what the decisions, one for each of `checks`, say together.
    #[inline]
    pub(crate) fn conclude(&mut self, checks: &[Check<'_>]) {
        let limits = checks.iter().zip(&self.decisions).enumerate();
        let limits = limits.filter(|(_, (check, _))| !check.observed);
        let limits =
            limits.map(|(index, (_, decision))| (index, decision, Some(decision.remaining)));
        (self.allowed, self.reported) = reported_limit(limits);
    }

    /// Returns one answer per check, in their order.
    #[inline]
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// The index of the check that is reported; `None` if all were only observed.
    pub fn reported_index(&self) -> Option<usize> {
        self.reported
    }

    /// The decision that is reported; `None` if all checks were only observed.
    pub fn decision(&self) -> Option<&Decision> {
        self.decisions.get(self.reported?)
    }

    /// When the whole request would pass if nothing else arrived.
    pub fn retry_after(&self) -> RetryAfter {
        match self.decision() {
            Some(decision) if !self.allowed => decision.retry_after,
            _ => RetryAfter::Now,
        }
    }
}

/// Whether all limits that are enforced allow a request, and the index of the one that the answer
/// reports: of a denial the denying limit with the longest wait, else the limit with the least
/// remaining, where an unknown number is less than any. Of equals it is the first.
#[inline]
pub(crate) fn reported_limit<'d>(
    limits: impl Iterator<Item = (usize, &'d Decision, Option<u64>)>,
) -> (bool, Option<usize>) {
    // A denial ranks before what is allowed.
    let (mut first, mut reported) = ((true, u64::MAX), None);
    limits.for_each(|(index, decision, remaining)| {
        let rank = match decision.allowed {
            true => (true, remaining.map_or(0, |units| units.saturating_add(1))),
            false => (false, u64::MAX - decision.retry_after.as_micros().unwrap_or(u64::MAX)),
        };
        if rank < first || reported.is_none() {
            (first, reported) = (rank, Some(index));
        }
    });
    (first.0, reported)
}
