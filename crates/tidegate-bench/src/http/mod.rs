//! The server beside other servers, over loopback, in one run.
//!
//! - `wire.rs`: requests and answers as bytes;
//! - `load.rs`: the load, a process of its own;
//! - `programs.rs`: where the measured programs come from;
//! - `server.rs`: a program as a running process;
//! - `baseline.rs`: axum handlers that decide nothing, a process of its own;
//! - `process.rs`: processor time, memory and affinity of processes;
//! - `setup.rs`: starts the servers and proves that they do what is to be timed;
//! - `turns.rs`: the servers taking turns, inside the load;
//! - `rounds.rs`: a whole run, and the ratios within its rounds;
//! - `soak.rs`: full load while the config changes, every answer checked;
//! - `stalled_log.rs`: full load while nobody reads the log;
//! - `report.rs`: table, bars and JSON.

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
mod turns;
mod wire;

pub use baseline::{BaselineArgs, serve as serve_baseline};
pub use load::{LoadArgs, LoadReport, TurnResult, record_answer, with_answer_timeout};
pub use process::{CpuTimes, pinned_to};
pub use programs::tidegate as build_tidegate;
pub use report::{SATURATED, estimate_json, percent, with_interval};
pub use rounds::{Estimate, Subject, load_us, p50_us, p99_us, per_second, server_busy, server_us};
pub use server::{Program, Server, affects_measurement};
pub use setup::{CpuPlacement, Directory, MAX_QUEUED};
pub use turns::{TurnArgs, TurnGate, WorkerGroup, take_turns};
pub use wire::{AGEING_TIME, LIMITS, LOOSE_LIMITS, config};

use std::io;

use crate::cli::HttpArgs;

/// Measures, or soaks, and prints what was found.
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

/// The load process: does its job and prints what it counted.
pub fn load(args: &LoadArgs) -> io::Result<()> {
    println!("{}", serde_json::to_string(&load::run(args)?)?);
    Ok(())
}
