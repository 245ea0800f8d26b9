//! The password of the store is shown nowhere.

use super::{POLICIES, check};
use crate::cli_harness::{Files, tidegate};
use crate::server_harness::{Server, Start};

/// A secret, which the tests put into every part of a URL that can contain one.
const SECRET: &str = "s3cr3t-p4ssw0rd";

#[track_caller]
fn assert_hidden(text: &str) {
    assert!(!text.contains(SECRET), "the password is in: {text}");
}

/// Returns all output of a server.
fn all_output(server: &Server) -> String {
    let mut output = server.printed.clone() + &server.log();
    for path in [
        "/metrics",
        "/admin/v1/policies",
        "/admin/v1/stats",
        "/admin/v1/policies/here/keys/a",
        "/dashboard",
        "/readyz",
    ] {
        output += &server.admin_get(path).text();
    }
    for path in ["/openapi.json", "/v1/forward-auth/closed"] {
        output += &server.ask("GET", path, &[], "").text();
    }
    output + &check(server, "closed", "a").to_string()
}

#[test]
fn store_variable_overrides_file_and_stays_secret() {
    let url = format!("redis://user:{SECRET}@127.0.0.1:1/3");
    let config = format!("store: memory\n{POLICIES}");
    let start = |test: &str| Start::new(&format!("shared-secret-{test}")).config(&config);
    let file = Files::new("shared-secret").write("store", format!("{url}\n"));
    for server in [
        start("variable").env("TIDEGATE_STORE", &url).env("RUST_LOG", "trace").run(),
        start("file").env("TIDEGATE_STORE_FILE", &file).run(),
        Start::new("shared-secret-config").config(&format!("store: {url}\n{POLICIES}")).run(),
    ] {
        assert!(server.printed.contains(": redis://127.0.0.1:1/3 store"), "{}", server.printed);
        // A reload that changes only the `store` that the environment overrides changes nothing.
        server.files.write("tidegate.yaml", format!("store: {url}\n{POLICIES}"));
        server.signal("-HUP");
        crate::server_harness::wait_for(|| {
            server.log().contains("the config was reloaded").then_some(())
        });
        assert_hidden(&all_output(&server));
        assert!(!server.log().contains("is not a setting of tidegate"), "{}", server.log());
    }
}

#[test]
fn store_url_errors_do_not_print_the_url() {
    let start = |test: &str| {
        Start::new(&format!("shared-wrong-{test}")).config(&format!("store: memory\n{POLICIES}"))
    };
    let not_a_store = "this is not a store: write `memory`, or a URL that begins with `redis://`, \
                       `rediss://`, `redis+unix://`, `redis-sentinel://` or `redis-cluster://`";
    let rows = [
        (
            start("scheme").env("TIDEGATE_STORE", &format!("http://:{SECRET}@cache")),
            format!("error: TIDEGATE_STORE: {not_a_store}\n"),
        ),
        (
            start("twice").env("TIDEGATE_STORE", SECRET).env("TIDEGATE_STORE_FILE", "/dev/null"),
            "error: TIDEGATE_STORE and TIDEGATE_STORE_FILE are both set: keep one\n".into(),
        ),
        (
            start("empty").env("TIDEGATE_STORE_FILE", "/dev/null"),
            "error: TIDEGATE_STORE_FILE: the file /dev/null is empty: write a secret into it\n"
                .into(),
        ),
    ];
    for (start, expected) in rows {
        let (code, output) = start.fails();
        assert_eq!((code, output.as_str()), (1, expected.as_str()));
    }
}

#[test]
fn config_commands_hide_store_credentials() {
    let files = Files::new("shared-config");
    let url = format!("redis-cluster://user:p@:{SECRET}@a.example:7000,b.example");
    let path = files.write("good.yaml", format!("store: {url}\nnodes: 4\n{POLICIES}"));
    let checked = tidegate(&["config", "check", &path]).succeeded().stdout;
    let place = "counts in redis-cluster://a.example:7000,b.example for 4 nodes";
    assert_eq!(checked, format!("{path} is fine: 7 policies, 7 limits, 0 overrides, {place}\n"));
    let explained = tidegate(&["explain", "--config", &path, "--path", "/slow"]).succeeded().stdout;
    let first = format!("{place}; what is decided locally has its limits divided by 4\n\n");
    assert!(explained.starts_with(&first), "{explained}");
    assert!(
        explained
            .contains("  denials are never answered from memory\n  store down: decided locally"),
        "{explained}"
    );
    // An invalid line is shown without the part before its last `@`.
    let path = files.write("bad.yaml", format!("store: {url}/{SECRET}: x\n{POLICIES}"));
    let run = tidegate(&["config", "check", &path]);
    assert_eq!(run.code, 1, "{}", run.stdout);
    for text in [&checked, &explained] {
        assert_hidden(text);
    }
    let path = files.write("scheme.yaml", format!("store: http://:p@{SECRET}@a\n{POLICIES}"));
    let run = tidegate(&["config", "check", &path]);
    assert_eq!(run.code, 1);
    assert!(run.stderr.contains("this is not a store"), "{}", run.stderr);
    assert_hidden(&run.stderr);
}
