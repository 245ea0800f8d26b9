//! What a shared decision costs Redis: ours beside the usual designs and INCR, in one run.
//!
//! What is scarce is the processor of the Redis server, which has one thread for
//! commands; so decisions are counted per second *of its processor time*, as the
//! server itself reports it. All designs are built by one client, in pipelines of
//! the same depth, for the same keys in the same order.
//!
//! - `server.rs`: a Redis of our own, on a free port;
//! - `subjects.rs`: who is measured, as commands; `scripts/`: the designs to beat;
//! - `rounds.rs`: proves the set-up, then times the subjects in turn;
//! - `memory.rs`: bytes per key, from the server's own count;
//! - `report.rs`: table, bars and JSON.

mod memory;
mod report;
mod rounds;
pub mod server;
mod subjects;

pub use subjects::Subject;

use std::io;

use crate::cli::RedisArgs;

/// Measures and prints what was found.
pub fn run(args: &RedisArgs) -> io::Result<()> {
    let results = rounds::run(args).map_err(io::Error::other)?;
    if args.json {
        println!("{}", report::json(&results));
    } else {
        print!("{}", report::table(&results));
    }
    Ok(())
}
