//! A Redis server that requires a password, as in production.

use tidegate_testkit::redis::RedisServer;

/// The password of the server.
pub const PASSWORD: &str = "s3cr3t-p4ssw0rd";

/// Starts an empty server.
pub fn start_redis() -> RedisServer {
    RedisServer::with_password(PASSWORD, &[])
}
