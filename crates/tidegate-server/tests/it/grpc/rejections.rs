//! Invalid requests, and traffic that is not gRPC.

use serde_json::{Value, json};

use super::{GrpcClient, descriptor, request_for, serve};
use crate::server_harness::{Client, request};

const CONFIG: &str = r#"
policies:
  - name: per-user
    match: { domain: edge, descriptors: [user] }
    key: "{descriptor:user}"
    limits: ["100 per 1h"]
  - name: held
    match: { domain: edge, descriptors: [held] }
    key: "{descriptor:held}"
    limits: ["2 concurrent"]
"#;

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Checks that the connection still works.
#[track_caller]
fn unharmed(client: &mut GrpcClient) {
    assert_eq!(client.code(&request_for("edge", &[("user", "alice")])), "OK");
}

#[test]
fn rejects_invalid_fields_by_name() {
    let server = serve("grpc-nonsense", CONFIG);
    let mut client = GrpcClient::new(&server);
    let user = descriptor(&[("user", "a")]);
    let with = |field: &str, value: Value| {
        let mut one = user.clone();
        one[field] = value;
        json!({ "domain": "edge", "descriptors": [one] })
    };
    #[rustfmt::skip]
    let rows = [
        (json!({ "descriptors": [user] }), "INVALID_ARGUMENT",
         "domain: it is empty: send the `domain` of the filter's configuration"),
        (json!({ "domain": "edge" }), "INVALID_ARGUMENT", "descriptors: it is empty: send at least one"),
        (json!({ "domain": "edge", "descriptors": vec![user.clone(); 257] }), "INVALID_ARGUMENT",
         "descriptors: there are more than 256: send fewer"),
        (json!({ "domain": "edge", "descriptors": [user, {}] }), "INVALID_ARGUMENT",
         "descriptors[1].entries: it is empty: send at least one"),
        (request_for("edge", &[("user", "a"), ("", "b")]), "INVALID_ARGUMENT",
         "descriptors[0].entries[1].key: it is empty: send the name of the entry"),
        (with("limit", json!({ "requests_per_unit": 1 })), "INVALID_ARGUMENT",
         "descriptors[0].limit.unit: 0 is not a unit of time: send SECOND (1), MINUTE (2), HOUR (3), DAY (4), MONTH (5), \
          YEAR (6) or WEEK (7)"),
        (request_for("edge", &[("held", "a")]), "FAILED_PRECONDITION",
         "policy `held` has a concurrency limit, which needs a permit: acquire one with POST /v1/permits"),
    ];
    for (request, code, message) in rows {
        let expected = json!({ "code": code, "message": message });
        assert_eq!(client.limit(&request), expected, "{request}");
    }
    unharmed(&mut client);
    // The maximum number of entries and of descriptors.
    let entries: Vec<_> = (0..100).map(|_| ("e", "v")).collect();
    assert_eq!(client.code(&request_for("edge", &entries)), "OK");
    let many = json!({ "domain": "edge", "descriptors": vec![descriptor(&[("x", "y")]); 256] });
    assert_eq!(client.reply(&many)["statuses"].as_array().map(Vec::len), Some(256));
    assert_eq!(server.metric("tidegate_grpc_requests_total{code=\"INVALID_ARGUMENT\"}"), Some(6));
}

