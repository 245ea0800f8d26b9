//! Health, reflection, secrets, TLS, draining, and the age of connections.

use serde_json::{Value, json};
use tidegate_testkit::Authority;

use super::{GrpcClient, request_for, serve};
use crate::cli_harness::Files;
use crate::server_harness::{Start, wait_for};

const CONFIG: &str = r#"
policies:
  - name: per-user
    match: { domain: edge, descriptors: [user] }
    key: "{descriptor:user}"
    limits: ["100 per 1h"]
"#;

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

fn question() -> Value {
    request_for("edge", &[("user", "alice")])
}

#[test]
fn serves_health_and_reflection() {
    let server = serve("grpc-health", CONFIG);
    let mut client = GrpcClient::new(&server);
    for service in ["", SERVICE, "ratelimit"] {
        let answer = client.ask("health", json!({ "service": service }));
        assert_eq!(answer, json!({ "code": "OK", "reply": { "status": "SERVING" } }));
    }
    let serving = json!({ "status": "SERVING" });
    let all = json!({ "statuses": { "": serving, SERVICE: serving, "ratelimit": serving } });
    assert_eq!(client.ask("health_list", json!({})), all);
    let answer = client.ask("health", json!({ "service": "other" }));
    let message = format!("unknown service: use \"\" (all of it), \"{SERVICE}\" or \"ratelimit\"");
    assert_eq!(answer, json!({ "code": "NOT_FOUND", "message": message }));
    let answer = client.ask("watch", json!({ "service": "other" }));
    assert_eq!(answer["reply"]["status"], "SERVICE_UNKNOWN");

    let services = client.ask("reflect", json!({}));
    let expected = json!({
        "envoy.service.ratelimit.v3.RateLimitService": ["ShouldRateLimit"],
        "grpc.health.v1.Health": ["Check", "List", "Watch"],
        "grpc.reflection.v1.ServerReflection": ["ServerReflectionInfo"],
        "grpc.reflection.v1alpha.ServerReflection": ["ServerReflectionInfo"],
    });
    assert_eq!(services, expected);
    let not_found = json!({ "error_code": 5, "error_message": "symbol not found" });
    let rows = [
        ("v1", json!({ "file_containing_symbol": SERVICE }), "file_descriptor_response", json!(1)),
        (
            "v1alpha",
            json!({ "file_by_filename": "google/protobuf/struct.proto" }),
            "file_descriptor_response",
            json!(1),
        ),
        ("v1", json!({ "file_by_filename": "x.proto" }), "error_response", not_found.clone()),
        (
            "v1",
            json!({ "file_containing_extension": { "containing_type": SERVICE, "extension_number": 1 } }),
            "error_response",
            not_found,
        ),
        (
            "v1",
            json!({ "all_extension_numbers_of_type": "google.protobuf.Struct" }),
            "all_extension_numbers_response",
            json!({ "base_type_name": "google.protobuf.Struct" }),
        ),
    ];
    for (version, question, field, expected) in rows {
        let mut call = question.clone();
        call["version"] = version.into();
        let answer = client.ask("reflect_raw", call);
        assert_eq!(answer[field], expected, "{question}: {answer}");
        assert_eq!(answer["original_request"], question);
    }
}

#[test]
fn authenticates_by_metadata() {
    let start = Start::new("grpc-secrets").config(CONFIG).args(&["--grpc", "127.0.0.1:0"]);
    let server = start.env("TIDEGATE_TOKENS", "first,second").run();
    let mut client = GrpcClient::new(&server);
    let message = "authentication required: the secret is missing or wrong; send one of TIDEGATE_TOKENS as metadata `authorization: Bearer ...`";
    let refused = json!({ "code": "UNAUTHENTICATED", "message": message });
    assert_eq!(client.limit(&question()), refused);
    let rows = [
        ("authorization", "Bearer second", "OK"),
        ("x-tidegate-token", "first", "OK"),
        ("authorization", "Bearer third", "UNAUTHENTICATED"),
    ];
    for (name, value, code) in rows {
        let call = json!({ "request": question(), "metadata": [[name, value]] });
        assert_eq!(client.ask("limit", call)["code"], code, "{name}: {value}");
    }
    // Without the secret, errors reveal nothing about the request.
    assert_eq!(client.limit(&json!({})), refused);
    assert_eq!(client.ask("reflect_raw", json!({ "version": "v1", "list_services": "" })), refused);
    // Health probes need no secret.
    assert_eq!(client.ask("health", json!({ "service": "" }))["code"], "OK");
}

