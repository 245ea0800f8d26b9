//! The HTTP front, as callers and gateways use it.

mod check;
mod documented_commands;
mod forward_auth;
mod openapi;
mod pages;
mod permits;
mod rejections;

use serde_json::{Map, Value};

use crate::server_harness::{Server, Start};

/// Policies of every kind, with windows that do not end during a test.
const POLICIES: &str = r#"
policies:
  - name: login
    match: { methods: [POST], path: /login }
    key: "{client_ip}"
    limits: ["2 per 1h sliding-log"]
  - name: api
    match: { path: "/api/**" }
    key: "{header:x-api-key | client_ip}"
    limits: ["5 per 1h", "100 per 1d token-bucket"]
    exempt: { client_ip: [192.168.0.0/16] }
    overrides:
      - when: { "header:x-org": acme }
        limits: ["50 per 1h"]
  - name: watched
    match: { path: "/api/**" }
    key: "{client_ip}"
    limits: ["1 per 1h sliding-log"]
    mode: observe
  - name: retired
    key: "{client_ip}"
    limits: ["1 per 1h"]
    mode: off
  - name: jobs
    match: { path: /jobs }
    key: "{client_ip}"
    limits: ["2 concurrent lease 30s", "10 per 1h sliding-log"]
  - name: metered
    match: { path: /metered }
    key: "{client_ip}"
    cost: "{header:x-cost}"
    limits: ["10 per 1h sliding-log"]
  - name: short
    match: { path: /short }
    key: "{client_ip}"
    limits: ["1 per 300ms sliding-log"]
"#;

fn serve(test: &str) -> Server {
    Start::new(test).config(POLICIES).run()
}

/// Returns the value without the parts that depend on time: waits become `"later"`.
fn timeless(value: &Value) -> Value {
    let is_wait = |name: &str| name == "retry_after_ms" || name == "reset_after_ms";
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, field)| match field.as_u64() {
                Some(1..) if is_wait(name) => (name.clone(), "later".into()),
                _ => (name.clone(), timeless(field)),
            });
            Value::Object(fields.collect::<Map<_, _>>())
        }
        Value::Array(values) => values.iter().map(timeless).collect(),
        value => value.clone(),
    }
}
