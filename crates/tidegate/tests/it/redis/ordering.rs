//! Concurrent checks of one caller take effect in the order in which they were submitted.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use tidegate::redis::RedisStore;
use tidegate::{Cost, Decision, Limit};

use super::servers::{Cluster, Engine, Server, connect, run_on};
use super::{check, limit, remaining};

/// Submits all checks of a key concurrently, as a front does with a batch or a pipeline.
async fn check_concurrently(
    store: &RedisStore,
    key: &str,
    checks: &[(Limit, Cost)],
) -> Vec<Decision> {
    let mut pending: Vec<Pin<Box<_>>> =
        checks.iter().map(|(limit, cost)| Box::pin(check(store, key, limit, *cost))).collect();
    let mut results = vec![None; pending.len()];
    poll_fn(|context| {
        for (pending, result) in pending.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(polled) = pending.as_mut().poll(context)
            {
                *result = Some(polled.expect("a decision"));
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}

fn allowed(decisions: &[Decision]) -> Vec<bool> {
    decisions.iter().map(|decision| decision.allowed).collect()
}

async fn keeps_the_order(store: &RedisStore) {
    const BACK: Cost = Cost::Refund(1);
    for text in ["1 per 1d sliding-counter", "1 per 1d sliding-log", "1 per 1d token-bucket"] {
        let one = limit(text);
        // Regression: the refund was carried out first, refunded nothing, and was lost.
        let decisions = check_concurrently(store, "a", &[(one, 1.into()), (one, BACK)]).await;
        assert_eq!(allowed(&decisions), [true, true], "{text}");
        assert_eq!(remaining(store, "a", &one).await, 1, "{text}: the refund counts");
        let checks = [(one, 1.into()), (one, BACK), (one, 1.into())];
        let decisions = check_concurrently(store, "b", &checks).await;
        assert_eq!(allowed(&decisions), [true, true, true], "{text}");
        assert_eq!(remaining(store, "b", &one).await, 0, "{text}");
        // A cached denial does not answer checks after a refund.
        for expected in [true, false] {
            assert_eq!(check(store, "c", &one, 1).await.expect("a decision").allowed, expected);
        }
        let checks = [(one, 1.into()), (one, BACK), (one, 1.into()), (one, 1.into())];
        let decisions = check_concurrently(store, "c", &checks).await;
        assert_eq!(allowed(&decisions), [false, true, true, false], "{text}");
    }
    // Limits that differ only in their count share a state.
    let (five, three) = (limit("5 per 1d sliding-counter"), limit("3 per 1d sliding-counter"));
    let checks = [(five, 1.into()), (three, 2.into()), (five, 1.into()), (three, 1.into())];
    let decisions = check_concurrently(store, "d", &checks).await;
    let left: Vec<u64> = decisions.iter().map(|decision| decision.remaining).collect();
    assert_eq!(allowed(&decisions), [true, true, true, false]);
    assert_eq!(left, [4, 0, 1, 0]);
}

#[test]
fn checks_of_one_caller_take_effect_in_order() {
    for engine in Engine::ALL {
        for one_thread in [true, false] {
            let server = Server::start(engine);
            run_on(one_thread, async { keeps_the_order(&connect(server.url()).await).await });
        }
    }
}

#[test]
fn checks_of_one_caller_take_effect_in_order_in_a_cluster() {
    let cluster = Cluster::start(Engine::Redis);
    run_on(true, async { keeps_the_order(&connect(cluster.url()).await).await });
}
