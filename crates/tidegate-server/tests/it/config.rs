//! `tidegate config` and `tidegate explain`.

use serde_json::Value;
use tidegate_testkit::Authority;

use crate::cli_harness::{Files, tidegate, tidegate_reading};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/tidegate.yaml");

#[test]
fn accepts_valid_config() {
    let run = tidegate(&["config", "check", EXAMPLE]).succeeded();
    assert_eq!(run.stdout, format!("{EXAMPLE} is fine: 2 policies, 4 limits, 2 overrides\n"));
}

#[test]
fn reports_every_config_error() {
    let files = Files::new("config-check");
    let text = "policies:\n  - name: login\n    key: \"{client-ip}\"\n    limits: [\"5 per 1y\"]\n";
    let path = files.write("tidegate.yaml", text);
    let run = tidegate(&["config", "check", &path]);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
    let expected = format!(
        "error: `client-ip`: unknown request field
 --> {path}:3:12
  |
3 |     key: \"{{client-ip}}\"
  |            ^^^^^^^^^
  field: policies[0].key
  help: did you mean `client_ip`?

error: `y`: unknown unit of time
 --> {path}:4:22
  |
4 |     limits: [\"5 per 1y\"]
  |                      ^
  field: policies[0].limits[0]
  help: use ms, s, m, h, d or w
"
    );
    assert_eq!(run.stderr, expected);
}

const REGEX: &str =
    "policies: [{ name: api, match: { path: /v1/.* }, key: all, limits: 5 per 1m }]";

#[test]
fn prints_warnings_and_refuses_them_if_strict() {
    let files = Files::new("config-warnings");
    let path = files.write("tidegate.yaml", REGEX);
    let warning = format!(
        "`/v1/.*` looks like a regular expression, but is matched as a glob
 --> {path}:1:40
  |
1 | {REGEX}
  |                                        ^^^^^^
  field: policies[0].match.path
  help: write `/v1/**`
"
    );
    let run = tidegate(&["config", "check", &path]).succeeded();
    let valid = format!("{path} is valid, with 1 warning: 1 policy, 1 limit, 0 overrides\n");
    assert_eq!((run.stdout, run.stderr), (valid, format!("warning: {warning}\n")));
    let run = tidegate(&["config", "check", &path, "--strict"]);
    assert_eq!((run.code, run.stdout, run.stderr), (1, String::new(), format!("error: {warning}")));
    tidegate(&["config", "check", "--strict", EXAMPLE]).succeeded();
}

/// A certificate of X.509 version 1, as `openssl x509 -req` creates it without an extension.
const VERSION_1: &str = "\
-----BEGIN CERTIFICATE-----
MIIBJTCBywIUNPLejC8EQiB9lyrN0SCtTL/qN68wCgYIKoZIzj0EAwIwFDESMBAG
A1UEAwwJbG9jYWxob3N0MCAXDTI2MTExODExMzUwOVoYDzIxMjYxMDI1MTEzNTA5
WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC
AATg+elTPKY9l+wxpAGb9qjekwxJfoVAU/kOzEQZodgzrD8udzNM9NwaZrUibHh7
ItaNM/v8cUE2pMkQqWrwMseTMAoGCCqGSM49BAMCA0kAMEYCIQCpvwiHl/Xmujhj
R2Ml5KQCChTxZs6rhsARAbVAWaQZfAIhAJoLiX1J4vKeKcd2Nbh8WbxlSWrlFK2+
eSTnzqFKhc2E
-----END CERTIFICATE-----
";

#[test]
fn warns_of_tls_files() {
    let files = Files::new("config-tls");
    let (authority, other) = (Authority::new(), Authority::new());
    let (cert, key) = authority.sign("localhost");
    let (old_cert, old_key) = authority.sign_until("localhost", 2020);
    files.write("cert.pem", cert);
    files.write("key.pem", key);
    files.write("other-key.pem", other.sign("localhost").1);
    files.write("old-cert.pem", old_cert);
    files.write("old-key.pem", old_key);
    let (reversed_cert, reversed_key) = authority.sign_until("localhost", 1970);
    files.write("reversed-cert.pem", reversed_cert);
    files.write("reversed-key.pem", reversed_key);
    files.write("empty.pem", "");
    files.write("v1.pem", VERSION_1);
    let pem = |kind: &str, headers: &str| {
        format!("-----BEGIN {kind}-----\n{headers}MIIFHDBOBgkq\n-----END {kind}-----\n")
    };
    files.write("locked.pem", pem("ENCRYPTED PRIVATE KEY", ""));
    let old_form = "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,AB12\n\n";
    files.write("locked-rsa.pem", pem("RSA PRIVATE KEY", old_form));
    files.write("ca.pem", authority.pem());
    // The files, and the fields with their files and problems.
    let locked = "the private key is encrypted, and the server has no passphrase: decrypt it with \
                  `openssl pkey -in ";
    let rows: [(&str, &[(&str, &str, &str)]); 11] = [
        ("cert: cert.pem, key: key.pem, client_ca: ca.pem", &[]),
        ("cert: cert.pem, key: locked.pem", &[("tls.http.key", "locked.pem", locked)]),
        ("cert: cert.pem, key: locked-rsa.pem", &[("tls.http.key", "locked-rsa.pem", locked)]),
        (
            "cert: none.pem, key: no-key.pem",
            &[
                ("tls.http.cert", "none.pem", "the file cannot be read: No such file"),
                ("tls.http.key", "no-key.pem", "the file cannot be read: No such file"),
            ],
        ),
        (
            "cert: empty.pem, key: empty.pem",
            &[
                ("tls.http.cert", "empty.pem", "there is no certificate in it"),
                ("tls.http.key", "empty.pem", "there is no private key in it"),
            ],
        ),
        ("cert: ., key: key.pem", &[("tls.http.cert", ".", "the file cannot be read: ")]),
        (
            "cert: cert.pem, key: other-key.pem",
            &[("tls.http.cert", "cert.pem", "the certificate does not belong to the key ")],
        ),
        (
            "cert: old-cert.pem, key: old-key.pem",
            &[("tls.http.cert", "old-cert.pem", "the certificate expired ")],
        ),
        (
            "cert: reversed-cert.pem, key: reversed-key.pem",
            &[(
                "tls.http.cert",
                "reversed-cert.pem",
                "the certificate expires before it becomes valid",
            )],
        ),
        (
            "cert: v1.pem, key: key.pem",
            &[(
                "tls.http.cert",
                "v1.pem",
                "the certificate has the old X.509 version 1, and version 3 is needed: create it \
                 with a subjectAltName, ",
            )],
        ),
        (
            "cert: cert.pem, key: key.pem, client_ca: old-cert.pem",
            &[("tls.http.client_ca", "old-cert.pem", "the certificate expired ")],
        ),
    ];
    for (named, problems) in rows {
        let policies = "policies: [{ name: a, key: all, limits: 1 per 1s }]";
        let path =
            files.write("tidegate.yaml", format!("tls: {{ http: {{ {named} }} }}\n{policies}"));
        let run = tidegate(&["config", "check", &path]).succeeded();
        assert_eq!(run.stderr.matches("warning: ").count(), problems.len(), "{}", run.stderr);
        for (field, file, problem) in problems {
            let message = format!("warning: {}: {problem}", files.path(file));
            assert!(run.stderr.contains(&message), "{message} is not in {}", run.stderr);
            assert!(run.stderr.contains(&format!("  field: {field}\n")), "{}", run.stderr);
            assert!(run.stderr.contains(&format!(" --> {path}:1:")), "{}", run.stderr);
            // The server starts with a certificate that has expired, and clients reject it.
            let is_unreadable = problem.starts_with("the file cannot be read");
            let is_explained = run.stderr.contains("(a relative path starts at the directory of");
            assert_eq!(is_explained, is_unreadable, "{}", run.stderr);
            // The help was to name a valid chain, although the chain is valid.
            let is_mismatch = problem.contains("does not belong");
            let is_pair = run.stderr.contains("help: name the certificate and the key of one pair");
            assert_eq!(is_pair, is_mismatch, "{}", run.stderr);
            let prevents_start = !problem.contains("certificate expire");
            let is_said = run.stderr.contains("; the server does not start with it");
            assert_eq!(is_said, prevents_start, "{}", run.stderr);
        }
        let off = files
            .write("off.yaml", format!("http: off\ntls: {{ http: {{ {named} }} }}\n{policies}"));
        tidegate(&["config", "check", "--strict", &off]).succeeded();
    }
}

/// `config check --strict` accepted addresses with which the server does not start.
#[test]
fn warns_of_fronts_with_the_same_address() {
    let same = |first: &str, second: &str| {
        Some(format!("`{first}` has the same address as `{second}`; the server does not start"))
    };
    for (addresses, warning) in [
        ("http: 127.0.0.1:9000\nadmin: 127.0.0.1:9000", same("admin", "http")),
        ("grpc: 0.0.0.0:9000\nresp: 127.0.0.1:9000", same("resp", "grpc")),
        ("http: '[::]:9000'\nadmin: 127.0.0.1:9000", same("admin", "http")),
        ("http: localhost:9000\nadmin: localhost:9000", same("admin", "http")),
        (
            "http: 127.0.0.1:9090",
            Some("`http` has the default address of `admin`; the server does not start".into()),
        ),
        ("http: 127.0.0.1:9090\nadmin: off", None),
        ("http: 0.0.0.0:9000\nadmin: '[::1]:9000'", None),
        ("http: 127.0.0.1:0\nadmin: 127.0.0.1:0", None),
        ("http: off\nadmin: off", None),
    ] {
        let config = format!("{addresses}\npolicies: [{{ name: a, key: all, limits: 1 per 1s }}]");
        let args = ["config", "check", "--strict", "/dev/stdin"];
        let run = tidegate_reading(&args, config.as_bytes());
        match warning {
            Some(warning) => run.failed(1, &[&warning, " --> /dev/stdin:"]),
            None => drop(run.succeeded()),
        }
    }
}

/// A setting that only a flag or a variable sets was an unknown field, with the names of all fields
/// as the help.
#[test]
fn errors_name_the_flag_or_variable_of_settings_outside_the_config() {
    let schema: Value = tidegate(&["config", "schema"]).succeeded().json();
    let help = tidegate(&["serve", "--help"]).succeeded().stdout;
    let flags = help.lines().filter_map(|line| line.trim_start().strip_prefix("--"));
    let flags =
        flags.filter_map(|line| line.split([' ', '=']).next()).map(|flag| format!("--{flag}"));
    let is_part = |c: char| c.is_ascii_uppercase() || c == '_';
    let variables = help.split(|c: char| !is_part(c)).filter(|word| word.starts_with("TIDEGATE_"));
    let variables = variables.filter(|name| !name.ends_with("_FILE")).map(str::to_owned);
    let mut checked = 0;
    for setting in flags.chain(variables) {
        let field = setting.trim_start_matches("--").trim_start_matches("TIDEGATE_");
        let field = field.to_ascii_lowercase().replace('-', "_");
        if schema["properties"][&field].is_object() {
            continue;
        }
        let config = format!("{field}: x\npolicies: [{{ name: a, key: all, limits: 1 per 1s }}]");
        let run = tidegate_reading(&["config", "check", "/dev/stdin"], config.as_bytes());
        run.failed(1, &["it is not set in the config: ", &setting]);
        checked += 1;
    }
    assert!(checked > 15, "{checked}: {help}");
}

#[test]
fn reads_config_from_pipe() {
    let text = b"policies: [{ name: a, key: all, limits: 1 per 1s }]";
    let run = tidegate_reading(&["config", "check", "/dev/stdin"], text).succeeded();
    assert_eq!(run.stdout, "/dev/stdin is fine: 1 policy, 1 limit, 0 overrides\n");
    let envoy =
        b"domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day, requests_per_unit: 9 } }]";
    let run = tidegate_reading(&["config", "convert", "--from", "envoy", "-"], envoy).succeeded();
    assert!(run.stdout.contains("limits: 9 per 1d sliding-window"), "{}", run.stdout);
    let run = tidegate_reading(&["config", "check", "/dev/stdin"], &[b'x'; 5_000_000]);
    run.failed(1, &["the config is larger than 4096 KiB"]);
}

#[test]
fn rejects_missing_config() {
    tidegate(&["config", "check", "no/such/file"]).failed(1, &["cannot be read", "no/such/file"]);
    tidegate(&["explain", "--config", "no/such/file"]).failed(1, &["cannot be read"]);
    for args in [["config", "check", "-"], ["serve", "--config", "-"]] {
        tidegate(&args).failed(1, &["cannot be read", "name `/dev/stdin` to read standard"]);
    }
    tidegate(&["config", "check", "/"]).failed(1, &["cannot be read", "directory"]);
}

#[test]
fn prints_json_schema() {
    let schema: Value = tidegate(&["config", "schema"]).succeeded().json();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert!(schema["properties"]["policies"]["items"]["properties"]["limits"].is_object());
}

/// The arguments after `explain --config EXAMPLE`, and the output.
const EXPLAINED: &[(&[&str], &str)] = &[
    (
        &["--method", "POST", "--path", "/%6Cogin", "--client-ip", "192.0.2.1"],
        "login: limits
  key     {client_ip} -> 192.0.2.1
  limit   5 per 1m sliding-log
  store down: denied

api: does not match
  because the policy requires path: /v1/**, and the request has /login

Decided by: login
",
    ),
    (
        &["--path", "/v1/files?x=1", "--client-ip", "2001:db8:0:1::7", "--header", "X-Org: newco"],
        "login: does not match
  because the policy requires method: POST, and the request has none

api: observes, never denies
  key     {header:x-api-key | client_ip} -> client_ip=2001:db8:0:1::/64
  because override 2 holds: header:x-org: newco
  limit   10 per 1s sliding-window
  limit   600 per 1m sliding-window
  limit   100000 per 1d sliding-window
  store down: decided locally

Nothing limits this request.
Only observed by: api
",
    ),
    (
        &["--path", "/v1/files", "--client-ip", "192.168.1.1"],
        "login: does not match
  because the policy requires method: POST, and the request has none

api: exempt
  because client_ip: 192.168.0.0/16

Nothing limits this request.
",
    ),
    (
        &["--peer", "192.0.2.9", "--header", "x-forwarded-for: 6.6.6.6", "--path", "/"],
        "client 192.0.2.9: 192.0.2.9 is not a trusted proxy

login: does not match
  because the policy requires method: POST, and the request has none

api: does not match
  because the policy requires path: /v1/**, and the request has /

Nothing limits this request.
",
    ),
];

#[test]
fn explain_lists_matching_policies_with_key_and_limits() {
    for (request, expected) in EXPLAINED {
        let args = [&["explain", "--config", EXAMPLE], *request].concat();
        assert_eq!(tidegate(&args).succeeded().stdout, *expected, "{request:?}");
    }
}

const KINDS: &str = "policies:
  - { name: watched, match: { path: [/watched, /both] }, key: '{client_ip}', limits: 5 per 1m, mode: observe }
  - { name: api, match: { path: [/api, /both] }, key: '{client_ip}', limits: [5 per 1m, 600 per 1m token-bucket burst 50], cost: '{header:x-cost}' }
  - { name: jobs, match: { path: /jobs }, key: '{client_ip}', limits: [2 concurrent, 9 per 1m] }
  - { name: closed, match: { path: /closed }, key: '{client_ip}', limits: 0 per 1m }
  - { name: paths, match: { path: /x }, key: '{path}', limits: 5 per 1m }
";

/// The arguments, the explanation of the only policy that applies with the last lines, and the exit
/// code.
#[rustfmt::skip]
const UNDECIDABLE: &[(&[&str], &str, i32)] = &[
    (&["--path", "/watched"], "watched: observes, never denies
  key     {client_ip} -> 192.0.2.1
  limit   5 per 1m sliding-window
  store down: decided locally
Nothing limits this request.
Only observed by: watched
", 0),
    (&["--path", "/both"], "watched: observes, never denies
  key     {client_ip} -> 192.0.2.1
  limit   5 per 1m sliding-window
  store down: decided locally
api: limits
  key     {client_ip} -> 192.0.2.1
  limit   5 per 1m sliding-window
  limit   600 per 1m token-bucket burst 50
  store down: decided locally
Decided by: api
Only observed by: watched
", 0),
    (&["--path", "/api", "--header", "x-cost: 50"], "api: limits
  key     {client_ip} -> 192.0.2.1
  limit   5 per 1m sliding-window
  limit   600 per 1m token-bucket burst 50
  cost    50
          a cost of 50 can never pass `5 per 1m sliding-window`
  store down: decided locally
Decided by: api
", 0),
    (&["--path", "/api", "--header", "x-cost: many"], "api: limits
  key     {client_ip} -> 192.0.2.1
  limit   5 per 1m sliding-window
  limit   600 per 1m token-bucket burst 50
  cost    {header:x-cost} holds `many`: bad input
  store down: decided locally
Refused as bad input (400): the cost for policy `api` comes from {header:x-cost}, which holds `many`: send a whole number from 0 to 1000000000000, or leave it out for 1
", 1),
    (&["--path", "/api", "--header", "x-cost: -5"], "api: limits
  key     {client_ip} -> 192.0.2.1
  limit   5 per 1m sliding-window
  limit   600 per 1m token-bucket burst 50
  cost    {header:x-cost} holds `-5`: bad input
  store down: decided locally
Refused as bad input (400): the cost for policy `api` comes from {header:x-cost}, which holds `-5`: send a whole number from 0 to 1000000000000, or leave it out for 1
", 1),
    (&["--path", "/jobs"], "jobs: limits
  key     {client_ip} -> 192.0.2.1
  limit   2 concurrent lease 1m
          needs a permit: checks reject this request; acquire a permit
  limit   9 per 1m sliding-window
  store down: decided locally
Decided by: jobs
Needs a permit for: jobs (POST /v1/permits; /v1/check and /v1/forward-auth answer 409)
", 0),
    (&["--path", "/x;\\1"], "paths: limits
  key     {path} -> /(ambiguous)
          servers disagree about the `;` or `\\` in this path: all such paths share `/(ambiguous)`
  limit   5 per 1m sliding-window
  store down: decided locally
Decided by: paths
", 0),
    (&["--path", "/closed"], "closed: limits
  key     {client_ip} -> 192.0.2.1
  limit   0 per 1m sliding-window
          a cost of 1 can never pass `0 per 1m sliding-window`
  store down: decided locally
Decided by: closed
", 0),
];

#[test]
fn explains_undecidable_requests() {
    let files = Files::new("explain-kinds");
    let path = files.write("tidegate.yaml", KINDS);
    for (request, expected, code) in UNDECIDABLE {
        let base = ["explain", "--config", &path, "--client-ip", "192.0.2.1"];
        let run = tidegate(&[&base, *request].concat());
        let mut shown = String::new();
        let others = |part: &&str| !part.contains(": does not match");
        run.stdout.split("\n\n").filter(others).for_each(|part| {
            shown += part.trim_end();
            shown.push('\n');
        });
        assert_eq!((&*shown, run.code), (*expected, *code), "{request:?}");
    }
}

#[test]
fn explains_default_policy() {
    let run = tidegate(&["explain", "--client-ip", "192.0.2.1"]).succeeded();
    let expected = "default: limits
  key     {client_ip} -> 192.0.2.1
  limit   100 per 1m sliding-window
  store down: decided locally

Decided by: default
";
    assert_eq!(run.stdout, expected);
}

#[test]
fn explains_client_behind_trusted_proxy() {
    let files = Files::new("explain-proxy");
    let text = "trusted_proxies: 10.0.0.0/8\npolicies:\n  - { name: a, match: { host: x, query:q: 1, descriptor:d: e }, key: '{client_ip}', limits: 1 per 1s }\n";
    let path = files.write("tidegate.yaml", text);
    let run = tidegate(&[
        "explain",
        "--config",
        &path,
        "--peer",
        "10.0.0.1",
        "--header",
        "X-Forwarded-For: 6.6.6.6, 192.0.2.1",
        "--host",
        "X:80",
        "--query",
        "q=1",
        "--descriptor",
        "d=e",
    ]);
    let run = run.succeeded();
    assert!(
        run.stdout.starts_with("client 192.0.2.1: 10.0.0.1 is a trusted proxy\n"),
        "{}",
        run.stdout
    );
    assert!(run.stdout.contains("{client_ip} -> 192.0.2.1"), "{}", run.stdout);
}

/// A header with the client's address was ignored without a reason.
#[test]
fn explain_asks_for_the_connection_of_forwarded_addresses() {
    let help = "no client_ip: X-Forwarded-For is used only if the peer is known; add --peer, or \
                set the client with --client-ip\n\n";
    let header = ["explain", "--header", "X-Forwarded-For: 192.0.2.1"];
    for (args, is_given) in [
        (&[] as &[&str], false),
        (&["--peer", "10.0.0.1"], true),
        (&["--client-ip", "192.0.2.1"], true),
    ] {
        let run = tidegate(&[&header, args].concat()).succeeded();
        assert_eq!(!run.stdout.starts_with(help), is_given, "{args:?}: {}", run.stdout);
    }
    let other = tidegate(&["explain", "--header", "X-Org: acme"]).succeeded();
    assert!(!other.stdout.contains("--peer"), "{}", other.stdout);
}

/// Addresses are parsed as the server parses them, and headers must be valid.
#[test]
fn explain_parses_addresses_and_headers_like_serve() {
    for (address, shown) in [
        ("192.0.2.1:55", "192.0.2.1"),
        ("[2001:db8::1]:55", "2001:db8::/64"),
        ("2001:db8::1%eth0", "2001:db8::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
    ] {
        let run = tidegate(&["explain", "--client-ip", address]).succeeded();
        assert!(run.stdout.contains(&format!("-> {shown}\n")), "{address}: {}", run.stdout);
    }
    let rows = [
        ("--client-ip", "192.0.2.1:x", "not an IP address: give one such as 192.0.2.1"),
        ("--client-ip", "", "not an IP address"),
        ("--header", ":v", "write it as NAME:VALUE"),
        ("--header", " : v", "write it as NAME:VALUE"),
        ("--header", "a b: v", "write it as NAME:VALUE"),
        ("--header", "v", "write it as NAME:VALUE"),
        ("--descriptor", "=v", "write it as NAME=VALUE"),
    ];
    for (flag, value, part) in rows {
        tidegate(&["explain", flag, value]).failed(2, &[part]);
    }
}

/// The output contains no control characters, whatever the arguments are.
/// A whole URL is read as `/v1/check` reads it.
#[test]
fn explain_reads_a_whole_url() {
    let files = Files::new("explain-url");
    let config = "policies:\n  - { name: login, match: { host: shop.example, path: /login, \"query:x\": \"1\" }, key: all, limits: 5 per 1m }\n";
    let path = files.write("tidegate.yaml", config);
    let url = "https://shop.example/login?x=1#top";
    let run = tidegate(&["explain", "--config", &path, "--path", url]).succeeded();
    assert!(run.stdout.contains("Decided by: login"), "{}", run.stdout);
}

#[test]
fn explain_escapes_input() {
    let args =
        ["explain", "--path", "/\u{1b}[31m", "--client-ip", "192.0.2.1", "--header", "x:\u{1b}"];
    let run = tidegate(&[&args[..], &["--config", EXAMPLE]].concat()).succeeded();
    assert!(run.stdout.chars().all(|c| c == '\n' || !c.is_control()), "{:?}", run.stdout);
}

#[test]
fn rejects_invalid_flags() {
    for args in [
        &["explain", "--header", "no-colon"][..],
        &["explain", "--client-ip", "here"],
        &["explain", "--client-ip", "192.0.2.1", "--peer", "192.0.2.1"],
        &["explain", "--descriptor", "x"],
        &["config"],
        &["config", "check"],
    ] {
        let run = tidegate(args);
        assert_eq!(run.code, 2, "{args:?}");
        assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
    }
}

/// The command line, and the tip for it.
const TIPS: &[(&[&str], &str)] = &[
    (&["--config", "a.yaml"], "a command comes first: `tidegate serve --config ...`"),
    (&["--http=:80"], "a command comes first: `tidegate serve --http ...`"),
    (&["check", "a.yaml"], "use `tidegate config check FILE`"),
    (&["validate", "a.yaml"], "use `tidegate config check FILE`"),
    (&["config", "validate", "a.yaml"], "use `tidegate config check FILE`"),
    (&["config", "a.yaml"], "use `tidegate config check a.yaml`"),
    (&["config", "etc/a"], "use `tidegate config check etc/a`"),
    (&["config", "chek", "a.yaml"], "some similar subcommands exist: 'schema', 'check'"),
    (
        &["config", "check", "--config", "a.yaml"],
        "the file is given without a flag: `tidegate config check FILE`",
    ),
    (&["explain", "--ip", "192.0.2.1"], "use '--client-ip'"),
    (&["explain", "--url", "http://a/b"], "use '--path', which also takes a whole URL"),
    (&["explain", "GET", "/x"], "the request is described with flags, for example `--method GET "),
    (&["explain", "a.yaml"], "and a config is named with '--config'\n"),
    (&["explain", "--methd", "GET"], "a similar argument exists: '--method'"),
];

#[test]
fn unknown_arguments_have_tips() {
    for (args, tip) in TIPS {
        let run = tidegate(args);
        assert_eq!(run.stderr.matches("tip: ").count(), 1, "{}", run.stderr);
        run.failed(2, &[tip]);
    }
}

/// Domains and descriptors, in the given order.
#[test]
fn explains_descriptors() {
    let files = Files::new("explain-descriptors");
    let config = "
policies:
  - name: pair
    match: { domain: edge, descriptors: [{ generic_key: api }, user] }
    key: \"{descriptor:user}\"
    limits: 5 per 1m
    exempt: { descriptors: { user: \"svc-*\" } }
  - name: first
    match: { domain: edge, descriptors: { generic_key: \"*\" } }
    key: \"{descriptors}\"
    limits: 9 per 1m
    quota: true
  - name: instead
    match: { domain: edge, descriptors: [user] }
    key: all
    limits: unlimited
    replaces: pair
";
    let path = files.write("tidegate.yaml", config);
    let explain = |args: &[&str]| {
        let all = [&["explain", "--config", &path, "--domain", "edge"], args].concat();
        tidegate(&all).succeeded().stdout
    };
    let expected = "pair: limits
  key     {descriptor:user} -> alice
  limit   5 per 1m sliding-window
  store down: decided locally

first: limits
  key     {descriptors} -> 11#generic_key3#api4#user5#alice
  limit   9 per 1m sliding-window
  a quota: if several apply to a request, one with room is enough
  store down: decided locally

instead: does not match
  because the policy requires descriptors: [user], and the request has generic_key=api, user=alice

Decided by: pair, first
";
    assert_eq!(
        explain(&["--descriptor", "generic_key=api", "--descriptor", "user=alice"]),
        expected
    );
    let turned = explain(&["--descriptor", "user=svc-1", "--descriptor", "generic_key=api"]);
    assert!(turned.starts_with(
        "pair: does not match\n  because the policy requires descriptors: [generic_key: \
         api, user], and the request has user=svc-1, generic_key=api\n"
    ));
    let spared = explain(&["--descriptor", "generic_key=api", "--descriptor", "user=svc-1"]);
    assert!(spared.starts_with("pair: exempt\n  because descriptor:user: svc-*\n"), "{spared}");
    let alone = explain(&["--descriptor", "user=alice"]);
    assert!(alone.contains("instead: unlimited\n"), "{alone}");
}
