//! Units of hot keys that nodes lease from the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tidegate::redis::{RedisOptions, RedisStore};
use tidegate::unstable::redis::{
    LeaseEntry, LeaseOperation, LeaseReply, decode_lease_reply, lease_call,
};
use tidegate::{Check, Cost, Limit, Request, Store};
use tidegate_core::{GiveBack, GrantId, LeaseRequest};
use tokio::task::JoinSet;

use super::client::Client;
use super::servers::{Cluster, Engine, Server, connect, connect_with, eventually, options, run};
use super::{check, limit, remaining};

/// The callers of a node that send requests at the same time.
const CALLERS: usize = 4;
/// The denials in a row after which a caller stops.
const DENIALS: usize = 50;
/// The most requests of a caller: several times the limits of the tests.
const MAX_CALLS: usize = 50_000;

async fn connect_leasing(url: &str) -> RedisStore {
    connect_with(RedisOptions { leases: true, ..options(url) }).await
}

/// Sends requests until they are denied, from several callers. Returns how many were admitted.
async fn use_up(store: &RedisStore, checks: &[(&'static str, Limit)]) -> u64 {
    let admitted = Arc::new(AtomicU64::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (store, admitted, owned) = (store.clone(), Arc::clone(&admitted), checks.to_vec());
        callers.spawn(async move {
            let checks: Vec<_> =
                owned.iter().map(|(key, limit)| Check::new(*key, limit, 1)).collect();
            let mut denials = 0;
            for call in 0..MAX_CALLS {
                let verdict = store.decide(&Request::new(&checks)).await.expect("a decision");
                let largest = verdict.decisions().iter().map(|it| it.remaining).max();
                assert!(largest < owned.iter().map(|(_, limit)| limit.count()).max());
                admitted.fetch_add(u64::from(verdict.allowed), Relaxed);
                denials = if verdict.allowed { 0 } else { denials + 1 };
                if denials == DENIALS {
                    return;
                }
                if call % 16 == 0 {
                    // Requests that are answered from leases do not yield.
                    tokio::task::yield_now().await;
                }
            }
        });
    }
    callers.join_all().await;
    admitted.load(Relaxed)
}

/// Sends requests of one unit until one is answered from a lease. Returns how many were sent; all
/// are admitted.
async fn heat_up(store: &RedisStore, key: &str, limit: &Limit) -> u64 {
    for sent in 1.. {
        let before = store.stats().lease_hits;
        assert!(check(store, key, limit, 1).await.expect("a decision").allowed);
        if store.stats().lease_hits > before {
            return sent;
        }
    }
    unreachable!("the loop is endless")
}

fn operate(client: &mut Client, key: &str, limit: &Limit, operation: LeaseOperation) -> LeaseReply {
    let key = client.names.state(key.as_bytes(), limit);
    let entries = [LeaseEntry { key, limit: *limit, operations: vec![operation] }];
    let reply = client.run(&lease_call(&entries, None)).expect("a reply");
    let mut replies = decode_lease_reply(&entries, &reply).expect("a sound reply");
    replies.pop().expect("one").expect("a state")
}

fn request(id: u64, units: u64, duration_us: u64) -> LeaseOperation {
    LeaseOperation::Grant(LeaseRequest { id: GrantId(id), units, duration_us, divisor: 1 })
}

#[test]
fn nodes_with_leases_never_admit_more_than_the_limit_together() {
    // Windows that do not end while the test runs, unless a counter's window ends at midnight.
    let rows: [&[(&'static str, &str)]; 6] = [
        &[("hot", "9000 per 1d sliding-window")],
        &[("hot", "9000 per 100d sliding-counter")],
        &[("hot", "9000 per 100d fixed-window")],
        &[("hot", "9000 per 100d token-bucket")],
        &[("hot", "900 per 1d sliding-log")],
        &[("hot", "9000 per 1d"), ("org", "12000 per 100d fixed-window")],
    ];
    for engine in Engine::ALL {
        let server = Server::start(engine);
        for row in rows {
            server.run(&["FLUSHALL"]);
            let checks: Vec<_> = row.iter().map(|(key, text)| (*key, limit(text))).collect();
            let most = checks.iter().map(|(_, limit)| limit.count()).min().expect("one");
            run(async {
                let nodes = [
                    connect_leasing(&server.url()).await,
                    connect_leasing(&server.url()).await,
                    // A node without leases shares the limit.
                    connect(server.url()).await,
                ];
                let counts = tokio::join!(
                    use_up(&nodes[0], &checks),
                    use_up(&nodes[1], &checks),
                    use_up(&nodes[2], &checks)
                );
                for node in &nodes {
                    node.give_back_leases().await;
                }
                let admitted = counts.0 + counts.1 + counts.2 + use_up(&nodes[2], &checks).await;
                let hits: u64 = nodes.iter().map(|node| node.stats().lease_hits).sum();
                assert!(admitted <= most, "{row:?}: {admitted}");
                assert!(hits > 0, "{row:?}");
                let lost: u64 = nodes.iter().map(|node| node.stats().lease_units_expired).sum();
                assert!(admitted + lost >= most / 2, "{row:?}: {admitted} and {lost}");
            });
        }
    }
}

#[test]
fn leases_are_given_back_at_shutdown_and_when_the_store_is_dropped() {
    let server = Server::start(Engine::Redis);
    run(async {
        let other = connect(server.url()).await;
        for text in ["100000 per 1d", "100000 per 100d fixed-window", "1000 per 1d sliding-log"] {
            let limit = limit(text);
            let store = connect_leasing(&server.url()).await;
            let mut used = heat_up(&store, text, &limit).await;
            assert!(store.stats().lease_units_granted > 0);
            store.give_back_leases().await;
            eventually("all units are given back", async || {
                remaining(&other, text, &limit).await == limit.count() - used
                    || store.stats().lease_units_expired > 0
            })
            .await;
            used += heat_up(&store, text, &limit).await;
            let expired = store.stats().lease_units_expired;
            drop(store);
            eventually("all units are given back", async || {
                remaining(&other, text, &limit).await == limit.count() - used || expired > 0
            })
            .await;
        }
    });
}

/// Idle keys are given back without a shutdown.
#[test]
fn idle_keys_are_given_back() {
    let server = Server::start(Engine::Redis);
    run(async {
        let (store, other) = (connect_leasing(&server.url()).await, connect(server.url()).await);
        let limit = limit("100000 per 1d");
        let used = heat_up(&store, "alice", &limit).await;
        eventually("idle keys are given back", async || store.stats().leases_active == 0).await;
        let left = remaining(&other, "alice", &limit).await;
        assert!(left + used <= limit.count());
        assert!(store.stats().lease_units_given_back > 0 || store.stats().lease_units_expired > 0);
    });
}

#[test]
fn only_plain_requests_are_answered_from_leases() {
    let server = Server::start(Engine::Redis);
    run(async {
        let store = connect_leasing(&server.url()).await;
        let (limit, small) = (limit("100000 per 1d"), limit("10 per 1h"));
        heat_up(&store, "alice", &limit).await;
        let plain = Check::new("alice", &limit, 1);
        let others: [&[Check<'_>]; 6] = [
            &[plain.observed()],
            &[plain, Check::new("bob", &limit, 1)],
            &[plain, Check::new("alice", &small, 1)],
            &[Check::new("alice", &limit, Cost::Force(1))],
            &[Check::new("alice", &limit, 2).consuming()],
            &[plain, plain],
        ];
        for checks in others {
            let before = store.stats().lease_hits;
            store.decide(&Request::new(checks)).await.expect("a decision").or_deny().expect("room");
            assert_eq!(store.stats().lease_hits, before, "{checks:?}");
        }
        let before = store.stats().lease_hits;
        let checks = [plain];
        let with_id = Request::new(&checks).with_id("once");
        assert!(store.decide(&with_id).await.expect("a decision").allowed);
        // A peek reports what the store has left.
        assert!(remaining(&store, "alice", &limit).await > 0);
        assert_eq!(store.stats().lease_hits, before);
    });
}

#[test]
fn refunds_and_resets_while_units_are_out() {
    let server = Server::start(Engine::Redis);
    run(async {
        let (store, other) = (connect_leasing(&server.url()).await, connect(server.url()).await);
        let limit = limit("100000 per 1d");
        let used = heat_up(&store, "alice", &limit).await;
        let refunded = check(&store, "alice", &limit, Cost::Refund(1)).await.expect("a decision");
        assert!(refunded.allowed);
        // A refund on another node takes units of the state only.
        let before = remaining(&other, "alice", &limit).await;
        let after = check(&other, "alice", &limit, Cost::Refund(1)).await.expect("a decision");
        assert!(after.remaining >= before && after.remaining <= limit.count());
        // Units that are out stay held after a reset.
        let mut client = Client::new(&server, "tg");
        operate(&mut client, "carol", &limit, request(5, 40_000, 10_000_000));
        assert!(check(&other, "carol", &limit, 10_000).await.expect("a decision").allowed);
        assert_eq!(other.reset(b"carol", &limit).await, Ok(true));
        assert_eq!(remaining(&other, "carol", &limit).await, 60_000);
        assert!(used < limit.count());
    });
}

/// A reload lowers the limit while units are out: they are given back, and the store decides under
/// the new limit.
#[test]
fn changed_limit_ends_the_leases_of_the_old_one() {
    let server = Server::start(Engine::Redis);
    run(async {
        let store = connect_leasing(&server.url()).await;
        let (old, new) = (limit("100000 per 1d"), limit("5000 per 1d"));
        let mut admitted = heat_up(&store, "alice", &old).await;
        while admitted < 3_000 {
            admitted += u64::from(check(&store, "alice", &old, 1).await.expect("decided").allowed);
        }
        let after = use_up(&store, &[("alice", new)]).await;
        assert!(admitted + after <= 5_000, "{admitted} and {after}");
    });
}

/// Nodes whose policies differ admit together at most the largest of their limits.
#[test]
fn nodes_with_different_limits_share_the_units() {
    let server = Server::start(Engine::Redis);
    run(async {
        let (one, two) =
            (connect_leasing(&server.url()).await, connect_leasing(&server.url()).await);
        let (small, large) = (limit("3000 per 1d"), limit("8000 per 1d"));
        let (small, large) = ([("alice", small)], [("alice", large)]);
        let counts = tokio::join!(use_up(&one, &small), use_up(&two, &large));
        assert!(counts.0 <= 3_000 && counts.0 + counts.1 <= 8_000, "{counts:?}");
    });
}

/// A node takes units and crashes. They count as used, and nobody else can use them.
#[test]
fn node_that_never_returns_its_lease_only_takes_its_units() {
    let server = Server::start(Engine::Redis);
    let mut client = Client::new(&server, "tg");
    for text in ["8000 per 1d", "8000 per 100d sliding-counter", "8000 per 100d token-bucket"] {
        let limit = limit(text);
        let reply = operate(&mut client, text, &limit, request(1, 3_000, 50_000));
        assert_eq!(reply.grant.expect("granted").units, 3_000);
        run(async {
            let store = connect_leasing(&server.url()).await;
            let mut admitted = 0;
            for _ in 0..3 {
                admitted += use_up(&store, &[(text, limit)]).await;
                store.give_back_leases().await;
            }
            assert!(admitted <= 5_000, "{text}: {admitted}");
        });
    }
}

#[test]
fn too_large_and_too_long_requests_are_cut() {
    let server = Server::start(Engine::Redis);
    let mut client = Client::new(&server, "tg");
    for (text, longest_us) in [
        ("500 per 2s", 2_000_000),
        ("500 per 2s sliding-log", 2_000_000),
        ("500 per 2s token-bucket", 2_000_000),
        ("500 per 2s fixed-window", 1_999_999),
        ("500 per 1h", 10_000_000),
    ] {
        let limit = limit(text);
        let reply = operate(&mut client, text, &limit, request(1, u64::MAX, u64::MAX));
        // The aligned window may have less than the shortest lease left.
        let Some(grant) = reply.grant else { continue };
        assert_eq!(grant.units, 500, "{text}");
        assert!(grant.duration_us <= longest_us, "{text}: {grant:?}");
        let again = operate(&mut client, text, &limit, request(2, 1, 1_000_000));
        assert!(again.grant.is_none() || again.now > grant.deadline, "{text}");
    }
    for text in ["20 per 1m", "5 concurrent", "0 per 1m"] {
        let reply = operate(&mut client, text, &limit(text), request(1, 1, 1_000_000));
        assert_eq!(reply.grant, None, "{text}");
    }
}

/// `FLUSHALL` loses the counts and the grants. The limit is admitted once more, as without leases,
/// and the units that are out at that time.
#[test]
fn flushed_store_admits_the_limit_once_more() {
    let server = Server::start(Engine::Redis);
    run(async {
        let store = connect_leasing(&server.url()).await;
        let limit = limit("5000 per 1d");
        let before = heat_up(&store, "alice", &limit).await;
        server.run(&["FLUSHALL"]);
        let after = use_up(&store, &[("alice", limit)]).await;
        let out = store.stats().lease_units_granted;
        assert!(after <= 5_000 + out && before < 5_000, "{after}");
    });
}

/// A give-back that arrives twice, late, or under an unknown id changes nothing.
#[test]
fn repeated_and_unknown_give_backs_change_nothing() {
    let server = Server::start(Engine::Redis);
    let mut client = Client::new(&server, "tg");
    let limit = limit("5000 per 1d");
    operate(&mut client, "alice", &limit, request(1, 1_000, 10_000_000));
    for (id, keep, held) in [(1, 400, 400), (1, 400, 400), (1, 700, 400), (9, 0, 400), (1, 0, 0)] {
        let back = LeaseOperation::GiveBack(GiveBack { id: GrantId(id), keep });
        assert_eq!(operate(&mut client, "alice", &limit, back).state.held(), held);
    }
    assert!(client.keys().is_empty(), "the key is empty");
}

#[test]
fn leases_work_in_a_cluster() {
    let cluster = Cluster::start(Engine::Redis);
    run(async {
        let nodes = [connect_leasing(&cluster.url()).await, connect_leasing(&cluster.url()).await];
        // Keys in different slots.
        let checks = [("one", limit("4000 per 1d")), ("two", limit("4000 per 1d"))];
        for check in checks {
            let row = [check];
            let counts = tokio::join!(use_up(&nodes[0], &row), use_up(&nodes[1], &row));
            assert!(counts.0 + counts.1 <= 4_000, "{counts:?}");
        }
        assert!(nodes.iter().any(|node| node.stats().lease_hits > 0));
    });
}
