//! The `tidegate` program: one binary, one subcommand per job.
//!
//! Layout: `cli.rs` says what can be typed; `serve/` is the server, with its fronts
//! in `http/` and `admin/` and its secrets in `access/`; `replay/` sends recorded
//! traffic through the engine and sums up what it decided.

mod access;
mod admin;
mod cli;
mod http;
mod replay;
mod serve;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Replay(args) => replay(&args),
        Command::Serve(args) => match serve::run(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::FAILURE
            }
        },
    }
}

fn replay(args: &cli::ReplayArgs) -> ExitCode {
    match replay::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has seen enough, as `head` does.
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
