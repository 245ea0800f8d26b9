//! Readiness beyond open fronts: whether the store is available, and whether a config is loaded.
//!
//! Without `--as-envoy-ratelimit`, a server starts with a config and is ready without its store,
//! because `on_store_failure` decides then. envoyproxy/ratelimit also starts without a config, and
//! its variables define when it is healthy.

use std::sync::Arc;
use std::time::Duration;

use tidegate::redis::RedisStore;
use tidegate::unstable::config::Config;

use crate::envoy_ratelimit::{EnvoySettings, HealthSettings};
use crate::server_state::ServerState;

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
            Some(config) => health.needs_domain && config.policies.envoy_domains().is_empty(),
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
