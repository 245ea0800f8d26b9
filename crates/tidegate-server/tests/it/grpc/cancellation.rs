//! Calls that are cancelled as soon as they are made, as a gateway does when its client
//! disconnects.
//!
//! Regression: after 32 of them in one read the server closed the connection with GOAWAY
//! `too_many_resets`. All clients of a gateway share that connection.

use std::net::TcpStream;

use super::serve;
use crate::http2_frames::{Connection, DATA, Frames, GOAWAY, HEADERS, RST_STREAM};
use crate::server_harness::Server;

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const FIELDS: [(&str, &str); 3] =
    [(":authority", "tidegate"), ("content-type", "application/grpc"), ("te", "trailers")];

/// `RateLimitRequest { domain: "edge", descriptors: [{ entries: [{ key: "k", value: "v" }] }] }`
/// with the prefix of a message.
const CALL: &[u8] = b"\0\0\0\0\x10\x0a\x04edge\x12\x08\x0a\x06\x0a\x01k\x12\x01v";

const POLICY: &str = "
policies:
  - name: edge
    match: { domain: edge, descriptors: [k] }
    key: \"{descriptor:k}\"
    limits: [\"3 per 1h sliding-log\"]
";

/// More calls than the server reads at once.
const CALLS: u32 = 5_000;

fn connect(server: &Server) -> Connection {
    Connection::begin(TcpStream::connect(server.grpc()).expect("the server listens"))
}

/// Makes a call and returns its code: 1 is OK, 2 is OVER_LIMIT.
#[track_caller]
fn call(connection: &mut Connection, stream: u32) -> u8 {
    let frames = Frames::default().post(stream, PATH, &FIELDS, false).body(stream, CALL);
    connection.send(frames);
    let mut code = None;
    loop {
        let frame = connection.next();
        assert_ne!(frame.kind, GOAWAY, "{}", String::from_utf8_lossy(&frame.payload));
        if frame.stream != stream {
            continue;
        }
        assert_ne!(frame.kind, RST_STREAM, "{frame:?}");
        if frame.kind == DATA {
            // A prefix of five bytes, then field 1, the overall code.
            code = frame.payload.get(6).copied();
        }
        if frame.kind == HEADERS && frame.ends_stream {
            return code.expect("a response");
        }
    }
}

#[test]
fn cancelled_calls_keep_the_connection() {
    let server = serve("grpc-cancelled", POLICY);
    let mut connection = connect(&server);
    let streams = |from: u32| (0..CALLS).map(move |n| from + 2 * n);
    // Cancelled before and after the message is sent.
    let heads = streams(1).fold(Frames::default(), |frames, stream| {
        frames.post(stream, PATH, &FIELDS, false).cancel(stream)
    });
    connection.send(heads);
    let first = 1 + 2 * CALLS;
    assert_eq!(call(&mut connection, first), 1);
    let whole = streams(first + 2).fold(Frames::default(), |frames, stream| {
        frames.post(stream, PATH, &FIELDS, false).body(stream, CALL).cancel(stream)
    });
    connection.send(whole);
    let last = first + 2 + 2 * CALLS;
    // Calls that were decided before their reset arrived have been charged.
    let codes: Vec<u8> = (0..3).map(|n| call(&mut connection, last + 2 * n)).collect();
    assert!(codes.is_sorted() && codes[2] == 2, "{codes:?}");
    let resets = server.metric("tidegate_http2_resets_total{front=\"grpc\"}");
    assert_eq!(resets, Some(2 * u64::from(CALLS)));
    assert_eq!(server.metric("tidegate_http2_goaways_total{front=\"grpc\"}"), Some(0));
}

/// An invalid request is an error of its stream. A connection may carry any number of them.
#[test]
fn stream_errors_keep_the_connection() {
    let server = serve("grpc-stream-errors", POLICY);
    let mut connection = connect(&server);
    let mut stream = 1;
    for code in [1, 1, 1, 2, 2] {
        let mut frames = Frames::default();
        for _ in 0..CALLS / 5 {
            frames = frames.post(stream, "", &FIELDS, true);
            stream += 2;
        }
        connection.send(frames);
        assert_eq!(call(&mut connection, stream), code);
        stream += 2;
    }
}

/// Errors of the connection itself close it, and are counted and logged.
#[test]
fn protocol_errors_close_the_connection() {
    let server = serve("grpc-protocol-error", POLICY);
    let mut connection = connect(&server);
    // Clients must not open stream 2.
    connection.send(Frames::default().post(2, PATH, &FIELDS, false));
    while connection.next().kind != GOAWAY {}
    let log = server.logged("closed a connection for an HTTP/2 error");
    assert!(log.contains("front=\"grpc\""), "{log}");
    assert_eq!(server.metric("tidegate_http2_goaways_total{front=\"grpc\"}"), Some(1));
}
