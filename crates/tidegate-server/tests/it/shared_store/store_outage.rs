//! The store is unreachable: every policy applies its `on_store_failure`, and every response
//! reports it.

use serde_json::json;
use tidegate_testkit::redis::{Engine, RedisServer};

use super::{EXCEEDED, REDUCED, check, forward, node};
use crate::server_harness::{JSON, Server, wait_for};

/// An address without a listener.
const NOWHERE: &str = "redis://127.0.0.1:1";

fn serve(test: &str) -> Server {
    node(&format!("shared-down-{test}"), NOWHERE).run()
}

#[test]
fn starts_without_store_and_is_ready() {
    let server = serve("starts");
    let first = server.printed.lines().next().expect("a line");
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!(
        "tidegate {version}: redis://127.0.0.1:1 store (not reachable yet), 7 policies from "
    );
    assert!(first.starts_with(&expected), "{first}");
    assert_eq!(server.admin_get("/readyz").status, 200);
    let log = wait_for(|| Some(server.log()).filter(|log| log.contains("on_store_failure")));
    assert!(log.contains("store unavailable; applying on_store_failure"), "{log}");
    assert_eq!(server.metric("tidegate_store_up"), Some(0));
    let stats = server.admin_get("/admin/v1/stats").json();
    assert_eq!(stats["store"]["shared"]["up"], false);
}

/// Regression: only the first reason was logged, however long the store stayed unavailable.
#[test]
fn logs_the_new_reason_of_an_outage() {
    let mut redis = RedisServer::start(Engine::Redis);
    let server = node("shared-down-reason", &redis.url()).run();
    redis.kill();
    wait_for(|| server.log().contains("Connection refused").then_some(()));
    redis.restart_with(&["--requirepass", "pw"]);
    let log = wait_for(|| Some(server.log()).filter(|log| log.contains("NOAUTH")));
    let line = log.lines().find(|line| line.contains("NOAUTH")).expect("a line");
    assert!(line.contains("store still unavailable, for another reason"), "{line}");
    assert!(line.contains("the store refused the credentials: "), "{line}");
}

