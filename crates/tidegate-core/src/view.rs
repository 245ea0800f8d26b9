//! What a state holds, in the terms of its algorithm: for people who look at it.
//!
//! A decision says what passes and when. Why it does is in the state: two counts
//! and a weight, some buckets, a number of tokens. A view shows just that, as of a
//! time, and nothing decides on it. Fractions stay ratios, because the core has no
//! floats; whoever draws them may divide.

use alloc::vec::Vec;

use crate::limit::Moment;
use crate::{Limit, State, Timestamp};

/// What a state holds at a time; see [`State::view`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// What was admitted within the window, exactly.
    SlidingLog {
        /// Units in `(now - W, now]`.
        count: u64,
    },
    /// What is held against the limit, by sub-window.
    SlidingBuckets {
        /// Units of all buckets.
        count: u64,
        /// The buckets that count, oldest first.
        buckets: Vec<Bucket>,
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

/// One sub-window of `sliding-buckets` that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// When its sub-window began.
    pub start: Timestamp,
    /// Its last hit: all of it counts until this is a window old.
    pub last_hit: Timestamp,
    /// Units admitted in it.
    pub count: u64,
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
    pub(crate) fn new(state: &State, limit: &Limit, now: &Moment) -> Self {
        let whole = limit.window_ticks();
        match state {
            State::SlidingLog(log) => View::SlidingLog { count: log.entries().total() },
            State::SlidingBuckets(held) => View::SlidingBuckets {
                count: held.entries().total(),
                buckets: buckets(held.entries().iter().map(|one| (one.at, one.cost)), limit),
            },
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

/// Entries by sub-window: the newest one may lie in two places.
fn buckets(entries: impl Iterator<Item = (Timestamp, u64)>, limit: &Limit) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    let sub_window_us = limit.sub_window_us();
    for (at, count) in entries {
        let start = Timestamp::from_micros(at.as_micros() / sub_window_us * sub_window_us);
        match buckets.last_mut() {
            Some(last) if last.start == start => {
                last.last_hit = at;
                last.count += count;
            }
            _ => buckets.push(Bucket { start, last_hit: at, count }),
        }
    }
    buckets
}
