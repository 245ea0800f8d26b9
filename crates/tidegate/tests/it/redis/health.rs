//! Servers that answer but do not decide. Each kind is detected and reported.

use tidegate::redis::{DataLoss, RedisOptions, RedisStore};
use tidegate::unstable::redis::KeyNames;
use tidegate::{Failure, StoreError};

use super::servers::{
    Engine, Server, add_documented_user, connect, connect_with, eventually, options, run,
};
use super::{check, limit};

const LIMITS: [&str; 2] = ["1000 per 1d sliding-counter", "1000 per 1d sliding-log"];

/// Sends requests until the server refuses them and the store reports this text.
async fn wait_until_refused(store: &RedisStore, excerpt: &str) {
    for text in LIMITS {
        let limit = limit(text);
        eventually("it is refused", async || {
            let result = check(store, "alice", &limit, 1).await;
            matches!(result, Err(StoreError::Failed(Failure::Refused(text))) if text.contains(excerpt))
        })
        .await;
    }
    eventually("it is reported", async || !store.stats().up).await;
    let reason = store.last_error().expect("a reason");
    assert!(reason.starts_with("the store refuses: ") && reason.contains(excerpt), "{reason}");
}

async fn wait_until_recovered(store: &RedisStore) {
    for text in LIMITS {
        let limit = limit(text);
        eventually("it answers", async || check(store, "alice", &limit, 1).await.is_ok()).await;
    }
    eventually("it is up", async || store.stats().up && store.last_error().is_none()).await;
    assert_eq!(store.stats().breaker_openings, 0);
}

/// Regression: Redis 7.0 reports a lost permission as `ERR The user executing the script ...`,
/// which was taken for an error about one key.
#[test]
fn lost_permission_is_reported_as_a_refusal() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        add_documented_user(&server);
        run(async {
            let store = connect(format!("redis://tidegate:pass@{}", server.address())).await;
            wait_until_recovered(&store).await;
            let _: () = server.command(&["ACL", "SETUSER", "tidegate", "-set", "-incrby"]);
            wait_until_refused(&store, "").await;
            let reason = store.last_error().expect("a reason");
            let known = ["The user executing the script can't", "ACL failure in script", "NOPERM"];
            assert!(known.iter().any(|excerpt| reason.contains(excerpt)), "{reason}");
            let _: () = server.command(&["ACL", "SETUSER", "tidegate", "+set", "+incrby"]);
            wait_until_recovered(&store).await;
        });
    }
}

#[test]
fn long_running_script_is_reported_as_a_refusal() {
    for engine in Engine::ALL {
        let server = Server::with(engine, &["--busy-reply-threshold", "10"]);
        run(async {
            let store = connect(server.url()).await;
            wait_until_recovered(&store).await;
            let forever = ["EVAL", "while true do end", "0"];
            std::thread::scope(|scope| {
                let script = scope.spawn(|| server.try_command::<()>(&forever));
                tokio::task::block_in_place(|| {
                    tokio::runtime::Handle::current().block_on(wait_until_refused(&store, "BUSY"));
                });
                let _: () = server.command(&["SCRIPT", "KILL"]);
                assert!(script.join().expect("it ran").is_err(), "it was killed");
            });
            wait_until_recovered(&store).await;
        });
    }
}

/// Regression: a demoted primary continued to deny, because a denial writes nothing.
#[test]
fn demoted_primary_no_longer_decides() {
    for engine in Engine::ALL {
        for deny_cache in [true, false] {
            let server = Server::start(engine);
            run(async {
                let store =
                    connect_with(RedisOptions { deny_cache, ..options(server.url()) }).await;
                let one = limit("1 per 1d sliding-log");
                assert!(check(&store, "alice", &one, 1).await.expect("a decision").allowed);
                assert!(!check(&store, "alice", &one, 1).await.expect("a decision").allowed);
                // Its primary cannot be reached, so it keeps its data.
                let _: () = server.command(&["REPLICAOF", "127.0.0.1", "1"]);
                let down = Err(StoreError::Failed(Failure::Down));
                eventually("it no longer decides", async || {
                    check(&store, "alice", &one, 1).await == down
                })
                .await;
                assert!(!store.stats().up);
                eventually("it is known why", async || {
                    store.last_error().is_some_and(|error| error.contains("replica"))
                })
                .await;
                let _: () = server.command(&["REPLICAOF", "NO", "ONE"]);
                eventually("it decides again", async || {
                    check(&store, "alice", &one, 1).await.is_ok_and(|decision| !decision.allowed)
                })
                .await;
            });
        }
    }
}

