//! `/admin/v1/events`: the stream of denials.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;

use serde_json::{Value, json};
use tidegate_testkit::eventually;

use super::server::Server;
use super::{POLICIES, with_full_keys};
use crate::server_harness::request;

/// A reader of the stream, which strips the chunked encoding.
struct Stream(BufReader<TcpStream>);

impl Stream {
    fn open(server: &Server, headers: &[(&str, &str)]) -> Stream {
        let bytes = request("GET", "/admin/v1/events", headers, "");
        let mut stream = Stream(BufReader::new(server.open(&bytes)));
        let status = stream.line().expect("a response");
        assert!(status.contains(" 200 "), "{status}");
        while !stream.line().expect("headers").is_empty() {}
        stream
    }

    /// Returns the next line, or `None` at the end.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).ok().filter(|read| *read > 0)?;
        Some(line.trim_end().to_owned())
    }

    /// Returns the rest of the next line with this prefix.
    fn next(&mut self, start: &str) -> Option<String> {
        loop {
            if let Some(rest) = self.line()?.strip_prefix(start) {
                return Some(rest.to_owned());
            }
        }
    }

    fn denial(&mut self) -> (u64, Value) {
        let id = self.next("id: ").expect("an id").parse().expect("a number");
        assert_eq!(self.next("event: ").as_deref(), Some("denial"));
        let data = self.next("data: ").expect("data");
        (id, serde_json::from_str(&data).expect("JSON"))
    }
}

#[test]
fn streams_denials_to_subscribers() {
    let server = Server::start("streamed-denials", POLICIES);
    let mut stream = Stream::open(&server, &[]);
    stream.next(": denials follow").expect("a greeting");
    for _ in 0..2 {
        server.login("192.0.2.1");
    }
    let attributes = r#"{"method":"POST","path":"/login","client_ip":"192.0.2.1"}"#;
    server.check(attributes, &[("x-request-id", "r-17")]);
    let (id, event) = stream.denial();
    assert_eq!(id, 1);
    let expected = [
        ("policy", "login"),
        ("key", "192.0.2.1"),
        ("route", "/login"),
        ("limit", "2 per 1h sliding-log"),
        ("outcome", "denied"),
        ("decided", "exact"),
        ("request_id", "r-17"),
    ];
    for (field, value) in expected {
        assert_eq!(event[field], value, "{field}");
    }
    assert!(event["retry_after_ms"].as_u64() > Some(3_500_000), "{event}");
    assert!(event["at_ms"].as_u64() > Some(1_700_000_000_000), "{event}");
    assert_eq!(event["suppressed"], 0);

    // A late subscriber gets the events that are held, or those after its last event.
    server.login("192.0.2.1");
    assert_eq!(Stream::open(&server, &[]).denial().0, 1);
    assert_eq!(Stream::open(&server, &[("last-event-id", "1")]).denial().0, 2);
}

#[test]
fn event_lines_escape_client_input() {
    let server = Server::start("lines", &with_full_keys());
    let mut stream = Stream::open(&server, &[]);
    for _ in 0..2 {
        server.check(
            r#"{"path":"/reports","headers":{"x-user":"a\r\n\r\nevent: fake\r\ndata: {}"}}"#,
            &[],
        );
    }
    let (_, event) = stream.denial();
    assert_eq!(event["outcome"], "would_deny");
    assert_eq!(event["key"], "26#a\\x0d\\x0a\\x0d\\x0aevent: fake\\x0d\\x0adata: {}:8#/reports");
}

#[test]
fn subscribers_are_bounded() {
    let server = Server::start("readers", POLICIES);
    let readers = || {
        let page = server.get("/metrics").body;
        let line = page.lines().find_map(|line| line.strip_prefix("tidegate_event_subscribers "));
        line.and_then(|value| value.parse::<usize>().ok()).expect("the sample")
    };
    // The log is one of the subscribers.
    let mut streams: Vec<_> = (readers()..64).map(|_| Stream::open(&server, &[])).collect();
    let refused = server.get("/admin/v1/events");
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json()["detail"], json!("64 readers are connected already: close one"));
    streams.pop();
    eventually("a subscription is free", || readers() < 64);
    Stream::open(&server, &[]);
}

#[test]
fn stream_ends_at_shutdown() {
    let mut server = Server::start("ends", POLICIES);
    let mut stream = Stream::open(&server, &[]);
    stream.next(": denials follow").expect("a greeting");
    server.signal("-TERM");
    assert_eq!(stream.next("event: "), None);
    assert_eq!(server.ended(), 0);
}
