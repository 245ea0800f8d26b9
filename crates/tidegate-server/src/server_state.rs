//! The state of the server: readiness, connections, responses, reloads. The fronts update it; the
//! metrics read it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwapOption;
use http::StatusCode;
use tidegate::unstable::stats::Counters;
use tokio::sync::watch;

use crate::web_pages::PageLinks;

/// A front of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrontName {
    Http,
    Grpc,
    Resp,
    Admin,
}

impl FrontName {
    pub const ALL: [FrontName; 4] =
        [FrontName::Http, FrontName::Grpc, FrontName::Resp, FrontName::Admin];

    /// The fronts that serve HTTP/2.
    pub const OVER_HTTP: [FrontName; 3] = [FrontName::Http, FrontName::Grpc, FrontName::Admin];

    /// The name used in flags and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            FrontName::Http => "http",
            FrontName::Grpc => "grpc",
            FrontName::Resp => "resp",
            FrontName::Admin => "admin",
        }
    }
}

/// The state of the server, shared by all fronts.
#[derive(Debug)]
pub struct ServerState {
    started: SystemTime,
    /// The start on the monotonic clock.
    started_instant: Instant,
    max_keys: u64,
    health: watch::Sender<Health>,
    /// Whether checks are answered with an error, because no config was loaded yet.
    lacks_config: AtomicBool,
    fronts: [FrontState; FrontName::ALL.len()],
    grpc_responses: Counters<{ CODES.len() }>,
    resp_replies: Counters<{ REPLY_CODES.len() }>,
    reloads: [AtomicU64; 2],
    reloaded_at: AtomicU64,
    /// The fingerprint of the policies in use.
    fingerprint: AtomicU64,
    rejected_config: ArcSwapOption<RejectedConfig>,
    /// The paths of the config; `None` for the built-in default.
    source: Option<String>,
    page_links: OnceLock<PageLinks>,
}

/// The conditions of readiness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Health {
    /// All fronts listen, and the server does not drain.
    is_open: bool,
    /// Streams have to end.
    is_draining: bool,
    needs_config: bool,
    needs_store: bool,
}

impl Health {
    fn is_ready(self) -> bool {
        self.unready_reason().is_none()
    }

    fn unready_reason(self) -> Option<&'static str> {
        match self {
            Health { is_open: false, .. } => Some("draining"),
            Health { needs_config: true, .. } => Some("no config is loaded"),
            Health { needs_store: true, .. } => Some("the store is unavailable"),
            _ => None,
        }
    }
}

/// A config that was rejected.
#[derive(Debug)]
pub struct RejectedConfig {
    /// The time of the reload, in seconds since 1970.
    pub at: u64,
    /// The errors of the config, truncated to [`MAX_ERROR_BYTES`].
    pub errors: String,
    /// Whether a later config was accepted.
    superseded: AtomicBool,
}

impl RejectedConfig {
    /// Whether a later config was accepted.
    pub fn is_superseded(&self) -> bool {
        self.superseded.load(Relaxed)
    }
}

/// The maximum length of a stored error. The dashboard shows it; the log has the full text.
const MAX_ERROR_BYTES: usize = 2_000;

/// The result of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    Ok,
    /// The config was rejected, and the old one stays in use.
    RejectedConfig,
}

impl Reload {
    pub const ALL: [Reload; 2] = [Reload::Ok, Reload::RejectedConfig];

    pub const fn name(self) -> &'static str {
        match self {
            Reload::Ok => "ok",
            Reload::RejectedConfig => "refused",
        }
    }
}

impl ServerState {
    /// Creates the state of a server that is not ready yet. `max_keys` is the bound of the store.
    pub fn new(max_keys: usize) -> Self {
        let started = SystemTime::now();
        ServerState {
            started,
            started_instant: Instant::now(),
            max_keys: max_keys as u64,
            health: watch::Sender::new(Health::default()),
            lacks_config: AtomicBool::new(false),
            fronts: Default::default(),
            grpc_responses: Counters::default(),
            resp_replies: Counters::default(),
            reloads: Default::default(),
            // The config the server started with was read without error.
            reloaded_at: AtomicU64::new(since_epoch(started).as_secs()),
            fingerprint: AtomicU64::new(0),
            rejected_config: ArcSwapOption::empty(),
            source: None,
            page_links: OnceLock::new(),
        }
    }

    /// Sets the paths that the config is read from.
    #[must_use]
    pub fn read_from(self, source: Option<String>) -> Self {
        ServerState { source, ..self }
    }

