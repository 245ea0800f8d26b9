//! tidegate behind real gateways, as their clients and applications see it.
//!
//! Each gateway is a value (`nginx.rs`, ...) that describes how it is started and how it differs
//! from the others. The tests here run on all of them.
//!
//! - `processes.rs` starts an application, tidegate and the gateway;
//! - `http_client.rs` has the client and the application.
//!
//! Clients have the addresses from 127.0.0.2 on. The gateway has 127.0.0.1, which tidegate trusts
//! as a proxy.

mod caddy;
mod envoy;
mod envoy_ratelimit;
mod http_client;
mod nginx;
mod processes;
mod reference_scenarios;
mod traefik;

use std::io::ErrorKind;
use std::net::Ipv4Addr;

use serde_json::Value;
use tidegate_testkit::eventually;

use http_client::{Request, Response};
use processes::{Fails, Fields, Gateway, GatewaySetup};

/// The policy in `examples/gateways/tidegate.yaml`.
const LIMIT: usize = 5;
const WINDOW_S: u64 = 600;

const ALICE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const BOB: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const PROBE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 4);

macro_rules! gateway_tests {
    ($gateway:expr) => {
        #[test]
        fn admits_then_denies_with_headers() {
            super::admits_then_denies_with_headers(&$gateway);
        }
        #[test]
        fn ignores_forged_client_headers() {
            super::ignores_forged_client_headers(&$gateway);
        }
        #[test]
        fn forwards_method_path_query_host_and_headers() {
            super::forwards_method_path_query_host_and_headers(&$gateway);
        }
        #[test]
        fn fails_closed_and_recovers() {
            super::fails_closed_and_recovers(&$gateway);
        }
        #[test]
        fn fails_open_and_recovers() {
            super::fails_open_and_recovers(&$gateway);
        }
    };
}
use gateway_tests;

/// Returns a request that the policy of the example counts.
fn login(from: Ipv4Addr) -> Request<'static> {
    let (method, target, host) = ("POST", &b"/login/alice?next=%2Fhome"[..], "shop.example");
    Request { from, method, target, host, headers: &[], body: "name=alice&pass=1" }
}

#[track_caller]
fn denied(setup: &GatewaySetup, request: &Request<'_>) -> Response {
    let before = setup.application.request_count();
    let response = setup.send(request);
    assert_eq!(response.status, 429, "{response:?}");
    assert_eq!(
        setup.application.request_count(),
        before,
        "the denied request reached the application"
    );
    response
}

#[track_caller]
fn admitted(setup: &GatewaySetup, request: &Request<'_>) -> Response {
    let response = setup.send(request);
    assert_eq!(response.status, 200, "{response:?}");
    assert!(response.reached_application(), "{response:?}");
    response
}

/// Uses up the limit, and checks that the next request is denied.
#[track_caller]
fn use_up(setup: &GatewaySetup, from: Ipv4Addr) {
    for _ in 0..LIMIT {
        admitted(setup, &login(from));
    }
    denied(setup, &login(from));
}

fn admits_then_denies_with_headers(gateway: &Gateway) {
    let setup = GatewaySetup::start(gateway, Fails::Closed, "denies", "");
    for remaining in (0..LIMIT).rev() {
        let response = admitted(&setup, &login(ALICE));
        check_arrival(&response);
        check_admission(gateway.fields, &response, remaining);
    }
    let response = denied(&setup, &login(ALICE));
    check_denial(gateway, &response);
    // Requests that no policy counts, and another client.
    for target in [&b"/"[..], b"/log", b"/logins/alice", b"/static/login/a?x=/login/a"] {
        let response = admitted(&setup, &Request { target, ..login(ALICE) });
        assert_eq!(response.header("ratelimit"), None, "{response:?}");
    }
    admitted(&setup, &login(BOB));
    denied(&setup, &login(ALICE));
}

