//! The reply to Envoy: a `RateLimitResponse`.
//!
//! Every descriptor has a status, from the enforced limits that apply to it. If any denies, the
//! status reports the denying limit with the longest wait, else the limit with the least remaining.
//! Observed limits appear only in the metadata.
//!
//! Replies in the form of envoyproxy/ratelimit, for `--as-envoy-ratelimit`, differ in these ways. A
//! limit that is only observed (`shadow_mode`) has a status, whose code is `OK`. A limit has a name
//! only if its config has one. A denied status has 0 hits left. The reset is that of the window, in
//! whole seconds and at least 1. Header fields and metadata are sent only if variables enable them.

use std::time::Duration;

use http::HeaderMap;
use smallvec::SmallVec;
use tidegate::unstable::config::envoy::Unit;
use tidegate::unstable::gate::{DenialReason, GateVerdict, LimitResult};
use tidegate::unstable::headers::{Forms, seconds_up};
use tidegate::unstable::policy::{self, EnvoyDetails, MetadataValue, Policies, Policy};
use tidegate::{Algorithm, Limit, Timestamp};

use super::messages::{Descriptor, RateLimitRequest};
use crate::envoy_ratelimit::CheckSettings;
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
    /// Whether the reported limit denies the descriptor. It is false for an observed limit and if
    /// no limit is reported.
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
    pub envoy_ratelimit: Option<&'a CheckSettings>,
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
        request: &'a RateLimitRequest<'_>,
        form: ReplyForm<'a>,
    ) -> Result<Self, RequestError> {
        if verdict.denial_reason() == Some(DenialReason::StoreFailed) {
            return Err(RequestError::store_failed(verdict));
        }
        if let Some(settings) = form.envoy_ratelimit {
            return Ok(envoy_ratelimit_reply(verdict, request, settings, form));
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
fn mark_unlimited(verdict: &GateVerdict<'_>, statuses: &mut [Status<'_>]) {
    for index in &verdict.unlimited {
        if let Some(status) = statuses.get_mut(*index).filter(|status| status.limit.is_none()) {
            status.remaining = UNLIMITED;
        }
    }
}

impl<'a> Status<'a> {
    /// The status of a descriptor for which this limit is reported, as if the limit were enforced.
    fn new(result: &LimitResult<'a>) -> Self {
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

/// Creates a reply in the form of envoyproxy/ratelimit.
fn envoy_ratelimit_reply<'a>(
    verdict: &GateVerdict<'a>,
    request: &'a RateLimitRequest<'_>,
    settings: &'a CheckSettings,
    form: ReplyForm<'a>,
) -> Reply<'a> {
    let indexes = 0..request.descriptors.len();
    let mut statuses: SmallVec<[Status<'a>; 2]> =
        indexes.clone().map(|index| envoy_ratelimit_status(verdict, index, form)).collect();
    let metadata = settings.dynamic_metadata.then(|| {
        let passed = indexes.filter(|index| !statuses[*index].denied);
        let passed = passed.filter_map(|index| details(reported_result(verdict, index)?, form));
        envoy_ratelimit_metadata(request, passed.filter_map(|details| details.metadata.as_deref()))
    });
    mark_unlimited(verdict, &mut statuses);
    let counts = settings.headers.as_ref().and_then(|names| {
        let is_quota = |index| settings.quota_mode || is_quota(verdict, index, form);
        let reported = reported_status(&statuses, is_quota)?;
        let (_, limit) = reported.limit?;
        let counts = [limit.count(), reported.remaining, reported.until_reset.as_secs()];
        Some(names.iter().map(String::as_str).zip(counts).collect())
    });
    Reply {
        allowed: verdict.allowed || settings.shadow_mode,
        statuses,
        headers: HeaderMap::new(),
        counts: counts.unwrap_or_default(),
        metadata: metadata.unwrap_or_default(),
    }
}

/// The result that describes a descriptor: of the enforced limit that is reported, else of an
/// observed one.
fn reported_result<'v, 'a>(
    verdict: &'v GateVerdict<'a>,
    index: usize,
) -> Option<&'v LimitResult<'a>> {
    let observed = || verdict.results.iter().find(|result| result.request_index == index);
    verdict.reported_limit_of(index).or_else(observed)
}

/// The details of a limit that comes from a config of envoyproxy/ratelimit.
fn details<'a>(result: &LimitResult<'_>, form: ReplyForm<'a>) -> Option<&'a EnvoyDetails> {
    form.policies.get(result.policy?)?.envoy_details().map(AsRef::as_ref)
}

/// The status of a descriptor. The name is that of the limit, and not of the policy, which always
/// has one.
fn envoy_ratelimit_status<'a>(
    verdict: &GateVerdict<'a>,
    index: usize,
    form: ReplyForm<'a>,
) -> Status<'a> {
    let Some(result) = reported_result(verdict, index) else { return Status::default() };
    let status = Status::new(result);
    let until_reset = until_window_end(result.limit, form.now).unwrap_or(status.until_reset);
    let details = details(result, form);
    let name = |policy| details.map_or(policy, |details| &*details.name);
    Status {
        denied: status.denied && result.is_enforced(),
        limit: status.limit.map(|(policy, limit)| (name(policy), limit)),
        remaining: if status.denied { 0 } else { status.remaining },
        until_reset: Duration::from_secs(seconds_up(until_reset).max(1)),
    }
}

