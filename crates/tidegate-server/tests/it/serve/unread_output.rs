//! Standard output and standard error that are not read.
//!
//! Regression: log lines were written synchronously by the runtime's workers. With stderr a pipe
//! without a reader, every port timed out once the pipe was full, and SIGTERM did not end the
//! process.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write as _};
use std::net::TcpListener;

use tidegate_testkit::free_address;

use crate::server_harness::{Client, JSON, Server, Start, request, wait_for};

/// The number of policies. Each policy logs at most ten denials per second.
const POLICIES: usize = 200;

/// The capacity of a pipe on Linux.
const PIPE_BYTES: usize = 64 * 1024;

/// Returns policies with long names, so that few denials fill the log.
fn config() -> String {
    let mut config = String::from("policies:\n");
    for n in 0..POLICIES {
        let name = name(n);
        writeln!(
            config,
            "  - {{ name: {name}, key: \"{{client_ip}}\", limits: [\"1 per 1h sliding-log\"] }}"
        )
        .expect("memory");
    }
    config
}

fn name(n: usize) -> String {
    format!("p{n}-{}", "x".repeat(50))
}

/// Starts a server with one worker whose log goes into a pipe.
fn start(test: &str) -> (Server, PipeReader) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let start = Start::new(test).config(&config()).env("TOKIO_WORKER_THREADS", "1");
    (start.run_with_stderr(writer), reader)
}

fn dropped(server: &Server) -> u64 {
    server.metric("tidegate_log_lines_dropped_total").unwrap_or_default()
}

/// Sends denied requests, which are all answered, until the pipe and the buffer before it are full.
fn fill(server: &Server) {
    let mut client = Client::connect(server.http());
    let key = "k".repeat(100);
    wait_for(|| {
        for n in 0..POLICIES {
            let body = format!(r#"{{"policy":"{}","key":"{key}"}}"#, name(n));
            client.send(&request("POST", "/v1/check", &[JSON], &body));
            assert_eq!(client.reply("POST").status, 200);
        }
        (dropped(server) > 0).then_some(())
    });
}

#[test]
fn serves_and_stops_while_log_is_unread() {
    let (mut server, _reader) = start("stalled-log");
    fill(&server);
    assert_eq!(server.admin_get("/healthz").status, 200);
    assert_eq!(server.check(r#"{"key":"a","limits":["5 per 1m"]}"#).status, 200);
    server.signal("-TERM");
    assert_eq!(server.ended(), 0);
}

#[test]
fn reports_dropped_log_lines() {
    let (server, reader) = start("stalled-log-back");
    fill(&server);
    let before = dropped(&server);
    let mut lines = BufReader::new(reader).lines().map(|line| line.expect("UTF-8"));
    let report = lines.find(|line| line.contains("log lines were dropped")).expect("a report");
    let number = |field: &str| {
        let text = report.split_whitespace().find_map(|word| word.strip_prefix(field));
        text.and_then(|text| text.parse::<u64>().ok()).expect(&report)
    };
    assert_eq!(number("lines="), number("total="), "{report}");
    assert!(number("total=") >= before, "{before}: {report}");
    // Logging continues.
    server.signal("-HUP");
    assert!(lines.any(|line| line.contains("the config was reloaded")));
}

/// Returns a full pipe.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    writer.write_all(&[b'x'; PIPE_BYTES]).expect("space in the pipe");
    (reader, writer)
}

#[test]
fn starts_and_stops_while_output_is_unread() {
    let (_reader, pipe) = full_pipe();
    let (http, admin) = (free_address(), free_address());
    let start = Start::new("stalled-start")
        .args(&["--http", &http.to_string(), "--admin", &admin.to_string()])
        .args(&["--insecure-no-auth"]);
    let mut command = start.command();
    command.stdout(pipe.try_clone().expect("a descriptor")).stderr(pipe);
    let mut server = Server::listening(command.spawn().expect("the binary starts"), start, admin);
    wait_for(|| std::net::TcpStream::connect(admin).is_ok().then_some(()));
    assert_eq!(server.admin_get("/healthz").status, 200);
    server.signal("-TERM");
    assert_eq!(server.ended(), 0);
}

#[test]
fn failed_start_exits_while_error_is_unread() {
    let (_reader, pipe) = full_pipe();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let start = Start::new("stalled-error").args(&["--http", &address.to_string()]);
    let mut command = start.command();
    command.stderr(pipe);
    let mut server = Server::listening(command.spawn().expect("the binary starts"), start, address);
    assert_eq!(server.ended(), 1);
}
