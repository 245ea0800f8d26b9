//! Replies in the form of envoyproxy/ratelimit, for `--as-envoy-ratelimit`.
//!
//! They differ from tidegate's in these ways. A limit that is only observed (`shadow_mode`) has a
//! status, whose code is `OK`. A denied status has 0 hits left. The reset is that of the window, in
//! whole seconds and at least 1. Header fields and metadata are sent only if variables enable them.

use std::time::Duration;

use http::HeaderMap;
use smallvec::SmallVec;
use tidegate::unstable::gate::GateVerdict;
use tidegate::{Algorithm, Limit, Timestamp};

use super::UNITS;
use super::messages::{Descriptor, Request};
use super::reply::{Metadata, Reply, Status, Value, mark_unlimited};
use crate::envoy_ratelimit::ReplySettings;

pub(super) fn reference_reply<'a>(
    verdict: &GateVerdict<'a>,
    request: &'a Request<'_>,
    settings: &'a ReplySettings,
    now: Timestamp,
) -> Reply<'a> {
    let indexes = 0..request.descriptors.len();
    let mut statuses: SmallVec<[Status<'a>; 2]> =
        indexes.map(|index| status(verdict, index, now)).collect();
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
        metadata: if settings.dynamic_metadata { metadata(request) } else { Metadata::new() },
    }
}

/// The status of a descriptor: of the enforced limit that is reported, else of an observed one.
fn status<'a>(verdict: &GateVerdict<'a>, index: usize, now: Timestamp) -> Status<'a> {
    let observed = || verdict.results.iter().find(|result| result.request_index == index);
    let Some(result) = verdict.reported_limit_of(index).or_else(observed) else {
        return Status::default();
    };
    let status = Status::new(result);
    let until_reset = until_window_end(result.limit, now).unwrap_or(status.until_reset);
    let whole = until_reset.as_secs() + u64::from(until_reset.subsec_nanos() > 0);
    Status {
        denied: status.denied && result.is_enforced(),
        remaining: if status.denied { 0 } else { status.remaining },
        until_reset: Duration::from_secs(whole.max(1)),
        ..status
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

/// The request as `dynamic_metadata`.
fn metadata<'a>(request: &'a Request<'_>) -> Metadata<'a> {
    let descriptors = request.descriptors.iter().map(descriptor).collect();
    let mut out = Metadata::new();
    out.push(("domain", Value::Text(&request.domain)));
    out.push(("descriptors", Value::List(descriptors)));
    if request.hits_addend != 0 {
        out.push(("hitsAddend", Value::Number(request.hits_addend.into())));
    }
    out
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
