//! Configs that are missing or invalid, and a store that fails.

use std::fs;

use serde_json::json;
use tidegate_testkit::redis::{Engine, RedisServer};

use super::{EDGE, ask, mode};
use crate::grpc::GrpcClient;
use crate::server_harness::{Server, wait_for};

/// Waits until `/healthcheck`, `/readyz` and the health service agree on the health.
#[track_caller]
fn becomes(server: &Server, healthy: bool) {
    let expected = if healthy { (200, 200) } else { (500, 503) };
    wait_for(|| {
        let check = server.ask("GET", "/healthcheck", &[], "").status;
        ((check, server.admin_get("/readyz").status) == expected).then_some(())
    });
    let status = if healthy { "SERVING" } else { "NOT_SERVING" };
    let answer = GrpcClient::new(server).ask("health", json!({ "service": "ratelimit" }));
    assert_eq!(answer["reply"]["status"], status);
}

const BAD: &str = "domain: edge\ndescriptors: [{ key: k, rate_limit: { unit: eon } }]\n";

#[test]
fn bad_config_at_start_fails_checks_until_it_is_mended() {
    let server = mode("envoy-mode-bad", Some(BAD)).run();
    becomes(&server, false);
    let reply = ask(&server, &["plain"]);
    assert_eq!(reply.status, 503, "{reply:?}");
    assert!(reply.text().contains("no rate limit config is loaded yet"), "{reply:?}");
    let mut client = GrpcClient::new(&server);
    let answer = client.limit(&crate::grpc::request_for("edge", &[("plain", "v")]));
    assert_eq!(answer["code"], "UNAVAILABLE", "{answer}");
    server.logged("starting without limits, so that checks fail");
    let watched = client.ask("watch", json!({ "service": "ratelimit" }));
    assert_eq!(watched["reply"]["status"], "NOT_SERVING");
    server.files.replace("ratelimit/config/edge.yaml", EDGE);
    becomes(&server, true);
    assert_eq!(client.ask("watched", json!({}))["reply"]["status"], "SERVING");
    assert_eq!(ask(&server, &["plain"]).status, 200);
    // A later mistake changes nothing.
    server.files.replace("ratelimit/config/edge.yaml", BAD);
    server.logged("the config was not reloaded");
    becomes(&server, true);
}

#[test]
fn starts_healthy_without_initial_config_if_forced() {
    let start = mode("envoy-mode-forced", Some(BAD));
    let server = start.env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true").run();
    becomes(&server, true);
    assert_eq!(ask(&server, &["plain"]).status, 503);
}

#[test]
fn empty_directory_limits_nothing() {
    let server = mode("envoy-mode-empty", None).run();
    becomes(&server, true);
    assert_eq!(ask(&server, &["plain"]).json()["overallCode"], "OK");
    let missing = mode("envoy-mode-missing", None).env("RUNTIME_SUBDIRECTORY", "no/such").run();
    becomes(&missing, true);
}

#[test]
fn unhealthy_without_domain_if_one_is_required() {
    let start = mode("envoy-mode-domain", None);
    let server = start.env("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true").run();
    becomes(&server, false);
    assert_eq!(ask(&server, &["plain"]).status, 200);
    // A domain without limits is one.
    server.files.write("ratelimit/config/edge.yaml", "domain: edge\n");
    becomes(&server, true);
    fs::remove_file(server.files.path("ratelimit/config/edge.yaml")).expect("the file");
    becomes(&server, false);
}

#[test]
fn health_follows_redis() {
    let mut redis = RedisServer::start(Engine::Redis);
    let start = |test: &str| {
        let start = mode(test, Some(EDGE)).env("REDIS_SOCKET_TYPE", "tcp");
        start.env("REDIS_URL", &redis.address())
    };
    let following = start("envoy-mode-redis-health");
    let following = following.env("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true").run();
    let other = start("envoy-mode-redis-once").run();
    becomes(&following, true);
    becomes(&other, true);
    redis.kill();
    becomes(&following, false);
    becomes(&other, true);
    redis.restart();
    becomes(&following, true);
}

#[test]
fn unhealthy_until_redis_is_reached() {
    let start = mode("envoy-mode-redis-late", Some(EDGE)).env("REDIS_SOCKET_TYPE", "tcp");
    let server = start.env("REDIS_URL", "127.0.0.1:1").run();
    becomes(&server, false);
}
