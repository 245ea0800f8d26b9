//! Configs of envoyproxy/ratelimit, converted and served, and the endpoint `/json`.

use std::fs;

use serde_json::{Value, json};

use crate::cli_harness::{Files, tidegate};
use crate::server_harness::{Reply, Server, Start, wait_for};

const MESSAGING: &str = "
domain: messaging
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - { key: to_number, rate_limit: { unit: day, requests_per_unit: 3 } }
  - { key: to_number, rate_limit: { unit: day, requests_per_unit: 100 }, detailed_metric: true }
  - { key: to_number, value: 'blocked*', rate_limit: { unit: day, requests_per_unit: 0 } }
  - { key: to_number, value: staff, rate_limit: { unlimited: true, requests_per_unit: 1 } }
";

const EDGE: &str = "
domain: edge
descriptors:
  - { key: remote_address, rate_limit: { unit: day, requests_per_unit: 2, name: per-address } }
";

fn directory(test: &str) -> Files {
    let files = Files::new(test);
    files.write("messaging.yaml", MESSAGING);
    files.write("edge.yaml", EDGE);
    files
}

fn ask(server: &Server, domain: &str, descriptors: &[&[(&str, &str)]]) -> Reply {
    let descriptors: Vec<Value> = descriptors
        .iter()
        .map(|entries| {
            let entries = entries.iter().map(|(key, value)| json!({ "key": key, "value": value }));
            json!({ "entries": entries.collect::<Vec<_>>() })
        })
        .collect();
    let body = json!({ "domain": domain, "descriptors": descriptors });
    server.post("/json", &body.to_string())
}

/// Returns the units left of the limit that a descriptor selects.
fn left(server: &Server, domain: &str, entries: &[(&str, &str)]) -> Option<u64> {
    let entries: Vec<Value> =
        entries.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
    let body =
        json!({ "domain": domain, "descriptors": [{ "entries": entries, "hitsAddend": 0 }] });
    let status = &server.post("/json", &body.to_string()).json()["statuses"][0];
    status.get("currentLimit")?;
    Some(status["limitRemaining"].as_u64().unwrap_or_default())
}

#[test]
fn serves_the_converted_config() {
    let files = directory("envoy-converted");
    let directory = files.path("");
    let rows: [(&[&str], &str); 3] = [
        (&[], "sliding-window"),
        (&["--algorithm", "sliding-counter"], "sliding-counter"),
        (&["--algorithm", "fixed-window"], "fixed-window"),
    ];
    for (options, algorithm) in rows {
        let both = [&["config", "convert", "--from", "envoy"], options].concat();
        let run = tidegate(&[&both[..], &[&directory]].concat()).succeeded();
        for warning in ["`requests_per_unit` does nothing", "`detailed_metric` is left out"] {
            assert!(run.stderr.contains(&format!("warning: {warning}")), "{}", run.stderr);
        }
        let listed = [files.path("edge.yaml"), files.path("messaging.yaml")];
        let listed = [&both[..], &[&listed[0], &listed[1]]].concat();
        assert_eq!(tidegate(&listed).succeeded().stdout, run.stdout);
        let out = Files::new("envoy-converted-out");
        let path = out.write("tidegate.yaml", &run.stdout);
        let checked = tidegate(&["config", "check", &path]).succeeded().stdout;
        assert!(checked.ends_with("is fine: 5 policies, 4 limits, 0 overrides\n"), "{checked}");
        let of_files = [&["--envoy-config", &directory], options].concat();
        let of_files = Start::new("envoy-served").args(&of_files).run();
        let of_config = Start::new("envoy-served-config").config(&run.stdout).run();
        let policies = |server: &Server| server.admin_get("/admin/v1/policies").json();
        assert_eq!(policies(&of_files), policies(&of_config));
        assert!(policies(&of_files).to_string().contains(algorithm));
    }
}

