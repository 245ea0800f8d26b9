//! The tests of the library, in one binary.
//!
//! With `--cfg loom` only `loom.rs` is compiled: the atomics of the store are then those of loom,
//! which work only inside a model.

#[cfg(not(loom))]
mod common;
#[cfg(not(loom))]
#[cfg_attr(
    not(all(feature = "config", feature = "tower")),
    allow(dead_code, reason = "each uses some of it")
)]
mod flaky_store;
#[cfg(not(loom))]
mod futures;
#[cfg(not(loom))]
mod generators;

#[cfg(all(not(loom), feature = "config"))]
mod admission;
#[cfg(not(loom))]
mod allocations;
#[cfg(not(loom))]
mod any_store;
#[cfg(not(loom))]
mod bounds;
#[cfg(not(loom))]
mod clocks;
#[cfg(all(not(loom), feature = "config"))]
mod combined_requests;
#[cfg(not(loom))]
mod concurrency;
#[cfg(all(not(loom), feature = "config"))]
mod config;
#[cfg(not(loom))]
mod denial_errors;
#[cfg(all(not(loom), feature = "config"))]
mod envoy;
#[cfg(all(not(loom), feature = "policies"))]
mod full_store;
#[cfg(all(not(loom), feature = "config"))]
mod gate;
#[cfg(all(not(loom), feature = "policies"))]
mod headers;
#[cfg(not(loom))]
mod idempotency;
#[cfg(all(not(loom), feature = "policies"))]
mod identity;
#[cfg(not(loom))]
mod log_bound;
#[cfg(loom)]
mod loom;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod overflow;
#[cfg(all(not(loom), feature = "config"))]
mod overflow_policies;
#[cfg(not(loom))]
mod permits;
#[cfg(all(not(loom), feature = "config"))]
mod policy;
#[cfg(all(not(loom), feature = "policies"))]
mod problems;
#[cfg(all(not(loom), feature = "redis"))]
mod redis;
#[cfg(not(loom))]
mod requests;
#[cfg(not(loom))]
mod reservations;
#[cfg(all(not(loom), feature = "config"))]
mod shared;
#[cfg(all(not(loom), feature = "policies"))]
mod stats;
#[cfg(all(not(loom), feature = "tower"))]
mod tower;
#[cfg(not(loom))]
mod traces;
#[cfg(not(loom))]
mod vectors;
#[cfg(not(loom))]
mod verdicts;
#[cfg(not(loom))]
mod wait;