/// Checks that the application received the complete request of the client.
#[track_caller]
fn check_arrival(response: &Response) {
    let request = login(ALICE);
    assert!(response.body.starts_with("POST /login/alice?next=%2Fhome HTTP/1"), "{response:?}");
    assert!(response.body.ends_with(&format!("\n\n{}", request.body)), "{response:?}");
}

#[track_caller]
fn check_admission(fields: Fields, response: &Response, remaining: usize) {
    let limit = format!("\"login\";r={remaining}");
    let policy = format!("\"login\";q={LIMIT};w={WINDOW_S}");
    match fields {
        Fields::ToClient => {
            let shown = response.header("ratelimit").unwrap_or_default();
            assert!(shown.starts_with(&limit), "{response:?}");
            assert_eq!(response.header("ratelimit-policy"), Some(&*policy), "{response:?}");
        }
        Fields::ToApplication => {
            assert_eq!(
                response.header("ratelimit"),
                None,
                "the fields are sent to the application only"
            );
            assert!(response.body.contains(&format!("\nratelimit: {limit}")), "{response:?}");
            assert!(response.body.contains(&format!("\nratelimit-policy: {policy}\n")));
        }
    }
    assert_eq!(response.header("retry-after"), None, "{response:?}");
}

#[track_caller]
fn check_denial(gateway: &Gateway, response: &Response) {
    let retry_after = seconds(response.header("retry-after"));
    assert!((1..=WINDOW_S).contains(&retry_after), "{response:?}");
    let limit = response.header("ratelimit").unwrap_or_default();
    let reset = limit.strip_prefix("\"login\";r=0;t=").and_then(|t| t.parse().ok());
    assert!(reset.is_some_and(|reset| (1..=retry_after).contains(&reset)), "{response:?}");
    let policy = format!("\"login\";q={LIMIT};w={WINDOW_S}");
    assert_eq!(response.header("ratelimit-policy"), Some(&*policy));
    let problem = check_problem(response, "quota-exceeded");
    if gateway.body_passes {
        assert_eq!(problem["violated-policies"], serde_json::json!(["login"]), "{response:?}");
    }
}

#[track_caller]
fn check_problem(response: &Response, kind: &str) -> Value {
    assert_eq!(response.header("content-type"), Some("application/problem+json"), "{response:?}");
    let problem: Value = serde_json::from_str(&response.body).expect(&response.body);
    let kind = format!("https://iana.org/assignments/http-problem-types#{kind}");
    assert_eq!(problem["type"], kind, "{response:?}");
    assert_eq!(problem["status"], response.status, "{response:?}");
    problem
}

#[track_caller]
fn seconds(value: Option<&str>) -> u64 {
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no seconds: {value:?}"))
}

/// Headers that would help a client if the gateway forwarded them and tidegate trusted them.
const CLAIMS: &[&[&str]] = &[
    &["x-forwarded-for: 203.0.113.9"],
    &["x-forwarded-for: 203.0.113.9, 127.0.0.1"],
    &["x-forwarded-for: 203.0.113.9", "x-forwarded-for: 127.0.0.1"],
    &["x-forwarded-for: 127.0.0.3"],
    &["x-forwarded-for: not an address"],
    &["x-forwarded-for:"],
    &["forwarded: for=203.0.113.9"],
    &["forwarded: for=203.0.113.9;proto=https;by=127.0.0.1", "x-forwarded-for: 203.0.113.9"],
    &["x-real-ip: 203.0.113.9"],
    &["true-client-ip: 203.0.113.9", "client-ip: 203.0.113.9", "cf-connecting-ip: 203.0.113.9"],
    &["x-envoy-external-address: 203.0.113.9", "x-envoy-internal: true"],
    &["x-forwarded-method: GET"],
    &["x-forwarded-uri: /free"],
    &["x-forwarded-host: free.example"],
    &["x-original-method: GET"],
    &["x-original-uri: /free"],
    &["x-original-url: http://free.example/free"],
    &["x-envoy-original-path: /free", "x-http-method-override: GET"],
];

