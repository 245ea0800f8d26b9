//! Several stores, as on several nodes, share a limit.

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

/// The protected application, which counts the requests that it serves and does not know the limit.
#[derive(Default)]
struct Application {
    served: AtomicU64,
}

/// Sends requests from all callers of all nodes; admitted ones are served by the application.
/// Returns the number that were served.
async fn count_served_requests(url: &str, checks: &'static [(&'static str, &'static str)]) -> u64 {
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
                    let verdict = store.decide(&Request::new(&checks)).await.expect("a decision");
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
    // Windows that do not end while the test runs, unless a counter's window ends at midnight.
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
            let served = run(count_served_requests(&server.url(), checks));
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
    let served = run(count_served_requests(&cluster.url(), checks));
    // A denial may be due to units that are refunded a moment later. So fewer than 300 may be
    // admitted, but never more.
    assert!((1..=300).contains(&served), "{served}");
    run(async {
        // All units were refunded except those of served requests.
        let store = connect_with(options(cluster.url())).await;
        for (key, text) in checks {
            let limit = limit(text);
            assert_eq!(remaining(&store, key, &limit).await, limit.count() - served, "{key}");
        }
    });
}
