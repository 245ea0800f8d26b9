//! The hot path: asks of `sliding-counter`s under one limit, many keys in a call.
//!
//! A counter is one integer, so that Redis keeps it without an allocation and one
//! `INCRBY` both charges and reads it:
//!
//! ```text
//!   (index * R + previous) * R + current
//! ```
//!
//! `R` is a power of two that depends on the window alone; a limit whose number
//! changes still reads the same counts. Counts of `R` or more, or limits beyond it, are
//! the business of `request.lua`. See `lua/counter.lua` for what happens there.

use redis::Value;
use smallvec::{SmallVec, smallvec};
use tidegate_core::{
    Algorithm, Attempt, Cost, Decision, Limit, SlidingCounter, State, Timestamp, bounds,
};

use super::key_names::KeyNames;
use super::script::{Call, Script, unexpected_reply};
use crate::Request;
use crate::store::StoreError;
use crate::{Check, Verdict};

/// A request that the hot path can take: one counter is asked for some units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FastCheck {
    /// The name of its state.
    pub key: Vec<u8>,
    /// The limit it counts under.
    pub limit: Limit,
    /// What is asked for: from 1 to the limit.
    pub units: u64,
}

/// Equal asks of one key in a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name of the state.
    pub key: Vec<u8>,
    /// What each asks for: from 1 to the limit.
    pub units: u64,
    /// How many they are, at least 1 and at most `MAX_TIMES`.
    pub times: u32,
}

/// The most equal asks of one key in a call: what they ask for together stays small
/// beside 2^53, whatever the limit.
pub const MAX_TIMES: u32 = 1 << 16;

/// What came of one [`Entry`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CounterReply {
    /// A decision for each of its asks, in order.
    Decided(SmallVec<[Decision; 1]>),
    /// Its state is not kept in the quick form, and was not touched: ask by
    /// [`Plan::call`](super::plan::Plan::call).
    NotCompact,
}

impl FastCheck {
    /// The request as a quick one, if it is.
    pub fn of(request: &Request<'_>, key_names: &KeyNames) -> Option<Self> {
        let [check] = request.checks else { return None };
        let Cost::Ask(units) = check.cost else { return None };
        let is_fast = request.id.is_none()
            && check.overflowing() == 0
            && (1..=check.limit.count()).contains(&units)
            && is_fast(check.limit);
        is_fast.then(|| FastCheck {
            key: key_names.state(check.key, check.limit),
            limit: *check.limit,
            units,
        })
    }
}

/// Whether counts under this limit always fit the quick form.
pub fn is_fast(limit: &Limit) -> bool {
    limit.algorithm() == Algorithm::SlidingCounter
        && limit.tick_us() == 1
        && limit.count() <= radix(limit) - 2
}

/// The `R` of a window: the largest power of two for which states stay below
/// 2^53 until the year 2112, and counts times the window, too.
pub(super) fn radix(limit: &Limit) -> u64 {
    let window_us = limit.window_us();
    let squared = 1_u64 << ((2 * window_us).ilog2() / 2);
    let most = bounds::MAX_PRODUCT / window_us;
    squared.min(1 << most.ilog2())
}

/// Asks for the entries, of different keys, under one limit for which [`is_fast`]
/// holds; each is decided on its own, at the time given or the server's.
pub fn call(limit: &Limit, entries: &[Entry], now: Option<Timestamp>) -> Call {
    let mut reported = vec![limit.window_us(), limit.count(), radix(limit)];
    reported.extend(now.map(Timestamp::as_micros));
    let mut args = vec![doubles(reported)];
    if entries.iter().any(|entry| entry.units != 1 || entry.times != 1) {
        let asked = entries.iter().flat_map(|entry| [entry.units, u64::from(entry.times)]);
        args.push(doubles(asked));
    }
    let keys = entries.iter().map(|entry| entry.key.clone()).collect();
    Call { script: Script::Counter, keys, args }
}

/// Numbers as Lua has them; all are below 2^53 and so exact.
fn doubles(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    numbers.into_iter().flat_map(|number| (number as f64).to_le_bytes()).collect()
}

/// The answers to a [`call`], entry by entry.
///
/// # Errors
/// When the reply is an error, or not one of ours.
pub fn answers(
    limit: &Limit,
    entries: &[Entry],
    reply: &Value,
) -> Result<Vec<CounterReply>, StoreError> {
    let read = read(limit, reply).filter(|(_, counts)| counts.len() == entries.len());
    let (elapsed_us, counts) = read.ok_or_else(|| unexpected_reply(reply))?;
    let answer = |(entry, counts): (&Entry, i64)| match u64::try_from(counts) {
        Ok(counts) => CounterReply::Decided(decide(limit, entry, elapsed_us, counts)),
        Err(_) => CounterReply::NotCompact,
    };
    Ok(entries.iter().zip(counts).map(answer).collect())
}

/// The verdict on a request that was a [`FastCheck`] one.
pub fn verdict(checks: &[Check<'_>], decision: Decision) -> Verdict {
    Verdict::new(checks, [decision])
}

/// How far into its window the time was, and the counts of every key.
fn read(limit: &Limit, reply: &Value) -> Option<(u64, SmallVec<[i64; 1]>)> {
    let number = |value: &Value| match value {
        Value::Int(number) => Some(*number),
        _ => None,
    };
    let window_us = i64::try_from(limit.window_us()).ok()?;
    let (elapsed_us, counts) = match reply {
        Value::Int(both) => (both % window_us, smallvec![both / window_us]),
        Value::Array(numbers) => {
            let (elapsed_us, counts) = numbers.split_first()?;
            (number(elapsed_us)?, counts.iter().map(number).collect::<Option<_>>()?)
        }
        _ => return None,
    };
    let elapsed_us = u64::try_from(elapsed_us).ok().filter(|us| *us < limit.window_us())?;
    Some((elapsed_us, counts))
}

/// What the script decided, and when to come back: the core's own code on the same
/// counts. Only the place within the window matters to it, so any window will do.
fn decide(limit: &Limit, entry: &Entry, elapsed_us: u64, counts: u64) -> SmallVec<[Decision; 1]> {
    let (index, radix) = (1, radix(limit));
    let now = Timestamp::from_micros(index * limit.window_us() + elapsed_us);
    let counter = SlidingCounter { index, previous: counts / radix, current: counts % radix };
    let mut state = State::SlidingCounter(counter);
    let attempt = Attempt::new(entry.units, now);
    (0..entry.times).map(|_| state.decide(limit, &attempt)).collect()
}