    /// The paths that the config is read from; `None` for the built-in default.
    pub fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    /// Sets the addresses of the pages, once all fronts are bound.
    pub fn set_page_links(&self, links: PageLinks) {
        // Set once, at the start.
        let _ = self.page_links.set(links);
    }

    /// The addresses of the pages.
    pub fn page_links(&self) -> PageLinks {
        self.page_links.get().copied().unwrap_or_default()
    }

    /// Sets whether requests are accepted: true once all fronts listen, false while draining.
    pub fn set_ready(&self, ready: bool) {
        self.health.send_modify(|health| health.is_open = ready);
        // A separate change: whoever waits for the readiness has been notified of it when streams
        // learn that they have to end.
        self.health.send_modify(|health| health.is_draining = !ready);
    }

    /// Sets whether checks fail because no config was loaded, and whether the server is unready for
    /// the lack of one.
    pub fn set_lacks_config(&self, lacks_config: bool, unready: bool) {
        self.lacks_config.store(lacks_config, Relaxed);
        self.health.send_modify(|health| health.needs_config = unready);
    }

    /// Sets whether the server is unready because its store is unavailable.
    pub fn set_needs_store(&self, needs_store: bool) {
        self.health.send_modify(|health| health.needs_store = needs_store);
    }

    /// Whether checks must fail because no config was loaded yet.
    #[inline]
    pub fn lacks_config(&self) -> bool {
        self.lacks_config.load(Relaxed)
    }

    pub fn is_ready(&self) -> bool {
        self.health.borrow().is_ready()
    }

