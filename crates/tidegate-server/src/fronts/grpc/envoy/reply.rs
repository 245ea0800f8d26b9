//! What Envoy is told: a `RateLimitResponse`.
//!
//! Every descriptor gets a status of its own, from the limits that hold for it and have a say:
//! when one denies, the denying one with the longest wait, else the one with the least
//! remaining. What only watches shows in the metadata alone.

use std::time::Duration;

use http::HeaderMap;
use smallvec::SmallVec;
use tidegate::unstable::gate::{DenialReason, GateVerdict, LimitResult};
use tidegate::unstable::headers::Forms;
use tidegate::unstable::stats::Decided;
use tidegate::{Algorithm, Limit, Timestamp};

use crate::error::{ErrorKind, RequestError};

/// The whole answer.
#[derive(Debug)]
pub struct Reply<'a> {
    /// Whether the request may go ahead: `OK` or `OVER_LIMIT`.
    pub allowed: bool,
    /// One per descriptor, in their order.
    pub statuses: SmallVec<[Status<'a>; 2]>,
    /// What is added to the response of Envoy's client.
    pub headers: HeaderMap,
    /// What Envoy's own log and filters can use.
    pub metadata: Metadata<'a>,
}

/// One descriptor's answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Status<'a> {
    /// Whether a limit that has a say denies it.
    pub denied: bool,
    /// The limit it speaks for, with the name of its policy; `None` if none holds, or if
    /// nobody knows what is left of it.
    pub limit: Option<(&'a str, &'a Limit)>,
    /// What is left of it.
    pub remaining: u64,
    /// On a denial when it would pass, or a whole window if it never can; else when all is
    /// available again.
    pub until_reset: Duration,
}

/// What is left of what is unlimited: as much as can be told.
const UNLIMITED: u64 = u32::MAX as u64;

/// Named values.
pub type Metadata<'a> = SmallVec<[(&'static str, Value<'a>); 6]>;

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Nothing, where a number could be.
    Null,
    /// A number.
    Number(u64),
    /// A word or a name.
    Text(&'a str),
    /// Names.
    Texts(SmallVec<[&'a str; 4]>),
}

impl<'a> Reply<'a> {
    /// The reply to a request with this number of descriptors. `now` is the time on the limiter's
    /// clock, for header fields that hold one.
    ///
    /// # Errors
    /// When it was denied because the store failed: that is no `OVER_LIMIT`.
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
        // A cost that can never pass reports a whole window, so that clients do not retry at once.
        let until_us = if denied { retry_us.unwrap_or(line.limit.window_us()) } else { reset_us };
        Status {
            denied,
            limit: line.remaining().map(|_| (line.policy.unwrap_or_default(), line.limit)),
            remaining: line.decision.remaining,
            until_reset: Duration::from_micros(until_us),
        }
    }
}

/// Which policy the answer speaks for, how it was decided, who denied and who would have.
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

/// The number of a limit's window among Envoy's units; 0 for one that is none of them.
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
