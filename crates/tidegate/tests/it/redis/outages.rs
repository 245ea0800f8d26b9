//! Servers that are killed, do not answer, lose their scripts or refuse calls.

use std::time::Duration;

use tidegate::redis::{RedisOptions, RedisStore};
use tidegate::unstable::redis::KeyNames;
use tidegate::{Failure, Limit, StoreError};

use super::servers::{Engine, Server, connect, connect_with, eventually, options, run, run_on};
use super::{check, limit};

/// The limit of most tests, which none of them reaches.
fn large_limit() -> Limit {
    limit("1000 per 1d")
}

async fn failure(store: &RedisStore, key: &str) -> Failure {
    match check(store, key, &large_limit(), 1).await {
        Err(StoreError::Failed(failure)) => failure,
        other => panic!("not a failure: {other:?}"),
    }
}

/// Sends requests until one is answered.
async fn wait_until_recovered(store: &RedisStore) {
    eventually("it recovers", async || check(store, "after", &large_limit(), 1).await.is_ok())
        .await;
    assert!(store.stats().up);
}

#[test]
fn flushed_scripts_are_loaded_again() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        run(async {
            let store = connect(server.url()).await;
            // The counter has a separate script.
            let counter = limit("1000 per 1d sliding-counter");
            for round in 1..=3 {
                let _: () = server.command(&["SCRIPT", "FLUSH"]);
                for limit in [&large_limit(), &counter] {
                    let decision = check(&store, "alice", limit, 1).await.expect("a decision");
                    assert_eq!(decision.remaining, 1000 - round, "{engine:?} {limit}");
                }
            }
            assert_eq!(store.stats().resent, 3, "one teaches all");
        });
    }
}

#[test]
fn a_server_that_was_killed_is_down_until_it_is_back() {
    let mut server = Server::start(Engine::Redis);
    run(async {
        let store = connect(server.url()).await;
        let _ = check(&store, "alice", &large_limit(), 1).await.expect("a decision");
        for round in 1..=3 {
            server.kill();
            // The closed connection is noticed without a call. A call that is sent before that is
            // lost.
            let first = failure(&store, "alice").await;
            assert!(matches!(first, Failure::Down | Failure::Lost), "{first:?}");
            eventually("it is noticed", async || !store.stats().up).await;
            assert_eq!(failure(&store, "alice").await, Failure::Down);
            server.restart();
            wait_until_recovered(&store).await;
            assert_eq!(store.last_error(), None);
            let openings = store.stats().breaker_openings;
            assert!(openings >= round, "{openings}");
        }
        // The server has restarted without data, so counting starts again.
        let decision = check(&store, "alice", &large_limit(), 1).await.expect("a decision");
        assert_eq!(decision.remaining, 999);
    });
}

#[test]
fn silent_server_is_disconnected_and_reconnected() {
    for one_thread in [false, true] {
        let server = Server::start(Engine::Redis);
        run_on(one_thread, async {
            let quick =
                RedisOptions { timeout: Duration::from_millis(50), ..options(server.url()) };
            let store = connect_with(quick).await;
            wait_until_recovered(&store).await;
            server.pause();
            let mut kinds = [0; 2];
            while store.stats().up {
                match failure(&store, "alice").await {
                    Failure::TimedOut => kinds[0] += 1,
                    Failure::Down => kinds[1] += 1,
                    other => panic!("{other:?}"),
                }
            }
            // The server counts as down after a few timeouts, and then callers fail immediately.
            assert!((1..=8).contains(&kinds[0]), "{kinds:?}");
            for _ in 0..1000 {
                assert_eq!(failure(&store, "alice").await, Failure::Down);
            }
            server.resume();
            wait_until_recovered(&store).await;
        });
    }
}

#[test]
fn value_of_another_type_is_an_error_and_stays() {
    let server = Server::start(Engine::Redis);
    run(async {
        let store = connect(server.url()).await;
        let names = KeyNames::new("tg");
        let algorithms = ["sliding-counter", "sliding-log", "token-bucket", "fixed-window"];
        for algorithm in algorithms {
            let limit = limit(&format!("5 per 1d {algorithm}"));
            let name = String::from_utf8(names.state(b"alice", &limit)).expect("text");
            let _: () = server.command(&["RPUSH", &name, "somebody's"]);
            let result = check(&store, "alice", &limit, 1).await;
            let Err(StoreError::Failed(Failure::Refused(text))) = result else {
                panic!("{algorithm}: {result:?}");
            };
            assert!(text.contains("WRONGTYPE"), "{text}");
            let kept: Vec<String> = server.command(&["LRANGE", &name, "0", "-1"]);
            assert_eq!(kept, ["somebody's"]);
            // A string that is not a state is an error, too.
            let _: () = server.command(&["SET", &name, "somebody's"]);
            let result = check(&store, "alice", &limit, 1).await;
            assert!(matches!(result, Err(StoreError::Failed(Failure::Refused(_)))), "{result:?}");
            assert!(check(&store, "bob", &limit, 1).await.expect("a decision").allowed);
        }
        assert!(store.stats().up);
    });
}

