//! `tidegate replay` and `tidegate simulate`.
//!
//! - `formats.rs`, `access_logs.rs`, `format_equivalence.rs`: input; `output.rs`: output;
//!   `bad_input.rs`: rejected input;
//! - `reports.rs`: the summary, pages and suggestions; `policies.rs`: policies of a config;
//!   `hints.rs`: suspicious input; `simulate.rs`: simulated traffic;
//! - `generated_traces.rs`: seeded traces compared with a naive limiter (`naive_limiter.rs`) and
//!   committed digests;
//! - `recorded_traces.rs`: real traces with known decisions, if they are available.

mod access_logs;
mod bad_input;
mod format_equivalence;
mod formats;
mod generated_traces;
mod hints;
mod naive_limiter;
mod output;
mod policies;
mod recorded_traces;
mod reports;
mod simulate;

use serde_json::Value;

use crate::cli_harness::{Output, tidegate_reading};

/// Replays a trace from standard input.
fn replay(trace: impl AsRef<[u8]>, args: &[&str]) -> Output {
    tidegate_reading(&[&["replay", "-"], args].concat(), trace.as_ref())
}

/// Returns the data of an HTML report.
fn page_data(page: &str) -> Value {
    let start = page.find("id=\"data\">").expect("the data") + "id=\"data\">".len();
    let end = start + page[start..].find("</script>").expect("the end of the data");
    serde_json::from_str(&page[start..end]).expect("JSON")
}
