//! Replies and their header fields.

use serde_json::{Value, json};

use super::{EDGE, ask, mode};
use crate::grpc::{GrpcClient, descriptor};

/// Returns the status without its reset, which must be whole seconds from 1.
#[track_caller]
fn without_reset(status: &Value) -> Value {
    let mut status = status.clone();
    let reset = status.as_object_mut().and_then(|fields| fields.remove("durationUntilReset"));
    let reset = reset.expect("a reset");
    let seconds = reset.as_str().and_then(|text| text.strip_suffix('s')).expect("seconds");
    assert!(seconds.parse::<u64>().is_ok_and(|seconds| (1..=86_400).contains(&seconds)), "{reset}");
    status
}

#[test]
fn statuses_are_those_of_the_reference() {
    let server = mode("envoy-mode-statuses", Some(EDGE)).run();
    let limit = |count: u64| json!({ "requestsPerUnit": count, "unit": "DAY" });
    let reply = ask(&server, &["plain"]);
    assert_eq!(reply.header("ratelimit-limit"), None);
    let reply = reply.json();
    let fields: Vec<&String> = reply.as_object().expect("an object").keys().collect();
    assert_eq!(fields, ["overallCode", "statuses"], "no headers and no metadata: {reply}");
    let expected = json!({ "code": "OK", "currentLimit": limit(2), "limitRemaining": 1 });
    assert_eq!(without_reset(&reply["statuses"][0]), expected);
    // Only a limit with a name has one.
    let named = ask(&server, &["named"]).json();
    assert_eq!(named["statuses"][0]["currentLimit"]["name"], "per-address");

    // A limit that is observed has a status, and is never over the limit.
    for _ in 0..2 {
        let reply = ask(&server, &["shadow"]).json();
        assert_eq!(reply["overallCode"], "OK");
        let expected = json!({ "code": "OK", "currentLimit": limit(1) });
        assert_eq!(without_reset(&reply["statuses"][0]), expected);
    }
    assert_eq!(
        ask(&server, &["free"]).json()["statuses"][0],
        json!({ "code": "OK", "limitRemaining": 4_294_967_295_u64 })
    );
    assert_eq!(ask(&server, &["other"]).json()["statuses"][0], json!({ "code": "OK" }));
}

#[test]
fn denied_status_has_nothing_left() {
    let server = mode("envoy-mode-denied", Some(EDGE)).run();
    let mut client = GrpcClient::new(&server);
    let mut five = descriptor(&[("plain", "v")]);
    five["hits_addend"] = json!(5);
    let reply = client.reply(&json!({ "domain": "edge", "descriptors": [five] }));
    assert_eq!(reply["overall_code"], "OVER_LIMIT");
    assert_eq!(reply["statuses"][0].get("limit_remaining"), None, "{reply}");
}

