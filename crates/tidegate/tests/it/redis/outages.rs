//! Servers that go away, fall silent, forget or refuse.

use std::time::Duration;

use tidegate::redis::{RedisOptions, RedisStore};
use tidegate::unstable::redis::Names;
use tidegate::{Failure, Limit, StoreError};

use super::servers::{Engine, Server, connect, connect_with, eventually, options, run, run_on};
use super::{ask, limit};

/// The limit most tests count under; nothing here reaches it.
fn roomy() -> Limit {
    limit("1000 per 1d")
}

async fn failure(store: &RedisStore, key: &str) -> Failure {
    match ask(store, key, &roomy(), 1).await {
        Err(StoreError::Failed(failure)) => failure,
        other => panic!("not a failure: {other:?}"),
    }
}

/// Asks until there is an answer again.
async fn recovers(store: &RedisStore) {
    eventually("it recovers", async || ask(store, "after", &roomy(), 1).await.is_ok()).await;
    assert!(store.stats().up);
}

#[test]
fn scripts_that_were_flushed_are_taught_again() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        run(async {
            let store = connect(server.url()).await;
            let log = limit("1000 per 1d sliding-log");
            for round in 1..=3 {
                let _: () = server.ask(&["SCRIPT", "FLUSH"]);
                // The counter's script and the one for everything else.
                for limit in [&roomy(), &log] {
                    let decision = ask(&store, "alice", limit, 1).await.expect("an answer");
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
        let _ = ask(&store, "alice", &roomy(), 1).await.expect("an answer");
        for round in 1..=3 {
            server.kill();
            // Its end is noticed without asking; whoever is quicker has lost an answer.
            let first = failure(&store, "alice").await;
            assert!(matches!(first, Failure::Down | Failure::Lost), "{first:?}");
            eventually("it is noticed", async || !store.stats().up).await;
            assert_eq!(failure(&store, "alice").await, Failure::Down);
            server.restart();
            recovers(&store).await;
            assert_eq!(store.last_error(), None);
            let openings = store.stats().breaker_openings;
            assert!(openings >= round, "{openings}");
        }
        // It came back empty, and is counted anew.
        let decision = ask(&store, "alice", &roomy(), 1).await.expect("an answer");
        assert_eq!(decision.remaining, 999);
    });
}

#[test]
fn a_silent_server_is_given_up_and_found_again() {
    for one_thread in [false, true] {
        let server = Server::start(Engine::Redis);
        run_on(one_thread, async {
            let quick =
                RedisOptions { timeout: Duration::from_millis(50), ..options(server.url()) };
            let store = connect_with(quick).await;
            recovers(&store).await;
            server.pause();
            let mut kinds = [0; 2];
            while store.stats().up {
                match failure(&store, "alice").await {
                    Failure::TimedOut => kinds[0] += 1,
                    Failure::Down => kinds[1] += 1,
                    other => panic!("{other:?}"),
                }
            }
            // It took a few time-outs to give it up, and then nobody waits any more.
            assert!((1..=8).contains(&kinds[0]), "{kinds:?}");
            for _ in 0..1000 {
                assert_eq!(failure(&store, "alice").await, Failure::Down);
            }
            server.resume();
            recovers(&store).await;
        });
    }
}

#[test]
fn another_type_at_a_key_is_an_error_and_stays() {
    let server = Server::start(Engine::Redis);
    run(async {
        let store = connect(server.url()).await;
        let names = Names::new("tg");
        let algorithms = ["sliding-counter", "sliding-log", "token-bucket", "fixed-window"];
        for algorithm in algorithms {
            let limit = limit(&format!("5 per 1d {algorithm}"));
            let name = String::from_utf8(names.state(b"alice", &limit)).expect("text");
            let _: () = server.ask(&["RPUSH", &name, "somebody's"]);
            let answer = ask(&store, "alice", &limit, 1).await;
            let Err(StoreError::Failed(Failure::Refused(text))) = answer else {
                panic!("{algorithm}: {answer:?}");
            };
            assert!(text.contains("WRONGTYPE"), "{text}");
            let kept: Vec<String> = server.ask(&["LRANGE", &name, "0", "-1"]);
            assert_eq!(kept, ["somebody's"]);
            // Text that is no state of ours is not taken for one either.
            let _: () = server.ask(&["SET", &name, "somebody's"]);
            let answer = ask(&store, "alice", &limit, 1).await;
            assert!(matches!(answer, Err(StoreError::Failed(Failure::Refused(_)))), "{answer:?}");
            assert!(ask(&store, "bob", &limit, 1).await.expect("an answer").allowed);
        }
        assert!(store.stats().up);
    });
}

#[test]
fn a_server_that_becomes_a_replica_is_left() {
    let (server, other) = (Server::start(Engine::Redis), Server::start(Engine::Redis));
    run(async {
        let store = connect(server.url()).await;
        recovers(&store).await;
        let _: () = server.ask(&["REPLICAOF", "127.0.0.1", &other.port.to_string()]);
        eventually("it is left", async || {
            ask(&store, "alice", &roomy(), 1).await == Err(StoreError::Failed(Failure::Down))
        })
        .await;
        eventually("it is known why", async || {
            store.last_error().is_some_and(|error| error.contains("replica"))
        })
        .await;
        let _: () = server.ask(&["REPLICAOF", "NO", "ONE"]);
        recovers(&store).await;
    });
}

#[test]
fn credentials_that_change_are_a_failure_with_a_reason() {
    let server = Server::start(Engine::Redis);
    run(async {
        let store = connect(server.url()).await;
        recovers(&store).await;
        let _: () = server.ask(&["CONFIG", "SET", "requirepass", "s3cret"]);
        // Who is connected stays so; new connections are refused.
        let _: u32 = server_as(&server, ":s3cret@", &["CLIENT", "KILL", "TYPE", "normal"]);
        eventually("it is known why", async || {
            store.last_error().is_some_and(|error| error.contains("credentials"))
        })
        .await;
        assert_eq!(failure(&store, "alice").await, Failure::Down);
        let _: () = server_as(&server, ":s3cret@", &["CONFIG", "SET", "requirepass", ""]);
        recovers(&store).await;
    });
}

fn server_as<T: ::redis::FromRedisValue>(server: &Server, login: &str, command: &[&str]) -> T {
    let client = ::redis::Client::open(format!("redis://{login}{}", server.address()));
    let mut connection = client.expect("a URL").get_connection().expect("a connection");
    ::redis::cmd(command[0]).arg(&command[1..]).query(&mut connection).expect("an answer")
}

#[test]
fn a_dropped_store_leaves_nothing_behind() {
    for one_thread in [false, true] {
        let server = Server::start(Engine::Redis);
        let clients = || server.info("connected_clients");
        let alone = clients();
        run_on(one_thread, async {
            let stores = [connect(server.url()).await, connect(server.url()).await];
            let clone = stores[0].clone();
            recovers(&stores[1]).await;
            assert_ne!(clients(), alone);
            drop(stores);
            recovers(&clone).await;
            drop(clone);
            eventually("its connections end", async || clients() == alone).await;
        });
    }
}

/// It was said to be up, while not one request was answered.
#[test]
fn a_server_that_refuses_everybody_is_not_up() {
    let rows = [("maxmemory", "OOM"), ("min-replicas-to-write", "NOREPLICAS")];
    for engine in Engine::ALL {
        let server = Server::start(engine);
        run(async {
            let store = connect(server.url()).await;
            for (setting, code) in rows {
                let _: () = server.ask(&["CONFIG", "SET", setting, "1"]);
                for limit in [roomy(), limit("1000 per 1d sliding-log")] {
                    let answer = ask(&store, code, &limit, 1).await;
                    let Err(StoreError::Failed(Failure::Refused(text))) = answer else {
                        panic!("{engine:?}: {answer:?}");
                    };
                    assert!(text.starts_with(code), "{text}");
                }
                eventually("it is told", async || !store.stats().up).await;
                let told = store.last_error().expect("a reason");
                assert!(told.starts_with(&format!("the store refuses: {code} ")), "{told}");
                // It is asked all the same, and so it is seen when that is over.
                let _: () = server.ask(&["CONFIG", "SET", setting, "0"]);
                let decision = ask(&store, code, &roomy(), 1).await.expect("an answer");
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
