//! The files under `deploy/`, compared with the server: configs that it accepts, metrics that it
//! exposes, secrets that it requires. (`scripts/lib/deploy.sh` checks the rest with other
//! programs.)

pub mod monitoring;
mod promql;

use std::path::{Path, PathBuf};

use crate::cli_harness::{Files, tidegate};
use crate::server_harness::{Server, Start};

/// Returns the path of a file under `deploy/`.
fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}

#[track_caller]
fn read(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the value of `key: |` in a manifest.
#[track_caller]
fn block(manifest: &str, key: &str) -> String {
    let head = format!("  {key}: |");
    let lines = manifest.lines().skip_while(|line| *line != head).skip(1);
    let lines =
        lines.map_while(|line| if line.is_empty() { Some("") } else { line.strip_prefix("    ") });
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    assert!(!text.is_empty(), "there is no {key}");
    text
}

/// Returns the shipped configs, by deployment.
fn configs() -> [(&'static str, String); 2] {
    [
        ("compose", read("docker/config/tidegate.yaml")),
        ("kubernetes", block(&read("kubernetes/configmap.yaml"), "tidegate.yaml")),
    ]
}

/// Starts a server with a shipped config that has allowed, denied and observed requests.
fn busy(name: &str, config: &str) -> Server {
    let server = Start::new(&format!("deploy-{name}")).config(config).run();
    let login = r#"{"attributes":{"method":"POST","path":"/login","client_ip":"192.0.2.1"}}"#;
    let logins: Vec<_> = (0..6).map(|_| server.check(login).json()["allowed"] == true).collect();
    assert_eq!(logins, [true, true, true, true, true, false], "{name}: five logins a minute");
    // More than the limits of `everybody`, which is only observed.
    let large = r#"{"attributes":{"path":"/","client_ip":"192.0.2.2"},"cost":1000}"#;
    let answer = server.check(large).json();
    assert_eq!(answer["allowed"], true, "{name}: {answer}");
    assert_eq!(answer["limits"][0]["allowed"], false, "{name}: {answer}");
    server
}

#[test]
fn shipped_configs_are_valid_and_behave_as_documented() {
    for (name, config) in configs() {
        let file = Files::new(&format!("deploy-check-{name}")).write("tidegate.yaml", &config);
        let message = tidegate(&["config", "check", "--strict", &file]).succeeded().stdout;
        assert_eq!(message, format!("{file} is fine: 2 policies, 3 limits, 0 overrides\n"));
        drop(busy(name, &config));
    }
    let file = path("docker/config-redis/tidegate.yaml").display().to_string();
    let message = tidegate(&["config", "check", "--strict", &file]).succeeded().stdout;
    let expect = "2 policies, 3 limits, 0 overrides, counts in redis://valkey:6379 for 3 nodes";
    assert_eq!(message, format!("{file} is fine: {expect}\n"));
}

#[test]
fn placeholder_secret_is_rejected() {
    let example = read("kubernetes/example/secret.yaml");
    for (key, variable) in
        [("tokens", "TIDEGATE_TOKENS_FILE"), ("admin-token", "TIDEGATE_ADMIN_TOKEN_FILE")]
    {
        let line = example.lines().find_map(|line| line.strip_prefix(&format!("  {key}: ")));
        let start = Start::new(&format!("deploy-secret-{key}"));
        let file = start.files().write(key, line.expect("a value").trim_matches('"'));
        let (code, message) = start.env(variable, &file).fails();
        let expected =
            format!("error: {variable}: the file {file} is empty: write a secret into it\n");
        assert_eq!((code, message), (1, expected));
    }
}
