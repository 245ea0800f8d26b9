//! Replies in the form of envoyproxy/ratelimit, for `--as-envoy-ratelimit`.
//!
//! They differ from tidegate's in these ways. A limit that is only observed (`shadow_mode`) has a
//! status, whose code is `OK`. A limit has a name only if its config has one. A denied status has 0
//! hits left. The reset is that of the window, in whole seconds and at least 1. Header fields and
//! metadata are sent only if variables enable them.

use std::time::Duration;

use http::HeaderMap;
use smallvec::SmallVec;
use tidegate::unstable::gate::{GateVerdict, LimitResult};
use tidegate::unstable::policy::{self, EnvoyDetails, MetadataValue};
use tidegate::{Algorithm, Limit, Timestamp};

use super::UNITS;
use super::messages::{Descriptor, Request};
use super::reply::{Metadata, Reply, ReplyForm, Status, Value, mark_unlimited};
use crate::envoy_ratelimit::ReplySettings;

pub(super) fn reference_reply<'a>(
    verdict: &GateVerdict<'a>,
    request: &'a Request<'_>,
    settings: &'a ReplySettings,
    form: ReplyForm<'a>,
) -> Reply<'a> {
    let indexes = 0..request.descriptors.len();
    let mut statuses: SmallVec<[Status<'a>; 2]> =
        indexes.clone().map(|index| status(verdict, index, form)).collect();
    let metadata = settings.dynamic_metadata.then(|| {
        let passed = indexes.filter(|index| !statuses[*index].denied);
        let passed = passed.filter_map(|index| details(reported_result(verdict, index)?, form));
        metadata(request, passed.filter_map(|details| details.metadata.as_deref()))
    });
    mark_unlimited(verdict, &mut statuses);
    let counts = settings.headers.as_ref().and_then(|names| {
        let reported = reported(verdict.allowed, &statuses)?;
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
fn status<'a>(verdict: &GateVerdict<'a>, index: usize, form: ReplyForm<'a>) -> Status<'a> {
    let Some(result) = reported_result(verdict, index) else { return Status::default() };
    let status = Status::new(result);
    let until_reset = until_window_end(result.limit, form.now).unwrap_or(status.until_reset);
    let whole = until_reset.as_secs() + u64::from(until_reset.subsec_nanos() > 0);
    let details = details(result, form);
    let name = |policy| details.map_or(policy, |details| &*details.name);
    Status {
        denied: status.denied && result.is_enforced(),
        limit: status.limit.map(|(policy, limit)| (name(policy), limit)),
        remaining: if status.denied { 0 } else { status.remaining },
        until_reset: Duration::from_secs(whole.max(1)),
    }
}

/// Returns the time until the window of a limit ends, if its windows are aligned to the clock.
fn until_window_end(limit: &Limit, now: Timestamp) -> Option<Duration> {
    let window_us = limit.window_us();
    let is_aligned = limit.algorithm() == Algorithm::FixedWindow && window_us > 0;
    is_aligned.then(|| Duration::from_micros(window_us - now.as_micros() % window_us))
}

/// The status that header fields describe: of a denial the last denied one, else the first with
/// the least left.
fn reported<'s, 'a>(allowed: bool, statuses: &'s [Status<'a>]) -> Option<&'s Status<'a>> {
    let limited = || statuses.iter().filter(|status| status.limit.is_some());
    match allowed {
        false => limited().rfind(|status| status.denied),
        true => limited().min_by_key(|status| status.remaining),
    }
}

/// The request as `dynamic_metadata`, with the metadata of the limits that passed.
fn metadata<'a>(
    request: &'a Request<'_>,
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

/// Adds fields. Of two values with one name the first stays, unless both are maps, which are merged.
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
        let unit = usize::try_from(limit.unit).ok().and_then(|unit| UNITS.get(unit));
        let unit = unit.map(|unit| format!(" unit:{unit}")).unwrap_or_default();
        let text = format!("requests_per_unit:{}{unit}", limit.requests_per_unit);
        out.push(("limit", Value::OwnedText(text)));
    }
    if let Some(hits) = descriptor.hits_addend {
        out.push(("hitsAddend", Value::Number(hits)));
    }
    Value::Map(out)
}
