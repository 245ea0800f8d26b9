//! The proof of the memory store and the limiter, in one binary.
//!
//! Under `--cfg loom` only `loom.rs` is compiled: the store's atomics are then
//! loom's, which work inside a model alone.

#[cfg(not(loom))]
mod common;

#[cfg(not(loom))]
mod bounds;
#[cfg(not(loom))]
mod log_bound;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod vectors;

#[cfg(loom)]
mod loom;
