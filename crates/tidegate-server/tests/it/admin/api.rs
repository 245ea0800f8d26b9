//! `/admin/v1`: policies, keys and rankings, and authentication.

use serde_json::{Value, json};
use tidegate_testkit::eventually;

use super::server::Server;
use super::{POLICIES, with_full_keys};
use crate::server_harness::wait_for;

#[test]
fn lists_active_policies() {
    let server = Server::start("policies", POLICIES);
    let answer = server.get("/admin/v1/policies");
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"));
    let expected = json!({
        "name": "api",
        "match": ["path: /api/**"],
        "key": "{header:x-api-key | client_ip}",
        "limits": ["1000 per 1h sliding-window"],
        "mode": "enforce",
        "on_store_failure": "local",
        "deny_cache": true,
        "lease": "off",
        "cost": "1",
        "overflow": null,
        "exempt": ["client_ip: 192.168.0.0/16"],
        "replaces": [],
        "quota": false,
        "overrides": [{
            "when": ["header:x-org: acme"],
            "limits": ["5000 per 1h sliding-window"],
            "mode": "enforce",
            "on_store_failure": "local",
            "cost": "1",
            "overflow": null,
        }],
    });
    let policies = answer.json();
    assert_eq!(policies["policies"][1], expected);
    let names: Vec<_> =
        policies["policies"].as_array().expect("a list").iter().map(|p| &p["name"]).collect();
    assert_eq!(names, ["login", "api", "watched"]);
    // Nothing is shared, so there are no other nodes.
    let fleet = server.get("/admin/v1/fleet").json();
    let fingerprint = &policies["fingerprint"];
    assert_eq!(fleet, json!({"fingerprint": fingerprint, "differing": 0, "nodes": []}));
    // It depends on what decides, and on nothing else.
    let same =
        Server::start("policies-same", &POLICIES.replace("policies:", "max_keys: 9\npolicies:"));
    assert_eq!(same.get("/admin/v1/policies").json()["fingerprint"], *fingerprint);
    let other = Server::start("policies-other", &POLICIES.replace("1000 per 1h", "1001 per 1h"));
    assert_ne!(other.get("/admin/v1/policies").json()["fingerprint"], *fingerprint);
}

#[test]
fn ranks_keys_by_volume() {
    let large = POLICIES.replace("1000 per 1h", "1000000000 per 1h");
    let server = Server::start("top-volume", &large);
    let one = |number: usize| {
        let key = if number.is_multiple_of(4) { "seldom" } else { "often" };
        json!({"path": "/api/items", "headers": {"x-api-key": key}})
    };
    let checks: Vec<Value> = (0..400).map(|number| json!({"attributes": one(number)})).collect();
    let batch = json!({"checks": checks}).to_string();
    // One request in 1,024 is ranked, on each thread.
    let top = wait_for(|| {
        server.post("/v1/check/batch", &batch);
        let top = server.get("/admin/v1/top?by=allowed&policy=api").json();
        Some(top).filter(|top| top["keys"]["entries"][0]["count"].as_u64() > Some(8_000))
    });
    assert_eq!((&top["by"], &top["sampled_one_in"]), (&json!("allowed"), &json!(1024)));
    let first = &top["keys"]["entries"][0];
    let name = first["name"].as_str().expect("text");
    assert!(name.starts_with("header:x-api-key=o...#"), "{first}");
    assert_eq!(first["count"].as_u64().map(|count| count % 1024), Some(0), "{first}");
    assert_eq!(top["routes"]["entries"][0]["name"], "/api/items");
    let calls = server.get("/admin/v1/top?by=store_calls").json();
    assert_eq!(calls["keys"]["entries"], json!([]), "there is no shared store");
}

/// Returns the units left of each limit.
fn remaining(answer: &Value) -> Vec<u64> {
    let limits = answer["limits"].as_array().expect("limits").iter();
    limits.map(|limit| limit["remaining"].as_u64().expect("a number")).collect()
}

