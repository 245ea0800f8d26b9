//! What the server knows about itself: whether it is ready, who is connected,
//! what it answered, how reloads went. Fronts note it; the metrics read it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwapOption;
use http::StatusCode;
use tidegate::unstable::stats::Counters;
use tokio::sync::watch;

/// A protocol the server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    Http,
    Grpc,
    Resp,
    Admin,
}

impl Front {
    pub const ALL: [Front; 4] = [Front::Http, Front::Grpc, Front::Resp, Front::Admin];

    /// The fronts that serve HTTP/2.
    pub const OVER_HTTP: [Front; 3] = [Front::Http, Front::Grpc, Front::Admin];

    /// The name used in flags and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Front::Http => "http",
            Front::Grpc => "grpc",
            Front::Resp => "resp",
            Front::Admin => "admin",
        }
    }
}

/// Shared by all fronts.
#[derive(Debug)]
pub struct Facts {
    started: SystemTime,
    max_keys: u64,
    ready: watch::Sender<bool>,
    fronts: [FrontFacts; Front::ALL.len()],
    calls: Counters<{ CODES.len() }>,
    replies: Counters<{ REPLY_CODES.len() }>,
    reloads: [AtomicU64; 2],
    reloaded_at: AtomicU64,
    refusal: ArcSwapOption<Refused>,
    /// Where the config comes from, if anywhere.
    source: Option<String>,
}

/// A config that was not taken.
#[derive(Debug)]
pub struct Refused {
    /// When, in seconds since 1970.
    pub at: u64,
    /// Why not: the beginning of it, if it is long.
    pub why: String,
    /// Whether a later one was taken.
    mended: AtomicBool,
}

impl Refused {
    /// Whether a later one was taken.
    pub fn is_mended(&self) -> bool {
        self.mended.load(Relaxed)
    }
}

/// The most of a refusal that is kept: a page shows it, the log has all of it.
const MAX_WHY_BYTES: usize = 2_000;

/// What came of reading the config again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    Ok,
    /// The old config stays.
    Refused,
}

impl Reload {
    pub const ALL: [Reload; 2] = [Reload::Ok, Reload::Refused];

    pub const fn name(self) -> &'static str {
        match self {
            Reload::Ok => "ok",
            Reload::Refused => "refused",
        }
    }
}

impl Facts {
    /// Not ready yet. `max_keys` is the store's bound.
    pub fn new(max_keys: usize) -> Self {
        let started = SystemTime::now();
        Facts {
            started,
            max_keys: max_keys as u64,
            ready: watch::Sender::new(false),
            fronts: Default::default(),
            calls: Counters::default(),
            replies: Counters::default(),
            reloads: Default::default(),
            // The config the server started with was read without error.
            reloaded_at: AtomicU64::new(since_epoch(started).as_secs()),
            refusal: ArcSwapOption::empty(),
            source: None,
        }
    }

    /// The same, of a config that is read from there.
    #[must_use]
    pub fn read_from(self, source: Option<String>) -> Self {
        Facts { source, ..self }
    }

    /// Where the config comes from; nothing if it is the one that is built in.
    pub fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    /// Whether new requests are welcome: true once all fronts listen, false while draining.
    pub fn set_ready(&self, ready: bool) {
        self.ready.send_replace(ready);
    }

    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Ends once the server is no longer ready, for answers that would never end themselves.
    pub async fn draining(&self) {
        // The sender lives in `self`, so the wait can only end with the value.
        let _ = self.ready.subscribe().wait_for(|ready| !ready).await;
    }

    /// Notes an answer.
    #[inline]
    pub fn answered(&self, front: Front, status: StatusCode) {
        let index = usize::from(status.as_u16()) - FIRST_STATUS;
        self.fronts[front as usize].answers.add(index.min(STATUSES - 1), 1);
    }

    /// Notes an answer to a call over gRPC, by the code of its status.
    #[inline]
    pub fn answered_call(&self, code: u8) {
        self.calls.add(usize::from(code).min(CODES.len() - 1), 1);
    }

    /// Notes replies over RESP, as many as were given at once.
    #[inline]
    pub fn replied(&self, given: &ReplyCounts) {
        for (index, given) in given.iter().enumerate().filter(|(_, given)| **given > 0) {
            self.replies.add(index, u64::from(*given));
        }
    }

    /// Notes streams of HTTP/2 that a client reset.
    pub fn reset(&self, front: Front, streams: u64) {
        self.fronts[front as usize].resets.fetch_add(streams, Relaxed);
    }

