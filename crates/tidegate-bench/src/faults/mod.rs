//! What happens to callers, and to the limit, when Redis fails.
//!
//! Two nodes ask for a few keys all the time, under policies that answer a
//! failure each in its own way, while something is done to their Redis and
//! undone again. Every call is written down with when it was made and answered;
//! `oracle.rs`, which knows nothing of tidegate, counts from that what was admitted.
//!
//! - `fault.rs`: what can go wrong; `redis_setup.rs`: the servers it is done to;
//! - `nodes.rs`: the callers and what they write down;
//! - `oracle.rs`: the most admitted in any window;
//! - `load.rs`: a healthy Redis, and more load on one key or by one caller than is good;
//! - `report.rs`: table and JSON.

mod fault;
mod load;
mod nodes;
mod oracle;
mod proxy;
mod redis_setup;
mod report;

pub use fault::Fault;
pub use load::Load;

use std::io;
use std::time::{Duration, Instant};

use crate::BoxError;
use crate::cli::FaultsArgs;
use crate::inprocess::selected_or_all;
use nodes::{CallRecord, Nodes};
use redis_setup::RedisSetup;

/// How long a store may take to be asked again once its server is back, before the
/// run gives up on it.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// What one fault did.
pub struct FaultResult {
    pub fault: Fault,
    pub calls: Vec<CallRecord>,
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
    let mut results = Vec::new();
    // Naming only faults leaves out the loads, and the reverse.
    let (no_faults, no_loads) = match (args.fault.is_empty(), args.load.is_empty()) {
        (true, false) => (true, false),
        (false, true) => (false, true),
        _ => (false, false),
    };
    let faults = if no_faults { Vec::new() } else { selected_or_all(&args.fault) };
    for fault in faults {
        let result = runtime.block_on(run_fault(fault, args));
        results.push(result.map_err(|error| {
            io::Error::other(format!("{}: {error}", crate::cli::name_of(&fault)))
        })?);
    }
    let mut load_results = Vec::new();
    for load in if no_loads { Vec::new() } else { selected_or_all(&args.load) } {
        load_results.push(runtime.block_on(load::run(load, args)).map_err(io::Error::other)?);
    }
    if args.json {
        println!("{}", report::json(&results, &load_results));
    } else {
        print!("{}", report::table(&results, &load_results));
    }
    let violations: Vec<String> = results.iter().flat_map(oracle::violations).collect();
    if violations.is_empty() { Ok(()) } else { Err(io::Error::other(violations.join("\n"))) }
}

async fn run_fault(fault: Fault, args: &FaultsArgs) -> Result<FaultResult, BoxError> {
    let (healthy, lasts) = if args.short {
        (Duration::from_millis(300), Duration::from_millis(700))
    } else {
        (Duration::from_secs(3), Duration::from_secs(5))
    };
    let mut setup = RedisSetup::start(fault, &args.server).await?;
    let start = Instant::now();
    let nodes = Nodes::start(&setup.url(), start).await?;
    tokio::time::sleep(healthy).await;
    let began = start.elapsed();
    setup.inject(fault, lasts).await?;
    let ended = start.elapsed();
    let recovery = nodes.wait_recovered(ended, RECOVERY_TIMEOUT).await?;
    tokio::time::sleep(healthy).await;
    let calls = nodes.stop().await?;
    Ok(FaultResult { fault, calls, began, ended, recovery })
}