#[test]
fn demoted_primary_is_disconnected() {
    let (server, other) = (Server::start(Engine::Redis), Server::start(Engine::Redis));
    run(async {
        let store = connect(server.url()).await;
        wait_until_recovered(&store).await;
        let _: () = server.command(&["REPLICAOF", "127.0.0.1", &other.port.to_string()]);
        eventually("it is left", async || {
            check(&store, "alice", &large_limit(), 1).await
                == Err(StoreError::Failed(Failure::Down))
        })
        .await;
        eventually("it is known why", async || {
            store.last_error().is_some_and(|error| error.contains("replica"))
        })
        .await;
        let _: () = server.command(&["REPLICAOF", "NO", "ONE"]);
        wait_until_recovered(&store).await;
    });
}

#[test]
fn changed_credentials_fail_with_a_reason() {
    let server = Server::start(Engine::Redis);
    run(async {
        let store = connect(server.url()).await;
        wait_until_recovered(&store).await;
        let _: () = server.command(&["CONFIG", "SET", "requirepass", "s3cret"]);
        // Existing connections stay open, and new ones are refused.
        let _: u32 = run_command_as(&server, ":s3cret@", &["CLIENT", "KILL", "TYPE", "normal"]);
        eventually("it is known why", async || {
            store.last_error().is_some_and(|error| error.contains("credentials"))
        })
        .await;
        assert_eq!(failure(&store, "alice").await, Failure::Down);
        let _: () = run_command_as(&server, ":s3cret@", &["CONFIG", "SET", "requirepass", ""]);
        wait_until_recovered(&store).await;
    });
}

fn run_command_as<T: ::redis::FromRedisValue>(server: &Server, login: &str, command: &[&str]) -> T {
    let client = ::redis::Client::open(format!("redis://{login}{}", server.address()));
    let mut connection = client.expect("a URL").get_connection().expect("a connection");
    ::redis::cmd(command[0]).arg(&command[1..]).query(&mut connection).expect("a reply")
}

#[test]
fn dropped_store_closes_its_connections() {
    for one_thread in [false, true] {
        let server = Server::start(Engine::Redis);
        // The connection that asks is one of them.
        let has_no_others = || server.info("connected_clients") == "1";
        run_on(one_thread, async {
            // The connection that waited for the server may not have ended yet.
            eventually("the server has no clients", async || has_no_others()).await;
            let stores = [connect(server.url()).await, connect(server.url()).await];
            let clone = stores[0].clone();
            wait_until_recovered(&stores[1]).await;
            assert!(!has_no_others());
            drop(stores);
            wait_until_recovered(&clone).await;
            drop(clone);
            eventually("its connections end", async || has_no_others()).await;
        });
    }
}

/// Regression: the store was reported as up although it answered no request.
#[test]
fn server_that_refuses_all_calls_is_not_up() {
    let rows = [("maxmemory", "OOM"), ("min-replicas-to-write", "NOREPLICAS")];
    for engine in Engine::ALL {
        let server = Server::start(engine);
        run(async {
            let store = connect(server.url()).await;
            for (setting, code) in rows {
                let _: () = server.command(&["CONFIG", "SET", setting, "1"]);
                for limit in [large_limit(), limit("1000 per 1d sliding-log")] {
                    let result = check(&store, code, &limit, 1).await;
                    let Err(StoreError::Failed(Failure::Refused(text))) = result else {
                        panic!("{engine:?}: {result:?}");
                    };
                    assert!(text.starts_with(code), "{text}");
                }
                eventually("it is told", async || !store.stats().up).await;
                let reason = store.last_error().expect("a reason");
                assert!(reason.starts_with(&format!("the store refuses: {code} ")), "{reason}");
                // Calls are still sent, which shows when the refusal ends.
                let _: () = server.command(&["CONFIG", "SET", setting, "0"]);
                let decision = check(&store, code, &large_limit(), 1).await.expect("a decision");
                assert_eq!(decision.remaining, 999, "nothing was charged");
                eventually("that is told", async || {
                    store.stats().up && store.last_error().is_none()
                })
                .await;
                assert_eq!(store.stats().breaker_openings, 0);
            }
        });
    }
}
