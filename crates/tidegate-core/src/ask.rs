//! What a caller asks of one limit.

use crate::Timestamp;

/// Units asked for, and in which spirit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cost {
    /// Ask for this many units; they are charged if the limit admits them.
    /// Zero is a peek: it charges nothing and answers as one unit would.
    Ask(u64),
    /// Charge without asking. The count may exceed the limit; later requests wait for it.
    Force(u64),
    /// Give units back, newest first and never below zero.
    Refund(u64),
}

impl Cost {
    /// The cost of looking without touching.
    pub const PEEK: Cost = Cost::Ask(0);

    /// The reading of a signed number: negative refunds, zero peeks, positive asks.
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
    /// A number that 64 bits cannot hold is cut off: no limit admits it anyway.
    #[inline]
    fn from(units: usize) -> Self {
        Cost::Ask(u64::try_from(units).unwrap_or(u64::MAX))
    }
}

/// The type of a plain number in code, such as the `1` of `check(key, &limit, 1)`.
impl From<i32> for Cost {
    /// As [`Cost::from_signed`]: a negative number refunds.
    #[inline]
    fn from(units: i32) -> Self {
        Cost::from_signed(i64::from(units))
    }
}

/// Names one held permit of a `concurrency` limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PermitId(pub u64);

/// One question to one limit: a cost, at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What is asked for.
    pub cost: Cost,
    /// When.
    pub now: Timestamp,
    /// The permit an admitted ask of a `concurrency` limit is held under;
    /// the other algorithms ignore it.
    pub permit: PermitId,
}

impl Ask {
    /// An ask without a permit, as all but `concurrency` use it.
    #[inline]
    pub fn new(cost: impl Into<Cost>, now: Timestamp) -> Self {
        Ask { cost: cost.into(), now, permit: PermitId(0) }
    }
}
