//! Configs from an xDS control plane, with Envoy's messages and grpcio for Python
//! (`control_plane.py`).
//!
//! - `updates.rs`: accepted and rejected configs;
//! - `connection.rs`: lost connections, TLS, bounds, settings;
//! - `envoy_gateway.rs`: the deployment that Envoy Gateway creates.

mod connection;
mod envoy_gateway;
mod updates;

use serde_json::{Value, json};

use crate::grpc::PythonScript;
use crate::server_harness::{Server, Start, wait_for};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/xds/control_plane.py");

/// A Python process with a control plane.
struct ControlPlane {
    script: PythonScript,
    port: u64,
}

impl ControlPlane {
    /// Starts to listen on a free port. `tls` may have `ca`, `cert` and `key`.
    fn new(tls: Value) -> Self {
        let mut script = PythonScript::start(SCRIPT);
        let port = script.call("serve", tls)["port"].as_u64().expect("a port");
        ControlPlane { script, port }
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Sends configs, and returns the request that acknowledges or rejects them.
    #[track_caller]
    fn push(&mut self, version: &str, configs: &[Value]) -> Value {
        self.push_raw(json!({ "version": version, "configs": configs }))
    }

    #[track_caller]
    fn push_raw(&mut self, response: Value) -> Value {
        self.script.call("push", response)
    }

    /// Sends configs that must be accepted.
    #[track_caller]
    fn accepted(&mut self, version: &str, configs: &[Value]) {
        let request = self.push(version, configs);
        assert_eq!(request["version_info"], version, "{request}");
        assert_eq!(request.get("error_detail"), None, "{request}");
    }

    /// Waits for the first request of a stream.
    #[track_caller]
    fn subscribed(&mut self) -> Value {
        let request = self.script.call("next_request", json!({}));
        assert_eq!(request.get("response_nonce"), None, "{request}");
        request
    }
}

/// Configures a server that receives its configs from a control plane, and connects again soon.
fn start(test: &str, plane: &ControlPlane) -> Start {
    let start = Start::new(test).args(&["--envoy-xds", &plane.address()]);
    start.env("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "100ms")
}

/// A config with one limit per day, for any value of `user`.
fn config(domain: &str, requests_per_unit: u32) -> Value {
    let limit = json!({ "unit": "DAY", "requests_per_unit": requests_per_unit });
    let descriptors = json!([{ "key": "user", "rate_limit": limit }]);
    json!({ "name": format!("{domain}-limits"), "domain": domain, "descriptors": descriptors })
}

/// Returns the limit that applies to a user; `None` if there is none.
#[track_caller]
fn limit(server: &Server, domain: &str) -> Option<u64> {
    let descriptor = json!({ "entries": [{ "key": "user", "value": "u" }], "hitsAddend": 0 });
    let body = json!({ "domain": domain, "descriptors": [descriptor] });
    let reply = server.post("/json", &body.to_string());
    assert!([200, 429].contains(&reply.status), "{reply:?}");
    reply.json()["statuses"][0]["currentLimit"]["requestsPerUnit"].as_u64()
}

/// Waits until the server is ready, or not.
#[track_caller]
fn becomes_ready(server: &Server, ready: bool) {
    let status = if ready { 200 } else { 503 };
    wait_for(|| (server.admin_get("/readyz").status == status).then_some(()));
}
