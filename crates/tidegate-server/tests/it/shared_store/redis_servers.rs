//! A Redis server that requires a password, as the servers of production do.

use tidegate_testkit::redis::RedisServer;

/// Its password.
pub const PASSWORD: &str = "s3cr3t-p4ssw0rd";

/// Starts an empty server.
pub fn start_redis() -> RedisServer {
    RedisServer::with_password(PASSWORD, &[])
}
