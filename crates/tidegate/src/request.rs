//! Requests to a limiter: the checks that are decided together, and why a request is refused.

use std::fmt;

use tidegate_core::{Algorithm, Cost, Limit, PermitId};

/// All that is asked of a store at once.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What is asked; all are charged or none.
    pub checks: &'a [Check<'a>],
    /// An idempotency id: the same request with the same id is charged once.
    pub id: Option<&'a [u8]>,
    /// The permit under which admitted `concurrency` limits are held.
    pub(crate) permit: Option<PermitId>,
    /// Whether a denial may be answered from what is known of the last one.
    pub(crate) deny_cache: bool,
}

impl<'a> Request<'a> {
    /// A request without id or permit.
    pub fn new(checks: &'a [Check<'a>]) -> Self {
        Request { checks, id: None, permit: None, deny_cache: true }
    }

    /// The same request under an idempotency id.
    #[must_use]
    pub fn with_id<I: AsRef<[u8]> + ?Sized>(self, id: &'a I) -> Self {
        Request { id: Some(id.as_ref()), ..self }
    }

    /// The same request, its `concurrency` limits held under a permit.
    #[cfg(feature = "unstable")]
    #[must_use]
    pub fn with_permit(self, permit: PermitId) -> Self {
        Request { permit: Some(permit), ..self }
    }

    /// The permit under which admitted `concurrency` limits are held.
    pub fn permit(&self) -> Option<PermitId> {
        self.permit
    }

    /// Whether a denial may be answered from what is known of the last one.
    pub fn deny_cache(&self) -> bool {
        self.deny_cache
    }
}

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
