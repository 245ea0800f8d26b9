//! A validated limit: N units per window under an algorithm.
//!
//! [`Limit::new`] and the `with_` methods validate a limit and precompute what the
//! algorithms need (ticks, caps, reciprocals). Nothing that is done with a limit
//! afterwards can fail.

mod correction;
mod error;
mod grid;
#[cfg(feature = "serde")]
mod serde;
mod text;

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

pub use error::{LimitError, LimitErrorKind};
pub(crate) use grid::{Divisor, Grid, WindowPosition};
pub use text::ParsedLimit;

use self::grid::EvenPace;
use crate::packed::PackedKind;
use crate::{Packed, Timestamp, WindowForm};

/// The ranges a limit may lie in, each with its reason.
pub mod bounds {
    /// The largest count or burst: 10^12, far above any real limit and small enough
    /// that a product with a window still fits when the window is divided into ticks.
    pub const MAX_COUNT: u64 = 1_000_000_000_000;
    /// The shortest window: 1 ms, the resolution of the coarsest clock that a store may have.
    pub const MIN_WINDOW_US: u64 = 1_000;
    /// The longest window: 366 days, so that a limit per year is possible in any year.
    pub const MAX_WINDOW_US: u64 = 366 * 24 * 3600 * 1_000_000;
    /// The default lease of a permit: long enough for a slow request, and short enough that the
    /// permits of a crashed holder are released soon.
    pub const DEFAULT_LEASE_US: u64 = 60 * 1_000_000;
    /// The largest product in a decision: 2^53, up to which doubles represent every integer. Lua
    /// has only doubles, so this bound makes Rust and Lua compute the same numbers.
    pub const MAX_PRODUCT: u64 = 1 << 53;
}

/// The method by which a limit counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// Exact. Keeps one entry per admitted request.
    SlidingLog,
    /// Never admits more than the limit, in constant memory; capacity may return slightly late.
    /// The default, also for a limit's text without an algorithm.
    #[default]
    SlidingWindow,
    /// Uses two counts and a weighted estimate. Takes the least memory, but admits close to twice
    /// the limit to a client that sends at the end of a window.
    SlidingCounter,
    /// Keeps one count per aligned window. Admits up to twice the limit across a boundary.
    FixedWindow,
    /// Admits a steady rate, and bursts on top of it.
    TokenBucket,
    /// Limits the permits that are held at the same time. Each permit has a lease.
    Concurrency,
}

impl Algorithm {
    /// All algorithms, in the order of the table in the documentation.
    pub const ALL: [Algorithm; 6] = [
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow,
        Algorithm::SlidingCounter,
        Algorithm::FixedWindow,
        Algorithm::TokenBucket,
        Algorithm::Concurrency,
    ];

