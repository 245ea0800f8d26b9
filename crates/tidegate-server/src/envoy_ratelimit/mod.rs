//! The settings of `tidegate serve --as-envoy-ratelimit`: the environment variables of
//! envoyproxy/ratelimit.
//!
//! `variables.rs` is the table of all of them. Each is used, ignored with a warning, or refused
//! with an error. The values become one plain struct, [`EnvoySettings`], which `serve/` applies: to
//! the arguments before they are read, and to each config after it was loaded.

mod metrics;
mod redis;
mod variables;
mod xds;

use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;
use tidegate::Algorithm;
use tidegate::redis::ConnectError;
use tidegate::unstable::config::{Config, StoreUrl, Tls};
use tokio_rustls::rustls::pki_types::ServerName;

pub use self::metrics::{EnvoyMetrics, MetricsSettings, PrometheusSettings, Statsd, router};
pub use self::variables::VariableError;
pub use self::xds::{XdsAddress, xds_settings};

use self::variables::{DISTINCTIVE, Reader};
use crate::connections::{ListenAddr, TlsError};
use crate::logs::LogFormat;
use crate::serve::ServeArgs;
use crate::server_state::FrontName;
use crate::xds::XdsSettings;

/// The bounds of a connection's age, those of the setting `grpc_max_connection_age`.
const MIN_AGE: Duration = Duration::from_secs(1);
const MAX_AGE: Duration = Duration::from_secs(365 * 24 * 3600);

const AGE_GRACE: &str = "GRPC_MAX_CONNECTION_AGE_GRACE";

/// The bounds of a store's timeout, those of the setting `store_timeout`.
const MIN_TIMEOUT: Duration = Duration::from_millis(1);
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

/// The timeout of a store if no variable and no config file sets it. Envoy waits 20 ms for an
/// answer by default, and the answer from memory, when the store fails, must arrive in that time.
pub const DEFAULT_STORE_TIMEOUT: Duration = Duration::from_millis(15);

/// The maximum age of a gRPC connection if no variable and no config file sets it: that of
/// envoyproxy/ratelimit.
pub const DEFAULT_CONNECTION_AGE: Duration = Duration::from_secs(24 * 3600);

/// The settings that the variables of envoyproxy/ratelimit define.
#[derive(Clone, Debug)]
pub struct EnvoySettings {
    pub http: VariableAddress,
    pub grpc: VariableAddress,
    pub admin: VariableAddress,
    /// `None` if no variable sets it.
    pub grpc_max_connection_age: Option<Duration>,
    /// How long calls may take after a connection has reached its maximum age.
    pub grpc_max_connection_age_grace: Duration,
    pub grpc_tls: Option<Tls>,
    /// The name that client certificates must have.
    pub grpc_client_name: Option<ServerName<'static>>,
    /// The filter of the log, in the form of `RUST_LOG`.
    pub log_filter: &'static str,
    pub log_format: LogFormat,
    pub configs: ConfigType,
    pub merge_domains: bool,
    pub health: HealthSettings,
    /// `None` if no variable selects a store.
    pub store: Option<StoreUrl>,
    pub store_timeout: Option<Duration>,
    pub key_prefix: Option<String>,
    pub checks: CheckSettings,
    /// `None` if metrics are neither sent nor served.
    pub metrics: Option<MetricsSettings>,
    /// The variables that are set and ignored, with the reasons.
    pub warnings: Vec<String>,
}

/// The address of a front.
#[derive(Clone, Debug)]
pub struct VariableAddress {
    pub address: ListenAddr,
    /// Whether a variable sets it. Otherwise it is the default of envoyproxy/ratelimit.
    pub is_set: bool,
    /// The variables and their values, for errors.
    pub setting: String,
}

/// The source of configs.
#[derive(Clone, Debug)]
pub enum ConfigType {
    /// A directory of files.
    Files(PathBuf),
    /// A control plane.
    Xds(Box<XdsSettings>),
}

