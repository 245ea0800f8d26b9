//! A validated limit: N units per window under an algorithm.
//!
//! Everything that can be wrong about a limit is found in [`Limit::new`] and its
//! `with_` companions; afterwards nothing about it can fail, and what the
//! algorithms need (ticks, caps, reciprocals) is already worked out.

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

use self::grid::Pace;
use crate::packed::PackedKind;
use crate::{Form, Packed, PackedSize, Timestamp};

/// The ranges a limit may lie in, each with its reason.
pub mod bounds {
    /// Largest count or burst: 10^12, far above any real limit and small enough
    /// that a product with a window still fits when the window is cut into ticks.
    pub const MAX_COUNT: u64 = 1_000_000_000_000;
    /// Shortest window: 1 ms, the coarsest clock a store may have.
    pub const MIN_WINDOW_US: u64 = 1_000;
    /// Longest window: 366 days, so that "per year" fits in any year.
    pub const MAX_WINDOW_US: u64 = 366 * 24 * 3600 * 1_000_000;
    /// How long a permit lives when nobody says: long enough for a slow request,
    /// short enough that a crashed holder is forgotten.
    pub const DEFAULT_LEASE_US: u64 = 60 * 1_000_000;
    /// Doubles count exactly up to here. Lua has only doubles, so no product in
    /// a decision may pass it, in Rust either: both sides give the same numbers.
    pub const MAX_PRODUCT: u64 = 1 << 53;
}

/// How a limit counts. See the module of each for its idea, bound and cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// Exact: one entry per admitted request.
    SlidingLog,
    /// Never more than the limit, in constant memory; capacity may return a little late. The
    /// default, also of a limit's text that names no algorithm.
    #[default]
    SlidingWindow,
    /// Two counts and a weighted estimate: the least memory, but close to twice the limit for a
    /// client that sends at the end of a window.
    SlidingCounter,
    /// One count per aligned window; up to twice the limit across a boundary.
    FixedWindow,
    /// A steady rate with a burst on top.
    TokenBucket,
    /// At most N permits at once, each with a lease.
    Concurrency,
}

impl Algorithm {
    /// Every algorithm, in the order of the documentation's table.
    pub const ALL: [Algorithm; 6] = [
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow,
        Algorithm::SlidingCounter,
        Algorithm::FixedWindow,
        Algorithm::TokenBucket,
        Algorithm::Concurrency,
    ];

    /// The name used in text, config and metrics.
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

    /// The algorithm of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// N units per window under an [`Algorithm`].
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
    /// What a bucket can hold; equals `count` unless a burst was named.
    burst: u64,
    grid: Grid,
    /// `2^53 / window_ticks`, the most a count may be.
    count_cap: u64,
    /// How a `sliding-window` of this count counts.
    form: Form,
    /// The kind of its packed states.
    packed_kind: PackedKind,
    id: u64,
    /// The size in which a store keeps its states.
    packed_size: Option<PackedSize>,
    algorithm: Algorithm,
}

impl Limit {
    /// `count` units per `window`.
    ///
    /// # Errors
    /// When the count or the window is out of [`bounds`], or the window is not
    /// a whole number of microseconds.
    pub fn new(count: u64, window: Duration, algorithm: Algorithm) -> Result<Self, LimitError> {
        let window_us = match u64::try_from(window.as_micros()) {
            Ok(us) if window.subsec_nanos().is_multiple_of(1_000) => us,
            _ => return Err(LimitErrorKind::WindowOutOfRange.into()),
        };
        Self::from_parts(count, window_us, algorithm)
    }

    /// `count` permits at once, each forgotten when its `lease` ends without renewal.
    ///
    /// # Errors
    /// As [`Limit::new`], the lease standing for the window.
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

