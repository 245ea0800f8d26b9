//! Calls and limits while Redis fails.
//!
//! Two nodes check a few keys continuously, under policies with different `on_store_failure`, and a
//! hot key of which they take leases, while a fault is injected into their Redis and removed again.
//! Every call is recorded with the times at which it was sent and answered. `oracle.rs`, which is
//! independent of tidegate's algorithms, computes from these records how much was admitted.
//!
//! - `fault.rs`: the faults;
//! - `redis_setup.rs`: the servers that faults are injected into;
//! - `nodes.rs`: the callers and their records;
//! - `oracle.rs`: the maximum admitted in any window, and its bound;
//! - `victim.rs`: a node in a separate process that is killed;
//! - `load.rs`: excessive load on one key or by one caller, and many keys, on a healthy Redis;
//! - `proxy.rs`: a proxy that delays answers of Redis;
//! - `report.rs`: table, thresholds and JSON.

mod fault;
mod load;
mod nodes;
mod oracle;
mod proxy;
mod redis_setup;
mod report;
mod victim;

pub use fault::Fault;
pub use load::Load;
pub use victim::run as run_victim;

use std::io;
use std::time::{Duration, Instant};

use crate::BoxError;
use crate::cli::FaultsArgs;
use crate::inprocess::selected_or_all;
use nodes::{CallRecord, Nodes};
use redis_setup::RedisSetup;
use victim::Victim;

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
    /// When Redis had lost its keys, or its clock was set; otherwise when the fault began. Calls
    /// that were sent later were not counted by Redis before.
    pub lost: Duration,
    /// Time from the end of the fault until every node has had an exact answer.
    pub recovery: Duration,
    /// The units that nodes had taken and not spent when the fault began, or a few more.
    pub units_out: u64,
    /// The units that a killed node left behind longer than for a window.
    pub units_left_behind: u64,
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
    let violations = results.iter().flat_map(oracle::violations);
    let violations: Vec<String> =
        violations.chain(load_results.iter().flat_map(load::violations)).collect();
    if violations.is_empty() { Ok(()) } else { Err(io::Error::other(violations.join("\n"))) }
}

async fn run_fault(fault: Fault, args: &FaultsArgs) -> Result<FaultResult, BoxError> {
    // Afterwards the leased limit is used up once.
    let (healthy, lasts, afterwards) = if args.short {
        (Duration::from_millis(300), Duration::from_millis(700), Duration::from_millis(800))
    } else {
        (Duration::from_secs(3), Duration::from_secs(5), Duration::from_secs(3))
    };
    let mut setup = RedisSetup::start(fault, &args.server).await?;
    let start = Instant::now();
    let victim = match fault {
        Fault::NodeKilled => Some(Victim::start(&setup.url(), start)?),
        _ => None,
    };
    let nodes = Nodes::start(&setup.url(), start).await?;
    tokio::time::sleep(healthy / 2).await;
    setup.prepare()?;
    tokio::time::sleep(healthy / 2).await;
    nodes.wait_leased(RECOVERY_TIMEOUT).await?;
    let (granted_before, mut units_out) = (nodes.units_granted(), nodes.units_out());
    let began = start.elapsed();
    let mut calls = Vec::new();
    let is_node_killed = victim.is_some();
    if let Some(victim) = victim {
        (calls, units_out) = tokio::task::block_in_place(|| victim.kill(RECOVERY_TIMEOUT))?;
    }
    setup.inject(fault, lasts).await?;
    let ended = start.elapsed();
    let lost = setup.lost.map_or(began, |lost| lost.saturating_duration_since(start));
    // Grants that were under way when the fault began.
    if !is_node_killed {
        units_out += nodes.units_granted() - granted_before;
    }
    let recovery = nodes.wait_recovered(ended, RECOVERY_TIMEOUT).await?;
    tokio::time::sleep(afterwards).await;
    calls.extend(nodes.stop().await?);
    calls.sort_unstable_by_key(|call| call.sent);
    let units_left_behind = match is_node_killed {
        true => nodes::units_left_behind(&setup.url(), RECOVERY_TIMEOUT).await?,
        false => 0,
    };
    Ok(FaultResult { fault, calls, began, ended, lost, recovery, units_out, units_left_behind })
}