/// Declares the headers that the gateway adds as hop-by-hop, so that it might drop them.
const DROP: &str =
    "connection: close, x-forwarded-for, x-forwarded-uri, x-forwarded-method, x-forwarded-host";

/// Other spellings of the path, and queries that tidegate uses elsewhere.
const SPELLINGS: &[&[u8]] = &[
    b"/login/bob",
    b"//login/alice",
    b"/login//alice",
    b"/%6Cogin/alice",
    b"/%6cogin/alice",
    b"/free/../login/alice",
    b"/./login/alice",
    b"/login/alice?",
    b"/login/alice?x-forwarded-uri=/free&deny_status=200",
    b"/login/alice?deny_status=403",
    b"/login/alice?from=original&policy=free",
];

fn ignores_forged_client_headers(gateway: &Gateway) {
    // The gateway fails open, so a check that fails would help the client as well.
    let setup = GatewaySetup::start(gateway, Fails::Open, "claims", "");
    use_up(&setup, ALICE);
    for headers in CLAIMS {
        eprintln!("{headers:?}");
        denied(&setup, &Request { headers, ..login(ALICE) });
    }
    for target in SPELLINGS {
        eprintln!("{}", String::from_utf8_lossy(target));
        denied(&setup, &Request { target, headers: &["x-original-uri: /free"], ..login(ALICE) });
    }
    let large = format!("x-large: {}", "a".repeat(6_000));
    let long = format!("x-long: {}", "a".repeat(100_000));
    let long_path = [b"/login/", "a".repeat(70_000).as_bytes()].concat();
    let many: Vec<_> = (0..150).map(|n| format!("x-many-{n}: 1")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    for request in [
        Request { headers: &[DROP], ..login(ALICE) },
        Request { headers: &[DROP, "x-forwarded-uri: /free"], ..login(ALICE) },
        Request { headers: &["x-original-uri: /free?from=forwarded"], ..login(ALICE) },
        Request { headers: &[&large, &large], ..login(ALICE) },
        Request { headers: &[&long], ..login(ALICE) },
        Request { headers: &many, ..login(ALICE) },
        Request { target: &long_path, ..login(ALICE) },
        Request { target: b"/login/\xff\xfe", ..login(ALICE) },
        Request { target: b"/login/alice\x7f", ..login(ALICE) },
    ] {
        // Regression: a tidegate that closed the connection before it had read all headers
        // sometimes appeared unresponsive to the gateway.
        for _ in 0..4 {
            refused(&setup, &request);
        }
    }
    denied(&setup, &login(ALICE));
    admitted(&setup, &login(BOB));
}

/// Checks that a request is denied by tidegate or rejected by the gateway, and does not pass. A
/// closed connection is a rejection as well.
#[track_caller]
fn refused(setup: &GatewaySetup, request: &Request<'_>) {
    let before = setup.application.request_count();
    let status = setup.try_send(request).map(|response| response.status);
    let shown = |text: &[u8]| String::from_utf8_lossy(&text[..text.len().min(40)]).into_owned();
    let header = request.headers.first().map(|line| shown(line.as_bytes()));
    eprintln!("{} {header:?}: {status:?}", shown(request.target));
    let hung = [ErrorKind::WouldBlock, ErrorKind::TimedOut];
    let hung = status.as_ref().is_err_and(|error| hung.contains(&error.kind()));
    assert!(!hung && !matches!(status, Ok(0..400)), "{status:?}");
    assert_eq!(
        setup.application.request_count(),
        before,
        "the request reached the application: {status:?}"
    );
}

/// Policies of one request each, so that a second request shows whether tidegate saw the attribute
/// that they match on or count by.
const MORE_POLICIES: &str = r#"
  - name: reports
    match: { path: "/reports/**" }
    key: "{query:account}"
    limits: ["1 per 10m sliding-log"]
  - name: api
    match: { host: api.example, methods: [GET, DELETE] }
    key: "{client_ip}:{method}"
    limits: ["1 per 10m sliding-log"]
  - name: keys
    match: { path: "/keys" }
    key: "{header:x-api-key}"
    limits: ["1 per 10m sliding-log"]
"#;

fn forwards_method_path_query_host_and_headers(gateway: &Gateway) {
    let setup = GatewaySetup::start(gateway, Fails::Closed, "arrive", MORE_POLICIES);
    let rows: &[(&str, &str, &[&str], u16)] = &[
        ("GET", "shop.example/reports/1?account=7&x=1", &[], 200),
        ("GET", "shop.example/reports/2?x=2&account=7", &[], 429),
        ("PUT", "shop.example/reports/1?account=8", &[], 200),
        ("POST", "shop.example/reports/3?account=8", &[], 429),
        ("GET", "api.example/", &[], 200),
        ("GET", "api.example/other", &[], 429),
        ("GET", "API.example:80/", &[], 429),
        ("DELETE", "api.example/", &[], 200),
        ("DELETE", "api.example/", &[], 429),
        ("PUT", "api.example/", &[], 200),
        ("GET", "shop.example/", &[], 200),
        ("GET", "shop.example/keys", &["x-api-key: a"], 200),
        ("GET", "shop.example/keys", &["x-api-key: a"], 429),
        ("GET", "shop.example/keys", &["x-api-key: b"], 200),
    ];
    for (method, url, headers, status) in rows {
        let slash = url.find('/').expect("a path");
        let (host, target) = (&url[..slash], &url.as_bytes()[slash..]);
        let request = Request { from: ALICE, method, target, host, headers, body: "" };
        let response = setup.send(&request);
        assert_eq!(response.status, *status, "{method} {url} {headers:?}: {response:?}");
        assert_eq!(response.reached_application(), *status == 200, "{method} {url}");
    }
}

fn fails_closed_and_recovers(gateway: &Gateway) {
    let mut setup = GatewaySetup::start(gateway, Fails::Closed, "closed", "");
    use_up(&setup, ALICE);
    if gateway.closed_hurries {
        setup.tidegate.freeze();
        closed(gateway, &setup);
    }
    setup.tidegate.kill();
    closed(gateway, &setup);
    setup.tidegate.restart();
    eventually("requests pass again", || setup.send(&unlimited()).status == 200);
    // A restarted memory store is empty.
    use_up(&setup, ALICE);
}

fn unlimited() -> Request<'static> {
    Request { method: "GET", target: b"/", body: "", ..login(PROBE) }
}