#[test]
fn conversion_error_shows_line_and_field() {
    let files = Files::new("envoy-bad");
    let path = files.write("a.yaml", "domain: a\ndescriptors:\n  - key: k\n    ratelimit: 5\n");
    let run = tidegate(&["config", "convert", "--from", "envoy", &path]);
    let expected = format!(
        "error: unknown field `ratelimit`\n --> {path}:4:5\n  |\n4 |     ratelimit: 5\n  |     ^^^^^^^^^\n  \
         field: descriptors[0].ratelimit\n  help: did you mean `rate_limit`?\n"
    );
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (1, "", &*expected));
    let serve = |args: &[&str]| Start::new("envoy-bad-serve").args(args).fails();
    assert_eq!(serve(&["--envoy-config", &files.path("")]), (1, expected));
    tidegate(&["config", "convert", "--from", "envoy", "no/such"]).failed(1, &["cannot be read"]);
    tidegate(&["config", "convert", "--from", "nginx", &path])
        .failed(2, &["possible values: envoy"]);
    let wrong = ["config", "convert", "--from", "envoy", "--algorithm", "concurrency", &path];
    tidegate(&wrong)
        .failed(2, &["use sliding-log, sliding-window, sliding-counter, fixed-window or"]);
    let empty = Files::new("envoy-empty");
    let (code, message) = serve(&["--envoy-config", &empty.path("")]);
    assert!(
        code == 1 && message.starts_with("error: there is no *.yaml file in this directory"),
        "{message}"
    );
}

#[test]
fn converted_limits_deny_and_report_their_descriptor() {
    let files = directory("envoy-decisions");
    let server = Start::new("envoy-decisions-server").env("TIDEGATE_ENVOY_CONFIG", &files.path(""));
    let server = server.run();
    assert!(server.printed.contains("5 policies from "), "{}", server.printed);
    server.logged("messaging.yaml:10: descriptors[3].rate_limit.requests_per_unit: ");
    let marketing: &[(&str, &str)] = &[("message_type", "marketing"), ("to_number", "1")];
    let number: &[(&str, &str)] = &[("to_number", "1")];
    for remaining in [2, 1, 0] {
        let reply = ask(&server, "messaging", &[marketing, number]);
        assert_eq!(reply.status, 200);
        let body = reply.json();
        assert_eq!(body["statuses"][0]["limitRemaining"].as_u64().unwrap_or_default(), remaining);
    }
    let denied = ask(&server, "messaging", &[marketing, number]);
    assert_eq!((denied.status, denied.header("content-type")), (429, Some("application/json")));
    let body = denied.json();
    assert_eq!(body["overallCode"], "OVER_LIMIT");
    let limit = json!({ "name": "messaging.message_type_marketing.to_number", "requestsPerUnit": 3, "unit": "DAY" });
    assert_eq!(
        (&body["statuses"][0]["code"], &body["statuses"][0]["currentLimit"]),
        (&json!("OVER_LIMIT"), &limit)
    );
    let wait = body["statuses"][0]["durationUntilReset"].as_str().expect("a time");
    assert!(wait.ends_with('s') && wait.len() > 2, "{wait}");
    // The denial charged nothing.
    assert_eq!(
        (&body["statuses"][1]["code"], &body["statuses"][1]["limitRemaining"]),
        (&json!("OK"), &json!(97))
    );
    let headers = body["responseHeadersToAdd"].as_array().expect("headers");
    assert!(headers.iter().any(|header| header["key"] == "retry-after"), "{headers:?}");
    assert_eq!(
        body["dynamicMetadata"]["denied_by"],
        json!(["messaging.message_type_marketing.to_number"])
    );
    let blocked = ask(&server, "messaging", &[&[("to_number", "blocked-7")]]);
    assert_eq!(blocked.status, 429);
    let staff = ask(&server, "messaging", &[&[("to_number", "staff")]]).json();
    assert_eq!(
        staff,
        json!({ "overallCode": "OK", "statuses": [{ "code": "OK", "limitRemaining": u32::MAX }] })
    );
    let unknown = ask(&server, "nowhere", &[number]).json();
    assert_eq!(unknown, json!({ "overallCode": "OK", "statuses": [{ "code": "OK" }] }));
    assert_eq!(left(&server, "edge", &[("remote_address", "192.0.2.1")]), Some(2));
}