/// Regression: for `GET` and others, the error only stated that a command is invalid.
#[test]
fn renamed_command_is_reported_by_name() {
    let commands =
        ["EVALSHA", "SCRIPT", "INFO", "GET", "MGET", "SET", "SETRANGE", "INCRBY", "DEL", "TIME"];
    for engine in Engine::ALL {
        for command in commands {
            let server = Server::with(engine, &["--rename-command", command, "hidden"]);
            let refused = run(RedisStore::connect(options(server.url()))).expect_err(command);
            let expected = format!(
                "the store cannot be used: it does not know the command {command}: undo its \
                 `rename-command`"
            );
            assert_eq!(refused.to_string(), expected, "{engine:?}");
        }
    }
}

#[test]
fn a_foreign_value_is_counted_without_its_key() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        run(async {
            let store = connect(server.url()).await;
            let mut found = 0;
            for text in LIMITS.into_iter().chain(["5 per 1d token-bucket"]) {
                let limit = limit(text);
                let key = b"api\0sk_live_secret";
                let name = String::from_utf8(KeyNames::new("tg").state(key, &limit)).expect("text");
                for put in [["SET", &name, "hello"], ["RPUSH", &name, "hello"]] {
                    let _: i64 = server.command(&["DEL", &name]);
                    let _: redis::Value = server.command(&put);
                    let key = std::str::from_utf8(key).expect("text");
                    let result = check(&store, key, &limit, 1).await;
                    assert!(matches!(result, Err(StoreError::Failed(Failure::Refused(_)))));
                    found += 1;
                    assert_eq!(store.stats().foreign, found, "{text}");
                    let description = store.last_foreign().expect("a description");
                    assert!(
                        description.starts_with("policy `api`, key with SHA-256 "),
                        "{description}"
                    );
                    assert!(!description.contains("sk_live"), "{description}");
                }
            }
            assert!(store.stats().up, "other keys are answered");
        });
    }
}

/// Waits until data was lost in this way, and only in this way.
async fn wait_until_lost(store: &RedisStore, loss: DataLoss, excerpt: &str) {
    let lost = || store.stats().data_losses[loss as usize];
    eventually("it is noticed", async || lost() == 1).await;
    assert_eq!(store.stats().data_losses.iter().sum::<u64>(), 1);
    let text = store.last_data_loss().expect("a description");
    assert!(text.contains(excerpt), "{text}");
}

#[test]
fn lost_data_is_noticed() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        run(async {
            let store = connect(server.url()).await;
            wait_until_recovered(&store).await;
            // An empty store and keys that are deleted are not lost data.
            let _: i64 = server.command(&["DEL", "tg:2:{alice}c1d", "tg:2:{alice}l1d"]);
            let _: i64 = server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
            eventually("it reconnects", async || store.stats().connections == 2).await;
            assert!(check(&store, "alice", &limit(LIMITS[0]), 1).await.expect("one").allowed);
            assert_eq!(store.stats().data_losses, [0; 3]);
            let _: () = server.command(&["FLUSHALL"]);
            // Nothing is sent meanwhile: the connection looks by itself.
            wait_until_lost(&store, DataLoss::Flush, "FLUSHALL").await;
            assert!(store.stats().up);
        });
    }
}

#[test]
fn restart_of_the_store_is_noticed() {
    for engine in Engine::ALL {
        let mut server = Server::start(engine);
        run(async {
            let store = connect(server.url()).await;
            wait_until_recovered(&store).await;
            server.kill();
            server.restart();
            wait_until_lost(&store, DataLoss::Restart, " s ago, and has 0").await;
            assert!(store.last_data_loss().expect("one").starts_with(&server.address()));
        });
    }
}

#[test]
fn eviction_is_noticed() {
    for engine in Engine::ALL {
        let server = Server::with(engine, &["--maxmemory-policy", "allkeys-lru"]);
        run(async {
            let store = connect(server.url()).await;
            wait_until_recovered(&store).await;
            let _: () = server.command(&["CONFIG", "SET", "maxmemory", "1"]);
            let lost = || store.stats().data_losses[DataLoss::Eviction as usize];
            eventually("it is noticed", async || {
                // The server evicts keys when a command is run. The result does not matter.
                drop(check(&store, "alice", &limit(LIMITS[0]), 1).await);
                lost() > 0
            })
            .await;
            let text = store.last_data_loss().expect("a description");
            assert!(text.contains("keys for lack of memory"), "{text}");
        });
    }
}
