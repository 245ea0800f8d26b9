//! The table of the variables of envoyproxy/ratelimit, which docs/envoy.md shows, and the reader of
//! their values. The types have the text forms of Go, in which envoyproxy/ratelimit is written.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use tokio_rustls::rustls::pki_types::ServerName;

use self::Treatment::{Ignored, Refused, Used};

/// A variable of envoyproxy/ratelimit.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    pub name: &'static str,
    /// The value if it is not set.
    pub default: &'static str,
    pub treatment: Treatment,
    /// The effect of the variable, or the reason why it has none.
    pub text: &'static str,
}

/// What tidegate does with a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    Used,
    /// A warning is logged if it is set to anything but an empty or false value.
    Ignored,
    /// The server does not start if it is set to anything but its default.
    Refused,
}

/// Returns the entry of a variable.
pub fn variable(name: &str) -> Option<&'static Variable> {
    VARIABLES.iter().find(|variable| variable.name == name)
}

const fn row(
    name: &'static str,
    default: &'static str,
    treatment: Treatment,
    text: &'static str,
) -> Variable {
    Variable { name, default, treatment, text }
}

const SECOND_STORE: &str = "limits per second are kept in the store of `REDIS_URL`";
const MEMCACHE: &str = "only read with `BACKEND_TYPE=memcache`, which is refused";
const POOL: &str = "one connection carries all requests";
const PIPELINE: &str = "requests that arrive together are always sent together";
const STARTUP: &str = "the server starts without Redis, and connects when it can";
const TRACING: &str =
    "a build with the feature `otlp` exports spans, configured by `OTEL_EXPORTER_OTLP_ENDPOINT`";

