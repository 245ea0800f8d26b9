//! `/v1/check` and `/v1/check/batch`: every kind of request, with complete responses.

use serde_json::{Value, json};

use super::{serve, timeless};
use crate::server_harness::Start;

/// Returns the result of a limit: policy, limit, window, algorithm, remaining, allowed.
fn line(policy: &str, limit: u64, window: &str, remaining: u64, allowed: bool) -> Value {
    let (window_ms, algorithm) = match window {
        "1h log" => (3_600_000, "sliding-log"),
        "1h window" => (3_600_000, "sliding-window"),
        "1d bucket" => (86_400_000, "token-bucket"),
        other => panic!("{other}"),
    };
    let policy = if policy.is_empty() { Value::Null } else { policy.into() };
    let retry = if allowed { json!(0) } else { json!("later") };
    json!({"policy": policy, "limit": limit, "window_ms": window_ms, "algorithm": algorithm,
        "remaining": remaining, "allowed": allowed, "retry_after_ms": retry})
}

/// Returns a response that reports the limit with index `reported`.
fn answer(allowed: bool, reported: usize, lines: &[Value]) -> Value {
    let line = &lines[reported];
    let retry = if allowed { json!(0) } else { line["retry_after_ms"].clone() };
    json!({"allowed": allowed, "policy": line["policy"], "limit": line["limit"],
        "remaining": line["remaining"], "retry_after_ms": retry, "reset_after_ms": "later",
        "decided": "exact", "limits": lines})
}

fn login(remaining: u64, allowed: bool) -> Value {
    answer(allowed, 0, &[line("login", 2, "1h log", remaining, allowed)])
}

fn nothing() -> Value {
    json!({"allowed": true, "policy": null, "limit": null, "remaining": null, "retry_after_ms": 0,
        "reset_after_ms": null, "decided": "exact", "limits": []})
}

/// Returns the response for the `api` policy with the observed one beside it.
fn api(remaining: [u64; 2], watched: bool) -> Value {
    let mut last = line("watched", 1, "1h log", 0, watched);
    last["mode"] = "observe".into();
    let lines = [
        line("api", 5, "1h window", remaining[0], true),
        line("api", 100, "1d bucket", remaining[1], true),
        last,
    ];
    answer(true, 0, &lines)
}

