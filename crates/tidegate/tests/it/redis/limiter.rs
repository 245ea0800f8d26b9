//! The limiter over a real server: waiting, releases on drop, and decisions while the server is
//! down.

use std::time::Duration;

use tidegate::{Check, Decided, Limiter, OnStoreFailure};

use super::servers::{Engine, Server, connect, eventually, run};
use super::{limit, remaining};

#[test]
fn dropped_permits_are_released_in_the_background() {
    let server = Server::start(Engine::Redis);
    run(async {
        let store = connect(server.url()).await;
        let limiter = Limiter::with_store(store.clone());
        let tokens = limit("100 per 1h sliding-log");
        let reserved = limiter.reserve_async("a", &tokens, 40).await.expect("a decision");
        reserved.or_deny().expect("room").commit_async(25).await.expect("settled");
        assert_eq!(remaining(&store, "a", &tokens).await, 75);
        drop(limiter.reserve_async("a", &tokens, 40).await.expect("a decision"));
        eventually("the estimate is given back", async || {
            remaining(&store, "a", &tokens).await == 75
        })
        .await;

        let one = limit("1 concurrent lease 1h");
        let checks = [Check::new("a", &one, 1)];
        let permit = limiter.acquire_async(&checks).await.expect("a decision").or_deny();
        // Drops the permit on a thread without a runtime.
        std::thread::spawn(|| drop(permit.expect("free"))).join().expect("a drop does not panic");
        let waited = limiter.acquire_wait(&checks, Duration::from_secs(60)).await;
        assert!(waited.expect("a decision").permit().is_some());
    });
}

#[test]
fn waiters_pass_at_the_server_time() {
    let server = Server::start(Engine::Redis);
    run(async {
        let store = connect(server.url()).await;
        let limiter = Limiter::builder()
            .jitter(Duration::from_millis(1))
            .build_with_store(store)
            .expect("it");
        let limit = limit("2 per 50ms sliding-log");
        let checks = [Check::new("a", &limit, 1)];
        let wait = || limiter.wait(&checks, Duration::from_secs(60));
        let (a, b, c, d) = tokio::join!(wait(), wait(), wait(), wait());
        for verdict in [a, b, c, d] {
            verdict.expect("a decision").or_deny().expect("its turn");
        }
        let never = limiter.wait(&[Check::new("a", &limit, 3)], Duration::from_secs(60)).await;
        assert!(!never.expect("a decision").allowed);
    });
}

#[test]
fn node_decides_locally_during_an_outage() {
    let mut server = Server::start(Engine::Redis);
    run(async {
        let store = connect(server.url()).await;
        let builder = Limiter::builder().on_store_failure(OnStoreFailure::Local).nodes(2);
        let limiter = builder.build_with_store(store).expect("memory");
        let limit = limit("6 per 1h sliding-log");
        let check = async |cost| limiter.check_async("a", &limit, cost).await.expect("a decision");
        assert_eq!(check(2).await.decided, Decided::Exact);
        server.kill();
        let local = check(1).await;
        assert_eq!((local.decided, local.allowed, local.remaining), (Decided::Local, true, 0));
        assert!(!check(1).await.allowed);
        server.restart();
        eventually("the server is back", async || check(0).await.decided == Decided::Exact).await;
    });
}
