//! The `tidegate` program: one binary, one subcommand per job.
//!
//! - `cli.rs`, `commands/`: the command line. `tidegate_replay` runs `replay` and `simulate`.
//! - `serve/`: the server: settings, sockets, TLS, reloads, shutdown.
//! - `fronts/`: the protocols in which decisions are requested: `http/`, `grpc/`, `resp/`.
//! - `admin/`: health, metrics, the admin API and the dashboard.
//! - `access/`: authentication. `error.rs`: the error of a request, for every protocol. `logs/`: logging.

mod access;
mod admin;
mod cli;
mod commands;
mod error;
mod fronts;
mod logs;
mod serve;
mod static_assets;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use tidegate::unstable::config::ConfigErrors;
use tidegate_replay::ReplayError;

use cli::{Cli, Command};
use commands::man_and_completions;

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Config(args) => print(commands::config::run(&args).map(|told| {
            told.warnings.iter().for_each(|warning| eprintln!("warning: {warning}\n"));
            told.text
        })),
        Command::Explain(args) => match commands::explain::run(&args) {
            Ok(told) if told.is_bad_input => {
                print(Ok::<_, ConfigErrors>(told.text));
                ExitCode::FAILURE
            }
            told => print(told.map(|told| told.text)),
        },
        Command::Replay(args) => replayed(tidegate_replay::replay(&args)),
        Command::Simulate(args) => replayed(tidegate_replay::simulate(&args)),
        Command::Completions(args) => written(man_and_completions::completions(&args)),
        Command::Man(args) => written(man_and_completions::man(&args)),
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

fn written(result: Result<(), man_and_completions::PapersError>) -> ExitCode {
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
