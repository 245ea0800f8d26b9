//! The gRPC front compared with a tonic service of the same proto that always answers OK.
//!
//! - `messages.rs`: the proto;
//! - `baseline.rs`: the tonic service, a separate process;
//! - `load.rs`: a tonic client as the load generator, a separate process;
//! - `server.rs`: a running server process, and the check that tidegate enforces limits;
//! - `rounds.rs`: a whole run;
//! - `report.rs`: table, thresholds and JSON.
//!
//! Turns, processor times, placement and estimates are those of `http/`.

mod baseline;
mod load;
mod messages;
mod report;
mod rounds;
mod server;

use std::io;

pub use baseline::{BaselineArgs, serve as serve_baseline};
pub use load::{LoadArgs, connect, is_ok, send_request};

use crate::cli::GrpcArgs;

/// Runs the benchmark and prints the report.
pub fn run(args: &GrpcArgs) -> io::Result<()> {
    let results = rounds::run(args)?;
    if args.json {
        println!("{}", report::json(&results));
    } else {
        print!("{}", report::table(&results));
    }
    Ok(())
}

/// Runs the load process and prints its report.
pub fn load(args: &LoadArgs) -> io::Result<()> {
    println!("{}", serde_json::to_string(&load::run(args)?)?);
    Ok(())
}
