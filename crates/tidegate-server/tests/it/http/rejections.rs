//! Invalid input: a rejection names the field, and the next request works.

use super::serve;
use crate::server_harness::{Client, Fields, JSON, Start, request};

#[test]
fn rejects_invalid_bodies_by_field() {
    let server = serve("refusals");
    let long_key = format!(r#"{{"policy":"login","key":"{}"}}"#, "k".repeat(1025));
    let megabyte = format!(r#"{{"policy":"login","key":"{}"}}"#, "k".repeat(1024 * 1024));
    let long_cost =
        format!(r#"{{"policy":"login","key":"a","cost":"{}"}}"#, "\u{e9}".repeat(30_000));
    let long_policy = format!(r#"{{"policy":"{}","key":"a"}}"#, "p".repeat(60_000));
    let long_policy_of_request =
        format!(r#"{{"policy":"{}","attributes":{{}}}}"#, "p".repeat(60_000));
    let cut = format!("there is no policy `{}...`", "p".repeat(64));
    let headers: Vec<String> = (0..101).map(|number| format!(r#""h{number}":"v""#)).collect();
    let many_headers = format!(r#"{{"attributes":{{"headers":{{{}}}}}}}"#, headers.join(","));
    let many_limits =
        format!(r#"{{"key":"a","limits":[{}]}}"#, vec![r#""5 per 1m""#; 17].join(","));
    let deep = format!(r#"{{"policy":{}}}"#, "[".repeat(30_000));
    #[rustfmt::skip]
    let rows: Vec<(&str, u16, Option<&str>, &str)> = vec![
        ("", 400, None, "the body is empty: send JSON"),
        ("nonsense", 400, None, "the body is not valid JSON: see line 1, column 2"),
        (r#"{"policy":"login","key":"a"} trailing"#, 400, None, "the body is not valid JSON: see line 1, column 30"),
        (r#"{"policy":"login","key":"a""#, 400, None, "the body ends before its JSON is complete"),
        (r#"["login","a"]"#, 400, None, "the body must be an object, but is a list"),
        ("null", 400, None, "the body must be an object, but is null"),
        (&deep, 400, Some("policy"), "it must be a string, but is a list"),
        (r#"{"policy":"login","key":"a","kee":1}"#, 400, Some("kee"), "it is unknown; did you mean `key`?"),
        (r#"{"policy":"login","key":"a","units":1}"#, 400, Some("units"), "it is unknown: use `policy`, `key`"),
        (r#"{"key":"a","limit":"5 per 1m"}"#, 400, Some("limit"), "it is unknown; did you mean `limits`?"),
        (r#"{"method":"POST","path":"/login"}"#, 400, Some("method"), "it is unknown here: put it in `attributes`"),
        (r#"{"policy":"login","path":"/login"}"#, 400, Some("path"), "it is unknown here: put it in `attributes`"),
        (r#"{"client_ip":"192.0.2.1"}"#, 400, Some("client_ip"), "it is unknown here: put it in `attributes`"),
        (r#"{"checks":[{"policy":"login","key":"a"}]}"#, 400, Some("checks"), "it is unknown here: send several checks to /v1/check/batch"),
        (r#"{"ip":"192.0.2.1"}"#, 400, Some("ip"), "it is unknown here: put it in `attributes`, as `client_ip`"),
        (r#"{"remote_addr":"192.0.2.1"}"#, 400, Some("remote_addr"), "it is unknown here: put it in `attributes`, as `client_ip`"),
        (r#"{"attributes":{"route":"/"}}"#, 400, Some("attributes.route"), "it is unknown; did you mean `path`?"),
        (r#"{"attributes":{"ip":"192.0.2.1"}}"#, 400, Some("attributes.ip"), "it is unknown; did you mean `client_ip`?"),
        (r#"{"attributes":{"header":{}}}"#, 400, Some("attributes.header"), "it is unknown; did you mean `headers`?"),
        (r#"{"policy":"login","key":"a","key":"b"}"#, 400, Some("key"), "it is given twice"),
        (r#"{"policy":7,"key":"a"}"#, 400, Some("policy"), "it must be a string, but is 7"),
        (r#"{"policy":"login","key":["a"]}"#, 400, Some("key"), "it must be a string, but is a list"),
        (r#"{"policy":"login","key":"a","cost":"1"}"#, 400, Some("cost"), "it must be a whole number, but is the string \"1\""),
        (r#"{"policy":"login","key":"a","cost":0.5}"#, 400, Some("cost"), "it must be a whole number, but is 0.5"),
        (r#"{"policy":"login","key":"a","cost":1000000000001}"#, 400, Some("cost"), "it is out of range: use a whole number from -1000000000000"),
        (r#"{"policy":"login","key":"a","cost":-99999999999999999999}"#, 400, Some("cost"), "it is out of range"),
        (r#"{"policy":"login","key":"a","cost":1e300}"#, 400, Some("cost"), "it is out of range"),
        (r#"{"policy":"login","key":"a","cost":-1,"force":true}"#, 400, Some("force"), "cannot be combined with a negative `cost`"),
        (r#"{"policy":"login","key":"a","force":"yes"}"#, 400, Some("force"), "it must be true or false, but is the string \"yes\""),
        (r#"{"policy":"login","key":""}"#, 400, Some("key"), "it is empty"),
        (&long_key, 400, Some("key"), "it is longer than 1024 bytes: send a hash of it"),
        (&megabyte, 413, None, "the body is larger than 65536 bytes"),
        (r#"{"policy":"login","key":"a","id":""}"#, 400, Some("id"), "it is empty"),
        (r#"{"policy":"login","key":"a","max_wait_ms":60001}"#, 400, Some("max_wait_ms"), "from 0 to 60000"),
        (r#"{"policy":"login","key":"a","max_wait_ms":-1}"#, 400, Some("max_wait_ms"), "from 0 to 60000"),
        (r#"{"policy":"login","key":"a","max_wait_ms":9,"id":"x"}"#, 400, Some("max_wait_ms"), "cannot be combined with `id`"),
        (r#"{"policy":"login","key":"a","max_wait_ms":9,"force":true}"#, 400, Some("max_wait_ms"), "cannot be combined with `force`"),
        ("{}", 400, Some("policy"), "send `policy` and `key`, or `attributes`, or `key` and `limits`"),
        (r#"{"policy":"login"}"#, 400, Some("key"), "`key` or `attributes` is required"),
        (r#"{"key":"a"}"#, 400, Some("policy"), "`policy` or `limits` is required"),
        (r#"{"key":"a","attributes":{}}"#, 400, Some("policy"), "required with `key` and `attributes`"),
        (r#"{"limits":["5 per 1m"]}"#, 400, Some("key"), "required with `limits`"),
        (r#"{"key":"a","limits":[]}"#, 400, Some("limits"), "it is empty"),
        (r#"{"policy":"login","key":"a","limits":["5 per 1m"]}"#, 400, Some("limits"), "cannot be combined with `policy`"),
        (r#"{"attributes":{},"limits":["5 per 1m"]}"#, 400, Some("limits"), "cannot be combined with `attributes`"),
        (r#"{"key":"a","limits":["5 per 1m","5 per fortnight"]}"#, 400, Some("limits[1]"), "fortnight"),
        (&many_limits, 400, Some("limits"), "there are more than 16"),
        (r#"{"key":"a","limits":["5 per 1m","6 per 1m"]}"#, 409, Some("limits"), "limits 1 and 2 have the same algorithm and window, so they would share one count: keep"),
        (r#"{"key":"a","limits":["4 per 1h","9 per 1d","4 per 1h"]}"#, 409, Some("limits"), "limits 1 and 3 have the same algorithm and window"),
        (r#"{"key":"a","limits":["5 concurrent"]}"#, 409, Some("limits"), "acquire one with POST /v1/permits"),
        (r#"{"policy":"jobs","key":"a"}"#, 409, Some("policy"), "policy `jobs` has a concurrency limit"),
        (r#"{"policy":"nobody","key":"a"}"#, 404, Some("policy"), "there is no policy `nobody`"),
        (r#"{"policy":"lgoin","key":"a"}"#, 404, Some("policy"), "there is no policy `lgoin`; did you mean `login`?"),
        (&long_policy, 404, Some("policy"), &cut),
        (&long_policy_of_request, 404, Some("policy"), &cut),
        (r#"{"policy":"\u001b[2J<img>","key":"a"}"#, 404, Some("policy"), "there is no policy `"),
        (r#"{"attributes":{"client_ip":"1.2.3"}}"#, 400, Some("attributes.client_ip"), "not an IP address"),
        (r#"{"attributes":{"cookies":{}}}"#, 400, Some("attributes.cookies"), "it is unknown: use `method`"),
        (r#"{"attributes":{"headers":{"a":1}}}"#, 400, Some("attributes.headers.a"), "it must be a string, but is 1"),
        (&long_cost, 400, Some("cost"), "it must be a whole number, but is the string"),
        (r#"{"attributes":{"headers":["a"]}}"#, 400, Some("attributes.headers"), "it must be an object of names and texts, but is a list"),
        (r#"{"attributes":[null]}"#, 400, Some("attributes"), "it must be an object, but is a list"),
        (&many_headers, 400, Some("attributes.headers"), "there are more than 100"),
        (r#"{"attributes":{"path":"/metered","headers":{"x-cost":"many"}}}"#, 400, Some("attributes"), "holds `many`: send a whole number"),
    ];
    for (body, status, field, part) in rows {
        let reply = server.check(body);
        reply.refuses(status, field, part);
        let shown = reply.text();
        assert!(!shown.contains('\u{1b}') && shown.len() < 2_000, "{shown}");
    }
    assert_eq!(server.check(r#"{"policy":"login","key":"a"}"#).status, 200);
}

#[test]
fn rejects_id_reused_with_another_cost() {
    let server = serve("refused-ids");
    server.check(r#"{"policy":"login","key":"a","id":"order-1"}"#);
    let reply = server.check(r#"{"policy":"login","key":"a","id":"order-1","cost":2}"#);
    reply.refuses(409, Some("id"), "was used with another cost");
    // Ids of different keys are independent.
    assert_eq!(server.check(r#"{"policy":"login","key":"b","id":"order-1","cost":2}"#).status, 200);
}

/// A peek charges nothing, so its id must not count for a later charge.
#[test]
fn peek_does_not_use_idempotency_id() {
    let server = serve("looked-ids");
    let ask = |cost: &str| {
        let body = format!(r#"{{"policy":"login","key":"a","id":"order-1","cost":{cost}}}"#);
        let answer = server.check(&body).json();
        answer["remaining"].as_u64().unwrap_or_else(|| panic!("{answer}"))
    };
    assert_eq!(["0", "1", "1", "0"].map(ask), [2, 1, 1, 1], "peek, charge, replay, peek");
    assert_eq!(server.metric("tidegate_remembered_ids"), Some(1));
}

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

#[test]
fn rejects_wrong_methods_paths_and_content_types() {
    let server = serve("refused-kinds");
    #[rustfmt::skip]
    let rows: [(&str, &str, Fields<'_>, u16, &str); 10] = [
        ("GET", "/v1/check", &[], 405, "POST"),
        ("PUT", "/v1/check/batch", &[], 405, "POST"),
        ("GET", "/v1/permits", &[], 405, "POST"),
        ("POST", "/openapi.json", &[], 405, "GET, HEAD"),
        ("OPTIONS", "/v1/check", &[], 405, "POST"),
        ("GET", "/v1/check/", &[], 404, ""),
        ("POST", "/v1/chec", &[], 404, ""),
        ("POST", "/v1/check", &[("content-type", "text/plain")], 415, ""),
        ("POST", "/v1/check", &[FORM, ("origin", "http://localhost:3000")], 415, ""),
        ("POST", "/v1/permits", &[("content-type", "application/jsonp")], 415, ""),
    ];
    for (method, path, headers, status, allow) in rows {
        let reply = server.ask(method, path, headers, r#"{"policy":"login","key":"a"}"#);
        reply.refuses(status, None, "");
        assert_eq!(reply.header("allow").unwrap_or_default(), allow, "{method} {path}");
    }
    let head = server.ask("HEAD", "/v1/check", &[], "");
    assert_eq!((head.status, head.header("allow")), (405, Some("POST")));
    // JSON bodies with any content type that means JSON, without one, or with the one of `curl -d`.
    for headers in
        [&[][..], &[("content-type", "Application/JSON; charset=utf-8")], &[JSON], &[FORM]]
    {
        let reply =
            server.ask("POST", "/v1/check", headers, r#"{"policy":"login","key":"x","cost":0}"#);
        assert_eq!(reply.status, 200, "{headers:?}");
    }
}

/// The body is rejected as truncated, however much of it has arrived.
#[test]
fn truncated_body_is_not_reported_as_empty() {
    let server = serve("broken-bodies");
    for path in ["/v1/check", "/v1/check/batch", "/v1/permits"] {
        for chunks in ["zz\r\n", "5\r\n{\"pol\r\nzz\r\n", "5\r\n{\"polXX"] {
            let mut client = Client::connect(server.http());
            let head =
                format!("POST {path} HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n");
            client.send((head + chunks).as_bytes());
            client.reply("POST").refuses(400, None, "the body is incomplete");
        }
    }
}

#[test]
fn connection_survives_rejected_request() {
    let server = serve("refused-and-on");
    let mut client = Client::connect(server.http());
    for body in ["nonsense", "{}", r#"{"policy":"login","key":"a","cost":0}"#] {
        client.send(&request("POST", "/v1/check", &[JSON], body));
        let status = if body.len() > 20 { 200 } else { 400 };
        assert_eq!(client.reply("POST").status, status, "{body}");
    }
    // A body that is too large is read to its end, so that the response arrives.
    client.send(&request("POST", "/v1/check", &[JSON], &"x".repeat(2 * 1024 * 1024)));
    client.reply("POST").refuses(413, None, "larger than 65536 bytes");
}

/// The number of limits is known only when a request matches them.
#[test]
fn reports_too_many_matching_limits() {
    let limits: Vec<String> = (1..=16).map(|n| format!("{n} per {n}s")).collect();
    let policy = |n| {
        format!(
            "  - {{ name: p{n}, match: {{ path: /a }}, key: all, limits: [{}] }}\n",
            limits.join(", ")
        )
    };
    let config: String = (0..17).map(policy).collect();
    let server = Start::new("too-many-limits").config(&format!("policies:\n{config}")).run();
    let part = "272 limits apply to this request, more than 256: narrow the `match`";
    server.check(r#"{"attributes":{"path":"/a"}}"#).refuses(409, Some("attributes"), part);
    server.ask("GET", "/v1/forward-auth/a", &[], "").refuses(409, Some("attributes"), part);
    assert_eq!(server.check(r#"{"attributes":{"path":"/b"}}"#).status, 200);
}

/// RFC 9112, section 3.2. Probes over HTTP/1.0 send no `Host` and are served.
#[test]
fn rejects_requests_without_exactly_one_host() {
    let server = serve("hosts");
    let http = ["/healthcheck", "/v1/forward-auth", "/openapi.json"].map(|path| (false, path));
    let admin = ["/healthz", "/readyz", "/metrics", "/admin/v1/policies"].map(|path| (true, path));
    for (is_admin, path) in http.into_iter().chain(admin) {
        let ask = |version: &str, hosts: &str| {
            let address = if is_admin { server.admin() } else { server.http() };
            let mut client = Client::connect(address);
            client.send(format!("GET {path} HTTP/{version}\r\n{hosts}\r\n").as_bytes());
            client.reply("GET")
        };
        let one = "host: localhost\r\n";
        assert_eq!(ask("1.1", one).status, 200, "{path}");
        assert_eq!(ask("1.0", "").status, 200, "{path}");
        for (version, hosts) in [("1.1", 0), ("1.1", 2), ("1.0", 2)] {
            let reply = ask(version, &one.repeat(hosts));
            assert_eq!(reply.status, 400, "{path}, HTTP/{version} with {hosts}");
            let detail = reply.json()["detail"].as_str().expect("a detail").to_owned();
            assert!(detail.contains("`Host`"), "{detail}");
        }
    }
    // The body is read, and the connection stays usable.
    let mut client = Client::connect(server.http());
    client.send(b"POST /v1/check HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}");
    assert_eq!(client.reply("POST").status, 400);
    client.send(&request("GET", "/healthcheck", &[], ""));
    assert_eq!(client.reply("GET").status, 200);
}
