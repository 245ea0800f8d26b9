//! A crowd of clients in a loop on one key: how much of the limit they make use of, and what
//! they send for it.
//!
//! Each client asks again as soon as it may: at once after a success, or when its way of
//! retrying says so. Two figures judge it together. *Goodput* is what was admitted, as a
//! part of what the limit admits; *sent* is the requests sent per success. Naive retrying
//! has the best goodput there is and sends hundreds for it. A third figure, *fairness*
//! (Jain's index over the clients' successes: 1 when all have the same, 1/n when one has
//! everything), shows what the two hide: who asks again at once after a success keeps the
//! others out.
//!
//! - `behaviour.rs`: the ways of retrying, without clock or network;
//! - `scene.rs`: who asks, under which limit, and what changes meanwhile;
//! - `world.rs`: a scene on virtual time, with the real limiter: the same every time;
//! - `live.rs`: the first scene over HTTP, with the server as a process and the middleware;
//! - `report.rs`: table, bars and JSON.

mod behaviour;
mod live;
mod report;
mod scene;
mod world;

pub use behaviour::Way;

use std::io;

use crate::cli::StormArgs;
use crate::inprocess::selected_or_all;
use scene::Tally;

/// What one way of retrying did in one scene.
pub struct Outcome {
    pub scene: String,
    pub way: Way,
    pub tally: Tally,
}

/// Runs the storm and prints what came of it.
///
/// # Errors
/// When a server does not do what it should, or a bar is missed.
pub fn run(args: &StormArgs) -> io::Result<()> {
    let ways = selected_or_all(&args.way);
    let outcomes =
        if args.on_virtual_time { world::all(&ways, args.seed) } else { live::run(&ways, args)? };
    if args.json {
        println!("{}", report::json(&outcomes));
    } else {
        print!("{}", report::table(&outcomes));
    }
    let missed = report::missed(&outcomes);
    if missed.is_empty() { Ok(()) } else { Err(io::Error::other(missed.join("\n"))) }
}
