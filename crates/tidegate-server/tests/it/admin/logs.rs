//! The log: one line per reported denial, with the details that an operator needs.

use serde_json::Value;
use tidegate_testkit::eventually;

use super::server::Server;
use super::{POLICIES, with_full_keys};
use crate::cli_harness::tidegate;

#[test]
fn logs_denials_with_key_and_retry() {
    let server = Server::start_with("json", &with_full_keys(), &["--log-format", "json"], &[]);
    for _ in 0..2 {
        let user = r#"{"path":"/reports","headers":{"x-user":"al\u001b[31m\nice"}}"#;
        server.check(user, &[("x-request-id", "r-1")]);
    }
    let lines = || {
        let log = server.log();
        let lines = log.lines().map(|line| serde_json::from_str(line).expect(line));
        lines.filter(|line: &Value| line["target"] == "tidegate::denials").collect::<Vec<_>>()
    };
    eventually("the denial is logged", || !lines().is_empty());
    let line = &lines()[0];
    let rows = [
        ("level", "INFO"),
        ("message", "would deny"),
        ("policy", "watched"),
        ("key", "11#al\\x1b[31m\\x0aice:8#/reports"),
        ("route", "/reports"),
        ("limit", "1 per 1h sliding-window"),
        ("request_id", "r-1"),
        ("decided", "exact"),
    ];
    for (field, value) in rows {
        assert_eq!(line[field], value, "{field} of {line}");
    }
    assert!(line["retry_after_ms"].as_u64() > Some(0) && line["suppressed"] == 0, "{line}");
    assert!(line["timestamp"].is_string(), "{line}");
}

#[test]
fn samples_denial_floods() {
    const DENIALS: usize = 60;
    let server = Server::start_with("flood", POLICIES, &["--log-format", "json"], &[]);
    // Each login uses one connection, and most of them fall into the same seconds.
    server.logins(DENIALS + 2, "192.0.2.1");
    let reported = || {
        let log = server.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let denials: Vec<_> = lines.filter(|line| line["message"] == "denied").collect();
        let suppressed: u64 = denials.iter().filter_map(|line| line["suppressed"].as_u64()).sum();
        (denials.len() as u64, suppressed)
    };
    // In a later second one more denial is logged, with the number of those that were suppressed.
    let mut denied = DENIALS as u64;
    eventually("all denials are logged or counted as suppressed", || {
        denied += u64::from(!server.login("192.0.2.1"));
        let (lines, suppressed) = reported();
        suppressed > 0 && lines + suppressed == denied
    });
    let (lines, _) = reported();
    assert!(lines < denied, "{lines} of {denied}");
}

#[test]
fn text_logs_escape_keys() {
    let server = Server::start("text", &with_full_keys());
    for _ in 0..2 {
        server.check(r#"{"path":"/reports","headers":{"x-user":"x policy=\"login\""}}"#, &[]);
    }
    eventually("the denial is logged", || server.log().contains("would deny"));
    let log = server.log();
    let line = log.lines().find(|line| line.contains("would deny")).expect("a line");
    assert!(line.contains(r#"policy="watched" key="16#x policy=\"login\":8#/reports""#), "{line}");
    assert!(!log.contains('\u{1b}'), "no colours without a terminal: {log}");
}

/// Regression test: the text log wrote `key="\\x00"` for the key that is shown as `\x00`.
#[test]
fn text_logs_show_keys_as_other_pages_do() {
    let server = Server::start("text-shown", &with_full_keys());
    for user in [r"\u0001", r#"\\\" x\""#] {
        let body = format!(r#"{{"path":"/reports","headers":{{"x-user":"{user}"}}}}"#);
        server.check(&body, &[]);
        server.check(&body, &[]);
    }
    let lines = || server.log().lines().filter(|line| line.contains("would deny")).count();
    eventually("both denials are logged", || lines() == 2);
    let log = server.log();
    assert!(log.contains(r#" key="1#\x01:8#/reports" route="/reports" "#), "{log}");
    // A backslash is shown as two, so that the quotes after it do not end the value.
    assert!(log.contains(r#" key="5#\\\" x\":8#/reports" route"#), "{log}");
}

#[test]
fn denial_log_can_be_disabled() {
    let quiet = [("RUST_LOG", "info,tidegate::denials=off")];
    let server = Server::start_with("quiet", POLICIES, &[], &quiet);
    server.logins(4, "192.0.2.1");
    server.ask("DELETE", "/admin/v1/policies/login/keys/192.0.2.1", &[]);
    eventually("the reset is logged", || server.log().contains("key reset"));
    assert!(!server.log().contains("denied"), "{}", server.log());
}

#[test]
fn rejects_invalid_log_filter() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args([
            "serve",
            "--http",
            "127.0.0.1:0",
            "--admin",
            "off",
            "--grpc",
            "off",
            "--resp",
            "off",
        ])
        .env("RUST_LOG", "tidegate=loud")
        .output()
        .expect("the binary runs");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.starts_with("error: RUST_LOG=\"tidegate=loud\" is not a valid filter: "),
        "{stderr}"
    );
    assert!(stderr.contains("\n  help: use a level (error, warn, info, debug, trace)"), "{stderr}");
    let output = tidegate(&["serve", "--log-format", "loud"]);
    assert_eq!(output.code, 2, "{}", output.stderr);
    assert!(output.stderr.contains("[possible values: text, json]"), "{}", output.stderr);
}
