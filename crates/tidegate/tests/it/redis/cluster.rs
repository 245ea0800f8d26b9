//! Keys in different slots, primaries that fail, and slots that are migrated.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tidegate::redis::DataLoss;
use tidegate::unstable::redis::{KeyNames, slot_key};
use tidegate::{Check, Failure, Limit, Request, Store, StoreError};
use tokio::task::JoinSet;

use super::servers::{Cluster, Engine, add_documented_user, connect, eventually, run};
use super::{check, limit, remaining};

/// The slot of a key, from the cluster itself.
fn slot(cluster: &Cluster, key: &str) -> u16 {
    let name = KeyNames::new("tg").state(key.as_bytes(), &limit("1 per 1d"));
    let tag = String::from_utf8(slot_key(&name).into()).expect("text");
    cluster.nodes[0].command(&["CLUSTER", "KEYSLOT", &tag])
}

/// A key for each of the three primaries.
fn keys(cluster: &Cluster) -> [String; 3] {
    [0, 1, 2].map(|primary| {
        let key = (0..).map(|number| format!("key{number}"));
        let mut fitting =
            key.filter(|key| Cluster::primary_of(slot(cluster, key).into()) == primary);
        fitting.next().expect("there is one")
    })
}

#[test]
fn keys_in_different_slots_are_all_charged_or_none() {
    for engine in Engine::ALL {
        let cluster = Cluster::start(engine);
        let keys = keys(&cluster);
        run(async {
            let store = connect(cluster.url()).await;
            let (wide, log) = (limit("10 per 1d"), limit("10 per 1d sliding-log"));
            let narrow = limit("2 per 1d fixed-window");
            // The limit that denies is in every position.
            for rotation in 0..3 {
                let mut limits = [wide, log, narrow];
                limits.rotate_left(rotation);
                let checks: Vec<Check<'_>> = keys
                    .iter()
                    .zip(&limits)
                    .map(|(key, limit)| Check::new(key, limit, 1))
                    .collect();
                for expect in [true, true, false, false] {
                    let request = Request::new(&checks);
                    let verdict = store.decide(&request).await.expect("a decision");
                    assert_eq!(verdict.allowed, expect, "{engine:?} {rotation}");
                    let denying = verdict.decisions().iter().filter(|d| !d.allowed).count();
                    assert_eq!(denying, usize::from(!expect));
                    for (key, limit) in keys.iter().zip(&limits) {
                        let index = limits.iter().position(|other| other == limit).expect("it is");
                        let left = remaining(&store, key, limit).await;
                        assert_eq!(verdict.decisions()[index].remaining, left, "{key} {limit}");
                    }
                }
                for (key, limit) in keys.iter().zip(&limits) {
                    assert_eq!(remaining(&store, key, limit).await, limit.count() - 2, "{limit}");
                    store.reset(key.as_bytes(), limit).await.expect("a reset");
                }
            }
        });
    }
}

#[test]
fn a_request_under_an_id_is_charged_once_across_slots() {
    let cluster = Cluster::start(Engine::Redis);
    let keys = keys(&cluster);
    run(async {
        let store = connect(cluster.url()).await;
        let limit = limit("5 per 1d");
        let checks: Vec<Check<'_>> = keys.iter().map(|key| Check::new(key, &limit, 1)).collect();
        for _ in 0..4 {
            let request = Request::new(&checks).with_id("same");
            assert!(store.decide(&request).await.expect("a decision").allowed);
            for key in &keys {
                assert_eq!(remaining(&store, key, &limit).await, 4, "{key}");
            }
        }
    });
}

/// In whichever position the limit that denies is, every part is charged the units that it has
/// left, at most the cost. Under an id it is charged only once.
#[test]
fn denial_consumes_the_remaining_units_across_slots() {
    let cluster = Cluster::start(Engine::Redis);
    let keys = keys(&cluster);
    run(async {
        let store = connect(cluster.url()).await;
        for rotation in 0..3 {
            let mut limits = [limit("10 per 1d"), limit("7 per 1d sliding-log"), limit("2 per 1d")];
            limits.rotate_left(rotation);
            let checks = keys.iter().zip(&limits);
            let checks: Vec<Check<'_>> =
                checks.map(|(key, limit)| Check::new(key, limit, 3).consuming()).collect();
            let mut left = [7, 4, 0];
            left.rotate_left(rotation);
            let request = Request::new(&checks).with_id("same");
            for attempt in 0..2 {
                let verdict = store.decide(&request).await.expect("a decision");
                assert!(!verdict.allowed && verdict.consumed, "{rotation} {attempt}: {verdict:?}");
                for ((check, decision), left) in checks.iter().zip(verdict.decisions()).zip(left) {
                    assert_eq!(decision.remaining, left, "{rotation} {attempt} {}", check.limit);
                    assert_eq!(decision.allowed, left >= 3, "{rotation} {attempt} {}", check.limit);
                    let key = std::str::from_utf8(check.key).expect("text");
                    assert_eq!(
                        remaining(&store, key, check.limit).await,
                        left,
                        "{rotation} {attempt}"
                    );
                }
            }
            // A check that does not consume is refunded.
            let first = [
                Check::new(&keys[0], &limits[0], 1),
                Check::new(&keys[1], &limits[1], 5).consuming(),
                Check::new(&keys[2], &limits[2], 5).consuming(),
            ];
            let _ = store.decide(&Request::new(&first)).await.expect("a decision");
            assert_eq!(remaining(&store, &keys[0], &limits[0]).await, left[0], "{rotation}");
            for (key, limit) in keys.iter().zip(&limits) {
                store.reset(key.as_bytes(), limit).await.expect("a reset");
            }
        }
    });
}

