//! Recorded and simulated traffic through tidegate on virtual time.
//!
//! Each event is decided at its own time by the limiter that serves live traffic, so an hour of
//! traffic is decided in seconds. Admitted events are counted a second time, by code that shares
//! nothing with the limiter.
//!
//! ```text
//! files -> input, format, trace_file, reader_thread --\
//!                                                      blocks -> run (engine, ground_truth, tally) -> report
//! clients of simulate/traffic ------------------------/
//! ```
//!
//! - `replay.rs` runs `tidegate replay` and `simulate/` runs `tidegate simulate`. Their arguments
//!   are clap structs, which also serve as the options structs: each option is a command-line
//!   option, and its help text is its documentation.
//! - `report/` writes the result as text, as JSON or as a page with plots.
//! - `playground.rs` decides the events of the playground page.

mod algorithms;
mod args;
mod block;
mod engine;
mod error;
mod file_identity;
mod format;
mod ground_truth;
mod hints;
mod input;
mod keys;
mod largest_burst;
pub mod playground;
mod policy_limits;
mod policy_replay;
mod problems;
mod progress;
mod reader_thread;
mod replay;
mod report;
mod run;
mod simulate;
mod suggest;
mod tally;
mod timeline;
mod trace_file;
mod unseen_fields;
mod utc;
mod zstd;

pub use crate::algorithms::rate_algorithm;
pub use crate::args::ReplayArgs;
pub use crate::error::ReplayError;
pub use crate::replay::run as replay;
pub use crate::simulate::{SimulateArgs, run as simulate};

/// uPlot (MIT, 50 KB, no dependencies), which draws the plots of reports and of the dashboard.
///
/// It draws lines over time and nothing else, and works without a network or a build step. The
/// files in `assets/uplot` are those of its npm package; its licence is served with it.
pub mod uplot {
    /// The script.
    pub const SCRIPT: &str = include_str!("../assets/uplot/uPlot.iife.min.js");

    /// The stylesheet.
    pub const STYLE: &str = include_str!("../assets/uplot/uPlot.min.css");

    /// The licence.
    pub const LICENCE: &str = include_str!("../assets/uplot/LICENSE");
}
