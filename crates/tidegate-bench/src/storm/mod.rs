//! A crowd of clients in a loop on one key: how much of the limit they make use of, and what
//! they send for it.
//!
//! Each client asks again as soon as it may: at once after a success, or when its strategy of
//! retrying says so. Two figures judge it together. *Goodput* is what was admitted, as a
//! part of what the limit admits; *sent* is the requests sent per success. Naive retrying
//! has the best goodput there is and sends hundreds for it. A third figure, *fairness*
//! (Jain's index over the clients' successes: 1 when all have the same, 1/n when one has
//! everything), shows what the two hide: who asks again at once after a success keeps the
//! others out.
//!
//! - `client.rs`: the strategies of retrying, without clock or network;
//! - `scenario.rs`: who asks, under which limit, and what changes meanwhile;
//! - `simulation.rs`: a scenario on virtual time, with the real limiter: the same every time;
//! - `live.rs`: the first scenario over HTTP, with the server as a process and the middleware;
//! - `report.rs`: table, bars and JSON.

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

/// What one strategy of retrying did in one scenario.
pub struct Outcome {
    pub scenario: String,
    pub strategy: RetryStrategy,
    pub counts: StormCounts,
}

/// Runs the storm and prints what came of it.
///
/// # Errors
/// When a server does not do what it should, or a bar is missed.
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
