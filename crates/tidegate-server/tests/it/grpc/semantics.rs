//! The meaning of requests and replies.

use serde_json::{Value, json};

use super::{GrpcClient, descriptor, request_for, serve};
use crate::server_harness::Start;

const CONFIG: &str = r#"
headers: [draft-10, x-ratelimit]
policies:
  - name: per-user
    match: { domain: edge, descriptors: [user] }
    key: "{descriptor:user}"
    limits: ["3 per 1h sliding-log"]
  - name: per-org
    match: { domain: edge, descriptors: [org] }
    key: "{descriptor:org}"
    limits: ["5 per 1h sliding-log"]
  - name: short
    match: { domain: edge, descriptors: [{ kind: short }, user] }
    key: "{descriptor:user}"
    limits: ["2 per 10s sliding-log"]
  - name: both
    match: { domain: edge, descriptors: [both] }
    key: "{descriptor:both}"
    limits: ["3 per 1m sliding-log", "2 per 1h sliding-log"]
  - name: costly
    match: { domain: edge, descriptors: [costly] }
    key: "{descriptor:costly}"
    limits: ["10 per 1d sliding-log"]
    cost: 4
  - name: watched
    match: { domain: edge, descriptors: [watched] }
    key: "{descriptor:watched}"
    limits: ["1 per 1h sliding-log"]
    mode: observe
  - name: none-pass
    match: { domain: edge, descriptors: [never] }
    key: "all"
    limits: ["0 per 1m"]
  - name: plan
    match: { domain: edge, descriptors: { plan: "*" } }
    key: "{descriptor:user}"
    limits: ["4 per 1h sliding-log"]
    overrides:
      - when: { "descriptor:plan": gold }
        limits: ["40 per 1h sliding-log"]
"#;

/// Returns the parts of a reply that do not depend on time: codes, limits and units left.
fn seen(reply: &Value) -> Value {
    let statuses = reply["statuses"].as_array().expect("statuses").iter().map(|status| {
        let mut status = status.clone();
        status.as_object_mut().expect("an object").remove("duration_until_reset");
        status
    });
    json!([reply["overall_code"], statuses.collect::<Vec<_>>()])
}

fn status(code: &str, name: &str, limit: u32, unit: &str, remaining: u32) -> Value {
    let mut status = json!({
        "code": code,
        "current_limit": { "requests_per_unit": limit, "unit": unit, "name": name },
    });
    // Fields of value 0 and UNKNOWN are omitted.
    if remaining > 0 {
        status["limit_remaining"] = remaining.into();
    }
    if unit.is_empty() {
        status["current_limit"].as_object_mut().expect("an object").remove("unit");
    }
    status
}

/// Returns the seconds of a duration in JSON.
fn seconds(duration: &Value) -> f64 {
    let text = duration.as_str().unwrap_or_else(|| panic!("not a duration: {duration}"));
    text.strip_suffix('s').expect("seconds").parse().expect("a number")
}

