//! Denials that are answered from memory.

use std::time::{Duration, Instant};

use tidegate::redis::RedisOptions;
use tidegate::unstable::redis::MAX_DENY_CACHE;
use tidegate::{Check, Cost, Request, RetryAfter, Store};

use super::servers::{Engine, Server, connect, connect_with, options, run};
use super::{check, limit, remaining};

#[test]
fn repeated_denial_is_answered_from_the_cache() {
    let server = Server::start(Engine::Redis);
    run(async {
        let store = connect(server.url()).await;
        let limit = limit("1 per 1d");
        assert!(check(&store, "alice", &limit, 1).await.expect("a decision").allowed);
        let began = Instant::now();
        let denied = check(&store, "alice", &limit, 1).await.expect("a decision");
        assert!(!denied.allowed);
        let (calls, mut last) = (store.stats().calls, denied);
        for _ in 0..100 {
            let again = check(&store, "alice", &limit, 1).await.expect("a decision");
            assert!(!again.allowed);
            assert!(again.retry_after.as_micros() <= last.retry_after.as_micros());
            assert!(again.reset_after.as_micros() <= last.reset_after.as_micros());
            last = again;
        }
        // On a slow machine the cached denial may have expired, and the server may have been called
        // again.
        if began.elapsed() < MAX_DENY_CACHE / 2 {
            assert_eq!((store.stats().deny_cache_hits, store.stats().calls), (100, calls));
        }
        // Requests with other costs or keys are not answered by this denial.
        assert!(!check(&store, "alice", &limit, 2).await.expect("a decision").allowed);
        assert!(check(&store, "bob", &limit, 1).await.expect("a decision").allowed);
        assert!(store.stats().calls > calls);
    });
}

#[test]
fn local_refund_invalidates_the_cache() {
    let server = Server::start(Engine::Redis);
    run(async {
        let store = connect(server.url()).await;
        for text in [
            "1 per 1d",
            "1 per 1d sliding-counter",
            "1 per 1d sliding-log",
            "1 per 1d token-bucket",
        ] {
            let limit = limit(text);
            for _ in 0..50 {
                assert!(check(&store, "alice", &limit, 1).await.expect("a decision").allowed);
                for _ in 0..3 {
                    assert!(!check(&store, "alice", &limit, 1).await.expect("a decision").allowed);
                }
                let _ = check(&store, "alice", &limit, Cost::Refund(1)).await.expect("a decision");
                assert!(check(&store, "alice", &limit, 1).await.expect("a decision").allowed);
                assert!(!check(&store, "alice", &limit, 1).await.expect("a decision").allowed);
                assert_eq!(store.reset(b"alice", &limit).await, Ok(true));
            }
        }
        assert!(store.stats().deny_cache_hits > 0);
    });
}

#[test]
fn cache_never_denies_what_redis_admits() {
    let server = Server::start(Engine::Redis);
    run(async {
        let store = connect(server.url()).await;
        let plain = RedisOptions { deny_cache: false, ..options(server.url()) };
        let oracle = connect_with(plain).await;
        // Windows that end many times while the test runs, with different waits.
        let limits =
            ["2 per 20ms sliding-log", "3 per 30ms sliding-counter", "2 per 25ms token-bucket"];
        let limits = limits.map(limit);
        let (mut admitted, mut denied) = (0, 0);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(3) {
            for limit in &limits {
                // A request that is admitted now would be admitted a moment later, too.
                let would = check(&oracle, "alice", limit, Cost::PEEK).await.expect("a decision");
                let did = check(&store, "alice", limit, 1).await.expect("a decision");
                assert!(did.allowed || !would.allowed, "{limit}: {did:?}, but {would:?}");
                if did.allowed {
                    admitted += 1;
                } else {
                    denied += 1;
                    assert_ne!(did.retry_after, RetryAfter::Now);
                }
            }
        }
        let hits = store.stats().deny_cache_hits;
        assert!(admitted > 0 && denied > 0 && hits > 0, "{admitted} {denied} {hits}");
        assert_eq!(oracle.stats().deny_cache_hits, 0);
    });
}

/// A denial that consumes charges something, so such a request is always sent to the server, and
/// the next request sees the units that are left.
#[test]
fn consuming_denial_is_not_cached() {
    run(async {
        let server = Server::start(Engine::Redis);
        let store = connect(server.url()).await;
        for text in ["10 per 1h", "10 per 1h sliding-counter", "10 per 1h sliding-log"] {
            let limit = limit(text);
            let checks = [Check::new("a", &limit, 4).consuming()];
            let request = Request::new(&checks);
            for (allowed, consumed, left) in
                [(true, false, 6), (true, false, 2), (false, true, 0), (false, false, 0)]
            {
                let verdict = store.decide(&request).await.expect("a decision");
                assert_eq!((verdict.allowed, verdict.consumed), (allowed, consumed), "{text}");
                assert_eq!(remaining(&store, "a", &limit).await, left, "{text}");
            }
            let _ = check(&store, "a", &limit, Cost::Refund(3)).await.expect("a decision");
            let verdict = store.decide(&request).await.expect("a decision");
            assert!(!verdict.allowed && verdict.consumed, "what came back is used up: {text}");
            assert_eq!(remaining(&store, "a", &limit).await, 0, "{text}");
        }
        assert_eq!(store.stats().deny_cache_hits, 0);
    });
}

/// Regression: a cached denial reported the units that were left before a consumption.
#[test]
fn consuming_denial_invalidates_the_cache() {
    run(async {
        let server = Server::start(Engine::Redis);
        let store = connect(server.url()).await;
        let limits = [limit("2 per 1m sliding-log"), limit("10 per 1d sliding-log")];
        let decide = async |cost: u64| {
            let checks = limits.each_ref().map(|limit| Check::new("a", limit, cost).consuming());
            let verdict = store.decide(&Request::new(&checks)).await.expect("a decision");
            [verdict.decisions()[0].remaining, verdict.decisions()[1].remaining]
        };
        // (cost, units left of each limit)
        for (cost, left) in [(2, [0, 8]), (1, [0, 8]), (50, [0, 0]), (1, [0, 0])] {
            assert_eq!(decide(cost).await, left, "cost {cost}");
        }
    });
}
