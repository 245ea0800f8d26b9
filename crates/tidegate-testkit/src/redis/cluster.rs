//! A cluster of three primaries, with or without replicas.

use super::{Engine, RedisServer};
use crate::{eventually, free_port};

/// A running cluster.
pub struct Cluster {
    /// The first three nodes are initially primaries, and the rest are replicas.
    pub nodes: Vec<RedisServer>,
}

const PRIMARIES: usize = 3;
const SLOTS: usize = 16384;

impl Cluster {
    /// Starts three primaries.
    pub fn start(engine: Engine) -> Self {
        Cluster::with(0, |arguments| RedisServer::with(engine, arguments))
    }

    /// Starts three primaries and a replica of each.
    pub fn with_replicas(engine: Engine) -> Self {
        Cluster::with(PRIMARIES, |arguments| RedisServer::with(engine, arguments))
    }

    /// Starts three primaries, the first of them with a replica, that require this password.
    pub fn with_password(password: &str) -> Self {
        Cluster::with(1, |arguments| RedisServer::with_password(password, arguments))
    }

    fn with(replicas: usize, start: impl Fn(&[&str]) -> RedisServer) -> Self {
        let node = |_| {
            let bus = free_port().to_string();
            let clustered =
                ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-port"];
            let mut arguments = clustered.to_vec();
            arguments.push(&bus);
            (start(&arguments), bus)
        };
        let (nodes, buses): (Vec<RedisServer>, Vec<String>) =
            (0..PRIMARIES + replicas).map(node).unzip();
        let cluster = Cluster { nodes };
        cluster.introduce(&buses);
        cluster.hand_out_slots();
        for replica in PRIMARIES..PRIMARIES + replicas {
            let primary = cluster.id(replica - PRIMARIES);
            let node = &cluster.nodes[replica];
            node.run(&["CLUSTER", "REPLICATE", &primary]);
            eventually("a replica follows", || node.info("master_link_status") == "up");
        }
        cluster.settle();
        cluster
    }

    /// Returns the URL, without credentials.
    pub fn url(&self) -> String {
        format!("redis-cluster://{},{}", self.nodes[0].address(), self.nodes[1].address())
    }

    /// Returns the id of a node.
    pub fn id(&self, node: usize) -> String {
        self.nodes[node].command(&["CLUSTER", "MYID"])
    }

    /// Returns the primary that initially owns a slot.
    pub fn primary_of(slot: usize) -> usize {
        slot * PRIMARIES / SLOTS
    }

    fn introduce(&self, buses: &[String]) {
        for (index, node) in self.nodes.iter().enumerate() {
            let epoch = (index + 1).to_string();
            node.run(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
        }
        for (node, bus) in self.nodes.iter().zip(buses).skip(1) {
            let port = node.port.to_string();
            self.nodes[0].run(&["CLUSTER", "MEET", "127.0.0.1", &port, bus]);
        }
        for node in &self.nodes {
            eventually("all know each other", || {
                let known: String = node.command(&["CLUSTER", "NODES"]);
                known.lines().filter(|line| !line.contains("handshake")).count() == self.nodes.len()
            });
        }
    }

    fn hand_out_slots(&self) {
        for (index, node) in self.nodes[..PRIMARIES].iter().enumerate() {
            let first = (0..SLOTS).find(|slot| Cluster::primary_of(*slot) == index);
            let first = first.expect("each has some");
            let last = (first..SLOTS).take_while(|slot| Cluster::primary_of(*slot) == index).last();
            let (first, last) = (first.to_string(), last.expect("each has some").to_string());
            node.run(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
        }
    }

    /// Waits until every server agrees on the owner of every slot.
    fn settle(&self) {
        for node in &self.nodes {
            eventually("the cluster is healthy", || {
                let info: String = node.command(&["CLUSTER", "INFO"]);
                let all = format!("cluster_slots_assigned:{SLOTS}");
                let size = format!("cluster_size:{PRIMARIES}");
                info.contains("cluster_state:ok") && info.contains(&all) && info.contains(&size)
            });
        }
    }

    /// Moves a slot with all its keys from one primary to another, one key at a time. `midway` is
    /// called after each key.
    pub fn migrate(&self, slot: u16, from: usize, to: usize, mut midway: impl FnMut()) {
        let slot = slot.to_string();
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let (from_id, to_id) = (self.id(from), self.id(to));
        target.run(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
        source.run(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
        let port = target.port.to_string();
        midway();
        loop {
            let keys: Vec<String> = source.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"]);
            let Some(key) = keys.first() else { break };
            source.run(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
            midway();
        }
        // The new owner is updated first, so that no server refuses to serve the keys.
        for node in [target, source].into_iter().chain(&self.nodes[..PRIMARIES]) {
            node.run(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
        }
    }
}