/// Checks that all requests are rejected, and not as the client's fault.
#[track_caller]
fn closed(gateway: &Gateway, setup: &GatewaySetup) {
    for request in [login(ALICE), login(BOB), unlimited()] {
        let before = setup.application.request_count();
        let response = setup.send(&request);
        assert_eq!(response.status, gateway.closed_status, "{response:?}");
        assert_eq!(
            setup.application.request_count(),
            before,
            "the request reached the application"
        );
        if gateway.closed_problem {
            check_problem(&response, "temporary-reduced-capacity");
            assert_eq!(seconds(response.header("retry-after")), 1);
        }
    }
}

fn fails_open_and_recovers(gateway: &Gateway) {
    let mut setup = GatewaySetup::start(gateway, Fails::Open, "open", "");
    use_up(&setup, ALICE);
    setup.tidegate.freeze();
    open(&setup);
    setup.tidegate.kill();
    open(&setup);
    setup.tidegate.restart();
    eventually("the limit applies again", || setup.send(&login(PROBE)).status == 429);
    use_up(&setup, ALICE);
}

/// Checks that all requests pass unchanged, without rate limit fields.
#[track_caller]
fn open(setup: &GatewaySetup) {
    for _ in 0..2 {
        let response = admitted(setup, &login(ALICE));
        check_arrival(&response);
        assert_eq!(response.header("ratelimit"), None, "{response:?}");
        assert!(!response.body.contains("\nratelimit"), "{response:?}");
    }
}