/// The conditions of the health check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HealthSettings {
    /// The check succeeds before the first config.
    pub starts_without_config: bool,
    /// The check fails while no domain is loaded.
    pub needs_domain: bool,
    /// The check fails while the store is unavailable.
    pub needs_store: bool,
}

/// How requests of Envoy are decided, and the contents of the replies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckSettings {
    /// The names of the fields for the limit, the remaining hits and the reset; `None` to send no
    /// fields.
    pub headers: Option<[String; 3]>,
    pub dynamic_metadata: bool,
    /// The overall code is always `OK`.
    pub shadow_mode: bool,
    /// Every descriptor is a quota, unless it is unlimited.
    pub quota_mode: bool,
}

impl EnvoySettings {
    /// Reads the variables of the environment.
    ///
    /// # Errors
    /// When a value is invalid, or tidegate lacks what it asks for.
    pub fn from_env() -> Result<Self, VariableError> {
        EnvoySettings::new(environment())
    }

    /// Reads variables. Those of other programs are skipped.
    ///
    /// # Errors
    /// When a value is invalid, or tidegate lacks what it asks for.
    pub fn new(all: impl IntoIterator<Item = (String, String)>) -> Result<Self, VariableError> {
        let reader = Reader::new(all);
        reader.check_types()?;
        reader.refuse()?;
        if !["redis", ""].contains(&reader.text("BACKEND_TYPE")) {
            let reason = "refused: counts are kept in Redis; set BACKEND_TYPE=redis and REDIS_URL";
            return Err(reader.error("BACKEND_TYPE", reason));
        }
        let settings = EnvoySettings {
            http: address(&reader, "HOST", "PORT")?,
            grpc: match reader.non_empty("GRPC_UDS") {
                Some(path) => VariableAddress {
                    address: ListenAddr::Unix(path.into()),
                    is_set: true,
                    setting: format!("GRPC_UDS={path}"),
                },
                None => address(&reader, "GRPC_HOST", "GRPC_PORT")?,
            },
            admin: address(&reader, "DEBUG_HOST", "DEBUG_PORT")?,
            grpc_max_connection_age: max_age(&reader)?,
            grpc_max_connection_age_grace: match reader.duration(AGE_GRACE)? {
                grace if grace.is_zero() => MAX_AGE,
                grace => grace.min(MAX_AGE),
            },
            grpc_tls: grpc_tls(&reader)?,
            grpc_client_name: grpc_client_name(&reader)?,
            log_filter: log_filter(&reader)?,
            log_format: match reader.text("LOG_FORMAT").eq_ignore_ascii_case("json") {
                true => LogFormat::Json,
                false => LogFormat::Text,
            },
            configs: config_type(&reader)?,
            merge_domains: reader.boolean("MERGE_DOMAIN_CONFIG")?,
            health: HealthSettings {
                starts_without_config: reader.boolean("FORCE_START_WITHOUT_INITIAL_CONFIG")?,
                needs_domain: reader.boolean("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED")?,
                needs_store: reader.boolean("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION")?,
            },
            store: redis::store(&reader)?,
            store_timeout: store_timeout(&reader)?,
            key_prefix: key_prefix(&reader)?,
            checks: CheckSettings {
                headers: headers(&reader)?,
                dynamic_metadata: reader.boolean("RESPONSE_DYNAMIC_METADATA")?,
                shadow_mode: reader.boolean("SHADOW_MODE")?,
                quota_mode: reader.boolean("QUOTA_MODE")?,
            },
            metrics: metrics::read(&reader)?,
            warnings: reader.ignored(),
        };
        Ok(settings)
    }

    /// Completes arguments: what a flag or a variable of tidegate sets is kept.
    pub fn complete(&self, args: &mut ServeArgs) {
        args.algorithm.get_or_insert(Algorithm::FixedWindow);
        args.merge_domains |= self.merge_domains;
        args.log_format.get_or_insert(self.log_format);
        // The addresses of envoyproxy/ratelimit are open, and so are these.
        args.insecure_no_auth = true;
    }