#[test]
fn answers_every_kind_of_check() {
    let server = serve("check-answers");
    let mut idle = login(2, true);
    idle["reset_after_ms"] = json!(0);
    let mut never = login(2, false);
    never["limits"][0]["retry_after_ms"] = Value::Null;
    never["retry_after_ms"] = Value::Null;
    never["reset_after_ms"] = json!(0);
    let own = |left, allowed| answer(allowed, 0, &[line("", 3, "1h log", left, allowed)]);
    #[rustfmt::skip]
    let rows: Vec<(&str, Value)> = vec![
        // A key under a policy, until it is used up.
        (r#"{"policy":"login","key":"alice"}"#, login(1, true)),
        (r#"{"policy":"login","key":"alice","cost":2}"#, login(1, false)),
        (r#"{"policy":"login","key":"alice","cost":1}"#, login(0, true)),
        (r#"{"policy":"login","key":"alice"}"#, login(0, false)),
        // A peek, a refund and a forced charge.
        (r#"{"policy":"login","key":"bob","cost":0}"#, idle.clone()),
        (r#"{"policy":"login","key":"alice","cost":-1}"#, login(1, true)),
        (r#"{"policy":"login","key":"alice","cost":5,"force":true}"#, login(0, true)),
        (r#"{"policy":"login","key":"alice","cost":0}"#, login(0, false)),
        // A cost that can never pass.
        (r#"{"policy":"login","key":"carol","cost":3}"#, never),
        // Numbers and nulls as other programs write them.
        (r#"{"policy":"login","key":"dave","cost":1.0,"id":null,"force":null,"max_wait_ms":0}"#, login(1, true)),
        // An id is charged once.
        (r#"{"policy":"login","key":"erin","id":"order-1"}"#, login(1, true)),
        (r#"{"policy":"login","key":"erin","id":"order-1"}"#, login(1, true)),
        (r#"{"policy":"login","key":"erin","id":"order-2"}"#, login(0, true)),
        // A request: every policy that matches. Observed ones never deny.
        (r#"{"attributes":{"method":"POST","path":"/login","client_ip":"192.0.2.1"}}"#, login(1, true)),
        (r#"{"attributes":{"method":"POST","path":"//%6Cogin?next=/","client_ip":"::ffff:192.0.2.1"}}"#, login(0, true)),
        (r#"{"policy":"login","key":"192.0.2.1"}"#, login(0, false)),
        // Spellings that some servers treat as the same path.
        (r#"{"attributes":{"method":"POST","path":"/login;a=1","client_ip":"192.0.2.1"}}"#, login(0, false)),
        (r#"{"attributes":{"method":"POST","path":"/a/..;/login","client_ip":"192.0.2.1"}}"#, login(0, false)),
        (r#"{"attributes":{"method":"POST","path":"/a\\..\\login","client_ip":"192.0.2.1"}}"#, login(0, false)),
        (r#"{"attributes":{"method":"POST","path":"/login#top?x","client_ip":"192.0.2.1"}}"#, login(0, false)),
        (r#"{"attributes":{"method":"GET","path":"/login"}}"#, nothing()),
        (r#"{"attributes":{"path":"/api/x","client_ip":"192.0.2.2"}}"#, api([4, 99], true)),
        // An absolute URL contains a path, too.
        (r#"{"attributes":{"path":"https://shop.example/api/y?a=b","client_ip":"192.0.2.2"}}"#, api([3, 98], false)),
        (r#"{"attributes":{"path":"/api/z","client_ip":"192.168.0.1"}}"#, {
            let mut watched = line("watched", 1, "1h log", 0, true);
            watched["mode"] = "observe".into();
            json!({"allowed": true, "policy": null, "limit": null, "remaining": null, "retry_after_ms": 0,
                "reset_after_ms": null, "decided": "exact", "limits": [watched]})
        }),
        // With a named policy only that one applies, with the key of its template.
        (r#"{"policy":"login","attributes":{"path":"/elsewhere","client_ip":"192.0.2.9"}}"#, login(1, true)),
        (r#"{"policy":"login","key":"192.0.2.9"}"#, login(0, true)),
        (r#"{"policy":"api","key":"k","attributes":{"headers":{"X-Org":"acme"}}}"#,
            answer(true, 0, &[line("api", 50, "1h window", 49, true)])),
        (r#"{"policy":"retired","key":"x"}"#, nothing()),
        // A cost from a header, and one from the caller, which takes precedence.
        (r#"{"attributes":{"path":"/metered","client_ip":"192.0.2.1","headers":{"x-cost":"4"}}}"#,
            answer(true, 0, &[line("metered", 10, "1h log", 6, true)])),
        (r#"{"attributes":{"path":"/metered","client_ip":"192.0.2.1","headers":{"x-cost":"4"}},"cost":1}"#,
            answer(true, 0, &[line("metered", 10, "1h log", 5, true)])),
        // Limits from the caller, independent of all policies.
        (r#"{"key":"alice","limits":["3 per 1h sliding-log"]}"#, own(2, true)),
        (r#"{"key":"alice","limits":["3 per 1h sliding-log"],"cost":2}"#, own(0, true)),
        (r#"{"key":"alice","limits":["3 per 1h sliding-log"]}"#, own(0, false)),
        // Any text is a valid key.
        (r#"{"policy":"login","key":"\u0000<img onerror=x>\u001b[2J\n"}"#, login(1, true)),
        (r#"{"policy":"login","key":"\u0000<img onerror=x>\u001b[2J\n"}"#, login(0, true)),
        (r#"{"policy":"login","key":"<img onerror=x>\u001b[2J\n"}"#, login(1, true)),
    ];
    for (body, expected) in rows {
        let reply = server.check(body);
        assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")));
        assert_eq!(timeless(&reply.json()), expected, "{body}");
    }
}

#[test]
fn rounds_waits_up() {
    let server = serve("check-waits");
    let ask = r#"{"policy":"login","key":"alice"}"#;
    (0..2).for_each(|_| drop(server.check(ask)));
    let wait = server.check(ask).json()["retry_after_ms"].as_u64().expect("a wait");
    assert!((1..=3_600_000).contains(&wait), "{wait}");
}

#[test]
fn check_waits_up_to_max_wait() {
    let server = serve("check-shaping");
    let ask = |wait: u64| {
        server.check(&format!(r#"{{"policy":"short","key":"a","max_wait_ms":{wait}}}"#)).json()
    };
    assert_eq!(ask(0)["allowed"], true);
    // The window is 300 ms. The request passes when it ends, and is denied immediately if
    // `max_wait_ms` is shorter.
    assert_eq!(ask(20_000)["allowed"], true);
    assert_eq!(ask(1)["allowed"], false);
}

#[test]
fn answers_batch_in_order() {
    let server = serve("batch");
    let reply = server.post(
        "/v1/check/batch",
        r#"{"checks":[{"policy":"login","key":"a"},{"policy":"login","key":"b","cost":2},
            {"policy":"login","key":"a","id":"x"},{"policy":"login","key":"a"},
            {"policy":"login","key":"a","id":"x","cost":2},{"attributes":{"path":"/none"}}]}"#,
    );
    assert_eq!(reply.status, 200);
    let answers = timeless(&reply.json()["answers"]);
    let reused = &answers[4];
    assert_eq!((&reused["status"], &reused["field"]), (&json!(409), &json!("checks[4].id")));
    let expected =
        json!([login(1, true), login(0, true), login(0, true), login(0, false), reused, nothing()]);
    assert_eq!(answers, expected);
    assert_eq!(server.post("/v1/check/batch", r#"{"checks":[]}"#).json(), json!({"answers": []}));
}

#[test]
fn invalid_batch_charges_nothing() {
    let server = serve("batch-mistakes");
    let many = vec![r#"{"policy":"login","key":"a"}"#; 1001].join(",");
    #[rustfmt::skip]
    let rows = [
        (r#"{"policy":"login","key":"a"},{"policy":"login","key":"a","cost":"1"}"#, 400, "checks[1].cost", "it must be a whole number"),
        (r#"{"policy":"login","key":"a"},{"policy":"login","key":""}"#, 400, "checks[1].key", "it is empty"),
        (r#"{"policy":"login","key":"a"},{"policy":"nobody","key":"a"}"#, 404, "checks[1].policy", "there is no policy `nobody`"),
        (r#"{"policy":"login","key":"a"},{"policy":"jobs","key":"a"}"#, 409, "checks[1].policy", "acquire one with POST /v1/permits"),
        (r#"{"policy":"login","key":"a"},{"policy":"login","key":"a","max_wait_ms":5}"#, 400, "checks[1].max_wait_ms", "not supported in a batch"),
        (r#"{"policy":"login","key":"a"},["login","a"]"#, 400, "checks[1]", "it must be an object"),
        (many.as_str(), 400, "checks", "there are 1001: send at most 1000"),
    ];
    server.post("/v1/check/batch", "{}").refuses(400, Some("checks"), "it is missing");
    let list = "the body must be an object, but is a list: send `{\"checks\": [...]}`";
    server.post("/v1/check/batch", r#"[{"policy":"login"}]"#).refuses(400, None, list);
    for (checks, status, field, part) in rows {
        let reply = server.post("/v1/check/batch", &format!(r#"{{"checks":[{checks}]}}"#));
        reply.refuses(status, Some(field), part);
    }
    let left = server.check(r#"{"policy":"login","key":"a","cost":0}"#).json();
    assert_eq!(left["remaining"], 2, "nothing was charged");
}

/// Addresses in the forms that proxies write are the same client.
#[test]
fn accepts_client_addresses_with_port_or_zone() {
    let server = serve("client-addresses");
    #[rustfmt::skip]
    let rows = [
        ("192.0.2.1", 1), ("192.0.2.1:4711", 0), (" 192.0.2.2 ", 1), ("::ffff:192.0.2.2", 0),
        ("fe80::1%eth0", 1), ("[fe80::1%eth1]:443", 0), ("[2001:db8::1]", 1), ("2001:db8::1", 0),
    ];
    for (client_ip, remaining) in rows {
        let body = format!(
            r#"{{"attributes":{{"method":"POST","path":"/login","client_ip":"{client_ip}"}}}}"#
        );
        let answer = server.check(&body).json();
        assert_eq!(
            (&answer["allowed"], &answer["remaining"]),
            (&true.into(), &remaining.into()),
            "{client_ip}"
        );
    }
    for client_ip in
        ["192.0.2.1:x", "192.0.2.1:70000", "[::1", "unknown", "192.0.2.1, 192.0.2.2", ""]
    {
        let body = format!(r#"{{"attributes":{{"client_ip":"{client_ip}"}}}}"#);
        server.check(&body).refuses(400, Some("attributes.client_ip"), "not an IP address");
    }
}

/// A forced charge is never denied. A request that is denied for lack of capacity is not reported
/// as used up.
#[test]
fn reports_full_store() {
    let policy = "policies:\n  - { name: login, match: { path: /login }, key: '{client_ip}', limits: 2 per 1h }\n";
    let config = format!("max_keys: 1\nwhen_full: deny\n{policy}");
    let server = Start::new("full-store").config(&config).run();
    let ask = |key: &str, more: &str| {
        let reply = server.check(&format!(r#"{{"policy":"login","key":"{key}"{more}}}"#));
        let answer = reply.json();
        assert_eq!(reply.status, 200, "{answer}");
        (answer["allowed"] == true, answer.get("no_room") == Some(&true.into()))
    };
    // More keys than the store has capacity for.
    let full = (0..1_000)
        .find(|number| !ask(&format!("k{number}"), "").0)
        .expect("the store becomes full");
    assert_eq!(ask("late", ""), (false, true));
    server.logged("the memory store is full: new keys are denied; raise `max_keys`");
    let before = server.metric("tidegate_overflow_total").expect("a number");
    assert_eq!(ask("late", r#","force":true"#), (true, true));
    assert_eq!(ask("late", r#","force":true,"cost":3,"id":"x""#), (true, true));
    assert_eq!(server.metric("tidegate_overflow_total"), Some(before + 2));
    // Tracked keys have used up their limit, and that is reported.
    assert!(full > 0);
    assert_eq!(
        ["", "", ""].map(|more| ask("k0", more)),
        [(true, false), (false, false), (false, false)]
    );
    assert_eq!(ask("k0", r#","force":true"#), (true, false));

    let reply = server.ask("GET", "/v1/forward-auth/login", &[], "");
    let problem = reply.json();
    assert_eq!((reply.status, &problem["status"]), (429, &429.into()), "{problem}");
    assert_eq!(
        problem["type"],
        "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
    );
    assert_eq!(
        problem["detail"],
        "there is no room for new keys now, so they are denied; try again later"
    );
    assert!(reply.header("retry-after").is_some());
}

/// Descriptors are an object, or a list if a name occurs twice.
#[test]
fn accepts_ordered_descriptors() {
    let config = "
policies:
  - { name: twice, match: { domain: d, descriptors: [h, h] }, key: '{descriptor:h#2}', limits: 5 per 1h }
  - { name: pair, match: { domain: d, descriptors: [h, g] }, key: '{descriptors}', limits: 5 per 1h }
";
    let server = Start::new("check-descriptors").config(config).run();
    let rows = [
        (r#"[{"h":"a"},{"h":"b"}]"#, "twice"),
        (r#"{"h":"a","g":"b"}"#, "pair"),
        (r#"[{"h":"a"},{"g":"b"}]"#, "pair"),
        (r#"{"g":"a","h":"b"}"#, ""),
        ("[]", ""),
    ];
    for (descriptors, policy) in rows {
        let body = format!(r#"{{"attributes":{{"domain":"d","descriptors":{descriptors}}}}}"#);
        let answer = server.check(&body).json();
        assert_eq!(answer["policy"].as_str().unwrap_or_default(), policy, "{body}");
    }
    let bad = [
        (r#"[{"a":1}]"#, "attributes.descriptors[0].a"),
        (r#"[{"a":"x","b":"y"}]"#, "attributes.descriptors"),
        ("[{}]", "attributes.descriptors"),
        ("[[]]", "attributes.descriptors[0]"),
        ("1", "attributes.descriptors"),
    ];
    for (descriptors, field) in bad {
        let reply = server.check(&format!(r#"{{"attributes":{{"descriptors":{descriptors}}}}}"#));
        let found = reply.json()["field"].as_str().unwrap_or_default().to_owned();
        assert!(reply.status == 400 && found.starts_with(field), "{descriptors}: {}", reply.text());
    }
}
