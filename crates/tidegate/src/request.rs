//! Requests to a limiter: the checks that are decided together, and why a request is refused.
//!
//! Checks of one request may count in the same state. A store decides each state once, so checks
//! that share one are merged before it decides: their costs are added up, and every check gets the
//! decision of its state.

use std::fmt;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Cost, Decision, Limit, PermitId};

/// A request to a store.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The checks, which are decided together: all are charged or none.
    pub checks: &'a [Check<'a>],
    /// An idempotency id: a repeated request with the same id is charged once.
    pub id: Option<&'a [u8]>,
    /// The permit under which admitted `concurrency` limits are held.
    pub(crate) permit: Option<PermitId>,
    /// Whether the store may return a cached denial.
    pub(crate) deny_cache: bool,
    /// Whether the store may answer from units that it has leased to this node.
    pub(crate) lease: bool,
}

impl<'a> Request<'a> {
    /// Creates a request without an idempotency id and without a permit.
    pub fn new(checks: &'a [Check<'a>]) -> Self {
        Request { checks, id: None, permit: None, deny_cache: true, lease: true }
    }

    /// Sets an idempotency id.
    #[must_use]
    pub fn with_id<I: AsRef<[u8]> + ?Sized>(self, id: &'a I) -> Self {
        Request { id: Some(id.as_ref()), ..self }
    }

    /// Sets the permit under which the `concurrency` limits are held.
    #[cfg(feature = "unstable")]
    #[must_use]
    pub fn with_permit(self, permit: PermitId) -> Self {
        Request { permit: Some(permit), ..self }
    }

    /// Returns the permit under which admitted `concurrency` limits are held.
    pub fn permit(&self) -> Option<PermitId> {
        self.permit
    }

    /// Returns whether the store may return a cached denial.
    pub fn deny_cache(&self) -> bool {
        self.deny_cache
    }

    /// Returns whether the store may answer from units that this node has leased.
    pub fn lease(&self) -> bool {
        self.lease
    }
}

/// The effect of a denied cost above 1 on the limits of its request.
///
/// A denied cost of 1 never charges anything, so that a client that keeps trying does not lock
/// itself out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// Nothing is charged.
    #[default]
    Refuse,
    /// The limit is charged what it has left, at most the cost, although the request is denied.
    /// This is for usage that is reported after it happened: otherwise a report above what is left
    /// would not change the limit, and the next request would pass.
    Consume,
}

impl Overflow {
    /// Both variants.
    pub const ALL: [Overflow; 2] = [Overflow::Refuse, Overflow::Consume];

    /// Returns the name used in the config.
    pub const fn name(self) -> &'static str {
        match self {
            Overflow::Refuse => "refuse",
            Overflow::Consume => "consume",
        }
    }
}

/// A check of one key against one limit.
///
/// A request is a list of checks, for example per user *and* per organisation *and* per address,
/// each possibly under several limits.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// The key that is counted. It can be any bytes, including none. The memory
    /// store keeps only a keyed hash of it. In Redis, the names of keys contain it.
    pub key: &'a [u8],
    /// The limit that the key is counted under.
    pub limit: &'a Limit,
    /// The cost.
    pub cost: Cost,
    /// Whether the check is only observed: it is decided and counted, but never denies the request.
    /// See [`Check::observed`].
    pub observed: bool,
    /// The effect of a denial on this limit.
    pub overflow: Overflow,
}

/// The checks of a request.
pub(crate) type Checks<'c> = SmallVec<[Check<'c>; 4]>;

impl<'a> Check<'a> {
    /// Creates an enforced check.
    #[inline]
    pub fn new<K>(key: &'a K, limit: &'a Limit, cost: impl Into<Cost>) -> Self
    where
        K: AsRef<[u8]> + ?Sized,
    {
        let overflow = Overflow::Refuse;
        Check { key: key.as_ref(), limit, cost: cost.into(), observed: false, overflow }
    }

    /// Makes the check observed: it is decided and counted, but never denies the request.
    ///
    /// The observed checks of one key are charged as if they were enforced: all of them, or none if
    /// one of them would have denied the request. So they show what enforcing them would do. Checks
    /// of other keys do not affect them, except that a denied request charges nothing.
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

    /// Whether two checks are observed together: one is charged only if both admit the request.
    pub(crate) fn is_observed_with(&self, other: &Check<'_>) -> bool {
        self.observed && other.observed && self.key == other.key
    }

