//! The setup of docs/redis.md: two nodes on one machine that share one limit.

use std::collections::HashMap;
use std::net::SocketAddr;

use serde_json::json;
use tidegate_testkit::free_address;

use super::redis_servers::start_redis;
use crate::server_harness::{Server, Start};

/// The addresses of the fronts without a flag.
const DEFAULTS: [(&str, &str); 4] = [
    ("--http", "127.0.0.1:8080"),
    ("--grpc", "127.0.0.1:8081"),
    ("--resp", "127.0.0.1:6380"),
    ("--admin", "127.0.0.1:9090"),
];

/// Test machines can be slow, so the store gets a long timeout.
const CONFIG: &str = "store_timeout: 5s\npolicies: [{ name: all, key: all, limits: 9 per 1s }]\n";

/// Every address of the page is replaced by a free one, and equal addresses by the same one. So
/// nodes that conflict on the page conflict here, and the second does not start.
#[test]
fn documented_two_node_setup_runs() {
    let page = include_str!("../../../../../docs/redis.md");
    let redis = start_redis();
    let mut addresses: HashMap<&str, SocketAddr> = HashMap::new();
    let mut start = |flags: &'static str| {
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let mut args = Vec::new();
        for (flag, default) in DEFAULTS {
            let given = flags.windows(2).find(|pair| pair[0] == flag);
            let address = given.map_or(default, |pair| pair[1]);
            args.push(flag.to_owned());
            args.push(addresses.entry(address).or_insert_with(free_address).to_string());
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let port = addresses.len().to_string();
        let node = Start::new(&format!("shared-documented-{port}")).config(CONFIG);
        node.args(&args).env("TIDEGATE_STORE", &redis.url_with_login()).run()
    };
    let commands = page.lines().filter_map(|line| line.split_once(" tidegate serve "));
    let nodes: Vec<Server> = commands.map(|(_, flags)| start(flags)).collect();
    assert_eq!(nodes.len(), 2, "the page starts two nodes");
    let commands = page.lines().filter_map(|line| line.strip_prefix("curl -d '"));
    let bodies: Vec<&str> = commands.filter_map(|rest| rest.split('\'').next()).collect();
    assert_eq!(bodies.len(), 2, "the page sends a check to each node");
    let answers: Vec<_> =
        nodes.iter().zip(bodies).map(|(node, body)| node.check(body).json()).collect();
    let outcomes: Vec<_> = answers.iter().map(|a| json!([a["decided"], a["remaining"]])).collect();
    assert_eq!(outcomes, [json!(["exact", 4]), json!(["exact", 3])]);
}
