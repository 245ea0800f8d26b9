//! Many clients in a loop on one key: how much of the limit they use, and how many requests they
//! send for it. The module is named after its command, `tidegate-bench storm`.
//!
//! Each client sends again as soon as it may: immediately after a success, or when its retry
//! strategy allows. Two figures must be read together. *Goodput* is the number of admitted
//! requests relative to what the limit admits; *sent* is the number of requests per success. Naive
//! retrying has the best possible goodput but sends hundreds of requests per success. A third
//! figure, *fairness* (Jain's index over the clients' successes: 1 when all have the same, 1/n
//! when one has everything), shows what the two hide: clients that send again immediately after a
//! success keep the others out.
//!
//! - `client.rs`: the retry strategies, without clock or network;
//! - `scenario.rs`: clients, limit, and changes during a run;
//! - `simulation.rs`: a scenario in virtual time with the real limiter, reproducible;
//! - `live.rs`: the first scenario over HTTP, with the server as a process and the middleware;
//! - `report.rs`: table, thresholds and JSON.

mod client;
mod live;
mod report;
mod scenario;
mod simulation;

pub use client::RetryStrategy;

use std::io;

use crate::cli::StormArgs;
use crate::inprocess::selected_or_all;
use scenario::StormCounts;

/// Results of one retry strategy in one scenario.
pub struct Outcome {
    pub scenario: String,
    pub strategy: RetryStrategy,
    pub counts: StormCounts,
}

/// Runs the storm and prints the report.
///
/// # Errors
/// When a server does not start or answer, or a threshold is missed.
pub fn run(args: &StormArgs) -> io::Result<()> {
    let strategies = selected_or_all(&args.strategy);
    let outcomes = if args.on_virtual_time {
        simulation::all(&strategies, args.seed)
    } else {
        live::run(&strategies, args)?
    };
    if args.json {
        println!("{}", report::json(&outcomes));
    } else {
        print!("{}", report::table(&outcomes));
    }
    let missed = report::missed(&outcomes);
    if missed.is_empty() { Ok(()) } else { Err(io::Error::other(missed.join("\n"))) }
}
