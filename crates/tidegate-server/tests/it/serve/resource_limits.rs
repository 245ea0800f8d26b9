//! Abusive clients do not block the server, and do not make its memory grow.

use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::TWO_PER_HOUR;
use crate::server_harness::{Client, JSON, Server, Start, request, wait_for};

const ASK: &str = r#"{"policy":"login","key":"a","cost":0}"#;

fn works(server: &Server) {
    assert_eq!(server.check(ASK).status, 200, "{}", server.log());
}

#[test]
fn closes_slow_clients() {
    let server = Start::new("slow").config(TWO_PER_HOUR).run();
    let connect = || Client::connect(server.http());
    let mut silent = connect();
    let mut slow_head = connect();
    let mut second_head = connect();
    second_head.send(&request("POST", "/v1/check", &[JSON], ASK));
    assert_eq!(second_head.reply("POST").status, 200);
    let mut slow_body = connect();
    slow_body.send(b"POST /v1/check HTTP/1.1\r\nhost: t\r\ncontent-length: 50\r\n\r\n{");
    let mut endless = connect();
    endless.send(b"POST /v1/check HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n");
    let mut deaf = connect();

    // Each client sends a little now and then, which must not keep it connected.
    let begun = Instant::now();
    let (mut head_open, mut second_open, mut endless_open) = (true, true, true);
    while begun.elapsed() < Duration::from_secs(45) && (head_open || second_open || endless_open) {
        head_open = head_open && slow_head.try_send(b"G");
        second_open = second_open && second_head.try_send(b"G");
        endless_open = endless_open && endless.try_send(b"1\r\nx\r\n");
        std::thread::sleep(Duration::from_millis(200));
        works(&server);
    }
    assert!(!head_open && !second_open && !endless_open);
    assert!(silent.closed() && slow_head.closed() && second_head.closed());
    slow_body.reply("POST").refuses(408, None, "the body took too long to arrive");
    // Its response precedes the end of its connection, unless the connection was reset.
    drop(endless);

    // A client that sends requests, and never reads a response.
    let batch = request("POST", "/v1/check", &[JSON], ASK).repeat(200);
    let refused = deaf.send_until_refused(&batch);
    assert!(matches!(refused, ConnectionReset | BrokenPipe), "{refused}");
    works(&server);
}

#[test]
fn bounds_body_size() {
    let server = Start::new("endless").config(TWO_PER_HOUR).run();
    let before = server.resident();
    let mut announced = Client::connect(server.http());
    announced.send(b"POST /v1/check HTTP/1.1\r\nhost: t\r\ncontent-length: 99999999999\r\n\r\n{");
    announced.reply("POST").refuses(413, None, "the body is larger than 65536 bytes");
    let mut chunked = Client::connect(server.http());
    chunked.send(b"POST /v1/check HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n");
    let mut chunk = b"10000\r\n".to_vec();
    chunk.extend(vec![b'x'; 0x10000]);
    chunk.extend(b"\r\n");
    let sent = (0..4096).take_while(|_| chunked.try_send(&chunk)).count();
    assert!(sent < 4096, "the server never stopped reading");
    works(&server);
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 32 * 1024 * 1024, "the server grew by {grown} bytes");
}

#[test]
fn rejects_oversized_heads() {
    let server = Start::new("heads").config(TWO_PER_HOUR).run();
    let large = "x".repeat(500 * 1024);
    let many: Vec<(String, String)> = (0..200).map(|n| (format!("h{n}"), "v".into())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(n, v)| (&**n, &**v)).collect();
    for _ in 0..20 {
        // Everything is sent before anything is read, as gateways do.
        for headers in [&[("x-large", &*large)][..], &many] {
            let mut client = Client::connect(server.http());
            client.send(&request("GET", "/v1/forward-auth", headers, ""));
            let reply = client.reply("GET");
            // As docs/http-api.md describes for malformed heads.
            assert_eq!(
                (reply.status, reply.body.len(), reply.header("x-request-id")),
                (431, 0, None)
            );
            assert!(client.closed());
        }
    }
    let mut nonsense = Client::connect(server.http());
    nonsense.send(b"\x16\x03\x01 what is this\r\n\r\n");
    let reply = nonsense.reply("GET");
    assert_eq!((reply.status, reply.body.len(), reply.header("x-request-id")), (400, 0, None));
    assert!(nonsense.closed());
    works(&server);
}

/// The documented number of idle connections, and the other open files of a test.
pub const IDLE: usize = 10_000;
const OTHER_FILES: u64 = 512;

/// Held by a test with this many open connections, so that two do not run at once.
pub static IDLE_TURN: Mutex<()> = Mutex::new(());

/// Returns whether this process may have that many open files. If not, a message is printed, and in
/// CI the test fails, because the message would not be read there.
pub fn may_open_idle() -> bool {
    // The files of this side. The server raises its own limit.
    let files = IDLE as u64 + OTHER_FILES;
    let allowed = rlimit::increase_nofile_limit(files).unwrap_or(0);
    if allowed >= files {
        return true;
    }
    let message = format!(
        "NOT TESTED: {IDLE} idle connections; {allowed} open files allowed, {files} needed (ulimit -Hn)"
    );
    assert!(std::env::var_os("CI").is_none(), "{message}");
    eprintln!("{message}");
    false
}

#[test]
fn holds_ten_thousand_idle_connections() {
    let _turn = IDLE_TURN.lock();
    let wanted = if may_open_idle() { IDLE } else { 500 };
    let server = Start::new("idle").config(TWO_PER_HOUR).run();
    let connect = |_| TcpStream::connect(server.http()).expect("the server listens");
    let idle: Vec<TcpStream> = (0..wanted).map(connect).collect();
    let held = || {
        server.metric("tidegate_connections{front=\"http\"}").filter(|held| *held >= wanted as u64)
    };
    wait_for(held);
    works(&server);
    let each = server.resident() / wanted as u64;
    assert!(each < 64 * 1024, "{each} bytes for each of {wanted} connections");
    drop(idle);
    works(&server);
}
