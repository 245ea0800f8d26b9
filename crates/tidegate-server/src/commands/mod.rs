//! The command line: subcommands, their output and exit codes.
//!
//! Shell completions and manual pages are generated from its definition. The binary writes them
//! itself, so they always match its version, however it was installed, and packagers need no second
//! build.

mod config;
mod explain;
mod tips;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Id, Parser, Subcommand};
use clap_complete::Shell;
use clap_mangen::Man;
use tidegate::unstable::config::ConfigErrors;
use tidegate_replay::{ReplayArgs, ReplayError, SimulateArgs};

use self::config::ConfigArgs;
use self::explain::ExplainArgs;
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

/// Print a script that completes `tidegate` commands in a shell
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_HELP)]
pub struct CompletionsArgs {
    /// Which shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

const COMPLETIONS_HELP: &str = "\
Examples:
  tidegate completions bash > /usr/share/bash-completion/completions/tidegate
  tidegate completions zsh > /usr/share/zsh/site-functions/_tidegate
  tidegate completions fish > ~/.config/fish/completions/tidegate.fish";

/// Print the manual page, or write those of all commands
#[derive(Debug, Args)]
#[command(after_help = MAN_HELP)]
pub struct ManArgs {
    /// Write tidegate.1, tidegate-serve.1 and so on into this directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

const MAN_HELP: &str = "\
Examples:
  tidegate man | man -l -
  tidegate man --dir /usr/local/share/man/man1";

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
    let parsed = Cli::command().try_get_matches_from(&args).and_then(|matches| {
        let mut cli = Cli::from_arg_matches(&matches)?;
        if let (Command::Serve(serve), Some((_, matches))) =
            (&mut cli.command, matches.subcommand())
        {
            let is_variable =
                |id: &&Id| matches.value_source(id.as_str()) == Some(ValueSource::EnvVariable);
            serve.set_by_variable = matches.ids().filter(is_variable).cloned().collect();
        }
        Ok(cli)
    });
    let explain = |error| tips::add_tip(name_variable(error, &args), &args);
    let mut command = parsed.unwrap_or_else(|error| explain(error).exit()).command;
    if let Command::Serve(serve) = &mut command {
        serve.as_envoy_ratelimit |= is_ratelimit;
    }
    command
}

/// Names the environment variable in an error about its value. The error of clap names only the
/// flag, which the user may not have written.
fn name_variable(mut error: clap::Error, args: &[OsString]) -> clap::Error {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let mut cli = Cli::command();
    cli.build();
    let flags = cli.find_subcommand("serve").into_iter().flat_map(clap::Command::get_arguments);
    let named = flags.filter(|flag| flag.to_string() == *argument);
    let mut named = named.filter_map(|flag| Some((flag.get_env()?.to_str()?, flag.get_long()?)));
    let Some((variable, flag)) = named.next() else { return error };
    let is_flag = |arg: &OsString| {
        let name = arg.to_str().and_then(|arg| arg.strip_prefix("--")?.split('=').next());
        name == Some(flag)
    };
    if !args.iter().any(is_flag) {
        let both = format!("{variable} ({argument})");
        error.insert(ContextKind::InvalidArg, ContextValue::String(both));
    }
    error
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
        Command::Completions(args) => print(Ok::<_, WriteError>(completions(args.shell))),
        Command::Man(args) => print(man(&args)),
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
fn print(result: Result<impl AsRef<[u8]>, impl std::error::Error>) -> ExitCode {
    let written = match result {
        Ok(output) => write_to_stdout(output.as_ref()).map_err(|error| error.to_string()),
        Err(errors) => Err(errors.to_string()),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes to standard output. A closed pipe is not an error: a reader such as `head` closes it
/// early.
fn write_to_stdout(output: &[u8]) -> Result<(), WriteError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(output).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(WriteError { to: "standard output".into(), error })
        }
        _ => Ok(()),
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

/// Output that could not be written.
#[derive(Debug, thiserror::Error)]
#[error(
    "{to}: {error}{}",
    match .error.kind() {
        io::ErrorKind::NotFound => ": make the directory first",
        _ => "",
    }
)]
struct WriteError {
    to: PathBuf,
    error: io::Error,
}

/// Returns a completion script.
fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tidegate", &mut script);
    script
}

/// Returns the page of the program, or writes one for every command.
///
/// # Errors
/// When a file cannot be written.
fn man(args: &ManArgs) -> Result<Vec<u8>, WriteError> {
    let mut command = Cli::command();
    command.build();
    match &args.dir {
        None => Ok(page(command)),
        Some(dir) => write_pages(&command, dir).map(|()| Vec::new()),
    }
}

/// Writes the page of a command and of all commands below it.
fn write_pages(command: &clap::Command, dir: &Path) -> Result<(), WriteError> {
    let below = command.get_subcommands().filter(|below| below.get_name() != "help");
    for below in below {
        write_pages(below, dir)?;
    }
    // After `build`, the display name includes the parent commands: `tidegate-config-check`.
    let name = command.get_display_name().unwrap_or(command.get_name());
    let to = dir.join(format!("{name}.1"));
    std::fs::write(&to, page(command.clone())).map_err(|error| WriteError { to, error })
}

fn page(command: clap::Command) -> Vec<u8> {
    let mut page = Vec::new();
    // Writing to memory cannot fail.
    let _ = Man::new(command).manual("tidegate").render(&mut page);
    page
}
