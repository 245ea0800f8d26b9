//! The permits of acquires that nobody waits for any more are released.
//!
//! An acquire that timed out, or whose future was dropped, may still be carried out by the server.
//! Regression: its permit stayed held until the lease ended.

use std::pin::{Pin, pin};
use std::task::{Context, Waker};
use std::time::Duration;

use tidegate::redis::{RedisOptions, RedisStore};
use tidegate::{
    Check, Cost, Failure, Limit, PermitId, PermitOperation, Request, Store, StoreError, Verdict,
};
use tokio::task::JoinSet;

use super::limit;
use super::servers::{
    Cluster, Engine, Proxy, Server, connect, connect_with, eventually, options, run, run_on,
};

/// A limit that no test reaches, with a lease that outlasts every test.
fn concurrency_limit() -> Limit {
    limit("100000 concurrent lease 1h")
}

async fn acquire(store: &RedisStore, key: &str) -> Result<Verdict, StoreError> {
    let (limit, permit) = (concurrency_limit(), store.new_permit());
    let checks = [Check::new(key, &limit, 1)];
    store.decide(&Request::new(&checks).with_permit(permit)).await
}

/// The number of permits that are held under a key.
async fn held_permits(store: &RedisStore, key: &str) -> u64 {
    let limit = concurrency_limit();
    let checks = [Check::new(key, &limit, Cost::PEEK)];
    let request = Request::new(&checks).with_permit(store.new_permit());
    let verdict = store.decide(&request).await.expect("a decision");
    limit.count() - verdict.decisions()[0].remaining
}

async fn wait_until_none_is_held(store: &RedisStore, key: &str) {
    eventually("every permit is given back", async || held_permits(store, key).await == 0).await;
}

/// Polls a future once.
fn poll_once<F: Future>(future: Pin<&mut F>) {
    let polled = future.poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
}

fn short_timeout(url: String) -> RedisOptions {
    RedisOptions { timeout: Duration::from_millis(50), ..options(url) }
}

/// Starts `count` acquires, and drops each after it was polled a few times.
async fn start_and_drop_acquires(store: &RedisStore, count: u64, key: impl Fn(u64) -> String) {
    let mut running = Vec::new();
    for index in 0..count {
        let (store, key) = (store.clone(), key(index));
        running
            .push(tokio::spawn(async move { drop(acquire_and_release_later(&store, &key).await) }));
        if running.len() > usize::try_from(index * 7 % 61).expect("small") {
            running.drain(..).for_each(|task| task.abort());
        }
        if index % 3 == 0 {
            tokio::task::yield_now().await;
        }
    }
    running.drain(..).for_each(|task| task.abort());
}

/// Acquires a permit and releases it in another task, which is not aborted.
async fn acquire_and_release_later(store: &RedisStore, key: &str) -> Result<(), StoreError> {
    let (limit, permit) = (concurrency_limit(), store.new_permit());
    let checks = [Check::new(key, &limit, 1)];
    let verdict = store.decide(&Request::new(&checks).with_permit(permit)).await?;
    assert!(verdict.allowed);
    // The release is a separate task, which is not aborted together with this one.
    let (store, key) = (store.clone(), key.to_owned());
    tokio::spawn(async move {
        store.update_permit(key.as_bytes(), &limit, PermitOperation::Release(permit)).await
    });
    Ok(())
}

#[test]
fn ten_thousand_dropped_acquires_leave_nothing_held() {
    for one_thread in [false, true] {
        let server = Server::start(Engine::Redis);
        run_on(one_thread, async {
            let store = connect(server.url()).await;
            start_and_drop_acquires(&store, 10_000, |index| format!("key-{}", index % 4)).await;
            for key in 0..4 {
                wait_until_none_is_held(&store, &format!("key-{key}")).await;
            }
        });
    }
}

/// The acquire was answered, and its future dropped before it was polled again.
#[test]
fn unread_admission_is_released() {
    let server = Server::start(Engine::Redis);
    run(async {
        let (store, other) = (connect(server.url()).await, connect(server.url()).await);
        {
            let mut acquiring = pin!(acquire(&store, "key"));
            // The server cannot answer while the future is polled.
            server.pause();
            poll_once(acquiring.as_mut());
            server.resume();
            eventually("the reply is read", async || store.stats().round_trips == 1).await;
            assert_eq!(held_permits(&other, "key").await, 1);
        }
        wait_until_none_is_held(&other, "key").await;
    });
}

/// An acquire that is dropped before it was sent acquires and charges nothing.
#[test]
fn dropped_queued_acquire_is_never_sent() {
    /// The number of writes that may be in flight.
    const WRITES: u64 = 16;
    let server = Server::start(Engine::Redis);
    run(async {
        let proxy = Proxy::start(server.address());
        let store = connect(proxy.url()).await;
        proxy.hold();
        let mut others = JoinSet::new();
        for number in 1..=WRITES {
            let store = store.clone();
            others.spawn(async move { acquire(&store, "key").await });
            eventually("it is in flight", async || proxy.arrived() == number).await;
        }
        let calls = store.stats().calls;
        poll_once(pin!(acquire(&store, "key")));
        proxy.pass_all();
        assert!(others.join_all().await.iter().all(Result::is_ok));
        assert_eq!(held_permits(&store, "key").await, WRITES);
        assert_eq!(store.stats().calls, calls + 1, "only the look was sent");
    });
}

