//! The RESP front beside Redis and throttlecrab, with `redis-benchmark` as the load, in one run.
//!
//! - `subjects.rs`: who is measured, as commands;
//! - `servers.rs`: the programs as processes, and the proof that they do what is timed;
//! - `rounds.rs`: the subjects in turns, and the ratios within rounds;
//! - `report.rs`: table, bars and JSON.

mod report;
mod rounds;
mod servers;
mod subjects;

pub use subjects::Subject;

use std::io;

use crate::cli::RespArgs;

/// Measures and prints what was found.
pub fn run(args: &RespArgs) -> io::Result<()> {
    let results = rounds::run(args)?;
    if args.json {
        println!("{}", report::json(&results));
    } else {
        print!("{}", report::table(&results));
    }
    Ok(())
}