    /// Notes a connection that was closed for an HTTP/2 error of the client.
    pub fn went_away(&self, front: Front) {
        self.fronts[front as usize].goaways.fetch_add(1, Relaxed);
    }

    /// Notes a connection; it ends when the handle is dropped.
    pub fn connected(self: &Arc<Self>, front: Front) -> Connected {
        self.fronts[front as usize].connections.fetch_add(1, Relaxed);
        Connected { facts: Arc::clone(self), front }
    }

    /// Notes a reload.
    pub fn reloaded(&self) {
        self.reloads[Reload::Ok as usize].fetch_add(1, Relaxed);
        self.reloaded_at.store(since_epoch(SystemTime::now()).as_secs(), Relaxed);
        if let Some(refusal) = &*self.refusal.load() {
            refusal.mended.store(true, Relaxed);
        }
    }

    /// Notes a config that was not taken.
    pub fn refused(&self, mut why: String) {
        self.reloads[Reload::Refused as usize].fetch_add(1, Relaxed);
        why.truncate(why.floor_char_boundary(MAX_WHY_BYTES));
        let at = since_epoch(SystemTime::now()).as_secs();
        let mended = AtomicBool::new(false);
        self.refusal.store(Some(Arc::new(Refused { at, why, mended })));
    }

    /// The last config that was not taken.
    pub fn refusal(&self) -> Option<Arc<Refused>> {
        self.refusal.load_full()
    }

    /// When the server started, since 1970.
    pub fn started(&self) -> Duration {
        since_epoch(self.started)
    }

    pub fn max_keys(&self) -> u64 {
        self.max_keys
    }

    /// Sets the maximum number of concurrent connections to a front.
    pub fn set_max_connections(&self, front: Front, connections: usize) {
        self.fronts[front as usize].max_connections.store(connections as u64, Relaxed);
    }

    /// The maximum number of concurrent connections to a front; 0 if the front is off.
    pub fn max_connections(&self, front: Front) -> u64 {
        self.fronts[front as usize].max_connections.load(Relaxed)
    }

    pub fn connections(&self, front: Front) -> u64 {
        self.fronts[front as usize].connections.load(Relaxed)
    }

    /// Streams of HTTP/2 that clients reset.
    pub fn resets(&self, front: Front) -> u64 {
        self.fronts[front as usize].resets.load(Relaxed)
    }

    /// Connections closed for an HTTP/2 error of the client.
    pub fn goaways(&self, front: Front) -> u64 {
        self.fronts[front as usize].goaways.load(Relaxed)
    }

    pub fn reloads(&self, reload: Reload) -> u64 {
        self.reloads[reload as usize].load(Relaxed)
    }

    /// When the config in force was read, in seconds since 1970.
    pub fn reloaded_at(&self) -> u64 {
        self.reloaded_at.load(Relaxed)
    }

    /// Answers so far by status; statuses that never were are left out.
    pub fn answers(&self, front: Front) -> Vec<(usize, u64)> {
        used(FIRST_STATUS.., self.fronts[front as usize].answers.sums())
    }

    /// Answers to calls over gRPC so far, by code; codes that never were are left out.
    pub fn calls(&self) -> Vec<(&'static str, u64)> {
        used(CODES, self.calls.sums())
    }

    /// Replies over RESP so far, by code; codes that never were are left out.
    pub fn replies(&self) -> Vec<(&'static str, u64)> {
        used(REPLY_CODES, self.replies.sums())
    }
}

/// The counts that are not 0, with their labels.
fn used<L>(
    labels: impl IntoIterator<Item = L>,
    counts: impl IntoIterator<Item = u64>,
) -> Vec<(L, u64)> {
    labels.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect()
}

/// The codes of replies over RESP; whatever is no error is the first, and an error without one
/// of these is the second.
pub const REPLY_CODES: [&str; 7] =
    ["OK", "ERR", "EXECABORT", "NOAUTH", "NOPROTO", "STOREDOWN", "WRONGPASS"];

/// Replies by code.
pub type ReplyCounts = [u32; REPLY_CODES.len()];

/// The codes of gRPC, by number.
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

/// A connection that is noted.
#[derive(Debug)]
pub struct Connected {
    facts: Arc<Facts>,
    front: Front,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.facts.fronts[self.front as usize].connections.fetch_sub(1, Relaxed);
    }
}

const FIRST_STATUS: usize = 100;
/// 100 to 599: every status there is.
const STATUSES: usize = 500;

#[derive(Debug, Default)]
struct FrontFacts {
    answers: Counters<STATUSES>,
    connections: AtomicU64,
    max_connections: AtomicU64,
    resets: AtomicU64,
    goaways: AtomicU64,
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}