    /// The reason why the server is not ready; `None` if it is.
    pub fn unready_reason(&self) -> Option<&'static str> {
        self.health.borrow().unready_reason()
    }

    /// Waits until the server drains. Streamed responses without an end stop then.
    pub async fn draining(&self) {
        // The sender lives in `self`, so the wait ends only when the value changes.
        let _ = self.health.subscribe().wait_for(|health| health.is_draining).await;
    }

    /// Waits until the readiness differs from `ready`. Returns whether the server still accepts
    /// requests.
    pub async fn ready_changed(&self, ready: bool) -> bool {
        let mut health = self.health.subscribe();
        let changed = health.wait_for(|health| !health.is_open || health.is_ready() != ready).await;
        changed.is_ok_and(|health| health.is_open)
    }

    /// Counts a response.
    #[inline]
    pub fn count_response(&self, front: FrontName, status: StatusCode) {
        let index = usize::from(status.as_u16()) - FIRST_STATUS;
        self.fronts[front as usize].http_responses.add(index.min(STATUSES - 1), 1);
    }

    /// Counts a response to a gRPC call by its status code.
    #[inline]
    pub fn count_grpc_status(&self, code: u8) {
        self.grpc_responses.add(usize::from(code).min(CODES.len() - 1), 1);
    }

    /// Counts RESP replies. `given` holds the counts of one batch.
    #[inline]
    pub fn count_replies(&self, given: &ReplyCounts) {
        for (index, given) in given.iter().enumerate().filter(|(_, given)| **given > 0) {
            self.resp_replies.add(index, u64::from(*given));
        }
    }

    /// Counts HTTP/2 streams that a client reset.
    pub fn count_resets(&self, front: FrontName, streams: u64) {
        self.fronts[front as usize].resets.fetch_add(streams, Relaxed);
    }

    /// Counts a connection that was closed for an HTTP/2 error of the client.
    pub fn count_goaway(&self, front: FrontName) {
        self.fronts[front as usize].goaways.fetch_add(1, Relaxed);
    }

    /// Counts an open connection until the returned value is dropped.
    pub fn count_connection(self: &Arc<Self>, front: FrontName) -> ConnectionCount {
        self.fronts[front as usize].connections.fetch_add(1, Relaxed);
        ConnectionCount { server_state: Arc::clone(self), front }
    }

    /// Sets the fingerprint of the policies in use.
    pub fn set_fingerprint(&self, fingerprint: u64) {
        self.fingerprint.store(fingerprint, Relaxed);
    }

    /// The fingerprint of the policies in use.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint.load(Relaxed)
    }

    /// Records a successful reload.
    pub fn record_reload(&self) {
        self.reloads[Reload::Ok as usize].fetch_add(1, Relaxed);
        self.reloaded_at.store(since_epoch(SystemTime::now()).as_secs(), Relaxed);
        if let Some(rejected_config) = &*self.rejected_config.load() {
            rejected_config.superseded.store(true, Relaxed);
        }
    }

    /// Records a rejected config.
    pub fn record_rejected_config(&self, mut errors: String) {
        self.reloads[Reload::RejectedConfig as usize].fetch_add(1, Relaxed);
        errors.truncate(errors.floor_char_boundary(MAX_ERROR_BYTES));
        let at = since_epoch(SystemTime::now()).as_secs();
        let superseded = AtomicBool::new(false);
        self.rejected_config.store(Some(Arc::new(RejectedConfig { at, errors, superseded })));
    }

    /// The last rejected config, even if a later one was accepted.
    pub fn last_rejected_config(&self) -> Option<Arc<RejectedConfig>> {
        self.rejected_config.load_full()
    }

    /// The start of the server, as the time since 1970.
    pub fn started(&self) -> Duration {
        since_epoch(self.started)
    }

    /// The time since the start of the server, on the monotonic clock.
    pub fn uptime(&self) -> Duration {
        self.started_instant.elapsed()
    }

    pub fn max_keys(&self) -> u64 {
        self.max_keys
    }

    /// Sets the maximum number of concurrent connections to a front.
    pub fn set_max_connections(&self, front: FrontName, connections: usize) {
        self.fronts[front as usize].max_connections.store(connections as u64, Relaxed);
    }

    /// The maximum number of concurrent connections to a front; 0 if the front is off.
    pub fn max_connections(&self, front: FrontName) -> u64 {
        self.fronts[front as usize].max_connections.load(Relaxed)
    }

    pub fn connections(&self, front: FrontName) -> u64 {
        self.fronts[front as usize].connections.load(Relaxed)
    }

    /// The number of HTTP/2 streams that clients reset.
    pub fn resets(&self, front: FrontName) -> u64 {
        self.fronts[front as usize].resets.load(Relaxed)
    }

    /// The number of connections closed for an HTTP/2 error of the client.
    pub fn goaways(&self, front: FrontName) -> u64 {
        self.fronts[front as usize].goaways.load(Relaxed)
    }

    pub fn reloads(&self, reload: Reload) -> u64 {
        self.reloads[reload as usize].load(Relaxed)
    }

    /// The time at which the config in use was loaded, in seconds since 1970.
    pub fn reloaded_at(&self) -> u64 {
        self.reloaded_at.load(Relaxed)
    }

    /// The number of responses by status, without statuses that never occurred.
    pub fn http_responses(&self, front: FrontName) -> Vec<(usize, u64)> {
        used(FIRST_STATUS.., self.fronts[front as usize].http_responses.sums())
    }

    /// The number of responses to gRPC calls by code, without codes that never occurred.
    pub fn grpc_responses(&self) -> Vec<(&'static str, u64)> {
        used(CODES, self.grpc_responses.sums())
    }

    /// The number of RESP replies by code, without codes that never occurred.
    pub fn resp_replies(&self) -> Vec<(&'static str, u64)> {
        used(REPLY_CODES, self.resp_replies.sums())
    }
}

/// The counts that are not 0, with their labels.
fn used<L>(
    labels: impl IntoIterator<Item = L>,
    counts: impl IntoIterator<Item = u64>,
) -> Vec<(L, u64)> {
    labels.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect()
}

/// The codes of RESP replies. The first counts all replies that are not errors, the second all
/// errors with a code that is not listed.
pub const REPLY_CODES: [&str; 7] =
    ["OK", "ERR", "EXECABORT", "NOAUTH", "NOPROTO", "STOREDOWN", "WRONGPASS"];

/// The number of replies by code.
pub type ReplyCounts = [u32; REPLY_CODES.len()];

/// The names of the gRPC status codes, by number.
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// Counts an open connection until it is dropped.
#[derive(Debug)]
pub struct ConnectionCount {
    server_state: Arc<ServerState>,
    front: FrontName,
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.server_state.fronts[self.front as usize].connections.fetch_sub(1, Relaxed);
    }
}

const FIRST_STATUS: usize = 100;
/// Statuses 100 to 599, which are all valid ones.
const STATUSES: usize = 500;

#[derive(Debug, Default)]
struct FrontState {
    http_responses: Counters<STATUSES>,
    connections: AtomicU64,
    max_connections: AtomicU64,
    resets: AtomicU64,
    goaways: AtomicU64,
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}
