//! `tidegate replay` and `tidegate simulate`.
//!
//! - `formats.rs`, `access_logs.rs`, `format_equivalence.rs`: input; `output.rs`: output; `bad_input.rs`: rejected
//!   input;
//! - `reports.rs`: pages, policies, suggestions, hints; `simulate.rs`: simulated traffic;
//! - `generated_traces.rs`: seeded traces compared with a naive limiter (`naive_limiter.rs`) and
//!   committed digests;
//! - `recorded_traces.rs`: real traces with known decisions, if they are available.

mod access_logs;
mod bad_input;
mod format_equivalence;
mod formats;
mod generated_traces;
mod naive_limiter;
mod output;
mod recorded_traces;
mod reports;
mod simulate;
