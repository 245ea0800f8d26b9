//! Warnings about environment variables that look like settings of tidegate, but do not exist.
//!
//! A misspelt flag is an error, but a misspelt variable would be ignored silently, and the server
//! could run without its secret or config.

use std::ffi::OsString;
use std::net::IpAddr;

use clap::CommandFactory as _;

use crate::authentication::SECRET_VARIABLES;
use crate::commands::Cli;
use crate::envoy_ratelimit::{EnvoySettings, distinctive_variables};

const PREFIX: &str = "TIDEGATE_";

/// The maximum edit distance of a suggested name.
const MAX_DISTANCE: usize = 2;

/// Warns of every variable with the prefix of tidegate that is unknown.
pub fn warn_of_unknown() {
    let all =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let mut ours: Vec<(String, OsString)> =
        all.filter(|(name, _)| name.starts_with(PREFIX)).collect();
    if ours.is_empty() {
        return;
    }
    ours.sort_unstable();
    let known = known();
    let is_fine = |name: &String, value: &OsString| {
        known.contains(name) || value.to_str().is_some_and(|value| is_kubernetes(name, value))
    };
    for (name, _) in ours.iter().filter(|(name, value)| !is_fine(name, value)) {
        let variable = name.escape_debug().to_string();
        match nearest(name, &known).or_else(|| equivalent(name)) {
            Some(near) => {
                tracing::warn!("{variable} is not a setting of tidegate; did you mean {near}?")
            }
            None => tracing::warn!(
                "{variable} is not a setting of tidegate; see `tidegate serve --help`"
            ),
        }
    }
}

/// Warns of variables of envoyproxy/ratelimit that are ignored. `settings` are those that were
/// read, with `--as-envoy-ratelimit`.
pub fn warn_of_envoy(settings: Option<&EnvoySettings>) {
    match settings {
        Some(settings) => {
            settings.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
            if settings.store.is_none() {
                tracing::warn!(
                    "REDIS_URL is not set: unless TIDEGATE_STORE or the config names a store, counts \
                     are kept in the memory of this process"
                );
            }
        }
        None => {
            let set = distinctive_variables().join(", ");
            if !set.is_empty() {
                tracing::warn!("{set}: set, but only read with --as-envoy-ratelimit");
            }
        }
    }
}

/// All variables that are read: those of flags, and those of secrets.
fn known() -> Vec<String> {
    let cli = Cli::command();
    let serve = cli.find_subcommand("serve");
    let flags = serve.into_iter().flat_map(clap::Command::get_arguments);
    let flags = flags.filter_map(|flag| flag.get_env()?.to_str().map(str::to_owned));
    flags.chain(SECRET_VARIABLES.map(str::to_owned)).collect()
}

/// Whether the variable is one that Kubernetes sets for a service whose name begins with
/// `tidegate`. Users set `TIDEGATE_PORT` too, but not to such a value.
fn is_kubernetes(name: &str, value: &str) -> bool {
    let is_number = |text: &str| text.parse::<u16>().is_ok();
    let protocols = ["tcp", "udp", "sctp"];
    let is_target =
        || value.split_once("://").is_some_and(|(protocol, _)| protocols.contains(&protocol));
    // TIDEGATE_SERVICE_HOST, TIDEGATE_SERVICE_PORT, TIDEGATE_ADMIN_SERVICE_PORT_HTTP
    if name.ends_with("_SERVICE_HOST") {
        return value.parse::<IpAddr>().is_ok();
    }
    if name.ends_with("_SERVICE_PORT") || name.contains("_SERVICE_PORT_") {
        return is_number(value);
    }
    // TIDEGATE_PORT=tcp://10.0.0.1:8080
    if name.ends_with("_PORT") && is_target() {
        return true;
    }
    // TIDEGATE_PORT_8080_TCP, TIDEGATE_PORT_8080_TCP_ADDR
    let Some((_, port)) = name.split_once("_PORT_") else { return false };
    let mut parts = port.split('_');
    let port_and_protocol = parts.next().is_some_and(is_number)
        && parts.next().is_some_and(|part| protocols.contains(&&*part.to_ascii_lowercase()));
    port_and_protocol
        && match (parts.next(), parts.next()) {
            (None, _) => is_target(),
            (Some("PROTO"), None) => protocols.contains(&value),
            (Some("PORT"), None) => is_number(value),
            (Some("ADDR"), None) => value.parse::<IpAddr>().is_ok(),
            _ => false,
        }
}

fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a str> {
    let distance = |one: &&String| strsim::damerau_levenshtein(name, one);
    let near = known.iter().min_by_key(distance)?;
    (distance(&near) <= MAX_DISTANCE).then_some(near)
}