    /// Returns the name used in limit texts, configuration and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::SlidingLog => "sliding-log",
            Algorithm::SlidingWindow => "sliding-window",
            Algorithm::SlidingCounter => "sliding-counter",
            Algorithm::FixedWindow => "fixed-window",
            Algorithm::TokenBucket => "token-bucket",
            Algorithm::Concurrency => "concurrency",
        }
    }

    /// Returns the algorithm with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// Returns the algorithm that takes the place of one that other limiters, or earlier versions,
    /// have under this name: `gcra` and `leaky-bucket` are `token-bucket`, `sliding-buckets` is
    /// `sliding-window`.
    pub fn equivalent(name: &str) -> Option<Self> {
        match name {
            "gcra" | "leaky-bucket" => Some(Algorithm::TokenBucket),
            "sliding-buckets" => Some(Algorithm::SlidingWindow),
            _ => None,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A number of units per window, counted by an [`Algorithm`].
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::{Algorithm, Limit};
///
/// let a: Limit = "600 per 1m token-bucket burst 50".parse()?;
/// let b = Limit::new(600, Duration::from_secs(60), Algorithm::TokenBucket)?.with_burst(50)?;
/// assert_eq!(a, b);
/// assert_eq!(a.to_string(), "600 per 1m token-bucket burst 50");
/// # Ok::<(), tidegate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    count: u64,
    /// The capacity of a `token-bucket`; `count` if no burst was set.
    burst: u64,
    grid: Grid,
    /// `2^53 / window_ticks`, the largest count that a state may hold.
    count_cap: u64,
    /// The form of a `sliding-window` of this count.
    form: WindowForm,
    /// The kind of its packed states; `None` if they are not packed.
    packed_kind: Option<PackedKind>,
    id: u64,
    /// The largest time from now to the deadline of a log or `sliding-window`, unless the clock
    /// stepped back: a window, a deadline step and, for a `sliding-window`, a cell (in the times
    /// form, two steps of its grid).
    latest_deadline_us: u64,
    /// The body below which a new deadline keeps the high bits; see
    /// [`Packed::keeps_high_deadline`].
    low_deadline_end: u64,
    algorithm: Algorithm,
}

impl Limit {
    /// Creates a limit of `count` units per `window`.
    ///
    /// # Errors
    /// Returns an error if the count or the window is out of [`bounds`], or if the window is not a
    /// whole number of microseconds.
    pub fn new(count: u64, window: Duration, algorithm: Algorithm) -> Result<Self, LimitError> {
        let window_us = match u64::try_from(window.as_micros()) {
            Ok(us) if window.subsec_nanos().is_multiple_of(1_000) => us,
            _ => return Err(LimitErrorKind::WindowOutOfRange.into()),
        };
        Self::from_parts(count, window_us, algorithm)
    }

    /// Creates a limit of `count` permits that may be held at the same time. A permit is released
    /// when its `lease` ends without being renewed.
    ///
    /// # Errors
    /// Returns an error if the count or the lease is out of [`bounds`], or if the lease is not a
    /// whole number of microseconds.
    pub fn concurrent(count: u64, lease: Duration) -> Result<Self, LimitError> {
        Self::new(count, lease, Algorithm::Concurrency)
    }

    pub(crate) fn from_parts(
        count: u64,
        window_us: u64,
        algorithm: Algorithm,
    ) -> Result<Self, LimitError> {
        if count > bounds::MAX_COUNT {
            return Err(LimitErrorKind::CountOutOfRange.into());
        }
        if !(bounds::MIN_WINDOW_US..=bounds::MAX_WINDOW_US).contains(&window_us) {
            return Err(if algorithm == Algorithm::Concurrency {
                LimitErrorKind::LeaseOutOfRange.into()
            } else {
                LimitErrorKind::WindowOutOfRange.into()
            });
        }
        Ok(Self::build(count, window_us, algorithm))
    }

    /// Creates a limit whose count and window are known to be within [`bounds`].
    const fn build(count: u64, window_us: u64, algorithm: Algorithm) -> Self {
        let cell_us = match algorithm {
            Algorithm::SlidingWindow => WindowForm::of(count).cell_us(window_us),
            _ => window_us,
        };
        let grid = Grid {
            window_us,
            cell: Divisor::new(cell_us),
            step: Divisor::new(WindowForm::step_us(cell_us)),
            pace: EvenPace::new(count, window_us),
        };
        let late_us = match (algorithm, WindowForm::of(count)) {
            (Algorithm::SlidingWindow, WindowForm::Times) => 2 * cell_us,
            (Algorithm::SlidingWindow, _) => cell_us,
            _ => 0,
        };
        let limit = Limit {
            count,
            burst: count,
            grid,
            count_cap: 0,
            form: WindowForm::of(count),
            packed_kind: PackedKind::of(count, window_us, algorithm),
            id: 0,
            latest_deadline_us: window_us + late_us + Packed::DEADLINE_STEP_US,
            low_deadline_end: Packed::low_deadline_end(window_us + late_us),
            algorithm,
        };
        limit.derived()
    }

    /// Creates a limit of `count` units per second under the default algorithm.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit};
    ///
    /// static PER_CLIENT: Limit = Limit::per_second(10);
    /// static LOGINS: Limit = Limit::per_minute(5).with_algorithm(Algorithm::SlidingLog);
    ///
    /// assert_eq!(PER_CLIENT.to_string(), "10 per 1s sliding-window");
    /// assert_eq!(LOGINS.to_string(), "5 per 1m sliding-log");
    /// ```
    pub const fn per_second(count: u32) -> Self {
        Self::per(count, 1_000_000)
    }

    /// Creates a limit of `count` units per minute under the default algorithm.
    pub const fn per_minute(count: u32) -> Self {
        Self::per(count, 60 * 1_000_000)
    }

    /// Creates a limit of `count` units per hour under the default algorithm.
    pub const fn per_hour(count: u32) -> Self {
        Self::per(count, 3_600 * 1_000_000)
    }

    /// Creates a limit of `count` units per 24 hours under the default algorithm.
    pub const fn per_day(count: u32) -> Self {
        Self::per(count, 86_400 * 1_000_000)
    }

    /// Creates a limit without validation: a count of 32 bits is within bounds, and so are the
    /// windows of the methods above.
    const fn per(count: u32, window_us: u64) -> Self {
        Self::build(count as u64, window_us, Algorithm::SlidingWindow)
    }

    /// Returns a limit with this count and window under another algorithm, without a burst. For
    /// [`Algorithm::Concurrency`] the window is the lease.
    #[must_use]
    pub const fn with_algorithm(self, algorithm: Algorithm) -> Self {
        Self::build(self.count, self.grid.window_us, algorithm)
    }

    /// Fails: `sliding-buckets` was replaced by [`Algorithm::SlidingWindow`].
    ///
    /// # Errors
    /// Always.
    #[doc(hidden)]
    #[deprecated(note = "use `Algorithm::SlidingWindow`, which has no number of buckets")]
    pub fn with_buckets(self, _buckets: u32) -> Result<Self, LimitError> {
        Err(LimitErrorKind::BucketsReplaced.into())
    }

    /// Returns this `token-bucket` limit with another burst.
    ///
    /// # Errors
    /// Returns an error if the burst is 0 or above [`bounds::MAX_COUNT`], or if the algorithm is
    /// not `token-bucket`.
    pub fn with_burst(mut self, burst: u64) -> Result<Self, LimitError> {
        if self.algorithm != Algorithm::TokenBucket {
            return Err(LimitErrorKind::BurstWithoutTokens.into());
        }
        if !(1..=bounds::MAX_COUNT).contains(&burst) {
            return Err(LimitErrorKind::BurstOutOfRange.into());
        }
        self.burst = burst;
        Ok(self.derived())
    }

    /// Returns this limit with another count, as a reload or an override changes it. Its
    /// [`id`](Limit::id) stays the same, so it counts in the existing states.
    ///
    /// # Errors
    /// Returns an error if the count is out of [`bounds`].
    pub fn with_count(self, count: u64) -> Result<Self, LimitError> {
        let mut limit = Self::from_parts(count, self.grid.window_us, self.algorithm)?;
        if self.burst != self.count {
            limit.burst = self.burst;
        }
        Ok(limit.derived())
    }

    /// Computes the ticks in which every product stays exact in a double, and the id of the state
    /// that this limit uses.
    const fn derived(self) -> Self {
        let largest = if self.count > self.burst { self.count } else { self.burst };
        let pace = EvenPace::new(largest, self.grid.window_us);
        let window = match self.algorithm {
            // Permits carry their own lease, so a limit with another lease counts in the same
            // state.
            Algorithm::Concurrency => 0,
            _ => self.grid.window_us,
        };
        Limit {
            grid: Grid { pace, ..self.grid },
            count_cap: bounds::MAX_PRODUCT / pace.window.value,
            id: scramble((self.algorithm as u64) << 56 ^ window),
            ..self
        }
    }

    /// Returns the units per window or, for `concurrency`, the units held at the same time.
    #[inline]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the window in microseconds; for `concurrency`, the lease.
    #[inline]
    pub const fn window_us(&self) -> u64 {
        self.grid.window_us
    }

    /// Returns the window; for `concurrency`, the lease.
    pub const fn window(&self) -> Duration {
        Duration::from_micros(self.grid.window_us)
    }

    /// Returns the window as a number of the largest unit that divides it, as in the limit's text.
    pub fn window_in_units(&self) -> (u64, &'static str) {
        text::in_units(self.grid.window_us)
    }

    /// Returns the algorithm.
    #[inline]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the burst of a `token-bucket`; for the other algorithms, the count.
    #[inline]
    pub const fn burst(&self) -> u64 {
        self.burst
    }

    /// Returns the largest cost that can ever pass: the burst of a `token-bucket` or the count of
    /// the others, and 0 if the count is 0.
    #[inline]
    pub const fn capacity(&self) -> u64 {
        if self.count == 0 { 0 } else { self.burst }
    }

    /// Returns the length of a tick in microseconds. Products of a count and ticks are exact. It is
    /// 1 unless count and window are both very large.
    #[inline]
    pub const fn tick_us(&self) -> u64 {
        self.grid.pace.tick_us
    }

    /// Returns the window in ticks, rounded up.
    #[inline]
    pub const fn window_ticks(&self) -> u64 {
        self.grid.pace.window.value
    }

    /// Returns the largest count that a state may hold, which is at least `count + 1`. Forced
    /// charges are cut off there, because a product with the window would not be exact.
    #[inline]
    pub const fn count_cap(&self) -> u64 {
        self.count_cap
    }

    /// Returns whether units charged at `charged_at` may be refunded at `now`.
    ///
    /// They may not if they have left the window, because the refund would then be taken from units
    /// that other requests have charged since. For a `token-bucket` the window is the time in which
    /// a full burst is paid off. A `sliding-counter` still weighs units that are more than a window
    /// old, but by then they are mixed with those of other requests.
    pub fn may_refund(&self, charged_at: Timestamp, now: Timestamp) -> bool {
        let windows = match self.algorithm {
            Algorithm::FixedWindow => {
                return self.window_position(charged_at).index >= self.window_position(now).index;
            }
            Algorithm::TokenBucket => self.burst.div_ceil(self.count.max(1)),
            _ => 1,
        };
        now < charged_at.plus_micros(self.grid.window_us.saturating_mul(windows))
    }

    /// Returns how a store packs the states of this limit; `None` if it does not. A store also has
    /// to keep logs that are too long to be packed.
    #[inline(always)]
    pub const fn packed_kind(&self) -> Option<PackedKind> {
        self.packed_kind
    }

    /// Returns a number that identifies the state in which this limit counts a key. It depends on
    /// the algorithm and the window.
    ///
    /// It does not depend on the count and the burst, so a limit whose count changes keeps what was
    /// counted.
    #[inline]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Divides a product of a count and ticks by the ticks of the window.
    #[inline(always)]
    pub(crate) fn per_window(&self, product: u64) -> u64 {
        self.grid.pace.window.quotient(product)
    }

    /// Returns the position of `now` among this limit's aligned windows or, for a `sliding-window`,
    /// among the cells of its form.
    #[inline(always)]
    pub(crate) fn window_position(&self, now: Timestamp) -> WindowPosition {
        let (index, elapsed_us) = self.grid.cell.split(now.as_micros());
        WindowPosition { at: now, index, elapsed_us }
    }

    /// Returns the position of a time below 2^62 us.
    #[inline(always)]
    pub(crate) fn cell_position(&self, now: Timestamp) -> WindowPosition {
        let (index, elapsed_us) = self.grid.cell.split_small(now.as_micros());
        WindowPosition { at: now, index, elapsed_us }
    }

    /// The form of a `sliding-window` of this count.
    #[inline]
    pub(crate) const fn form(&self) -> WindowForm {
        self.form
    }

    /// The form and the pace of a `sliding-window` of this count.
    #[inline]
    pub(crate) const fn form_and_pace(&self) -> (WindowForm, u64) {
        (self.form, if matches!(self.form, WindowForm::Times) { 0 } else { self.grid.pace.count })
    }

    /// Where the cells of a `sliding-window` of this count lie in time.
    #[inline(always)]
    pub(crate) const fn grid(&self) -> &Grid {
        &self.grid
    }

    /// The largest time from now to the deadline of a log or `sliding-window`, unless the clock
    /// stepped back.
    #[inline(always)]
    pub(crate) const fn latest_deadline_us(&self) -> u64 {
        self.latest_deadline_us
    }

    /// The body below which a packed state keeps the high bits of its deadline.
    #[inline]
    pub(crate) const fn low_deadline_end(&self) -> u64 {
        self.low_deadline_end
    }

    /// The pace of another count over this limit's window.
    #[inline(always)]
    pub(crate) fn pace(&self, count: u64) -> EvenPace {
        if count == self.grid.pace.count {
            self.grid.pace
        } else {
            EvenPace::new(count, self.grid.window_us)
        }
    }

    /// The cells of a form over the window of a `sliding-window`, to divide times by.
    #[inline(always)]
    pub(crate) fn cell(&self, form: WindowForm) -> Divisor {
        if form == self.form {
            return self.grid.cell;
        }
        Divisor::new(form.cell_us(self.grid.window_us))
    }

    /// The cells of a form, and the unit of their last hits.
    #[inline(always)]
    pub(crate) fn cell_and_step(&self, form: WindowForm) -> (Divisor, Divisor) {
        if form == self.form {
            return (self.grid.cell, self.grid.step);
        }
        let cell = self.cell(form);
        (cell, Divisor::new(WindowForm::step_us(cell.value)))
    }

    /// The index of the cell of a form at a time, and the time since that cell began.
    #[inline(always)]
    pub(crate) fn split(&self, form: WindowForm, now: &WindowPosition) -> (u64, u64) {
        if form == self.form {
            return (now.index, now.elapsed_us);
        }
        self.cell(form).split(now.at.as_micros())
    }
}

/// A fixed bijection that spreads the bits of algorithm and window over the id of a limit.
const fn scramble(mut bits: u64) -> u64 {
    bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        text.parse().map(|parsed: ParsedLimit| parsed.limit)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::write(self, f)
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Limit({self})")
    }
}
