//! More checks than a server answers in time: one caller or one key must not starve others.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tidegate::redis::{RedisOptions, RedisStore};
use tidegate::{Check, Failure, Request, RetryAfter, Store, StoreError, Verdict};
use tokio::task::JoinSet;

use super::servers::{
    Engine, Proxy, Server, connect_with, eventually, eventually_now, options, run,
    run_on_one_thread,
};
use super::{check, limit, remaining};

/// A store with a long deadline.
async fn connect_with_long_timeout(url: String) -> RedisStore {
    connect_with(RedisOptions { timeout: Duration::from_secs(25), ..options(url) }).await
}

const LOG: &str = "1000 per 1d sliding-log";
/// The number of states that one caller may have in flight.
const SHARE: u64 = 512;

/// Checks of different keys, sent concurrently by one task.
async fn batch(store: RedisStore, checks: usize) -> Vec<Result<bool, StoreError>> {
    batch_of(store, (0..checks).map(|number| (format!("key {number}"), 1)).collect()).await
}

/// Checks of these keys and costs, sent concurrently by one task.
async fn batch_of(store: RedisStore, checks: Vec<(String, u64)>) -> Vec<Result<bool, StoreError>> {
    let (store, limit) = (&store, &limit(LOG));
    let one = |key: String, cost: u64| async move {
        let checks = [Check::new(&key, limit, cost)];
        store.decide(&Request::new(&checks)).await.map(|verdict| verdict.allowed)
    };
    let mut results = vec![None; checks.len()];
    let mut pending: Vec<Pin<Box<_>>> =
        checks.into_iter().map(|(key, cost)| Box::pin(one(key, cost))).collect();
    poll_fn(|context| {
        for (pending, result) in pending.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(polled) = pending.as_mut().poll(context)
            {
                *result = Some(polled);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}

/// Regression: callers were answered only after the last reply of a write had arrived.
#[test]
fn replies_are_delivered_as_they_arrive() {
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::start(server.address());
    run(async {
        let store = connect_with_long_timeout(proxy.url()).await;
        proxy.hold();
        let mut callers = JoinSet::new();
        for number in 0..10 {
            let store = store.clone();
            // Resets are separate commands, with a reply each.
            let key = format!("key {number}");
            callers.spawn(async move { store.reset(key.as_bytes(), &limit(LOG)).await });
        }
        eventually("the server has answered", async || proxy.arrived() == 10).await;
        for _ in 0..5 {
            proxy.pass(1);
            let result = callers.join_next().await.expect("a caller").expect("it ends");
            assert_eq!(result, Ok(false));
        }
        assert_eq!(callers.len(), 5);
        assert!(callers.try_join_next().is_none(), "no more replies were passed on");
        proxy.pass_all();
        while let Some(result) = callers.join_next().await {
            assert_eq!(result.expect("it ends"), Ok(false));
        }
        assert_eq!(store.stats().breaker_openings, 0);
    });
}

/// Regression: three late writes opened the breaker, although replies kept arriving.
#[test]
fn slow_replies_do_not_open_the_breaker() {
    const CHECKS: u64 = 150;
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::start(server.address());
    run(async {
        let timeout = Duration::from_millis(500);
        let store = connect_with(RedisOptions { timeout, ..options(proxy.url()) }).await;
        proxy.hold();
        let mut callers = JoinSet::new();
        for number in 0..CHECKS {
            let store = store.clone();
            callers.spawn(async move {
                // Some are sent while others already wait.
                tokio::time::sleep(Duration::from_millis(number * 10)).await;
                // Resets are separate commands, with a reply each.
                store.reset(format!("key {number}").as_bytes(), &limit(LOG)).await
            });
        }
        // This takes far longer than three deadlines.
        for _ in 0..CHECKS {
            proxy.pass(1);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        proxy.pass_all();
        let results = callers.join_all().await;
        let late = Err(StoreError::Failed(Failure::TimedOut));
        assert!(results.contains(&late), "it was slow");
        let stats = store.stats();
        assert!(stats.up && stats.breaker_openings == 0, "{stats:?}");
    });
}

/// Regression: all of a large batch was in flight ahead of every later caller.
#[test]
fn large_batch_does_not_block_other_callers() {
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::start(server.address());
    run(async {
        let store = connect_with_long_timeout(proxy.url()).await;
        proxy.hold();
        let greedy = tokio::spawn(batch(store.clone(), 1000));
        let keys = || server.command::<u64>(&["DBSIZE"]);
        eventually("its share is in flight", async || keys() == SHARE).await;
        let other = store.clone();
        let bystander =
            tokio::spawn(async move { check(&other, "bystander", &limit(LOG), 1).await });
        // It is sent although nothing was answered yet.
        eventually("it is in the next write", async || keys() == SHARE + 1).await;
        proxy.pass(proxy.arrived());
        assert!(bystander.await.expect("it ends").expect("a decision").allowed);
        proxy.pass_all();
        let results = greedy.await.expect("it ends");
        assert!(results.iter().all(|result| *result == Ok(true)));
        assert_eq!(results.len(), 1000);
    });
}

/// Regression: two equal checks of one caller were merged, and all later ones on the same key
/// waited for the reply.
#[test]
fn checks_of_one_caller_with_different_costs_go_in_one_write() {
    const CHECKS: u64 = 30;
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::start(server.address());
    run(async {
        let store = connect_with_long_timeout(proxy.url()).await;
        proxy.hold();
        let costs = (0..CHECKS).map(|number| ("hot".to_owned(), 1 + number % 3 / 2));
        let caller = tokio::spawn(batch_of(store.clone(), costs.collect()));
        eventually("all are in flight", async || {
            proxy.arrived() + store.stats().coalesced == CHECKS
        })
        .await;
        proxy.pass_all();
        assert!(caller.await.expect("it ends").iter().all(|result| *result == Ok(true)));
        assert_eq!(remaining(&store, "hot", &limit(LOG)).await, 1000 - CHECKS * 4 / 3);
    });
}

/// Regression: two equal requests were merged, and all other callers of one of their keys waited.
#[test]
fn merged_requests_do_not_hold_up_others_that_share_a_key() {
    const CALLERS: u64 = 40;
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::start(server.address());
    run(async {
        let store = connect_with_long_timeout(proxy.url()).await;
        proxy.hold();
        let mut callers = JoinSet::new();
        for number in 0..CALLERS {
            let store = store.clone();
            callers.spawn(async move {
                // Two callers per user, and one key that all share.
                let (user, limit) = (format!("user {}", number / 2), limit(LOG));
                let checks = [Check::new(&user, &limit, 1), Check::new("all", &limit, 1)];
                store.decide(&Request::new(&checks)).await.expect("a decision").allowed
            });
        }
        let other = connect_with_long_timeout(server.url()).await;
        eventually("all are carried out", async || {
            remaining(&other, "all", &limit(LOG)).await == 1000 - CALLERS
        })
        .await;
        proxy.pass_all();
        assert!(callers.join_all().await.into_iter().all(|allowed| allowed));
        assert_eq!(remaining(&store, "all", &limit(LOG)).await, 1000 - CALLERS);
    });
}

#[test]
fn queued_checks_per_caller_are_bounded() {
    const CHECKS: usize = 5000;
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::start(server.address());
    run(async {
        let store = connect_with_long_timeout(proxy.url()).await;
        proxy.hold();
        let greedy = tokio::spawn(batch(store.clone(), CHECKS));
        eventually("all are submitted", async || store.stats().requests == CHECKS as u64).await;
        let other = store.clone();
        let bystander = tokio::spawn(async move { check(&other, "other", &limit(LOG), 1).await });
        let keys = || server.command::<u64>(&["DBSIZE"]);
        eventually("it is sent", async || keys() == SHARE + 1).await;
        proxy.pass_all();
        assert!(bystander.await.expect("it ends").expect("a decision").allowed);
        let results = greedy.await.expect("it ends");
        let shed = Err(StoreError::Failed(Failure::Overloaded));
        let count = results.iter().filter(|result| **result == shed).count();
        // Up to 512 jobs left the queue with the first writes while others were submitted.
        let admitted = CHECKS - count;
        assert!((2048..=2048 + 512).contains(&admitted), "{admitted}");
        assert_eq!(store.stats().failed_overloaded, count as u64);
        // Checks that were shed charged nothing.
        let keys: usize = server.command(&["DBSIZE"]);
        assert_eq!(keys, admitted + 1);
    });
}

/// Requests that wait in the queue, calls in flight, and requests that the queue kept for too long
/// are counted apart from requests that the server did not answer.
#[test]
fn queue_and_calls_in_flight_are_counted() {
    const CHECKS: u64 = 1000;
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::start(server.address());
    run(async {
        let timeout = Duration::from_secs(3);
        let store = connect_with(RedisOptions { timeout, ..options(proxy.url()) }).await;
        let stats = store.stats();
        assert_eq!((stats.queued, stats.calls_in_flight, stats.sent), (0, 0, 0));
        proxy.hold();
        let greedy = tokio::spawn(batch(store.clone(), 1000));
        eventually("its share is in flight", async || store.stats().sent == SHARE).await;
        eventually("the others wait", async || store.stats().queued == CHECKS - SHARE).await;
        let stats = store.stats();
        assert!(stats.calls_in_flight > 0 && stats.calls_in_flight <= stats.calls, "{stats:?}");
        assert!(stats.calls <= stats.sent, "{stats:?}");
        // Nothing is answered before the deadline.
        let results = greedy.await.expect("it ends");
        let stats = store.stats();
        let count = |failure: Failure| {
            let failed = Err(StoreError::Failed(failure));
            results.iter().filter(|result| **result == failed).count() as u64
        };
        assert!(stats.queue_timeouts > 0, "{stats:?}");
        assert_eq!(stats.queue_timeouts, count(Failure::Overloaded));
        assert_eq!(stats.failed_timed_out, count(Failure::TimedOut));
        assert_eq!(stats.queued, 0);
        proxy.pass_all();
        eventually("all is answered", async || store.stats().calls_in_flight == 0).await;
    });
}

/// Regression: the tasks of the store shared the runtime of its callers. While that was busy,
/// replies were not read, and callers of all keys timed out although the server had answered.
#[test]
fn replies_are_read_while_the_runtime_of_the_callers_is_busy() {
    let server = Server::start(Engine::Redis);
    run_on_one_thread(async {
        let timeout = Duration::from_secs(2);
        let store = connect_with(RedisOptions { timeout, ..options(server.url()) }).await;
        let limit = limit(LOG);
        let mut pending = pin!(check(&store, "bystander", &limit, 1));
        server.pause();
        let is_pending =
            poll_fn(|context| Poll::Ready(pending.as_mut().poll(context).is_pending()));
        assert!(is_pending.await);
        server.resume();
        // This blocks the only thread of the runtime.
        eventually_now("the reply is read", || store.stats().round_trips == 1);
        std::thread::sleep(timeout);
        // The deadline has passed, but the answer arrived before it.
        assert!(pending.await.expect("a decision").allowed);
    });
}

/// Equal requests on a hot key under several limits are merged into one call, and answered as if
/// they had arrived one by one.
#[test]
fn equal_requests_of_a_hot_key_are_merged() {
    const CALLERS: u64 = 500;
    for engine in Engine::ALL {
        let server = Server::start(engine);
        run(async {
            let store = connect_with_long_timeout(server.url()).await;
            let limits =
                [limit("200 per 1d sliding-log"), limit("900 per 1d token-bucket burst 900")];
            server.pause();
            let mut callers = JoinSet::new();
            for _ in 0..CALLERS {
                let store = store.clone();
                callers.spawn(async move {
                    let checks =
                        [Check::new("hot", &limits[0], 2), Check::new("hot", &limits[1], 3)];
                    store.decide(&Request::new(&checks)).await.expect("a decision")
                });
            }
            while store.stats().requests < CALLERS {
                tokio::task::yield_now().await;
            }
            server.resume();
            let verdicts = callers.join_all().await;
            let (admitted, denied): (Vec<&Verdict>, Vec<_>) =
                verdicts.iter().partition(|verdict| verdict.allowed);
            let left = |index: usize| {
                admitted.iter().map(move |verdict| verdict.decisions()[index].remaining)
            };
            // Each answer reports the units that were left after it, as if the requests had arrived
            // one by one.
            assert_eq!(admitted.len(), 100, "{engine:?}");
            assert_eq!(left(0).collect::<BTreeSet<u64>>(), (0..100).map(|n| 2 * n).collect());
            assert_eq!((left(1).min(), left(1).max()), (Some(600), Some(897)));
            for verdict in denied {
                assert!(matches!(verdict.retry_after(), RetryAfter::Micros(1..)), "{verdict:?}");
                assert!(!verdict.decisions()[0].allowed && verdict.decisions()[1].allowed);
            }
            let stats = store.stats();
            assert!(stats.calls + stats.resent <= 32, "{stats:?}");
            assert_eq!(remaining(&store, "hot", &limits[0]).await, 0);
        });
    }
}

/// Regression: when a merged request was denied, the sum of its costs, which is above 1, consumed
/// the units that were left. A denied cost of 1 charges nothing, so requests with and without
/// `consuming` are equal.
#[test]
fn merged_costs_of_one_do_not_consume() {
    const CALLERS: u64 = 300;
    // The content of a verdict except its times.
    type Seen = (bool, bool, Vec<(bool, u64)>);
    async fn decide(store: &RedisStore, key: &str, number: u64) -> Seen {
        let (log, bucket) = (limit(LOG), limit("300 per 1d token-bucket burst 300"));
        let mut one = Check::new(key, &log, 1);
        if number.is_multiple_of(2) {
            one = one.consuming();
        }
        let checks = [one, Check::new(key, &bucket, 3)];
        let verdict = store.decide(&Request::new(&checks)).await.expect("a decision");
        let decisions = verdict.decisions().iter().map(|one| (one.allowed, one.remaining));
        (verdict.allowed, verdict.consumed, decisions.collect())
    }
    for engine in Engine::ALL {
        let server = Server::start(engine);
        run(async {
            let store = connect_with_long_timeout(server.url()).await;
            let bucket = limit("300 per 1d token-bucket burst 300");
            // After this, a merged request as large as an empty bucket admits does not fit.
            for key in ["hot", "alone"] {
                assert!(check(&store, key, &bucket, 90).await.expect("a decision").allowed);
            }
            let mut separate = Vec::new();
            for number in 0..CALLERS {
                separate.push(decide(&store, "alone", number).await);
            }
            let before = store.stats();
            server.pause();
            let mut callers = JoinSet::new();
            for number in 0..CALLERS {
                let store = store.clone();
                callers.spawn(async move { decide(&store, "hot", number).await });
            }
            while store.stats().requests < before.requests + CALLERS {
                tokio::task::yield_now().await;
            }
            server.resume();
            let mut merged = callers.join_all().await;
            merged.sort_unstable();
            separate.sort_unstable();
            assert_eq!(merged, separate, "{engine:?}");
            assert_eq!(merged.iter().filter(|(allowed, ..)| *allowed).count(), 70, "{engine:?}");
            assert!(merged.iter().all(|(_, consumed, _)| !consumed), "{engine:?}");
            let stats = store.stats();
            let calls = stats.calls - before.calls + stats.resent - before.resent;
            assert!(calls <= 32, "{calls} calls: {stats:?}");
            for (key, left) in [("hot", 1000 - 70), ("alone", 1000 - 70)] {
                assert_eq!(remaining(&store, key, &limit(LOG)).await, left, "{engine:?} {key}");
                assert_eq!(remaining(&store, key, &bucket).await, 0, "{engine:?} {key}");
            }
        });
    }
}
