//! The RESP front compared with Redis and throttlecrab in one run, loaded by `redis-benchmark`.
//!
//! - `subjects.rs`: the measured commands;
//! - `servers.rs`: starts the servers and checks that they enforce limits;
//! - `rounds.rs`: alternates the subjects and computes ratios within rounds;
//! - `report.rs`: table, thresholds and JSON.

mod report;
mod rounds;
mod servers;
mod subjects;

pub use subjects::Subject;

use std::io;

use crate::cli::RespArgs;

/// Runs the benchmark and prints the report.
pub fn run(args: &RespArgs) -> io::Result<()> {
    let results = rounds::run(args)?;
    if args.json {
        println!("{}", report::json(&results));
    } else {
        print!("{}", report::table(&results));
    }
    Ok(())
}
