//! One Sentinel that monitors a primary and its replica.

use std::fs;
use std::path::Path;

use super::{Engine, RedisServer};
use crate::eventually;

/// A Sentinel, and the servers that it monitors.
pub struct Sentinel {
    /// The Sentinel itself.
    pub sentinel: RedisServer,
    /// The servers, in no particular order: a failover changes the primary.
    pub servers: [RedisServer; 2],
}

/// The name of the primary.
pub const NAME: &str = "the primary";

impl Sentinel {
    /// Starts a primary, its replica and a Sentinel.
    pub fn start() -> Self {
        let server = |arguments: &[&str]| RedisServer::with(Engine::Redis, arguments);
        Sentinel::with(server, "")
    }

    /// Starts a primary and its replica, which require this password, and a Sentinel, which does
    /// not.
    pub fn with_password(password: &str) -> Self {
        let server = |arguments: &[&str]| RedisServer::with_password(password, arguments);
        Sentinel::with(server, &format!("sentinel auth-pass \"{NAME}\" {password}\n"))
    }

    fn with(server: impl Fn(&[&str]) -> RedisServer, settings: &str) -> Self {
        let primary = server(&[]);
        let port = primary.port.to_string();
        let replica = server(&["--replicaof", "127.0.0.1", &port]);
        eventually("the replica follows", || replica.info("master_link_status") == "up");
        let watched = primary.port;
        let sentinel = RedisServer::launch(Path::new("redis-sentinel"), |port, dir| {
            let file = dir.join("sentinel.conf");
            let lines = format!(
                "port {port}\nbind 127.0.0.1\ndir {dir}\n\
                 sentinel monitor \"{NAME}\" 127.0.0.1 {watched} 1\n{settings}\
                 sentinel down-after-milliseconds \"{NAME}\" 500\n\
                 sentinel failover-timeout \"{NAME}\" 5000\n",
                dir = dir.display(),
            );
            fs::write(&file, lines).expect("a file");
            vec![file.display().to_string()]
        });
        let sentinel = Sentinel { sentinel, servers: [primary, replica] };
        eventually("the Sentinel knows the replica", || {
            let replicas: Vec<::redis::Value> =
                sentinel.sentinel.command(&["SENTINEL", "replicas", NAME]);
            replicas.len() == 1
        });
        sentinel
    }

    /// Returns the URL, without credentials.
    pub fn url(&self) -> String {
        format!("redis-sentinel://127.0.0.1:{}/the%20primary", self.sentinel.port)
    }

    /// Returns the index of the server that the Sentinel reports as primary.
    pub fn primary(&self) -> usize {
        let address: Vec<String> =
            self.sentinel.command(&["SENTINEL", "get-master-addr-by-name", NAME]);
        let port: u16 = address[1].parse().expect("a port");
        self.servers.iter().position(|server| server.port == port).expect("one of them")
    }
}
