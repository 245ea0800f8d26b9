//! What a state holds, in the terms of its algorithm: for people who look at it.
//!
//! A decision says what passes and when. Why it does is in the state: two counts
//! and a weight, some cells, a number of tokens. A view shows just that, as of a
//! time, and nothing decides on it. Fractions stay ratios, because the core has no
//! floats; whoever draws them may divide.

use alloc::vec::Vec;

use crate::limit::WindowPosition;
use crate::{Limit, State, Timestamp};

/// What a state holds at a time; see [`State::view`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// What was admitted within the window, exactly.
    SlidingLog {
        /// Units in `(now - W, now]`.
        count: u64,
    },
    /// The cells, and how much of each has expired.
    SlidingWindow {
        /// Units that count against the limit.
        used: u64,
        /// The length of a cell in microseconds. In the log form a cell is one step of its grid.
        cell_us: u64,
        /// The limit whose pace lags are measured against; 0 in the log form.
        pace: u64,
        /// The cells that hold units, oldest first.
        cells: Vec<CellView>,
    },
    /// Two counts, and what they are taken to mean.
    SlidingCounter {
        /// What was admitted in the window before.
        previous: u64,
        /// What was admitted in this window.
        current: u64,
        /// How much of the window before is still within reach.
        weight: Ratio,
        /// `previous * weight + current`. Decisions round it down.
        estimate: Ratio,
    },
    /// What was admitted in this aligned window.
    FixedWindow {
        /// Units since the window began.
        count: u64,
    },
    /// What is in the bucket.
    TokenBucket {
        /// Units that could be taken. Decisions round it down.
        tokens: Ratio,
    },
    /// What is held.
    Concurrency {
        /// Units of all permits.
        held: u64,
    },
}

/// A cell of `sliding-window` that holds units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellView {
    /// When it began.
    pub start: Timestamp,
    /// Its last hit: when this is a window old, the whole cell has expired.
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
    /// What is divided.
    pub part: u64,
    /// What it is divided by.
    pub whole: u64,
}

impl View {
    /// Of a state that was brought up to `now`.
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
