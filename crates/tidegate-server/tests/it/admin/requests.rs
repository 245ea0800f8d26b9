//! `tidegate_requests_total`: every front counts each request once. The gRPC front is tested in
//! `grpc/semantics.rs`.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::server::Server;
use crate::server_harness::{self, PATIENCE};

/// One policy per front. Each of the requests that a policy denies passes its second limit.
const POLICIES: &str = r#"
policies:
  - { name: check, key: all, match: { path: /check }, limits: ["1 per 1h", "600 per 1d"] }
  - { name: batch, key: all, match: { path: /batch }, limits: ["1 per 1h", "600 per 1d"] }
  - { name: forward, key: all, match: { path: /forward }, limits: ["1 per 1h", "600 per 1d"] }
  - { name: permit, key: all, match: { path: /permit }, limits: ["1 concurrent", "600 per 1d"] }
  - { name: resp, key: all, match: { path: /resp }, limits: ["1 per 1h", "600 per 1d"] }
  - { name: resp-one, key: all, match: { path: /resp-one }, limits: ["1 per 1h"] }
"#;

fn counted(server: &server_harness::Server, policy: &str) -> [Option<u64>; 3] {
    ["allowed", "denied", "would_deny"].map(|outcome| {
        let route = match policy {
            "" => String::new(),
            _ => format!("route=\"/{policy}\","),
        };
        let labels = format!("{{policy=\"{policy}\",{route}outcome=\"{outcome}\"}}");
        server.metric(&format!("tidegate_requests_total{labels}"))
    })
}

/// Sends commands over RESP, and reads replies until the server closes the connection.
fn pipeline(server: &server_harness::Server, commands: &str) -> String {
    let mut stream = TcpStream::connect(server.resp()).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    stream.write_all(format!("{commands}QUIT\r\n").as_bytes()).expect("the peer reads");
    let mut replies = String::new();
    stream.read_to_string(&mut replies).expect("replies");
    replies
}

#[test]
fn every_front_counts_a_request_once() {
    let server = Server::start_with("requests", POLICIES, &["--resp", "127.0.0.1:0"], &[]);
    // Series start at zero. An enforced policy cannot have the outcome `would_deny`.
    assert_eq!(counted(&server, "check"), [Some(0), Some(0), None]);
    assert_eq!(counted(&server, ""), [Some(0), None, None]);
    for _ in 0..3 {
        server.check(r#"{"path":"/check"}"#, &[]);
    }
    let item = r#"{"attributes":{"path":"/batch"}}"#;
    let batch = format!(r#"{{"checks":[{item},{item},{item}]}}"#);
    assert_eq!(server.post("/v1/check/batch", &batch).status, 200);
    let forward = || {
        let headers = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/forward")];
        server_harness::Server::ask(&server, "GET", "/v1/forward-auth", &headers, "").status
    };
    assert_eq!([forward(), forward(), forward()], [200, 429, 429]);
    let permit = || server.post("/v1/permits", r#"{"policy":"permit","key":"all"}"#).status;
    assert_eq!([permit(), permit(), permit()], [201, 429, 429]);
    for policy in ["resp", "resp-one"] {
        // A peek is not a request.
        let commands = format!("TG.CHECK {policy} k\r\n").repeat(3);
        let replies = pipeline(&server, &format!("{commands}TG.PEEK {policy} k\r\n"));
        assert_eq!(replies.matches("*7\r\n").count(), 4, "{replies}");
    }
    for policy in ["check", "batch", "forward", "permit", "resp", "resp-one"] {
        assert_eq!(counted(&server, policy), [Some(1), Some(2), None], "{policy}");
    }
    server.check(r#"{"path":"/elsewhere"}"#, &[]);
    assert_eq!(counted(&server, ""), [Some(1), None, None]);
}