    /// A limit whose count and window are within [`bounds`].
    const fn build(count: u64, window_us: u64, algorithm: Algorithm) -> Self {
        let cell_us = match algorithm {
            Algorithm::SlidingWindow => Form::of(count).cell_us(window_us),
            _ => window_us,
        };
        let grid = Grid {
            window_us,
            cell: Divisor::new(cell_us),
            step: Divisor::new(Form::step_us(cell_us)),
            pace: Pace::new(count, window_us),
        };
        let limit = Limit {
            count,
            burst: count,
            grid,
            count_cap: 0,
            form: Form::of(count),
            packed_kind: PackedKind::of(count, algorithm),
            id: 0,
            packed_size: PackedSize::of(count, window_us, algorithm),
            algorithm,
        };
        limit.derived()
    }

    /// `count` units per second, under the default algorithm.
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

    /// `count` units per minute, under the default algorithm.
    pub const fn per_minute(count: u32) -> Self {
        Self::per(count, 60 * 1_000_000)
    }

    /// `count` units per hour, under the default algorithm.
    pub const fn per_hour(count: u32) -> Self {
        Self::per(count, 3_600 * 1_000_000)
    }

    /// `count` units per day of 24 hours, under the default algorithm.
    pub const fn per_day(count: u32) -> Self {
        Self::per(count, 86_400 * 1_000_000)
    }

    /// A count of 32 bits is within bounds, and so are the windows above.
    const fn per(count: u32, window_us: u64) -> Self {
        Self::build(count as u64, window_us, Algorithm::SlidingWindow)
    }

    /// Returns a limit of this count and window under another algorithm, without a burst. For
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

    /// The same limit with this burst (`token-bucket` only).
    ///
    /// # Errors
    /// When the burst is 0 or above [`bounds::MAX_COUNT`], or the algorithm has no burst.
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

    /// The same window and parameters with another count, as a reload or an
    /// override makes it; it finds the state the old count left behind.
    ///
    /// # Errors
    /// When the count is out of [`bounds`].
    pub fn with_count(self, count: u64) -> Result<Self, LimitError> {
        let mut limit = Self::from_parts(count, self.grid.window_us, self.algorithm)?;
        if self.burst != self.count {
            limit.burst = self.burst;
        }
        Ok(limit.derived())
    }

    /// Works out the ticks in which every product stays exact in a double, and names the state this
    /// limit uses.
    const fn derived(self) -> Self {
        let largest = if self.count > self.burst { self.count } else { self.burst };
        let pace = Pace::new(largest, self.grid.window_us);
        let shape = match self.algorithm {
            // Permits carry their own lease, so a changed lease finds them again.
            Algorithm::Concurrency => 0,
            _ => self.grid.window_us,
        };
        Limit {
            grid: Grid { pace, ..self.grid },
            count_cap: bounds::MAX_PRODUCT / pace.window.value,
            id: scramble((self.algorithm as u64) << 56 ^ shape),
            ..self
        }
    }

    /// Units per window, or permits at once.
    #[inline]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The window in microseconds; for `concurrency`, the lease.
    #[inline]
    pub const fn window_us(&self) -> u64 {
        self.grid.window_us
    }

    /// The window; for `concurrency`, the lease.
    pub const fn window(&self) -> Duration {
        Duration::from_micros(self.grid.window_us)
    }

    /// The window as a number of the largest unit that divides it, as in the limit's text.
    pub fn window_in_units(&self) -> (u64, &'static str) {
        text::in_units(self.grid.window_us)
    }

    /// How it counts.
    #[inline]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The burst of a `token-bucket`; the count for the others.
    #[inline]
    pub const fn burst(&self) -> u64 {
        self.burst
    }

    /// The largest cost that can ever pass: the burst of a `token-bucket`, the
    /// count of the others, and nothing where the count is 0.
    #[inline]
    pub const fn capacity(&self) -> u64 {
        if self.count == 0 { 0 } else { self.burst }
    }

    /// The grid on which products are exact, in microseconds: 1 unless count and
    /// window are both very large.
    #[inline]
    pub const fn tick_us(&self) -> u64 {
        self.grid.pace.tick_us
    }

    /// The window in ticks, rounded up.
    #[inline]
    pub const fn window_ticks(&self) -> u64 {
        self.grid.pace.window.value
    }

