//! Several nodes on one limit: what is admitted, how much of the limit is used, and what it costs
//! Redis.
//!
//! All nodes are stores in this process, over one Redis server. Each sends requests at its share of
//! the offered rate, whatever the answers are. Three designs are compared: tidegate with leases,
//! tidegate without, and a counter on every node that is exchanged with Redis every 50 ms.
//!
//! - `load.rs`: the nodes and their callers;
//! - `design.rs`: the three designs;
//! - `report.rs`: the table and JSON.
//!
//! Over-admission is the fullest window, in percent above the limit. An admission has the time at
//! which its answer arrived, so windows of a second are blurred by the latency: they are reported,
//! not judged.

mod design;
mod load;
mod report;

pub use design::Design;

use std::io;
use std::time::Duration;

use clap::ValueEnum;

use crate::BoxError;
use crate::cli::FleetArgs;
use crate::inprocess::selected_or_all;
use crate::redis::server::Server;

/// A published or typical situation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scene {
    /// 2 nodes, 1,000 per second, 1,500 offered (WSO2).
    Wso2,
    /// 2 nodes, 500 per second, 800 offered (APISIX).
    Apisix,
    /// 8 nodes, 6,000,000 per minute, as many offered.
    Minute,
    /// The scene `minute` with nine tenths of the requests on one node.
    MinuteUneven,
    /// 8 nodes, 100,000 per second, 110,000 offered.
    Second,
    /// 8 nodes, 200,000 per 10 seconds, 30,000 offered in a second: far more than the limit.
    Overload,
}

/// The numbers of a scene.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    pub nodes: usize,
    pub limit: &'static str,
    /// The requests in a second, on all nodes.
    pub offered: u64,
    /// The share of the first node in percent. The others share the rest evenly.
    pub first_percent: u64,
}

impl Scene {
    pub fn numbers(self) -> Numbers {
        let numbers =
            |nodes, limit, offered, first_percent| Numbers { nodes, limit, offered, first_percent };
        match self {
            Scene::Wso2 => numbers(2, "1000 per 1s", 1_500, 50),
            Scene::Apisix => numbers(2, "500 per 1s", 800, 50),
            Scene::Minute => numbers(8, "6000000 per 1m", 100_000, 12),
            Scene::MinuteUneven => numbers(8, "6000000 per 1m", 100_000, 90),
            Scene::Second => numbers(8, "100000 per 1s", 110_000, 12),
            Scene::Overload => numbers(8, "200000 per 10s", 30_000, 12),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Scene::Wso2 => "wso2",
            Scene::Apisix => "apisix",
            Scene::Minute => "minute",
            Scene::MinuteUneven => "minute-uneven",
            Scene::Second => "second",
            Scene::Overload => "overload",
        }
    }
}

/// The figures of one design in one scene.
pub struct Outcome {
    pub scene: Scene,
    pub design: Design,
    /// The requests that were answered, and those that were admitted.
    pub decisions: u64,
    pub admitted: u64,
    /// The units in the fullest window, in percent of the limit.
    pub fullest_percent: f64,
    /// The admitted units in percent of those that the limit and the offered requests permit.
    pub used_percent: f64,
    /// The commands that the nodes sent.
    pub commands: u64,
    /// The processor time of Redis for one decision, in microseconds.
    pub redis_us: f64,
    /// The 50th and 99th percentile of the latency, and the 99th of requests on cold keys, or 0
    /// without these.
    pub p50: Duration,
    pub p99: Duration,
    pub cold_p99: Duration,
}

/// Runs the scenes and prints the report.
///
/// # Errors
/// When Redis does not start or answer.
pub fn run(args: &FleetArgs) -> io::Result<()> {
    let outcomes = run_all(args).map_err(io::Error::other)?;
    if args.json {
        println!("{}", report::json(&outcomes));
    } else {
        print!("{}", report::table(&outcomes));
    }
    Ok(())
}

fn run_all(args: &FleetArgs) -> Result<Vec<Outcome>, BoxError> {
    let mut outcomes = Vec::new();
    for scene in selected_or_all(&args.scene) {
        for design in selected_or_all(&args.design) {
            outcomes.push(run_one(scene, design, args)?);
        }
    }
    Ok(outcomes)
}

fn run_one(scene: Scene, design: Design, args: &FleetArgs) -> Result<Outcome, BoxError> {
    let server = Server::start(&args.server)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(load::run(scene, design, &server, args))
}
