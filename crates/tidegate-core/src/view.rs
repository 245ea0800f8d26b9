//! The contents of a state in the terms of its algorithm, for display.
//!
//! A decision reports what passes and when. The reason is in the state: two counts
//! and a weight, some cells, a number of tokens. A view shows these numbers at a
//! time. Decisions do not use it. Fractions are ratios, because this crate does not
//! use floats.

use alloc::vec::Vec;

use crate::limit::WindowPosition;
use crate::{Limit, State, Timestamp};

/// The contents of a state at a time, as returned by [`State::view`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// The exact count of `sliding-log`.
    SlidingLog {
        /// Units in `(now - W, now]`.
        count: u64,
    },
    /// The cells of `sliding-window`, and how much of each has expired.
    SlidingWindow {
        /// Units that count against the limit.
        used: u64,
        /// The length of a cell in microseconds. In the times form a cell is one step of its grid.
        cell_us: u64,
        /// The limit against whose pace lags are measured; 0 in the times form.
        pace: u64,
        /// The cells that hold units, oldest first.
        cells: Vec<CellView>,
    },
    /// The two counts of `sliding-counter`, and the estimate made from them.
    SlidingCounter {
        /// Units admitted in the previous window.
        previous: u64,
        /// Units admitted in the current window.
        current: u64,
        /// The part of the previous window that is less than a window old.
        weight: Ratio,
        /// `previous * weight + current`. Decisions round it down.
        estimate: Ratio,
    },
    /// The count of `fixed-window`.
    FixedWindow {
        /// Units admitted since the aligned window began.
        count: u64,
    },
    /// The contents of the bucket of `token-bucket`.
    TokenBucket {
        /// Units that could be taken. Decisions round it down.
        tokens: Ratio,
    },
    /// The permits of `concurrency`.
    Concurrency {
        /// Units of all held permits.
        held: u64,
    },
}

/// A cell of `sliding-window` that holds units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellView {
    /// The time at which it began.
    pub start: Timestamp,
    /// The time of its last hit. When this is a window old, the whole cell has expired.
    pub last_hit: Timestamp,
    /// Units charged in it.
    pub units: u64,
    /// The most by which arrivals fell behind the pace.
    pub lag: u64,
    /// Units that are certainly a window old.
    pub expired: u64,
}

/// A fraction. `whole` is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio {
    /// The dividend.
    pub part: u64,
    /// The divisor.
    pub whole: u64,
}

impl View {
    /// Creates the view of a state that was advanced to `now`.
    pub(crate) fn new(state: &State, limit: &Limit, now: &WindowPosition) -> Self {
        let whole = limit.window_ticks();
        match state {
            State::SlidingLog(log) => View::SlidingLog { count: log.entries().total() },
            State::SlidingWindow(window) => {
                let (form, pace) = window.form_under(limit);
                View::SlidingWindow {
                    used: window.used(limit, now.at),
                    cell_us: form.cell_us(limit.window_us()),
                    pace,
                    cells: window.view(limit, now.at),
                }
            }
            State::SlidingCounter(counter) => {
                let left = whole - now.elapsed_us / limit.tick_us();
                // Both products are below 2^53: counts are capped to what fits.
                let part = counter.previous * left + counter.current * whole;
                View::SlidingCounter {
                    previous: counter.previous,
                    current: counter.current,
                    weight: Ratio { part: left, whole },
                    estimate: Ratio { part, whole },
                }
            }
            State::FixedWindow(window) => View::FixedWindow { count: window.count },
            State::TokenBucket(bucket) => {
                let part = (limit.capacity() * whole).saturating_sub(bucket.debt);
                View::TokenBucket { tokens: Ratio { part, whole } }
            }
            State::Concurrency(permits) => {
                View::Concurrency { held: permits.held().map(|(_, cost, _)| cost).sum() }
            }
        }
    }
}
