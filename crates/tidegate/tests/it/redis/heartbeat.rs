//! Heartbeats: nodes that share a store know each other.

use std::time::Duration;

use tidegate::Store;
use tidegate::redis::{LiveNode, RedisOptions, RedisStore};

use super::servers::{
    Cluster, Engine, Server, add_documented_user, connect, connect_with, eventually, options, run,
};

const KEY: &str = "tg:2:nodes";

fn names(store: &RedisStore) -> Vec<String> {
    store.live_nodes().into_iter().map(|node| node.name).collect()
}

/// Announces nodes with these names, and waits until each knows the others.
async fn announce(url: &str, all: [&str; 3]) -> Vec<RedisStore> {
    let mut stores = Vec::new();
    for name in all {
        let timeout = Duration::from_secs(5);
        let store = connect_with(RedisOptions { timeout, ..options(url) }).await;
        assert_eq!((store.nodes(), store.live_nodes()), (None, Vec::new()));
        store.announce(name, 7);
        stores.push(store);
    }
    for store in &stores {
        eventually("it knows all nodes", async || names(store) == all).await;
        assert_eq!(store.nodes(), Some(3));
    }
    stores
}

#[test]
fn nodes_know_each_other() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        add_documented_user(&server);
        let url = format!("redis://tidegate:pass@{}", server.address());
        // A value of another form does not matter.
        let _: () = server.command(&["SET", KEY, "a value that is not a table of nodes"]);
        run(async {
            let stores = announce(&url, ["a", "b", "c"]).await;
            let left: u64 = server.command(&["PTTL", KEY]);
            assert!((1..=15_002).contains(&left), "{left}");
            for (store, name) in stores.iter().zip(["a", "b", "c"]) {
                let nodes = store.live_nodes();
                let own: Vec<&LiveNode> = nodes.iter().filter(|node| node.is_self).collect();
                assert_eq!((own.len(), own[0].name.as_str()), (1, name));
                assert!(nodes.iter().all(|node| node.fingerprint == 7), "{nodes:?}");
                assert!(nodes.iter().all(|node| node.last_seen < Duration::from_secs(60)));
            }
            // A changed announcement is sent immediately, and the others learn of it.
            stores[0].announce("a", 8);
            eventually("it is known", async || {
                stores[2].live_nodes().iter().any(|node| node.name == "a" && node.fingerprint == 8)
            })
            .await;
            stores[1].withdraw().await;
            eventually("it is gone", async || names(&stores[0]) == ["a", "c"]).await;
        });
    }
}

#[test]
fn nodes_know_each_other_through_a_cluster() {
    let cluster = Cluster::start(Engine::Redis);
    run(async {
        let stores = announce(&cluster.url(), ["a", "b", "c"]).await;
        drop(stores);
    });
}

/// The share of a node must not grow because the store fails or lost its data.
#[test]
fn number_of_nodes_is_kept_while_the_store_fails() {
    let mut server = Server::start(Engine::Redis);
    run(async {
        let stores = announce(&server.url(), ["a", "b", "c"]).await;
        server.kill();
        eventually("it is noticed", async || !stores[0].stats().up).await;
        stores[0].announce("a", 9);
        assert_eq!(stores[0].nodes(), Some(3));
        server.restart();
        eventually("it is up", async || stores[0].stats().up).await;
        stores[0].announce("a", 10);
        eventually("it knows itself", async || {
            stores[0].live_nodes().iter().any(|node| node.fingerprint == 10)
        })
        .await;
        assert_eq!(stores[0].nodes(), Some(3));
    });
}

/// An entry of the table.
fn entry(id: u64, seen_us: u64) -> Vec<u8> {
    let description = [&[0; 8][..], b"other"].concat();
    let length = u8::try_from(description.len()).expect("short");
    [&id.to_le_bytes()[..], &seen_us.to_le_bytes(), &[length], &description].concat()
}

#[test]
fn table_is_bounded_and_nodes_expire() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        run(async {
            let store = connect(server.url()).await;
            let mut connection = server.connection().expect("a connection");
            let mut set = |entries: Vec<Vec<u8>>| {
                let mut set = redis::cmd("SET");
                set.arg(KEY).arg(entries.concat()).exec(&mut connection).expect("it is set");
            };
            let (seconds, micros): (u64, u64) = server.command(&["TIME"]);
            let now = seconds * 1_000_000 + micros;
            // The times of two nodes are too far in the past and in the future.
            let far = [now - 15_000_000, now + 600_000_000];
            let near = [now, now + 10_000_000];
            let times = far.into_iter().chain(near).enumerate();
            set(times.map(|(id, seen)| entry(id as u64, seen)).collect());
            store.announce("own", 1);
            eventually("it knows them", async || names(&store) == ["other", "other", "own"]).await;
            assert_eq!(store.nodes(), Some(3));
            // There is room for 256 nodes. A further one knows the others, and counts itself.
            set((0..300).map(|id| entry(id, now + 10_000_000)).collect());
            store.announce("own", 2);
            eventually("it knows as many as fit", async || store.nodes() == Some(257)).await;
            assert_eq!(names(&store), vec!["other"; 256]);
        });
    }
}
