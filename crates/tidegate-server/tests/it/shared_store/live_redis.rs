//! Nodes over a real store: they share one limit, also after outages of the store.

use std::thread;

use serde_json::{Value, json};

use tidegate_testkit::redis::RedisServer;

use super::redis_servers::{PASSWORD, start_redis};
use super::{EXCEEDED, REDUCED, check, forward, node};
use crate::server_harness::{Client, JSON, Reply, Server, Start, request, wait_for};

/// Starts two of three nodes, named after the test.
fn nodes(test: &str, redis: &RedisServer) -> [Server; 2] {
    ["a", "b"]
        .map(|name| node(&format!("shared-live-{test}-{name}"), &redis.url_with_login()).run())
}

/// Returns how the next check is decided.
fn decided(server: &Server) -> Value {
    let ask = r#"{"policy":"here","key":"nobody","cost":0}"#;
    server.check(ask).json()["decided"].clone()
}

/// Waits until both nodes decide in this way.
fn until(nodes: &[Server; 2], way: &str) {
    for server in nodes {
        wait_for(|| (decided(server) == way).then_some(()));
    }
}

#[test]
fn two_nodes_share_a_limit() {
    let redis = start_redis();
    let nodes = nodes("one-limit", &redis);
    assert!(nodes[0].printed.contains(&format!(": {} store, ", redis.url())));
    let allowed: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let server = &nodes[number % 2];
                scope.spawn(move || {
                    (0..10).filter(|_| check(server, "here", "alice")[0] == true).count()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread finished")).sum()
    });
    assert_eq!(allowed, 9);
    for server in &nodes {
        assert_eq!(check(server, "here", "alice"), json!([false, "exact", 0]));
        assert_eq!(server.metric("tidegate_store_up"), Some(1));
    }
    // Through forward-auth as well, and with batches, which are decided in order.
    for (node, path, status) in [(0, "/open", 200), (1, "/open", 200), (0, "/open", 429)] {
        assert_eq!(forward(&nodes[node], path).0, status);
    }
    assert_eq!(forward(&nodes[1], "/open"), (429, Some(EXCEEDED.into())));
    let keys = (0..200).map(|number| number % 100);
    let checks: Vec<String> =
        keys.map(|key| format!(r#"{{"policy":"closed","key":"{key}"}}"#)).collect();
    let batch = format!(r#"{{"checks":[{}]}}"#, checks.join(","));
    let reply = nodes[1].post("/v1/check/batch", &batch).json();
    let left: Vec<u64> = reply["answers"]
        .as_array()
        .expect("answers")
        .iter()
        .map(|answer| answer["remaining"].as_u64().expect("a number"))
        .collect();
    assert_eq!(left, [vec![1; 100], vec![0; 100]].concat());
    let calls = nodes[1].metric("tidegate_store_batches_total").expect("a metric");
    assert!(calls < 200, "{calls} writes for a batch of 200 checks");
}

/// Regression: the refund of `[1, -1]` was lost, and the third check of `[1, -1, 1]` was denied.
#[test]
fn batch_checks_apply_in_order() {
    let redis = start_redis();
    let server = Start::new("shared-live-order").config(&format!(
        "store: {}\nstore_timeout: 5s\n\
         policies:\n  - {{ name: lone, key: \"{{client_ip}}\", limits: [\"1 per 1h sliding-counter\"] }}\n",
        redis.url_with_login()
    ));
    let server = server.run();
    let rows = [
        ("a", &[1, -1][..], "[1,1]", 1),
        ("b", &[1, -1, 1], "[1,1,1]", 0),
        ("c", &[1, 1, -1, 1], "[1,0,1,1]", 0),
    ];
    for (key, costs, expected, left) in rows {
        let checks: Vec<String> = costs
            .iter()
            .map(|cost| format!(r#"{{"policy":"lone","key":"{key}","cost":{cost}}}"#))
            .collect();
        let batch = format!(r#"{{"checks":[{}]}}"#, checks.join(","));
        let reply = server.post("/v1/check/batch", &batch).json();
        let allowed: Vec<u8> = reply["answers"]
            .as_array()
            .expect("answers")
            .iter()
            .map(|answer| (answer["allowed"] == true).into())
            .collect();
        assert_eq!(json!(allowed).to_string(), expected, "{reply}");
        assert_eq!(check(&server, "lone", key)[0], left > 0, "{key}");
    }
}

#[test]
fn ids_costs_and_waits_use_the_store() {
    let redis = start_redis();
    let nodes = nodes("costs", &redis);
    let ask = |node: usize, rest: &str| {
        let body = format!(r#"{{"policy":"here","key":"bob",{rest}}}"#);
        let answer = nodes[node].check(&body).json();
        assert_eq!(answer["decided"], "exact", "{answer}");
        (answer["allowed"] == true, answer["remaining"].as_u64().expect("a number"))
    };
    assert_eq!(ask(0, r#""cost":2,"id":"order-1""#), (true, 7));
    assert_eq!(ask(1, r#""cost":2,"id":"order-1""#), (true, 7), "charged once");
    let reused = nodes[1].check(r#"{"policy":"here","key":"bob","cost":1,"id":"order-1"}"#);
    reused.refuses(409, Some("id"), "used with another cost");
    assert_eq!(ask(1, r#""cost":4,"force":true"#), (true, 3));
    assert_eq!(ask(0, r#""cost":-1"#), (true, 4));
    assert_eq!(ask(0, r#""cost":5"#), (false, 4));
    assert_eq!(ask(1, r#""cost":0"#), (true, 4));
    // A request with `max_wait_ms` is admitted when units are available, on either node.
    for node in [0, 1, 0] {
        let body = r#"{"policy":"slow","key":"bob","max_wait_ms":60000}"#;
        let answer = nodes[node].check(body).json();
        assert_eq!((&answer["allowed"], &answer["decided"]), (&json!(true), &json!("exact")));
    }
    let body = r#"{"policy":"here","key":"bob","cost":9,"max_wait_ms":1000}"#;
    assert_eq!(nodes[0].check(body).json()["allowed"], false, "a wait of an hour is too long");
}

#[test]
fn survives_store_outage_and_reconnects() {
    let mut redis = start_redis();
    let nodes = nodes("outage", &redis);
    assert_eq!(check(&nodes[0], "here", "alice"), json!([true, "exact", 8]));
    assert_eq!(check(&nodes[1], "open", "alice"), json!([true, "exact", 1]));
    assert_eq!(check(&nodes[1], "closed", "alice"), json!([true, "exact", 1]));

    redis.kill();
    until(&nodes, "local");
    // One of this node's three units is used, because it was admitted here before.
    for left in [1, 0] {
        assert_eq!(check(&nodes[0], "here", "alice"), json!([true, "local", left]));
    }
    assert_eq!(check(&nodes[0], "here", "alice"), json!([false, "local", 0]));
    assert_eq!(check(&nodes[1], "here", "alice"), json!([true, "local", 2]));
    for server in &nodes {
        for _ in 0..5 {
            assert_eq!(check(server, "open", "alice"), json!([true, "failed-open", null]));
            assert_eq!(check(server, "closed", "alice"), json!([false, "failed-closed", null]));
            assert_eq!(forward(server, "/open"), (200, None));
            assert_eq!(forward(server, "/closed"), (503, Some(REDUCED.into())));
        }
        assert_eq!(server.admin_get("/readyz").status, 200);
        assert_eq!(server.metric("tidegate_store_up"), Some(0));
        let failed = |kind: &str| {
            server.metric(&format!("tidegate_store_failures_total{{kind=\"{kind}\"}}"))
        };
        assert!(failed("down") > Some(10), "{:?}", failed("down"));
    }

    for server in &nodes {
        let log = wait_for(|| Some(server.log()).filter(|log| log.contains("store unavailable")));
        assert!(log.contains("store unavailable; applying on_store_failure"), "{log}");
    }
    redis.restart();
    until(&nodes, "exact");
    // The store is empty after a restart, as documented.
    assert_eq!(check(&nodes[1], "here", "alice"), json!([true, "exact", 8]));
    assert_eq!(check(&nodes[0], "closed", "alice"), json!([true, "exact", 1]));
    for server in &nodes {
        let log =
            wait_for(|| Some(server.log()).filter(|log| log.contains("store available again")));
        assert!(!log.contains(PASSWORD), "{log}");
        assert_eq!(server.metric("tidegate_store_up"), Some(1));
        let up = format!("tidegate_store_server_up{{server=\"{}\"}}", redis.address());
        assert_eq!(server.metric(&up), Some(1));
        let lost = "tidegate_store_data_losses_total{reason=\"restart\"}";
        wait_for(|| (server.metric(lost) == Some(1)).then_some(()));
        wait_for(|| server.log().contains("the store lost data").then_some(()));
    }
}

#[test]
fn reports_store_that_rejects_commands() {
    let redis = start_redis();
    let [server, _] = nodes("refuses", &redis);
    redis.run(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(check(&server, "closed", "alice"), json!([false, "failed-closed", null]));
    let refused = "tidegate_store_failures_total{kind=\"refused\"}";
    assert_eq!(server.metric(refused), Some(1));
    wait_for(|| (server.metric("tidegate_store_up") == Some(0)).then_some(()));
    assert_eq!(server.admin_get("/readyz").status, 200);
    wait_for(|| server.log().contains("the store refuses: OOM ").then_some(()));
    redis.run(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(check(&server, "closed", "alice"), json!([true, "exact", 1]));
    wait_for(|| (server.metric("tidegate_store_up") == Some(1)).then_some(()));
    wait_for(|| server.log().contains("store available again").then_some(()));
}

/// Regression: nothing was logged, and `tidegate_store_up` stayed 1.
#[test]
fn logs_missing_store_permissions() {
    let redis = start_redis();
    let rules = ["ACL", "SETUSER", "limiter", "on", ">pass", "~*", "+@all"];
    redis.run(&rules);
    let url = format!("redis://limiter:pass@{}", redis.address());
    let server = node("shared-live-acl", &url).run();
    assert_eq!(check(&server, "closed", "alice"), json!([true, "exact", 1]));
    redis.run(&["ACL", "SETUSER", "limiter", "-set"]);
    assert_eq!(check(&server, "closed", "bob"), json!([false, "failed-closed", null]));
    wait_for(|| (server.metric("tidegate_store_up") == Some(0)).then_some(()));
    let reason = "the store refuses: ERR The user executing the script can't";
    wait_for(|| server.log().contains(reason).then_some(()));
    redis.run(&["ACL", "SETUSER", "limiter", "+set"]);
    assert_eq!(check(&server, "closed", "bob"), json!([true, "exact", 1]));
    wait_for(|| (server.metric("tidegate_store_up") == Some(1)).then_some(()));
    wait_for(|| server.log().contains("store available again").then_some(()));
    assert_eq!(server.log().matches(reason).count(), 1, "{}", server.log());
}

#[test]
fn logs_foreign_values_without_keys() {
    let redis = start_redis();
    let server = node("shared-live-foreign", &redis.url_with_login()).run();
    redis.run(&["SET", "tg:2:{sk_live_1}closed/l1h", "hello"]);
    for _ in 0..3 {
        assert_eq!(check(&server, "closed", "sk_live_1"), json!([false, "failed-closed", null]));
    }
    let is_it = |line: &&str| line.contains("holds a value that tidegate did not write");
    let line = wait_for(|| server.log().lines().find(is_it).map(str::to_owned));
    assert!(line.contains("policy `closed`, key with SHA-256 "), "{line}");
    assert!(!line.contains("sk_live_1"), "{line}");
    assert_eq!(
        server.log().lines().filter(is_it).count(),
        1,
        "the warning is not repeated immediately"
    );
    assert_eq!(check(&server, "closed", "other"), json!([true, "exact", 1]));
}

/// The rankings by volume show which keys load the store.
#[test]
fn ranks_keys_by_calls_to_the_store() {
    let redis = start_redis();
    let server = node("shared-live-volume", &redis.url_with_login()).run();
    let top = wait_for(|| {
        // This policy remembers no denials, so every check is sent.
        check(&server, "slow", "alice");
        // A peek is not a request that is counted.
        server.check(r#"{"policy":"slow","key":"bob","cost":0}"#);
        let top = server.admin_get("/admin/v1/top?by=store_calls").json();
        Some(top).filter(|top| top["keys"]["entries"] != json!([]))
    });
    assert_eq!(top["sampled_one_in"], 32);
    let [first] = top["keys"]["entries"].as_array().expect("a list").as_slice() else {
        panic!("one key: {top}");
    };
    assert_eq!((&first["policy"], &first["name"]), (&json!("slow"), &json!("alice")));
    assert_eq!(first["count"], 32);
}

/// Regression: the durations included denials from memory, which made the store look faster than it
/// is.
#[test]
fn store_duration_counts_only_sent_requests() {
    let redis = start_redis();
    let server = node("shared-live-duration", &redis.url_with_login()).run();
    let metric = |name: &str| server.metric(&format!("tidegate_store_{name}")).expect("a metric");
    wait_for(|| {
        check(&server, "closed", "alice");
        (metric("deny_cache_hits_total") >= 5).then_some(())
    });
    let sent = metric("requests_total") - metric("deny_cache_hits_total");
    assert_eq!(metric("duration_seconds_count"), sent);
}

/// A policy with `lease: auto` answers a hot key from leased units, and a policy without it does
/// not. A server that is stopped gives its units back.
#[test]
fn hot_keys_are_leased_where_the_policy_says_so() {
    let redis = start_redis();
    let config = format!(
        "store: {}\nstore_timeout: 5s\npolicies:\n  \
         - {{ name: leased, key: \"{{client_ip}}\", limits: [\"100000 per 1h\"], lease: auto }}\n  \
         - {{ name: plain, key: \"{{client_ip}}\", limits: [\"100000 per 1h\"] }}\n",
        redis.url_with_login()
    );
    let start = |name: &str| Start::new(name).config(&config).run();
    let (mut one, two) = (start("shared-live-lease-1"), start("shared-live-lease-2"));
    let hits =
        |server: &Server| server.metric("tidegate_store_lease_hits_total").expect("a metric");
    let send = |server: &Server, policy: &str| {
        let checks = vec![format!(r#"{{"policy":"{policy}","key":"alice"}}"#); 100];
        let batch = format!(r#"{{"checks":[{}]}}"#, checks.join(","));
        let reply = server.post("/v1/check/batch", &batch).json();
        let answers = reply["answers"].as_array().expect("answers").clone();
        assert!(answers.iter().all(|it| it["allowed"] == true && it["decided"] == "exact"));
        answers.len()
    };
    for _ in 0..10 {
        send(&one, "plain");
    }
    assert_eq!(hits(&one), 0);
    let mut used = 0;
    wait_for(|| {
        used += send(&one, "leased");
        (hits(&one) > 0).then_some(())
    });
    assert!(one.metric("tidegate_store_lease_granted_units_total").expect("a metric") > 0);
    one.signal("-TERM");
    assert_eq!(one.ended(), 0);
    let left = check(&two, "leased", "alice")[2].as_u64().expect("a number");
    assert!(left < 100_000 - u64::try_from(used).expect("few"), "{left} after {used}");
}

fn take(server: &Server) -> Reply {
    server.post("/v1/permits", r#"{"policy":"jobs","key":"alice","ttl_ms":20000}"#)
}

fn path_of(reply: &Reply) -> String {
    assert_eq!((reply.status, &reply.json()["decided"]), (201, &json!("exact")), "{reply:?}");
    reply.header("location").expect("a Location header").to_owned()
}

#[test]
fn permits_are_valid_on_every_node() {
    let mut redis = start_redis();
    let nodes = nodes("permits", &redis);
    let paths: Vec<String> = (0..6).map(|number| path_of(&take(&nodes[number % 2]))).collect();
    for server in &nodes {
        let denied = take(server);
        assert_eq!((denied.status, denied.json()["type"].as_str()), (429, Some(EXCEEDED)));
    }
    // Acquired on the first node, renewed and released on the second.
    let id = paths[0].rsplit('/').next().expect("an id");
    let renewed = nodes[1].ask("PUT", &paths[0], &[], "");
    assert_eq!((renewed.status, renewed.json()), (200, json!({"id": id, "ttl_ms": 20000})));
    let renewed = nodes[1].ask("PUT", &paths[0], &[JSON], r#"{"ttl_ms":30000}"#);
    assert_eq!(renewed.json(), json!({"id": id, "ttl_ms": 30000}));
    let too_long = nodes[1].ask("PUT", &paths[0], &[JSON], r#"{"ttl_ms":30001}"#);
    too_long.refuses(400, Some("ttl_ms"), "a lease is at most 30000 ms here");
    assert_eq!(nodes[1].ask("DELETE", &paths[0], &[], "").status, 204);
    for server in &nodes {
        for method in ["DELETE", "PUT"] {
            server.ask(method, &paths[0], &[], "").refuses(404, None, "unknown permit");
        }
    }
    path_of(&take(&nodes[0]));
    redis.kill();
    until(&nodes, "local");
    nodes[0].ask("DELETE", &paths[1], &[], "").refuses(503, None, "try again");
}

/// Regression: clients that disconnected while the store decided left their permits held.
#[test]
fn disconnected_clients_leave_no_permits() {
    let redis = start_redis();
    let nodes = nodes("hang-up", &redis);
    until(&nodes, "exact");
    let body = r#"{"policy":"jobs","key":"alice"}"#;
    let acquire = request("POST", "/v1/permits", &[JSON], body);
    let metric = |name: &str| nodes[0].metric(name).expect("a metric");
    // One of the operations that are sent may be a heartbeat.
    let sent = || metric("tidegate_store_sent_total");
    let requests = || metric("tidegate_store_requests_total");
    let (sent_before, before) = (sent(), requests());
    // A pause of all commands would also delay the command that ends it.
    redis.run(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    let clients: Vec<Client> = (0..5)
        .map(|_| {
            let mut client = Client::connect(nodes[0].http());
            client.send(&acquire);
            client
        })
        .collect();
    wait_for(|| (requests() >= before + 5 && sent() >= sent_before + 5).then_some(()));
    wait_for(|| (metric("tidegate_store_queue_depth") == 0).then_some(()));
    drop(clients);
    wait_for(|| (metric("tidegate_connections{front=\"http\"}") == 0).then_some(()));
    redis.run(&["CLIENT", "UNPAUSE"]);
    wait_for(|| (metric("tidegate_store_deferred_releases_total") == 5).then_some(()));
    let held = || {
        let key = nodes[1].admin_get("/admin/v1/policies/jobs/keys/alice").json();
        6 - key["limits"][0]["remaining"].as_u64().expect("a number")
    };
    wait_for(|| (held() == 0).then_some(()));
}

/// Changes through the other node are mirrored here with the next decision for the key.
#[test]
fn fallback_memory_mirrors_the_store() {
    let mut redis = start_redis();
    let nodes = nodes("warm", &redis);
    until(&nodes, "exact");
    for _ in 0..3 {
        check(&nodes[0], "here", "alice");
        nodes[0].check(r#"{"policy":"here","key":"bob","id":"order-1"}"#);
    }
    let paths = [take(&nodes[0]), take(&nodes[0])].map(|reply| path_of(&reply));
    let mut client = Client::connect(nodes[1].admin());
    client.send(&request("DELETE", "/admin/v1/policies/here/keys/alice", &[], ""));
    assert_eq!(client.reply("DELETE").json()["reset"], true);
    for path in &paths {
        assert_eq!(nodes[1].ask("DELETE", path, &[], "").status, 204);
    }
    assert_eq!(check(&nodes[0], "here", "alice"), json!([true, "exact", 8]));
    path_of(&take(&nodes[0]));
    redis.kill();
    until(&nodes, "local");
    // One of this node's three units is used, and one of its two permits is held.
    assert_eq!(check(&nodes[0], "here", "alice"), json!([true, "local", 1]));
    assert_eq!((take(&nodes[0]).status, take(&nodes[0]).status), (201, 429));
    // Charged once, and admitted again.
    for left in [1, 0] {
        assert_eq!(check(&nodes[0], "here", "bob"), json!([true, "local", left]));
    }
    let again = nodes[0].check(r#"{"policy":"here","key":"bob","id":"order-1"}"#).json();
    assert_eq!((&again["allowed"], &again["decided"]), (&json!(true), &json!("local")));
    assert_eq!(check(&nodes[0], "here", "bob"), json!([false, "local", 0]));
}

#[test]
fn admin_peeks_and_resets_shared_keys() {
    let redis = start_redis();
    let nodes = nodes("operators", &redis);
    for _ in 0..2 {
        check(&nodes[0], "closed", "alice");
    }
    assert_eq!(check(&nodes[1], "closed", "alice"), json!([false, "exact", 0]));
    let key = "/admin/v1/policies/closed/keys/alice";
    let left = |node: usize| nodes[node].admin_get(key).json()["limits"][0]["remaining"].clone();
    assert_eq!((left(0), left(1)), (json!(0), json!(0)));
    let mut client = Client::connect(nodes[1].admin());
    client.send(&request("DELETE", key, &[], ""));
    assert_eq!(client.reply("DELETE").json()["reset"], true);
    assert_eq!((left(0), left(1)), (json!(2), json!(2)));
    // The reset applies immediately on the node that received it, and on others when their cached
    // denials have expired.
    assert_eq!(check(&nodes[1], "closed", "alice"), json!([true, "exact", 1]));
    wait_for(|| (check(&nodes[0], "closed", "alice")[0] == true).then_some(()));
}

#[test]
fn rejects_unusable_store_at_start() {
    let redis = start_redis();
    let wrong = redis.url_with_login().replace(PASSWORD, "wr0ng-p4ssw0rd");
    let cluster = redis.url_with_login().replace("redis://", "redis-cluster://");
    for (test, url, part) in
        [("password", &wrong, "credentials"), ("cluster", &cluster, "not a cluster")]
    {
        let (code, message) = node(&format!("shared-live-wrong-{test}"), url).fails();
        assert_eq!(code, 1, "{message}");
        assert!(message.starts_with("error: store: ") && message.contains(part), "{message}");
        assert!(!message.contains("p4ssw0rd"), "{message}");
    }
    // Every state expires at most a sixteenth of a window late. Every key has the configured prefix
    // and expires.
    let server = node("shared-live-keys", &redis.url_with_login()).run();
    check(&server, "here", "alice");
    wait_for(|| (server.metric("tidegate_store_nodes") == Some(1)).then_some(()));
    let mut keys: Vec<String> = redis.command(&["KEYS", "*"]);
    keys.sort();
    assert_eq!(keys, ["tg:2:nodes", "tg:2:{alice}here/l1h"]);
    for (key, most) in keys.iter().zip([15_002, 3_825_002]) {
        let ttl: i64 = redis.command(&["PTTL", key]);
        assert!((1..=most).contains(&ttl), "{key}: {ttl}");
    }
}

/// A node resolves a plain value even if only another node has counted its key.
#[test]
fn plain_value_resolves_in_shared_store() {
    let redis = start_redis();
    let nodes = nodes("plain-value", &redis);
    let peek = || nodes[1].admin_get("/admin/v1/policies/here/keys?key=2001:db8::99").json();
    let shown =
        |answer: &Value| json!([answer["key"], answer["seen"], answer["limits"][0]["remaining"]]);
    assert_eq!(shown(&peek()), json!(["2001:db8::/64", false, 9]));
    nodes[0].check(r#"{"attributes":{"path":"/here","client_ip":"2001:db8::1"}}"#);
    assert_eq!(shown(&peek()), json!(["2001:db8::/64", true, 8]));
}
