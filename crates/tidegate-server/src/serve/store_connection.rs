//! Connects to the store that nodes share, if one is configured, and logs when it is unavailable.

use std::time::{Duration, Instant};

use tidegate::redis::{RedisOptions, RedisStore};
use tidegate::unstable::config::Config;
use tracing::{info, warn};

use super::error::ServeError;

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
        // Each policy sets these two.
        deny_cache: true,
        leases: true,
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
