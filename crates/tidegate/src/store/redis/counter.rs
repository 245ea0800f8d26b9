//! The fast path: requests on `sliding-counter`s under one limit, with many keys in one call.
//!
//! A counter is one integer, so that Redis stores it without an allocation, and one `INCRBY` both
//! charges and reads it:
//!
//! ```text
//!   (index * R + previous) * R + current
//! ```
//!
//! `R` is a power of two that depends only on the window, so a limit whose number changes still
//! reads the same counts. `request.lua` handles counts of `R` or more, and limits above `R - 2`.
//! `lua/counter.lua` explains the script.

use redis::Value;
use smallvec::{SmallVec, smallvec};
use tidegate_core::{
    Algorithm, Attempt, Cost, Decision, Limit, SlidingCounter, State, Timestamp, bounds,
};

use super::key_names::KeyNames;
use super::script::{Script, ScriptCall, unexpected_reply};
use crate::Request;
use crate::store::StoreError;
use crate::{Check, Verdict};

/// A request for the fast path: some units of one counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FastCheck {
    /// The name of the key in Redis.
    pub key: Vec<u8>,
    /// The limit.
    pub limit: Limit,
    /// The requested units, from 1 to the limit.
    pub units: u64,
}

/// Equal requests on one key in a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterEntry {
    /// The name of the key in Redis.
    pub key: Vec<u8>,
    /// The units of each request, from 1 to the limit.
    pub units: u64,
    /// The number of requests, from 1 to `MAX_TIMES`.
    pub times: u32,
}

/// The maximum number of equal requests on one key in a call. It keeps their sum far below 2^53 for
/// every limit.
pub const MAX_TIMES: u32 = 1 << 16;

/// The reply to one [`CounterEntry`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CounterReply {
    /// A decision for each of the requests, in order.
    Decided(SmallVec<[Decision; 1]>),
    /// The state is not stored as an integer, and was not changed. It has to be decided by
    /// [`ScriptPlan::call`](super::plan::ScriptPlan::call).
    NotCompact,
}

impl FastCheck {
    /// Converts a request, if the fast path can decide it.
    pub fn of(request: &Request<'_>, key_names: &KeyNames) -> Option<Self> {
        let [check] = request.checks else { return None };
        let Cost::Ask(units) = check.cost else { return None };
        let is_fast = request.id.is_none()
            && check.consumed_if_denied() == 0
            && (1..=check.limit.count()).contains(&units)
            && is_fast(check.limit);
        is_fast.then(|| FastCheck {
            key: key_names.state(check.key, check.limit),
            limit: *check.limit,
            units,
        })
    }
}

/// Returns whether all counts under this limit fit the integer.
pub fn is_fast(limit: &Limit) -> bool {
    limit.algorithm() == Algorithm::SlidingCounter
        && limit.tick_us() == 1
        && limit.count() <= radix(limit) - 2
}

/// The `R` of a window: the largest power of two for which states stay below 2^53 until the year
/// 2112, and a count times the window does, too.
pub(super) fn radix(limit: &Limit) -> u64 {
    let window_us = limit.window_us();
    let squared = 1_u64 << ((2 * window_us).ilog2() / 2);
    let most = bounds::MAX_PRODUCT / window_us;
    squared.min(1 << most.ilog2())
}

/// Returns the call that decides entries under one limit, each separately, at `now` or, if it is
/// `None`, at the server's time. The keys must differ, and the limit must be [fast](is_fast).
pub fn call(limit: &Limit, entries: &[CounterEntry], now: Option<Timestamp>) -> ScriptCall {
    let mut limit_args = vec![limit.window_us(), limit.count(), radix(limit)];
    limit_args.extend(now.map(Timestamp::as_micros));
    let mut args = vec![doubles(limit_args)];
    if entries.iter().any(|entry| entry.units != 1 || entry.times != 1) {
        let requested = entries.iter().flat_map(|entry| [entry.units, u64::from(entry.times)]);
        args.push(doubles(requested));
    }
    let keys = entries.iter().map(|entry| entry.key.clone()).collect();
    ScriptCall { script: Script::Counter, keys, args }
}

/// Encodes numbers as the doubles of Lua. All are below 2^53, and so exact.
fn doubles(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    numbers.into_iter().flat_map(|number| (number as f64).to_le_bytes()).collect()
}

/// Decodes the reply to a [`call`], entry by entry.
///
/// # Errors
/// If the reply is an error or has another form.
pub fn decode_reply(
    limit: &Limit,
    entries: &[CounterEntry],
    reply: &Value,
) -> Result<Vec<CounterReply>, StoreError> {
    let read = read(limit, reply).filter(|(_, counts)| counts.len() == entries.len());
    let (elapsed_us, counts) = read.ok_or_else(|| unexpected_reply(reply))?;
    let decode_counts = |(entry, counts): (&CounterEntry, i64)| match u64::try_from(counts) {
        Ok(counts) => CounterReply::Decided(decide(limit, entry, elapsed_us, counts)),
        Err(_) => CounterReply::NotCompact,
    };
    Ok(entries.iter().zip(counts).map(decode_counts).collect())
}

/// Returns the verdict on a request that was converted to a [`FastCheck`].
pub fn verdict(checks: &[Check<'_>], decision: Decision) -> Verdict {
    Verdict::new(checks, [decision])
}

/// The time since the start of the window, and the counts of every key.
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

/// Repeats the decisions of the script with the code of the core, which also computes when to
/// retry. Only the position within the window matters, so it uses window 1.
fn decide(
    limit: &Limit,
    entry: &CounterEntry,
    elapsed_us: u64,
    counts: u64,
) -> SmallVec<[Decision; 1]> {
    let (index, radix) = (1, radix(limit));
    let now = Timestamp::from_micros(index * limit.window_us() + elapsed_us);
    let counter = SlidingCounter { index, previous: counts / radix, current: counts % radix };
    let mut state = State::SlidingCounter(counter);
    let attempt = Attempt::new(entry.units, now);
    (0..entry.times).map(|_| state.decide(limit, &attempt)).collect()
}