#[test]
fn decides_descriptors_as_envoy_specifies() {
    let server = serve("grpc-semantics", CONFIG);
    let mut client = GrpcClient::new(&server);
    let user = |name: &'static str| ("user", name);
    let with = |request: &Value, hits: Value| {
        let mut request = request.clone();
        for (field, value) in hits.as_object().expect("fields") {
            request["descriptors"][0][field] = value.clone();
        }
        request
    };
    let alice = request_for("edge", &[user("alice")]);
    let ok = |remaining| json!(["OK", [status("OK", "per-user", 3, "HOUR", remaining)]]);
    let over = json!(["OVER_LIMIT", [status("OVER_LIMIT", "per-user", 3, "HOUR", 0)]]);
    let hits = |of_request: u32| {
        let mut request = alice.clone();
        request["hits_addend"] = of_request.into();
        request
    };
    #[rustfmt::skip]
    let rows = [
        ("one hit by default", alice.clone(), ok(2)),
        ("0 in the request is the default", hits(0), ok(1)),
        ("0 of a descriptor only looks", with(&hits(3), json!({ "hits_addend": "0" })), ok(1)),
        ("too many at once are denied, and use up the last", hits(2), over.clone()),
        ("used up", alice.clone(), over.clone()),
        ("a look sees that", with(&alice, json!({ "hits_addend": "0" })), over.clone()),
        ("two are given back", with(&alice, json!({ "hits_addend": "2", "is_negative_hits": true })), ok(2)),
        ("hits of a descriptor hold over the request's", with(&hits(3), json!({ "hits_addend": "2" })), ok(0)),
        ("a refund of the hits of the request", with(&hits(3), json!({ "is_negative_hits": true })), ok(3)),
        ("more given back than taken", with(&alice, json!({ "hits_addend": "9", "is_negative_hits": true })), ok(3)),
        ("more than fits is never admitted, and uses up all", hits(4), over.clone()),
        ("the most there can be is too many", with(&request_for("edge", &[user("dave")]), json!({ "hits_addend": "18446744073709551615" })), over.clone()),
        ("and uses up all", with(&request_for("edge", &[user("dave")]), json!({ "hits_addend": "0" })), over.clone()),
        ("others are counted apart", request_for("edge", &[user("bob")]), ok(2)),
        ("a window that is no unit", request_for("edge", &[("kind", "short"), user("alice")]),
         json!(["OK", [status("OK", "short", 2, "", 1)]])),
        ("entries in another order are another descriptor", request_for("edge", &[user("alice"), ("kind", "short")]), json!(["OK", [{ "code": "OK" }]])),
        ("an unknown domain", request_for("other", &[user("alice")]), json!(["OK", [{ "code": "OK" }]])),
        ("an unknown entry", request_for("edge", &[("who", "alice")]), json!(["OK", [{ "code": "OK" }]])),
        ("of two limits the one with fewer units left is reported", request_for("edge", &[("both", "a")]),
         json!(["OK", [status("OK", "both", 2, "HOUR", 1)]])),
        ("the policy's own cost", request_for("edge", &[("costly", "a")]), json!(["OK", [status("OK", "costly", 10, "DAY", 6)]])),
        ("hits hold over it", with(&request_for("edge", &[("costly", "a")]), json!({ "hits_addend": "1" })),
         json!(["OK", [status("OK", "costly", 10, "DAY", 5)]])),
        ("an observed policy never denies", request_for("edge", &[("watched", "a")]), json!(["OK", [{ "code": "OK" }]])),
        ("nor when it would", request_for("edge", &[("watched", "a")]), json!(["OK", [{ "code": "OK" }]])),
        ("0 per minute", request_for("edge", &[("never", "a")]), json!(["OVER_LIMIT", [{ "code": "OVER_LIMIT",
            "current_limit": { "unit": "MINUTE", "name": "none-pass" } }]])),
    ];
    for (name, request, expected) in rows {
        let reply = client.reply(&request);
        assert_eq!(seen(&reply), expected, "{name}: {reply}");
    }
}

