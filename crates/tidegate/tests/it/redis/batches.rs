//! Callers that share writes, and callers that give up.

use std::collections::BTreeSet;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use tidegate::redis::RedisOptions;
use tidegate::{Cost, Failure, StoreError};
use tokio::task::JoinSet;

use super::servers::{Engine, Server, connect, connect_with, options, run, run_on};
use super::{check, limit, remaining};

#[test]
fn equal_checks_of_a_key_share_an_entry() {
    const CALLERS: u64 = 500;
    for limit in ["100 per 1d", "100 per 1d sliding-counter"].map(limit) {
        let server = Server::start(Engine::Redis);
        run(async {
            let store = connect(server.url()).await;
            // The callers queue while the server is paused.
            server.pause();
            let mut callers = JoinSet::new();
            for _ in 0..CALLERS {
                let store = store.clone();
                callers.spawn(
                    async move { check(&store, "hot", &limit, 1).await.expect("a decision") },
                );
            }
            while store.stats().requests < CALLERS {
                tokio::task::yield_now().await;
            }
            server.resume();
            let decisions = callers.join_all().await;
            let admitted = decisions.iter().filter(|decision| decision.allowed);
            let left: BTreeSet<u64> = admitted.clone().map(|decision| decision.remaining).collect();
            // Each decision reports the units that were left after it, as if the requests had
            // arrived one by one.
            assert_eq!(admitted.count(), 100);
            assert_eq!(left, (0..100).collect());
            let stats = store.stats();
            assert!(stats.calls <= 16, "{stats:?}");
            // A caller that arrives after a denial was cached is answered without a call.
            let answered = stats.coalesced + stats.calls + stats.deny_cache_hits;
            assert_eq!(answered, CALLERS, "{stats:?}");
            assert_eq!(remaining(&store, "hot", &limit).await, 0);
        });
    }
}

#[test]
fn batched_checks_get_their_own_decisions() {
    for one_thread in [false, true] {
        let server = Server::start(Engine::Valkey);
        run_on(one_thread, async {
            let store = connect(server.url()).await;
            let limits = ["1000 per 1d", "1000 per 12h", "999 per 1d"];
            let [day, half, less] = limits.map(|text| limit(&format!("{text} sliding-counter")));
            let limits = [day, half, less, limit("1000 per 1d sliding-log")];
            let mut callers = JoinSet::new();
            for number in 0..800_u64 {
                let store = store.clone();
                callers.spawn(async move {
                    // Each key has two requests under each limit, with different costs.
                    let (key, cost) = (format!("key {}", number / 8), 1 + number % 7);
                    let limit = limits[usize::try_from(number % 4).expect("small")];
                    let decision = check(&store, &key, &limit, cost).await.expect("a decision");
                    (key, limit, cost, decision)
                });
            }
            let mut used = std::collections::HashMap::<_, u64>::new();
            let results = callers.join_all().await;
            for (key, limit, cost, decision) in &results {
                assert!(decision.allowed);
                assert_eq!(decision.limit, limit.count());
                assert!(decision.remaining <= limit.count() - cost);
                *used.entry((key, limit.id())).or_default() += cost;
            }
            for (key, limit, ..) in &results {
                let left = remaining(&store, key, limit).await;
                assert_eq!(left, limit.count() - used[&(key, limit.id())], "{key} {limit}");
            }
        });
    }
}

#[test]
fn dropped_caller_does_not_affect_others() {
    for one_thread in [false, true] {
        let server = Server::start(Engine::Redis);
        run_on(one_thread, async {
            let store = connect(server.url()).await;
            let limit = limit("1000 per 1d sliding-counter");
            let mut stay = JoinSet::new();
            let mut leave = JoinSet::new();
            for number in 1..=400_u64 {
                let store = store.clone();
                let call = async move {
                    let key = format!("key {number}");
                    (number, check(&store, &key, &limit, number).await.expect("a decision"))
                };
                match number % 4 {
                    // Dropped before the first poll, while queued, or while in flight.
                    0 => drop(call),
                    1 => {
                        let mut call = pin!(call);
                        let _ = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    }
                    2 => drop(leave.spawn(call)),
                    _ => drop(stay.spawn(call)),
                }
                if number % 10 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            leave.shutdown().await;
            for (number, decision) in stay.join_all().await {
                assert!(decision.allowed);
                assert_eq!(decision.remaining, 1000 - number);
            }
            // A dropped request was charged once or not at all.
            for number in (1..=400).step_by(4) {
                let left = remaining(&store, &format!("key {number}"), &limit).await;
                assert!(left == 1000 || left == 1000 - number, "{number}: {left}");
            }
        });
    }
}

#[test]
fn the_queue_is_bounded() {
    const CALLERS: u64 = 40_000;
    let server = Server::start(Engine::Redis);
    run(async {
        let patient = RedisOptions { timeout: Duration::from_secs(20), ..options(server.url()) };
        let store = connect_with(patient).await;
        let limit = limit("65000 per 1d sliding-counter");
        server.pause();
        let mut callers = JoinSet::new();
        for _ in 0..CALLERS {
            let store = store.clone();
            callers.spawn(async move { check(&store, "hot", &limit, 1).await });
        }
        while store.stats().requests < CALLERS {
            tokio::task::yield_now().await;
        }
        // At most 16 writes of 1,024 are in flight, and 4,096 wait for one key.
        let turned_away = store.stats().failed_overloaded;
        assert!(turned_away >= CALLERS - 4096 - 16 * 1024, "{turned_away}");
        server.resume();
        let results = callers.join_all().await;
        let shed = Err(StoreError::Failed(Failure::Overloaded));
        let refused = results.iter().filter(|result| **result == shed).count() as u64;
        // One more may have been shed after the count was read.
        assert!(refused >= turned_away, "{refused} {turned_away}");
        let admitted = results.iter().filter(|result| result.is_ok()).count() as u64;
        assert_eq!(admitted + refused, CALLERS);
        let peek = check(&store, "hot", &limit, Cost::PEEK).await.expect("a decision");
        assert_eq!(peek.remaining, 65_000 - admitted, "who was turned away was not charged");
    });
}
