//! The table of the variables of envoyproxy/ratelimit, which docs/envoy.md shows, and the reader of
//! their values. The types have the text forms of Go, in which envoyproxy/ratelimit is written.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use tokio_rustls::rustls::pki_types::ServerName;

use self::Kind::{Boolean, Decimal, Duration as Time, Pairs, Port, Text, Whole};
use self::Treatment::{Ignored, Refused, Used};

/// A variable of envoyproxy/ratelimit.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    pub name: &'static str,
    /// The value if it is not set.
    pub default: &'static str,
    pub kind: Kind,
    pub treatment: Treatment,
    /// The effect of the variable, or the reason why it has none.
    pub text: &'static str,
}

/// The type of a value. A value of another form stops the start, also of a variable that is ignored
/// or not selected by others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    Boolean,
    Whole,
    Port,
    Decimal,
    Duration,
    /// Names and values, with this separator between each name and its value.
    Pairs(char),
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
    kind: Kind,
    treatment: Treatment,
    text: &'static str,
) -> Variable {
    Variable { name, default, kind, treatment, text }
}

const SECOND_STORE: &str = "limits per second are kept in the store of `REDIS_URL`";
const MEMCACHE: &str = "only read with `BACKEND_TYPE=memcache`, which is refused";
const POOL: &str = "one connection carries all requests";
const PIPELINE: &str = "requests that arrive together are always sent together";
const STARTUP: &str = "the server starts without a Redis that it cannot reach, and connects later; refused credentials, a failed TLS handshake and a server of another `REDIS_TYPE` stop the start";
const TRACING: &str =
    "a build with the feature `otlp` exports spans, configured by `OTEL_EXPORTER_OTLP_ENDPOINT`";

