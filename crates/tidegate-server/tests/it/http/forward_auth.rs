//! `/v1/forward-auth`: requests of gateways, and the response fields that they can forward.

use serde_json::json;

use super::{POLICIES, serve};
use crate::server_harness::{Fields, Reply, Server, Start};

fn ask(server: &Server, method: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
    server.ask(method, path, headers, "")
}

#[test]
fn parses_requests_of_each_gateway() {
    let server = serve("forward-gateways");
    let caddy = [
        ("x-forwarded-method", "POST"),
        ("x-forwarded-uri", "/login?a=1"),
        ("x-forwarded-host", "shop"),
    ];
    let nginx = [("x-original-method", "POST"), ("x-original-uri", "/login")];
    // All requests come from this address: they share one limit, whichever gateway sends them in
    // whichever form.
    #[rustfmt::skip]
    let rows: [(&str, &str, Fields<'_>, u16); 13] = [
        ("GET", "/v1/forward-auth", &[], 200),
        ("GET", "/v1/forward-auth", &caddy, 200),
        ("POST", "/v1/forward-auth/login?deny_status=418", &[], 200),
        ("GET", "/v1/forward-auth", &caddy, 429),
        ("GET", "/v1/forward-auth?from=forwarded", &caddy, 429),
        ("GET", "/v1/forward-auth?deny_status=403", &nginx, 403),
        ("GET", "/v1/forward-auth?from=original&deny_status=401", &nginx, 401),
        // The query of the client is not that of the gateway.
        ("POST", "/v1/forward-auth/login?deny_status=418", &[], 429),
        ("POST", "/v1/forward-auth//x/../%6Cogin", &[], 429),
        ("GET", "/v1/forward-auth?a=1", &caddy, 429),
        ("GET", "/v1/forward-auth?a=1&from=original", &caddy, 400),
        ("GET", "/v1/forward-auth?from=forwarded&deny_staus=403", &caddy, 400),
        ("HEAD", "/v1/forward-auth", &caddy, 429),
    ];
    for (method, path, headers, status) in rows {
        let reply = ask(&server, method, path, headers);
        assert_eq!(reply.status, status, "{method} {path} {headers:?}: {reply:?}");
        assert_eq!(reply.header("cache-control"), Some("no-store"));
        if status != 200 && method != "HEAD" {
            assert_eq!(reply.json()["status"], status, "the problem document has another status");
        }
        let denied = status != 200 && status != 400;
        assert_eq!(reply.header("retry-after").is_some(), denied, "{reply:?}");
    }
}

#[test]
fn names_unknown_and_repeated_parameters() {
    let server = serve("forward-parameters");
    let login = [("x-forwarded-method", "POST"), ("x-forwarded-uri", "/login?next=home")];
    let rows = [
        ("denystatus=403", "denystatus", "it is unknown: use `from` or `deny_status`"),
        ("from=forwarded&policy=login", "policy", "it is unknown: use `from` or `deny_status`"),
        ("from=forwarded&from=original", "from", "it is given twice: keep one"),
    ];
    for (query, field, detail) in rows {
        let reply = ask(&server, "GET", &format!("/v1/forward-auth?{query}"), &login);
        assert_eq!(reply.status, 400, "{query}: {reply:?}");
        let problem = reply.json();
        assert_eq!((&problem["field"], &problem["detail"]), (&json!(field), &json!(detail)));
    }
    // Nothing was charged, and the client's own query is not the gateway's.
    for status in [200, 200, 429] {
        assert_eq!(ask(&server, "GET", "/v1/forward-auth?next=home", &login).status, status);
    }
}

#[test]
fn response_carries_rate_limit_headers() {
    let server = serve("forward-answers");
    let login = [("x-forwarded-method", "POST"), ("x-forwarded-uri", "/login")];
    let reply = ask(&server, "GET", "/v1/forward-auth", &login);
    assert_eq!((reply.status, reply.body.len()), (200, 0));
    assert_eq!(reply.header("ratelimit-policy"), Some("\"login\";q=2;w=3600"));
    assert!(reply.header("ratelimit").is_some_and(|text| text.starts_with("\"login\";r=1;t=")));
    ask(&server, "GET", "/v1/forward-auth", &login);

    let named = [login[0], login[1], ("x-request-id", "from-the-gateway")];
    let denied = ask(&server, "GET", "/v1/forward-auth?deny_status=403", &named);
    assert_eq!(denied.status, 403);
    assert_eq!(denied.header("x-request-id"), Some("from-the-gateway"));
    let wait: u64 = denied.header("retry-after").expect("a wait").parse().expect("seconds");
    assert!((1..=3600).contains(&wait));
    assert_eq!(denied.header("ratelimit"), Some(&*format!("\"login\";r=0;t={wait}")));
    let problem = denied.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["violated-policies"], json!(["login"]));
    // A request without a matching policy passes without rate limit fields.
    let free = ask(&server, "GET", "/v1/forward-auth", &[("x-forwarded-uri", "/free")]);
    assert_eq!((free.status, free.header("ratelimit")), (200, None));
}