/// Regression: usage above the units left was rejected as a whole and charged nothing, so that 30
/// of 30 responses of 300 tokens passed under 1,000 per hour.
#[test]
fn cost_above_remaining_consumes_the_rest() {
    const USAGE: &str = r#"
policies:
  - name: tokens
    match: { domain: edge, descriptors: [user] }
    key: "{descriptor:user}"
    limits: ["1000 per 1h sliding-log", "10000 per 1d"]
  - name: strict
    match: { domain: edge, descriptors: [strict] }
    key: "{descriptor:strict}"
    limits: ["1000 per 1h sliding-log"]
    overflow: refuse
"#;
    let server = serve("grpc-usage", USAGE);
    let mut client = GrpcClient::new(&server);
    for (name, entry, most) in [("tokens", "user", 4), ("strict", "strict", 30)] {
        let hits = |hits: u32| {
            let mut request = request_for("edge", &[(entry, "alice")]);
            request["descriptors"][0]["hits_addend"] = hits.to_string().into();
            request
        };
        let mut passed = 0;
        for _ in 0..30 {
            // The check at the start of a stream, and the charge at its end.
            if client.code(&hits(0)) == "OK" {
                passed += 1;
                client.reply(&hits(300));
            }
        }
        assert_eq!(passed, most, "{name}");
    }
    // Over HTTP the same policy refuses, which is the default there.
    let over_http = |cost: u32| {
        let body = json!({ "policy": "tokens", "key": "bob", "cost": cost });
        server.check(&body.to_string()).json()
    };
    assert_eq!(over_http(900)["allowed"], true);
    assert_eq!(
        (&over_http(300)["allowed"], &over_http(300)["remaining"]),
        (&json!(false), &json!(100))
    );
    // `/json` is Envoy's service, too.
    let used = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"user","value":"bob"}],"hitsAddend":300}]}"#;
    assert_eq!(server.post("/json", used).status, 429);
    assert_eq!(over_http(0)["remaining"], 0);
}

#[test]
fn charges_all_descriptors_or_none() {
    let server = serve("grpc-together", CONFIG);
    let mut client = GrpcClient::new(&server);
    let request = json!({ "domain": "edge", "descriptors": [
        descriptor(&[("user", "alice")]), descriptor(&[("org", "acme")]), descriptor(&[("x", "y")]) ] });
    let replies: Vec<Value> = (0..4).map(|_| seen(&client.reply(&request))).collect();
    let both = |user: u32, org: u32| {
        let statuses = [
            status("OK", "per-user", 3, "HOUR", user),
            status("OK", "per-org", 5, "HOUR", org),
            json!({ "code": "OK" }),
        ];
        json!(["OK", statuses])
    };
    assert_eq!(replies[..3], [both(2, 4), both(1, 3), both(0, 2)]);
    // The user is over the limit. The units of the organisation are reported, but not charged.
    let denied = [
        status("OVER_LIMIT", "per-user", 3, "HOUR", 0),
        status("OK", "per-org", 5, "HOUR", 2),
        json!({ "code": "OK" }),
    ];
    assert_eq!(replies[3], json!(["OVER_LIMIT", denied]));
    let org = request_for("edge", &[("org", "acme")]);
    let left = json!(["OK", [status("OK", "per-org", 5, "HOUR", 1)]]);
    assert_eq!(seen(&client.reply(&org)), left);
    // The same descriptor twice costs twice.
    let twice = json!({ "domain": "edge", "descriptors": [
        descriptor(&[("user", "carol")]), descriptor(&[("user", "carol")]) ] });
    let codes: Vec<String> = (0..2).map(|_| client.code(&twice)).collect();
    assert_eq!(codes, ["OK", "OVER_LIMIT"]);
}

#[test]
fn request_limit_replaces_configured_limits() {
    let server = serve("grpc-override", CONFIG);
    let mut client = GrpcClient::new(&server);
    let limited = |entries: &[(&str, &str)], requests: u32, unit: &str| {
        let mut request = request_for("edge", entries);
        request["descriptors"][0]["limit"] = json!({ "requests_per_unit": requests, "unit": unit });
        request
    };
    let units = ["SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"];
    for (number, unit) in (1..).zip(units) {
        let mut request = limited(&[("user", "alice"), ("unit", unit)], 1, "DAY");
        // By number, because the package of the client has no name for the week yet.
        request["descriptors"][0]["limit"]["unit"] = number.into();
        let reply = client.reply(&request);
        assert_eq!(reply["statuses"][0]["current_limit"]["unit"], unit, "{reply}");
    }
    let generous = limited(&[("user", "alice")], 7, "DAY");
    let expected = |remaining: u32| {
        let limit = json!({ "requests_per_unit": 7, "unit": "DAY" });
        json!(["OK", [{ "code": "OK", "current_limit": limit, "limit_remaining": remaining }]])
    };
    assert_eq!(seen(&client.reply(&generous)), expected(6));
    assert_eq!(seen(&client.reply(&generous)), expected(5));
    // The count of the policy is not charged.
    let reply = client.reply(&request_for("edge", &[("user", "alice")]));
    assert_eq!(reply["statuses"][0]["limit_remaining"], 2, "{reply}");
    let tight = limited(&[("user", "dan")], 1, "HOUR");
    let codes: Vec<String> = (0..2).map(|_| client.code(&tight)).collect();
    assert_eq!(codes, ["OK", "OVER_LIMIT"]);
    assert_eq!(client.code(&limited(&[("user", "eve")], 0, "HOUR")), "OVER_LIMIT");
}

