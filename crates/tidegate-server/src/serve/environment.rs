//! Variables that look like settings of ours and are none.
//!
//! A misspelt flag is refused, but a misspelt variable would be passed over in
//! silence, and a server without its secret or config is no small thing.

use clap::CommandFactory as _;

use crate::access::SECRET_VARIABLES;
use crate::cli::Cli;

const PREFIX: &str = "TIDEGATE_";

/// How many letters may differ for a name to be what was meant.
const MAX_DISTANCE: usize = 2;

/// Warns of every variable that begins as ours do and is not known.
pub fn warn_of_unknown() {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(PREFIX)).collect();
    if names.is_empty() {
        return;
    }
    names.sort_unstable();
    let known = known();
    for name in names.iter().filter(|name| !is_fine(name, &known)) {
        let variable = name.escape_debug().to_string();
        match nearest(name, &known) {
            Some(near) => tracing::warn!("{variable} is no setting of tidegate: is {near} meant?"),
            None => tracing::warn!(
                "{variable} is no setting of tidegate: see `tidegate serve --help` for what there is"
            ),
        }
    }
}

/// Every variable that is read: those of flags, and the secrets.
fn known() -> Vec<String> {
    let cli = Cli::command();
    let serve = cli.find_subcommand("serve");
    let flags = serve.into_iter().flat_map(clap::Command::get_arguments);
    let flags = flags.filter_map(|flag| flag.get_env()?.to_str().map(str::to_owned));
    flags.chain(SECRET_VARIABLES.map(str::to_owned)).collect()
}

/// Known, or one of those that Kubernetes sets for a service named `tidegate`:
/// `TIDEGATE_SERVICE_HOST`, `TIDEGATE_PORT_8080_TCP_ADDR` and so on.
fn is_fine(name: &str, known: &[String]) -> bool {
    let of_a_service = |part: &str| matches!(part, "SERVICE" | "PORT");
    known.iter().any(|one| one == name) || name.split('_').any(of_a_service)
}

fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a str> {
    let distance = |one: &&String| strsim::damerau_levenshtein(name, one);
    let near = known.iter().min_by_key(distance)?;
    (distance(&near) <= MAX_DISTANCE).then_some(near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant_is_found() {
        let known = known();
        for name in [
            "TIDEGATE_CONFIG",
            "TIDEGATE_TOKENS_FILE",
            "TIDEGATE_SERVICE_PORT_HTTP",
            "TIDEGATE_PORT",
        ] {
            assert!(is_fine(name, &known), "{name}");
        }
        let rows = [
            ("TIDEGATE_TOKEN", Some("TIDEGATE_TOKENS")),
            ("TIDEGATE_CONFG", Some("TIDEGATE_CONFIG")),
            ("TIDEGATE_ADMIN_TOKENS", Some("TIDEGATE_ADMIN_TOKEN")),
            ("TIDEGATE_LOGFORMAT", Some("TIDEGATE_LOG_FORMAT")),
            ("TIDEGATE_HTTP_ADDR", None),
            ("TIDEGATE_", None),
        ];
        for (name, expected) in rows {
            assert!(!is_fine(name, &known), "{name}");
            assert_eq!(nearest(name, &known), expected, "{name}");
        }
    }
}
