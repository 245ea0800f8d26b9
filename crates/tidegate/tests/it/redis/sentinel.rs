//! Failover by Sentinel.

use tidegate::redis::DataLoss;

use super::servers::{NAME, Sentinel, connect, eventually, run};
use super::{check, limit};

#[test]
fn a_failover_is_followed() {
    let stand = Sentinel::start();
    run(async {
        let store = connect(stand.url()).await;
        let limit = limit("1000 per 1d");
        let was = stand.primary();
        // The old primary becomes a replica. A client that stayed connected to it would get
        // READONLY for ever.
        eventually("it finds the replica fit", async || {
            stand.sentinel.try_command::<()>(&["SENTINEL", "FAILOVER", NAME]).is_ok()
        })
        .await;
        eventually("the failover", async || {
            // The result does not matter.
            let _ = check(&store, "alice", &limit, 1).await;
            stand.primary() != was
        })
        .await;
        let now = &stand.servers[stand.primary()];
        eventually("it is followed", async || {
            check(&store, "bob", &limit, 1).await.is_ok()
                && now.command::<u32>(&["EXISTS", "tg:2:{bob}w1d"]) == 1
        })
        .await;
        assert!(store.stats().up);
        assert_eq!(now.info("role"), "master");
    });
}

#[test]
fn a_killed_primary_is_replaced() {
    let mut stand = Sentinel::start();
    run(async {
        let store = connect(stand.url()).await;
        let limit = limit("1000 per 1d");
        let _ = check(&store, "alice", &limit, 1).await.expect("a decision");
        let was = stand.primary();
        stand.servers[was].kill();
        eventually("another takes over", async || check(&store, "bob", &limit, 1).await.is_ok())
            .await;
        let now = stand.primary();
        assert_ne!(now, was);
        let servers = store.servers();
        let [server] = servers.as_slice() else { panic!("one server: {servers:?}") };
        assert_eq!((&server.address, server.up), (&stand.servers[now].address(), true));
        let losses = || store.stats().data_losses[DataLoss::Restart as usize];
        eventually("it is noticed", async || losses() == 1).await;
        // Units that had been replicated still count.
        let decision = check(&store, "alice", &limit, 1).await.expect("a decision");
        assert!(decision.remaining == 998 || decision.remaining == 999, "{decision:?}");
    });
}