/// Envoy lets a request pass if its check is rejected, and clients choose the values.
#[test]
fn counts_descriptors_that_share_a_state() {
    let server = serve("grpc-unlike", CONFIG);
    let mut client = GrpcClient::new(&server);
    let ask = |descriptors: Vec<Value>| json!({ "domain": "edge", "descriptors": descriptors });
    let with = |entries: &[(&str, &str)], fields: Value| {
        let mut one = descriptor(entries);
        for (field, value) in fields.as_object().expect("fields") {
            one[field] = value.clone();
        }
        one
    };
    // A value that selects an override beside one that does not: the stricter limit applies.
    let plan = |plan: &str| descriptor(&[("plan", plan), ("user", "alice")]);
    let plans = ask(vec![plan("gold"), plan("")]);
    let both = |code: &str, remaining: u32| {
        json!([code, vec![status(code, "plan", 4, "HOUR", remaining); 2]])
    };
    for expected in [both("OK", 2), both("OK", 0), both("OVER_LIMIT", 0)] {
        assert_eq!(seen(&client.reply(&plans)), expected);
    }
    // A charge and a refund.
    let user = [("user", "alice")];
    let back = with(&user, json!({ "is_negative_hits": true }));
    let mixed = ask(vec![descriptor(&user), descriptor(&user), back]);
    for remaining in [2, 1] {
        let one = status("OK", "per-user", 3, "HOUR", remaining);
        assert_eq!(seen(&client.reply(&mixed)), json!(["OK", [one, one, one]]));
    }
    // Two limits for one descriptor.
    let limited = |requests: u32| {
        with(&user, json!({ "limit": { "requests_per_unit": requests, "unit": "HOUR" } }))
    };
    let twice = ask(vec![limited(9), limited(3)]);
    let codes: Vec<String> = (0..2).map(|_| client.code(&twice)).collect();
    assert_eq!(codes, ["OK", "OVER_LIMIT"]);
    assert_eq!(server.metric("tidegate_grpc_requests_total{code=\"OK\"}"), Some(7));
}

