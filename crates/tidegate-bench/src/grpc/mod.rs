//! The gRPC front beside a tonic service of the same proto that always answers OK.
//!
//! - `messages.rs`: the proto;
//! - `baseline.rs`: that service, a process of its own;
//! - `load.rs`: a tonic client as the load, a process of its own;
//! - `server.rs`: either as a running process, and the proof that ours limits;
//! - `rounds.rs`, `report.rs`: what is run, and what it says.
//!
//! Turns, processor times, placement and figures are those of `http/`.

mod baseline;
mod load;
mod messages;
mod report;
mod rounds;
mod server;

use std::io;

pub use baseline::{BaselineArgs, serve as serve_baseline};
pub use load::LoadArgs;

use crate::cli::GrpcArgs;

/// Measures and prints.
pub fn run(args: &GrpcArgs) -> io::Result<()> {
    let results = rounds::run(args)?;
    if args.json {
        println!("{}", report::json(&results));
    } else {
        print!("{}", report::table(&results));
    }
    Ok(())
}

/// Asks, and prints what was counted.
pub fn load(args: &LoadArgs) -> io::Result<()> {
    println!("{}", serde_json::to_string(&load::run(args)?)?);
    Ok(())
}
