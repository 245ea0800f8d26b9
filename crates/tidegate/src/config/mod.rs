//! The config: reads a YAML file into policies and settings, or reports all of its errors together.
//!
//! ```text
//!   text -> yaml.rs (a tree with positions) -> reader.rs (typed values, errors collected)
//!        -> settings.rs, policies.rs, conditions.rs -> Config
//! ```
//!
//! - `schema.rs` is the table of all fields, also as JSON Schema;
//! - `path_notations.rs` finds globs for regular expressions and route templates;
//! - `set_elsewhere.rs` knows the settings that only flags and variables of the server set;
//! - `suggestions.rs` finds the word or the place that was meant;
//! - `syntax_errors.rs` explains errors of the YAML parser;
//! - `settings.rs` also has [`StoreUrl`], which is displayed without its secrets;
//! - `error.rs` formats an error: file, line, column, field, the line itself and how to fix it;
//! - `warnings.rs` finds parts that are valid, but have no effect or an unexpected one;
//! - `envoy/` converts files of envoyproxy/ratelimit.
//!
//! ```
//! use tidegate::unstable::config::Config;
//!
//! let text = r#"
//! policies:
//!   - name: login
//!     match: { methods: [POST], path: /login }
//!     key: "{client_ip}"
//!     limits: ["5 per 1m sliding-log"]
//! "#;
//! let config = Config::parse(text, "tidegate.yaml")?;
//! assert_eq!(config.policies.get("login").map(|policy| policy.limits().len()), Some(1));
//!
//! let errors = Config::parse("polices: []", "tidegate.yaml").unwrap_err();
//! let first = errors.iter().next().unwrap();
//! assert_eq!((first.line(), first.help()), (Some(1), "did you mean `policies`?"));
//! # Ok::<(), tidegate::unstable::config::ConfigErrors>(())
//! ```

mod conditions;
pub mod envoy;
mod error;
mod path_notations;
mod policies;
mod reader;
mod schema;
mod set_elsewhere;
mod settings;
mod suggestions;
mod syntax_errors;
mod warnings;
mod yaml;

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use self::error::{SourceLocation, UnlocatedError};
use self::reader::{LocatedNode, Reader, locate};

pub use self::error::{ConfigError, ConfigErrors, ConfigWarning};
pub use self::schema::schema;
pub use self::settings::{StoreUrl, StoreUrlError};
pub use self::yaml::MAX_CONFIG_BYTES;

use crate::WhenFull;
use crate::headers::Forms;
use crate::identity::Identity;
use crate::policy::{PathVariants, Policies, PoliciesError, Policy, Template};
use crate::stats::{LogKeys, MaskSecret};

/// The contents of a config, with defaults for missing fields.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The policies: which requests are limited, and how.
    pub policies: Policies,
    /// The store that keeps the counts.
    pub store: StoreUrl,
    /// The time after which a call to the store counts as failed.
    pub store_timeout: Duration,
    /// The prefix of every key in a shared store.
    pub key_prefix: String,
    /// The number of nodes that share the limits, for `on_store_failure: local`; 0 for as many as
    /// have announced themselves (`auto`).
    pub nodes: u32,
    /// The rate limit headers of responses.
    pub headers: Forms,
    /// The trusted proxies, and how client addresses are grouped.
    pub identity: Identity,
    /// Whether path parameters and backslashes are resolved.
    pub path_variants: PathVariants,
    /// The largest number of keys in memory, counted per key and limit.
    pub max_keys: usize,
    /// The largest number of log entries and permits in memory.
    pub max_log_entries: u64,
    /// The largest number of idempotency ids that are kept.
    pub max_ids: usize,
    /// The treatment of new keys when the store is full.
    pub when_full: WhenFull,
    /// How logs, events and rankings show keys.
    pub log_keys: LogKeys,
    /// The secret with which all nodes mask keys; `None` for a random one per process.
    pub mask_secret: Option<MaskSecret>,
    /// The address on which each front listens, as written, or `off`; `None` if it is not set.
    pub fronts: Fronts<Option<String>>,
    /// The approximate time after which a connection to the gRPC front is closed. Its client then
    /// reconnects, and discovers servers that were added since.
    pub grpc_max_connection_age: Duration,
    /// The TLS files of each front; `None` for plain text.
    pub tls: Fronts<Option<Tls>>,
    /// The parts that are valid, but may not have the intended effect, in the order of the file.
    pub warnings: Vec<ConfigWarning>,
    /// The name of the file; empty for the default config.
    file: String,
    /// The positions of the addresses and the TLS files in the config, by field.
    locations: Vec<(String, SourceLocation)>,
}

