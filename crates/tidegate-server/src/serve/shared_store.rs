//! The store that nodes share, if one is configured, and readiness beyond open fronts: whether the
//! store is available, and whether a config is loaded.
//!
//! Without `--as-envoy-ratelimit`, a server starts with a config and is ready without its store,
//! because `on_store_failure` decides then. envoyproxy/ratelimit also starts without a config, and
//! its variables define when it is healthy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::redis::{RedisOptions, RedisStore};
use tidegate::unstable::config::Config;
use tracing::{info, warn};

use super::error::ServeError;
use crate::admin::ServerState;
use crate::envoy_ratelimit::{EnvoySettings, HealthSettings};

/// How often the state of the store is read for the log.
const LOG_INTERVAL: Duration = Duration::from_millis(500);

/// The minimum interval between log entries about foreign values: every request for such a key
/// finds the value again.
const FOREIGN_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Connects to the configured store; `None` for memory. A store that is unreachable is connected to
/// later.
///
/// # Errors
/// When the store can never be used with these settings; see [`ServeError::Store`].
pub async fn connect(config: &Config) -> Result<Option<RedisStore>, ServeError> {
    let Some(url) = config.store.redis() else { return Ok(None) };
    let options = RedisOptions {
        url: url.to_owned(),
        timeout: config.store_timeout,
        key_prefix: config.key_prefix.clone(),
        deny_cache: true,
    };
    Ok(Some(RedisStore::connect(options).await?))
}

/// Logs when the store becomes unavailable or available, and its warnings.
pub async fn watch(store: RedisStore, name: String) {
    let mut logged_warnings = Vec::new();
    let (mut was_up, mut openings) = (true, store.stats().breaker_openings);
    let mut foreign = ForeignValueLog::default();
    loop {
        let stats = store.stats();
        match (was_up, stats.up) {
            (true, false) => {
                let reason = store.last_error().unwrap_or_else(|| "no reply".into());
                warn!(store = name, reason, "store unavailable; applying on_store_failure");
            }
            (false, true) => info!(store = name, "store available again"),
            // The store was down and came back between two checks.
            (true, true) if stats.breaker_openings > openings => {
                warn!(
                    store = name,
                    "store was unavailable for a moment; on_store_failure was applied"
                );
            }
            _ => {}
        }
        (was_up, openings) = (stats.up, stats.breaker_openings);
        foreign.log(&store, &name, stats.foreign);
        for warning in store.warnings() {
            if !logged_warnings.contains(&warning) {
                warn!(store = name, "{warning}");
                logged_warnings.push(warning);
            }
        }
        tokio::time::sleep(LOG_INTERVAL).await;
    }
}

/// Logs values in the store that tidegate did not write.
#[derive(Default)]
struct ForeignValueLog {
    logged: u64,
    at: Option<Instant>,
}

impl ForeignValueLog {
    fn log(&mut self, store: &RedisStore, name: &str, requests: u64) {
        let is_due = self.at.is_none_or(|at| at.elapsed() >= FOREIGN_LOG_INTERVAL);
        if requests == self.logged || !is_due {
            return;
        }
        let place = store.last_foreign().unwrap_or_default();
        warn!(
            store = name,
            place,
            requests = requests - self.logged,
            "a key in the store holds a value that tidegate did not write; on_store_failure \
             applies to it: \
             delete the value, or use another key_prefix"
        );
        (self.logged, self.at) = (requests, Some(Instant::now()));
    }
}

/// How often the state of the store is read for readiness.
const READINESS_INTERVAL: Duration = Duration::from_millis(200);

/// The conditions under which the server is ready.
#[derive(Clone, Copy, Debug)]
pub struct Readiness {
    /// `None` without `--as-envoy-ratelimit`.
    health: Option<HealthSettings>,
}

impl Readiness {
    pub fn new(variables: Option<&EnvoySettings>) -> Self {
        Readiness { health: variables.map(|variables| variables.health) }
    }

    /// Records the config in use; `None` if none was loaded yet.
    pub fn record_config(self, server_state: &ServerState, config: Option<&Config>) {
        let health = self.health.unwrap_or_default();
        let unready = match config {
            None => health.needs_domain || !health.starts_without_config,
            Some(config) => health.needs_domain && config.policies.is_empty(),
        };
        server_state.set_lacks_config(config.is_none(), unready);
    }

    /// Makes the server unready until the store is available, and later while it is not, as the
    /// settings say.
    pub fn follow_store(self, store: RedisStore, server_state: &Arc<ServerState>) {
        let Some(health) = self.health else { return };
        let server_state = Arc::clone(server_state);
        server_state.set_needs_store(!store.stats().up);
        tokio::spawn(async move {
            loop {
                let is_up = store.stats().up;
                server_state.set_needs_store(!is_up);
                if is_up && !health.needs_store {
                    return;
                }
                tokio::time::sleep(READINESS_INTERVAL).await;
            }
        });
    }
}