#[test]
fn checks_apply_on_store_failure() {
    let server = serve("checks");
    // Each of three nodes has a share of three of nine.
    for left in [2, 1, 0] {
        assert_eq!(check(&server, "here", "a"), json!([true, "local", left]));
    }
    assert_eq!(check(&server, "here", "a"), json!([false, "local", 0]));
    for _ in 0..5 {
        assert_eq!(check(&server, "open", "a"), json!([true, "failed-open", null]));
        assert_eq!(check(&server, "closed", "a"), json!([false, "failed-closed", null]));
    }
    let whole = |body: &str| server.check(body).json();
    let open = whole(r#"{"policy":"open","key":"a"}"#);
    let line = json!({
        "policy": "open", "limit": 2, "window_ms": 3_600_000, "algorithm": "sliding-log",
        "remaining": null, "allowed": true, "retry_after_ms": 0, "decided": "failed-open"
    });
    let expected = json!({
        "allowed": true, "policy": "open", "limit": 2, "remaining": null, "retry_after_ms": 0,
        "reset_after_ms": null, "decided": "failed-open", "limits": [line]
    });
    assert_eq!(open, expected);
    let closed = whole(r#"{"policy":"closed","key":"a"}"#);
    assert_eq!(closed["retry_after_ms"], 1000, "the default wait after a store failure");
    // Any denial wins, and the least certain decision is reported.
    let both = whole(r#"{"attributes":{"path":"/both","client_ip":"192.0.2.1"}}"#);
    assert_eq!((&both["allowed"], &both["decided"]), (&json!(false), &json!("failed-closed")));
    assert_eq!(both["limits"][0]["decided"], "failed-open");

    // Waits, peeks, forced charges and limits of callers follow the same rules.
    let rows = [
        (r#"{"policy":"closed","key":"a","max_wait_ms":60000}"#, false, "failed-closed"),
        (r#"{"policy":"here","key":"b","max_wait_ms":60000}"#, true, "local"),
        (r#"{"policy":"here","key":"b","cost":0}"#, true, "local"),
        (r#"{"policy":"here","key":"b","cost":2,"force":true}"#, true, "local"),
        (r#"{"policy":"here","key":"b","cost":-2,"id":"r1"}"#, true, "local"),
        (r#"{"key":"b","limits":["3 per 1m"]}"#, true, "local"),
        (r#"{"key":"b","limits":["3 per 1m"]}"#, false, "local"),
        (r#"{"attributes":{"path":"/none"}}"#, true, "exact"),
    ];
    for (body, allowed, decided) in rows {
        let answer = whole(body);
        let seen = (&answer["allowed"], &answer["decided"]);
        assert_eq!(seen, (&json!(allowed), &json!(decided)), "{body}");
    }
    server.check(r#"{"policy":"nobody","key":"a"}"#).refuses(404, Some("policy"), "no policy");
    server.check(r#"{"policy":"jobs","key":"a"}"#).refuses(409, Some("policy"), "permit");
}

#[test]
fn gateways_distinguish_failure_from_denial() {
    let server = serve("gateways");
    for _ in 0..3 {
        assert_eq!(forward(&server, "/here"), (200, None));
        assert_eq!(forward(&server, "/open"), (200, None));
        assert_eq!(forward(&server, "/closed"), (503, Some(REDUCED.into())));
        assert_eq!(forward(&server, "/both"), (503, Some(REDUCED.into())));
    }
    assert_eq!(forward(&server, "/here"), (429, Some(EXCEEDED.into())));
    // Unknown numbers are not sent.
    let fields = |path: &str| {
        let reply = server.ask("GET", &format!("/v1/forward-auth{path}"), &[], "");
        let field = |name: &str| reply.header(name).map(str::to_owned);
        assert_eq!(reply.header("cache-control"), Some("no-store"));
        ["ratelimit", "ratelimit-policy", "retry-after"].map(field)
    };
    let policy = |name: &str| Some(format!("\"{name}\";q=2;w=3600"));
    assert_eq!(fields("/open"), [None, policy("open"), None]);
    assert_eq!(fields("/closed"), [None, policy("closed"), Some("1".into())]);
    // Those of this node's share of three are known, beside the whole limit of nine.
    let [left, whole, wait] = fields("/here");
    assert!(left.as_ref().is_some_and(|left| left.starts_with("\"here\";r=0;t=")), "{left:?}");
    assert_eq!((whole.as_deref(), wait.is_some()), (Some("\"here\";q=9;w=3600"), true));
    // `deny_status` does not apply to failures.
    let target = [("x-original-method", "GET"), ("x-original-uri", "/closed")];
    let reply = server.ask("GET", "/v1/forward-auth?from=original&deny_status=403", &target, "");
    assert_eq!((reply.status, &reply.json()["status"]), (503, &json!(503)));
}

/// Regression: a cost that the whole limit allows, but this node's share does not, got a 429 "can
/// never pass".
#[test]
fn cost_above_node_share_is_a_failure() {
    let server = serve("share");
    let reply = server.ask("GET", "/v1/forward-auth/costly", &[], "");
    assert_eq!((reply.status, reply.json()["type"].as_str()), (503, Some(REDUCED)));
    let seconds: u64 = reply.header("retry-after").expect("a time").parse().expect("seconds");
    // Not before the store is tried again, which takes a few seconds at most.
    assert!((1..=10).contains(&seconds), "{seconds}");
    let retry_after = |cost: u64| {
        let answer = server.check(&format!(r#"{{"policy":"here","key":"c","cost":{cost}}}"#));
        assert_eq!(answer.status, 200);
        let answer = answer.json();
        assert_eq!((&answer["allowed"], &answer["decided"]), (&json!(false), &json!("local")));
        answer["retry_after_ms"].as_u64()
    };
    assert!(retry_after(4).is_some_and(|ms| ms >= 1000));
    assert_eq!(retry_after(10), None, "more than the limit itself");
}

#[test]
fn answers_batch_in_order() {
    let server = serve("batch");
    let ask = |policy: &str| format!(r#"{{"policy":"{policy}","key":"a"}}"#);
    let checks = ["here", "open", "closed", "here", "here", "here"].map(ask).join(",");
    let reply = server.post("/v1/check/batch", &format!(r#"{{"checks":[{checks}]}}"#));
    let answers = reply.json();
    let seen: Vec<_> = answers["answers"]
        .as_array()
        .expect("answers")
        .iter()
        .map(|answer| (answer["policy"].as_str(), answer["remaining"].as_u64()))
        .collect();
    let expected = [
        (Some("here"), Some(2)),
        (Some("open"), None),
        (Some("closed"), None),
        (Some("here"), Some(1)),
        (Some("here"), Some(0)),
        (Some("here"), Some(0)),
    ];
    assert_eq!(seen, expected);
    let checks = format!(r#"{{"checks":[{},{}]}}"#, ask("here"), ask("nobody"));
    server.post("/v1/check/batch", &checks).refuses(404, Some("checks[1].policy"), "no policy");
}

#[test]
fn permits_follow_on_store_failure() {
    let server = serve("permits");
    let take =
        |policy: &str| server.post("/v1/permits", &format!(r#"{{"policy":"{policy}","key":"a"}}"#));
    let ids = [take("jobs"), take("jobs")].map(|reply| {
        assert_eq!((reply.status, &reply.json()["decided"]), (201, &json!("local")));
        reply.json()["id"].as_str().expect("an id").to_owned()
    });
    let denied = take("jobs");
    assert_eq!((denied.status, denied.json()["type"].as_str()), (429, Some(EXCEEDED)));
    let closed = take("closed-jobs");
    assert_eq!((closed.status, closed.json()["type"].as_str()), (503, Some(REDUCED)));
    let path = format!("/v1/permits/{}", ids[0]);
    assert_eq!(server.ask("PUT", &path, &[JSON], "{}").status, 200);
    assert_eq!(server.ask("DELETE", &path, &[], "").status, 204);
    assert_eq!(take("jobs").status, 201);
    // A permit that only the store knows.
    let shared = "/v1/permits/1.AYCHpw6AmPMcBmpvYnMAYQ";
    for method in ["PUT", "DELETE"] {
        server.ask(method, shared, &[], "").refuses(
            503,
            None,
            "the store is unavailable: try again",
        );
    }
    server.ask("DELETE", "/v1/permits/1.nonsense", &[], "").refuses(404, None, "unknown permit");
}

#[test]
fn metrics_and_logs_report_missing_store() {
    let server = serve("operators");
    let key = "/admin/v1/policies/here/keys/a";
    let ask = |method: &str| {
        let mut client = crate::server_harness::Client::connect(server.admin());
        client.send(&crate::server_harness::request(method, key, &[], ""));
        client.reply(method)
    };
    for method in ["GET", "DELETE"] {
        let reply = ask(method);
        assert_eq!(reply.status, 503);
        let detail = reply.json()["detail"].as_str().expect("a detail").to_owned();
        assert_eq!(detail, "the store is unavailable: try again");
    }
    for policy in ["here", "open", "closed"] {
        check(&server, policy, "a");
    }
    let decisions = |policy: &str, limit: &str, outcome: &str, decided: &str| {
        server.metric(&format!(
            "tidegate_decisions_total{{policy=\"{policy}\",limit=\"{limit} per 1h sliding-log\",\
             mode=\"enforce\",outcome=\"{outcome}\",decided=\"{decided}\"}}"
        ))
    };
    assert_eq!(decisions("here", "9", "allowed", "local"), Some(1));
    assert_eq!(decisions("open", "2", "allowed", "failed-open"), Some(1));
    assert_eq!(decisions("closed", "2", "denied", "failed-closed"), Some(1));
    // No request was sent, so no duration was recorded.
    assert_eq!(server.metric("tidegate_store_duration_seconds_count"), Some(0));
}

#[test]
fn reload_changes_nodes_but_not_store() {
    let server = serve("reloads");
    let reloads =
        |result: &str| server.metric(&format!("tidegate_reloads_total{{result=\"{result}\"}}"));
    let write = |store: &str, nodes: u32| {
        let settings = format!("store: {store}\nstore_timeout: 1s\nnodes: {nodes}\n");
        server.files.write("tidegate.yaml", format!("{settings}{}", super::POLICIES));
    };
    write("redis://:hush@127.0.0.1:2", 9);
    wait_for(|| (reloads("refused") == Some(1)).then_some(()));
    let expected = "the config was not reloaded, the old one stays: `store` cannot change while \
                    running (now redis://127.0.0.1:1, in the file redis://127.0.0.1:2): restart, \
                    or put it back";
    let log = server.logged(expected);
    assert!(!log.contains("hush"), "{log}");
    assert_eq!(check(&server, "here", "a"), json!([true, "local", 2]), "still three nodes");
    write(NOWHERE, 9);
    wait_for(|| (reloads("ok") == Some(1)).then_some(()));
    assert_eq!(check(&server, "here", "b"), json!([true, "local", 0]), "one of nine for each");
    let log = wait_for(|| Some(server.log()).filter(|log| log.contains("need a restart")));
    assert!(log.contains("fields=\"store_timeout\""), "{log}");
}
