//! What a limiter is asked and what it answers.

use std::fmt;

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Cost, Decided, Decision, DenialReason, Denied, Limit, RetryAfter};

/// When to ask again after a denial because others wait: soon, they take turns.
pub(crate) const BEHIND_OTHERS_US: u64 = 1_000;

/// The effect of a denied cost above 1 on the limits of its request.
///
/// A denied cost of 1 charges nothing in either form: a client that keeps asking must not keep
/// itself out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// Nothing is charged.
    #[default]
    Refuse,
    /// The limit is charged what it has left, at most the cost, although the request is denied.
    /// For usage that is reported after it happened: otherwise a report above what is left would
    /// leave the limit as it was, and the next request would pass.
    Consume,
}

impl Overflow {
    /// Both forms.
    pub const ALL: [Overflow; 2] = [Overflow::Refuse, Overflow::Consume];

    /// The name used in config.
    pub const fn name(self) -> &'static str {
        match self {
            Overflow::Refuse => "refuse",
            Overflow::Consume => "consume",
        }
    }
}

/// One question: may `key` have `cost` of `limit`?
///
/// A request is a list of these, per user *and* per organisation *and* per
/// address, each perhaps under several limits.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// Who is counted: any bytes. Only a keyed hash of them is kept, so length and
    /// encoding do not matter; an empty key is a key like any other.
    pub key: &'a [u8],
    /// The limit it is counted under.
    pub limit: &'a Limit,
    /// Units asked for.
    pub cost: Cost,
    /// Whether it is only observed: it is decided and counted, and never denies the request.
    pub observed: bool,
    /// The effect of a denial on this limit.
    pub overflow: Overflow,
}

impl<'a> Check<'a> {
    /// An enforced check.
    #[inline]
    pub fn new<K>(key: &'a K, limit: &'a Limit, cost: impl Into<Cost>) -> Self
    where
        K: AsRef<[u8]> + ?Sized,
    {
        let overflow = Overflow::Refuse;
        Check { key: key.as_ref(), limit, cost: cost.into(), observed: false, overflow }
    }

    /// Makes the check observed: it is decided and counted, and never denies the request.
    #[must_use]
    pub fn observed(self) -> Self {
        Check { observed: true, ..self }
    }

    /// Charges what the limit has left, at most the cost, if a cost above 1 is denied; see
    /// [`Overflow::Consume`].
    ///
    /// ```
    /// use tidegate::{Check, Limit, Limiter};
    ///
    /// let limiter = Limiter::new();
    /// let limit: Limit = "1000 per 1h".parse()?;
    /// let used = |tokens| limiter.check_all(&[Check::new("alice", &limit, tokens).consuming()]);
    /// assert!(used(900)?.allowed);
    /// assert!(!used(300)?.allowed); // 100 were left, and are charged
    /// assert!(!limiter.peek("alice", &limit)?.allowed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn consuming(self) -> Self {
        Check { overflow: Overflow::Consume, ..self }
    }

    /// Whether two checks of a request count in the same state.
    #[inline]
    pub(crate) fn shares_state(&self, other: &Check<'_>) -> bool {
        self.limit.id() == other.limit.id()
            && self.observed == other.observed
            && self.key == other.key
    }

    /// The units that are charged, as far as they are left, if the request is denied and the
    /// check shares its count with no other; 0 if it is not to be charged.
    #[inline]
    pub(crate) fn overflowing(&self) -> u64 {
        if self.observed { 0 } else { overflowing(self.overflow, self.limit, self.cost) }
    }
}

/// The units that a denied cost charges as far as they are left. Permits are held, not used up.
#[inline]
pub(crate) fn overflowing(overflow: Overflow, limit: &Limit, cost: Cost) -> u64 {
    match (overflow, cost) {
        (Overflow::Consume, Cost::Ask(units @ 2..))
            if limit.algorithm() != Algorithm::Concurrency =>
        {
            units
        }
        _ => 0,
    }
}

