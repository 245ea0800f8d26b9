//! Liveness, readiness and draining.

use std::io::{Read, Write};

use tidegate_testkit::eventually;

use super::POLICIES;
use super::server::Server;

#[test]
fn draining_server_is_alive_but_not_ready() {
    let mut server = Server::start("draining", POLICIES);
    let probe = |server: &Server, path: &str| {
        let answer = server.get(path);
        (answer.status, answer.body)
    };
    assert_eq!(probe(&server, "/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(probe(&server, "/readyz"), (200, "ready\n".to_owned()));

    // A request in flight: the head announces a body, which has not been sent yet.
    let body = r#"{"attributes":{"method":"POST","path":"/login","client_ip":"192.0.2.1"}}"#;
    let length = format!("content-length: {}", body.len());
    let mut pending = std::net::TcpStream::connect(server.http()).expect("a connection");
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{length}\r\n\r\n"
    );
    pending.write_all(head.as_bytes()).expect("a head");
    pending.write_all(&body.as_bytes()[..10]).expect("some of a body");
    eventually("the server has accepted the connection", || {
        server.get("/metrics").body.contains("tidegate_connections{front=\"http\"} 1")
    });
    server.signal("-TERM");
    eventually("the server is not ready", || {
        probe(&server, "/readyz") == (503, "draining\n".to_owned())
    });
    assert_eq!(probe(&server, "/healthz").0, 200);
    assert!(server.get("/metrics").body.contains("\ntidegate_ready 0\n"));

    pending.write_all(&body.as_bytes()[10..]).expect("the rest");
    let mut answer = String::new();
    pending.read_to_string(&mut answer).expect("a response");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"allowed\":true"), "{answer}");
    assert_eq!(server.ended(), 0);
}

#[test]
fn root_redirects_to_dashboard() {
    let server = Server::start("door", POLICIES);
    let answer = server.get("/");
    assert_eq!((answer.status, answer.header("location")), (303, "dashboard"));
}