    /// Returns the address of a front; `None` for one that envoyproxy/ratelimit does not have.
    pub fn address(&self, front: FrontName) -> Option<&VariableAddress> {
        match front {
            FrontName::Http => Some(&self.http),
            FrontName::Grpc => Some(&self.grpc),
            FrontName::Admin => Some(&self.admin),
            FrontName::Resp => None,
        }
    }

    /// Sets the settings of a config that variables define.
    pub fn apply(&self, config: &mut Config) {
        config.grpc_max_connection_age =
            self.grpc_max_connection_age.unwrap_or(config.grpc_max_connection_age);
        if let Some(tls) = &self.grpc_tls {
            config.tls.grpc = Some(tls.clone());
        }
        if let Some(store) = &self.store {
            config.store = store.clone();
        }
        config.store_timeout = self.store_timeout.unwrap_or(config.store_timeout);
        if let Some(prefix) = &self.key_prefix {
            config.key_prefix.clone_from(prefix);
        }
    }
}

/// Returns the variables of the environment that suggest that the mode was intended.
pub fn distinctive_variables() -> Vec<&'static str> {
    let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    DISTINCTIVE.into_iter().filter(is_set).collect()
}

fn environment() -> impl Iterator<Item = (String, String)> {
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    std::env::vars_os().map(move |(name, value)| (text(name), text(value)))
}

fn address(
    reader: &Reader,
    host: &'static str,
    port: &'static str,
) -> Result<VariableAddress, VariableError> {
    let number: u16 = reader.number(port)?;
    let name = reader.text(host);
    let Some(address) = resolve(name, number) else {
        return Err(reader.error(host, "this is neither an address nor a known host"));
    };
    Ok(VariableAddress {
        address: ListenAddr::At(address),
        is_set: reader.is_set(host) || reader.is_set(port),
        setting: format!("{host}={name} {port}={number}"),
    })
}

/// Returns the address of a host. As in Go, an empty host and an unspecified address are every
/// address of both families.
fn resolve(host: &str, port: u16) -> Option<SocketAddr> {
    let first = |host: &str| (host, port).to_socket_addrs().ok()?.next();
    let address = if host.is_empty() { None } else { Some(first(host)?) };
    let address = address.filter(|address| !address.ip().is_unspecified());
    Some(address.unwrap_or((Ipv6Addr::UNSPECIFIED, port).into()))
}

fn max_age(reader: &Reader) -> Result<Option<Duration>, VariableError> {
    const NAME: &str = "GRPC_MAX_CONNECTION_AGE";
    let age = match reader.duration(NAME)? {
        age if age.is_zero() => MAX_AGE,
        age => age.clamp(MIN_AGE, MAX_AGE),
    };
    Ok(reader.is_set(NAME).then_some(age))
}

fn grpc_tls(reader: &Reader) -> Result<Option<Tls>, VariableError> {
    if !reader.boolean("GRPC_SERVER_USE_TLS")? {
        return Ok(None);
    }
    let required = |name| {
        let missing = "GRPC_SERVER_USE_TLS is true, so name a PEM file";
        reader.non_empty(name).map(str::to_owned).ok_or_else(|| reader.error(name, missing))
    };
    Ok(Some(Tls {
        cert: required("GRPC_SERVER_TLS_CERT")?,
        key: required("GRPC_SERVER_TLS_KEY")?,
        client_ca: reader.non_empty("GRPC_CLIENT_TLS_CACERT").map(str::to_owned),
    }))
}

/// Converts an error about the TLS files of the gRPC front to one about the variable of the file.
pub fn grpc_tls_error(error: &TlsError) -> VariableError {
    let name = match error.field {
        "key" => "GRPC_SERVER_TLS_KEY",
        "client_ca" => "GRPC_CLIENT_TLS_CACERT",
        _ => "GRPC_SERVER_TLS_CERT",
    };
    Reader::new(environment()).error(name, &*error.reason)
}

