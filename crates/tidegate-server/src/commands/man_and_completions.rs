//! Shell completions and manual pages, generated from the command line definition.
//!
//! The binary writes them itself. They always match its version, however it was installed, and
//! packagers need no second build.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::commands::Cli;

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

/// A page or script that could not be written.
#[derive(Debug, thiserror::Error)]
#[error(
    "{to}: {error}{}",
    match .error.kind() {
        io::ErrorKind::NotFound => ": make the directory first",
        _ => "",
    }
)]
pub struct WriteError {
    to: PathBuf,
    error: io::Error,
}

/// Prints a completion script.
///
/// # Errors
/// When standard output cannot be written.
pub fn completions(args: &CompletionsArgs) -> Result<(), WriteError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tidegate", &mut script);
    print(&script)
}

/// Prints the page of the program, or writes one for every command.
///
/// # Errors
/// When a file cannot be written.
pub fn man(args: &ManArgs) -> Result<(), WriteError> {
    let mut command = Cli::command();
    command.build();
    match &args.dir {
        None => print(&page(command)),
        Some(dir) => write_all(&command, dir),
    }
}

/// Writes the page of a command and of all commands below it.
fn write_all(command: &clap::Command, dir: &Path) -> Result<(), WriteError> {
    let below = command.get_subcommands().filter(|below| below.get_name() != "help");
    for below in below {
        write_all(below, dir)?;
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

/// Writes to standard output. A closed pipe is not an error: a reader such as `head` closes it
/// early.
fn print(text: &[u8]) -> Result<(), WriteError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(WriteError { to: "standard output".into(), error })
        }
        _ => Ok(()),
    }
}
