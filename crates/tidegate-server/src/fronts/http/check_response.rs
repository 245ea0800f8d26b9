//! The JSON response to a check, which that of a permit extends.
//!
//! It is written by hand into one buffer: names of policies and algorithms need no escaping, and
//! all other values are numbers.

use http::StatusCode;
use tidegate::RetryAfter;
use tidegate::unstable::gate::{GateVerdict, LimitResult};
use tidegate::unstable::stats::Decided;

use super::response::{HttpResponse, RequestId, json};
use crate::fronts::REQUEST_ID;

/// The initial capacity of a response with one limit.
pub const VERDICT_BYTES: usize = 320;
/// The additional capacity for each further limit.
const RESULT_BYTES: usize = 176;

/// Creates the response to a check.
pub fn respond(verdict: &GateVerdict<'_>, id: &RequestId<'_>) -> HttpResponse {
    let more = verdict.results.len().saturating_sub(1) * RESULT_BYTES;
    let mut out = Vec::with_capacity(VERDICT_BYTES + more);
    write_verdict(verdict, &mut out);
    let mut response = json(StatusCode::OK, out);
    if !verdict.allowed {
        response.headers_mut().insert(REQUEST_ID, id.header());
    }
    response
}

/// Appends a verdict without its closing brace, so that more fields can follow.
pub fn write_open_verdict(verdict: &GateVerdict<'_>, out: &mut Vec<u8>) {
    let reported = verdict.reported_limit();
    put(out, if verdict.allowed { "{\"allowed\":true" } else { "{\"allowed\":false" });
    put(out, ",\"policy\":");
    put_name(out, reported.and_then(|result| result.policy));
    put(out, ",\"limit\":");
    put_option(out, reported.map(|result| result.decision.limit));
    put(out, ",\"remaining\":");
    put_option(out, reported.and_then(LimitResult::remaining));
    put(out, ",\"retry_after_ms\":");
    put_retry(out, verdict.retry_after());
    put(out, ",\"reset_after_ms\":");
    put_option(
        out,
        reported.and_then(|result| result.reset_after()).map(|reset| reset.as_millis()),
    );
    put(out, ",\"decided\":\"");
    put(out, verdict.decided.name());
    put(out, "\",\"limits\":[");
    for (index, result) in verdict.results.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_result(result, out);
    }
    out.push(b']');
    if verdict.no_room {
        put(out, ",\"no_room\":true");
    }
}

/// Appends a verdict.
pub fn write_verdict(verdict: &GateVerdict<'_>, out: &mut Vec<u8>) {
    write_open_verdict(verdict, out);
    out.push(b'}');
}

fn write_result(result: &LimitResult<'_>, out: &mut Vec<u8>) {
    let decision = &result.decision;
    put(out, "{\"policy\":");
    put_name(out, result.policy);
    put(out, ",\"limit\":");
    put_number(out, decision.limit);
    put(out, ",\"window_ms\":");
    put_number(out, result.limit.window_us().div_ceil(1_000));
    put(out, ",\"algorithm\":\"");
    put(out, result.limit.algorithm().name());
    put(out, "\",\"remaining\":");
    put_option(out, result.remaining());
    put(out, if decision.allowed { ",\"allowed\":true" } else { ",\"allowed\":false" });
    put(out, ",\"retry_after_ms\":");
    put_retry(out, decision.retry_after);
    if !result.is_enforced() {
        put(out, ",\"mode\":\"");
        put(out, result.mode.name());
        out.push(b'"');
    }
    if result.decided != Decided::Exact {
        put(out, ",\"decided\":\"");
        put(out, result.decided.name());
        out.push(b'"');
    }
    out.push(b'}');
}

fn put(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

fn put_number(out: &mut Vec<u8>, number: u64) {
    put(out, itoa::Buffer::new().format(number));
}

fn put_option(out: &mut Vec<u8>, number: Option<u64>) {
    match number {
        Some(number) => put_number(out, number),
        None => put(out, "null"),
    }
}

fn put_retry(out: &mut Vec<u8>, retry_after: RetryAfter) {
    put_option(out, retry_after.as_millis());
}

/// Appends the name of a policy, which is letters, digits, dots, underscores and dashes.
fn put_name(out: &mut Vec<u8>, name: Option<&str>) {
    match name {
        Some(name) => {
            out.push(b'"');
            put(out, name);
            out.push(b'"');
        }
        None => put(out, "null"),
    }
}
