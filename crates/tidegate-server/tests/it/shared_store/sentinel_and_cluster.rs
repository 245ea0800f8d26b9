//! Nodes over several servers, one of which can fail: behind Sentinel, and in a Cluster.

use std::thread;

use serde_json::json;

use tidegate_testkit::redis::{Cluster, RedisServer, Sentinel};

use super::redis_servers::PASSWORD;
use super::{POLICIES, check};
use crate::server_harness::{Client, Server, Start, request, wait_for};

/// Policies that give a request two keys.
const ACROSS: &str = r#"
  - name: user
    match: { path: /across }
    key: "{header:x-user}"
    limits: ["5 per 1h sliding-log"]
  - name: org
    match: { path: /across }
    key: "{header:x-org}"
    limits: ["2 per 1h sliding-log"]
"#;

/// Starts two of three nodes over these servers. They share every limit, and continue to share it
/// when the primary of `key` has failed.
fn share_and_survive(test: &str, url: &str, primary: &mut RedisServer, key: &str) {
    let url = url.replace("://", &format!("://:{PASSWORD}@"));
    let config = format!("store: {}\nstore_timeout: 5s\nnodes: 3\n{POLICIES}{ACROSS}", url);
    let nodes = ["a", "b"]
        .map(|name| Start::new(&format!("shared-many-{test}-{name}")).config(&config).run());
    // Nine are allowed in all, by the replies of both nodes.
    let allowed: usize = thread::scope(|scope| {
        let asking = (0..4).map(|number| {
            let server = &nodes[number % 2];
            scope.spawn(move || (0..9).filter(|_| check(server, "here", key)[0] == true).count())
        });
        let asking: Vec<_> = asking.collect();
        asking.into_iter().map(|thread| thread.join().expect("the thread finished")).sum()
    });
    assert_eq!(allowed, 9);
    batches_permits_and_operators(&nodes);

    // The replica continues with the counts that it has received.
    check(&nodes[0], "closed", key);
    assert_eq!(primary.command::<i64>(&["WAIT", "1", "5000"]), 1);
    primary.kill();
    let left = wait_for(|| {
        let answer = check(&nodes[1], "closed", key);
        (answer[1] == "exact").then(|| answer[2].clone())
    });
    assert_eq!(left, 0);
    for server in &nodes {
        wait_for(|| (check(server, "closed", key) == json!([false, "exact", 0])).then_some(()));
        assert_eq!(check(server, "here", key), json!([false, "exact", 0]));
        wait_for(|| (server.metric("tidegate_store_up") == Some(1)).then_some(()));
        assert!(!server.log().contains(PASSWORD));
    }
}

fn batches_permits_and_operators(nodes: &[Server; 2]) {
    // Twenty keys, in slots of all servers.
    let checks: Vec<String> =
        (0..20).map(|key| format!(r#"{{"policy":"open","key":"k{key}"}}"#)).collect();
    let batch = format!(r#"{{"checks":[{}]}}"#, checks.join(","));
    for left in [1, 0] {
        let reply = nodes[left].post("/v1/check/batch", &batch).json();
        for answer in reply["answers"].as_array().expect("answers") {
            let seen = json!([answer["decided"], answer["remaining"]]);
            assert_eq!(seen, json!(["exact", left]));
        }
    }
    // Two keys of one request in different slots: the limit that would admit it is not charged more
    // than the other.
    let across = r#"{"attributes":{"path":"/across","headers":{"x-user":"a","x-org":"b"}}}"#;
    for (node, allowed) in [(0, true), (1, true), (0, false), (1, false)] {
        let answer = nodes[node].check(across).json();
        assert_eq!(json!([answer["allowed"], answer["decided"]]), json!([allowed, "exact"]));
    }
    let user = nodes[1].admin_get("/admin/v1/policies/user/keys/a").json();
    assert_eq!(user["limits"][0]["remaining"], 3);
    let taken = nodes[0].post("/v1/permits", r#"{"policy":"jobs","key":"alice"}"#);
    let place = taken.header("location").expect("a Location header");
    assert_eq!(nodes[1].ask("PUT", place, &[], "").status, 200);
    assert_eq!(nodes[1].ask("DELETE", place, &[], "").status, 204);
    let key = "/admin/v1/policies/open/keys/k7";
    let left = |node: usize| nodes[node].admin_get(key).json()["limits"][0]["remaining"].clone();
    assert_eq!((left(0), left(1)), (json!(0), json!(0)));
    let mut client = Client::connect(nodes[1].admin());
    client.send(&request("DELETE", key, &[], ""));
    assert_eq!(client.reply("DELETE").json()["reset"], true);
    assert_eq!((left(0), left(1)), (json!(2), json!(2)));
}

#[test]
fn nodes_share_limit_through_sentinel_failover() {
    let mut sentinel = Sentinel::with_password(PASSWORD);
    let url = sentinel.url();
    share_and_survive("sentinel", &url, &mut sentinel.servers[0], "alice");
}

#[test]
fn nodes_share_limit_through_cluster_failover() {
    let mut cluster = Cluster::with_password(PASSWORD);
    let url = cluster.url();
    // The key is in slot 5061, which the first node owns.
    share_and_survive("cluster", &url, &mut cluster.nodes[0], "bar");
}
