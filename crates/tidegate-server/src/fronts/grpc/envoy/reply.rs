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
use tidegate::unstable::policy::Policies;
use tidegate::{Algorithm, Limit, Timestamp};

use super::messages::Request;
use super::reference_reply::reference_reply;
use crate::envoy_ratelimit::ReplySettings;
use crate::error::RequestError;

/// A `RateLimitResponse`.
#[derive(Debug)]
pub struct Reply<'a> {
    /// The overall code: `OK` or `OVER_LIMIT`.
    pub allowed: bool,
    /// One per descriptor, in their order.
    pub statuses: SmallVec<[Status<'a>; 2]>,
    /// Headers that Envoy adds to the response to its client.
    pub headers: HeaderMap,
    /// The numeric headers of envoyproxy/ratelimit, with their configured names, which may contain
    /// capital letters.
    pub counts: SmallVec<[(&'a str, u64); 3]>,
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
pub type Metadata<'a> = SmallVec<[(&'a str, Value<'a>); 6]>;

/// The value of a metadata field.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// Null, where a number is unknown.
    Null,
    Number(u64),
    /// A word or a name.
    Text(&'a str),
    /// A list of names.
    Texts(SmallVec<[&'a str; 4]>),
    Bool(bool),
    Double(f64),
    /// A text that is not borrowed.
    OwnedText(String),
    List(Vec<Value<'a>>),
    Map(Vec<(&'a str, Value<'a>)>),
}

/// The form of replies.
#[derive(Clone, Copy, Debug)]
pub struct ReplyForm<'a> {
    /// The header fields of replies in tidegate's form.
    pub forms: Forms,
    /// The contents of replies in the form of envoyproxy/ratelimit; `None` for tidegate's form.
    pub reference: Option<&'a ReplySettings>,
    /// The policies that decided.
    pub policies: &'a Policies,
    /// The time of the limiter's clock.
    pub now: Timestamp,
}

impl<'a> Reply<'a> {
    /// Creates the reply to a request.
    ///
    /// # Errors
    /// When the request was denied because the store failed, which is not `OVER_LIMIT`.
    pub fn new(
        verdict: &GateVerdict<'a>,
        request: &'a Request<'_>,
        form: ReplyForm<'a>,
    ) -> Result<Self, RequestError> {
        if verdict.denial_reason() == Some(DenialReason::StoreFailed) {
            return Err(RequestError::store_failed(verdict));
        }
        if let Some(settings) = form.reference {
            return Ok(reference_reply(verdict, request, settings, form));
        }
        let reported = (0..request.descriptors.len()).map(|index| verdict.reported_limit_of(index));
        let mut statuses: SmallVec<[Status<'a>; 2]> =
            reported.map(|result| result.map(Status::new).unwrap_or_default()).collect();
        mark_unlimited(verdict, &mut statuses);
        let mut headers = HeaderMap::new();
        verdict.write_fields(form.forms, form.now, &mut headers);
        Ok(Reply {
            allowed: verdict.allowed,
            statuses,
            headers,
            counts: SmallVec::new(),
            metadata: metadata(verdict),
        })
    }
}

/// Sets the remaining units of descriptors that are not limited.
pub(super) fn mark_unlimited(verdict: &GateVerdict<'_>, statuses: &mut [Status<'_>]) {
    for index in &verdict.unlimited {
        if let Some(status) = statuses.get_mut(*index).filter(|status| status.limit.is_none()) {
            status.remaining = UNLIMITED;
        }
    }
}

impl<'a> Status<'a> {
    /// The status of a descriptor for which this limit is reported.
    pub(super) fn new(result: &LimitResult<'a>) -> Self {
        let denied = !result.decision.allowed;
        let retry_us = result.decision.retry_after.as_micros();
        let reset_us = result.decision.reset_after.as_micros();
        // A cost that can never be admitted reports a whole window, so that clients do not retry
        // immediately.
        let until_us = if denied { retry_us.unwrap_or(result.limit.window_us()) } else { reset_us };
        Status {
            denied,
            limit: result.remaining().map(|_| (result.policy.unwrap_or_default(), result.limit)),
            remaining: result.decision.remaining,
            until_reset: Duration::from_micros(until_us),
        }
    }
}

/// The reported policy and limit, how the request was decided, and the policies that denied or
/// would have denied it.
fn metadata<'a>(verdict: &GateVerdict<'a>) -> Metadata<'a> {
    let mut out = Metadata::new();
    if verdict.results.is_empty() {
        return out;
    }
    if let Some(reported) = verdict.reported_limit() {
        if let Some(policy) = reported.policy {
            out.push(("policy", Value::Text(policy)));
        }
        out.push(("decided", Value::Text(verdict.decided.name())));
        out.push(("limit", Value::Number(reported.decision.limit)));
        out.push(("remaining", reported.remaining().map_or(Value::Null, Value::Number)));
        if !verdict.allowed {
            let wait = verdict.retry_after().as_millis();
            out.push(("retry_after_ms", wait.map_or(Value::Null, Value::Number)));
        }
    }
    let names = |enforced: bool| {
        let denying = verdict.results.iter();
        let denying = denying.filter(|l| l.is_enforced() == enforced && !l.decision.allowed);
        let mut names = SmallVec::<[&'a str; 4]>::new();
        for name in denying.filter_map(|result| result.policy) {
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
