//! The Redis servers of `tidegate-testkit`, and stores over them.

mod proxy;
mod tls;

use std::time::{Duration, Instant};

use tidegate::redis::{RedisOptions, RedisStore};
use tidegate::unstable::redis::ACL_RULES;
use tidegate_testkit::PATIENCE;

pub use proxy::Proxy;
pub use tidegate_testkit::redis::{
    Cluster, Engine, NAME, RedisServer as Server, Sentinel, on_each,
};
pub use tidegate_testkit::{eventually as eventually_now, free_port};
pub use tls::Certificates;

/// Adds the user `tidegate` with the password `pass` and the documented permissions.
pub fn add_documented_user(server: &Server) {
    let mut command = vec!["ACL", "SETUSER", "tidegate", "on", ">pass"];
    command.extend(ACL_RULES.split_whitespace());
    server.run(&command);
}

/// Options with a timeout that suffices on a loaded machine.
pub fn options(url: impl Into<String>) -> RedisOptions {
    RedisOptions { timeout: Duration::from_secs(5), ..RedisOptions::new(url) }
}

/// Connects to the store at `url`, which must be up.
pub async fn connect(url: impl Into<String>) -> RedisStore {
    connect_with(options(url)).await
}

pub async fn connect_with(options: RedisOptions) -> RedisStore {
    let store = RedisStore::connect(options).await.unwrap_or_else(|error| panic!("{error}"));
    assert!(store.stats().up, "{:?}", store.last_error());
    store
}

/// Runs a test on two threads.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(test)
}

/// Runs a test on one thread.
pub fn run_on_one_thread<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(test)
}

/// Runs a test on one thread or on two.
pub fn run_on<T>(one_thread: bool, test: impl Future<Output = T>) -> T {
    if one_thread { run_on_one_thread(test) } else { run(test) }
}

/// Waits until a condition holds, and fails if that takes too long.
pub async fn eventually(description: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "never: {description}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
