//! The cost of a shared decision for Redis: tidegate, common designs and INCR, in one run.
//!
//! The scarce resource is the processor of the Redis server, which runs commands on one thread. So
//! decisions are counted per second *of its processor time*, as reported by the server. All
//! designs use the same client, pipelines of the same depth, and the same keys in the same order.
//!
//! - `server.rs`: a Redis process on a free port;
//! - `subjects.rs`: the compared designs and their commands; `scripts/`: the scripts of the others;
//! - `rounds.rs`: checks the set-up, then times the subjects;
//! - `memory.rs`: bytes per key, as counted by the server;
//! - `report.rs`: table, thresholds and JSON.

mod memory;
mod report;
mod rounds;
pub mod server;
mod subjects;

pub use subjects::Subject;

use std::io;

use crate::cli::RedisArgs;

/// Runs the benchmark and prints the report.
pub fn run(args: &RedisArgs) -> io::Result<()> {
    let results = rounds::run(args).map_err(io::Error::other)?;
    if args.json {
        println!("{}", report::json(&results));
    } else {
        print!("{}", report::table(&results));
    }
    Ok(())
}
