//! Measures what a decision costs: tidegate, other limiters and a lower bound, in one run.
//!
//! - `cli.rs`: the command line;
//! - `workloads.rs`: the keys of each workload and their order;
//! - `subjects/`: adapters of the measured limiters;
//! - `measure.rs`: the timed loop, the same for every subject;
//! - `inprocess.rs`: fills the subjects, checks the set-up, interleaves the timed passes;
//! - `rss.rs`: resident bytes per key, each subject in a separate process;
//! - `histogram.rs`: durations with percentiles;
//! - `pauses.rs`: the slowest single decisions while a table fills and expires;
//! - `http/`: the HTTP server compared with other servers, see `http/mod.rs`;
//! - `grpc/`: the gRPC front compared with a tonic service, see `grpc/mod.rs`;
//! - `xds/`: large configs from a control plane while checks are made, see `xds/mod.rs`;
//! - `layer/`: the cost that the tower layer adds to a request, see `layer/mod.rs`;
//! - `redis/`: the cost of a shared decision for Redis, see `redis/mod.rs`;
//! - `resp/`: the RESP front compared with Redis and throttlecrab, see `resp/mod.rs`;
//! - `faults/`: calls and limits while Redis fails, see `faults/mod.rs`;
//! - `fleet/`: several nodes on one limit, see `fleet/mod.rs`;
//! - `storm/`: clients that retry, see `storm/mod.rs`;
//! - `thresholds.rs`, `report.rs`: thresholds of measured figures ("bars" in tables and JSON), and
//!   the tables and JSON.

mod cli;
mod faults;
mod fleet;
mod grpc;
mod histogram;
mod http;
mod inprocess;
mod layer;
mod measure;
mod pauses;
mod redis;
mod report;
mod resp;
mod rss;
mod storm;
mod subjects;
mod thresholds;
mod workloads;
mod xds;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cli::Cli::parse().command {
        cli::Command::Inprocess(args) => {
            let results = inprocess::run(&args);
            if args.json {
                println!("{}", report::json(&results));
            } else {
                print!("{}", report::table(&results));
            }
        }
        cli::Command::Pauses(args) => {
            let pauses = pauses::run(args.keys);
            if args.json {
                println!("{}", pauses::json(&pauses));
            } else {
                print!("{}", pauses::table(&pauses));
            }
        }
        cli::Command::Http(args) => return exit_code(http::run(&args)),
        cli::Command::Grpc(args) => return exit_code(grpc::run(&args)),
        cli::Command::GrpcBaseline(args) => return exit_code(grpc::serve_baseline(&args)),
        cli::Command::GrpcLoad(args) => return exit_code(grpc::load(&args)),
        cli::Command::Xds(args) => return exit_code(xds::run(&args)),
        cli::Command::Layer(args) => return exit_code(layer::run(&args)),
        cli::Command::Redis(args) => return exit_code(redis::run(&args)),
        cli::Command::Resp(args) => return exit_code(resp::run(&args)),
        cli::Command::Faults(args) => return exit_code(faults::run(&args)),
        cli::Command::FaultVictim(args) => return exit_code(faults::run_victim(&args)),
        cli::Command::Fleet(args) => return exit_code(fleet::run(&args)),
        cli::Command::Storm(args) => return exit_code(storm::run(&args)),
        cli::Command::HttpBaseline(args) => return exit_code(http::serve_baseline(&args)),
        cli::Command::HttpLoad(args) => return exit_code(http::load(&args)),
        cli::Command::RssOf(args) => println!("{}", rss::measure_here(&args)),
    }
    ExitCode::SUCCESS
}

/// An error of another program or the network.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Prints a failure to stderr and maps the result to an exit code.
fn exit_code(done: std::io::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidegate-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