#[test]
fn reports_decision_in_headers_and_logs() {
    let server = serve("grpc-told", CONFIG);
    let mut client = GrpcClient::new(&server);
    let request = request_for("edge", &[("user", "alice")]);
    let reply = client.reply(&request);
    let headers = |reply: &Value| -> Vec<(String, String)> {
        let all = reply["response_headers_to_add"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        all.iter().map(|header| (text(&header["key"]), text(&header["value"]))).collect()
    };
    let names =
        |reply: &Value| headers(reply).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let usual = [
        "ratelimit",
        "ratelimit-policy",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
    ];
    assert_eq!(names(&reply), usual);
    let value = |reply: &Value, name: &str| {
        headers(reply).into_iter().find(|(known, _)| known == name).expect("a header").1
    };
    assert_eq!(value(&reply, "ratelimit-policy"), "\"per-user\";q=3;w=3600");
    let metadata =
        json!({ "policy": "per-user", "decided": "exact", "limit": 3.0, "remaining": 2.0 });
    assert_eq!(reply["dynamic_metadata"], metadata);
    // An hour's window, of which nothing was used before.
    let reset = seconds(&reply["statuses"][0]["duration_until_reset"]);
    assert!((3590.0..=3600.0).contains(&reset), "{reply}");

    for _ in 0..2 {
        client.reply(&request);
    }
    let reply = client.reply(&request);
    assert_eq!(names(&reply)[0], "retry-after", "{reply}");
    let retry_after: u64 = value(&reply, "retry-after").parse().expect("seconds");
    let metadata = &reply["dynamic_metadata"];
    assert_eq!(metadata["denied_by"], json!(["per-user"]), "{reply}");
    let retry_ms = metadata["retry_after_ms"].as_f64().expect("a number");
    assert!((3_500_000.0..=3_600_000.0).contains(&retry_ms), "{reply}");
    // The wait equals that of the header, and is exact.
    let reset = seconds(&reply["statuses"][0]["duration_until_reset"]);
    assert!((reset.ceil() - retry_after as f64).abs() < 0.5, "{reply}");

    let watched = request_for("edge", &[("watched", "w")]);
    client.reply(&watched);
    let reply = client.reply(&watched);
    assert_eq!(reply["dynamic_metadata"], json!({ "would_deny": ["watched"] }));
    assert_eq!(names(&reply), [""; 0]);
    let reply = client.reply(&request_for("edge", &[("nobody", "")]));
    assert_eq!(reply.get("dynamic_metadata"), None, "{reply}");
    // A request that can never pass has no retry time.
    let mut never = request.clone();
    never["hits_addend"] = 4.into();
    assert_eq!(client.reply(&never)["dynamic_metadata"]["retry_after_ms"], Value::Null);
    // Envoy gets a window as the wait, even if nothing was used.
    never["descriptors"][0]["entries"][0]["value"] = "fresh".into();
    for (request, window) in [(&never, "3600s"), (&request_for("edge", &[("never", "a")]), "60s")] {
        let reply = client.reply(request);
        assert_eq!(reply["statuses"][0]["duration_until_reset"], window, "{reply}");
    }
}

#[test]
fn default_policy_limits_addresses() {
    let server = Start::new("grpc-default").args(&["--grpc", "127.0.0.1:0"]).run();
    let mut client = GrpcClient::new(&server);
    let reply = client.reply(&request_for("any", &[("remote_address", "192.0.2.1")]));
    assert_eq!(seen(&reply), json!(["OK", [status("OK", "default", 100, "MINUTE", 99)]]));
    // The same address over HTTP.
    let answer = server.check(r#"{"attributes":{"client_ip":"192.0.2.1"}}"#).json();
    assert_eq!(answer["remaining"], 98);
    assert_eq!(server.metric("tidegate_grpc_requests_total{code=\"OK\"}"), Some(1));
    assert_eq!(server.metric("tidegate_connections{front=\"grpc\"}"), Some(1));
}

#[test]
fn descriptors_of_one_call_count_as_one_request() {
    let server = serve("grpc-requests", CONFIG);
    let mut client = GrpcClient::new(&server);
    let both = json!({
        "domain": "edge",
        "descriptors": [descriptor(&[("user", "alice")]), descriptor(&[("org", "acme")])],
    });
    let codes: Vec<_> = (0..4).map(|_| client.code(&both)).collect();
    assert_eq!(codes, ["OK", "OK", "OK", "OVER_LIMIT"]);
    client.reply(&request_for("elsewhere", &[("user", "alice")]));
    let counted = |policy: &str, outcome: &str| {
        let labels = format!("policy=\"{policy}\",outcome=\"{outcome}\"");
        server.metric(&format!("tidegate_requests_total{{{labels}}}"))
    };
    let outcomes = |policy| [counted(policy, "allowed"), counted(policy, "denied")];
    assert_eq!(outcomes("per-user"), [Some(3), Some(1)]);
    assert_eq!(outcomes("per-org"), [Some(0), Some(0)]);
    assert_eq!(outcomes(""), [Some(1), None]);
}
