//! Connects to the store that nodes share, if one is configured, announces this server to the
//! others, and logs when the store is unavailable or the policies of servers differ.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::redis::{RedisOptions, RedisStore};
use tidegate::unstable::config::Config;
use tracing::{info, warn};

use super::error::ServeError;
use crate::admin::differing;
use crate::envoy_ratelimit::store_error;
use crate::server_state::ServerState;
use crate::web_pages::PageLinks;

/// How often the state of the store is read for the log.
const LOG_INTERVAL: Duration = Duration::from_millis(500);

/// The minimum interval between log entries about one kind of event: every request for a foreign
/// value finds it again, and a full store evicts keys all the time.
const EVENT_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The maximum number of reasons of an unavailable store that are logged in one
/// [`EVENT_LOG_INTERVAL`] while it stays unavailable.
const MAX_RECENT_REASONS: usize = 8;

/// Connects to the configured store; `None` for memory. A store that is unreachable is connected to
/// later. `is_by_variables` if variables of envoyproxy/ratelimit configure it, so that errors name
/// them.
///
/// # Errors
/// When the store can never be used with these settings; see [`ServeError::Store`].
pub async fn connect(
    config: &Config,
    is_by_variables: bool,
) -> Result<Option<RedisStore>, ServeError> {
    let Some(url) = config.store.redis() else { return Ok(None) };
    let options = RedisOptions {
        url: url.to_owned(),
        timeout: config.store_timeout,
        key_prefix: config.key_prefix.clone(),
        // Each policy sets these two.
        deny_cache: true,
        leases: true,
    };
    match RedisStore::connect(options).await {
        Ok(store) => Ok(Some(store)),
        Err(error) if is_by_variables => Err(match store_error(error) {
            Ok(error) => ServeError::Variable(error),
            Err(error) => ServeError::Store(error),
        }),
        Err(error) => Err(ServeError::Store(error)),
    }
}

/// The name of this server for the others that share the store: the host, and the port of its HTTP
/// or admin front.
fn node_name(links: PageLinks) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok());
    let host = host.as_deref().map_or("", str::trim);
    match links.http.or(links.admin) {
        Some(front) => format!("{host}:{}", front.address.port()),
        None => host.to_owned(),
    }
}

/// Announces this server with the fingerprint of its policies, and logs when the policies of others
/// differ.
#[derive(Default)]
struct FleetWatch {
    announced: Option<u64>,
    differing: usize,
}

impl FleetWatch {
    fn update(&mut self, store: &RedisStore, name: &str, state: &ServerState) {
        let fingerprint = state.fingerprint();
        if self.announced.replace(fingerprint) != Some(fingerprint) {
            store.announce(&node_name(state.page_links()), fingerprint);
        }
        let nodes = store.live_nodes();
        let before = std::mem::replace(&mut self.differing, differing(&nodes, fingerprint));
        match (before, self.differing) {
            (0, 0) => {}
            (0, differing) => warn!(
                store = name,
                differing,
                nodes = nodes.len(),
                "servers that share the store have other policies than this one; see \
                 /admin/v1/fleet"
            ),
            (_, 0) => info!(store = name, "all servers that share the store have equal policies"),
            _ => {}
        }
    }
}

