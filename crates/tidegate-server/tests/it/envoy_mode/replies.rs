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

/// The last denial by a limit that is not a quota is described, else the first descriptor with the
/// least left.
#[test]
fn header_fields_prefer_denials_that_are_not_quotas() {
    let config = "
domain: edge
descriptors:
  - { key: plain, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: quota, quota_mode: true, rate_limit: { unit: day, requests_per_unit: 2 } }
  - { key: other, quota_mode: true, rate_limit: { unit: day, requests_per_unit: 3 } }
";
    let start = mode("envoy-mode-quota-headers", Some(config));
    let server = start.env("LIMIT_RESPONSE_HEADERS_ENABLED", "true").run();
    let limit = |names: &[&str]| {
        let reply = ask(&server, names);
        let value = reply.json()["responseHeadersToAdd"][0]["value"].clone();
        (reply.status, value)
    };
    for (name, times) in [("plain", 1), ("quota", 2), ("other", 3)] {
        (0..times).for_each(|_| assert_eq!(ask(&server, &[name]).status, 200));
    }
    assert_eq!(limit(&["plain", "quota"]), (429, json!("1")));
    assert_eq!(limit(&["quota", "other"]), (429, json!("2")));
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

/// Every descriptor counts as a quota: one without a limit, one that is only observed, and one with
/// a limit that is sent. Only an unlimited one does not count.
#[test]
fn global_quota_mode_includes_descriptors_without_a_limit() {
    let server = mode("envoy-mode-quota-any", Some(EDGE)).env("QUOTA_MODE", "true").run();
    let sent = |count: u64| {
        let limit = json!({ "requestsPerUnit": count, "unit": "DAY" });
        json!({ "entries": [{ "key": "sent", "value": count.to_string() }], "limit": limit })
    };
    let plain = json!({ "entries": [{ "key": "plain", "value": "v" }] });
    let ask_both = |other: &Value| {
        let body = json!({ "domain": "edge", "descriptors": [plain, other] });
        let reply = server.post("/json", &body.to_string());
        (reply.status, reply.json()["statuses"][0]["code"].clone())
    };
    for _ in 0..2 {
        assert_eq!(ask(&server, &["plain"]).status, 200);
    }
    let key = |key: &str| json!({ "entries": [{ "key": key, "value": "v" }] });
    let over = json!("OVER_LIMIT");
    assert_eq!(ask_both(&key("unmatched")), (200, over.clone()));
    assert_eq!(ask_both(&key("shadow")), (200, over.clone()));
    assert_eq!(ask_both(&sent(1)), (200, over.clone()));
    assert_eq!(ask_both(&sent(1)), (429, over.clone()));
    assert_eq!(ask_both(&key("free")), (429, over.clone()));
    let mut client = GrpcClient::new(&server);
    let descriptors = [descriptor(&[("plain", "v")]), descriptor(&[("unmatched", "v")])];
    assert_eq!(client.code(&json!({ "domain": "edge", "descriptors": descriptors })), "OK");
}

/// envoyproxy/ratelimit looks up the domain first.
#[test]
fn limit_for_an_unknown_domain_is_not_enforced() {
    let server = mode("envoy-mode-unknown-domain", Some(EDGE)).run();
    let limit = json!({ "requestsPerUnit": 1, "unit": "DAY" });
    let descriptors = json!([{ "entries": [{ "key": "sent", "value": "v" }], "limit": limit }]);
    let ask = |domain: &str| {
        let body = json!({ "domain": domain, "descriptors": descriptors });
        server.post("/json", &body.to_string())
    };
    assert_eq!([ask("edge").status, ask("edge").status], [200, 429]);
    assert_eq!([ask("other").status, ask("other").status], [200, 200]);
    assert_eq!(ask("other").json()["statuses"][0], json!({ "code": "OK" }));
}

#[test]
fn json_accepts_any_method_and_content_type() {
    let server = mode("envoy-mode-json", Some(EDGE)).run();
    let wide = json!({ "entries": [{ "key": "wide", "value": "v" }] });
    let body = json!({ "domain": "edge", "descriptors": [wide] }).to_string();
    for method in ["POST", "PUT", "GET"] {
        for kind in ["text/plain", "application/octet-stream", "application/json"] {
            let reply = server.ask(method, "/json", &[("content-type", kind)], &body);
            assert_eq!(reply.status, 200, "{method} {kind}: {reply:?}");
        }
    }
    for body in ["", "{", r#"{"domain":"","descriptors":[]}"#] {
        let reply = server.ask("POST", "/json", &[("content-type", "text/plain")], body);
        assert_eq!(reply.status, 400, "{reply:?}");
    }
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
