//! Authentication.

use super::TWO_PER_HOUR;
use crate::server_harness::{Client, Fields, JSON, Reply, Server, Start, request};

const ASK: &str = r#"{"policy":"login","key":"a","cost":0}"#;

#[test]
fn accepts_any_configured_secret() {
    let start = Start::new("tokens").config(TWO_PER_HOUR);
    let file = start.files().write("admin-token", "the-admin\n");
    let server =
        start.env("TIDEGATE_TOKENS", "first, second").env("TIDEGATE_ADMIN_TOKEN_FILE", &file).run();
    #[rustfmt::skip]
    let rows: [(&[(&str, &str)], u16); 7] = [
        (&[JSON, ("authorization", "Bearer first")], 200),
        (&[JSON, ("authorization", "Bearer second")], 200),
        (&[JSON, ("authorization", "Basic dGc6c2Vjb25k")], 200),
        (&[JSON, ("x-tidegate-token", "first"), ("authorization", "Bearer the-users-own")], 200),
        (&[JSON, ("authorization", "Bearer third")], 401),
        (&[JSON, ("authorization", "Bearer the-admin")], 401),
        (&[JSON], 401),
    ];
    for (headers, status) in rows {
        let reply = server.ask("POST", "/v1/check", headers, ASK);
        assert_eq!(reply.status, status, "{headers:?}");
        if status == 401 {
            reply.refuses(401, None, "send one of TIDEGATE_TOKENS as `Authorization: Bearer ...`");
            assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        }
    }
    for path in
        ["/v1/check/batch", "/v1/permits", "/v1/forward-auth", "/v1/permits/x", "/v1/nothing"]
    {
        assert_eq!(server.ask("POST", path, &[JSON], ASK).status, 401, "{path}");
    }
    assert_eq!(server.ask("GET", "/openapi.json", &[], "").status, 200);
    assert_eq!(server.admin_get("/admin/v1/policies").status, 401);
    assert_eq!(server.admin_get("/readyz").status, 200);
    let output = format!("{}{}", server.printed, server.log());
    assert!(!output.contains("first") && !output.contains("the-admin"), "{output}");
}

/// Without a secret, errors reveal nothing about the request.
#[test]
fn authenticates_before_reading_the_body() {
    let server =
        Start::new("tokens-first").config(TWO_PER_HOUR).env("TIDEGATE_TOKENS", "first").run();
    for path in ["/v1/check", "/v1/check/batch", "/v1/permits"] {
        for (secret, status, part) in [
            ("", 401, "authentication required"),
            ("x-tidegate-token: first\r\n", 400, "the body is incomplete"),
        ] {
            let mut client = Client::connect(server.http());
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: t\r\n{secret}transfer-encoding: chunked\r\n\r\nzz\r\n"
            );
            client.send(head.as_bytes());
            client.reply("POST").refuses(status, None, part);
        }
    }
}

#[test]
fn insecure_flag_serves_with_warning() {
    let start = Start::new("insecure").args(&["--http", "0.0.0.0:0"]).args(&["--insecure-no-auth"]);
    let server = start.run();
    let port = server.http().port();
    let log = server.log();
    assert!(
        log.contains("WARNING: --insecure-no-auth: whoever can reach --http needs no secret"),
        "{log}"
    );
    let mut client = Client::connect(([127, 0, 0, 1], port).into());
    client.send(&request("GET", "/v1/forward-auth", &[], ""));
    assert_eq!(client.reply("GET").status, 200);
    // The operator has accepted the risk, so pages of other sites are allowed too.
    client.send(&request(
        "POST",
        "/v1/check",
        &[JSON, EVIL_ORIGIN],
        r#"{"key":"a","limits":["1 per 1s"]}"#,
    ));
    assert_eq!(client.reply("POST").status, 200);
}

const EVIL_HOST: (&str, &str) = ("host", "evil.example:8080");
const EVIL_ORIGIN: (&str, &str) = ("origin", "http://evil.example:8080");
const OWN_ORIGIN: (&str, &str) = ("origin", "http://127.0.0.1:3000");