#[test]
fn takes_client_address_from_trusted_proxies() {
    let config =
        format!("trusted_proxies: [127.0.0.1]\nheaders: [draft-6, x-ratelimit]\n{POLICIES}");
    let server = Start::new("forward-trusted").config(&config).run();
    let login = |client: &str| {
        let headers = [
            ("x-forwarded-for", client),
            ("x-forwarded-method", "POST"),
            ("x-forwarded-uri", "/login"),
        ];
        ask(&server, "GET", "/v1/forward-auth", &headers)
    };
    let first = login("192.0.2.1");
    assert_eq!(
        (first.header("ratelimit-remaining"), first.header("x-ratelimit-limit")),
        (Some("1"), Some("2"))
    );
    // Entries that a client prepends have no effect.
    assert_eq!(login("6.6.6.6, 192.0.2.1").status, 200);
    assert_eq!(login("7.7.7.7, 192.0.2.1:4711").status, 429);
    assert_eq!(login("192.0.2.2").status, 200);

    let untrusting = serve("forward-untrusted");
    let spoofed = |client: &str| {
        let headers = [
            ("x-forwarded-for", client),
            ("x-forwarded-method", "POST"),
            ("x-forwarded-uri", "/login"),
        ];
        ask(&untrusting, "GET", "/v1/forward-auth", &headers).status
    };
    let statuses = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(spoofed);
    assert_eq!(statuses, [200, 200, 429]);
}

#[test]
fn rejects_ambiguous_forwarded_requests() {
    let server = serve("forward-refused");
    #[rustfmt::skip]
    let rows: [(&str, Fields<'_>, u16, Option<&str>, &str); 16] = [
        ("?deny_status=200", &[], 400, Some("deny_status"), "from 400 to 499"),
        ("?deny_status=503", &[], 400, Some("deny_status"), "from 400 to 499"),
        ("?from=envoy", &[], 400, Some("from"), "use forwarded or original"),
        ("?from=forwarded", &[], 400, Some("header:x-forwarded-uri"), "X-Forwarded-Uri is missing"),
        ("?from=original", &[("x-forwarded-uri", "/")], 400, Some("header:x-original-uri"), "X-Original-URI is missing"),
        // Regression: the method of the check was used, which nginx always sends with GET, so no
        // policy with `methods: [POST]` applied.
        ("?from=forwarded", &[("x-forwarded-uri", "/login")], 400, Some("header:x-forwarded-method"), "X-Forwarded-Method is missing"),
        ("?from=forwarded", &[("x-forwarded-uri", "/login"), ("x-original-method", "POST")], 400, Some("header:x-forwarded-method"), "X-Forwarded-Method is missing"),
        ("?from=original", &[("x-original-uri", "/login")], 400, Some("header:x-original-method"), "X-Original-Method is missing"),
        ("", &[("x-forwarded-uri", "/login"), ("x-forwarded-uri", "/free")], 400, Some("header:x-forwarded-uri"), "sent twice"),
        ("", &[("x-forwarded-uri", "/login"), ("x-original-uri", "/free")], 400, None, "differ"),
        // The query of the client contains an option of the gateway's URL, or is taken for it.
        ("?from=original", &[("x-original-uri", "/free?from=original")], 400, Some("from"), "its origin is unknown"),
        // The same target with a host that the client may have chosen.
        ("?from=original", &[("x-original-uri", "/login"), ("x-original-url", "http://free/login")], 400, None, "differ"),
        ("", &[("x-original-uri", "/login"), ("x-forwarded-uri", "/login"), ("x-forwarded-host", "free")], 400, None, "differ"),
        ("", &[("x-forwarded-uri", "/jobs")], 409, Some("policy"), "policy `jobs` has a concurrency limit"),
        ("", &[("x-forwarded-uri", "/metered"), ("x-cost", "-1")], 400, Some("header:x-cost"), "{header:x-cost}"),
        ("er", &[], 404, None, "not found; see /"),
    ];
    for (behind, headers, status, field, part) in rows {
        let reply = ask(&server, "GET", &format!("/v1/forward-auth{behind}"), headers);
        reply.refuses(status, field, part);
    }
}

/// A gateway discards the body of a 400, and nothing was logged, so the reason could not be found.
#[test]
fn logs_rejected_checks_without_values_of_the_request() {
    let metered =
        [("x-request-id", "req-1"), ("x-forwarded-uri", "/metered"), ("x-cost", "s3cret")];
    #[rustfmt::skip]
    let rows: [(&str, &str, Fields<'_>, &str); 4] = [
        ("method", "?from=forwarded", &[("x-request-id", "req-1"), ("x-forwarded-uri", "/login")],
         "rejected the check of a gateway with 400: X-Forwarded-Method is missing: configure the gateway to send it \
          request_id=\"req-1\" field=\"header:x-forwarded-method\" suppressed=0"),
        ("permit", "", &[("x-request-id", "req-1"), ("x-forwarded-uri", "/jobs")],
         "rejected the check of a gateway with 409: policy `jobs` has a concurrency limit"),
        ("cost", "", &metered, "field=\"header:x-cost\""),
        ("parameter", "?s3cret", &[("x-request-id", "req-1")],
         "with 400: it is unknown: use `from` or `deny_status` request_id=\"req-1\" field=\"a query parameter\""),
    ];
    for (name, behind, headers, logged) in rows {
        let server = serve(&format!("forward-logged-{name}"));
        for _ in 0..3 {
            ask(&server, "GET", &format!("/v1/forward-auth{behind}"), headers);
        }
        let log = server.logged(logged);
        assert_eq!(log.matches("rejected the check").count(), 1, "{log}");
        assert!(!log.contains("s3cret"), "{log}");
    }
}

/// Denials are logged separately.
#[test]
fn logs_only_checks_that_the_gateway_has_to_correct() {
    let server = serve("forward-not-logged");
    let login = [("x-forwarded-method", "POST"), ("x-forwarded-uri", "/login")];
    for status in [200, 200, 429] {
        assert_eq!(ask(&server, "GET", "/v1/forward-auth?from=forwarded", &login).status, status);
    }
    let log = server.logged("denied");
    assert!(!log.contains("rejected"), "{log}");
}
