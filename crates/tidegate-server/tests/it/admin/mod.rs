//! The admin front of a running server.

mod api;
mod dashboard;
mod events;
mod logs;
mod masking;
mod metrics;
mod plain_keys;
mod readiness;
mod requests;
mod server;

/// The policies below with full keys, for tests of escaping.
fn with_full_keys() -> String {
    format!("log_keys: full\n{POLICIES}")
}

/// One policy of each kind, with windows that do not end during a test.
const POLICIES: &str = r#"
policies:
  - name: login
    match: { methods: [POST], path: /login }
    key: "{client_ip}"
    limits: ["2 per 1h sliding-log", "100 per 1d"]
  - name: api
    match: { path: "/api/**" }
    key: "{header:x-api-key | client_ip}"
    limits: ["1000 per 1h"]
    exempt: { client_ip: [192.168.0.0/16] }
    overrides:
      - when: { "header:x-org": [acme] }
        limits: ["5000 per 1h"]
  - name: watched
    match: { path: /reports }
    key: "{header:x-user}:{path}"
    limits: ["1 per 1h"]
    mode: observe
"#;