    /// The most a count can be: forced charges beyond it are cut off, because a
    /// product with the window would leave the exact range. At least `count + 1`.
    #[inline]
    pub const fn count_cap(&self) -> u64 {
        self.count_cap
    }

    /// Whether units charged at `charged_at` may be given back at `now`: not if they have left the
    /// window, because the refund would be taken from units that others have charged since. For a
    /// `token-bucket` that is the time in which a full bucket is paid off. A `sliding-counter` still
    /// weighs units that are more than a window old, but by then they mix with those of others.
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

    /// The size in which a store keeps the states of this limit; `None` if they can grow.
    #[inline(always)]
    pub const fn packed_size(&self) -> Option<PackedSize> {
        self.packed_size
    }

    /// Names the state this limit counts in: algorithm and window.
    ///
    /// The count and burst are not part of it, so that a limit whose number
    /// changes keeps what was counted.
    #[inline]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// A product of a count and ticks, divided by the ticks of the window.
    #[inline(always)]
    pub(crate) fn per_window(&self, product: u64) -> u64 {
        self.grid.pace.window.quotient(product)
    }

    /// `now` as this limit's aligned windows, or the cells of its form, see it.
    #[inline(always)]
    pub(crate) fn window_position(&self, now: Timestamp) -> WindowPosition {
        let (index, elapsed_us) = self.grid.cell.split(now.as_micros());
        WindowPosition { at: now, index, elapsed_us }
    }

    /// How a `sliding-window` of this count counts.
    #[inline]
    pub(crate) const fn form(&self) -> Form {
        self.form
    }

    /// The kind of its packed states.
    #[inline(always)]
    pub(crate) const fn packed_kind(&self) -> PackedKind {
        self.packed_kind
    }

    /// The form and the pace of a `sliding-window` of this count.
    #[inline]
    pub(crate) const fn form_and_pace(&self) -> (Form, u64) {
        (self.form, if matches!(self.form, Form::Log) { 0 } else { self.grid.pace.count })
    }

    /// Where the cells of a `sliding-window` of this count lie in time.
    #[inline(always)]
    pub(crate) const fn grid(&self) -> &Grid {
        &self.grid
    }

    /// How far ahead of now the deadline of a `sliding-window` can be, unless the clock stepped
    /// back: a window, a cell (in the log form, two steps) and a deadline unit.
    #[inline(always)]
    pub(crate) const fn latest_deadline_us(&self) -> u64 {
        let cells = if matches!(self.form, Form::Log) { 2 } else { 1 };
        self.grid.window_us + cells * self.grid.cell.value + Packed::UNIT_US
    }

    /// The pace of another count over this limit's window.
    #[inline(always)]
    pub(crate) fn pace(&self, count: u64) -> Pace {
        if count == self.grid.pace.count {
            self.grid.pace
        } else {
            Pace::new(count, self.grid.window_us)
        }
    }

    /// The cells of a form over the window of a `sliding-window`, to divide times by.
    #[inline(always)]
    pub(crate) fn cell(&self, form: Form) -> Divisor {
        if form == self.form {
            return self.grid.cell;
        }
        Divisor::new(form.cell_us(self.grid.window_us))
    }

    /// The cells of a form, and the unit of their last hits.
    #[inline(always)]
    pub(crate) fn cell_and_step(&self, form: Form) -> (Divisor, Divisor) {
        if form == self.form {
            return (self.grid.cell, self.grid.step);
        }
        let cell = self.cell(form);
        (cell, Divisor::new(Form::step_us(cell.value)))
    }

    /// The cell of a form in which a moment lies, and how far into it.
    #[inline(always)]
    pub(crate) fn split(&self, form: Form, now: &WindowPosition) -> (u64, u64) {
        if form == self.form {
            return (now.index, now.elapsed_us);
        }
        self.cell(form).split(now.at.as_micros())
    }
}

/// A fixed bijection that spreads the bits of a limit's shape over its id.
const fn scramble(mut bits: u64) -> u64 {
    bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        text::parse(text)
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
