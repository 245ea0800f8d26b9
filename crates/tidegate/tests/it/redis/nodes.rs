//! Several stores, as on several nodes, that share a limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tidegate::redis::RedisOptions;
use tidegate::{Check, Request, Store};
use tokio::task::JoinSet;

use super::servers::{Cluster, Engine, Server, connect_with, options, run};
use super::{limit, remaining};

const NODES: u64 = 4;
const CALLERS: u64 = 8;
const CALLS: u64 = 60;

/// What is protected: it counts whom it serves, and knows of no limit.
#[derive(Default)]
struct Application {
    served: AtomicU64,
}

/// Every caller of every node asks, and goes on to the application if it may.
async fn hammer(url: &str, checks: &'static [(&'static str, &'static str)]) -> u64 {
    let application = Arc::new(Application::default());
    let mut callers = JoinSet::new();
    for node in 0..NODES {
        let options = RedisOptions { deny_cache: node % 2 == 0, ..options(url) };
        let store = connect_with(options).await;
        for _ in 0..CALLERS {
            let (store, application) = (store.clone(), Arc::clone(&application));
            callers.spawn(async move {
                let limits: Vec<_> = checks.iter().map(|(key, text)| (key, limit(text))).collect();
                let checks: Vec<_> =
                    limits.iter().map(|(key, limit)| Check::new(*key, limit, 1)).collect();
                for _ in 0..CALLS {
                    let verdict = store.decide(&Request::new(&checks)).await.expect("an answer");
                    application.served.fetch_add(u64::from(verdict.allowed), Relaxed);
                }
            });
        }
    }
    callers.join_all().await;
    application.served.load(Relaxed)
}

#[test]
fn nodes_never_admit_more_than_the_limit_together() {
    // Windows that do not end while this runs, but for a counter at midnight.
    let rows: [&'static [(&str, &str)]; 5] = [
        &[("hot", "500 per 100d sliding-counter")],
        &[("hot", "500 per 1d sliding-log")],
        &[("hot", "500 per 1d sliding-window")],
        &[("hot", "500 per 100d fixed-window")],
        &[
            ("hot", "500 per 1d sliding-log"),
            ("hot", "700 per 100d sliding-counter"),
            ("cold", "500 per 100d sliding-counter"),
        ],
    ];
    for engine in Engine::ALL {
        for checks in rows {
            let server = Server::start(engine);
            let served = run(hammer(&server.url(), checks));
            assert_eq!(served, 500, "{engine:?} {checks:?}");
        }
    }
}

#[test]
fn nodes_never_admit_more_than_the_limit_across_slots() {
    let cluster = Cluster::start(Engine::Redis);
    let checks = &[
        ("one", "500 per 100d sliding-counter"),
        ("two", "300 per 1d sliding-log"),
        ("three", "900 per 1d sliding-log"),
    ];
    let served = run(hammer(&cluster.url(), checks));
    // A denial may be for units that were given back a moment later, so fewer than
    // 300 may pass; never more.
    assert!((1..=300).contains(&served), "{served}");
    run(async {
        // All was given back but what was served.
        let store = connect_with(options(cluster.url())).await;
        for (key, text) in checks {
            let limit = limit(text);
            assert_eq!(remaining(&store, key, &limit).await, limit.count() - served, "{key}");
        }
    });
}
