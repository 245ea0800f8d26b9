//! What a decision costs: tidegate beside its peers and the floor, in one run.
//!
//! - `cli.rs`: the commands;
//! - `workloads.rs`: which keys are asked for, in which order;
//! - `subjects/`: one adapter per limiter, tidegate in `tidegate.rs`;
//! - `measure.rs`: the timed loop, the same for every subject;
//! - `inprocess.rs`: fills, checks the set-up, interleaves the timed passes;
//! - `rss.rs`: resident bytes per key, each subject in a process of its own;
//! - `pauses.rs`: the worst single decision while a table fills and expires;
//! - `http/`: the server beside other servers, see `http/mod.rs`;
//! - `grpc/`: the gRPC front beside a tonic service, see `grpc/mod.rs`;
//! - `layer/`: what the tower layer adds to a request, see `layer/mod.rs`;
//! - `redis/`: what a shared decision costs Redis, see `redis/mod.rs`;
//! - `resp/`: the RESP front beside Redis and throttlecrab, see `resp/mod.rs`;
//! - `faults/`: what callers and limits see while Redis fails, see `faults/mod.rs`;
//! - `storm/`: clients that retry, see `storm/mod.rs`;
//! - `bars.rs`, `report.rs`: the bars, the table and the JSON.

mod bars;
mod cli;
mod faults;
mod grpc;
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
mod workloads;

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
        cli::Command::Layer(args) => return exit_code(layer::run(&args)),
        cli::Command::Redis(args) => return exit_code(redis::run(&args)),
        cli::Command::Resp(args) => return exit_code(resp::run(&args)),
        cli::Command::Faults(args) => return exit_code(faults::run(&args)),
        cli::Command::Storm(args) => return exit_code(storm::run(&args)),
        cli::Command::HttpBaseline(args) => return exit_code(http::serve_baseline(&args)),
        cli::Command::HttpLoad(args) => return exit_code(http::load(&args)),
        cli::Command::RssOf(args) => println!("{}", rss::measure_here(&args)),
    }
    ExitCode::SUCCESS
}

/// What went wrong with other programs or the network.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What other programs and the network get wrong is said, not panicked about.
fn exit_code(done: std::io::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidegate-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
