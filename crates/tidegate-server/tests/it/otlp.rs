//! Spans over OTLP, sent to a collector that records them. Only with the feature `otlp`: `cargo
//! test -p tidegate-server --features otlp --test it otlp`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use crate::server_harness::{PATIENCE, Start};

/// A request to the collector: its request line and its body.
type Export = (String, Vec<u8>);

/// Reads one request and acknowledges it. Returns `None` once the connection is closed.
fn take(stream: &mut BufReader<TcpStream>) -> Option<Export> {
    let mut first = String::new();
    stream.read_line(&mut first).ok().filter(|read| *read > 0)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.parse().ok()?;
            }
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    let thanks =
        "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
    stream.get_mut().write_all(thanks.as_bytes()).ok()?;
    Some((first.trim_end().to_owned(), body))
}

/// Starts a collector. Returns its address and the requests it receives.
fn collector() -> (String, Receiver<Export>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    let (sender, exports) = channel();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut stream = BufReader::new(stream);
            while let Some(export) = take(&mut stream) {
                if sender.send(export).is_err() {
                    return;
                }
            }
        }
    });
    (endpoint, exports)
}

/// Returns whether the body contains a text. Protobuf stores text unencoded.
fn holds(body: &[u8], text: &str) -> bool {
    body.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn exports_spans_to_collector() {
    let (endpoint, exports) = collector();
    let start = Start::new("otlp").env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint);
    // The log level does not affect spans.
    let mut server = start.env("RUST_LOG", "error").run();
    let reply = server.check(r#"{"attributes":{"client_ip":"192.0.2.1"}}"#);
    assert_eq!(reply.status, 200);
    // Remaining spans are sent before the process exits.
    server.signal("-TERM");
    assert_eq!(server.ended(), 0, "{}", server.log());
    let (first, body) = exports.recv_timeout(PATIENCE).expect("an export");
    assert_eq!(first, "POST /v1/traces HTTP/1.1");
    // The service, the span and its attributes.
    for text in ["tidegate", "request", "front", "http", "POST", "/v1/check", "status"] {
        assert!(holds(&body, text), "{text} is not in {}", String::from_utf8_lossy(&body));
    }
    assert!(!holds(&body, "192.0.2.1"), "a key must not be in a span");
}

/// An unreachable collector does not block the server.
#[test]
fn serves_and_stops_without_collector() {
    let gone = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let endpoint = format!("http://{}", gone.expect("an address"));
    let mut server = Start::new("otlp-gone").env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint).run();
    assert_eq!(server.check(r#"{"attributes":{"client_ip":"192.0.2.1"}}"#).status, 200);
    server.signal("-TERM");
    assert_eq!(server.ended(), 0, "{}", server.log());
}
