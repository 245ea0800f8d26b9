//! Several workers that call one API, together at most 20 times per second. The count is in Redis.
//! While Redis is unavailable, each of the three workers uses a third of the limit.
//!
//! ```text
//! $ redis-server --port 6379 --save '' &
//! $ cargo run -p tidegate-examples --bin redis_worker redis://127.0.0.1:6379
//! ```

use std::error::Error;
use std::time::Duration;

use tidegate::redis::{RedisOptions, RedisStore};
use tidegate::{Check, Limit, Limiter, OnStoreFailure, Store};

static PER_SECOND: Limit = Limit::per_second(20);

async fn call<S: Store>(limiter: &Limiter<S>, job: u32) -> Result<(), Box<dyn Error>> {
    let checks = [Check::new("api", &PER_SECOND, 1)];
    limiter.wait(&checks, Duration::from_secs(10)).await?.or_deny()?;
    println!("job {job}");
    Ok(())
}

async fn limiter(url: &str) -> Result<Limiter<RedisStore>, Box<dyn Error>> {
    let store = RedisStore::connect(RedisOptions::new(url)).await?;
    let builder = Limiter::builder().on_store_failure(OnStoreFailure::Local).nodes(3);
    Ok(builder.jitter(Duration::from_millis(20)).build_with_store(store)?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or("redis://127.0.0.1:6379".into());
    let limiter = limiter(&url).await?;
    for job in 0..60 {
        call(&limiter, job).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::process::{Child, Command, Stdio};

    use tidegate::Decided;

    use super::*;

    /// A Redis server. Dropping it ends the process.
    struct Server(Child);

    impl Drop for Server {
        fn drop(&mut self) {
            drop(self.0.kill());
            drop(self.0.wait());
        }
    }

    fn server() -> (Server, String) {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--save", "", "--appendonly", "no"]);
        let child = command.stdout(Stdio::null()).spawn().expect("redis-server is installed");
        (Server(child), format!("redis://127.0.0.1:{port}"))
    }

    #[tokio::test]
    async fn workers_share_the_limit_and_fall_back_to_a_third() {
        let (server, url) = server();
        let (one, other) =
            (limiter(&url).await.expect("a limiter"), limiter(&url).await.expect("a limiter"));
        let peek = async |limiter: &Limiter<RedisStore>| {
            limiter.peek_async("api", &PER_SECOND).await.expect("an answer")
        };
        // Decisions are local until the server has started.
        while peek(&one).await.decided != Decided::Exact
            || peek(&other).await.decided != Decided::Exact
        {
            tokio::task::yield_now().await;
        }
        for job in 0..15 {
            call(&one, 2 * job).await.expect("admitted within the wait");
            call(&other, 2 * job + 1).await.expect("admitted within the wait");
        }
        drop(server);
        let local = one.check_async("another api", &PER_SECOND, 1).await.expect("an answer");
        assert_eq!((local.allowed, local.decided), (true, Decided::Local));
        assert_eq!(local.remaining, 5, "a third of 20, less one");
    }
}