#[test]
fn rejects_malformed_messages() {
    let server = serve("grpc-bytes", CONFIG);
    let mut client = GrpcClient::new(&server);
    let no_message = "not a valid Protocol Buffers message of this type";
    #[rustfmt::skip]
    let rows = [
        // A length beyond the end; a group; a number of eleven bytes; a domain that is a number.
        (METHOD, "0a05", "INVALID_ARGUMENT", no_message),
        (METHOD, "0b", "INVALID_ARGUMENT", no_message),
        (METHOD, "18ffffffffffffffffffff01", "INVALID_ARGUMENT", no_message),
        (METHOD, "0801", "INVALID_ARGUMENT", no_message),
        // A declared length of two gigabytes.
        (METHOD, "0affffffff07", "INVALID_ARGUMENT", no_message),
    ];
    for (method, message, code, text) in rows {
        let answer = client.ask("raw", json!({ "method": method, "message": message }));
        assert_eq!(answer, json!({ "code": code, "message": text }), "{method} {message}");
    }
    let unknown = "unknown method: list the services by reflection (`grpcurl ... list`)";
    for method in
        ["/envoy.service.ratelimit.v3.RateLimitService/Nothing", "/grpc.health.v1.Health/X", "/"]
    {
        let answer = client.ask("raw", json!({ "method": method, "message": "" }));
        assert_eq!(
            (&answer["code"], &answer["message"]),
            (&json!("UNIMPLEMENTED"), &json!(unknown))
        );
    }
    let call = json!({ "method": "/grpc.health.v1.Health/Check", "message": "0a05" });
    assert_eq!(client.ask("raw", call)["code"], "INTERNAL", "the code of tonic");
    // As many descriptors as fit a message: rejected before they take memory.
    let answer = client.ask(
        "raw",
        json!({ "method": METHOD, "message": format!("0a0165{}", "1200".repeat(524_000)) }),
    );
    let text = "descriptors: there are more than 256: send fewer";
    assert_eq!(answer, json!({ "code": "INVALID_ARGUMENT", "message": text }));
    // Invalid UTF-8 is counted, not rejected, because Envoy would let the client pass.
    let entry = format!("0a04{}1201ff", hex(b"user"));
    let descriptor = format!("0a{:02x}{entry}", entry.len() / 2);
    let message = format!("0a04{}12{:02x}{descriptor}", hex(b"edge"), descriptor.len() / 2);
    let answer = client.ask("raw", json!({ "method": METHOD, "message": message }));
    assert!(answer["reply"].as_str().is_some_and(|reply| reply.starts_with("0801")), "{answer}");
    unharmed(&mut client);
}

#[test]
fn messages_may_be_compressed_with_gzip() {
    let server = serve("grpc-gzip", CONFIG);
    let mut client = GrpcClient::new(&server);
    let value = "x".repeat(120);
    let entry = format!("0a04{}12{:02x}{}", hex(b"user"), value.len(), hex(value.as_bytes()));
    let descriptor = format!("0a{:02x}01{entry}", 0x80 | (entry.len() / 2) & 0x7f);
    let descriptor = format!("12{:02x}01{descriptor}", 0x80 | (descriptor.len() / 2) & 0x7f);
    let message = format!("0a04{}{descriptor}", hex(b"edge"));
    let mut send = |method: &str, compression: &str| {
        let call = json!({ "method": method, "message": message, "compression": compression });
        client.ask("raw", call)
    };
    let answer = send(METHOD, "Gzip");
    assert!(answer["reply"].as_str().is_some_and(|reply| reply.starts_with("0801")), "{answer}");
    for (method, compression) in [(METHOD, "Deflate"), ("/grpc.health.v1.Health/Check", "Gzip")] {
        let answer = send(method, compression);
        assert_eq!(answer["code"], "UNIMPLEMENTED", "{answer}");
    }
    unharmed(&mut client);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn bounds_message_size_and_streams() {
    let server = serve("grpc-large", CONFIG);
    let mut client = GrpcClient::new(&server);
    let rows =
        [(1_000_000, "OK"), (1_100_000, "RESOURCE_EXHAUSTED"), (20_000_000, "RESOURCE_EXHAUSTED")];
    for (size, code) in rows {
        let answer = client.ask("large", json!({ "size": size }));
        assert_eq!(answer["code"], code, "{size}: {answer}");
    }
    let before = server.resident();
    // More requests than a connection may have at once: the client queues them.
    let request = request_for("edge", &[("user", "many")]);
    let answer = client.ask("many", json!({ "request": request, "count": 1000 }));
    assert_eq!(answer, json!({ "OK": 100, "OVER_LIMIT": 900 }));
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes more");
    unharmed(&mut client);
}

#[test]
fn rejects_requests_that_are_not_grpc() {
    let server = serve("grpc-plain", CONFIG);
    let mut client = Client::connect(server.grpc());
    client.send(&request("GET", "/v1/check", &[], ""));
    let reply = client.reply("GET");
    let text = "this is the gRPC port of tidegate, which requires HTTP/2: use a gRPC client, or the port of --http\n";
    assert_eq!((reply.status, &*reply.text()), (400, text));
    let mut client = Client::connect(server.grpc());
    client.send(&request("POST", METHOD, &[("content-type", "application/grpc")], ""));
    assert_eq!(client.reply("POST").status, 400);
    // Not HTTP at all.
    let mut client = Client::connect(server.grpc());
    client.send(b"*1\r\n$4\r\nPING\r\n");
    assert_eq!(client.reply("GET").status, 400);
    let status =
        |status| format!("tidegate_http_requests_total{{front=\"grpc\",status=\"{status}\"}}");
    assert_eq!(server.metric(&status(400)), Some(2));
    unharmed(&mut GrpcClient::new(&server));
}
