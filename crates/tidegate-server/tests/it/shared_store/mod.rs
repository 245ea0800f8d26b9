//! Counts in a shared store, as callers, gateways and operators see them.
//!
//! - `live_redis.rs`: with a real `redis-server`; `sentinel_and_cluster.rs`: with several of them;
//! - `fleet.rs`: servers that know each other;
//! - `store_outage.rs`: while the store is unreachable;
//! - `documented_setup.rs`: the setup in the documentation;
//! - `secrets.rs`: the password of the store is never shown.

mod documented_setup;
mod fleet;
mod live_redis;
pub mod redis_servers;
mod secrets;
mod sentinel_and_cluster;
mod store_outage;

use serde_json::{Value, json};

use crate::server_harness::{Server, Start};

/// One policy for each `on_store_failure`, and permits.
const POLICIES: &str = r#"
policies:
  - name: here
    match: { path: /here }
    key: "{client_ip}"
    limits: ["9 per 1h sliding-log"]
  - name: open
    match: { path: [/open, /both] }
    key: "{client_ip}"
    limits: ["2 per 1h sliding-log"]
    on_store_failure: allow
  - name: closed
    match: { path: [/closed, /both] }
    key: "{client_ip}"
    limits: ["2 per 1h sliding-log"]
    on_store_failure: deny
  - name: jobs
    match: { path: /jobs }
    key: "{client_ip}"
    limits: ["6 concurrent lease 30s"]
  - name: closed-jobs
    match: { path: /closed-jobs }
    key: "{client_ip}"
    limits: ["6 concurrent lease 30s"]
    on_store_failure: deny
  - name: costly
    match: { path: /costly }
    key: "{client_ip}"
    limits: ["9 per 1h sliding-log"]
    cost: 4
  - name: slow
    match: { path: /slow }
    key: "{client_ip}"
    limits: ["1 per 300ms sliding-log"]
    deny_cache: false
"#;

/// Configures one of three nodes over this store. Test machines can be slow, so the store gets a
/// long timeout.
fn node(test: &str, store: &str) -> Start {
    let settings = format!("store: {store}\nstore_timeout: 5s\nnodes: 3\n");
    Start::new(test).config(&format!("{settings}{POLICIES}"))
}

/// Checks a policy. Returns whether the check was allowed, how it was decided, and the units left.
fn check(server: &Server, policy: &str, key: &str) -> Value {
    let reply = server.check(&format!(r#"{{"policy":"{policy}","key":"{key}"}}"#));
    assert_eq!(reply.status, 200, "{reply:?}");
    let answer = reply.json();
    json!([answer["allowed"], answer["decided"], answer["remaining"]])
}

/// Sends a forward-auth request. Returns the status, and the type of the problem, if any.
fn forward(server: &Server, path: &str) -> (u16, Option<String>) {
    let reply = server.ask("GET", &format!("/v1/forward-auth{path}"), &[], "");
    let problem = (reply.status != 200).then(|| reply.json()["type"].as_str().map(str::to_owned));
    (reply.status, problem.flatten())
}

const EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