#[test]
fn peeks_and_resets_a_key() {
    let server = Server::start("keys", POLICIES);
    server.logins(3, "2001:db8::1");
    // The key as the policy makes it: a network prefix, which contains a slash.
    let path = "/admin/v1/policies/login/keys/2001%3Adb8%3A%3A%2F64";
    let seen = server.get(path).json();
    assert_eq!((&seen["policy"], &seen["key"]), (&json!("login"), &json!("2001:db8::/64")));
    assert_eq!((&seen["allowed"], remaining(&seen)), (&json!(false), vec![0, 98]));
    assert_eq!(seen["limits"][0]["text"], "2 per 1h sliding-log");
    assert!(seen["limits"][0]["retry_after_ms"].as_u64() > Some(3_500_000), "{seen}");
    // A peek charges nothing.
    assert_eq!(remaining(&server.get(path).json()), [0, 98]);

    let reset = server.ask("DELETE", path, &[]).json();
    assert_eq!(reset, json!({"policy": "login", "key": "2001:db8::/64", "reset": true}));
    assert_eq!(server.ask("DELETE", path, &[]).json()["reset"], false);
    let seen = server.get(path).json();
    assert_eq!((&seen["allowed"], remaining(&seen)), (&json!(true), vec![2, 100]));
    assert!(server.login("2001:db8::1"));
    // Any bytes are a valid key, and are escaped for display.
    let odd = server.get("/admin/v1/policies/login/keys/%ff%0a%1b%3Cimg%3E").json();
    assert_eq!(odd["key"], "\\xff\\x0a\\x1b<img>");
    // Browsers remove `..` at the end of a path, so such a key is sent in the query.
    let dots = server.get("/admin/v1/policies/login/keys?key=..").json();
    assert_eq!(dots["key"], "..");
    let slash = server.get("/admin/v1/policies/login/keys?key=2001%3Adb8%3A%3A%2F64").json();
    assert_eq!((&slash["key"], remaining(&slash)), (&json!("2001:db8::/64"), vec![1, 99]));
    let none = server.get("/admin/v1/policies/login/keys");
    assert_eq!((none.status, &none.json()["field"]), (400, &json!("key")));
}