#[test]
fn reloads_envoy_files() {
    let files = directory("envoy-reloads");
    let server =
        Start::new("envoy-reloads-server").args(&["--envoy-config", &files.path("")]).run();
    let address: &[(&str, &str)] = &[("remote_address", "192.0.2.1")];
    assert_eq!(ask(&server, "edge", &[address]).status, 200);
    files.replace("edge.yaml", EDGE.replace("requests_per_unit: 2", "requests_per_unit: 20"));
    wait_for(|| (left(&server, "edge", address) == Some(19)).then_some(()));
    // An error in one file leaves all limits unchanged.
    files.replace("messaging.yaml", "domain: edge");
    let refused = "tidegate_reloads_total{result=\"refused\"}";
    wait_for(|| (server.metric(refused) == Some(1)).then_some(()));
    assert!(server.log().contains("another file has the domain `edge` too"), "{}", server.log());
    assert_eq!(left(&server, "messaging", &[("to_number", "1")]), Some(100));
    fs::remove_file(files.path("messaging.yaml")).expect("the file is removed");
    wait_for(|| left(&server, "messaging", &[("to_number", "1")]).is_none().then_some(()));
    assert_eq!(left(&server, "edge", address), Some(19));
}

#[test]
fn combines_envoy_files_with_config() {
    let files = directory("envoy-beside");
    let envoy = files.path("");
    let start = |test: &str, config: &str| {
        Start::new(test).config(config).args(&["--envoy-config", &envoy])
    };
    // The settings of the config apply. It needs no policies.
    let settings = start("envoy-beside-settings", "headers: [none]\nmax_keys: 5000\n").run();
    let reply = ask(&settings, "edge", &[&[("remote_address", "192.0.2.1")]]).json();
    assert_eq!((&reply["overallCode"], reply.get("responseHeadersToAdd")), (&json!("OK"), None));
    let policy = |name: &str| {
        format!(
            "policies: [{{ name: {name}, match: {{ domain: edge }}, key: '{{domain}}', limits: 3 per 1d }}]"
        )
    };
    // The policies of the config precede the others.
    let both = start("envoy-beside-both", &policy("whole-domain")).run();
    let names = both.admin_get("/admin/v1/policies").json();
    let names: Vec<&str> = names["policies"]
        .as_array()
        .expect("policies")
        .iter()
        .filter_map(|p| p["name"].as_str())
        .collect();
    assert_eq!(names[..2], ["whole-domain", "per-address"]);
    for (address, status) in
        [("192.0.2.1", 200), ("192.0.2.2", 200), ("192.0.2.3", 200), ("192.0.2.4", 429)]
    {
        assert_eq!(ask(&both, "edge", &[&[("remote_address", address)]]).status, status);
    }
    let (code, message) = start("envoy-beside-clash", &policy("per-address")).fails();
    let expected = "error: policy `per-address` of --config has the same name as a limit of --envoy-config: rename it in --config\n";
    assert!(code == 1 && message.ends_with(expected), "{message}");
}

