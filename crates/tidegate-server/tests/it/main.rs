//! The `tidegate` binary, run as users run it.
//!
//! - `harness.rs` runs it and keeps its files;
//! - `formats.rs`: what it reads; `output.rs`: what it writes; `bad_input.rs`: what it refuses;
//! - `generated.rs`: seeded traces against a naive limiter (`naive.rs`) and committed digests;
//! - `config.rs`: `config` and `explain`;
//! - `recorded.rs`: real traces with known answers, where they are at hand.

mod bad_input;
mod config;
mod formats;
mod generated;
mod harness;
mod naive;
mod output;
mod recorded;