/// One value per front.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fronts<T> {
    /// The HTTP API, `/v1/*`.
    pub http: T,
    /// Envoy's rate limit service.
    pub grpc: T,
    /// The Redis protocol.
    pub resp: T,
    /// Health, metrics and administration.
    pub admin: T,
}

/// The TLS files of a front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The path of the certificate chain, in PEM format.
    pub cert: String,
    /// The path of its private key, in PEM format.
    pub key: String,
    /// The path of the CA certificates that sign client certificates, in PEM format. If it is set,
    /// clients must present a certificate.
    pub client_ca: Option<String>,
}

impl Config {
    /// Parses a config. `file` is the name that errors show.
    ///
    /// # Errors
    /// Returns all errors of the config.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigErrors> {
        Config::parse_as(text, file, Role::Whole)
    }

    fn parse_as(text: &str, file: &str, role: Role) -> Result<Self, ConfigErrors> {
        if text.len() > MAX_CONFIG_BYTES {
            return Err(ConfigErrors::new(file, vec![*too_large()]));
        }
        let mut errors = Vec::new();
        let tree = yaml::parse(text, &mut errors);
        let tree = tree.filter(|node| !node.is_null());
        let is_empty = tree.is_none() && errors.is_empty();
        let reader = Reader::new(text, errors);
        let mut config = Config::default();
        match tree {
            Some(node) => {
                read(&reader, &LocatedNode { node, path: String::new() }, role, &mut config)
            }
            None if is_empty && role == Role::Settings => config.policies = Policies::default(),
            None if is_empty => return Err(ConfigErrors::new(file, vec![*empty()])),
            None => {}
        }
        let (errors, warnings) = reader.into_errors_and_notices();
        if !errors.is_empty() {
            return Err(ConfigErrors::new(file, locate(text, errors)));
        }
        config.file = file.into();
        let warnings = locate(text, warnings).into_iter();
        config.warnings = warnings.map(|about| ConfigWarning::new(file, about)).collect();
        Ok(config)
    }

    /// Creates a warning about a field of this config, such as `tls.http.cert`. It shows the line
    /// of the field if that is an address or a TLS file.
    pub fn warning(&self, field: &str, message: String, help: String) -> ConfigWarning {
        let found = self.locations.iter().find(|(name, _)| name == field);
        let location = found.map(|(_, location)| location.clone());
        let about = ConfigError::about_field(field, location, message, help);
        ConfigWarning::new(&self.file, about)
    }

    /// Reads a config file. A file larger than [`MAX_CONFIG_BYTES`] is rejected without parsing it.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or else all errors of the config.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        Config::parse(&read_text(path)?, &path.display().to_string())
    }

    /// Reads a config file in which `policies` is optional. Without it the config has none.
    ///
    /// # Errors
    /// Returns the errors of [`Config::load`].
    pub fn load_settings(path: &Path) -> Result<Self, ConfigErrors> {
        Config::parse_as(&read_text(path)?, &path.display().to_string(), Role::Settings)
    }

    /// Appends the policies of another config.
    ///
    /// # Errors
    /// Returns an error if the policies cannot be in one set: two have the same name, or there are
    /// too many.
    pub fn with_policies_of(mut self, other: Config) -> Result<Self, PoliciesError> {
        let policies = if self.policies.is_empty() {
            // A set of thousands takes a while to build.
            other.policies.with_identity(self.identity.clone())
        } else {
            let domains = other.policies.envoy_domains().clone();
            let all = [self.policies, other.policies].into_iter().flat_map(Policies::into_vec);
            let all = Policies::new(all.collect(), self.identity.clone())?;
            all.with_envoy_domains(domains.iter().map(AsRef::as_ref))
        };
        self.policies = policies.with_path_variants(self.path_variants);
        Ok(self)
    }

    /// Returns the policy of a server without a config: `100 per 1m` for each client address, for
    /// every request.
    pub fn default_policy() -> Policy {
        let limit = "100 per 1m".parse().expect("a limit");
        let key: Template = "{client_ip}".parse().expect("a template");
        Policy::new("default", key, vec![limit]).expect("a policy")
    }
}