/// The request body, the status, and the field in the error.
#[test]
fn json_endpoint_accepts_valid_requests_and_names_invalid_fields() {
    let server = Start::new("envoy-json").run();
    let entry = r#"{"entries":[{"key":"a","value":"b"}]"#;
    let of = |rest: &str| format!(r#"{{"domain":"d","descriptors":[{entry}{rest}}}]}}"#);
    let limit = |limit: &str| of(&format!(r#","limit":{limit}"#));
    #[rustfmt::skip]
    let rows: Vec<(String, u16, &str)> = vec![
        ("".into(), 400, ""),
        ("}".into(), 400, ""),
        ("[]".into(), 400, ""),
        (r#"{"domain":"d"}"#.into(), 400, "descriptors"),
        (r#"{"domain":"","descriptors":[]}"#.into(), 400, "domain"),
        (r#"{"domain":null,"descriptors":[]}"#.into(), 400, "domain"),
        (r#"{"domain":"d","descriptors":[{}]}"#.into(), 400, "descriptors[0].entries"),
        (r#"{"domain":"d","descriptors":[{"entries":[{"value":"b"}]}]}"#.into(), 400, "descriptors[0].entries[0].key"),
        (r#"{"domain":"d","descriptors":[{"entries":[{"key":"a","colour":"b"}]}]}"#.into(), 400, "descriptors[0].entries[0].colour"),
        (of(""), 200, ""),
        (of(r#","hitsAddend":3"#), 200, ""),
        (of(r#","hits_addend":"3","is_negative_hits":true"#), 200, ""),
        (of(r#","hitsAddend":null,"isNegativeHits":null,"limit":null"#), 200, ""),
        (of(r#","hitsAddend":-1"#), 400, "descriptors[0].hitsAddend"),
        (of(r#","hitsAddend":1.5"#), 400, "descriptors[0].hitsAddend"),
        (of(r#","hitsAddend":"x""#), 400, "descriptors[0].hitsAddend"),
        (of(r#","hitsAddend":18446744073709551615"#), 429, ""),
        (limit(r#"{"requestsPerUnit":2,"unit":"HOUR"}"#), 200, ""),
        // Two descriptors with conflicting limits: the stricter one applies to both.
        (format!(
            r#"{{"domain":"d","descriptors":[{entry},"limit":{{"requestsPerUnit":2,"unit":"WEEK"}}}},{entry},"limit":{{"requests_per_unit":"1","unit":7}}}}]}}"#
        ), 429, ""),
        (limit(r#"{"requestsPerUnit":1}"#), 400, "descriptors[0].limit.unit"),
        (limit(r#"{"requestsPerUnit":4294967296,"unit":"DAY"}"#), 400, "descriptors[0].limit.requestsPerUnit"),
        (limit(r#"{"unit":"FORTNIGHT"}"#), 400, "descriptors[0].limit.unit"),
        (limit(r#"{"unit":"DAY"}"#), 429, ""),
    ];
    for (body, status, field) in rows {
        let reply = server.post("/json", &body);
        assert_eq!(reply.status, status, "{body}: {}", reply.text());
        let found = reply.json();
        assert_eq!(found["field"].as_str().unwrap_or_default(), field, "{body}: {}", reply.text());
    }
    assert_eq!(server.ask("GET", "/json", &[], "").status, 405);
    let large = format!(r#"{{"domain":"{}"}}"#, "x".repeat(1 << 20));
    assert_eq!(server.post("/json", &large).status, 413);
    // The default policy counts by address.
    let reply = ask(&server, "d", &[&[("remote_address", "192.0.2.1")]]).json();
    assert_eq!(reply["statuses"][0]["currentLimit"]["name"], "default");
}

#[test]
fn json_endpoint_requires_secret() {
    let server =
        Start::new("envoy-json-secret").env("TIDEGATE_TOKENS", "0123456789abcdef0123").run();
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"a"}]}]}"#;
    assert_eq!(server.post("/json", body).status, 401);
    // As in envoyproxy/ratelimit, health probes need no secret.
    let health = server.ask("GET", "/healthcheck", &[], "");
    assert_eq!((health.status, &*health.text()), (200, "OK"));
    assert_eq!(server.post("/healthcheck", "").status, 405);
    let secret = ("authorization", "Bearer 0123456789abcdef0123");
    assert_eq!(server.ask("POST", "/json", &[secret], body).status, 200);
}

/// Limits in requests use the configured algorithm.
#[test]
fn request_limits_use_configured_algorithm() {
    let server = Start::new("envoy-json-algorithm").args(&["--algorithm", "token-bucket"]).run();
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"a"}],"limit":{"requestsPerUnit":10,"unit":"YEAR"}}]}"#;
    let wait = |reply: &Reply| {
        let text =
            reply.json()["statuses"][0]["durationUntilReset"].as_str().expect("a time").to_owned();
        text.trim_end_matches('s').parse::<f64>().expect("seconds")
    };
    // A bucket refills one unit at a time: one of ten units takes a tenth of a year.
    let reset = wait(&server.post("/json", body));
    assert!((3_153_599.0..=3_153_600.0).contains(&reset), "{reset}");
}
