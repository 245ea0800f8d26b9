//! Few file descriptors: no front uses up those of another.
//!
//! Regression: all fronts shared one maximum number of connections. At `ulimit -n 64`, idle RESP
//! connections took all descriptors and `/healthz` timed out.

use std::net::TcpStream;
use std::process::Command;

use super::TWO_PER_HOUR;
use crate::server_harness::{Server, Start, wait_for};

/// Returns the command with this soft and hard limit of open files.
fn limited(command: &Command, files: u32) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit -n {files}; exec \"$0\" \"$@\"")]);
    limited.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}

fn start(test: &str) -> Start {
    Start::new(test).config(TWO_PER_HOUR).args(&["--resp", "127.0.0.1:0", "--grpc", "127.0.0.1:0"])
}

fn connections(server: &Server, front: &str) -> u64 {
    server.metric(&format!("tidegate_connections{{front=\"{front}\"}}")).expect("the metric")
}

#[test]
fn idle_connections_do_not_starve_other_fronts() {
    for (files, idle) in [(64, 80), (256, 300)] {
        let start = start(&format!("files-{files}"));
        let server = start.wrapped(move |command| limited(command, files)).run();
        let connect = |_| TcpStream::connect(server.resp()).expect("the server listens");
        let held: Vec<TcpStream> = (0..idle).map(connect).collect();
        assert_eq!(server.admin_get("/healthz").status, 200, "{files} files");
        let bound = server.metric("tidegate_max_connections{front=\"resp\"}").expect("the metric");
        wait_for(|| (connections(&server, "resp") == bound).then_some(()));
        for path in ["/healthz", "/metrics"] {
            assert_eq!(server.admin_get(path).status, 200, "{path} of {files} files");
        }
        assert_eq!(server.check(r#"{"policy":"login","key":"a"}"#).status, 200);
        let log = server.logged("connection limit reached");
        assert_eq!(log.matches("connection limit reached").count(), 1, "{log}");
        assert!(!log.contains("cannot accept connections"), "{log}");
        // A closed connection lets a waiting one in.
        drop(held);
        wait_for(|| (connections(&server, "resp") == 0).then_some(()));
    }
}

#[test]
fn rejects_too_low_file_limit() {
    let (code, message) = start("files-few").wrapped(|command| limited(command, 32)).fails();
    assert_eq!(code, 1);
    for part in ["limit on open files is 32", "at least 44", "ulimit -n 1024", "LimitNOFILE"] {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
    // Fewer fronts need fewer files.
    let start = start("files-fewer").args(&["--resp", "off", "--grpc", "off"]);
    let server = start.wrapped(|command| limited(command, 36)).run();
    assert_eq!(server.check(r#"{"policy":"login","key":"a"}"#).status, 200);
    assert_eq!(server.admin_get("/healthz").status, 200);
}