/// The memory store with default bounds, and [`Config::default_policy`] as the only policy.
impl Default for Config {
    fn default() -> Self {
        let identity = Identity::default();
        let policies = Policies::new(vec![Config::default_policy()], identity.clone());
        let memory = crate::MemoryOptions::default();
        Config {
            policies: policies.expect("one policy"),
            store: StoreUrl::Memory,
            store_timeout: Duration::from_millis(25),
            key_prefix: "tg".into(),
            nodes: 1,
            headers: Forms::default(),
            identity,
            path_variants: PathVariants::default(),
            max_keys: memory.max_keys,
            max_log_entries: memory.max_log_entries,
            max_ids: memory.max_ids,
            when_full: memory.when_full,
            log_keys: LogKeys::default(),
            mask_secret: None,
            fronts: Fronts::default(),
            grpc_max_connection_age: Duration::from_secs(30 * 60),
            tls: Fronts::default(),
            warnings: Vec::new(),
            file: String::new(),
            locations: Vec::new(),
        }
    }
}

/// The fields that a file must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// A complete config: `policies` is required.
    Whole,
    /// Settings: `policies` is optional.
    Settings,
}

/// Reads the text of a config file.
fn read_text(path: &Path) -> Result<String, ConfigErrors> {
    let fail =
        |error: Box<ConfigError>| ConfigErrors::new(&path.display().to_string(), vec![*error]);
    let bytes = read_file(path).map_err(fail)?;
    match String::from_utf8(bytes) {
        // Some editors begin a file with a byte order mark.
        Ok(text) => Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text)),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            let shown = String::from_utf8_lossy(error.as_bytes());
            let unlocated = UnlocatedError {
                span: at..at + 1,
                field: String::new(),
                message: "this is not UTF-8".into(),
                help: "save the file as UTF-8".into(),
            };
            Err(fail(Box::new(ConfigError::at(&shown, unlocated))))
        }
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, Box<ConfigError>> {
    let help = match path == Path::new("-") {
        true => "name `/dev/stdin` to read standard input",
        false => "check the path and its permissions",
    };
    let cannot = |error: std::io::Error| {
        ConfigError::whole(format!("the config cannot be read: {error}"), help)
    };
    let file = File::open(path).map_err(cannot)?;
    // The length of a pipe or device is unknown, so it is read up to the bound.
    if file.metadata().is_ok_and(|metadata| metadata.len() > MAX_CONFIG_BYTES as u64) {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    file.take(MAX_CONFIG_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() > MAX_CONFIG_BYTES { Err(too_large()) } else { Ok(bytes) }
}

fn too_large() -> Box<ConfigError> {
    ConfigError::whole(
        format!("the config is larger than {} KiB", MAX_CONFIG_BYTES / 1024),
        "check that this is the file you meant; use overrides and headers in place of a policy per tenant",
    )
}

fn empty() -> Box<ConfigError> {
    ConfigError::whole(
        "the config is empty",
        "write at least one policy, or run without a config for the built-in default",
    )
}

fn read(reader: &Reader<'_>, top: &LocatedNode, role: Role, config: &mut Config) {
    if top.has_field(&["domain", "descriptors"]) && !top.has_field(&["policies"]) {
        let help = "start the server with `--envoy-config` and this file, or print it as a config of \
                    tidegate with `tidegate config convert --from envoy`";
        let at = reader.start_of(top);
        return reader.fail_at(at, "", "this is a config of envoyproxy/ratelimit", help);
    }
    let is_required = |field: &schema::Field| field.is_required && role == Role::Whole;
    let Some(object) = reader.object_requiring(top, schema::TOP, is_required) else { return };
    settings::read_settings(reader, &object, config);
    if role == Role::Settings && !object.has("policies") {
        config.policies = Policies::default();
        return;
    }
    let Some(located) = object.get("policies") else { return };
    let policies = policies::read_policies(reader, &located);
    if reader.has_errors() {
        return;
    }
    match Policies::new(policies, config.identity.clone()) {
        Ok(policies) => config.policies = policies.with_path_variants(config.path_variants),
        Err(error) => {
            reader.fail_at(object.name_span("policies"), "policies", error.problem(), error.help())
        }
    }
}
