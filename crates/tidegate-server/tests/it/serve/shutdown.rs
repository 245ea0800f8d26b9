//! Shutdown: not ready, drained, exit code 0.

use crate::server_harness::{Client, JSON, Start, request, wait_for};

const SHORT: &str = "
policies:
  - name: slow
    key: \"{client_ip}\"
    limits: [\"1 per 2s sliding-log\"]
";

#[test]
fn shutdown_finishes_requests_in_flight() {
    for signal in ["-TERM", "-INT"] {
        let mut server = Start::new(&format!("drain{signal}")).config(SHORT).run();
        let ask = r#"{"policy":"slow","key":"a","max_wait_ms":20000}"#;
        assert_eq!(server.check(ask).json()["allowed"], true);
        // One request waits, and one connection is idle.
        let mut waiting = Client::connect(server.http());
        waiting.send(&request("POST", "/v1/check", &[JSON], ask));
        let mut idle = Client::connect(server.http());
        idle.send(&request(
            "POST",
            "/v1/check",
            &[JSON],
            r#"{"policy":"slow","key":"b","cost":0}"#,
        ));
        assert_eq!(idle.reply("POST").status, 200);

        server.signal(signal);
        assert!(idle.closed());
        // New connections are rejected, and probes see it.
        wait_for(|| std::net::TcpStream::connect(server.http()).is_err().then_some(()));
        assert_eq!(server.admin_get("/readyz").status, 503);
        let reply = waiting.reply("POST");
        assert_eq!((reply.status, &reply.json()["allowed"]), (200, &true.into()));
        assert_eq!(server.ended(), 0);
        let log = server.log();
        assert!(log.contains("draining") && !log.contains("out of patience"), "{log}");
    }
}

#[test]
fn second_signal_stops_immediately() {
    let mut server = Start::new("drain-twice").config(SHORT).run();
    let ask = r#"{"key":"a","limits":["1 per 1h sliding-log"],"max_wait_ms":60000}"#;
    server.check(ask);
    let mut stuck = Client::connect(server.http());
    // A body that never arrives keeps a request in flight.
    stuck.send(b"POST /v1/check HTTP/1.1\r\nhost: t\r\ncontent-length: 50\r\n\r\n{");
    wait_for(|| (server.metric("tidegate_connections{front=\"http\"}") >= Some(1)).then_some(()));
    server.signal("-TERM");
    wait_for(|| server.log().contains("draining").then_some(()));
    server.signal("-TERM");
    assert_eq!(server.ended(), 0);
    assert!(server.log().contains("second signal"), "{}", server.log());
}
