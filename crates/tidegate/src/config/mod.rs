//! The config: a YAML file in, policies and settings out, or every mistake at once.
//!
//! ```text
//!   text -> yaml.rs (a tree with places) -> reader.rs (values, mistakes noted)
//!        -> settings.rs, policies.rs, conditions.rs, limits.rssettings.rs, policies.rs, descriptors.rs, limits.rs -> Config
//! ```
//!
//! - `fields.rs` is the table of every field; `schema.rs` prints it as JSON Schema;
//! - `store.rs`: where counts are kept, and what of that may be shown;
//! - `error.rs` shows a mistake: file, line, column, field, the line itself, a way out.
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
mod fields;
mod limits;
mod policies;
mod reader;
mod schema;
mod settings;
mod yaml;

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use self::error::UnlocatedError;
use self::reader::{Located, Reader};

pub use self::error::{ConfigError, ConfigErrors};
pub use self::schema::schema;
pub use self::settings::{NotAStore, StoreUrl};
pub use self::yaml::MAX_CONFIG_BYTES;

use crate::WhenFull;
use crate::headers::Forms;
use crate::identity::Identity;
use crate::policy::{PathVariants, Policies, PoliciesError, Policy, Template};
use crate::stats::{LogKeys, MaskSecret};

/// Everything a config says, defaults filled in.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Which requests are limited, and how.
    pub policies: Policies,
    /// Where counts are kept.
    pub store: StoreUrl,
    /// How long a store may take before it counts as failed.
    pub store_timeout: Duration,
    /// What every key begins with in a shared store.
    pub key_prefix: String,
    /// How many share the limits, for `on_store_failure: local`.
    pub nodes: u32,
    /// Which headers answers carry.
    pub headers: Forms,
    /// Which proxies are believed, and how addresses are grouped.
    pub identity: Identity,
    /// How path parameters and backslashes are read.
    pub path_variants: PathVariants,
    /// Most keys held in memory, counted per key and limit.
    pub max_keys: usize,
    /// Most log entries and permits held in memory.
    pub max_log_entries: u64,
    /// Most idempotency ids remembered.
    pub max_ids: usize,
    /// What happens to keys there is no room for.
    pub when_full: WhenFull,
    /// How keys are shown in logs, events and rankings.
    pub log_keys: LogKeys,
    /// The secret that all nodes mask keys with; `None` for one of each process.
    pub mask_secret: Option<MaskSecret>,
    /// Where each front listens, as written: an address or `off`; `None` where nothing is said.
    pub fronts: Fronts<Option<String>>,
    /// How long a connection to the gRPC front lasts, about: then its client connects again, and
    /// finds servers that have come since.
    pub grpc_max_connection_age: Duration,
    /// The certificates of each front; `None` for plain text.
    pub tls: Fronts<Option<Tls>>,
}

/// One value per front.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fronts<T> {
    /// `/v1/*`.
    pub http: T,
    /// Envoy's rate limit service.
    pub grpc: T,
    /// The Redis protocol.
    pub resp: T,
    /// Health, metrics and administration.
    pub admin: T,
}

/// The files of a front's TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The certificate chain, PEM.
    pub cert: String,
    /// Its private key, PEM.
    pub key: String,
    /// Who signs clients' certificates, PEM; clients need one if it is given.
    pub client_ca: Option<String>,
}

impl Config {
    /// Reads a config. `file` is only named in errors.
    ///
    /// # Errors
    /// Everything that is wrong with it.
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
            Some(node) => read(&reader, &Located { node, path: String::new() }, role, &mut config),
            None if is_empty && role == Role::Settings => config.policies = Policies::default(),
            None if is_empty => return Err(ConfigErrors::new(file, vec![*empty()])),
            None => {}
        }
        match reader.into_errors() {
            errors if errors.is_empty() => Ok(config),
            errors => Err(ConfigErrors::new(file, errors)),
        }
    }

    /// Reads a config file. One over [`MAX_CONFIG_BYTES`] is refused unread.
    ///
    /// # Errors
    /// When it cannot be read, and everything that is wrong with it.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        Config::parse(&read_text(path)?, &path.display().to_string())
    }

    /// Reads a config file whose policies may be elsewhere: without any it has none.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_settings(path: &Path) -> Result<Self, ConfigErrors> {
        Config::parse_as(&read_text(path)?, &path.display().to_string(), Role::Settings)
    }

    /// The same with the policies of another behind its own.
    ///
    /// # Errors
    /// When they cannot stand together: two share a name, or there are too many.
    pub fn with_policies_of(mut self, other: &Config) -> Result<Self, PoliciesError> {
        let all = self.policies.iter().chain(&other.policies).cloned().collect();
        let policies = Policies::new(all, self.identity.clone())?;
        self.policies = policies.with_path_variants(self.path_variants);
        Ok(self)
    }

    /// What is served without a config: everything matches, `100 per 1m` for each client address.
    pub fn default_policy() -> Policy {
        let limit = "100 per 1m".parse().expect("a limit");
        let key: Template = "{client_ip}".parse().expect("a template");
        Policy::new("default", key, vec![limit]).expect("a policy")
    }
}

/// Memory store, default bounds, and [`Config::default_policy`] alone.
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
        }
    }
}

/// What a file is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Settings and policies.
    Whole,
    /// Settings, and policies if there are any.
    Settings,
}

/// The text of a config file.
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
    let cannot = |error: std::io::Error| {
        ConfigError::whole(
            format!("the config cannot be read: {error}"),
            "check the path and its permissions",
        )
    };
    let file = File::open(path).map_err(cannot)?;
    // A pipe or device has no length to ask for: it is read up to the bound.
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

fn read(reader: &Reader<'_>, top: &Located, role: Role, config: &mut Config) {
    let is_needed = |field: &fields::Field| field.is_required && role == Role::Whole;
    let Some(object) = reader.object_needing(top, fields::TOP, is_needed) else { return };
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
