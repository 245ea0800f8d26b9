//! The config: a YAML file in, policies and settings out.

use std::time::Duration;

use crate::WhenFull;
use crate::headers::Forms;
use crate::identity::Identity;
use crate::policy::{Policies, Policy, Template};

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
    /// Most keys held in memory, counted per key and limit.
    pub max_keys: usize,
    /// Most log entries and permits held in memory.
    pub max_log_entries: u64,
    /// Most idempotency ids remembered.
    pub max_ids: usize,
    /// What happens to keys there is no room for.
    pub when_full: WhenFull,
    /// Where each front listens, as written: an address or `off`; `None` where nothing is said.
    pub fronts: Fronts<Option<String>>,
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

/// Where counts are kept.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreUrl {
    /// In this process.
    Memory,
    /// In Redis: `redis://`, `rediss://`, `redis-sentinel://` or `redis-cluster://`.
    Redis(String),
}

/// The URL may hold a password, so only its scheme is shown.
impl std::fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StoreUrl::Memory => f.write_str("memory"),
            StoreUrl::Redis(url) => {
                write!(f, "{}://...", url.split("://").next().unwrap_or_default())
            }
        }
    }
}

impl Config {
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
            max_keys: memory.max_keys,
            max_log_entries: memory.max_log_entries,
            max_ids: memory.max_ids,
            when_full: memory.when_full,
            fronts: Fronts::default(),
            tls: Fronts::default(),
        }
    }
}
