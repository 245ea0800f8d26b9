//! The input of a decision: a cost, a time and a permit.

use crate::Timestamp;

/// A number of units, and whether they are requested, charged unconditionally or refunded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cost {
    /// Requests units, which are charged if the limit admits them.
    ///
    /// Zero is a peek: it charges nothing, and its decision is that of one unit.
    Ask(u64),
    /// Charges units although the limit may not admit them. The count may then exceed the limit,
    /// and later requests are denied until it no longer does.
    Force(u64),
    /// Refunds units, newest first and never below zero.
    Refund(u64),
}

impl Cost {
    /// The cost of a peek, which charges nothing.
    pub const PEEK: Cost = Cost::Ask(0);

    /// Converts a signed number: a negative one refunds, zero peeks, a positive one requests.
    #[inline]
    pub const fn from_signed(cost: i64) -> Self {
        if cost < 0 { Cost::Refund(cost.unsigned_abs()) } else { Cost::Ask(cost.unsigned_abs()) }
    }
}

impl From<u64> for Cost {
    #[inline]
    fn from(units: u64) -> Self {
        Cost::Ask(units)
    }
}

impl From<u32> for Cost {
    #[inline]
    fn from(units: u32) -> Self {
        Cost::Ask(u64::from(units))
    }
}

impl From<usize> for Cost {
    /// Requests units. A number that does not fit 64 bits becomes `u64::MAX`, which no limit admits
    /// either.
    #[inline]
    fn from(units: usize) -> Self {
        Cost::Ask(u64::try_from(units).unwrap_or(u64::MAX))
    }
}

/// `i32` is the type of a literal such as the `1` in `check(key, &limit, 1)`.
impl From<i32> for Cost {
    /// Converts as [`Cost::from_signed`] does: a negative number refunds.
    #[inline]
    fn from(units: i32) -> Self {
        Cost::from_signed(i64::from(units))
    }
}

/// Identifies one held permit of a `concurrency` limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PermitId(pub u64);

/// A cost at a time, to be decided by one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The units, and whether they are requested, forced or refunded.
    pub cost: Cost,
    /// The time of the decision.
    pub now: Timestamp,
    /// The permit under which a `concurrency` limit holds the units it admits. The other algorithms
    /// ignore it.
    pub permit: PermitId,
}

impl Attempt {
    /// Creates an `Attempt` without a permit, for every algorithm but `concurrency`.
    #[inline]
    pub fn new(cost: impl Into<Cost>, now: Timestamp) -> Self {
        Attempt { cost: cost.into(), now, permit: PermitId(0) }
    }
}
