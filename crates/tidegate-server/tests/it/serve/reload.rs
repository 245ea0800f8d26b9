//! Reloads: what they change, what they keep, and when they are rejected.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::cli_harness::Files;
use crate::server_harness::{Server, Start, wait_for};

fn config(limit: &str) -> String {
    format!("policies:\n  - name: login\n    key: \"{{client_ip}}\"\n    limits: [\"{limit}\"]\n")
}

/// Returns the limit and the units left for a key.
fn left(server: &Server, key: &str) -> (u64, u64) {
    let ask = format!(r#"{{"policy":"login","key":"{key}","cost":0}}"#);
    let answer = server.check(&ask).json();
    (answer["limit"].as_u64().expect("a limit"), answer["remaining"].as_u64().expect("a number"))
}

fn charge(server: &Server, key: &str, cost: u64) {
    let ask = format!(r#"{{"policy":"login","key":"{key}","cost":{cost}}}"#);
    assert_eq!(server.check(&ask).json()["allowed"], true);
}

fn reloads(server: &Server, result: &str) -> u64 {
    server.metric(&format!("tidegate_reloads_total{{result=\"{result}\"}}")).expect("a metric")
}

#[test]
fn changed_limit_keeps_counts() {
    let server = Start::new("reload-number").config(&config("10 per 1h sliding-log")).run();
    charge(&server, "alice", 4);
    server.files.write("tidegate.yaml", config("20 per 1h sliding-log"));
    wait_for(|| (left(&server, "alice").0 == 20).then_some(()));
    assert_eq!(left(&server, "alice"), (20, 16));
    server.files.write("tidegate.yaml", config("3 per 1h sliding-log"));
    wait_for(|| (left(&server, "alice").0 == 3).then_some(()));
    assert_eq!(left(&server, "alice"), (3, 0));
    // A limit with another window has another count.
    server.files.write("tidegate.yaml", config("3 per 2h sliding-log"));
    wait_for(|| (left(&server, "alice") == (3, 3)).then_some(()));
    assert_eq!((reloads(&server, "ok"), reloads(&server, "refused")), (3, 0));
}

#[test]
fn invalid_config_keeps_the_old_one() {
    let server = Start::new("reload-invalid").config(&config("10 per 1h")).run();
    charge(&server, "alice", 1);
    server.files.write("tidegate.yaml", config("10 per fortnight"));
    wait_for(|| (reloads(&server, "refused") == 1).then_some(()));
    assert_eq!(left(&server, "alice"), (10, 9));
    let log = server.logged("the config was not reloaded, the old one stays");
    assert!(log.contains("fortnight"), "{log}");
    let stats = || server.admin_get("/admin/v1/stats").json()["reloads"].clone();
    let reported = stats();
    let refusal = &reported["last_refusal"];
    assert!(refusal["why"].as_str().is_some_and(|why| why.contains("fortnight")), "{refusal}");
    assert!(refusal["at_seconds"].as_u64() >= reported["last_ok_seconds"].as_u64());
    assert_eq!(refusal["mended"], false);
    // A missing file is rejected as well.
    fs::remove_file(server.files.path("tidegate.yaml")).expect("the file is removed");
    wait_for(|| (reloads(&server, "refused") == 2).then_some(()));
    assert_eq!(left(&server, "alice"), (10, 9));
    server.files.write("tidegate.yaml", config("11 per 1h"));
    wait_for(|| (left(&server, "alice") == (11, 10)).then_some(()));
    wait_for(|| (stats()["last_refusal"]["mended"] == true).then_some(()));
}

/// The first error had no `error:` before it, and the others did.
#[test]
fn every_error_of_a_refused_config_begins_alike() {
    let server = Start::new("reload-errors").config(&config("10 per 1h")).run();
    server.files.write("tidegate.yaml", format!("grace: 1\n{}", config("10 per fortnight")));
    wait_for(|| (reloads(&server, "refused") == 1).then_some(()));
    let stats = server.admin_get("/admin/v1/stats").json();
    let why = stats["reloads"]["last_refusal"]["why"].as_str().expect("a text");
    assert!(why.starts_with("error: unknown field `grace`\n"), "{why}");
    assert_eq!(why.matches("error: ").count(), 2, "{why}");
    assert!(why.contains("\n\nerror: `fortnight`"), "{why}");
    let log = server.logged("the config was not reloaded, the old one stays");
    assert!(log.contains("stays: unknown field `grace`"), "{log}");
}

#[test]
fn logs_warnings_at_start_and_at_reload() {
    let config = |path: &str| {
        format!("policies: [{{ name: a, match: {{ path: {path} }}, key: all, limits: 5 per 1m }}]")
    };
    let server = Start::new("reload-warnings").config(&config("/v1/.*")).run();
    let log = server.logged("`/v1/.*` looks like a regular expression");
    assert!(log.contains("  help: write `/v1/**`"), "{log}");
    server.files.write("tidegate.yaml", config("/v2/.*"));
    server.logged("`/v2/.*` looks like a regular expression");
    wait_for(|| (reloads(&server, "ok") == 1).then_some(()));
}

#[test]
fn sighup_reloads() {
    let server = Start::new("reload-hangup").config(&config("10 per 1h")).run();
    server.signal("-HUP");
    wait_for(|| (reloads(&server, "ok") == 1).then_some(()));
    let bare = Start::new("reload-bare").run();
    bare.signal("-HUP");
    wait_for(|| bare.log().contains("there is no config to reload").then_some(()));
    assert_eq!(bare.check(r#"{"policy":"default","key":"a"}"#).status, 200);
}

#[test]
fn swapped_symlink_reloads() {
    // As Kubernetes mounts a config: file -> ..data/file, ..data -> a directory of that version.
    let files = Files::new("reload-symlinks");
    for (version, limit) in [("..v1", "10 per 1h"), ("..v2", "20 per 1h")] {
        fs::create_dir(files.path(version)).expect("a directory");
        files.write(&format!("{version}/tidegate.yaml"), config(limit));
    }
    symlink("..v1", files.path("..data")).expect("a link");
    symlink("..data/tidegate.yaml", files.path("tidegate.yaml")).expect("a link");
    let path = files.path("tidegate.yaml");
    let server = Start::new("reload-symlinks-server").args(&["--config", &path]).run();
    charge(&server, "alice", 1);
    assert_eq!(left(&server, "alice"), (10, 9));
    symlink("..v2", files.path("..data_tmp")).expect("a link");
    fs::rename(files.path("..data_tmp"), files.path("..data")).expect("the swap");
    wait_for(|| (left(&server, "alice") == (20, 19)).then_some(()));
}

fn make_pipe(path: &str) {
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo runs").success());
}

/// The pipe has no writer, so reading it would block for ever.
#[test]
fn ignores_pipes_in_config_directory() {
    let limits = |count: u32| {
        format!(
            "domain: edge\ndescriptors:\n  - {{ key: a, rate_limit: {{ unit: hour, requests_per_unit: {count} }} }}\n"
        )
    };
    let files = Files::new("reload-pipe");
    files.write("edge.yaml", limits(10));
    make_pipe(&files.path("pipe.yaml"));
    let directory = files.path("");
    let mut server = Start::new("reload-pipe-server").args(&["--envoy-config", &directory]).run();
    let limit = |server: &Server| {
        let ask = r#"{"attributes":{"domain":"edge","descriptors":{"a":"b"}},"cost":0}"#;
        server.check(ask).json()["limit"].as_u64()
    };
    assert_eq!(limit(&server), Some(10));
    files.write("edge.yaml", limits(20));
    wait_for(|| (limit(&server) == Some(20)).then_some(()));
    server.signal("-TERM");
    assert_eq!(server.ended(), 0);
}

/// A config can be read from a pipe once.
#[test]
fn does_not_reread_pipe() {
    let files = Files::new("reload-from-pipe");
    let path = files.path("tidegate.yaml");
    make_pipe(&path);
    let to = path.clone();
    let writer = std::thread::spawn(move || fs::write(to, config("10 per 1h")).expect("written"));
    let mut server = Start::new("reload-from-pipe-server").args(&["--config", &path]).run();
    writer.join().expect("a complete read");
    server.signal("-HUP");
    wait_for(|| (reloads(&server, "refused") == 1).then_some(()));
    server.logged("not a regular file, so it cannot be read again");
    assert_eq!(left(&server, "alice"), (10, 10));
    server.signal("-TERM");
    assert_eq!(server.ended(), 0);
}

#[test]
fn reports_settings_that_need_a_restart() {
    let server = Start::new("reload-restart").config(&config("10 per 1h")).run();
    let changed = format!("max_keys: 5000\nhttp: 127.0.0.1:1\n{}", config("12 per 1h"));
    server.files.write("tidegate.yaml", changed);
    wait_for(|| (left(&server, "alice").0 == 12).then_some(()));
    let log = wait_for(|| Some(server.log()).filter(|log| log.contains("need a restart")));
    // The address was set by a flag, so the field has no effect.
    assert!(log.contains("fields=\"max_keys\""), "{log}");
}

#[test]
fn reload_changes_headers_and_proxies() {
    let server = Start::new("reload-headers").config(&config("10 per 1h")).run();
    let ask = || server.ask("GET", "/v1/forward-auth", &[("x-forwarded-for", "192.0.2.1")], "");
    assert!(ask().header("ratelimit").is_some());
    let more = "headers: [x-ratelimit]\ntrusted_proxies: [127.0.0.0/8]\n";
    server.files.write("tidegate.yaml", format!("{more}{}", config("10 per 1h")));
    wait_for(|| ask().header("x-ratelimit-limit").map(drop));
    // A request during the reload may be decided under the old policies and answered in the new
    // form.
    ask();
    assert!(left(&server, "192.0.2.1").1 < 10);
}
