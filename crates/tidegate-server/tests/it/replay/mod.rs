//! `tidegate replay` and `tidegate simulate`.
//!
//! - `formats.rs`, `format_equivalence.rs`: what is read; `output.rs`: what is written;
//!   `bad_input.rs`: what is rejected;
//! - `reports.rs`: pages, policies, suggestions, hints; `simulate.rs`: simulated traffic;
//! - `generated_traces.rs`: seeded traces against a naive limiter (`naive_limiter.rs`) and committed
//!   digests;
//! - `recorded_traces.rs`: real traces with known answers, where they are available.

mod bad_input;
mod format_equivalence;
mod formats;
mod generated_traces;
mod naive_limiter;
mod output;
mod recorded_traces;
mod reports;
mod simulate;
