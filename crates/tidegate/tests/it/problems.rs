//! Problem documents, as text and as read by an independent parser.

use std::time::Duration;

use http::StatusCode;
use proptest::prelude::*;
use serde_json::{Value, json};
use tidegate::RetryAfter;
use tidegate::unstable::headers::{LimitView, PROBLEM_JSON, Problem, ResponseView, write_problem};

use crate::common::limit;

fn written(problem: &Problem<'_>) -> String {
    let mut out = String::new();
    write_problem(problem, &mut out);
    out
}

fn parsed(problem: &Problem<'_>) -> Value {
    serde_json::from_str(&written(problem)).expect("JSON")
}

fn bad<'a>(field: Option<&'a str>, detail: &'a str) -> Problem<'a> {
    Problem::Undecided { status: StatusCode::BAD_REQUEST, field, detail }
}

#[test]
fn a_denial_names_every_limit_that_denied() {
    let limits = ["10 per 1s", "600 per 1m", "5 per 1m sliding-log"].map(limit);
    let view = |policy, limit, retry_after| LimitView {
        policy,
        limit,
        remaining: Some(0),
        retry_after,
        reset_after: Duration::from_secs(9),
    };
    let views = [
        view("api", &limits[0], RetryAfter::Micros(200)),
        view("api", &limits[1], RetryAfter::Now),
        view("login", &limits[2], RetryAfter::Micros(4_200_000)),
    ];
    let response_view = ResponseView { allowed: false, limits: &views, reported: Some(2) };
    assert_eq!(
        written(&Problem::QuotaExceeded(&response_view)),
        r##"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"used up: `5 per 1m sliding-log` of policy login; retry after 5 s","violated-policies":["api-1s","login"]}"##
    );
    let never = [view("login", &limits[2], RetryAfter::Never)];
    let response_view = ResponseView { allowed: false, limits: &never, reported: Some(0) };
    let document = parsed(&Problem::QuotaExceeded(&response_view));
    assert_eq!(
        document["detail"],
        "this cost can never pass `5 per 1m sliding-log` of policy login"
    );
    assert_eq!(document["violated-policies"], json!(["login"]));
    let unnamed = [view("", &limits[0], RetryAfter::Micros(1))];
    let response_view = ResponseView { allowed: false, limits: &unnamed, reported: Some(0) };
    let document = parsed(&Problem::QuotaExceeded(&response_view));
    assert_eq!(document["detail"], "used up: `10 per 1s sliding-window`; retry after 1 s");
    assert_eq!(document["violated-policies"], json!(["1s"]));
}

/// A cost of 90 with 79 left was answered "used up".
#[test]
fn a_denial_with_units_left_is_not_called_used_up() {
    let limit = limit("100 per 1m sliding-log");
    let retry_after = RetryAfter::Micros(4_200_000);
    let view = LimitView {
        policy: "tokens",
        limit: &limit,
        remaining: Some(79),
        retry_after,
        reset_after: Duration::from_secs(9),
    };
    let response_view = ResponseView { allowed: false, limits: &[view], reported: Some(0) };
    assert_eq!(
        parsed(&Problem::QuotaExceeded(&response_view))["detail"],
        "not enough left: `100 per 1m sliding-log` of policy tokens; retry after 5 s"
    );
}

#[test]
fn store_failure_is_reported_as_503() {
    let limit = limit("10 per 1s");
    let retry_after = RetryAfter::Now;
    let reset_after = Duration::ZERO;
    let view =
        LimitView { policy: "api", limit: &limit, remaining: None, retry_after, reset_after };
    let response_view = ResponseView { allowed: false, limits: &[view], reported: Some(0) };
    let problem = Problem::ReducedCapacity(&response_view);
    assert_eq!(problem.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        written(&problem),
        r##"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Request cannot be satisfied due to temporary server capacity constraints","status":503,"detail":"the request cannot be decided now; try again later","violated-policies":["api"]}"##
    );
    let nothing = ResponseView { allowed: false, limits: &[], reported: None };
    assert_eq!(parsed(&Problem::ReducedCapacity(&nothing))["violated-policies"], json!([]));
    assert_eq!(parsed(&Problem::QuotaExceeded(&nothing))["detail"], "");
}

/// Rows of `(status, title)`.
#[test]
fn bad_request_title_is_its_status() {
    let rows =
        [(400, "Bad Request"), (404, "Not Found"), (413, "Payload Too Large"), (499, "Refused")];
    for (code, title) in rows {
        let status = StatusCode::from_u16(code).expect("a status");
        let problem = Problem::Undecided { status, field: None, detail: "because" };
        assert_eq!(problem.status(), status);
        let expected =
            json!({"type": "about:blank", "title": title, "status": code, "detail": "because"});
        assert_eq!(parsed(&problem), expected);
    }
    assert_eq!(PROBLEM_JSON, "application/problem+json");
}

/// Rows of `(text, contents of the JSON string)`.
#[test]
fn texts_are_escaped() {
    let rows = [
        ("plain", "plain"),
        ("a\"b\\c", r#"a\"b\\c"#),
        // Each character alone, because a text without any of them is written at once.
        ("a\"b", r#"a\"b"#),
        ("a\\b", r"a\\b"),
        ("a\u{1f}b", r"a\u001fb"),
        ("a ~b", "a ~b"),
        ("a\u{7f}b", r"a\u007fb"),
        ("a\u{80}b", r"a\u0080b"),
        ("\n\r\t\0\u{7f}\u{1b}[2J", "\\n\\u000d\\u0009\\u0000\\u007f\\u001b[2J"),
        ("caf\u{e9} \u{1f980}", "caf\u{e9} \u{1f980}"),
        ("\u{85}\u{2028}\u{2029}", r"\u0085\u2028\u2029"),
    ];
    for (text, inside) in rows {
        let expected = format!(
            r#"{{"type":"about:blank","title":"Bad Request","status":400,"detail":"{inside}","field":"{inside}"}}"#
        );
        assert_eq!(written(&bad(Some(text), text)), expected);
    }
}

proptest! {
    #[test]
    fn any_text_round_trips_through_json(field in prop::option::of(".{0,20}"), detail in "(?s).{0,40}", policy in ".{0,20}") {
        let document = parsed(&bad(field.as_deref(), &detail));
        prop_assert_eq!(document["detail"].as_str(), Some(detail.as_str()));
        prop_assert_eq!(document["field"].as_str(), field.as_deref());
        let limit = limit("10 per 1s");
        let retry_after = RetryAfter::Never;
        let reset_after = Duration::ZERO;
        let view = LimitView { policy: &policy, limit: &limit, remaining: None, retry_after, reset_after };
        let response_view = ResponseView { allowed: false, limits: &[view], reported: Some(0) };
        let document = parsed(&Problem::QuotaExceeded(&response_view));
        prop_assert!(policy.is_empty() || document["detail"].as_str().expect("text").ends_with(&policy));
        prop_assert_eq!(document["violated-policies"].as_array().map(Vec::len), Some(1));
    }
}
