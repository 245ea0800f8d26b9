//! Servers that share a store know each other, and whether their policies agree.

use serde_json::{Value, json};

use super::redis_servers::start_redis;
use super::{POLICIES, check};
use crate::server_harness::{Server, Start, wait_for};

/// Starts a server whose number of nodes is counted in the store. `limit` is that of the policy
/// `extra`.
fn start(test: &str, store: &str, limit: u32) -> Server {
    Start::new(&format!("shared-fleet-{test}")).config(&config(store, limit)).run()
}

fn config(store: &str, limit: u32) -> String {
    let extra = format!(
        "  - {{ name: extra, match: {{ path: /x }}, key: all, limits: [\"{limit} per 1h\"] }}\n"
    );
    format!("store: {store}\nstore_timeout: 5s\nnodes: auto\n{POLICIES}{extra}")
}

fn fleet(server: &Server) -> Value {
    server.admin_get("/admin/v1/fleet").json()
}

/// Waits until the server lists this number of nodes, and as many of them with other policies.
fn until(server: &Server, nodes: usize, differing: u64) -> Value {
    wait_for(|| {
        let fleet = fleet(server);
        let listed = fleet["nodes"].as_array().expect("a list").len();
        let is_it = listed == nodes && fleet["differing"] == differing;
        (is_it && server.metric("tidegate_store_config_drift") == Some(differing)).then_some(fleet)
    })
}

#[test]
fn servers_notice_different_policies() {
    let redis = start_redis();
    let store = redis.url_with_login();
    let mut nodes = ["a", "b"].map(|name| start(&format!("drift-{name}"), &store, 5));
    let port = |server: &Server| format!(":{}", server.http().port());
    for server in &nodes {
        let fleet = until(server, 2, 0);
        assert_eq!(server.metric("tidegate_store_nodes"), Some(2));
        let policies = server.admin_get("/admin/v1/policies").json();
        assert_eq!(policies["fingerprint"], fleet["fingerprint"]);
        let shown = fleet["fingerprint"].as_str().expect("text");
        assert_eq!(shown.len(), 16, "{shown}");
        let info = format!("tidegate_config_info{{fingerprint=\"{shown}\"}}");
        assert_eq!(server.metric(&info), Some(1));
        let listed = fleet["nodes"].as_array().expect("a list");
        let own: Vec<&Value> = listed.iter().filter(|node| node["own"] == true).collect();
        assert_eq!(own.len(), 1, "{fleet}");
        assert!(own[0]["name"].as_str().expect("text").ends_with(&port(server)), "{fleet}");
        assert!(listed.iter().all(|node| node["fingerprint"] == shown), "{fleet}");
    }

    // A changed limit on one of them is a drift that both notice.
    nodes[0].files.write("tidegate.yaml", config(&store, 6));
    for (server, other) in [(&nodes[0], &nodes[1]), (&nodes[1], &nodes[0])] {
        let fleet = until(server, 2, 1);
        for node in fleet["nodes"].as_array().expect("a list") {
            let is_other = node["name"].as_str().expect("text").ends_with(&port(other));
            assert_eq!(node["differs"], is_other, "{fleet}");
        }
        server.logged("servers that share the store have other policies than this one");
    }
    nodes[1].files.write("tidegate.yaml", config(&store, 6));
    for server in &nodes {
        until(server, 2, 0);
        server.logged("all servers that share the store have equal policies");
    }

    // A server that stops is not counted any more.
    nodes[1].signal("-TERM");
    assert_eq!(nodes[1].ended(), 0);
    until(&nodes[0], 1, 0);
}

#[test]
fn limits_are_divided_by_the_nodes_that_are_alive() {
    let mut redis = start_redis();
    let nodes =
        ["a", "b", "c"].map(|name| start(&format!("auto-{name}"), &redis.url_with_login(), 5));
    for server in &nodes {
        wait_for(|| (server.metric("tidegate_store_nodes") == Some(3)).then_some(()));
    }
    assert_eq!(check(&nodes[0], "here", "alice"), json!([true, "exact", 8]));
    redis.kill();
    for server in &nodes {
        wait_for(|| (server.metric("tidegate_store_up") == Some(0)).then_some(()));
        // A third of 9 for each: the last known number of nodes stays.
        assert_eq!(check(server, "here", "bob"), json!([true, "local", 2]));
        assert_eq!(server.metric("tidegate_store_nodes"), Some(3));
    }
}

/// Before the store was ever reached, the number of nodes is taken to be 1.
#[test]
fn unknown_number_of_nodes_is_one() {
    let server = start("unknown", "redis://127.0.0.1:1", 5);
    assert_eq!(check(&server, "here", "bob"), json!([true, "local", 8]));
    assert_eq!(server.metric("tidegate_store_nodes"), Some(0));
    assert_eq!(fleet(&server)["nodes"], json!([]));
}