/// All variables, in the order of the page.
#[rustfmt::skip]
pub const VARIABLES: [Variable; 115] = [
    row("HOST", "0.0.0.0", Text, Used, "the address of the HTTP front; empty or unspecified: every address, IPv4 and IPv6"),
    row("PORT", "8080", Port, Used, "the port of the HTTP front; 0 takes a free one"),
    row("GRPC_HOST", "0.0.0.0", Text, Used, "the address of the gRPC front; empty or unspecified: every address, IPv4 and IPv6"),
    row("GRPC_PORT", "8081", Port, Used, "the port of the gRPC front"),
    row("DEBUG_HOST", "0.0.0.0", Text, Used, "the address of the admin front; empty or unspecified: every address, IPv4 and IPv6"),
    row("DEBUG_PORT", "6070", Port, Used, "the port of the admin front"),
    row("GRPC_UDS", "", Text, Used, "the path of a unix socket on which the gRPC front listens instead of `GRPC_HOST` and `GRPC_PORT`"),
    row("GRPC_MAX_CONNECTION_AGE", "24h", Time, Used, "about the time after which a gRPC connection is closed; 0 for no maximum; if it is not set, 24h or the `grpc_max_connection_age` of a config file"),
    row("GRPC_MAX_CONNECTION_AGE_GRACE", "1h", Time, Used, "how long calls and streams may take after that; 0 for no maximum"),
    row("GRPC_SERVER_USE_TLS", "false", Boolean, Used, "the gRPC front accepts TLS only"),
    row("GRPC_SERVER_TLS_CERT", "", Text, Used, "the certificate chain of the gRPC front"),
    row("GRPC_SERVER_TLS_KEY", "", Text, Used, "the private key of the certificate"),
    row("GRPC_CLIENT_TLS_CACERT", "", Text, Used, "the authority of client certificates, which are required then"),
    row("GRPC_CLIENT_TLS_SAN", "", Text, Used, "the name that client certificates must have"),
    row("LOG_LEVEL", "WARN", Text, Used, "the level of the log; `RUST_LOG` overrides it"),
    row("LOG_FORMAT", "text", Text, Used, "`json`, else text; `--log-format` overrides it"),
    row("CONFIG_TYPE", "FILE", Text, Used, "`FILE` or `GRPC_XDS_SOTW`; `--envoy-config` and `--envoy-xds` override it"),
    row("FORCE_START_WITHOUT_INITIAL_CONFIG", "false", Boolean, Used, "the health check succeeds before the first config"),
    row("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "false", Boolean, Used, "the health check fails while no domain is loaded; one without limits is enough"),
    row("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000", Text, Used, "the control plane, as `host:port`"),
    row("CONFIG_GRPC_XDS_NODE_ID", "default", Text, Used, "the id that this server sends to the control plane"),
    row("CONFIG_GRPC_XDS_NODE_METADATA", "", Pairs('='), Used, "metadata of the node, as `name=value,name=value`"),
    row("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "3s", Time, Ignored, "`XDS_CLIENT_BACKOFF_INITIAL_INTERVAL` is the first pause"),
    row("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "", Pairs(':'), Used, "metadata of the stream, as `name:value,name:value`"),
    row("CONFIG_GRPC_XDS_SERVER_USE_TLS", "false", Boolean, Used, "connects to the control plane with TLS"),
    row("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "", Text, Used, "the client certificate"),
    row("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "", Text, Used, "the private key of the client certificate"),
    row("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "", Text, Used, "the authority of the control plane's certificate, in place of those of the system"),
    row("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "", Text, Used, "the name in the control plane's certificate; by default its host"),
    row("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10s", Time, Used, "the pause after the first failure; it doubles with each further one"),
    row("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "60s", Time, Used, "the longest pause"),
    row("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.5", Decimal, Ignored, "pauses double"),
    row("XDS_CLIENT_BACKOFF_JITTER", "true", Boolean, Used, "pauses are shortened by a random part of up to a half"),
    row("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "", Whole, Used, "the largest message from the control plane; 4 MiB by default"),
    row("RUNTIME_ROOT", "/srv/runtime_data/current", Text, Used, "the configs are in `RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY`"),
    row("RUNTIME_SUBDIRECTORY", "", Text, Used, "a part of that path"),
    row("RUNTIME_APPDIRECTORY", "config", Text, Used, "a part of that path"),
    row("RUNTIME_IGNOREDOTFILES", "false", Boolean, Ignored, "files whose name begins with a dot are always skipped"),
    row("RUNTIME_WATCH_ROOT", "true", Boolean, Ignored, "a changed file and a replaced link are both noticed"),
    row("MERGE_DOMAIN_CONFIG", "false", Boolean, Used, "several files may have the same domain"),
    row("BACKEND_TYPE", "redis", Text, Used, "`redis` only; `memcache` is refused"),
    row("EXPIRATION_JITTER_MAX_SECONDS", "300", Whole, Ignored, "a key expires when its window has ended"),
    row("LOCAL_CACHE_SIZE_IN_BYTES", "0", Whole, Ignored, "denials are always remembered for up to a second, in bounded memory"),
    row("NEAR_LIMIT_RATIO", "0.8", Decimal, Used, "the part of a limit above which hits count as `near_limit`, from 0 to 1"),
    row("CACHE_KEY_PREFIX", "", Text, Used, "the prefix of keys in Redis; `tg` by default"),
    row("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "false", Boolean, Ignored, "a count never exceeds its limit"),
    row("LIMIT_RESPONSE_HEADERS_ENABLED", "false", Boolean, Used, "replies carry the three header fields below"),
    row("LIMIT_LIMIT_HEADER", "RateLimit-Limit", Text, Used, "the field with the limit"),
    row("LIMIT_REMAINING_HEADER", "RateLimit-Remaining", Text, Used, "the field with the hits that are left"),
    row("LIMIT_RESET_HEADER", "RateLimit-Reset", Text, Used, "the field with the seconds until the window ends"),
    row("SHADOW_MODE", "false", Boolean, Used, "the overall code is always `OK`"),
    row("QUOTA_MODE", "false", Boolean, Used, "every descriptor is a quota, as with `quota_mode`, also one without a limit, which always has room; an unlimited one does not count"),
    row("RESPONSE_DYNAMIC_METADATA", "false", Boolean, Used, "replies carry `dynamic_metadata`"),
    row("REDIS_SOCKET_TYPE", "unix", Text, Used, "`tcp`, or `unix` for the path of a socket in `REDIS_URL`, with `REDIS_TYPE=SINGLE`"),
    row("REDIS_TYPE", "SINGLE", Text, Used, "`SINGLE`, `SENTINEL` or `CLUSTER`"),
    row("REDIS_URL", "/var/run/nutcracker/ratelimit.sock", Text, Used, "`host:port`; `master,host:port,...` for Sentinel; `host:port,...` for Cluster. If it is not set, counts are kept in memory"),
    row("REDIS_AUTH", "", Text, Used, "`password` or `user:password`"),
    row("REDIS_SENTINEL_AUTH", "", Text, Used, "`password` or `user:password` of the Sentinels"),
    row("REDIS_TLS", "false", Boolean, Used, "connects to Redis with TLS"),
    row("REDIS_TLS_CLIENT_CERT", "", Text, Used, "the client certificate"),
    row("REDIS_TLS_CLIENT_KEY", "", Text, Used, "the private key of the client certificate"),
    row("REDIS_TLS_CACERT", "", Text, Used, "the authority of the server's certificate, in place of those of the system"),
    row("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "false", Boolean, Refused, "the name in the server's certificate is always checked"),
    row("REDIS_TIMEOUT", "10s", Time, Used, "the time after which a call counts as failed, 1ms to 60s; if it is not set, 15ms or the `store_timeout` of a config file"),
    row("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false", Boolean, Used, "the health check fails while Redis is unavailable"),
    row("REDIS_POOL_SIZE", "10", Whole, Ignored, POOL),
    row("REDIS_POOL_ON_EMPTY_BEHAVIOR", "WAIT", Text, Ignored, POOL),
    row("REDIS_PIPELINE_WINDOW", "0", Time, Ignored, PIPELINE),
    row("REDIS_PIPELINE_LIMIT", "0", Whole, Ignored, PIPELINE),
    row("REDIS_CLUSTER_PIPELINE_PARALLELISM", "1", Whole, Ignored, PIPELINE),
    row("REDIS_STARTUP_INITIAL_INTERVAL", "1s", Time, Ignored, STARTUP),
    row("REDIS_STARTUP_MAX_INTERVAL", "30s", Time, Ignored, STARTUP),
    row("REDIS_STARTUP_MAX_ELAPSED_TIME", "0", Time, Ignored, STARTUP),
    row("REDIS_PERSECOND", "false", Boolean, Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_SOCKET_TYPE", "unix", Text, Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_TYPE", "SINGLE", Text, Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_URL", "/var/run/nutcracker/ratelimitpersecond.sock", Text, Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_POOL_SIZE", "10", Whole, Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_AUTH", "", Text, Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_TLS", "false", Boolean, Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_SENTINEL_AUTH", "", Text, Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_PIPELINE_WINDOW", "0", Time, Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_PIPELINE_LIMIT", "0", Whole, Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", "1", Whole, Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_TIMEOUT", "10s", Time, Ignored, SECOND_STORE),
    row("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "WAIT", Text, Ignored, SECOND_STORE),
    row("MEMCACHE_HOST_PORT", "", Text, Ignored, MEMCACHE),
    row("MEMCACHE_MAX_IDLE_CONNS", "2", Whole, Ignored, MEMCACHE),
    row("MEMCACHE_SRV", "", Text, Ignored, MEMCACHE),
    row("MEMCACHE_SRV_REFRESH", "0", Time, Ignored, MEMCACHE),
    row("MEMCACHE_TLS", "false", Boolean, Ignored, MEMCACHE),
    row("MEMCACHE_TLS_CLIENT_CERT", "", Text, Ignored, MEMCACHE),
    row("MEMCACHE_TLS_CLIENT_KEY", "", Text, Ignored, MEMCACHE),
    row("MEMCACHE_TLS_CACERT", "", Text, Ignored, MEMCACHE),
    row("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", "false", Boolean, Ignored, MEMCACHE),
    row("USE_STATSD", "true", Boolean, Used, "[metrics](#metrics) are sent to statsd; false by default if `USE_PROMETHEUS` is true"),
    row("USE_DOG_STATSD", "false", Boolean, Used, "metrics are sent to DogStatsD, over UDP"),
    row("USE_DOG_STATSD_MOGRIFIERS", "", Text, Ignored, "names are always those of statsd; `DOG_STATSD_MOGRIFIER_*` are not read"),
    row("STATSD_HOST", "localhost", Text, Used, "the host of statsd or DogStatsD"),
    row("STATSD_PORT", "8125", Port, Used, "its port"),
    row("STATSD_PROTOCOL", "tcp", Text, Used, "`tcp` or `udp`"),
    row("EXTRA_TAGS", "", Pairs(':'), Used, "the tags of all metrics for statsd, as `name:value,name:value`; up to 512 bytes"),
    row("STATS_FLUSH_INTERVAL", "10s", Time, Used, "the time between two packets to statsd, 100ms to 1h"),
    row("DISABLE_STATS", "false", Boolean, Used, "neither statsd nor `PROMETHEUS_ADDR` is used; `/metrics` on `DEBUG_PORT` stays"),
    row("USE_PROMETHEUS", "false", Boolean, Used, "metrics are served on `PROMETHEUS_ADDR`"),
    row("PROMETHEUS_ADDR", ":9090", Text, Used, "the address for Prometheus; without a host, every address, IPv4 and IPv6"),
    row("PROMETHEUS_PATH", "/metrics", Text, Used, "the path of the page"),
    row("PROMETHEUS_MAPPER_YAML", "", Text, Ignored, "names and labels are always those of the default mapper"),
    row("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "false", Boolean, Ignored, "response times are in seconds, as the name of the metric says"),
    row("TRACING_ENABLED", "false", Boolean, Ignored, TRACING),
    row("TRACING_SERVICE_NAME", "RateLimit", Text, Ignored, TRACING),
    row("TRACING_SERVICE_NAMESPACE", "", Text, Ignored, TRACING),
    row("TRACING_SERVICE_INSTANCE_ID", "", Text, Ignored, TRACING),
    row("TRACING_EXPORTER_PROTOCOL", "http", Text, Ignored, TRACING),
    row("TRACING_SAMPLING_RATE", "1", Decimal, Ignored, TRACING),
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

    pub fn decimal(&self, name: &'static str) -> Result<f32, VariableError> {
        self.text(name).parse().map_err(|_| self.error(name, "this is not a number"))
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

    /// Returns an error if a value does not have the type of its variable.
    pub fn check_types(&self) -> Result<(), VariableError> {
        for Variable { name, kind, .. } in VARIABLES.iter().filter(|one| self.is_set(one.name)) {
            match kind {
                Text => {}
                Boolean => drop(self.boolean(name)?),
                Whole => drop(self.number::<i64>(name)?),
                Port => drop(self.number::<u16>(name)?),
                Decimal => drop(self.decimal(name)?),
                Time => drop(self.duration(name)?),
                Pairs(separator) => drop(self.pairs(name, *separator)?),
            }
        }
        Ok(())
    }

    /// Returns an error if only one of two variables is set.
    pub fn both_or_neither(
        &self,
        first: &'static str,
        second: &'static str,
    ) -> Result<(), VariableError> {
        let help = || format!("set {first} and {second}, or neither");
        match (self.non_empty(first), self.non_empty(second)) {
            (Some(_), None) => Err(self.error(second, help())),
            (None, Some(_)) => Err(self.error(first, help())),
            _ => Ok(()),
        }
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