    /// The units that are charged, up to what is left, if the request is denied and the check
    /// does not share its state with another one; 0 if it does not consume.
    #[inline]
    pub(crate) fn consumed_if_denied(&self) -> u64 {
        if self.observed { 0 } else { consumed_if_denied(self.overflow, self.limit, self.cost) }
    }
}

/// Whether an admitted request has charged the check with this index. All enforced checks are
/// charged, and an observed one if all that are observed with it admitted the request.
pub(crate) fn is_charged(checks: &[Check<'_>], decisions: &[Decision], index: usize) -> bool {
    let together =
        || checks.iter().zip(decisions).filter(|(c, _)| c.is_observed_with(&checks[index]));
    decisions[index].allowed && together().all(|(_, decision)| decision.allowed)
}

/// The checks that an admitted request has charged.
pub(crate) fn charged_checks<'c, 'a>(
    checks: &'c [Check<'a>],
    decisions: &'c [Decision],
) -> impl Iterator<Item = &'c Check<'a>> {
    let charged = checks.iter().enumerate();
    charged.filter(|(index, _)| is_charged(checks, decisions, *index)).map(|(_, check)| check)
}

/// The units that a denied cost charges, up to what is left. Permits are held, so they are
/// never consumed.
#[inline]
pub(crate) fn consumed_if_denied(overflow: Overflow, limit: &Limit, cost: Cost) -> u64 {
    match (overflow, cost) {
        (Overflow::Consume, Cost::Ask(units @ 2..))
            if limit.algorithm() != Algorithm::Concurrency =>
        {
            units
        }
        _ => 0,
    }
}

/// Whether a denial of these checks may charge something: one of them consumes, and the total cost
/// of the checks that share its state is above 1.
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
        consumed_if_denied(one.overflow, one.limit, Cost::Ask(total)) > 0
    })
}

/// An invalid request. A denial is not an error, and an error does not describe the usage of a
/// limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckError {
    /// The request has more checks than [`MAX_CHECKS`].
    TooManyChecks(usize),
    /// Two checks of the request count in the same state (same key, algorithm and window), but
    /// differ in the count of the limit or in the kind of cost.
    Conflict,
    /// Two `concurrency` checks of the request share a key, and therefore their permits, but differ
    /// in the count or the lease.
    ConcurrencyConflict,
    /// A `concurrency` limit was checked without acquiring a permit.
    NeedsPermit,
    /// The idempotency id was used before with another cost.
    IdReused,
}

impl CheckError {
    /// The error for two checks that count in the same state under different limits. `limit` is one
    /// of them.
    pub(crate) fn conflict_of(limit: &Limit) -> Self {
        match limit.algorithm() {
            Algorithm::Concurrency => CheckError::ConcurrencyConflict,
            _ => CheckError::Conflict,
        }
    }
}

/// The maximum number of checks in a request. It is more than a sensible set of policies has, and
/// small enough that their locks are held only briefly.
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
                "two concurrency limits of a request share a key but not the number or the lease, \
                 and the permits of a key are counted once: keep the stricter one, or give them \
                 different keys",
            ),
            CheckError::NeedsPermit => {
                f.write_str("a concurrency limit needs a permit: use `acquire`")
            }
            CheckError::IdReused => {
                f.write_str("this idempotency id was used with another cost: use a new id")
            }
        }
    }
}

impl std::error::Error for CheckError {}

/// Validates the checks of a request.
///
/// # Errors
/// Returns an error if there are too many checks, or if a check needs a permit and the request has
/// none.
pub(crate) fn validate(checks: &[Check<'_>], has_permit: bool) -> Result<(), CheckError> {
    if checks.len() > MAX_CHECKS {
        return Err(CheckError::TooManyChecks(checks.len()));
    }
    let is_permit = |check: &Check<'_>| check.limit.algorithm() == Algorithm::Concurrency;
    if !has_permit && checks.iter().any(is_permit) {
        return Err(CheckError::NeedsPermit);
    }
    Ok(())
}

/// The limit of a state, with the total cost and the overflow of the checks that share it.
#[derive(Debug)]
pub(crate) struct SharedCount<'s> {
    pub(crate) limit: &'s Limit,
    pub(crate) cost: &'s mut Cost,
    pub(crate) overflow: &'s mut Overflow,
}