/// All variables, in the order of the page.
#[rustfmt::skip]
pub const VARIABLES: [Variable; 115] = [
    row("HOST", "0.0.0.0", Used, "the address of the HTTP front"),
    row("PORT", "8080", Used, "the port of the HTTP front; 0 takes a free one"),
    row("GRPC_HOST", "0.0.0.0", Used, "the address of the gRPC front"),
    row("GRPC_PORT", "8081", Used, "the port of the gRPC front"),
    row("DEBUG_HOST", "0.0.0.0", Used, "the address of the admin front"),
    row("DEBUG_PORT", "6070", Used, "the port of the admin front"),
    row("GRPC_UDS", "", Used, "the path of a unix socket on which the gRPC front listens instead of `GRPC_HOST` and `GRPC_PORT`"),
    row("GRPC_MAX_CONNECTION_AGE", "24h", Used, "about the time after which a gRPC connection is closed; 0 for no maximum"),
    row("GRPC_MAX_CONNECTION_AGE_GRACE", "1h", Used, "how long calls and streams may take after that; 0 for no maximum"),
    row("GRPC_SERVER_USE_TLS", "false", Used, "the gRPC front accepts TLS only"),
    row("GRPC_SERVER_TLS_CERT", "", Used, "the certificate chain of the gRPC front"),
    row("GRPC_SERVER_TLS_KEY", "", Used, "the private key of the certificate"),
    row("GRPC_CLIENT_TLS_CACERT", "", Used, "the authority of client certificates, which are required then"),
    row("GRPC_CLIENT_TLS_SAN", "", Used, "the name that client certificates must have"),
    row("LOG_LEVEL", "WARN", Used, "the level of the log; `RUST_LOG` overrides it"),
    row("LOG_FORMAT", "text", Used, "`json`, else text; `--log-format json` overrides it"),
    row("CONFIG_TYPE", "FILE", Used, "`FILE` or `GRPC_XDS_SOTW`; `--envoy-config` and `--envoy-xds` override it"),
    row("FORCE_START_WITHOUT_INITIAL_CONFIG", "false", Used, "the health check succeeds before the first config"),
    row("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "false", Used, "the health check fails while no domain is loaded"),
    row("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000", Used, "the control plane, as `host:port`"),
    row("CONFIG_GRPC_XDS_NODE_ID", "default", Used, "the id that this server sends to the control plane"),
    row("CONFIG_GRPC_XDS_NODE_METADATA", "", Used, "metadata of the node, as `name=value,name=value`"),
    row("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "3s", Ignored, "`XDS_CLIENT_BACKOFF_INITIAL_INTERVAL` is the first pause"),
    row("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "", Used, "metadata of the stream, as `name:value,name:value`"),
    row("CONFIG_GRPC_XDS_SERVER_USE_TLS", "false", Used, "connects to the control plane with TLS"),
    row("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "", Used, "the client certificate"),
    row("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "", Used, "the private key of the client certificate"),
    row("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "", Used, "the authority of the control plane's certificate; by default those of the system"),
    row("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "", Used, "the name in the control plane's certificate; by default its host"),
    row("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10s", Used, "the pause after the first failure; it doubles with each further one"),
    row("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "60s", Used, "the longest pause"),
    row("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.5", Ignored, "pauses double"),
    row("XDS_CLIENT_BACKOFF_JITTER", "true", Used, "pauses are shortened by a random part of up to a half"),
    row("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "", Used, "the largest message from the control plane; 4 MiB by default"),
    row("RUNTIME_ROOT", "/srv/runtime_data/current", Used, "the configs are in `RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY`"),
    row("RUNTIME_SUBDIRECTORY", "", Used, "a part of that path"),
    row("RUNTIME_APPDIRECTORY", "config", Used, "a part of that path"),
    row("RUNTIME_IGNOREDOTFILES", "false", Ignored, "files whose name begins with a dot are always skipped"),
    row("RUNTIME_WATCH_ROOT", "true", Ignored, "a changed file and a replaced link are both noticed"),
    row("MERGE_DOMAIN_CONFIG", "false", Used, "several files may have the same domain"),
    row("BACKEND_TYPE", "redis", Used, "`redis` only; `memcache` is refused"),
    row("EXPIRATION_JITTER_MAX_SECONDS", "300", Ignored, "a key expires when its window has ended"),
    row("LOCAL_CACHE_SIZE_IN_BYTES", "0", Ignored, "denials are always remembered for up to a second, in bounded memory"),
    row("NEAR_LIMIT_RATIO", "0.8", Used, "the part of a limit above which hits count as `near_limit`, from 0 to 1"),
    row("CACHE_KEY_PREFIX", "", Used, "the prefix of keys in Redis; `tg` by default"),
    row("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "false", Ignored, "a count never exceeds its limit"),
    row("LIMIT_RESPONSE_HEADERS_ENABLED", "false", Used, "replies carry the three header fields below"),
    row("LIMIT_LIMIT_HEADER", "RateLimit-Limit", Used, "the field with the limit"),
    row("LIMIT_REMAINING_HEADER", "RateLimit-Remaining", Used, "the field with the hits that are left"),
    row("LIMIT_RESET_HEADER", "RateLimit-Reset", Used, "the field with the seconds until the window ends"),
    row("SHADOW_MODE", "false", Used, "the overall code is always `OK`"),
    row("QUOTA_MODE", "false", Used, "every limit of a config is a quota, as with `quota_mode`"),
    row("RESPONSE_DYNAMIC_METADATA", "false", Used, "replies carry `dynamic_metadata`"),
    row("REDIS_SOCKET_TYPE", "unix", Used, "`tcp`, or `unix` for the path of a socket in `REDIS_URL`, with `REDIS_TYPE=SINGLE`"),
    row("REDIS_TYPE", "SINGLE", Used, "`SINGLE`, `SENTINEL` or `CLUSTER`"),
    row("REDIS_URL", "/var/run/nutcracker/ratelimit.sock", Used, "`host:port`; `master,host:port,...` for Sentinel; `host:port,...` for Cluster. If it is not set, counts are kept in memory"),
    row("REDIS_AUTH", "", Used, "`password` or `user:password`"),
    row("REDIS_SENTINEL_AUTH", "", Used, "`password` or `user:password` of the Sentinels"),
    row("REDIS_TLS", "false", Used, "connects to Redis with TLS"),
    row("REDIS_TLS_CLIENT_CERT", "", Used, "the client certificate"),
    row("REDIS_TLS_CLIENT_KEY", "", Used, "the private key of the client certificate"),
    row("REDIS_TLS_CACERT", "", Used, "the authority of the server's certificate; by default those of the system"),
    row("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "false", Refused, "the name in the server's certificate is always checked"),
    row("REDIS_TIMEOUT", "10s", Used, "the time after which a call counts as failed, 1ms to 60s; if it is not set, 15ms or the `store_timeout` of a config file"),
    row("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false", Used, "the health check fails while Redis is unavailable"),
    row("REDIS_POOL_SIZE", "10", Ignored, POOL),
    row("REDIS_POOL_ON_EMPTY_BEHAVIOR", "WAIT", Ignored, POOL),
    row("REDIS_PIPELINE_WINDOW", "0", Ignored, PIPELINE),
    row("REDIS_PIPELINE_LIMIT", "0", Ignored, PIPELINE),
    row("REDIS_CLUSTER_PIPELINE_PARALLELISM", "1", Ignored, PIPELINE),
    row("REDIS_STARTUP_INITIAL_INTERVAL", "1s", Ignored, STARTUP),
    row("REDIS_STARTUP_MAX_INTERVAL", "30s", Ignored, STARTUP),
    row("REDIS_STARTUP_MAX_ELAPSED_TIME", "0", Ignored, STARTUP),
    row("REDIS_PERSECOND", "false", Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_SOCKET_TYPE", "unix", Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_TYPE", "SINGLE", Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_URL", "/var/run/nutcracker/ratelimitpersecond.sock", Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_POOL_SIZE", "10", Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_AUTH", "", Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_TLS", "false", Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_SENTINEL_AUTH", "", Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_PIPELINE_WINDOW", "0", Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_PIPELINE_LIMIT", "0", Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", "1", Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_TIMEOUT", "10s", Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "WAIT", Ignored, SECOND_STORE),
    row("MEMCACHE_HOST_PORT", "", Ignored, MEMCACHE),
    row("MEMCACHE_MAX_IDLE_CONNS", "2", Ignored, MEMCACHE),
    row("MEMCACHE_SRV", "", Ignored, MEMCACHE),
    row("MEMCACHE_SRV_REFRESH", "0", Ignored, MEMCACHE),
    row("MEMCACHE_TLS", "false", Ignored, MEMCACHE),
    row("MEMCACHE_TLS_CLIENT_CERT", "", Ignored, MEMCACHE),
    row("MEMCACHE_TLS_CLIENT_KEY", "", Ignored, MEMCACHE),
    row("MEMCACHE_TLS_CACERT", "", Ignored, MEMCACHE),
    row("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", "false", Ignored, MEMCACHE),
    row("USE_STATSD", "true", Used, "[metrics](#metrics) are sent to statsd; false by default if `USE_PROMETHEUS` is true"),
    row("USE_DOG_STATSD", "false", Used, "metrics are sent to DogStatsD, over UDP"),
    row("USE_DOG_STATSD_MOGRIFIERS", "", Ignored, "names are always those of statsd"),
    row("STATSD_HOST", "localhost", Used, "the host of statsd or DogStatsD"),
    row("STATSD_PORT", "8125", Used, "its port"),
    row("STATSD_PROTOCOL", "tcp", Used, "`tcp` or `udp`"),
    row("EXTRA_TAGS", "", Used, "the tags of all metrics for statsd, as `name:value,name:value`; up to 512 bytes"),
    row("STATS_FLUSH_INTERVAL", "10s", Used, "the time between two packets to statsd, 100ms to 1h"),
    row("DISABLE_STATS", "false", Used, "neither statsd nor `PROMETHEUS_ADDR` is used; `/metrics` on `DEBUG_PORT` stays"),
    row("USE_PROMETHEUS", "false", Used, "metrics are served on `PROMETHEUS_ADDR`"),
    row("PROMETHEUS_ADDR", ":9090", Used, "the address for Prometheus; without a host, all addresses"),
    row("PROMETHEUS_PATH", "/metrics", Used, "the path of the page"),
    row("PROMETHEUS_MAPPER_YAML", "", Ignored, "names and labels are always those of the default mapper"),
    row("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "false", Ignored, "response times are in seconds, as the name of the metric says"),
    row("TRACING_ENABLED", "false", Ignored, TRACING),
    row("TRACING_SERVICE_NAME", "RateLimit", Ignored, TRACING),
    row("TRACING_SERVICE_NAMESPACE", "", Ignored, TRACING),
    row("TRACING_SERVICE_INSTANCE_ID", "", Ignored, TRACING),
    row("TRACING_EXPORTER_PROTOCOL", "http", Ignored, TRACING),
    row("TRACING_SAMPLING_RATE", "1", Ignored, TRACING),
];

/// The variables of which one that is set suggests that the mode was intended. The others, such as
/// `HOST` and `PORT`, are common in other programs.
pub const DISTINCTIVE: [&str; 9] = [
    "REDIS_URL",
    "REDIS_TYPE",
    "SHADOW_MODE",
    "QUOTA_MODE",
    "CONFIG_TYPE",
    "RUNTIME_ROOT",
    "RUNTIME_SUBDIRECTORY",
    "LIMIT_RESPONSE_HEADERS_ENABLED",
    "BACKEND_TYPE",
];

/// The maximum length of a value in an error.
const MAX_SHOWN_CHARS: usize = 100;

/// Variables whose values may contain a password. Errors do not show them.
const SECRET: [&str; 5] = [
    "REDIS_URL",
    "REDIS_AUTH",
    "REDIS_SENTINEL_AUTH",
    "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
    "CONFIG_GRPC_XDS_NODE_METADATA",
];

/// A variable that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}{shown}: {reason}")]
pub struct VariableError {
    pub name: &'static str,
    /// `=` and the value; empty for a secret.
    shown: String,
    reason: String,
}

/// The variables that are set. Of others, the table has the defaults.
#[derive(Debug, Default)]
pub struct Reader {
    set: BTreeMap<&'static str, String>,
}

impl Reader {
    /// Keeps the variables of envoyproxy/ratelimit.
    pub fn new(all: impl IntoIterator<Item = (String, String)>) -> Self {
        let known = |(name, value): (String, String)| Some((variable(&name)?.name, value));
        Reader { set: all.into_iter().filter_map(known).collect() }
    }

    pub fn is_set(&self, name: &str) -> bool {
        self.set.contains_key(name)
    }

    /// Returns the value, or the default.
    pub fn text(&self, name: &str) -> &str {
        let default = || variable(name).map_or("", |variable| variable.default);
        self.set.get(name).map_or_else(default, String::as_str)
    }

    /// Returns the value; `None` if it is empty.
    pub fn non_empty(&self, name: &str) -> Option<&str> {
        Some(self.text(name)).filter(|text| !text.is_empty())
    }

    pub fn boolean(&self, name: &'static str) -> Result<bool, VariableError> {
        parse_bool(self.text(name)).ok_or_else(|| self.error(name, "write true or false"))
    }

    pub fn number<T: FromStr>(&self, name: &'static str) -> Result<T, VariableError> {
        let number = self.text(name).parse();
        number.map_err(|_| self.error(name, "this is not a whole number in the allowed range"))
    }

    pub fn duration(&self, name: &'static str) -> Result<Duration, VariableError> {
        let help = "write a duration such as 300ms, 10s or 1h30m";
        parse_duration(self.text(name)).ok_or_else(|| self.error(name, help))
    }

    /// Reads the name that a certificate must have; `None` if it is empty.
    pub fn server_name(
        &self,
        name: &'static str,
    ) -> Result<Option<ServerName<'static>>, VariableError> {
        let read = |text: &str| ServerName::try_from(text.to_owned());
        let help = "this is neither a host name nor an address";
        self.non_empty(name).map(read).transpose().map_err(|_| self.error(name, help))
    }

    /// Reads names and values, with `separator` between each name and its value.
    pub fn pairs(
        &self,
        name: &'static str,
        separator: char,
    ) -> Result<Vec<(String, String)>, VariableError> {
        let text = self.text(name).trim();
        let items = text.split(',').filter(|_| !text.is_empty());
        let pair = |item: &str| {
            let (name, value) = item.split_once(separator)?;
            Some((name.trim().to_owned(), value.trim().to_owned()))
        };
        let pairs: Option<Vec<_>> = items.map(pair).collect();
        let help = format!("write name{separator}value,name{separator}value");
        pairs.ok_or_else(|| self.error(name, help))
    }

    /// Creates an error about the value of a variable.
    pub fn error(&self, name: &'static str, reason: impl Into<String>) -> VariableError {
        let shown: String = self.text(name).chars().take(MAX_SHOWN_CHARS).collect();
        let shown = format!("={}", shown.escape_debug());
        let shown = if SECRET.contains(&name) { String::new() } else { shown };
        VariableError { name, shown, reason: reason.into() }
    }

    /// Returns an error if a variable is set whose effect is needed and missing.
    pub fn refuse(&self) -> Result<(), VariableError> {
        for variable in VARIABLES.iter().filter(|one| one.treatment == Treatment::Refused) {
            if self.is_active(variable.name) && self.text(variable.name) != variable.default {
                return Err(self.error(variable.name, format!("refused: {}", variable.text)));
            }
        }
        Ok(())
    }

    /// Returns a warning for each variable that is set and ignored.
    pub fn ignored(&self) -> Vec<String> {
        let ignored = VARIABLES.iter().filter(|one| one.treatment == Treatment::Ignored);
        let ignored = ignored.filter(|variable| self.is_active(variable.name));
        ignored.map(|one| format!("{} is ignored: {}", one.name, one.text)).collect()
    }

    /// Whether a variable is set to more than an empty or false value.
    fn is_active(&self, name: &str) -> bool {
        let value = self.set.get(name);
        value.is_some_and(|value| !value.is_empty() && parse_bool(value) != Some(false))
    }
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// Parses a duration as Go's `time.ParseDuration` does, except negative ones.
fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return None;
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        let part = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?;
        total = total.checked_add(part)?;
        rest = after;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_durations_as_go_does() {
        let rows = [
            ("0", Some(0)),
            ("0s", Some(0)),
            ("10s", Some(10_000_000)),
            ("1h30m", Some(5_400_000_000)),
            ("1.5s", Some(1_500_000)),
            ("+250ms", Some(250_000)),
            ("150us", Some(150)),
            ("24h", Some(86_400_000_000)),
            ("", None),
            ("+", None),
            ("10", None),
            ("-1s", None),
            ("s", None),
            ("1d", None),
            ("1..5s", None),
            ("10s5", None),
            ("99999999999999999999999h", None),
        ];
        for (text, expected) in rows {
            let micros = parse_duration(text).map(|duration| duration.as_micros());
            assert_eq!(micros, expected, "{text}");
        }
    }

    #[test]
    fn pairs_are_split_at_the_first_separator() {
        let read = |text: &str| {
            let name = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS";
            let pairs = Reader::new([(name.into(), text.into())]).pairs(name, ':');
            pairs.map(|pairs| format!("{pairs:?}")).map_err(|error| error.to_string())
        };
        assert_eq!(read("").as_deref(), Ok("[]"));
        assert_eq!(read("a:b,c:d:e").as_deref(), Ok(r#"[("a", "b"), ("c", "d:e")]"#));
        let error = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: write name:value,name:value";
        assert_eq!(read("a").err().as_deref(), Some(error));
    }
}
