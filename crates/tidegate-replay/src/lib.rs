//! Recorded and simulated traffic through tidegate on virtual time.
//!
//! Each event is decided at its own time by the limiter that serves live traffic, so an hour of
//! traffic is decided in seconds. What was admitted is counted a second time, by code that shares
//! nothing with the limiter.
//!
//! ```text
//! files ->  input, format, source, feed (one thread)  --\
//!                                                        blocks -> run (engine, truth, tally) -> report
//! clients of simulate/traffic                         --/
//! ```
//!
//! - `replay.rs` runs `tidegate replay` and `simulate/` runs `tidegate simulate`. Both take what was
//!   typed as a struct of clap, which is also the options struct: every option is one that users
//!   type, and its help text is its documentation.
//! - `report/` writes the result as text, as JSON or as a page with plots.
//! - `playground.rs` decides the events of the playground page.

mod algorithms;
mod args;
mod block;
mod calendar;
mod engine;
mod error;
mod feed;
mod format;
mod hints;
mod input;
mod keys;
pub mod playground;
mod policed;
mod problems;
mod progress;
mod replay;
mod report;
mod run;
mod same;
mod simulate;
mod source;
mod suggest;
mod tally;
mod timeline;
mod truth;
pub mod uplot;
mod zstd;

pub use crate::algorithms::rate_algorithm;
pub use crate::args::ReplayArgs;
pub use crate::error::ReplayError;
pub use crate::replay::run as replay;
pub use crate::simulate::{SimulateArgs, run as simulate};
