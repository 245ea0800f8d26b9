//! Settings that are not fields of the config: errors about them say what sets them.

/// The flags of the server that set what the config does not. Each has a variable of that name. A
/// test of the server finds flags that are missing here.
const FLAGS: [&str; 7] = [
    "as-envoy-ratelimit",
    "config",
    "envoy-config",
    "envoy-xds",
    "insecure-no-auth",
    "log-format",
    "merge-domains",
];

/// Other names of settings that the config does not have, and how they are set.
const SET_ELSEWHERE: [(&str, &str); 11] = [
    ("admin-token", SET_ADMIN_TOKEN),
    (
        "algorithm",
        "name it in each limit, as in `5 per 1m sliding-log`; limits from Envoy have that of \
         `--algorithm` or TIDEGATE_ALGORITHM",
    ),
    ("auth", SET_TOKENS),
    ("debug", SET_LOG_LEVEL),
    ("log", SET_LOG_LEVEL),
    ("log-level", SET_LOG_LEVEL),
    ("logging", SET_LOG_LEVEL),
    ("rust-log", SET_LOG_LEVEL),
    ("token", SET_TOKENS),
    ("tokens", SET_TOKENS),
    ("verbose", SET_LOG_LEVEL),
];

const SET_TOKENS: &str = "set TIDEGATE_TOKENS, or name a file with TIDEGATE_TOKENS_FILE";
const SET_ADMIN_TOKEN: &str =
    "set TIDEGATE_ADMIN_TOKEN, or name a file with TIDEGATE_ADMIN_TOKEN_FILE";
const SET_LOG_LEVEL: &str = "set the level with RUST_LOG, as in RUST_LOG=debug, and the format \
                             with `--log-format` or TIDEGATE_LOG_FORMAT";

/// Returns how a setting is set that is not a field of the config.
pub(super) fn set_elsewhere(name: &str) -> Option<String> {
    let letters = |name: &str| name.to_ascii_lowercase().replace(['_', '-'], "");
    let name = letters(name);
    if let Some(flag) = FLAGS.iter().find(|flag| letters(flag) == name) {
        let variable = flag.replace('-', "_").to_ascii_uppercase();
        return Some(format!("set `--{flag}` or TIDEGATE_{variable}"));
    }
    let found = SET_ELSEWHERE.iter().find(|(elsewhere, _)| letters(elsewhere) == name);
    found.map(|(_, how)| (*how).into())
}