#[test]
fn public_front_requires_secret() {
    let start = || Start::new("grpc-exposed").args(&["--grpc", "0.0.0.0:0"]);
    let (code, message) = start().fails();
    let expected = "error: --grpc 0.0.0.0:0 is reachable from other machines, and TIDEGATE_TOKENS is not set: set it \
                    (`TIDEGATE_TOKENS=$(openssl rand -hex 32)`), listen on 127.0.0.1, or serve without authentication with --insecure-no-auth\n";
    assert_eq!((code, &*message), (1, expected));
    let log = start().args(&["--insecure-no-auth"]).run().log();
    assert!(log.contains("whoever can reach --grpc needs no secret"), "{log}");
}

#[test]
fn requires_client_certificates() {
    let start = Start::new("grpc-tls").args(&["--grpc", "127.0.0.1:0"]);
    let files = start.files();
    let pem = |name: &str, text: String| files.write(name, text);
    let (authority, client_authority) = (Authority::new(), Authority::new());
    let ca = pem("ca.pem", authority.pem());
    pem("client_ca.pem", client_authority.pem());
    let signed = |by: &Authority, name: &str| {
        let (certificate, key) = by.sign(name);
        (pem(&format!("{name}.pem"), certificate), pem(&format!("{name}.key"), key))
    };
    signed(&authority, "localhost");
    let (cert, key) = signed(&client_authority, "envoy");
    let (other_cert, other_key) = signed(&Authority::new(), "stranger");
    let tls =
        "tls: { grpc: { cert: localhost.pem, key: localhost.key, client_ca: client_ca.pem } }\n";
    let server = start.config(&format!("{tls}{CONFIG}")).run();
    assert!(server.printed.contains("grpc   grpcs://127.0.0.1:"), "{}", server.printed);
    let mut client = GrpcClient::start();
    let target = server.grpc().to_string();
    let rows = [
        (json!({ "ca": ca, "cert": cert, "key": key }), "OK"),
        (json!({ "ca": ca, "cert": other_cert, "key": other_key }), "UNAVAILABLE"),
        (json!({ "ca": ca }), "UNAVAILABLE"),
        (json!({}), "UNAVAILABLE"),
    ];
    for (mut how, code) in rows {
        how["target"] = target.clone().into();
        client.connect(how.clone());
        let answer = client.limit(&question());
        assert_eq!(answer["code"], code, "{how}: {answer}");
    }
}

#[test]
fn changed_certificates_are_loaded() {
    let start = Start::new("grpc-tls-changed").args(&["--grpc", "127.0.0.1:0"]);
    let authorities = [Authority::new(), Authority::new()];
    let install = |authority: &Authority, files: &Files| {
        let (cert, key) = authority.sign("localhost");
        files.replace("cert.pem", cert);
        files.replace("key.pem", key);
    };
    let files = start.files();
    let cas = [0, 1].map(|index| files.write(&format!("ca{index}.pem"), authorities[index].pem()));
    install(&authorities[0], files);
    let tls = "tls: { grpc: { cert: cert.pem, key: key.pem } }\n";
    let server = start.config(&format!("{tls}{CONFIG}")).run();
    let target = server.grpc().to_string();
    let code = |ca: &str| {
        let mut client = GrpcClient::start();
        client.connect(json!({ "target": target, "ca": ca }));
        client.limit(&question())["code"].clone()
    };
    assert_eq!((code(&cas[0]), code(&cas[1])), (json!("OK"), json!("UNAVAILABLE")));
    // Files that cannot be used change nothing.
    server.files.replace("key.pem", "not a key");
    server.logged("the changed TLS files cannot be used: the old ones stay");
    assert_eq!(code(&cas[0]), "OK");
    install(&authorities[1], &server.files);
    server.logged("loaded the changed TLS files");
    assert_eq!((code(&cas[0]), code(&cas[1])), (json!("UNAVAILABLE"), json!("OK")));
}

