//! The command line: subcommands, their output and exit codes.

mod config;
mod explain;
mod man_and_completions;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tidegate::unstable::config::ConfigErrors;
use tidegate_replay::{ReplayArgs, ReplayError, SimulateArgs};

use self::config::ConfigArgs;
use self::explain::ExplainArgs;
use self::man_and_completions::{CompletionsArgs, ManArgs, WriteError};
use crate::logs;
use crate::serve::{self, ServeArgs};

/// A rate limiter with sliding windows, and a tool that shows what it would do to your traffic.
#[derive(Debug, Parser)]
#[command(
    name = "tidegate",
    version,
    after_help = "Try:  tidegate serve\n\
                  Or:   tidegate replay access.log --limit \"10 per 10s\" --algorithm all\n\
                  Then: tidegate serve --help, tidegate replay --help"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Serve(ServeArgs),
    Config(ConfigArgs),
    Explain(ExplainArgs),
    Replay(ReplayArgs),
    Simulate(SimulateArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// The name of the program of envoyproxy/ratelimit. Started under this name, the server takes its
/// place.
const ENVOY_RATELIMIT: &str = "ratelimit";

/// Parses the command line. Exits the process if it is invalid or requests help.
pub fn parse(mut args: Vec<OsString>) -> Command {
    let program = args.first().and_then(|program| Path::new(program).file_name());
    let is_ratelimit = program.is_some_and(|name| name == ENVOY_RATELIMIT);
    if is_ratelimit && args.len() == 1 {
        args.push("serve".into());
    }
    let mut command = Cli::parse_from(args).command;
    if let Command::Serve(serve) = &mut command {
        serve.as_envoy_ratelimit |= is_ratelimit;
    }
    command
}

/// Runs a subcommand.
pub fn run(command: Command) -> ExitCode {
    match command {
        Command::Config(args) => print(config::run(&args).map(|output| {
            output.warnings.iter().for_each(|warning| eprintln!("warning: {warning}\n"));
            output.text
        })),
        Command::Explain(args) => match explain::run(&args) {
            Ok(output) if output.is_bad_input => {
                print(Ok::<_, ConfigErrors>(output.text));
                ExitCode::FAILURE
            }
            output => print(output.map(|output| output.text)),
        },
        Command::Replay(args) => exit_code_of_replay(tidegate_replay::replay(&args)),
        Command::Simulate(args) => exit_code_of_replay(tidegate_replay::simulate(&args)),
        Command::Completions(args) => exit_code_of_write(man_and_completions::completions(&args)),
        Command::Man(args) => exit_code_of_write(man_and_completions::man(&args)),
        Command::Serve(args) => match serve::run(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                // Signal handlers may be installed by now, so SIGTERM does not end a blocked write.
                logs::print(std::io::stderr(), format!("error: {error}\n"));
                ExitCode::FAILURE
            }
        },
    }
}

/// Prints the output of a subcommand, or its errors.
fn print(result: Result<String, impl std::error::Error>) -> ExitCode {
    match result {
        Ok(text) => {
            // An error means a closed pipe: a reader such as `head` closes it early.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(errors) => {
            eprintln!("error: {errors}");
            ExitCode::FAILURE
        }
    }
}

fn exit_code_of_write(result: Result<(), WriteError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn exit_code_of_replay(result: Result<(), ReplayError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // A reader such as `head` closes the pipe early.
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