/// The deadline passes before the reply arrives, but the server has carried out the acquire.
#[test]
fn acquires_that_time_out_leave_nothing_held() {
    let server = Server::start(Engine::Redis);
    run(async {
        let proxy = Proxy::start(server.address());
        let (store, other) =
            (connect_with(short_timeout(proxy.url())).await, connect(server.url()).await);
        for given_up in [false, true] {
            proxy.hold();
            loop {
                let failed = acquire(&store, "key").await;
                assert!(matches!(failed, Err(StoreError::Failed(_))), "{failed:?}");
                if !given_up || !store.stats().up {
                    break;
                }
            }
            proxy.pass_all();
            wait_until_none_is_held(&other, "key").await;
            eventually("it recovers", async || acquire_succeeds(&store).await).await;
        }
    });
}

/// Whether an acquire is answered. Its permit is released.
async fn acquire_succeeds(store: &RedisStore) -> bool {
    acquire_and_release_later(store, "after").await.is_ok()
}

/// The server is stopped, so that commands wait in its socket, and then continues.
#[test]
fn stopped_server_holds_nothing_after_it_continues() {
    let server = Server::start(Engine::Redis);
    run(async {
        let (store, other) =
            (connect_with(short_timeout(server.url())).await, connect(server.url()).await);
        server.pause();
        while store.stats().up {
            assert!(acquire(&store, "key").await.is_err());
        }
        server.resume();
        eventually("it recovers", async || acquire_succeeds(&store).await).await;
        wait_until_none_is_held(&other, "key").await;
    });
}

/// The server carried out the acquire, but the connection broke before the reply arrived.
#[test]
fn permit_is_released_after_reconnecting() {
    let server = Server::start(Engine::Redis);
    run(async {
        let proxy = Proxy::start(server.address());
        let (store, other) = (connect(proxy.url()).await, connect(server.url()).await);
        proxy.hold();
        let acquiring = tokio::spawn({
            let store = store.clone();
            async move { acquire(&store, "key").await }
        });
        eventually("it is held", async || held_permits(&other, "key").await == 1).await;
        proxy.refuse(true);
        proxy.cut();
        let lost = acquiring.await.expect("no panic");
        assert_eq!(lost, Err(StoreError::Failed(Failure::Lost)));
        assert_eq!(held_permits(&other, "key").await, 1, "nobody can have given it back");
        proxy.pass_all();
        proxy.refuse(false);
        wait_until_none_is_held(&other, "key").await;
    });
}

/// Connections are killed repeatedly while acquires are started and dropped.
#[test]
fn killed_connections_leave_nothing_held() {
    let server = Server::start(Engine::Redis);
    run(async {
        let store = connect(server.url()).await;
        for _ in 0..20 {
            eventually("it recovers", async || acquire_succeeds(&store).await).await;
            start_and_drop_acquires(&store, 200, |_| "key".into()).await;
            let _: u64 = server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        }
        let other = connect(server.url()).await;
        wait_until_none_is_held(&other, "key").await;
    });
}

/// A release that failed, because the store was down, is repeated.
#[test]
fn failed_release_is_repeated() {
    let server = Server::start(Engine::Redis);
    run(async {
        let proxy = Proxy::start(server.address());
        let (store, other) = (connect(proxy.url()).await, connect(server.url()).await);
        let (limit, permit) = (concurrency_limit(), PermitId(7));
        let checks = [Check::new("key", &limit, 1)];
        let taken = store.decide(&Request::new(&checks).with_permit(permit)).await;
        assert!(taken.expect("a decision").allowed);
        proxy.refuse(true);
        proxy.cut();
        eventually("it is noticed", async || !store.stats().up).await;
        let released = store.update_permit(b"key", &limit, PermitOperation::Release(permit)).await;
        assert_eq!(released, Err(StoreError::Failed(Failure::Down)));
        assert_eq!(held_permits(&other, "key").await, 1);
        proxy.refuse(false);
        wait_until_none_is_held(&other, "key").await;
    });
}

/// A request with keys in several slots acquires and releases permits slot by slot.
#[test]
fn dropped_acquires_leave_nothing_held_on_a_cluster() {
    let cluster = Cluster::start(Engine::Redis);
    run(async {
        let store = connect(cluster.url()).await;
        let limit = concurrency_limit();
        let mut running = Vec::new();
        for index in 0..1_000_usize {
            let store = store.clone();
            running.push(tokio::spawn(async move {
                let permit = store.new_permit();
                // These keys are in slots of different servers.
                let checks = ["foo", "bar", "hello"].map(|key| Check::new(key, &limit, 1));
                let request = Request::new(&checks).with_permit(permit);
                let taken = store.decide(&request).await;
                if taken.is_ok() {
                    let release = move |key: &'static str| {
                        let store = store.clone();
                        let operation = PermitOperation::Release(permit);
                        tokio::spawn(async move {
                            store
                                .update_permit(key.as_bytes(), &concurrency_limit(), operation)
                                .await
                        });
                    };
                    ["foo", "bar", "hello"].into_iter().for_each(release);
                }
            }));
            if index % 5 == 0 {
                tokio::task::yield_now().await;
            }
            if running.len() > index * 7 % 31 {
                running.drain(..).for_each(|task| task.abort());
            }
        }
        running.drain(..).for_each(|task| task.abort());
        for key in ["foo", "bar", "hello"] {
            wait_until_none_is_held(&store, key).await;
        }
    });
}
