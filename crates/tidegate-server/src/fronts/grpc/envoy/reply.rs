//! The reply to Envoy: a `RateLimitResponse`.
//!
//! Every descriptor has a status, from the enforced limits that apply to it. If any denies, the
//! status reports the denying limit with the longest wait, else the limit with the least remaining.
//! Observed limits appear only in the metadata.

use std::time::Duration;

use http::HeaderMap;
use smallvec::SmallVec;
use tidegate::unstable::gate::{DenialReason, GateVerdict, LimitResult};
use tidegate::unstable::headers::Forms;
use tidegate::unstable::stats::Decided;
use tidegate::{Algorithm, Limit, Timestamp};

use crate::error::{ErrorKind, RequestError};

/// A `RateLimitResponse`.
#[derive(Debug)]
pub struct Reply<'a> {
    /// The overall code: `OK` or `OVER_LIMIT`.
    pub allowed: bool,
    /// One per descriptor, in their order.
    pub statuses: SmallVec<[Status<'a>; 2]>,
    /// Headers that Envoy adds to the response to its client.
    pub headers: HeaderMap,
    /// Dynamic metadata for Envoy's access log and filters.
    pub metadata: Metadata<'a>,
}

/// The status of one descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Status<'a> {
    /// Whether an enforced limit denies it.
    pub denied: bool,
    /// The reported limit, with the name of its policy; `None` if no limit applies, or if the
    /// remaining units are unknown.
    pub limit: Option<(&'a str, &'a Limit)>,
    /// The units that remain.
    pub remaining: u64,
    /// After a denial, the wait until the request would be admitted, or a whole window if it never
    /// can be; else the time until the whole limit is available again.
    pub until_reset: Duration,
}

/// The remaining units of an unlimited descriptor: the maximum of the field.
const UNLIMITED: u64 = u32::MAX as u64;

/// Metadata fields, in order.
pub type Metadata<'a> = SmallVec<[(&'static str, Value<'a>); 6]>;

/// The value of a metadata field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Null, where a number is unknown.
    Null,
    Number(u64),
    /// A word or a name.
    Text(&'a str),
    /// A list of names.
    Texts(SmallVec<[&'a str; 4]>),
}

impl<'a> Reply<'a> {
    /// Creates the reply to a request with this number of descriptors. `now` is the time of the
    /// limiter's clock, for header fields that contain a time.
    ///
    /// # Errors
    /// When the request was denied because the store failed, which is not `OVER_LIMIT`.
    pub fn new(
        answer: &GateVerdict<'a>,
        descriptors: usize,
        forms: Forms,
        now: Timestamp,
    ) -> Result<Self, RequestError> {
        if answer.denial_reason() == Some(DenialReason::StoreFailed) {
            let policy = answer.reported_limit().and_then(|line| line.policy).unwrap_or_default();
            let detail = match answer.decided {
                Decided::FailedClosed => "denies then (on_store_failure)",
                _ => "cannot admit this cost with this node's share of its limit",
            };
            let message = format!("the store failed, and policy `{policy}` {detail}");
            return Err(RequestError::new(ErrorKind::StoreFailed, message));
        }
        let reported = (0..descriptors).map(|question| answer.reported_limit_of(question));
        let mut statuses: SmallVec<[Status<'a>; 2]> =
            reported.map(|line| line.map(Status::new).unwrap_or_default()).collect();
        for question in &answer.unlimited {
            if let Some(status) = statuses.get_mut(*question).filter(|s| s.limit.is_none()) {
                status.remaining = UNLIMITED;
            }
        }
        let mut headers = HeaderMap::new();
        answer.write_fields(forms, now, &mut headers);
        Ok(Reply { allowed: answer.allowed, statuses, headers, metadata: metadata(answer) })
    }
}

impl<'a> Status<'a> {
    /// The status of a descriptor for which this limit is reported.
    fn new(line: &LimitResult<'a>) -> Self {
        let denied = !line.decision.allowed;
        let retry_us = line.decision.retry_after.as_micros();
        let reset_us = line.decision.reset_after.as_micros();
        // A cost that can never be admitted reports a whole window, so that clients do not retry
        // immediately.
        let until_us = if denied { retry_us.unwrap_or(line.limit.window_us()) } else { reset_us };
        Status {
            denied,
            limit: line.remaining().map(|_| (line.policy.unwrap_or_default(), line.limit)),
            remaining: line.decision.remaining,
            until_reset: Duration::from_micros(until_us),
        }
    }
}

/// The reported policy and limit, how the request was decided, and the policies that denied or
/// would have denied it.
fn metadata<'a>(answer: &GateVerdict<'a>) -> Metadata<'a> {
    let mut out = Metadata::new();
    if answer.results.is_empty() {
        return out;
    }
    if let Some(speaker) = answer.reported_limit() {
        if let Some(policy) = speaker.policy {
            out.push(("policy", Value::Text(policy)));
        }
        out.push(("decided", Value::Text(answer.decided.name())));
        out.push(("limit", Value::Number(speaker.decision.limit)));
        out.push(("remaining", speaker.remaining().map_or(Value::Null, Value::Number)));
        if !answer.allowed {
            let wait = answer.retry_after().as_millis();
            out.push(("retry_after_ms", wait.map_or(Value::Null, Value::Number)));
        }
    }
    let names = |enforced: bool| {
        let refusing = answer.results.iter();
        let refusing = refusing.filter(|l| l.is_enforced() == enforced && !l.decision.allowed);
        let mut names = SmallVec::<[&'a str; 4]>::new();
        for name in refusing.filter_map(|line| line.policy) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    };
    for (name, names) in [("denied_by", names(true)), ("would_deny", names(false))] {
        if !names.is_empty() {
            out.push((name, Value::Texts(names)));
        }
    }
    out
}

/// The number of Envoy's unit that equals the window of a limit; 0 if there is none.
pub fn unit(limit: &Limit) -> u64 {
    const SECOND: u64 = 1_000_000;
    const DAY: u64 = 24 * 3600 * SECOND;
    const UNITS: [(u64, u64); 7] = [
        (SECOND, 1),
        (60 * SECOND, 2),
        (3600 * SECOND, 3),
        (DAY, 4),
        (30 * DAY, 5),
        (365 * DAY, 6),
        (7 * DAY, 7),
    ];
    if limit.algorithm() == Algorithm::Concurrency {
        return 0;
    }
    let window = limit.window_us();
    UNITS.iter().find(|(length, _)| *length == window).map_or(0, |(_, unit)| *unit)
}
