//! Startup, and why it can fail.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};

use super::TWO_PER_HOUR;
use crate::cli_harness::tidegate;
use crate::server_harness::Start;

#[test]
fn default_start_prints_policy_and_example() {
    let server = Start::new("start-bare").run();
    let (http, admin) = (server.http(), server.admin());
    let expected = format!(
        "tidegate {}: memory store, no config: `default` allows 100 per 1m to every client address\n  \
         http   http://{http}\n  grpc   off\n  resp   off\n  admin  http://{admin}\nOpen:\n  \
         playground http://{http}/playground\n  dashboard  http://{admin}/dashboard\nTry:\n  \
         curl http://{http}/v1/check \
         -d '{{\"attributes\":{{\"client_ip\":\"192.0.2.1\"}}}}'\n",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(server.printed, expected);
    let answer = server.check(r#"{"attributes":{"client_ip":"192.0.2.1"}}"#).json();
    let seen = (&answer["policy"], &answer["limit"], &answer["remaining"]);
    assert_eq!(seen, (&"default".into(), &100.into(), &99.into()));
    assert_eq!(server.admin_get("/readyz").status, 200);
}

#[test]
fn printed_example_works_with_secret() {
    let start = Start::new("start-secret").args(&["--http", "0.0.0.0:0"]);
    let server = start.env("TIDEGATE_TOKENS", "hush").run();
    let port = server.http().port();
    let (before, line) =
        server.printed.split_once("Try ($TOKEN is one of TIDEGATE_TOKENS):\n  ").expect("a line");
    assert!(before.contains(&format!("  http   http://0.0.0.0:{port}\n")), "{before}");
    let expected = format!(
        "curl http://127.0.0.1:{port}/v1/check -H \"Authorization: Bearer $TOKEN\" \
         -d '{{\"attributes\":{{\"client_ip\":\"192.0.2.1\"}}}}'\n"
    );
    assert_eq!(line, expected);
    assert!(!server.printed.contains("hush"));
    // As a user runs it, with the secret in the shell.
    let mut shell = std::process::Command::new("sh");
    let output = shell
        .args(["-c", &format!("{} -s", line.trim())])
        .env("TOKEN", "hush")
        .output()
        .expect("a shell");
    let answer = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(answer.starts_with("{\"allowed\":true,\"policy\":\"default\""), "{answer}");
}

/// A rejected caller was in no log, and a gateway hides the reason from its clients.
#[test]
fn logs_secrets_that_are_rejected_or_can_be_guessed() {
    let weak = "a secret of TIDEGATE_TOKENS can be guessed: use at least 16 bytes";
    for (address, token, is_weak) in [
        ("127.0.0.1:0", "short", false),
        ("0.0.0.0:0", "short", true),
        ("0.0.0.0:0", "0123456789abcdef", false),
    ] {
        let start = Start::new(&format!("start-secret-{is_weak}-{}", token.len()));
        let start = start.args(&["--http", address, "--resp", "127.0.0.1:0"]);
        let server = start.env("TIDEGATE_TOKENS", token).run();
        for _ in 0..3 {
            assert_eq!(server.check("{}").status, 401);
        }
        let mut client = TcpStream::connect(server.resp()).expect("a connection");
        client.write_all(b"PING\r\nAUTH wrong\r\n").expect("it is read");
        for front in ["http", "resp"] {
            let rejected = format!(
                "rejected a caller: its secret is missing or wrong; it must send that of \
                 TIDEGATE_TOKENS front=\"{front}\""
            );
            let log = server.logged(&rejected);
            assert_eq!(log.matches(&rejected).count(), 1, "{log}");
        }
        let log = server.log();
        assert_eq!(log.contains(weak), is_weak, "{log}");
    }
}

/// Regression: a secret that was copied together with its scheme was accepted, and no client that
/// sent `Authorization: Bearer SECRET` was.
#[test]
fn warns_of_secrets_that_begin_with_a_scheme() {
    let expected = "a secret of TIDEGATE_TOKENS begins with `Bearer `, which is not part of it";
    for (name, tokens, is_warned) in [
        ("second", "first-5ecret,bearer second-5ecret", true),
        ("none", "Bearer-5ecret,first 5ecret", false),
    ] {
        let start = Start::new(&format!("start-scheme-{name}")).env("TIDEGATE_TOKENS", tokens);
        let server = start.run();
        let log = if is_warned { server.logged(expected) } else { server.log() };
        assert_eq!(log.matches(expected).count(), usize::from(is_warned), "{log}");
        assert!(!log.contains("5ecret") && !server.printed.contains("5ecret"), "{log}");
    }
}

/// The first policy, and the path and body of the command that is printed for it.
#[rustfmt::skip]
const EXAMPLES: &[(&str, &str, &str)] = &[
    ("match: { methods: [POST], path: /login }, key: '{client_ip}', limits: 5 per 1m",
     "/v1/check", r#"{"attributes":{"client_ip":"192.0.2.1","method":"POST","path":"/login"}}"#),
    ("match: { path: '/v1/**', host: '*.example.com', client_ip: 10.0.0.0/8 }, key: all, limits: 5 per 1m",
     "/v1/check", r#"{"attributes":{"client_ip":"10.0.0.0","host":"www.example.com","path":"/v1/example"}}"#),
    (r#"match: { "header:x-org": ["O'Neill", acme] }, key: '{header:x-user}', limits: 5 per 1m"#,
     "/v1/check", r#"{"attributes":{"client_ip":"192.0.2.1","headers":{"x-org":"O\u0027Neill","x-user":"alice"}}}"#),
    ("key: '{client_ip}', limits: 5 per 1m, exempt: { client_ip: 192.0.2.0/24 }",
     "/v1/check", r#"{"key":"alice","policy":"first"}"#),
    ("match: { path: '/*/x?' }, key: '{client_ip}', limits: 5 per 1m",
     "/v1/check", r#"{"key":"alice","policy":"first"}"#),
    ("match: { descriptors: [remote_address] }, key: '{descriptor:remote_address}', limits: 5 per 1m",
     "/v1/check", r#"{"key":"alice","policy":"first"}"#),
    ("key: '{client_ip}', limits: [2 concurrent, 5 per 1m]",
     "/v1/permits", r#"{"key":"alice","policy":"first"}"#),
];

/// Pastes the printed command into a shell.
#[test]
fn printed_example_is_decided_by_the_first_policy() {
    for (row, (policy, path, body)) in EXAMPLES.iter().enumerate() {
        let config = format!(
            "policies:\n  - {{ name: 'off', key: all, limits: 5 per 1m, mode: 'off' }}\n  \
             - {{ name: first, {policy} }}\n"
        );
        let server = Start::new(&format!("start-example-{row}")).config(&config).run();
        let (_, command) = server.printed.split_once("Try:\n  ").expect("a command");
        let url = format!("http://{}", server.http());
        assert_eq!(command, format!("curl {url}{path} -d '{body}'\n"));
        let output = std::process::Command::new("sh").args(["-c", command]).output();
        let answer = String::from_utf8(output.expect("a shell").stdout).expect("UTF-8");
        let answer: serde_json::Value = serde_json::from_str(&answer).expect(&answer);
        assert_eq!(
            (&answer["policy"], &answer["allowed"]),
            (&"first".into(), &true.into()),
            "{answer}"
        );
    }
}

#[test]
fn flags_of_other_servers_have_suggestions() {
    let http = ["  tip: use '--http', for example `--http 127.0.0.1:8080`\n"];
    let flags = ["--port", "-p", "--listen", "--bind", "--addr", "--address", "--host"];
    // Regression: hidden arguments were suggested for these, and then refused.
    for flag in flags.into_iter().chain(["--prot", "--bnd", "--adress", "--port=1"]) {
        tidegate(&["serve", flag, ":8080"]).failed(2, &http);
    }
    tidegate(&["serve", "--listen", ":8080"]).failed(2, &["unexpected argument '--listen' found"]);
    let store = "tip: set TIDEGATE_STORE, or `store` in the config";
    let limits = "tip: limits are in a config: write a policy, and name the file with '--config'";
    let rows = [
        ("--metrics", ":9100", "tip: use '--admin'"),
        ("-c", "tidegate.yaml", "tip: use '--config'"),
        (
            "a.yaml",
            "--http=off",
            "'a.yaml' found\n\n  tip: a config is named with '--config a.yaml'",
        ),
        ("--store", "redis://cache", store),
        ("--redis", "redis://cache", store),
        ("--redi", "redis://cache", store),
        ("--stor", "redis://cache", store),
        ("--tls-cert", "a.pem", "tip: TLS is set in the config: `tls: { http: { cert: FILE,"),
        ("--tls-key", "a.pem", "tip: TLS is set in the config: `tls: { http: { cert: FILE,"),
        ("--token", "x", "tip: set TIDEGATE_TOKENS\n"),
        ("--tokens", "x", "tip: set TIDEGATE_TOKENS\n"),
        ("--limit", "5", limits),
        ("--policy", "5 per 1m", limits),
        ("--log-level", "debug", "tip: set RUST_LOG=debug\n"),
        ("--verbose", "--http=off", "tip: set RUST_LOG=debug\n"),
        ("--confg", "a.yaml", "tip: a similar argument exists: '--config'"),
    ];
    for (flag, value, tip) in rows {
        let run = tidegate(&["serve", flag, value]);
        assert_eq!(run.stderr.matches("tip: ").count(), 1, "{}", run.stderr);
        run.failed(2, &[tip]);
    }
}

#[test]
fn misspelt_switch_does_not_turn_authentication_off() {
    let fails = |value: &str, code: i32, part: &str| {
        let start = Start::new("start-switch").env("TIDEGATE_INSECURE_NO_AUTH", value);
        let (exited, text) = start.args(&["--http", "0.0.0.0:0"]).fails();
        assert!(exited == code && text.contains(part), "{value}: {exited} {text}");
    };
    for value in ["nope", "disabled", "-1"] {
        fails(
            value,
            2,
            "for 'TIDEGATE_INSECURE_NO_AUTH (--insecure-no-auth)': write true or false",
        );
    }
    for value in ["", "no", "False", "0", "off"] {
        fails(value, 1, "TIDEGATE_TOKENS is not set");
    }
}

#[test]
fn warns_of_misspelt_variables() {
    let start = Start::new("start-misspelt").env("TIDEGATE_CONFG", "x").env("TIDEGATE_SPEED", "9");
    // The variables that Kubernetes sets for a service named `tidegate`.
    let start = start.env("TIDEGATE_SERVICE_HOST", "10.0.0.1");
    let start = start.env("TIDEGATE_PORT_80_TCP", "tcp://10.0.0.1:80");
    let start = start.env("TIDEGATE_ADMIN_PORT", "tcp://10.0.0.1:90").env("TIDEGATE_PORT", "9000");
    // The last of the warnings, by name.
    let log = start.env("TIDEGATE_ADMIN_TOKEN", "secret").run().logged("TIDEGATE_SPEED");
    let warned: Vec<&str> = log
        .lines()
        .filter_map(|line| Some(line.split_once("WARN ")?.1.split_once(": ")?.1))
        .collect();
    assert_eq!(
        warned,
        [
            "TIDEGATE_CONFG is not a setting of tidegate; did you mean TIDEGATE_CONFIG?",
            "TIDEGATE_PORT is not a setting of tidegate; did you mean TIDEGATE_HTTP?",
            "TIDEGATE_SPEED is not a setting of tidegate; see `tidegate serve --help`"
        ],
        "{log}"
    );
}

/// Returns the variables that a text names, sorted.
fn variables(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("TIDEGATE_")).collect()
}

/// Regression: `TIDEGATE_MASK_SECRET` was documented, but not in the help.
#[test]
fn help_lists_documented_variables() {
    let page = include_str!("../../../../../docs/server.md");
    let tables: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).collect();
    let tables = tables.join("\n");
    let help = tidegate(&["serve", "--help"]).succeeded().stdout;
    assert_eq!(variables(&help), variables(&tables));
}

#[test]
fn flag_overrides_environment_overrides_file() {
    let config = format!("http: 'off'\ngrpc: 'off'\nresp: 'off'\nadmin: 'off'\n{TWO_PER_HOUR}");
    let start = Start::new("start-precedence").config(&config);
    // The file turns the fronts off, and the flags of the harness turn them on.
    let server = start.run();
    assert!(server.http().port() > 0 && server.admin().port() > 0);

    let config = Start::new("start-file").files().write("c.yaml", &config);
    let run = |envs: &[(&str, &str)], args: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args([&["serve"], args].concat())
            .envs(envs.iter().copied())
            .output()
            .expect("the binary starts");
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    let off = "error: all fronts are off: enable at least one\n";
    assert_eq!(run(&[], &["--config", &config]), off);
    assert_eq!(run(&[("TIDEGATE_CONFIG", &config)], &[]), off);
    let shown = run(&[("TIDEGATE_CONFIG", &config), ("TIDEGATE_HTTP", "192.0.2.1:1")], &[]);
    assert!(
        shown.starts_with(
            "error: TIDEGATE_HTTP (--http 192.0.2.1:1) is reachable from other machines"
        ),
        "{shown}"
    );
    let shown =
        run(&[("TIDEGATE_CONFIG", &config), ("TIDEGATE_HTTP", "192.0.2.1:1")], &["--http", "off"]);
    assert_eq!(shown, off);
}

#[test]
fn reports_why_it_cannot_start() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address").to_string();
    let free = tidegate_testkit::free_address().to_string();
    let start = |test: &str| Start::new(&format!("start-fails-{test}"));
    #[rustfmt::skip]
    let rows: Vec<(Start, i32, String)> = vec![
        (start("taken").args(&["--http", &taken]), 1, format!(
            "error: --http {taken}: the address is in use: stop the other program, or choose another port (--http 127.0.0.1:0 takes a free one)\n")),
        (start("same").args(&["--resp", &free, "--admin", &free]), 1, format!(
            "error: --resp {free} and --admin {free}: two fronts of this server have the same address; choose another \
             port for one of them (--admin 127.0.0.1:0 takes a free one), or --admin off\n")),
        // The errors named flags, also for addresses of the config and of variables.
        (start("same-in-config").without_flags().config(&format!("http: {free}\nadmin: {free}\n{TWO_PER_HOUR}"))
            .args(&["--grpc", "off", "--resp", "off"]), 1, format!(
            "error: http: {free} (CONFIG) and admin: {free} (CONFIG): two fronts of this server")),
        (start("same-as-variable").without_flags().config(&format!("http: {free}\n{TWO_PER_HOUR}"))
            .args(&["--grpc", "off", "--resp", "off"]).env("TIDEGATE_ADMIN", &free), 1, format!(
            "error: http: {free} (CONFIG) and TIDEGATE_ADMIN (--admin {free}): two fronts of this server")),
        (start("foreign").args(&["--http", "192.0.2.1:80"]).env("TIDEGATE_TOKENS", "0123456789abcdef"), 1,
            "error: --http 192.0.2.1:80: this machine does not have that address\n".into()),
        (start("open").args(&["--http", "0.0.0.0:0"]), 1,
            "error: --http 0.0.0.0:0 is reachable from other machines, and TIDEGATE_TOKENS is not set: set it \
             (`TIDEGATE_TOKENS=$(openssl rand -hex 32)`), listen on 127.0.0.1, or serve without authentication with --insecure-no-auth\n".into()),
        (start("open-admin").args(&["--admin", "[::]:0"]).env("TIDEGATE_TOKENS", "s"), 1,
            "error: --admin [::]:0 is reachable from other machines, and TIDEGATE_ADMIN_TOKEN is not set: set it \
             (`TIDEGATE_ADMIN_TOKEN=$(openssl rand -hex 32)`), listen on 127.0.0.1, or serve without authentication with --insecure-no-auth\n".into()),
        (start("empty").env("TIDEGATE_TOKENS", " , "), 1,
            "error: TIDEGATE_TOKENS is set but empty: unset it, or set a secret\n".into()),
        (start("empty-file").env("TIDEGATE_TOKENS_FILE", "/dev/null"), 1,
            "error: TIDEGATE_TOKENS_FILE: the file /dev/null is empty: write a secret into it\n".into()),
        (start("empty-name").env("TIDEGATE_TOKENS_FILE", ""), 1,
            "error: TIDEGATE_TOKENS_FILE is set but empty: unset it, or set a secret\n".into()),
        (start("twice").env("TIDEGATE_ADMIN_TOKEN", "a").env("TIDEGATE_ADMIN_TOKEN_FILE", "/dev/null"), 1,
            "error: TIDEGATE_ADMIN_TOKEN and TIDEGATE_ADMIN_TOKEN_FILE are both set: keep one\n".into()),
        (start("no-file").env("TIDEGATE_TOKENS_FILE", "/nonexistent"), 1,
            "error: TIDEGATE_TOKENS_FILE: the file /nonexistent cannot be read: No such file or directory (os error 2)\n".into()),
        // A secret in place of a path is not shown.
        (start("secret-as-path").env("TIDEGATE_TOKENS_FILE", "0123456789abcdef"), 1,
            "error: the file that TIDEGATE_TOKENS_FILE names cannot be read: No such file or directory (os error 2)\n".into()),
        (start("no-certificate").config(&format!("tls: {{ http: {{ cert: c.pem, key: k.pem }} }}\n{TWO_PER_HOUR}")), 1,
            "error: tls.http.cert: ".into()),
        (start("config").config("policies: 7\n"), 1, "error: ".into()),
        (start("variable").without_flags().env("TIDEGATE_HTTP", "banana"), 2,
            "error: invalid value 'banana' for 'TIDEGATE_HTTP (--http <ADDR|off>)': `banana` is not an address".into()),
        (start("variable-choice").without_flags().env("TIDEGATE_LOG_FORMAT", "xml"), 2,
            "error: invalid value 'xml' for 'TIDEGATE_LOG_FORMAT (--log-format <FORMAT>)'".into()),
        (start("flag-before-variable").env("TIDEGATE_HTTP", "off").args(&["--http", "banana"]), 2,
            "error: invalid value 'banana' for '--http <ADDR|off>': `banana` is not an address".into()),
        (start("word").args(&["--http", "8080"]), 2, "error: invalid value '8080' for '--http <ADDR|off>': `8080` has no host".into()),
    ];
    for (start, code, expected) in rows {
        let expected = expected.replace("CONFIG", &start.files().path("tidegate.yaml"));
        let (got, message) = start.fails();
        assert_eq!(got, code, "{message}");
        let exact = expected.ends_with('\n');
        assert!(
            if exact { message == expected } else { message.starts_with(&expected) },
            "{message}"
        );
    }
}
