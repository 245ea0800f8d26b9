//! Calls and limits while Redis fails.
//!
//! Two nodes check a few keys continuously, under policies with different `on_store_failure`,
//! while a fault is injected into their Redis and removed again. Every call is recorded with the
//! times at which it was sent and answered. `oracle.rs`, which is independent of tidegate's
//! algorithms, computes from these records how much was admitted.
//!
//! - `fault.rs`: the faults;
//! - `redis_setup.rs`: the servers that faults are injected into;
//! - `nodes.rs`: the callers and their records;
//! - `oracle.rs`: the maximum admitted in any window, and its bound;
//! - `load.rs`: excessive load on one key or by one caller, on a healthy Redis;
//! - `proxy.rs`: a proxy that delays answers of Redis;
//! - `report.rs`: table, thresholds and JSON.

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

/// How long a store may take to use its server again once the server is back. The run fails after
/// that.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// Results of one fault.
pub struct FaultResult {
    pub fault: Fault,
    pub calls: Vec<CallRecord>,
    /// Times at which the fault began and ended, since the first call.
    pub began: Duration,
    pub ended: Duration,
    /// Time from the end of the fault until every node has had an exact answer.
    pub recovery: Duration,
}

/// Runs the selected faults and loads and prints the report.
///
/// # Errors
/// When a server does not start or answer, or a bound is violated.
pub fn run(args: &FaultsArgs) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut results = Vec::new();
    // Selecting only faults excludes the loads, and vice versa.
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
