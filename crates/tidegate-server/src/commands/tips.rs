//! Tips for arguments and subcommands that do not exist.
//!
//! clap suggests names with a similar spelling. The table adds what other programs have under
//! another name, or what is not set by a flag here.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory as _};

use super::Cli;

/// Stands for any argument that is not a flag.
const ANY_VALUE: &str = "VALUE";

/// Stands for any argument that looks like the name of a file.
const ANY_FILE: &str = "FILE";

/// A command, arguments or subcommands that it does not have, and the tip for them, in which `{}`
/// is the argument.
type Row = (&'static str, &'static [&'static str], &'static str);

const ROWS: [Row; 23] = [
    (
        "serve",
        &["--port", "-p", "--listen", "--bind", "--addr", "--address", "--host"],
        "use '--http', for example `--http 127.0.0.1:8080`",
    ),
    ("serve", &["--metrics"], "use '--admin'"),
    ("serve", &["-c"], "use '--config'"),
    ("serve", &[ANY_VALUE], "a config is named with '--config {}'"),
    ("serve", &["--store", "--redis"], "set TIDEGATE_STORE, or `store` in the config"),
    (
        "serve",
        &["--tls-cert", "--tls-key"],
        "TLS is set in the config: `tls: { http: { cert: FILE, key: FILE } }`",
    ),
    ("serve", &["--token", "--tokens"], "set TIDEGATE_TOKENS"),
    (
        "serve",
        &["--limit", "--limits", "--policy", "--policies"],
        "limits are in a config: write a policy, and name the file with '--config'",
    ),
    ("serve", &["--log-level", "--verbose", "-v", "--debug"], "set RUST_LOG=debug"),
    ("", &["check", "validate"], CONFIG_CHECK),
    ("config", &["validate", "test", "lint"], CONFIG_CHECK),
    ("config", &[ANY_FILE], "use `tidegate config check {}`"),
    (
        "config check",
        &["--config", "-c", "--file", "-f"],
        "the file is given without a flag: `tidegate config check FILE`",
    ),
    ("explain", &["--ip"], "use '--client-ip'"),
    ("explain", &["--url", "--uri"], "use '--path', which also takes a whole URL"),
    ("explain", &["-c"], "use '--config'"),
    (
        "explain",
        &[ANY_VALUE],
        "the request is described with flags, for example `--method GET --path /login`, and a \
         config is named with '--config'",
    ),
    ("replay", &["--time"], "name the field with --field time=NAME"),
    (
        "replay",
        &["--since", "--from", "--start", "--until", "--date"],
        "all requests of a log are replayed: select a period before, for example with awk",
    ),
    ("replay", &OUTPUT_NAMES, OUTPUTS),
    ("replay", &LIMIT_NAMES, "use '--limit'"),
    ("simulate", &OUTPUT_NAMES, OUTPUTS),
    ("simulate", &LIMIT_NAMES, "use '--limit'"),
];

const OUTPUT_NAMES: [&str; 3] = ["--output", "--out", "-o"];

const OUTPUTS: &str = "use '--json', which prints to standard output, or '--html FILE'";

const LIMIT_NAMES: [&str; 2] = ["--rate", "--limits"];

const CONFIG_CHECK: &str = "use `tidegate config check FILE`";

/// Adds the tip for an unknown argument or subcommand, in place of clap's suggestions.
pub(super) fn add_tip(mut error: clap::Error, args: &[OsString]) -> clap::Error {
    let unknown = match error.kind() {
        ErrorKind::UnknownArgument => ContextKind::InvalidArg,
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        _ => return error,
    };
    let Some(ContextValue::String(name)) = error.get(unknown) else { return error };
    let mut cli = Cli::command();
    cli.build();
    let (path, command) = command_of(args, &mut cli);
    if let Some(tip) = tip(&path, name) {
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        // The usage of clap's error has the argument that clap suggests.
        let usage = command.render_usage();
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    } else {
        remove_tip_of_value(&mut error);
    }
    error
}

/// Removes the tip to write `--` before an unknown flag. No command takes a value that looks like a
/// flag.
fn remove_tip_of_value(error: &mut clap::Error) {
    let Some(ContextValue::StyledStrs(tips)) = error.remove(ContextKind::Suggested) else { return };
    let is_kept = |tip: &StyledStr| !tip.to_string().contains(" as a value");
    let kept: Vec<StyledStr> = tips.into_iter().filter(is_kept).collect();
    if !kept.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(kept));
    }
}

/// Returns the subcommand that the command line begins with, and its names.
fn command_of<'c>(args: &[OsString], cli: &'c mut Command) -> (String, &'c mut Command) {
    let (mut path, mut command) = (Vec::new(), cli);
    for name in args.iter().skip(1).map_while(|arg| arg.to_str()) {
        if command.find_subcommand(name).is_none() {
            break;
        }
        command = command.find_subcommand_mut(name).expect("found above");
        path.push(name);
    }
    (path.join(" "), command)
}

/// Returns the tip for a name, or for one with a similar spelling.
fn tip(command: &str, name: &str) -> Option<String> {
    if command.is_empty() && has_flag("serve", name) {
        return Some(format!("a command comes first: `tidegate serve {name} ...`"));
    }
    let distance = |known: &str| match known {
        ANY_VALUE if name.starts_with('-') => usize::MAX,
        ANY_VALUE => 0,
        ANY_FILE if name.contains(['.', '/']) => 0,
        ANY_FILE => usize::MAX,
        known => strsim::damerau_levenshtein(known, name),
    };
    let rows = ROWS.iter().filter(|(of, ..)| *of == command);
    let known = rows
        .filter_map(|(_, names, tip)| Some((names.iter().copied().map(&distance).min()?, *tip)));
    let (distance, tip) = known.min_by_key(|(distance, _)| *distance)?;
    // Short names are all similar, and the beginning of a flag stands for that flag.
    let most = usize::from(name.len() > 4 && !begins_flag(command, name));
    (distance <= most).then(|| tip.replace("{}", name))
}

fn has_flag(command: &str, name: &str) -> bool {
    name.strip_prefix("--").is_some_and(|name| any_flag(command, |flag| flag == name))
}

/// Whether a flag of the command begins with this name.
fn begins_flag(command: &str, name: &str) -> bool {
    name.strip_prefix("--").is_some_and(|name| any_flag(command, |flag| flag.starts_with(name)))
}

/// Whether the name of any flag of a command satisfies a condition.
fn any_flag(command: &str, condition: impl Fn(&str) -> bool) -> bool {
    let cli = Cli::command();
    let mut flags = cli.find_subcommand(command).into_iter().flat_map(Command::get_arguments);
    flags.any(|flag| flag.get_long().is_some_and(&condition))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tip for an argument that exists would never be shown.
    #[test]
    fn rows_are_about_unknown_names_of_known_commands() {
        for (path, names, _) in ROWS {
            let mut command = Cli::command();
            for name in path.split_whitespace() {
                command = command.find_subcommand(name).expect(name).clone();
            }
            for name in names {
                let is_short = |arg: &clap::Arg| {
                    arg.get_short().is_some_and(|short| format!("-{short}") == *name)
                };
                let is_long = |arg: &clap::Arg| {
                    arg.get_long().is_some_and(|long| format!("--{long}") == *name)
                };
                assert!(
                    !command.get_arguments().any(|arg| is_short(arg) || is_long(arg)),
                    "{name}"
                );
                assert!(command.find_subcommand(name).is_none(), "{name}");
            }
        }
    }
}