fn ask_admin(server: &Server, method: &str, path: &str, headers: Fields<'_>) -> Reply {
    let mut client = Client::connect(server.admin());
    client.send(&request(method, path, headers, ""));
    client.reply(method)
}

/// DNS rebinding: the author of a web page points a host name at 127.0.0.1, and a browser on the
/// machine of tidegate sends requests to that name.
#[test]
fn rejects_foreign_sites_without_secret() {
    let server = Start::new("rebinding").config(TWO_PER_HOUR).run();
    #[rustfmt::skip]
    let rows: [(&str, &str, Fields<'_>, u16); 11] = [
        ("POST", "/v1/check", &[JSON, EVIL_HOST, EVIL_ORIGIN], 403),
        ("POST", "/v1/check", &[JSON, EVIL_ORIGIN], 403),
        ("POST", "/v1/check", &[JSON, ("origin", "null")], 403),
        ("POST", "/v1/check", &[JSON, OWN_ORIGIN], 200),
        // A program that is not a browser, with any host name.
        ("POST", "/v1/check", &[JSON, EVIL_HOST], 200),
        ("POST", "/v1/check/batch", &[JSON, EVIL_ORIGIN], 403),
        ("POST", "/v1/permits", &[JSON, EVIL_ORIGIN], 403),
        ("DELETE", "/v1/permits/x", &[EVIL_ORIGIN], 403),
        // Gateways forward the headers of their clients.
        ("POST", "/v1/forward-auth", &[EVIL_HOST, EVIL_ORIGIN], 200),
        ("GET", "/v1/forward-auth/login", &[EVIL_HOST], 200),
        ("GET", "/openapi.json", &[EVIL_HOST], 200),
    ];
    for (method, path, headers, status) in rows {
        let reply = server.ask(method, path, headers, ASK);
        assert_eq!(reply.status, status, "{method} {path} {headers:?}");
        if status == 403 {
            reply.refuses(403, None, "no token is configured: set TIDEGATE_TOKENS");
        }
    }
    #[rustfmt::skip]
    let rows: [(&str, &str, Fields<'_>, u16); 9] = [
        ("GET", "/admin/v1/policies", &[EVIL_HOST], 403),
        ("GET", "/admin/v1/policies", &[EVIL_ORIGIN], 403),
        ("DELETE", "/admin/v1/policies/login/keys/a", &[EVIL_HOST, EVIL_ORIGIN], 403),
        ("GET", "http://evil.example/admin/v1/policies", &[], 403),
        ("GET", "/admin/v1/policies", &[("host", "[::1]:9090"), OWN_ORIGIN], 200),
        ("GET", "/admin/v1/policies", &[("host", "tide.localhost")], 200),
        ("GET", "/healthz", &[EVIL_HOST], 200),
        ("GET", "/readyz", &[EVIL_HOST], 200),
        ("GET", "/metrics", &[EVIL_HOST, EVIL_ORIGIN], 200),
    ];
    for (method, path, headers, status) in rows {
        let reply = ask_admin(&server, method, path, headers);
        assert_eq!(reply.status, status, "{method} {path} {headers:?}");
        if status == 403 {
            let problem = reply.json();
            assert_eq!(reply.header("content-type"), Some("application/problem+json"));
            let detail = problem["detail"].as_str().expect("a detail");
            assert!(detail.contains("or set the token and send it"), "{detail}");
        }
    }
}

#[test]
fn accepts_foreign_sites_with_secret() {
    let start = Start::new("rebinding-tokens").config(TWO_PER_HOUR);
    let server = start.env("TIDEGATE_TOKENS", "one").env("TIDEGATE_ADMIN_TOKEN", "two").run();
    let shown = ("authorization", "Bearer one");
    let reply = server.ask("POST", "/v1/check", &[JSON, EVIL_HOST, EVIL_ORIGIN, shown], ASK);
    assert_eq!(reply.status, 200);
    let headers = [EVIL_HOST, EVIL_ORIGIN, ("authorization", "Bearer two")];
    assert_eq!(ask_admin(&server, "GET", "/admin/v1/policies", &headers).status, 200);
}
