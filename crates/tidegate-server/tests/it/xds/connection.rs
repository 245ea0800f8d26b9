//! Lost connections, TLS, bounds and settings.

use std::net::TcpListener;

use serde_json::{Value, json};
use tidegate_testkit::Authority;

use super::{ControlPlane, becomes_ready, config, limit, start};
use crate::server_harness::Start;

#[test]
fn connects_again_after_the_control_plane_restarts() {
    let mut plane = ControlPlane::new(json!({}));
    let server = start("xds-restart", &plane).run();
    plane.subscribed();
    plane.accepted("1", &[config("a", 10)]);
    plane.script.call("stop", json!({}));
    server.logged("no configs from the xDS control plane");
    assert_eq!(limit(&server, "a"), Some(10), "the last config stays");
    assert_eq!(server.admin_get("/readyz").status, 200);
    let port = plane.port;
    plane.script.call("serve", json!({ "port": port }));
    let request = plane.subscribed();
    assert_eq!(request["version_info"], "1", "the accepted version: {request}");
    plane.accepted("2", &[config("a", 20)]);
    assert_eq!(limit(&server, "a"), Some(20));
}

#[test]
fn starts_without_a_control_plane() {
    let mut plane = ControlPlane::new(json!({}));
    plane.script.call("stop", json!({}));
    let server = start("xds-absent", &plane).run();
    server.logged("no configs from the xDS control plane");
    assert_eq!(server.admin_get("/readyz").status, 503);
    let port = plane.port;
    plane.script.call("serve", json!({ "port": port }));
    plane.subscribed();
    plane.accepted("1", &[config("a", 10)]);
    becomes_ready(&server, true);
}

/// A control plane that accepts connections and never responds.
#[test]
fn control_plane_that_hangs_does_not_hold_up_the_server() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = silent.local_addr().expect("an address").to_string();
    let own = "policies:\n  - { name: own, match: { path: /own }, key: all, limits: 7 per 1d }\n";
    let start = Start::new("xds-silent").args(&["--envoy-xds", &address]).config(own);
    let mut server = start.run();
    let _connection = silent.accept().expect("a connection");
    assert_eq!(server.admin_get("/readyz").text(), "no config is loaded\n");
    let own = r#"{"policy":"own","key":"all","cost":0}"#;
    assert_eq!(server.check(own).json()["limit"], json!(7), "policies of the file apply");
    server.signal("-TERM");
    assert_eq!(server.ended(), 0);
}

/// A control plane that accepts connections and never begins the TLS handshake.
#[test]
fn tls_handshake_that_hangs_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = silent.local_addr().expect("an address").to_string();
    let start = Start::new("xds-silent-tls").args(&["--envoy-xds", &address]);
    let server = start.env("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true").run();
    server.logged("no configs from the xDS control plane: not connected within");
}

/// The reason is logged, and the config that was sent before is applied.
#[test]
fn stream_that_fails_behind_a_config_is_logged_with_its_reason() {
    let mut plane = ControlPlane::new(json!({}));
    let server = start("xds-abort", &plane).run();
    plane.subscribed();
    let last = json!({ "reason": "node unknown", "version": "1", "configs": [config("a", 10)] });
    plane.script.call("send_and_abort", last);
    let log = server.logged("no configs from the xDS control plane");
    assert!(log.contains("node unknown"), "{log}");
    assert_eq!(limit(&server, "a"), Some(10));
    let mut request = plane.script.call("next_request", json!({}));
    if request.get("response_nonce").is_some() {
        // The acknowledgement arrived before the stream ended.
        request = plane.subscribed();
    }
    assert_eq!(request["version_info"], "1", "the accepted version: {request}");
}

/// The last config stays while a control plane does not respond any more.
#[test]
fn control_plane_that_stops_keeps_the_config() {
    let mut plane = ControlPlane::new(json!({}));
    let mut server = start("xds-stopped", &plane).run();
    plane.subscribed();
    plane.accepted("1", &[config("a", 10)]);
    plane.script.signal("-STOP");
    assert_eq!(limit(&server, "a"), Some(10));
    assert_eq!(server.admin_get("/readyz").status, 200);
    server.signal("-TERM");
    assert_eq!(server.ended(), 0);
}

/// Configs that arrive faster than they are applied are skipped, except for the newest.
#[test]
fn newest_config_of_a_flood_is_applied() {
    let mut plane = ControlPlane::new(json!({}));
    let server = start("xds-flood", &plane).run();
    plane.subscribed();
    plane.accepted("first", &[config("a", 10)]);
    let flood = json!({ "count": 1000, "configs": [config("a", 20), config("b", 5)] });
    let request = plane.script.call("flood", flood);
    assert_eq!(request["version_info"], "flood-999", "{request}");
    let acknowledgements = request["acknowledgements"].as_u64().expect("a number");
    assert!(acknowledgements < 1000, "{acknowledgements}");
    assert_eq!(limit(&server, "a"), Some(20));
}

