//! The verdict on a request, which combines the decisions on its checks.

use smallvec::SmallVec;
use tidegate_core::{Decided, Decision, DenialReason, Denied, RetryAfter};

use crate::Check;
use crate::wait_queue::QUEUED_RETRY_US;

/// The verdict on a request. It is allowed if every enforced check allows it.
///
/// One limit is reported: of a denial the denying limit with the longest wait, otherwise the limit
/// with the least remaining. [`Verdict::or_deny`] turns a denial into an error, so that `?`
/// enforces the limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a denial is a value: look at `allowed`, or use `or_deny()?`"]
pub struct Verdict {
    /// Whether the request may proceed. A denial charges nothing, unless it `consumed`.
    pub allowed: bool,
    /// Whether the request was denied and charged a limit what it had left; see
    /// [`Overflow::Consume`](crate::Overflow::Consume). Every decision then describes its limit
    /// after that: its `allowed` is whether the same cost would pass now.
    pub consumed: bool,
    /// Whether the store was full for one of the keys, which [`WhenFull`](crate::WhenFull) decides
    /// on. This has nothing to do with [`Overflow`](crate::Overflow).
    pub overflowed: bool,
    /// Whether a full store is the only reason that the request was denied, or that a forced charge
    /// was not recorded: no enforced limit is exhausted.
    pub no_room: bool,
    pub(crate) decisions: SmallVec<[Decision; 4]>,
    reported: Option<usize>,
    /// Whether the shared store was not called: this is a cached denial, or it was decided from
    /// units that the store has leased to this node.
    pub remembered: bool,
    /// Whether the request was denied because the queue of waiting callers is full.
    pub queue_full: bool,
    /// How the request was decided: the least certain [`Decided`] of the enforced limits.
    pub decided: Decided,
}

impl Verdict {
    /// Combines the decisions on the checks of a request. There is one per check, in their order,
    /// as a [`Store`](crate::Store) returns them.
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
    ///     // Reached only if both limits admit the request.
    ///     Ok(())
    /// }
    /// send(&Limiter::new(), "alice")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`Denied`] if the request was not allowed.
    pub fn or_deny(&self) -> Result<(), Denied> {
        if self.allowed { Ok(()) } else { Err(self.denied()) }
    }

    /// The denial as an error.
    pub(crate) fn denied(&self) -> Denied {
        let reason = self.denial_reason().unwrap_or(DenialReason::LimitReached);
        Denied::new(self.decision().copied().unwrap_or_default(), reason)
    }

    /// Returns the reason for the denial; `None` if the request was allowed.
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

    /// Denies a request that would pass now, because others wait ahead of it.
    pub(crate) fn deny_queued(&mut self) {
        let reported = self.reported.and_then(|reported| self.decisions.get_mut(reported));
        if let Some(decision) = reported.filter(|_| self.allowed) {
            decision.allowed = false;
            decision.retry_after = RetryAfter::Micros(QUEUED_RETRY_US);
            self.allowed = false;
        }
    }

    /// Combines the decisions, one for each of `checks`.
    #[inline]
    pub(crate) fn conclude(&mut self, checks: &[Check<'_>]) {
        let limits = checks.iter().zip(&self.decisions).enumerate();
        let limits = limits.filter(|(_, (check, _))| !check.observed);
        let limits =
            limits.map(|(index, (_, decision))| (index, decision, Some(decision.remaining)));
        (self.allowed, self.reported) = reported_limit(limits);
    }

    /// Returns the decisions, one per check, in their order.
    #[inline]
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// Returns the index of the reported check; `None` if all checks are only observed.
    pub fn reported_index(&self) -> Option<usize> {
        self.reported
    }

    /// Returns the reported decision; `None` if all checks are only observed.
    pub fn decision(&self) -> Option<&Decision> {
        self.decisions.get(self.reported?)
    }

    /// Returns the time after which the whole request would pass if nothing else arrived.
    pub fn retry_after(&self) -> RetryAfter {
        match self.decision() {
            Some(decision) if !self.allowed => decision.retry_after,
            _ => RetryAfter::Now,
        }
    }
}

/// Whether all enforced limits allow a request, and the index of the reported limit: of a denial
/// the denying limit with the longest wait, otherwise the limit with the least remaining, where an
/// unknown number is the least. Of equal limits, it is the first.
#[inline]
pub(crate) fn reported_limit<'d>(
    limits: impl Iterator<Item = (usize, &'d Decision, Option<u64>)>,
) -> (bool, Option<usize>) {
    // Denials rank before allowed decisions.
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