#[test]
fn killed_primary_is_replaced_without_affecting_other_slots() {
    let mut cluster = Cluster::with_replicas(Engine::Redis);
    // By default, the other primaries refuse all keys until they know the replacement.
    for node in &cluster.nodes {
        let _: () = node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let keys = keys(&cluster);
    run(async {
        let store = connect(cluster.url()).await;
        let limit = limit("1000 per 1d");
        for key in &keys {
            let _ = check(&store, key, &limit, 1).await.expect("a decision");
        }
        let addresses = [0, 1, 2].map(|index| cluster.nodes[index].address());
        let health = || -> Vec<(String, bool)> {
            store.servers().into_iter().map(|server| (server.address, server.up)).collect()
        };
        let known = health();
        assert_eq!(known.len(), 3, "{known:?}");
        assert!(addresses.iter().all(|one| known.contains(&(one.clone(), true))), "{known:?}");
        cluster.nodes[0].kill();
        eventually("it is reported", async || health().contains(&(addresses[0].clone(), false)))
            .await;
        let mut failed = 0_u64;
        eventually("a replica takes over", async || {
            match check(&store, &keys[0], &limit, 1).await {
                Ok(_) => true,
                Err(StoreError::Failed(Failure::Down | Failure::Lost)) => {
                    failed += 1;
                    false
                }
                Err(other) => panic!("{other:?}"),
            }
        })
        .await;
        assert!(failed > 0);
        for key in &keys[1..] {
            let _ = check(&store, key, &limit, 1).await.expect("a decision");
        }
        eventually("all of it is up", async || store.stats().up).await;
        let now = health();
        assert_eq!(now.len(), 3, "{now:?}");
        assert_eq!(store.stats().data_losses[DataLoss::Restart as usize], 1);
        let lost = store.last_data_loss().expect("a description");
        assert!(lost.starts_with(&addresses[0]), "{lost}");
        assert!(now.iter().all(|(address, up)| *up && *address != addresses[0]), "{now:?}");
        for (key, used) in keys.iter().zip([1, 2, 2]) {
            // A replica may have missed the last write.
            let left = remaining(&store, key, &limit).await;
            assert!((1000 - used - 1..=1000 - used + 1).contains(&left), "{key}: {left}");
        }
    });
}

#[test]
fn keys_of_a_slot_that_moves_are_neither_lost_nor_charged_twice() {
    const KEYS: usize = 12;
    let cluster = Cluster::start(Engine::Redis);
    // The permissions of the documented user suffice to follow redirects.
    cluster.nodes.iter().for_each(add_documented_user);
    let url = cluster.url().replace("://", "://tidegate:pass@");
    // Finds keys of one slot. Only the key determines the slot of a name.
    let first = keys(&cluster)[0].clone();
    let moving = slot(&cluster, &first);
    let candidates = (0_u32..).map(|number| format!("k{number}"));
    let names: Vec<String> = candidates.filter(|key| crc_slot(key) == moving).take(KEYS).collect();
    assert!(names.iter().all(|key| slot(&cluster, key) == moving));
    let limits: [Limit; 2] = [limit("60000 per 1d"), limit("60000 per 1d sliding-log")];
    let used = run(async {
        let store = connect(url).await;
        let stop = Arc::new(AtomicBool::new(false));
        let mut callers = JoinSet::new();
        for name in names.iter().cycle().take(KEYS * 2).cloned() {
            let (store, stop) = (store.clone(), Arc::clone(&stop));
            callers.spawn(async move {
                let mut used = [0_u64; 2];
                while !stop.load(Relaxed) {
                    for (limit, used) in limits.iter().zip(&mut used) {
                        let decision = check(&store, &name, limit, 1).await.expect("a decision");
                        assert!(decision.allowed);
                        *used += 1;
                    }
                }
                (name, used)
            });
        }
        // The slot moves to two other servers and back while the callers send requests.
        let moved = tokio::task::block_in_place(|| {
            let mut steps = 0;
            for (from, to) in [(0, 1), (1, 2), (2, 0)] {
                cluster.migrate(moving, from, to, || {
                    steps += 1;
                    std::thread::sleep(std::time::Duration::from_millis(5));
                });
            }
            steps
        });
        assert!(moved >= 3 * KEYS, "{moved}");
        stop.store(true, Relaxed);
        let mut used = BTreeMap::<String, [u64; 2]>::new();
        for (name, [counted, logged]) in callers.join_all().await {
            let entry = used.entry(name).or_default();
            *entry = [entry[0] + counted, entry[1] + logged];
        }
        assert!(store.stats().resent > 0);
        used
    });
    run(async {
        let store = connect(cluster.url()).await;
        for (name, used) in used {
            for (limit, used) in limits.iter().zip(used) {
                let left = remaining(&store, &name, limit).await;
                assert_eq!(left, limit.count() - used, "{name} {limit}");
            }
        }
    });
}

/// The slot of a key, with CRC-16/XMODEM bit by bit, to find keys quickly. The test also checks the
/// result with the cluster.
fn crc_slot(key: &str) -> u16 {
    let crc = key.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % 16384
}