/// Announces this server, and logs when the store becomes unavailable or available, its warnings,
/// and when the policies of other servers differ.
pub async fn watch(store: RedisStore, name: String, state: Arc<ServerState>) {
    let mut fleet = FleetWatch::default();
    let mut logged_warnings = Vec::new();
    let (mut was_up, mut openings) = (true, store.stats().breaker_openings);
    let mut reasons = ReasonLog::default();
    let (mut foreign, mut lost) = (EventLog::default(), EventLog::default());
    loop {
        let stats = store.stats();
        match (was_up, stats.up) {
            (true, false) => {
                let reason = store.last_error().unwrap_or_else(|| "no reply".into());
                warn!(store = name, reason, "store unavailable; applying on_store_failure");
                reasons.add(reason, Instant::now());
            }
            (false, false) => {
                let (reason, now) = (store.last_error(), Instant::now());
                if let Some(reason) = reason.filter(|reason| reasons.is_due(reason, now)) {
                    warn!(store = name, reason, "store still unavailable, for another reason");
                    reasons.add(reason, now);
                }
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
        if let Some(requests) = foreign.due(stats.foreign) {
            let place = store.last_foreign().unwrap_or_default();
            warn!(
                store = name,
                place,
                requests,
                "a key in the store holds a value that tidegate did not write; on_store_failure \
                 applies to it: \
                 delete the value, or use another key_prefix"
            );
        }
        if let Some(times) = lost.due(stats.data_losses.iter().sum()) {
            let what = store.last_data_loss().unwrap_or_default();
            warn!(
                store = name,
                what,
                times,
                "the store lost data; the limits of lost keys start from zero, so each key may be \
                 admitted its limit once more"
            );
        }
        fleet.update(&store, &name, &state);
        for warning in store.warnings() {
            if !logged_warnings.contains(&warning) {
                warn!(store = name, "{warning}");
                logged_warnings.push(warning);
            }
        }
        tokio::time::sleep(LOG_INTERVAL).await;
    }
}

/// The reasons of an unavailable store that were logged, the latest last.
#[derive(Default)]
struct ReasonLog {
    logged: Vec<(String, Instant)>,
}

impl ReasonLog {
    /// Returns whether a reason differs from the logged one, and is to be logged. Reasons that
    /// alternate are each logged once per [`EVENT_LOG_INTERVAL`].
    fn is_due(&self, reason: &str, now: Instant) -> bool {
        let mut recent = self.logged.iter().filter(|(_, at)| is_recent(*at, now));
        self.logged.last().is_none_or(|(last, _)| last != reason)
            && recent.clone().count() < MAX_RECENT_REASONS
            && recent.all(|(logged, _)| logged != reason)
    }

    /// Adds a reason that was logged, and removes those that are no longer recent.
    fn add(&mut self, reason: String, now: Instant) {
        self.logged.retain(|(logged, at)| *logged != reason && is_recent(*at, now));
        self.logged.push((reason, now));
    }
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < EVENT_LOG_INTERVAL
}

/// The events of one kind that were logged.
#[derive(Default)]
struct EventLog {
    logged: u64,
    at: Option<Instant>,
}

impl EventLog {
    /// Returns the number of events since the last log entry if another entry is due. `total` is
    /// the number of all events.
    fn due(&mut self, total: u64) -> Option<u64> {
        let is_due = self.at.is_none_or(|at| !is_recent(at, Instant::now()));
        if total == self.logged || !is_due {
            return None;
        }
        self.at = Some(Instant::now());
        Some(total - std::mem::replace(&mut self.logged, total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_reasons_are_logged_at_a_bounded_rate() {
        let (mut log, start) = (ReasonLog::default(), Instant::now());
        let mut lines = |reason: &str, seconds: u64| {
            let now = start + Duration::from_secs(seconds);
            let is_due = log.is_due(reason, now);
            if is_due {
                log.add(reason.into(), now);
            }
            is_due
        };
        // The reasons that the store has at these seconds, and whether they are logged.
        let rows = [
            ("refused", 0, true),
            ("refused", 1, false),
            ("no password", 2, true),
            ("refused", 3, false),
            ("no password", 4, false),
            ("refused", 60, true),
            ("no password", 61, false),
            ("no password", 62, true),
            ("no password", 500, false),
        ];
        for (reason, seconds, expected) in rows {
            assert_eq!(lines(reason, seconds), expected, "{reason} at {seconds} s");
        }
        let count = (0..100).filter(|number| lines(&number.to_string(), 1_000)).count();
        assert_eq!(count, MAX_RECENT_REASONS);
    }
}
