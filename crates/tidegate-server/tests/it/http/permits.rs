//! `/v1/permits`: permits are acquired, renewed and released, and expire.

use serde_json::json;

use super::{serve, timeless};
use crate::server_harness::{Server, wait_for};

/// The longest duration: 366 days.
const YEAR_MS: u64 = 366 * 24 * 60 * 60 * 1000;

fn take(server: &Server, body: &str) -> crate::server_harness::Reply {
    server.post("/v1/permits", body)
}

fn id_of(reply: &crate::server_harness::Reply) -> String {
    assert_eq!(reply.status, 201, "{reply:?}");
    let id = reply.json()["id"].as_str().expect("an id").to_owned();
    assert_eq!(reply.header("location"), Some(&*format!("/v1/permits/{id}")));
    id
}

#[test]
fn permit_is_held_until_released() {
    let server = serve("permits");
    let body = r#"{"policy":"jobs","key":"alice","ttl_ms":20000}"#;
    let first = take(&server, body);
    let id = id_of(&first);
    assert_eq!(first.json()["ttl_ms"], 20000);
    assert_eq!(first.header("ratelimit"), Some("\"jobs-concurrent\";r=1;t=20"));
    let second = id_of(&take(&server, body));
    assert_ne!(id, second);

    let denied = take(&server, body);
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(denied.json()["violated-policies"], json!(["jobs-concurrent"]));
    assert!(denied.header("retry-after").is_some());

    let path = format!("/v1/permits/{id}");
    let renewed = server.ask("PUT", &path, &[], "");
    assert_eq!((renewed.status, renewed.json()), (200, json!({"id": id, "ttl_ms": 20000})));
    // Renewed with another duration, which then stays.
    for body in [r#"{"ttl_ms":30000}"#, "{}"] {
        let renewed = server.ask("PUT", &path, &[crate::server_harness::JSON], body);
        assert_eq!((renewed.status, renewed.json()), (200, json!({"id": id, "ttl_ms": 30000})));
    }
    for (body, part) in [
        (r#"{"ttl_ms":30001}"#, "a lease is at most 30000 ms here: use that, and renew the permit"),
        (r#"{"ttl_ms":0}"#, "must be at least 1"),
    ] {
        let refused = server.ask("PUT", &path, &[crate::server_harness::JSON], body);
        refused.refuses(400, Some("ttl_ms"), part);
    }
    let given_back = server.ask("DELETE", &path, &[], "");
    assert_eq!((given_back.status, given_back.body.len()), (204, 0));
    for method in ["DELETE", "PUT"] {
        server.ask(method, &path, &[], "").refuses(404, None, "unknown permit");
    }
    // The permit is free again, and each permit has charged the rate limit beside it.
    let third = take(&server, body);
    id_of(&third);
    let lines = timeless(&third.json()["limits"]);
    assert_eq!((&lines[0]["remaining"], &lines[1]["remaining"]), (&json!(0), &json!(7)));
}

/// As for a check, a request without a matching policy is allowed, so that callers need not know
/// what is limited.
#[test]
fn rejects_permit_without_matching_policy() {
    let server = serve("permits-free");
    for body in [r#"{"attributes":{"path":"/free"}}"#, r#"{"policy":"retired","key":"a"}"#] {
        let free = take(&server, body);
        let path = format!("/v1/permits/{}", id_of(&free));
        assert_eq!((&free.json()["policy"], &free.json()["limits"]), (&json!(null), &json!([])));
        assert_eq!(
            (&free.json()["ttl_ms"], server.ask("PUT", &path, &[], "").status),
            (&json!(60000), 200)
        );
        let renew = |ttl_ms: u64| {
            let body = format!(r#"{{"ttl_ms":{ttl_ms}}}"#);
            server.ask("PUT", &path, &[crate::server_harness::JSON], &body)
        };
        assert_eq!(renew(300_000).json()["ttl_ms"], 300_000);
        assert_eq!(renew(YEAR_MS).json()["ttl_ms"], YEAR_MS);
        renew(YEAR_MS + 1).refuses(400, Some("ttl_ms"), "a lease is at most 31622400000 ms here");
        assert_eq!(server.ask("DELETE", &path, &[], "").status, 204);

        let ask = |ttl_ms: u64| {
            take(&server, &body.replacen('{', &format!(r#"{{"ttl_ms":{ttl_ms},"#), 1))
        };
        for ttl_ms in [1, 300_000, YEAR_MS] {
            assert_eq!(ask(ttl_ms).json()["ttl_ms"], ttl_ms);
        }
        ask(u64::MAX / 2).refuses(400, Some("ttl_ms"), "a lease is at most 31622400000 ms here");
    }
}

#[test]
fn permit_is_free_again_after_its_lease() {
    let server = serve("leases");
    let body = r#"{"key":"k","limits":["1 concurrent lease 300ms"]}"#;
    let path = format!("/v1/permits/{}", id_of(&take(&server, body)));
    let again = wait_for(|| Some(take(&server, body)).filter(|reply| reply.status == 201));
    id_of(&again);
    server.ask("PUT", &path, &[], "").refuses(404, None, "unknown permit");
}

#[test]
fn renewed_permit_is_held_until_the_new_lease_ends() {
    let server = serve("renewed-leases");
    let body = r#"{"key":"k","limits":["1 concurrent lease 1h"]}"#;
    let path = format!("/v1/permits/{}", id_of(&take(&server, body)));
    assert_eq!(take(&server, body).status, 429);
    let renewed = server.ask("PUT", &path, &[crate::server_harness::JSON], r#"{"ttl_ms":300}"#);
    assert_eq!(renewed.status, 200, "{renewed:?}");
    // An hour earlier than the original lease.
    wait_for(|| Some(take(&server, body)).filter(|reply| reply.status == 201));
}

#[test]
fn rejects_invalid_permit_requests_by_field() {
    let server = serve("permits-refused");
    #[rustfmt::skip]
    let rows = [
        (r#"{"policy":"login","key":"a"}"#, 409, Some("policy"), "policy `login` has no concurrency limit: check it instead with POST /v1/check"),
        (r#"{"key":"a","limits":["5 per 1m"]}"#, 409, Some("limits"), "no concurrency limit"),
        (r#"{"policy":"nobody","key":"a"}"#, 404, Some("policy"), "there is no policy `nobody`"),
        (r#"{"policy":"jobs","key":"a","ttl_ms":30001}"#, 400, Some("ttl_ms"), "a lease is at most 30000 ms here: use that, and renew the permit"),
        (r#"{"policy":"jobs","key":"a","ttl_ms":0}"#, 400, Some("ttl_ms"), "must be at least 1"),
        (r#"{"policy":"jobs","key":"a","ttl_ms":-5}"#, 400, Some("ttl_ms"), "must be at least 1"),
        (r#"{"policy":"jobs","key":"a","cost":0}"#, 400, Some("cost"), "must be at least 1 for a permit"),
        (r#"{"policy":"jobs","key":"a","ttl":5}"#, 400, Some("ttl"), "it is unknown; did you mean `ttl_ms`?"),
        (r#"{"policy":"jobs"}"#, 400, Some("key"), "`key` or `attributes` is required"),
    ];
    for (body, status, field, part) in rows {
        take(&server, body).refuses(status, field, part);
    }
    let id = "0".repeat(32);
    for id in [&*id, "x", "%00", "../check", &"0".repeat(31), &"A".repeat(32)] {
        let path = format!("/v1/permits/{id}");
        server.ask("DELETE", &path, &[], "").refuses(404, None, "unknown permit");
    }
    let path = format!("/v1/permits/{id}");
    server.ask("GET", &path, &[], "").refuses(405, None, "use PUT, DELETE");
    let renew = |body: &str| server.ask("PUT", &path, &[crate::server_harness::JSON], body);
    renew(r#"{"ttl":5}"#).refuses(400, Some("ttl"), "it is unknown; did you mean `ttl_ms`?");
    renew(r#"{"ttl_ms":5}"#).refuses(404, None, "unknown permit");
    renew("{}").refuses(404, None, "unknown permit");
}