#[test]
fn header_fields_are_sent_if_enabled() {
    let start = mode("envoy-mode-headers", Some(EDGE));
    let start = start.env("LIMIT_RESPONSE_HEADERS_ENABLED", "true");
    let server = start.env("LIMIT_RESET_HEADER", "X-Reset").run();
    let fields = |names: &[&str]| {
        let reply = ask(&server, names).json();
        let fields = reply["responseHeadersToAdd"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let fields = fields.iter().map(|field| (text(&field["key"]), text(&field["value"])));
        fields.collect::<Vec<_>>()
    };
    let names = ["RateLimit-Limit", "RateLimit-Remaining", "X-Reset"];
    // The descriptor with the least left is described.
    for (limit, left) in [("2", "1"), ("2", "0"), ("2", "0")] {
        let fields = fields(&["wide", "plain"]);
        let found: Vec<&str> = fields.iter().map(|(name, _)| &**name).collect();
        assert_eq!(found, names);
        assert_eq!((&*fields[0].1, &*fields[1].1), (limit, left));
        assert!(fields[2].1.parse::<u64>().is_ok_and(|seconds| seconds >= 1));
    }
    assert_eq!(fields(&["other"]), []);
    assert_eq!(fields(&["free"]), []);
}

#[test]
fn global_shadow_mode_denies_nothing() {
    let server = mode("envoy-mode-shadow", Some(EDGE)).env("SHADOW_MODE", "true").run();
    for code in ["OK", "OK", "OVER_LIMIT", "OVER_LIMIT"] {
        let reply = ask(&server, &["plain"]);
        assert_eq!((reply.status, &reply.json()["overallCode"]), (200, &json!("OK")));
        assert_eq!(reply.json()["statuses"][0]["code"], code);
    }
}

#[test]
fn global_quota_mode_denies_if_all_are_used_up() {
    let server = mode("envoy-mode-quota", Some(EDGE)).env("QUOTA_MODE", "true").run();
    for _ in 0..3 {
        assert_eq!(ask(&server, &["plain", "wide"]).status, 200);
    }
    let reply = ask(&server, &["plain", "wide"]).json();
    let codes = [&reply["statuses"][0]["code"], &reply["statuses"][1]["code"]];
    assert_eq!(
        (&reply["overallCode"], codes),
        (&json!("OK"), [&json!("OVER_LIMIT"), &json!("OK")])
    );
    assert_eq!(ask(&server, &["plain"]).status, 429);
}

#[test]
fn metadata_repeats_the_request_if_enabled() {
    let start = mode("envoy-mode-metadata", Some(EDGE));
    let server = start.env("RESPONSE_DYNAMIC_METADATA", "true").run();
    let body = json!({
        "domain": "edge",
        "hitsAddend": 2,
        "descriptors": [
            { "entries": [{ "key": "plain", "value": "v" }, { "key": "b" }] },
            {
                "entries": [{ "key": "wide", "value": "1" }],
                "hitsAddend": "3",
                "limit": { "requestsPerUnit": 7, "unit": "MINUTE" },
            },
        ],
    });
    let expected = json!({
        "domain": "edge",
        "hitsAddend": 2,
        "descriptors": [
            { "entries": ["plain=v", "b="] },
            { "entries": ["wide=1"], "hitsAddend": 3, "limit": "requests_per_unit:7 unit:MINUTE" },
        ],
    });
    let reply = server.post("/json", &body.to_string()).json();
    assert_eq!(reply["dynamicMetadata"], expected);
    let body = json!({ "domain": "edge", "descriptors": [descriptor(&[("wide", "1")])] });
    let reply = GrpcClient::new(&server).reply(&body);
    let expected = json!({ "domain": "edge", "descriptors": [{ "entries": ["wide=1"] }] });
    assert_eq!(reply["dynamic_metadata"], expected);
}

#[test]
fn metadata_of_limits_is_merged_if_they_pass() {
    let config = "
domain: edge
descriptors:
  - key: first
    rate_limit: { unit: day, requests_per_unit: 1 }
    metadata: { tier: gold, nested: { a: 1, b: [true, null] } }
  - key: second
    rate_limit: { unit: day, requests_per_unit: 100 }
    metadata: { tier: silver, nested: { a: 2, c: x } }
";
    let start = mode("envoy-mode-merged", Some(config)).env("RESPONSE_DYNAMIC_METADATA", "true");
    let server = start.env("QUOTA_MODE", "true").run();
    let both = json!({ "tier": "gold", "nested": { "a": 1.0, "b": [true, null], "c": "x" } });
    let found = |names: &[&str]| ask(&server, names).json()["dynamicMetadata"]["metadata"].clone();
    assert_eq!(found(&["first", "second"]), both);
    // The first is over its limit now.
    let second = json!({ "tier": "silver", "nested": { "a": 2.0, "c": "x" } });
    assert_eq!(found(&["first", "second"]), second);
    let mut client = GrpcClient::new(&server);
    let descriptors = ["first", "second"].map(|name| descriptor(&[(name, "other")]));
    let reply = client.reply(&json!({ "domain": "edge", "descriptors": descriptors }));
    assert_eq!(reply["dynamic_metadata"]["metadata"], both);
}
