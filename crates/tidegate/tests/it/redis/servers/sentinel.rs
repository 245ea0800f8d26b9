//! One Sentinel that watches a primary and its replica.

use std::fs;
use std::path::Path;

use super::{Engine, Server, eventually_now};

/// The Sentinel, and whom it watches.
pub struct Sentinel {
    pub sentinel: Server,
    /// In no particular order: a failover changes who is primary.
    pub servers: [Server; 2],
}

/// What it calls the primary.
pub const NAME: &str = "the primary";

impl Sentinel {
    pub fn start() -> Self {
        let primary = Server::start(Engine::Redis);
        let port = primary.port.to_string();
        let replica = Server::with(Engine::Redis, &["--replicaof", "127.0.0.1", &port]);
        eventually_now("the replica follows", || replica.info("master_link_status") == "up");
        let watched = primary.port;
        let sentinel = Server::launch(Path::new("redis-sentinel"), |port, dir| {
            let file = dir.join("sentinel.conf");
            let lines = format!(
                "port {port}\nbind 127.0.0.1\ndir {dir}\n\
                 sentinel monitor \"{NAME}\" 127.0.0.1 {watched} 1\n\
                 sentinel down-after-milliseconds \"{NAME}\" 500\n\
                 sentinel failover-timeout \"{NAME}\" 5000\n",
                dir = dir.display(),
            );
            fs::write(&file, lines).expect("a file");
            vec![file.display().to_string()]
        });
        let stand = Sentinel { sentinel, servers: [primary, replica] };
        eventually_now("the Sentinel knows the replica", || {
            let replicas: Vec<::redis::Value> =
                stand.sentinel.command(&["SENTINEL", "replicas", NAME]);
            replicas.len() == 1
        });
        stand
    }

    pub fn url(&self) -> String {
        format!("redis-sentinel://127.0.0.1:{}/the%20primary", self.sentinel.port)
    }

    /// Which of the servers is the primary, by what the Sentinel says.
    pub fn primary(&self) -> usize {
        let address: Vec<String> =
            self.sentinel.command(&["SENTINEL", "get-master-addr-by-name", NAME]);
        let port: u16 = address[1].parse().expect("a port");
        self.servers.iter().position(|server| server.port == port).expect("one of them")
    }
}