/// Returns the variable that sets what a name of another system sets.
fn equivalent(name: &str) -> Option<&'static str> {
    let words: Vec<&str> = name.strip_prefix(PREFIX)?.split('_').collect();
    let has_any = |of: &[&str]| of.iter().any(|word| words.contains(word));
    if has_any(&["PORT", "LISTEN", "BIND", "ADDR", "ADDRESS", "HOST"]) {
        let fronts = [
            ("ADMIN", "TIDEGATE_ADMIN"),
            ("METRICS", "TIDEGATE_ADMIN"),
            ("GRPC", "TIDEGATE_GRPC"),
            ("RESP", "TIDEGATE_RESP"),
        ];
        let front = fronts.into_iter().find(|(word, _)| words.contains(word));
        return Some(front.map_or("TIDEGATE_HTTP", |(_, variable)| variable));
    }
    has_any(&["REDIS", "VALKEY"]).then_some("TIDEGATE_STORE")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_variable_for_words_of_other_systems() {
        let known = known();
        let rows = [
            ("TIDEGATE_PORT", Some("TIDEGATE_HTTP")),
            ("TIDEGATE_HTTP_ADDR", Some("TIDEGATE_HTTP")),
            ("TIDEGATE_LISTEN", Some("TIDEGATE_HTTP")),
            ("TIDEGATE_ADMIN_PORT", Some("TIDEGATE_ADMIN")),
            ("TIDEGATE_METRICS_ADDR", Some("TIDEGATE_ADMIN")),
            ("TIDEGATE_GRPC_PORT", Some("TIDEGATE_GRPC")),
            ("TIDEGATE_REDIS_URL", Some("TIDEGATE_STORE")),
            ("TIDEGATE_REDISTRIBUTE", None),
            ("TIDEGATE_SPEED", None),
        ];
        for (name, expected) in rows {
            assert_eq!(equivalent(name), expected, "{name}");
            assert!(expected.is_none_or(|one| known.iter().any(|known| known == one)), "{name}");
        }
    }

    #[test]
    fn suggests_nearest_variable() {
        let known = known();
        for name in ["TIDEGATE_CONFIG", "TIDEGATE_TOKENS_FILE", "TIDEGATE_LOG_FORMAT"] {
            assert!(known.iter().any(|one| one == name), "{name}");
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
            assert!(!known.iter().any(|one| one == name), "{name}");
            assert_eq!(nearest(name, &known), expected, "{name}");
        }
    }

    #[test]
    fn recognizes_kubernetes_variables() {
        let rows = [
            ("TIDEGATE_SERVICE_HOST", "10.0.0.1", true),
            ("TIDEGATE_SERVICE_HOST", "fd00::1", true),
            ("TIDEGATE_SERVICE_PORT", "8080", true),
            ("TIDEGATE_SERVICE_PORT_HTTP", "8080", true),
            ("TIDEGATE_ADMIN_SERVICE_PORT_ADMIN", "9090", true),
            ("TIDEGATE_PORT", "tcp://10.0.0.1:8080", true),
            ("TIDEGATE_ADMIN_PORT", "tcp://[fd00::1]:9090", true),
            ("TIDEGATE_PORT_8080_TCP", "tcp://10.0.0.1:8080", true),
            ("TIDEGATE_PORT_8080_TCP_PROTO", "tcp", true),
            ("TIDEGATE_PORT_8080_TCP_PORT", "8080", true),
            ("TIDEGATE_ADMIN_PORT_9090_TCP_ADDR", "10.0.0.1", true),
            ("TIDEGATE_PORT", "9000", false),
            ("TIDEGATE_HTTP_PORT", "9000", false),
            ("TIDEGATE_ADMIN_PORT", "9090", false),
            ("TIDEGATE_PORT", "0.0.0.0:9000", false),
            ("TIDEGATE_PORT", "http://10.0.0.1", false),
            ("TIDEGATE_PORT_HTTP", "9000", false),
            ("TIDEGATE_PORT_8080", "tcp://10.0.0.1:8080", false),
            ("TIDEGATE_PORT_8080_TCP_NAME", "x", false),
            ("TIDEGATE_PORT_8080_TCP_ADDR_X", "10.0.0.1", false),
            ("TIDEGATE_SERVICE", "tidegate", false),
            ("TIDEGATE_SERVICE_HOST", "limits.example", false),
            ("TIDEGATE_SERVICE_PORT", "off", false),
        ];
        for (name, value, expected) in rows {
            assert_eq!(is_kubernetes(name, value), expected, "{name}={value}");
        }
    }
}