/// Returns the time until the window of a limit ends, if its windows are aligned to the clock.
fn until_window_end(limit: &Limit, now: Timestamp) -> Option<Duration> {
    let window_us = limit.window_us();
    let is_aligned = limit.algorithm() == Algorithm::FixedWindow && window_us > 0;
    is_aligned.then(|| Duration::from_micros(window_us - now.as_micros() % window_us))
}

/// Whether the limit that describes a descriptor is a quota.
fn is_quota(verdict: &GateVerdict<'_>, index: usize, form: ReplyForm<'_>) -> bool {
    let policy = reported_result(verdict, index).and_then(|result| result.policy);
    policy.and_then(|name| form.policies.get(name)).is_some_and(Policy::is_quota)
}

/// The status that header fields describe: the last that a limit denies which is not a quota, else
/// the first with the least left.
fn reported_status<'s, 'a>(
    statuses: &'s [Status<'a>],
    is_quota: impl Fn(usize) -> bool,
) -> Option<&'s Status<'a>> {
    let limited = statuses.iter().enumerate().filter(|(_, status)| status.limit.is_some());
    let denied = limited.clone().rfind(|(index, status)| status.denied && !is_quota(*index));
    let reported = denied.or_else(|| limited.min_by_key(|(_, status)| status.remaining));
    reported.map(|(_, status)| status)
}

/// The request as `dynamic_metadata`, with the metadata of the limits that passed.
fn envoy_ratelimit_metadata<'a>(
    request: &'a RateLimitRequest<'_>,
    passed: impl Iterator<Item = &'a policy::Metadata>,
) -> Metadata<'a> {
    let descriptors = request.descriptors.iter().map(descriptor).collect();
    let mut out = Metadata::new();
    out.push(("domain", Value::Text(&request.domain)));
    out.push(("descriptors", Value::List(descriptors)));
    if request.hits_addend != 0 {
        out.push(("hitsAddend", Value::Number(request.hits_addend.into())));
    }
    let mut merged = Vec::new();
    passed.for_each(|fields| merge(&mut merged, fields));
    if !merged.is_empty() {
        out.push(("metadata", Value::Map(merged)));
    }
    out
}

/// Adds fields. Of two values with one name the first stays, unless both are maps, which are
/// merged.
fn merge<'a>(merged: &mut Vec<(&'a str, Value<'a>)>, fields: &'a policy::Metadata) {
    for (name, value) in fields {
        match (merged.iter_mut().find(|(known, _)| known == name), value) {
            (Some((_, Value::Map(known))), MetadataValue::Map(fields)) => merge(known, fields),
            (Some(_), _) => {}
            (None, value) => merged.push((name, to_value(value))),
        }
    }
}

fn to_value(value: &MetadataValue) -> Value<'_> {
    match value {
        MetadataValue::Null => Value::Null,
        MetadataValue::Bool(value) => Value::Bool(*value),
        MetadataValue::Number(number) => Value::Double(*number),
        MetadataValue::Text(text) => Value::Text(text),
        MetadataValue::List(values) => Value::List(values.iter().map(to_value).collect()),
        MetadataValue::Map(fields) => {
            let mut merged = Vec::new();
            merge(&mut merged, fields);
            Value::Map(merged)
        }
    }
}

fn descriptor<'a>(descriptor: &Descriptor<'_>) -> Value<'a> {
    let entries = descriptor.entries.iter();
    let entries = entries.map(|(key, value)| Value::OwnedText(format!("{key}={value}"))).collect();
    let mut out = vec![("entries", Value::List(entries))];
    if let Some(limit) = &descriptor.limit {
        let unit = Unit::from_number(limit.unit);
        let unit = unit.map(|unit| format!(" unit:{}", unit.message_name())).unwrap_or_default();
        let text = format!("requests_per_unit:{}{unit}", limit.requests_per_unit);
        out.push(("limit", Value::OwnedText(text)));
    }
    if let Some(hits) = descriptor.hits_addend {
        out.push(("hitsAddend", Value::Number(hits)));
    }
    Value::Map(out)
}