/// Converts an error of the store that variables select to one about the variable at fault.
///
/// # Errors
/// When no variable is at fault; the error is returned as it is.
pub fn store_error(error: ConnectError) -> Result<VariableError, ConnectError> {
    redis::store_error(&Reader::new(environment()), error)
}

fn grpc_client_name(reader: &Reader) -> Result<Option<ServerName<'static>>, VariableError> {
    const NAME: &str = "GRPC_CLIENT_TLS_SAN";
    let name = reader.server_name(NAME)?;
    if name.is_some() && reader.non_empty("GRPC_CLIENT_TLS_CACERT").is_none() {
        return Err(reader.error(NAME, "set GRPC_CLIENT_TLS_CACERT too, the authority of clients"));
    }
    Ok(name)
}

/// Returns the filter of the log. The lowest level of the log is `error`.
fn log_filter(reader: &Reader) -> Result<&'static str, VariableError> {
    Ok(match &*reader.text("LOG_LEVEL").to_ascii_lowercase() {
        "panic" | "fatal" | "error" => "error",
        "warn" | "warning" => "warn",
        "info" => "info",
        "debug" => "debug",
        "trace" => "trace",
        _ => return Err(reader.error("LOG_LEVEL", "write error, warn, info, debug or trace")),
    })
}

fn config_type(reader: &Reader) -> Result<ConfigType, VariableError> {
    match reader.text("CONFIG_TYPE") {
        "FILE" => {
            let path = PathBuf::from(reader.text("RUNTIME_ROOT"));
            let parts = ["RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY"];
            let parts = parts.map(|name| reader.text(name).trim_start_matches('/'));
            let parts = parts.iter().filter(|part| !part.is_empty());
            Ok(ConfigType::Files(parts.fold(path, |path, part| path.join(part))))
        }
        "GRPC_XDS_SOTW" => Ok(ConfigType::Xds(Box::new(xds::read(reader)?))),
        _ => Err(reader.error("CONFIG_TYPE", "write FILE or GRPC_XDS_SOTW")),
    }
}

fn store_timeout(reader: &Reader) -> Result<Option<Duration>, VariableError> {
    if !reader.is_set("REDIS_TIMEOUT") {
        return Ok(None);
    }
    let timeout = reader.duration("REDIS_TIMEOUT")?;
    match (MIN_TIMEOUT..=MAX_TIMEOUT).contains(&timeout) {
        true => Ok(Some(timeout)),
        false => Err(reader.error("REDIS_TIMEOUT", "write a duration from 1ms to 60s")),
    }
}

fn key_prefix(reader: &Reader) -> Result<Option<String>, VariableError> {
    let Some(prefix) = reader.non_empty("CACHE_KEY_PREFIX") else { return Ok(None) };
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    if prefix.len() > 32 || !prefix.bytes().all(is_allowed) {
        let help = "use up to 32 letters, digits, `.`, `_`, `:` and `-`";
        return Err(reader.error("CACHE_KEY_PREFIX", help));
    }
    Ok(Some(prefix.to_owned()))
}

fn headers(reader: &Reader) -> Result<Option<[String; 3]>, VariableError> {
    let name = |variable| {
        let text = reader.text(variable);
        match HeaderName::from_bytes(text.as_bytes()) {
            Ok(_) => Ok(text.to_owned()),
            Err(_) => Err(reader.error(variable, "this is not the name of a header field")),
        }
    };
    let names =
        [name("LIMIT_LIMIT_HEADER")?, name("LIMIT_REMAINING_HEADER")?, name("LIMIT_RESET_HEADER")?];
    Ok(reader.boolean("LIMIT_RESPONSE_HEADERS_ENABLED")?.then_some(names))
}

#[cfg(test)]
mod tests;
