//! The `tidegate` program: one binary, one subcommand per job.
//!
//! Layout: `cli.rs` says what can be typed; `replay/` sends recorded traffic
//! through the engine and sums up what it decided.

mod cli;
mod replay;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};

fn main() -> ExitCode {
    let Command::Replay(args) = Cli::parse().command;
    match replay::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has seen enough, as `head` does.
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
