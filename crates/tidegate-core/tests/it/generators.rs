//! Random limits and traces for the properties, with sizes from one to the largest, and
//! times that are concentrated around the boundaries of the limit.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::{Algorithm, Cost, Limit, bounds};

/// The time of a step, relative to the previous step and to the window.
#[derive(Clone, Copy, Debug)]
pub enum Gap {
    Micros(u64),
    /// Thousandths of a window.
    PerMille(u64),
    /// This many microseconds around a whole window.
    Window(i64),
    Windows(u64),
    /// The clock steps back by this many thousandths of a window.
    Back(u64),
}

/// A cost relative to the limit.
#[derive(Clone, Copy, Debug)]
pub enum Size {
    Units(u64),
    /// Thousandths of the capacity.
    PerMille(u64),
    /// This much around the capacity.
    Capacity(i64),
    Huge(u64),
}

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Ask,
    Force,
    Refund,
}

pub type Step = (Gap, Kind, Size);

impl Gap {
    pub fn after(self, now: u64, limit: &Limit) -> u64 {
        let window = limit.window_us();
        match self {
            Gap::Micros(micros) => now.saturating_add(micros),
            Gap::PerMille(per_mille) => now.saturating_add(window / 1_000 * per_mille),
            Gap::Window(around) => now.saturating_add(window).saturating_add_signed(around),
            Gap::Windows(windows) => now.saturating_add(window * windows),
            Gap::Back(per_mille) => now.saturating_sub(window / 1_000 * per_mille),
        }
    }
}

impl Size {
    pub fn units(self, limit: &Limit) -> u64 {
        match self {
            Size::Units(units) | Size::Huge(units) => units,
            Size::PerMille(per_mille) => limit.capacity() / 1_000 * per_mille,
            Size::Capacity(around) => limit.capacity().saturating_add_signed(around),
        }
    }
}

pub fn cost(kind: Kind, size: Size, limit: &Limit) -> Cost {
    let units = size.units(limit);
    match kind {
        Kind::Ask => Cost::Ask(units),
        Kind::Force => Cost::Force(units),
        Kind::Refund => Cost::Refund(units),
    }
}

/// Every order of magnitude with equal probability, and the ends of the range.
fn magnitude(smallest: u64, largest: u64) -> impl Strategy<Value = u64> {
    let spread = (0_u32..64, any::<u64>())
        .prop_map(move |(shift, bits)| (smallest + (bits >> shift)).min(largest));
    prop_oneof![8 => spread, 1 => Just(smallest), 1 => Just(largest)]
}

pub fn count() -> impl Strategy<Value = u64> {
    prop_oneof![magnitude(0, bounds::MAX_COUNT), 0_u64..20]
}

pub fn window_us() -> impl Strategy<Value = u64> {
    magnitude(bounds::MIN_WINDOW_US, bounds::MAX_WINDOW_US)
}

pub fn limit_of(algorithm: Algorithm, count: u64, window_us: u64) -> Limit {
    Limit::new(count, Duration::from_micros(window_us), algorithm).expect("within bounds")
}

fn algorithm() -> impl Strategy<Value = Algorithm> {
    prop::sample::select(Algorithm::ALL.to_vec())
}

pub fn any_limit() -> impl Strategy<Value = Limit> {
    let burst = prop::option::of(magnitude(1, bounds::MAX_COUNT));
    (algorithm(), count(), window_us(), burst).prop_map(|(algorithm, count, window_us, burst)| {
        let limit = limit_of(algorithm, count, window_us);
        match (algorithm, burst) {
            (Algorithm::TokenBucket, Some(burst)) => limit.with_burst(burst).expect("above 0"),
            _ => limit,
        }
    })
}

/// A start near the epoch, near the present, or far after any real time.
pub fn start() -> impl Strategy<Value = u64> {
    prop_oneof![
        0_u64..5_000,
        Just(1_700_000_000_000_000),
        u64::MAX / 2 - 1_000..u64::MAX / 2 + 1_000,
        0..u64::MAX / 2,
    ]
}

pub fn forward() -> impl Strategy<Value = Gap> {
    prop_oneof![
        2 => (0_u64..3).prop_map(Gap::Micros),
        1 => (0_u64..1_000).prop_map(Gap::Micros),
        3 => (0_u64..1_000).prop_map(Gap::PerMille),
        1 => (-2_i64..=2).prop_map(Gap::Window),
        1 => (0_u64..4).prop_map(Gap::Windows),
    ]
}

pub fn any_direction() -> impl Strategy<Value = Gap> {
    prop_oneof![4 => forward(), 1 => (0_u64..3_000).prop_map(Gap::Back)]
}

pub fn size() -> impl Strategy<Value = Size> {
    prop_oneof![
        4 => (0_u64..4).prop_map(Size::Units),
        4 => (0_u64..1_000).prop_map(Size::PerMille),
        2 => (-2_i64..=1).prop_map(Size::Capacity),
        1 => magnitude(1, u64::MAX).prop_map(Size::Huge),
    ]
}

pub fn any_kind() -> impl Strategy<Value = Kind> {
    prop_oneof![5 => Just(Kind::Ask), 1 => Just(Kind::Force), 1 => Just(Kind::Refund)]
}

/// Traces of plain requests, with time that only moves forward.
pub fn attempts(most: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((forward(), Just(Kind::Ask), size()), 1..most)
}

/// Traces of all kinds of steps, with a clock that may step back.
pub fn anything(most: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((any_direction(), any_kind(), size()), 1..most)
}
