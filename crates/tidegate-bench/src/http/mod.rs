//! The HTTP server compared with other servers over loopback, in one run.
//!
//! A *turn* is a short time slice in which one server is loaded. A *round* is one turn of every
//! server.
//!
//! - `wire.rs`: requests and answers as bytes;
//! - `load.rs`: the load generator, a separate process;
//! - `programs.rs`: builds or installs the measured programs;
//! - `server.rs`: a running server process;
//! - `baseline.rs`: axum handlers without decisions, a separate process;
//! - `process.rs`: processor time and affinity of processes;
//! - `setup.rs`: prepares the servers and checks that they enforce limits;
//! - `alternating_load.rs`: loads the servers in turns, inside the load process;
//! - `rounds.rs`: a whole run, and the ratios within its rounds;
//! - `soak.rs`: full load while the config changes, with every answer checked;
//! - `stalled_log.rs`: full load while the log is not read;
//! - `report.rs`: table, thresholds and JSON.

mod alternating_load;
mod baseline;
mod load;
mod process;
pub mod programs;
mod report;
mod rounds;
mod server;
mod setup;
mod soak;
mod stalled_log;
mod wire;

pub use alternating_load::{TurnArgs, TurnGate, WorkerGroup, take_turns};
pub use baseline::{BaselineArgs, serve as serve_baseline};
pub use load::{LoadArgs, LoadReport, TurnResult, record_answer, with_answer_timeout};
pub use process::{CpuTimes, pinned_to};
pub use programs::tidegate as build_tidegate;
pub use report::{SATURATED, estimate_json, percent, with_interval};
pub use rounds::{Estimate, Subject, load_us, p50_us, p99_us, per_second, server_busy, server_us};
pub use server::{Program, Server, affects_measurement};
pub use setup::{CpuPlacement, MAX_QUEUED, temp_directory};
pub use wire::{AGEING_TIME, LIMITS, LOOSE_LIMITS, config};

use std::io;

use crate::cli::HttpArgs;

/// Runs the selected benchmark and prints the report.
pub fn run(args: &HttpArgs) -> io::Result<()> {
    if let Some(seconds) = args.soak {
        let result = soak::run(args, seconds)?;
        let text = if args.json {
            format!("{}\n", report::soak_json(&result))
        } else {
            report::soak_text(&result)
        };
        print!("{text}");
        return result.verify();
    }
    if let Some(seconds) = args.stalled_log {
        let result = stalled_log::run(args, seconds)?;
        let text = if args.json { format!("{}\n", result.json()) } else { result.text() };
        print!("{text}");
        return result.verify();
    }
    let results = rounds::run(args)?;
    if args.json {
        println!("{}", report::json(&results));
    } else {
        print!("{}", report::table(&results));
    }
    Ok(())
}

/// Runs a job of the load process and prints its report.
pub fn load(args: &LoadArgs) -> io::Result<()> {
    println!("{}", serde_json::to_string(&load::run(args)?)?);
    Ok(())
}