#[test]
fn drain_sends_goaway_and_finishes_calls() {
    let mut server = serve("grpc-drain", CONFIG);
    let mut client = GrpcClient::new(&server);
    let answer = client.ask("watch", json!({ "service": SERVICE }));
    assert_eq!(answer["reply"]["status"], "SERVING");
    server.signal("-TERM");
    let answer = client.ask("watched", json!({}));
    assert_eq!(answer["reply"]["status"], "NOT_SERVING", "{answer}");
    let answer = client.ask("watched", json!({}));
    let message = "the server is shutting down: connect again";
    assert_eq!(answer, json!({ "code": "UNAVAILABLE", "message": message }));
    assert_eq!(server.ended(), 0);
    assert_eq!(client.limit(&question())["code"], "UNAVAILABLE");
}

#[test]
fn closes_connections_at_max_age() {
    let server = serve("grpc-age", &format!("grpc_max_connection_age: 1s\n{CONFIG}"));
    let mut client = GrpcClient::new(&server);
    assert_eq!(client.code(&question()), "OK");
    let connections = || server.metric("tidegate_connections{front=\"grpc\"}");
    assert_eq!(connections(), Some(1));
    // The server asks the client to close the connection. The client connects again for its next
    // request.
    wait_for(|| (connections() == Some(0)).then_some(()));
    assert_eq!(client.code(&question()), "OK");
    let calls = server.metric("tidegate_grpc_requests_total{code=\"OK\"}");
    assert_eq!(calls, Some(2), "no call failed");
}

/// A stream outlives the maximum age of its connection by the grace, and ends with a status.
#[test]
fn streams_outlive_the_maximum_age() {
    let start = Start::new("grpc-age-of-streams").args(&["--as-envoy-ratelimit"]);
    let start = start.config(CONFIG).args(&["--grpc", "127.0.0.1:0"]);
    let root = start.files().path("none");
    let start = start.env("RUNTIME_ROOT", &root);
    let start = start.env("GRPC_MAX_CONNECTION_AGE", "1s");
    let server = start.env("GRPC_MAX_CONNECTION_AGE_GRACE", "2s").run();
    let mut client = GrpcClient::new(&server);
    let answer = client.ask("watch", json!({ "service": SERVICE }));
    assert_eq!(answer["reply"]["status"], "SERVING");
    // Calls on new connections succeed meanwhile.
    let ended = client.ask("watched", json!({}));
    let message = "the connection has reached its maximum age: connect again";
    assert_eq!(ended, json!({ "code": "UNAVAILABLE", "message": message }));
    assert_eq!(client.code(&question()), "OK");
}

#[test]
fn reload_changes_header_forms() {
    let server = serve("grpc-reload", CONFIG);
    let mut client = GrpcClient::new(&server);
    let mut names = || {
        let reply = client.reply(&question());
        let headers = reply["response_headers_to_add"].as_array().cloned().unwrap_or_default();
        headers
            .iter()
            .map(|header| header["key"].as_str().expect("text").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(), ["ratelimit", "ratelimit-policy"]);
    server.files.write("tidegate.yaml", format!("headers: none\n{CONFIG}"));
    server.signal("-HUP");
    wait_for(|| names().is_empty().then_some(()));
}
