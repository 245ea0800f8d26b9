//! Tests of the Redis store on real servers.
//!
//! If the program of a server is missing, the tests fail and name it. `scripts/lib/redis.sh`
//! installs the programs.
//!
//! - `parity.rs`, `lease_parity.rs`, `vectors.rs`, `traces.rs`, `state.rs`, `real_server.rs`,
//!   `idempotency.rs`, `permits.rs`: the decisions and states are those of the core and of the
//!   memory store;
//! - `key_names.rs`, `foreign_values.rs`, `failures.rs`, `slot_parts.rs`: names of keys, values
//!   that are not states, servers that refuse calls, requests over several slots;
//! - `client.rs`: a plain client; `servers/`: single servers, Sentinels, clusters, TLS, a proxy,
//!   and stores over them;
//! - `connect.rs`: connecting, and the errors of it; `outages.rs`: servers that fail; `health.rs`:
//!   servers that answer but do not decide;
//! - `heartbeat.rs`: nodes that know each other;
//! - `batches.rs`: callers that share writes; `ordering.rs`: the order of one caller's checks;
//!   `overload.rs`: more checks than a server can answer; `concurrent_nodes.rs`: several stores
//!   that share a limit;
//! - `deny_cache.rs`: denials that are answered from memory; `leases.rs`: units of hot keys that
//!   nodes spend without a round trip;
//! - `dropped_acquires.rs`: acquires that nobody waits for; `limiter.rs`: the limiter over a
//!   server;
//! - `sentinel.rs`, `cluster.rs`: failover, and slots that are migrated.

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
mod heartbeat;
mod idempotency;
mod key_names;
mod lease_parity;
mod leases;
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

/// Decides one check.
async fn check(
    store: &RedisStore,
    key: &str,
    limit: &Limit,
    cost: impl Into<Cost>,
) -> Result<Decision, StoreError> {
    let checks = [Check::new(key, limit, cost)];
    Ok(store.decide(&Request::new(&checks)).await?.decisions()[0])
}

/// The units that are left of a limit, from a peek.
async fn remaining(store: &RedisStore, key: &str, limit: &Limit) -> u64 {
    check(store, key, limit, Cost::PEEK).await.expect("a decision").remaining
}
