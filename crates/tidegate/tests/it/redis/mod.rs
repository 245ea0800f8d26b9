//! The proof of the Redis store, on real servers.
//!
//! Where a server's program is missing these tests fail and say which. See
//! `scripts/lib/redis.sh` for where they come from.
//!
//! - `parity.rs`, `vectors.rs`, `traces.rs`, `state.rs`, `live.rs`, `ids.rs`, `permits.rs`: the same
//!   decisions as in memory; `names.rs`, `foreign.rs`, `failures.rs`, `parts.rs`: keys, what is not ours, what is refused, cut or undone;
//! - `servers/`: servers, alone, watched by Sentinel, in a cluster, behind TLS, and stores over them;
//! - `connect.rs`: what works and what is refused; `outages.rs`: servers that go away; `health.rs`: servers that do not decide;
//! - `batches.rs`: callers that go together; `order.rs`: checks of one caller; `overload.rs`: more than a server answers; `nodes.rs`: many stores, one limit;
//! - `denials.rs`: what is answered from memory;
//! - `abandoned.rs`: acquires that nobody waits for; `limiter.rs`: the limiter over a server;
//! - `sentinel.rs`, `cluster.rs`: failover, slots and their moves.

mod batches;
mod client;
mod cluster;
mod concurrent_nodes;
mod connect;
mod deny_cache;
mod dropped_acquires;
mod failures;
mod foreign_values;
mod health;
mod idempotency;
mod key_names;
mod limiter;
mod ordering;
mod outages;
mod overload;
mod parity;
mod permits;
mod real_server;
mod sentinel;
mod servers;
mod slot_parts;
mod state;
mod traces;
mod vectors;

use tidegate::redis::RedisStore;
use tidegate::{Check, Cost, Decision, Limit, Request, Store, StoreError};

fn limit(text: &str) -> Limit {
    text.parse().expect("a limit")
}

/// One check on its own.
async fn ask(
    store: &RedisStore,
    key: &str,
    limit: &Limit,
    cost: impl Into<Cost>,
) -> Result<Decision, StoreError> {
    let checks = [Check::new(key, limit, cost)];
    Ok(store.decide(&Request::new(&checks)).await?.decisions()[0])
}

/// The units left of a limit, by asking without charging.
async fn remaining(store: &RedisStore, key: &str, limit: &Limit) -> u64 {
    ask(store, key, limit, Cost::PEEK).await.expect("an answer").remaining
}
