//! The `tidegate` program: one binary, one subcommand per job.
//!
//! Layout: `cli.rs` says what can be typed; `serve/` is the server, with its fronts
//! in `http/`, `grpc/` (with `envoy/`), `resp/` and `admin/`, the future of a response in
//! `response_future.rs`, their errors in `error.rs` and secrets in `access/`; `config_cmd.rs` and
//! `explain.rs` look at a config without serving it; `papers.rs` writes shell completions and manual pages.

mod access;
mod admin;
mod cli;
mod config_cmd;
mod envoy;
mod error;
mod explain;
mod grpc;
mod http;
mod logs;
mod pages;
mod papers;
mod playground;
mod resp;
mod response_future;
mod serve;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use tidegate::unstable::config::ConfigErrors;
use tidegate_replay::ReplayError;

use cli::{Cli, Command};

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Config(args) => print(config_cmd::run(&args).map(|told| {
            told.warnings.iter().for_each(|warning| eprintln!("warning: {warning}\n"));
            told.text
        })),
        Command::Explain(args) => match explain::run(&args) {
            Ok(told) if told.is_bad_input => {
                print(Ok::<_, ConfigErrors>(told.text));
                ExitCode::FAILURE
            }
            told => print(told.map(|told| told.text)),
        },
        Command::Replay(args) => replayed(tidegate_replay::replay(&args)),
        Command::Simulate(args) => replayed(tidegate_replay::simulate(&args)),
        Command::Completions(args) => written(papers::completions(&args)),
        Command::Man(args) => written(papers::man(&args)),
        Command::Serve(args) => match serve::run(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                // Signals may be handled by now, and then SIGTERM does not end a blocked write.
                logs::print(std::io::stderr(), format!("error: {error}\n"));
                ExitCode::FAILURE
            }
        },
    }
}

/// Prints what a look at a config gave.
fn print(result: Result<String, impl std::error::Error>) -> ExitCode {
    match result {
        Ok(text) => {
            // Whoever read the output has seen enough, as `head` does.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(errors) => {
            eprintln!("error: {errors}");
            ExitCode::FAILURE
        }
    }
}

fn written(result: Result<(), papers::PapersError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn replayed(result: Result<(), ReplayError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has seen enough, as `head` does.
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
