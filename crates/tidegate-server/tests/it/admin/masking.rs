//! Keys from headers, cookies and queries: masked wherever people read them, and the masked form
//! resolves to the key.

use std::io::Read;

use serde_json::{Value, json};
use tidegate_testkit::eventually;

use super::server::Server;
use crate::server_harness::{Start, request};

/// One policy per kind of key. The second request of a client is denied.
const CREDENTIALS: &str = r#"
policies:
  - name: header
    match: { path: "/header" }
    key: "{header:x-api-key | client_ip}"
    limits: ["1 per 1h sliding-log"]
  - name: bearer
    match: { path: "/bearer" }
    key: "{header:authorization}"
    limits: ["1 per 1h sliding-log"]
  - name: cookie
    match: { path: "/cookie" }
    key: "{cookie:sid}"
    limits: ["1 per 1h sliding-log"]
  - name: query
    match: { path: "/query" }
    key: "{query:token}"
    limits: ["1 per 1h sliding-log"]
  - name: composed
    match: { path: "/composed" }
    key: "{header:x-api-key}:{path}"
    limits: ["1 per 1h sliding-log"]
    mode: observe
"#;

/// A part of every secret in the requests below.
const SECRET: &str = "5ecret-4f9a";

/// One request per policy. The first also has the secret in a path parameter.
const REQUESTS: [(&str, &str); 6] = [
    (
        "header",
        r#"{"path":"/header;jsessionid=5ecret-4f9a","headers":{"x-api-key":"sk_live_5ecret-4f9a"}}"#,
    ),
    ("bearer", r#"{"path":"/bearer","headers":{"authorization":"Bearer 5ecret-4f9a.LONG"}}"#),
    ("cookie", r#"{"path":"/cookie","headers":{"cookie":"sid=5ecret-4f9a"}}"#),
    ("query", r#"{"path":"/query?token=abc-5ecret-4f9a"}"#),
    ("composed", r#"{"path":"/composed","headers":{"x-api-key":"sk_live_5ecret-4f9a"}}"#),
    ("header", r#"{"path":"/header","client_ip":"192.0.2.7"}"#),
];

/// Sends every request until its policy has denied it once.
fn deny_all(server: &Server) {
    // A bearer token that is longer than a log line shows.
    let long = "x".repeat(600);
    for (policy, attributes) in REQUESTS {
        let attributes = attributes.replace("LONG", &long);
        for _ in 0..2 {
            let body = format!(r#"{{"policy":"{policy}","attributes":{attributes}}}"#);
            server.check_body(&body, &[]);
        }
    }
}

fn denials(server: &Server) -> Vec<Value> {
    let log = server.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["target"] == "tidegate::denials").collect()
}

/// Reads the stream of denials until it contains every request above.
fn events(server: &Server) -> String {
    let mut stream = server.open(&request("GET", "/admin/v1/events", &[], ""));
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        received.extend_from_slice(&buffer[..read]);
        if String::from_utf8_lossy(&received).matches("event: denial").count() == REQUESTS.len() {
            break;
        }
    }
    String::from_utf8_lossy(&received).into_owned()
}

/// Returns the keys in the ranking of a policy: `(name, encoded)`.
fn ranked(server: &Server, policy: &str) -> Vec<(String, Option<String>)> {
    let by = if policy == "composed" { "would_deny" } else { "denied" };
    let top = server.get(&format!("/admin/v1/top?by={by}&policy={policy}")).json();
    let entries = top["keys"]["entries"].as_array().expect("entries").clone();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    entries.iter().map(|one| (text(&one["name"]).expect("text"), text(&one["encoded"]))).collect()
}

/// Returns whether the text is `before`, 16 hex digits and `behind`.
fn is_masked(text: &str, before: &str, behind: &str) -> bool {
    let hash = text.strip_prefix(before).and_then(|rest| rest.strip_suffix(behind));
    let is_hex = |hash: &str| hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    hash.is_some_and(|hash| hash.len() == 16 && is_hex(hash))
}

const FULL_LOG: [(&str, &str); 1] = [("RUST_LOG", "trace")];

/// Issue 15, item 9: credentials in logs by default.
#[test]
fn credentials_are_masked_everywhere() {
    let json = ["--log-format", "json"];
    let server = Server::start_with("masked", CREDENTIALS, &json, &FULL_LOG);
    deny_all(&server);
    eventually("all denials are logged", || denials(&server).len() == REQUESTS.len());
    // Peeking and resetting by the key itself is logged as well.
    let path = "/admin/v1/policies/header/keys/header%3Ax-api-key%3Dsk_live_5ecret-4f9a";
    assert_eq!(server.ask("GET", path, &[]).status, 200);
    let logged: Vec<Value> = denials(&server).iter().map(|line| line["key"].clone()).collect();
    let pages = ["denied", "would_deny", "near"].map(|by| {
        let page = server.get(&format!("/admin/v1/top?by={by}"));
        page.body
    });
    assert_eq!(server.ask("DELETE", path, &[]).json()["reset"], true);
    eventually("the reset is logged", || server.log().contains("key reset"));
    let pages =
        [&pages[..], &[events(&server), server.log(), server.get("/metrics").body]].concat();
    for page in &pages {
        assert!(!page.contains(SECRET), "{page}");
    }
    let forms = [
        ("header:x-api-key=sk_l...#", ""),
        ("Bear...#", ""),
        ("5e...#", ""),
        ("abc...#", ""),
        ("24#sk_l...#", ":9#/composed"),
    ];
    for ((before, behind), key) in forms.iter().zip(&logged) {
        let key = key.as_str().expect("text");
        assert!(is_masked(key, before, behind), "{key}");
    }
    // Addresses are not masked.
    assert_eq!(logged[5], "client_ip=192.0.2.7");
    // A value has the same masked form in every part of a key.
    let hash =
        |key: &Value| key.as_str().and_then(|key| Some(key.split_once("...#")?.1[..16].to_owned()));
    assert_eq!(hash(&logged[0]), hash(&logged[4]));
    assert_ne!(hash(&logged[0]), hash(&logged[1]));
    let reset = server.log();
    let reset = reset.lines().find(|line| line.contains("key reset")).expect("a line").to_owned();
    let reset: Value = serde_json::from_str(&reset).expect("JSON");
    assert_eq!(reset["key"], logged[0]);
}

#[test]
fn masked_key_resolves_to_its_key() {
    let server = Server::start("unmask", CREDENTIALS);
    deny_all(&server);
    for policy in ["header", "bearer", "cookie", "query", "composed"] {
        let keys = ranked(&server, policy);
        let (name, encoded) = keys.iter().find(|(name, _)| name.contains("...#")).expect("a form");
        let encoded = encoded.as_deref().expect("an encoded key");
        let path = format!("/admin/v1/policies/{policy}/keys/{encoded}");
        let seen = server.get(&path).json();
        assert_eq!((&seen["key"], &seen["limits"][0]["remaining"]), (&json!(name), &json!(0)));
        let reset = server.ask("DELETE", &path, &[]).json();
        assert_eq!((&reset["key"], &reset["reset"]), (&json!(name), &json!(true)));
        assert_eq!(server.get(&path).json()["limits"][0]["remaining"], 1);
    }
    // A key that was never denied, and one of another policy.
    let strangers = [
        "header:x-api-key=sk_l...#0123456789abcdef".to_owned(),
        ranked(&server, "query")[0].0.clone(),
    ];
    for stranger in strangers {
        let path = format!("/admin/v1/policies/header/keys?key={}", stranger.replace('#', "%23"));
        for method in ["GET", "DELETE"] {
            let refused = server.ask(method, &path, &[]);
            assert_eq!((refused.status, &refused.json()["field"]), (404, &json!("key")));
            assert!(refused.body.contains("or the key itself"), "{}", refused.body);
        }
    }
}

#[test]
fn log_keys_setting_controls_masking() {
    let full = format!("log_keys: full\n{CREDENTIALS}");
    let server = Server::start_with("full", &full, &["--log-format", "json"], &[]);
    deny_all(&server);
    eventually("all denials are logged", || denials(&server).len() == REQUESTS.len());
    assert_eq!(denials(&server)[0]["key"], "header:x-api-key=sk_live_5ecret-4f9a");
    assert!(ranked(&server, "cookie")[0].0 == SECRET);
    // A reload also changes how earlier keys are shown.
    server.files.write("tidegate.yaml", CREDENTIALS);
    server.signal("-HUP");
    eventually("the key is masked", || ranked(&server, "cookie")[0].0.starts_with("5e...#"));

    let off = format!("log_keys: off\n{CREDENTIALS}");
    let server = Server::start_with("off", &off, &["--log-format", "json"], &[]);
    deny_all(&server);
    eventually("all denials are logged", || denials(&server).len() == REQUESTS.len());
    assert!(denials(&server).iter().all(|line| line.get("key").is_none()), "{}", server.log());
    assert_eq!(server.get("/admin/v1/top").json()["keys"]["entries"], json!([]));
    assert!(!events(&server).contains("192.0.2.7"));
}

/// With the same `mask_secret` all servers mask a key alike: the first 64 bits of HMAC-SHA256.
#[test]
fn mask_secret_gives_equal_masks_on_nodes() {
    // printf sk_live_5ecret-4f9a | openssl dgst -sha256 -hmac 0123456789abcdef0123456789abcdef
    let form = "header:x-api-key=sk_l...#4bba5c43e82f76f1";
    let shown = |server: &Server| {
        deny_all(server);
        ranked(server, "header").iter().any(|(name, _)| name == form)
    };
    let secret = "0123456789abcdef0123456789abcdef";
    let in_file = format!("mask_secret: {secret}\n{CREDENTIALS}");
    assert!(shown(&Server::start("secret-file", &in_file)));
    let env = [("TIDEGATE_MASK_SECRET", secret)];
    let other = format!("mask_secret: another-secret-of-32-characters.\n{CREDENTIALS}");
    assert!(
        shown(&Server::start_with("secret-env", &other, &[], &env)),
        "the environment takes precedence"
    );
    // Without `mask_secret` each process has a random one.
    assert!(!shown(&Server::start("secret-none", CREDENTIALS)));
}

#[test]
fn rejects_weak_mask_secret_without_printing_it() {
    let config = format!("mask_secret: hunter2\n{CREDENTIALS}");
    let (code, message) = Start::new("admin-secret-short").config(&config).fails();
    assert_eq!(code, 1, "{message}");
    assert!(
        message.contains("field: mask_secret") && message.contains("openssl rand -hex 32"),
        "{message}"
    );
    assert!(!message.contains("hunter2"), "{message}");
    let start = Start::new("admin-secret-env").config(CREDENTIALS);
    let (code, message) = start.env("TIDEGATE_MASK_SECRET", "hunter2").fails();
    assert_eq!(code, 1, "{message}");
    assert!(message.contains("TIDEGATE_MASK_SECRET") && !message.contains("hunter2"), "{message}");
}