#[test]
fn large_configs_are_accepted_up_to_the_bound() {
    let mut plane = ControlPlane::new(json!({}));
    let server = start("xds-large", &plane).run();
    plane.subscribed();
    let large = json!({ "version": "large", "domain": "l", "count": 10_000 });
    let request = plane.script.call("push_large", large);
    assert_eq!((&request["version_info"], request.get("error_detail")), (&json!("large"), None));
    becomes_ready(&server, true);

    let mut plane = ControlPlane::new(json!({}));
    let bounded = start("xds-too-large", &plane).env("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "1000");
    let bounded = bounded.run();
    plane.subscribed();
    plane.accepted("1", &[config("a", 10)]);
    let many: Vec<Value> = (0..100).map(|number| config(&format!("d{number}"), 1)).collect();
    plane.script.call("send", json!({ "version": "2", "configs": many }));
    bounded.logged("no configs from the xDS control plane");
    assert_eq!(limit(&bounded, "a"), Some(10));
}

#[test]
fn certificates_are_verified_on_both_sides() {
    let authority = Authority::new();
    let start = Start::new("xds-mtls");
    let file = |name: &str, content: &str| start.files().write(name, content);
    let (cert, key) = authority.sign("plane.example");
    let ca = file("ca.pem", &authority.pem());
    let plane_files = json!({
        "ca": ca, "cert": file("plane.pem", &cert), "key": file("plane.key", &key),
    });
    let (cert, key) = authority.sign("client.example");
    let (cert, key) = (file("client.pem", &cert), file("client.key", &key));
    let mut plane = ControlPlane::new(plane_files);
    let tls = |test: &str, name: &str| {
        let start = super::start(test, &plane).env("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true");
        let start = start.env("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &ca);
        start.env("CONFIG_GRPC_XDS_SERVER_TLS_SAN", name)
    };
    let wrong_name = tls("xds-mtls-name", "other.example")
        .env("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &cert)
        .env("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &key)
        .run();
    let log = wrong_name.logged("no configs from the xDS control plane");
    assert!(log.contains("other.example") || log.contains("certificate"), "{log}");
    let without = tls("xds-mtls-without", "plane.example").run();
    without.logged("no configs from the xDS control plane");
    let server = tls("xds-mtls-server", "plane.example")
        .env("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &cert)
        .env("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &key)
        .run();
    plane.subscribed();
    plane.accepted("1", &[config("a", 10)]);
    assert_eq!(limit(&server, "a"), Some(10));
    assert_eq!(without.admin_get("/readyz").status, 503);
}

#[test]
fn variables_of_the_reference_configure_the_client() {
    let mut plane = ControlPlane::new(json!({}));
    let start = Start::new("xds-variables").args(&["--as-envoy-ratelimit"]);
    let start = start.env("CONFIG_TYPE", "GRPC_XDS_SOTW");
    let start = start.env("CONFIG_GRPC_XDS_SERVER_URL", &plane.address());
    let start = start.env("CONFIG_GRPC_XDS_NODE_ID", "edge-1");
    let start = start.env("CONFIG_GRPC_XDS_NODE_METADATA", "zone=eu");
    let start = start.env("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "X-Team:edge");
    let server = start.env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true").run();
    let request = plane.subscribed();
    assert_eq!(request["node"]["id"], "edge-1");
    assert_eq!(request["node"]["metadata"], json!({ "zone": "eu" }));
    assert_eq!(request["metadata"]["x-team"], "edge");
    assert_eq!(server.admin_get("/readyz").status, 200, "forced");
    plane.accepted("1", &[config("a", 10)]);
    assert_eq!(limit(&server, "a"), Some(10));
    assert!(server.admin_get("/admin/v1/policies").text().contains("fixed-window"));
}

#[test]
fn settings_and_policies_of_a_file_stay() {
    let mut plane = ControlPlane::new(json!({}));
    let file = |limit: u32| {
        format!(
            "headers: none\npolicies:\n  - name: own\n    match: {{ path: /own }}\n    key: all\n    \
             limits: {limit} per 1d\n"
        )
    };
    let server = start("xds-and-file", &plane).config(&file(7)).run();
    plane.subscribed();
    let own = || server.check(r#"{"policy":"own","key":"all","cost":0}"#).json()["limit"].clone();
    plane.accepted("1", &[config("a", 10)]);
    assert_eq!((own(), limit(&server, "a")), (json!(7), Some(10)));
    server.files.replace("tidegate.yaml", file(8));
    crate::server_harness::wait_for(|| (own() == json!(8)).then_some(()));
    assert_eq!(limit(&server, "a"), Some(10), "the received config stays");
    // A limit with the name of a policy in the file is a conflict.
    let named = json!({ "unit": "DAY", "requests_per_unit": 1, "name": "own" });
    let descriptors = json!([{ "key": "user", "rate_limit": named }]);
    let request = plane.push("2", &[json!({ "domain": "a", "descriptors": descriptors })]);
    let reason = request["error_detail"]["message"].as_str().expect("a reason");
    assert!(reason.contains("policy `own`"), "{reason}");
}

#[test]
fn bad_addresses_are_usage_errors() {
    for address in ["plane", "http://plane:1", "plane:0", "user@plane:1"] {
        let (code, error) = Start::new("xds-address").args(&["--envoy-xds", address]).fails();
        assert_eq!(code, 2, "{error}");
        assert!(error.contains("write the control plane as host:port"), "{error}");
    }
    let both = ["--envoy-xds", "plane:1", "--envoy-config", "."];
    let (code, error) = Start::new("xds-and-directory").args(&both).fails();
    assert!(code == 2 && error.contains("cannot be used with"), "{error}");
}