/// Regression: a key was shown under the limits of the policy alone, so one under an override
/// looked denied while its requests passed.
#[test]
fn peeks_a_key_under_each_override() {
    let config = r#"
policies:
  - name: users
    key: "{header:x-user}"
    limits: [2 per 1h sliding-log]
    overrides:
      - when: { "header:x-user": vip }
        limits: [100 per 1d sliding-log, 5 per 1h sliding-log]
      - when: { "header:x-user": free }
        mode: observe
      - when: { "header:x-user": staff }
        mode: off
"#;
    let server = Server::start("overrides", config);
    for _ in 0..3 {
        assert!(server.check(r#"{"headers":{"x-user":"vip"}}"#, &[])["allowed"] == true);
    }
    let seen = server.get("/admin/v1/policies/users/keys/vip").json();
    assert_eq!((&seen["allowed"], remaining(&seen)), (&json!(false), vec![0]));
    let overrides = seen["overrides"].as_array().expect("overrides");
    let shown: Vec<_> = overrides
        .iter()
        .map(|one| {
            (one["when"].clone(), one["mode"].as_str(), one["allowed"] == true, remaining(one))
        })
        .collect();
    assert_eq!(
        shown,
        [
            (json!(["header:x-user: vip"]), Some("enforce"), true, vec![97, 2]),
            (json!(["header:x-user: free"]), Some("observe"), true, vec![0]),
            (json!(["header:x-user: staff"]), Some("off"), true, vec![]),
        ]
    );
    // A policy with very many overrides shows the first of them.
    let many: String = (0..30)
        .map(|number| {
            format!("      - {{ when: {{ \"header:x-user\": u{number} }}, mode: off }}\n")
        })
        .collect();
    let server = Server::start("many-overrides", &format!("{config}{many}"));
    let seen = server.get("/admin/v1/policies/users/keys/vip").json();
    assert_eq!(seen["overrides"].as_array().map(Vec::len), Some(20));
    assert_eq!(seen["overrides_left_out"], 13);
}

/// Regression: the key that requests without a key share could not be looked up or reset.
#[test]
fn finds_keys_with_control_bytes() {
    let config =
        "policies: [{ name: users, key: '{header:x-user}', limits: ['2 per 1h sliding-log'] }]\n";
    let server = Server::start("control-bytes", &format!("log_keys: full\n{config}"));
    let requests =
        [r"{}", r#"{"headers":{"x-user":"a\u0001b"}}"#, r#"{"headers":{"x-user":"a\\b"}}"#];
    for attributes in requests {
        (0..3).for_each(|_| drop(server.check(attributes, &[])));
    }
    // A caller that names a NUL as its key has another key than requests without one.
    (0..3).for_each(|_| drop(server.check_body(r#"{"policy":"users","key":"\u0000"}"#, &[])));
    let top = server.get("/admin/v1/top").json();
    let entries = top["keys"]["entries"].as_array().expect("entries");
    assert_eq!(entries.len(), 4, "{top}");
    for (name, encoded) in
        [("\\x00", "%00"), ("\\x00\\x00", "%00%00"), ("a\\x01b", "a%01b"), ("a\\\\b", "a%5Cb")]
    {
        let entry = entries.iter().find(|entry| entry["name"] == name).expect(name);
        assert_eq!(entry["encoded"], encoded);
        // The key as it is shown, in the query, as the form of the dashboard sends it.
        let typed = name.replace('\\', "%5C");
        for path in [format!("/{encoded}"), format!("?key={encoded}"), format!("?key={typed}")] {
            let path = format!("/admin/v1/policies/users/keys{path}");
            let found = server.get(&path).json();
            assert_eq!((&found["key"], remaining(&found)), (&json!(name), vec![0]), "{path}");
        }
        let path = format!("/admin/v1/policies/users/keys/{encoded}");
        assert_eq!(server.ask("DELETE", &path, &[]).json()["reset"], true, "{path}");
        assert_eq!(remaining(&server.get(&path).json()), [2], "{path}");
    }
}

#[test]
fn rejects_keys_of_limits_sent_by_callers() {
    let server = Server::start("own", POLICIES);
    for _ in 0..2 {
        server.check_body(r#"{"key":"mine","limits":["1 per 1h sliding-log"]}"#, &[]);
    }
    let top = server.get("/admin/v1/top?by=denied").json();
    let entry = &top["keys"]["entries"][0];
    assert_eq!((&entry["policy"], &entry["name"]), (&json!("(caller)"), &json!("mine")), "{top}");
    assert_eq!(entry["encoded"], json!(null));
}

/// Regression: each spelling of a path was a separate route.
#[test]
fn ranks_spellings_of_a_path_as_one_route() {
    let server = Server::start("top-spellings", POLICIES);
    server.logins(2, "192.0.2.1");
    let spellings = [
        "/login",
        "/%6cogin",
        "//login",
        "/a/../login",
        "/a/..;x/login",
        "/login;jsessionid=5ecret",
        "/login%3Bjsessionid=5ecret",
    ];
    for path in spellings {
        let attributes = json!({"method": "POST", "path": path, "client_ip": "192.0.2.1"});
        server.check(&attributes.to_string(), &[]);
    }
    let top = server.get("/admin/v1/top?by=denied").json();
    let routes: Vec<_> = top["routes"]["entries"].as_array().expect("entries").iter().collect();
    assert_eq!(routes.len(), 1, "{top}");
    assert_eq!((&routes[0]["name"], &routes[0]["count"]), (&json!("/login"), &json!(7)));
}

#[test]
fn statistics_name_the_overrides_that_count_in_a_series() {
    let more = r#"
      - when: { "header:x-org": [globex, hooli] }
        limits: ["5000 per 1h"]
      - when: { "header:x-org": [initech] }
        limits: ["1000 per 1h"]
      - when: { "header:x-org": [umbrella] }
        mode: observe
  - name: watched"#;
    let policies = POLICIES.replace("\n  - name: watched", more);
    let server = Server::start("series-overrides", &policies);
    let stats = server.get("/admin/v1/stats").json();
    let series = stats["series"].as_array().expect("series").iter();
    let api = series.clone().filter(|one| one["policy"] == "api");
    let rows: Vec<_> =
        api.map(|one| json!([one["limit"], one["mode"], one["overrides"]])).collect();
    // The third override has the limit of the policy, and counts with it.
    let expected = json!([
        ["1000 per 1h sliding-window", "enforce", []],
        ["1000 per 1h sliding-window", "observe", [4]],
        ["5000 per 1h sliding-window", "enforce", [1, 2]],
    ]);
    assert_eq!(json!(rows), expected);
    for one in series.filter(|one| one["policy"] != "api") {
        assert_eq!(one["overrides"], json!([]), "{one}");
    }
}

/// Regression: a limit that had been changed, and a policy that had been removed, looked the same
/// as those in force.
#[test]
fn statistics_say_which_series_are_in_force() {
    let config = |name: &str, limit: &str, mode: &str| {
        let when = r#"when: { "header:x-org": acme }, limits: [9 per 1h]"#;
        format!(
            "policies: [{{ name: {name}, key: all, limits: [{limit}], mode: {mode}, \
             overrides: [{{ {when} }}] }}]"
        )
    };
    let server = Server::start("in-force", &config("api", "2 per 1m", "enforce"));
    let series = || {
        let stats = server.get("/admin/v1/stats").json();
        let all = stats["series"].as_array().expect("series").iter();
        let policies = all.filter(|one| one["policy"] != "(caller)");
        let rows = policies.map(|one| {
            json!([one["policy"], one["limit"], one["mode"], one["in_force"], one["overrides"]])
        });
        json!(rows.collect::<Vec<_>>())
    };
    let row = |policy: &str, limit: &str, mode: &str, in_force: bool, overrides: &[usize]| {
        json!([policy, format!("{limit} sliding-window"), mode, in_force, overrides])
    };
    let first = [
        row("api", "2 per 1m", "enforce", true, &[]),
        row("api", "9 per 1h", "enforce", true, &[1]),
    ];
    assert_eq!(series(), json!(first));
    server.files.write("tidegate.yaml", config("api", "3 per 1m", "observe"));
    let second = [
        row("api", "2 per 1m", "enforce", false, &[]),
        row("api", "3 per 1m", "observe", true, &[]),
        row("api", "9 per 1h", "enforce", false, &[]),
        row("api", "9 per 1h", "observe", true, &[1]),
    ];
    eventually("the limit and the mode change", || series() == json!(second));
    server.files.write("tidegate.yaml", config("login", "2 per 1m", "enforce"));
    let third = [
        row("api", "2 per 1m", "enforce", false, &[]),
        row("api", "3 per 1m", "observe", false, &[]),
        row("api", "9 per 1h", "enforce", false, &[]),
        row("api", "9 per 1h", "observe", false, &[]),
        row("login", "2 per 1m", "enforce", true, &[]),
        row("login", "9 per 1h", "enforce", true, &[1]),
    ];
    eventually("the policy is replaced", || series() == json!(third));
}

#[test]
fn ranks_keys_with_error_bounds() {
    let server = Server::start("top", &with_full_keys());
    for (times, ip) in [(4, "192.0.2.1"), (3, "192.0.2.2"), (1, "192.0.2.3")] {
        server.logins(times, ip);
    }
    (0..3).for_each(|_| {
        server.check(r#"{"path":"/reports","headers":{"x-user":"al\u0000ice"}}"#, &[]);
    });
    let top = server.get("/admin/v1/top").json();
    let entry = |name: &str, encoded: Option<&str>, policy: &str, count: u64| json!({"policy": policy, "name": name, "encoded": encoded, "count": count, "error": 0});
    let keys = json!([
        entry("192.0.2.1", Some("192%2E0%2E2%2E1"), "login", 2),
        entry("192.0.2.2", Some("192%2E0%2E2%2E2"), "login", 1),
    ]);
    assert_eq!(top["keys"], json!({"entries": keys, "unlisted_at_most": 0}));
    assert_eq!(top["routes"]["entries"], json!([entry("/login", None, "login", 3)]));
    assert_eq!((&top["by"], &top["policy"]), (&json!("denied"), &json!(null)));
    assert_eq!(top["sampled_one_in"], 1);
    assert!(top["covers_seconds"].as_u64().is_some(), "{top}");
    // The ranking links to the key.
    let path =
        format!("/admin/v1/policies/login/keys/{}", keys[0]["encoded"].as_str().expect("text"));
    assert_eq!(remaining(&server.get(&path).json())[0], 0);

    let first = server.get("/admin/v1/top?by=denied&n=1&policy=login").json();
    assert_eq!(
        (first["keys"]["entries"].as_array().map(Vec::len), &first["keys"]["unlisted_at_most"]),
        (Some(1), &json!(1))
    );
    let would = server.get("/admin/v1/top?by=would_deny").json();
    assert_eq!(would["keys"]["entries"][0]["name"], "6#al\\x00ice:8#/reports");
    assert_eq!(would["keys"]["entries"][0]["count"], 2);
    let near = server.get("/admin/v1/top?by=near&policy=login").json();
    assert_eq!(near["keys"]["entries"].as_array().map(Vec::len), Some(2), "{near}");
    assert_eq!(server.get("/admin/v1/top?policy=api").json()["keys"]["entries"], json!([]));
}

#[test]
fn history_has_the_requests_of_the_last_minutes() {
    let server = Server::start("history", POLICIES);
    server.logins(3, "192.0.2.1");
    let sampled = || {
        let history = server.get("/admin/v1/history").json();
        let samples = history["samples"].as_array().expect("samples").clone();
        let requests = samples.iter().flat_map(|one| one["requests"].as_array().cloned());
        let requests: Vec<_> = requests.flatten().collect();
        let sum = |outcome: &str| requests.iter().filter_map(|one| one[outcome].as_u64()).sum();
        let sums: [u64; 2] = [sum("allowed"), sum("denied")];
        assert!(requests.iter().all(|one| one["policy"] == "login"), "{history}");
        sums
    };
    eventually("the requests are sampled", || sampled() == [2, 1]);
    let history = server.get("/admin/v1/history").json();
    let newest = history["samples"].as_array().and_then(|samples| samples.last());
    assert_eq!(newest.map(|sample| &sample["tracked_keys"]), Some(&json!(2)), "{history}");
}

#[test]
fn stats_report_decisions_store_and_config() {
    let server = Server::start("stats", POLICIES);
    server.logins(3, "192.0.2.1");
    let stats = server.get("/admin/v1/stats").json();
    let all = stats["series"].as_array().expect("series");
    let login = all.iter().find(|one| one["limit"] == "2 per 1h sliding-log").expect("the limit");
    let expected = json!({"policy": "login", "limit": "2 per 1h sliding-log", "mode": "enforce",
        "in_force": true, "overrides": [], "allowed": 2, "denied": 1, "would_deny": 0, "near": 1, "inexact": 0,
        "decided": {"exact": 3, "local": 0, "failed-open": 0, "failed-closed": 0}});
    assert_eq!(*login, expected);
    let requests = stats["requests"].as_array().expect("requests");
    let login = requests.iter().find(|one| one["policy"] == "login").expect("the policy");
    let expected = json!({"policy": "login", "allowed": 2, "denied": 1, "would_deny": 0});
    assert_eq!(*login, expected);
    assert_eq!(
        stats["store"],
        json!({"tracked_keys": 2, "max_keys": 1_000_000, "log_entries": 2, "overflowed": 0})
    );
    let latency = &stats["latency"];
    let lengths = ["bounds_seconds", "counts"].map(|name| latency[name].as_array().map(Vec::len));
    assert_eq!(lengths, [Some(16), Some(17)]);
    assert_eq!((&stats["ready"], &stats["reloads"]["ok"]), (&json!(true), &json!(0)));
    let (config, source) = (&stats["config"], stats["config"]["source"].as_str());
    assert!(source.is_some_and(|source| source.ends_with("tidegate.yaml")), "{config}");
    assert_eq!((&config["policies"], &stats["reloads"]["last_refusal"]), (&json!(3), &json!(null)));
}

#[test]
fn rejects_invalid_admin_requests() {
    let server = Server::start("refusals", POLICIES);
    let long = format!("/admin/v1/policies/{}/keys/a", "x".repeat(500));
    let rows = [
        (
            "GET",
            "/admin/v1/policies/nobody/keys/a",
            404,
            Some("policy"),
            "there is no policy `nobody`: see /admin/v1/policies",
        ),
        (
            "GET",
            "/admin/v1/policies/Logn/keys/a",
            404,
            Some("policy"),
            "there is no policy `Logn`; did you mean `login`?",
        ),
        (
            "DELETE",
            "/admin/v1/policies/%1b%5Bm/keys/a",
            404,
            Some("policy"),
            "there is no policy `\\x1b[m`: see /admin/v1/policies",
        ),
        (
            "GET",
            "/admin/v1/policies/%ff/keys/a",
            404,
            Some("policy"),
            "the name of the policy is not UTF-8: see /admin/v1/policies",
        ),
        (
            "GET",
            &long,
            404,
            Some("policy"),
            &format!("there is no policy `{}...`: see /admin/v1/policies", "x".repeat(64)),
        ),
        (
            "GET",
            "/admin/v1/top?by=size",
            400,
            Some("by"),
            "use denied, would_deny, near, allowed or store_calls",
        ),
        ("GET", "/admin/v1/top?n=0", 400, Some("n"), "use a whole number from 1 to 1000"),
        ("GET", "/admin/v1/top?n=-1", 400, Some("n"), "use a whole number from 1 to 1000"),
        ("GET", "/admin/v1/top?n=1001", 400, Some("n"), "use a whole number from 1 to 1000"),
        (
            "GET",
            "/admin/v1/top?limit=5",
            400,
            Some("limit"),
            "it is unknown: use `by`, `policy` or `n`",
        ),
        (
            "GET",
            "/admin/v1/events?policy=login",
            400,
            Some("policy"),
            "it is unknown: use no parameters",
        ),
        (
            "GET",
            "/admin/v1/history?seconds=60",
            400,
            Some("seconds"),
            "it is unknown: use no parameters",
        ),
        (
            "DELETE",
            "/admin/v1/policies/login/keys/a?b",
            400,
            Some("b"),
            "it is unknown: use `key`, or percent-encode the key",
        ),
        ("GET", "/admin/v1/policies/login/keys?key=", 400, Some("key"), "it is empty"),
        ("GET", "/admin/v1/policies/login/keys?key=a&key=b", 400, Some("key"), "it is given twice"),
        ("GET", "/admin/v1/policies/login/keys/a?key=b", 400, Some("key"), "it is given twice"),
        (
            "GET",
            "/admin/v1/top?policy=nobody",
            404,
            Some("policy"),
            "there is no policy `nobody`: see /admin/v1/policies",
        ),
        (
            "GET",
            "/health",
            404,
            None,
            "not found: /health; see /healthz, /readyz, /metrics, /dashboard and /admin/v1/policies",
        ),
        (
            "POST",
            "/v1/check",
            404,
            None,
            "not found; checks are at the address of --http (default: 127.0.0.1:8080)",
        ),
        ("POST", "/metrics", 405, None, "method not allowed here: use GET"),
        ("DELETE", "/admin/v1/policies", 405, None, "method not allowed here: use GET"),
        (
            "POST",
            "/admin/v1/policies/login/keys/a",
            405,
            None,
            "method not allowed here: use GET, or DELETE to reset the key",
        ),
    ];
    for (method, path, status, field, detail) in rows {
        let answer = server.ask(method, path, &[]);
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        assert_eq!(answer.header("content-type"), "application/problem+json");
        let problem = answer.json();
        assert_eq!(
            (problem["field"].as_str(), problem["detail"].as_str()),
            (field, Some(detail)),
            "{method} {path}"
        );
        assert_eq!(problem["status"], status);
    }
    assert_eq!(server.get("/healthz").status, 200);
}

#[test]
fn admin_api_requires_secret() {
    let secret = [("TIDEGATE_ADMIN_TOKEN", "open-sesame")];
    let server = Server::start_with("auth", POLICIES, &[], &secret);
    let open = ["/healthz", "/readyz", "/metrics", "/dashboard", "/dashboard/dashboard.js"];
    let guarded = [
        "/admin/v1/policies",
        "/admin/v1/stats",
        "/admin/v1/fleet",
        "/admin/v1/history",
        "/admin/v1/top",
        "/admin/v1/events",
        "/admin/v1/policies/login/keys/a",
        "/admin/v1/policies/nobody/keys/a",
    ];
    for path in open {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    for path in guarded {
        for headers in
            [&[][..], &[("authorization", "Bearer open-sesam")], &[("authorization", "Bearer")]]
        {
            let answer = server.ask("GET", path, headers);
            assert_eq!(
                (answer.status, answer.header("www-authenticate")),
                (401, "Bearer"),
                "{path} {headers:?}"
            );
            assert!(answer.body.contains("TIDEGATE_ADMIN_TOKEN"), "{}", answer.body);
            assert!(!answer.body.contains("open-sesame"), "{}", answer.body);
        }
    }
    let shown = [("authorization", "Bearer open-sesame")];
    assert_eq!(server.ask("GET", "/admin/v1/policies", &shown).status, 200);
    assert_eq!(server.ask("DELETE", "/admin/v1/policies/login/keys/a", &[]).status, 401);
    assert_eq!(server.ask("DELETE", "/admin/v1/policies/login/keys/a", &shown).status, 200);
}
