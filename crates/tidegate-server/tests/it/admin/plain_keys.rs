//! Plain values resolve to the key that a policy counts under.

use serde_json::{Value, json};

use super::server::Server;

const POLICIES: &str = r#"
policies:
  - name: api
    match: { path: /api }
    key: "{header:x-api-key | client_ip}"
    limits: ["1 per 1h sliding-log"]
    overrides:
      - when: { "header:x-org": acme }
        limits: ["2 per 1d sliding-log"]
  - name: web
    match: { path: /web }
    key: "{header:x-user | cookie:sid}"
    limits: ["1 per 1h sliding-log"]
  - name: named
    match: { path: /named }
    key: "user/{header:x-user}"
    limits: ["1 per 1h sliding-log"]
  - name: address
    match: { path: /address }
    key: "{client_ip}"
    limits: ["1 per 1h sliding-log"]
  - name: both
    match: { path: /both }
    key: "{header:x-user}:{path}"
    limits: ["1 per 1h sliding-log"]
  - name: closed
    match: { path: /closed }
    key: "{header:x-api-key | client_ip}"
    limits: ["0 per 1h sliding-log"]
"#;

fn path(policy: &str, key: &str) -> String {
    let key: String = key.bytes().map(|byte| format!("%{byte:02x}")).collect();
    format!("/admin/v1/policies/{policy}/keys?key={key}")
}

/// Peeks at a key. Returns the resolved key, whether it was seen, and whether a request would pass.
fn peek(server: &Server, policy: &str, key: &str) -> Value {
    let answer = server.get(&path(policy, key));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answer = answer.json();
    json!([answer["key"], answer["seen"], answer["allowed"]])
}

/// Issue 15, item 13: `k-live-2` "would pass" while `header:x-api-key=k-live-2` was denied.
#[test]
fn plain_value_resolves_to_its_key() {
    let server = Server::start("plain", POLICIES);
    let requests = [
        r#"{"path":"/api","headers":{"x-api-key":"k-live-2"}}"#,
        r#"{"path":"/api","headers":{"x-api-key":"k-org","x-org":"acme"}}"#,
        r#"{"path":"/api","client_ip":"192.0.2.1"}"#,
        r#"{"path":"/api","client_ip":"2001:db8::1"}"#,
        r#"{"path":"/named","headers":{"x-user":"alice"}}"#,
        r#"{"path":"/address","client_ip":"2001:db8::1"}"#,
        r#"{"path":"/both","headers":{"x-user":"alice"}}"#,
        r#"{"path":"/closed","headers":{"x-api-key":"k-live-2"}}"#,
    ];
    for attributes in requests {
        server.check(attributes, &[]);
    }
    let rows = [
        ("api", "k-live-2", json!(["header:x-api-key=k-live-2", true, false])),
        ("api", "header:x-api-key=k-live-2", json!(["header:x-api-key=k-live-2", true, false])),
        // Counted under the limits of an override.
        ("api", "k-org", json!(["header:x-api-key=k-org", true, true])),
        ("api", "192.0.2.1", json!(["client_ip=192.0.2.1", true, false])),
        ("api", "2001:db8::99", json!(["client_ip=2001:db8::/64", true, false])),
        ("named", "alice", json!(["user/alice", true, false])),
        ("address", "2001:db8::99", json!(["2001:db8::/64", true, false])),
        ("address", "2001:db8::/64", json!(["2001:db8::/64", true, false])),
        ("both", "5#alice:5#/both", json!(["5#alice:5#/both", true, false])),
        // Denied, although nothing is counted.
        ("closed", "k-live-2", json!(["header:x-api-key=k-live-2", true, false])),
        // Never seen: the key that a request would be counted under, if it is unambiguous.
        ("api", "nobody", json!(["header:x-api-key=nobody", false, true])),
        ("api", "192.0.2.9", json!(["192.0.2.9", false, true])),
        ("address", "192.0.2.9", json!(["192.0.2.9", false, true])),
        ("both", "alice", json!(["alice", false, true])),
    ];
    for (policy, key, expected) in rows {
        assert_eq!(peek(&server, policy, key), expected, "{policy} {key}");
    }
    let reset = server.ask("DELETE", &path("api", "k-live-2"), &[]).json();
    let expected = json!({"policy": "api", "key": "header:x-api-key=k-live-2", "reset": true});
    assert_eq!(reset, expected);
    assert_eq!(peek(&server, "api", "k-live-2")[2], true);
    assert_eq!(server.ask("DELETE", &path("api", "nobody"), &[]).json()["reset"], false);
}

#[test]
fn rejects_ambiguous_plain_values() {
    let server = Server::start("several", POLICIES);
    server.check(r#"{"path":"/web","headers":{"x-user":"alice"}}"#, &[]);
    assert_eq!(peek(&server, "web", "alice")[0], "header:x-user=alice");
    server.check(r#"{"path":"/web","headers":{"cookie":"sid=alice"}}"#, &[]);
    for method in ["GET", "DELETE"] {
        let refused = server.ask(method, &path("web", "alice"), &[]);
        assert_eq!((refused.status, &refused.json()["field"]), (409, &json!("key")));
        for form in ["`header:x-user=alice`", "`cookie:sid=alice`"] {
            assert!(refused.body.contains(form), "{}", refused.body);
        }
    }
    // A full form is not ambiguous. A key that a caller has given is used as it is, and the others
    // are listed.
    assert_eq!(peek(&server, "web", "cookie:sid=alice")[0], "cookie:sid=alice");
    server.check_body(r#"{"policy":"web","key":"alice"}"#, &[]);
    let answer = server.get(&path("web", "alice")).json();
    assert_eq!((&answer["key"], &answer["seen"]), (&json!("alice"), &json!(true)));
    assert_eq!(answer["also_seen"], json!(["header:x-user=alice", "cookie:sid=alice"]));
}
