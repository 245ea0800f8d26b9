//! Layers with the policies of a config file.

use std::path::PathBuf;

use tidegate::tower::{Identity, PathVariants, RateLimitLayer};

use super::{ALICE, Fixture, from, rule};

/// The text of a config file with one policy, `file`, with this limit.
fn file(name: &str, limit: &str) -> PathBuf {
    let text = format!(
        "headers: x-ratelimit\npolicies:\n  - name: file\n    key: \"{{client_ip}}\"\n    limits: [\"{limit}\"]\n"
    );
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).expect("a file");
    path
}

#[test]
fn policies_and_rules_are_decided_together() {
    let path = file("one-request.yaml", "2 per 1m sliding-log");
    let everybody = rule("key", &["3 per 1m sliding-log"]).key(|_| Some("everybody".into()));
    let fixture =
        Fixture::new(|builder| builder.config_file(&path).expect("a file").rule(everybody));
    let response = fixture.send(from(ALICE, "/"));
    assert_eq!(response.header("x-ratelimit-limit"), Some("2"), "the form of the file");
    assert_eq!(fixture.statuses(|| from(ALICE, "/"), 2), [200, 429]);
    assert_eq!(fixture.left("key", "everybody"), 1);
}

#[test]
fn a_reload_replaces_the_policies_and_keeps_the_counts() {
    let path = file("reload.yaml", "2 per 1m sliding-log");
    let fixture = Fixture::new(|builder| builder.config_file(&path).expect("a file"));
    assert_eq!(fixture.statuses(|| from(ALICE, "/"), 3), [200, 200, 429]);
    let wider = file("wider.yaml", "4 per 1m sliding-log");
    fixture.layer.reload_config_file(&wider).expect("a file");
    assert_eq!(fixture.statuses(|| from(ALICE, "/"), 3), [200, 200, 429]);
    let wrong = file("wrong.yaml", "4 per");
    let errors = fixture.layer.reload_config_file(&wrong).expect_err("no limit");
    assert_eq!(errors.iter().next().and_then(|error| error.line()), Some(5));
    assert_eq!(fixture.status(from(ALICE, "/")), 429, "the policies stay");
}

#[test]
fn conflicting_settings_are_rejected() {
    let path = file("refused.yaml", "2 per 1m");
    let with_file = || RateLimitLayer::builder().config_file(&path).expect("a file");
    let rows = [
        (
            with_file().identity(Identity::default()),
            "a config file has its own identity: leave `identity` out, and set it in the file",
        ),
        (
            with_file().path_variants(PathVariants::Keep),
            "a config file has its own path_variants: leave `path_variants` out, and set it in the file",
        ),
        (
            with_file().rule(rule("file", &["5 per 1m"])),
            "two policies are called `file`: give each rule a different name",
        ),
    ];
    for (builder, expected) in rows {
        assert_eq!(builder.build().expect_err(expected).to_string(), expected);
    }
    let fixture = Fixture::with(rule("api", &["5 per 1m"]));
    let errors = fixture.layer.reload_config_file(&path).expect_err("rules alone");
    let messages: Vec<&str> = errors.iter().map(|error| error.message()).collect();
    assert_eq!(messages, ["this layer has no policies of a config file to replace"]);
}