impl SharedCount<'_> {
    /// Adds a check.
    ///
    /// # Errors
    /// Returns an error if the check contradicts those before it.
    pub(crate) fn add(self, check: &Check<'_>) -> Result<(), CheckError> {
        if *self.limit != *check.limit {
            return Err(CheckError::conflict_of(check.limit));
        }
        *self.cost = add_costs(*self.cost, check.cost)?;
        if check.overflow == Overflow::Consume {
            *self.overflow = Overflow::Consume;
        }
        Ok(())
    }
}

/// The states that a request counts in.
#[cfg(feature = "redis")]
#[derive(Clone, Debug, Default)]
pub(crate) struct MergedChecks<'a> {
    /// One check per state, with the total cost of its checks, in the order of their first checks.
    pub(crate) states: SmallVec<[Check<'a>; 4]>,
    /// The index of the state of each check.
    pub(crate) members: SmallVec<[usize; 4]>,
}

#[cfg(feature = "redis")]
impl<'a> MergedChecks<'a> {
    /// Adds the checks of a request, and merges those that share a state. `MemoryStore::merge`
    /// merges by the same rules, but compares hashes instead of keys.
    ///
    /// # Errors
    /// Returns an error if the checks are not valid, as [`validate`] does, or if they contradict
    /// each other.
    pub(crate) fn add_all(
        &mut self,
        checks: &[Check<'a>],
        has_permit: bool,
    ) -> Result<(), CheckError> {
        validate(checks, has_permit)?;
        for check in checks {
            let known = self.states.iter().position(|state| state.shares_state(check));
            self.members.push(known.unwrap_or(self.states.len()));
            let Some(index) = known else {
                self.states.push(*check);
                continue;
            };
            let Check { limit, cost, overflow, .. } = &mut self.states[index];
            SharedCount { limit, cost, overflow }.add(check)?;
        }
        Ok(())
    }

    /// For each state the number of the group that it is observed in, from 1 on; 0 if it is
    /// enforced, or if no other state is observed together with it.
    pub(crate) fn observed_groups(&self) -> SmallVec<[u8; 4]> {
        let mut groups = SmallVec::from_elem(0, self.states.len());
        // There are at most `MAX_CHECKS` states, and a group has at least two.
        let mut last = 0;
        for (index, state) in self.states.iter().enumerate().filter(|(_, state)| state.observed) {
            let is_together = |other: &usize| self.states[*other].is_observed_with(state);
            let mut others = (index + 1..self.states.len()).filter(is_together).peekable();
            if groups[index] == 0 && others.peek().is_some() {
                last += 1;
                groups[index] = last;
                others.for_each(|other| groups[other] = last);
            }
        }
        groups
    }

    /// Whether the state at `index` is only observed and has the key and limit of one that is
    /// enforced, as when a stricter limit is tried out beside the one in force. Such a state is
    /// stored separately.
    pub(crate) fn is_separately_observed(&self, index: usize) -> bool {
        let state = &self.states[index];
        let enforced = Check { observed: false, ..*state };
        state.observed && self.states.iter().any(|other| other.shares_state(&enforced))
    }
}

fn add_costs(one: Cost, other: Cost) -> Result<Cost, CheckError> {
    match (one, other) {
        (Cost::Ask(a), Cost::Ask(b)) => Ok(Cost::Ask(a.saturating_add(b))),
        (Cost::Force(a), Cost::Force(b)) => Ok(Cost::Force(a.saturating_add(b))),
        (Cost::Refund(a), Cost::Refund(b)) => Ok(Cost::Refund(a.saturating_add(b))),
        _ => Err(CheckError::Conflict),
    }
}

/// A limit that never admits anything.
pub(crate) fn deny_all() -> Option<Limit> {
    Limit::new(0, Duration::from_millis(1), Algorithm::FixedWindow).ok()
}

/// Returns checks that get the same decisions and charge nothing. A check that never passes is
/// added before them, so the request is denied and charges nothing. It has the key of the first
/// check, so that it is decided in the same shard or slot. A request that already has
/// [`MAX_CHECKS`] is peeked at instead, and decided as a cost of 1.
pub(crate) fn dry_run_checks<'c>(checks: &[Check<'c>], deny_all: &'c Option<Limit>) -> Checks<'c> {
    match (deny_all, checks) {
        (Some(deny_all), [first, ..]) if checks.len() < MAX_CHECKS => {
            let before = Check::new(first.key, deny_all, 1_u64);
            let dry_run = checks.iter().map(|check| Check { overflow: Overflow::Refuse, ..*check });
            std::iter::once(before).chain(dry_run).collect()
        }
        _ => checks.iter().map(|check| Check { cost: Cost::PEEK, ..*check }).collect(),
    }
}