/// Whether a denial of these checks may charge something: one consumes, and costs more than 1
/// together with those that share its count.
#[cfg(feature = "redis")]
pub(crate) fn may_consume(checks: &[Check<'_>]) -> bool {
    let units = |check: &Check<'_>| match check.cost {
        Cost::Ask(units) => units,
        Cost::Force(_) | Cost::Refund(_) => 0,
    };
    let consuming = |check: &&Check<'_>| !check.observed && check.overflow == Overflow::Consume;
    checks.iter().filter(consuming).any(|one| {
        let sharing = checks.iter().filter(|other| one.shares_state(other));
        let total = sharing.map(units).fold(0, u64::saturating_add);
        overflowing(one.overflow, one.limit, Cost::Ask(total)) > 0
    })
}

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
    /// [`Overflow::Consume`]. Every decision then describes its limit after that: `allowed` says
    /// whether the same cost would pass now.
    pub consumed: bool,
    /// Whether the store had no room for some key; see [`WhenFull`](crate::WhenFull).
    pub overflowed: bool,
    /// Whether that alone is why it was denied, or why a forced charge was not recorded:
    /// no enforced limit is used up.
    pub no_room: bool,
    pub(crate) decisions: SmallVec<[Decision; 4]>,
    speaker: Option<usize>,
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
    pub(crate) fn deny_behind_others(&mut self) {
        let reported = self.speaker.and_then(|speaker| self.decisions.get_mut(speaker));
        if let Some(decision) = reported.filter(|_| self.allowed) {
            decision.allowed = false;
            decision.retry_after = RetryAfter::Micros(BEHIND_OTHERS_US);
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
        (self.allowed, self.speaker) = reported_limit(limits);
    }

    /// Returns one answer per check, in their order.
    #[inline]
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// The index of the check that is reported; `None` if all were only observed.
    pub fn speaker(&self) -> Option<usize> {
        self.speaker
    }

    /// The decision that is reported; `None` if all checks were only observed.
    pub fn decision(&self) -> Option<&Decision> {
        self.decisions.get(self.speaker?)
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

/// A request that makes no sense. A denial is not an error, and an error says
/// nothing about the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckError {
    /// More checks in one request than [`MAX_CHECKS`].
    TooManyChecks(usize),
    /// Two checks of one request count in the same state (same key, algorithm
    /// and window) but differ in the limit's number or kind of cost.
    Conflict,
    /// Two `concurrency` checks of one request share a key, and with it their places,
    /// but differ in number or lease.
    ConcurrencyConflict,
    /// A `concurrency` limit was checked without taking a permit.
    NeedsPermit,
    /// The same idempotency id came before with another cost.
    IdReused,
}

impl CheckError {
    /// Two checks of one request count in the same state under limits that differ; this is
    /// one of them.
    pub(crate) fn conflict_of(limit: &Limit) -> Self {
        match limit.algorithm() {
            Algorithm::Concurrency => CheckError::ConcurrencyConflict,
            _ => CheckError::Conflict,
        }
    }
}

/// The most checks one request may have: more than any sensible set of policies,
/// few enough that holding their locks is short.
pub const MAX_CHECKS: usize = 256;

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckError::TooManyChecks(count) => {
                write!(f, "a request has {count} checks: use at most {MAX_CHECKS}, or several requests")
            }
            CheckError::Conflict => f.write_str(
                "two checks of a request share a key, algorithm and window but not the limit or the kind \
                 of cost: keep the stricter one, or give them different keys or windows",
            ),
            CheckError::ConcurrencyConflict => f.write_str(
                "two concurrency limits of a request share a key but not the number or the lease, and \
                 a key's places are counted once: keep the stricter one, or give them different keys",
            ),
            CheckError::NeedsPermit => {
                f.write_str("a concurrency limit is held, not checked: take a permit with `acquire`")
            }
            CheckError::IdReused => {
                f.write_str("this idempotency id was used with another cost: use a new id")
            }
        }
    }
}

impl std::error::Error for CheckError {}
