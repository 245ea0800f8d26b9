//! What happens to callers, and to the limit, when Redis fails.
//!
//! Two nodes ask for a few keys all the time, under policies that answer a
//! failure each in its own way, while something is done to their Redis and
//! undone again. Every call is written down with when it was made and answered;
//! `oracle.rs`, which knows nothing of tidegate, counts from that what was admitted.
//!
//! - `fault.rs`: what can go wrong; `world.rs`: the servers it is done to;
//! - `nodes.rs`: the callers and what they write down;
//! - `oracle.rs`: the most admitted in any window;
//! - `load.rs`: a healthy Redis, and more load on one key or by one caller than is good;
//! - `report.rs`: table and JSON.

mod fault;
mod load;
mod nodes;
mod oracle;
mod proxy;
mod report;
mod world;

pub use fault::Fault;
pub use load::Load;

use std::io;
use std::time::{Duration, Instant};

use crate::BoxError;
use crate::cli::FaultsArgs;
use crate::inprocess::selected_or_all;
use nodes::{Event, Nodes};
use world::World;

/// How long a store may take to be asked again once its server is back, before the
/// run gives up on it.
const RECOVERED_WITHIN: Duration = Duration::from_secs(30);

/// What one fault did.
pub struct Outcome {
    pub fault: Fault,
    pub events: Vec<Event>,
    /// When it began and when it was undone, since the first call.
    pub began: Duration,
    pub ended: Duration,
    /// From then to the first exact answer of the last node to give one.
    pub recovery: Duration,
}

/// Runs the faults that were asked for and prints what they did.
///
/// # Errors
/// When a server does not do what it should, or a bound does not hold.
pub fn run(args: &FaultsArgs) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut outcomes = Vec::new();
    // Naming only faults leaves out the loads, and the reverse.
    let (no_faults, no_loads) = match (args.fault.is_empty(), args.load.is_empty()) {
        (true, false) => (true, false),
        (false, true) => (false, true),
        _ => (false, false),
    };
    let faults = if no_faults { Vec::new() } else { selected_or_all(&args.fault) };
    for fault in faults {
        let outcome = runtime.block_on(suffer(fault, args));
        outcomes.push(outcome.map_err(|error| {
            io::Error::other(format!("{}: {error}", crate::cli::name_of(&fault)))
        })?);
    }
    let mut loaded = Vec::new();
    for load in if no_loads { Vec::new() } else { selected_or_all(&args.load) } {
        loaded.push(runtime.block_on(load::put(load, args)).map_err(io::Error::other)?);
    }
    if args.json {
        println!("{}", report::json(&outcomes, &loaded));
    } else {
        print!("{}", report::table(&outcomes, &loaded));
    }
    let broken: Vec<String> = outcomes.iter().flat_map(oracle::broken).collect();
    if broken.is_empty() { Ok(()) } else { Err(io::Error::other(broken.join("\n"))) }
}

async fn suffer(fault: Fault, args: &FaultsArgs) -> Result<Outcome, BoxError> {
    let (healthy, lasts) = if args.short {
        (Duration::from_millis(300), Duration::from_millis(700))
    } else {
        (Duration::from_secs(3), Duration::from_secs(5))
    };
    let mut world = World::start(fault, &args.server).await?;
    let start = Instant::now();
    let nodes = Nodes::start(&world.url(), start).await?;
    tokio::time::sleep(healthy).await;
    let began = start.elapsed();
    world.inject(fault, lasts).await?;
    let ended = start.elapsed();
    let recovery = nodes.recovered(ended, RECOVERED_WITHIN).await?;
    tokio::time::sleep(healthy).await;
    let events = nodes.stop().await?;
    Ok(Outcome { fault, events, began, ended, recovery })
}
