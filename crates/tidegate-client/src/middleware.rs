//! Retrying and pacing as a middleware of reqwest.
//!
//! It decides nothing itself: it reads the clock and the response, asks [`Call`] what to do
//! and sleeps. State is kept per server (scheme, host and port), because limits are. Servers
//! are many where a client follows links, so only the latest are remembered.
//!
//! Whoever drops the future of a request ends it: a turn that was not used is given back,
//! and nothing is sent afterwards.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::{Extensions, HeaderName, HeaderValue, Method};
use reqwest::{Request, Response};
use reqwest_middleware::{Error, Middleware, Next, Result};

use crate::{Call, End, Fields, Outcome, Peer, RetryRules};

/// The field that lets a server know a request that it has seen before.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Servers that are remembered. Whoever is forgotten is learned anew.
const MAX_PEERS: usize = 256;

/// What is read of a denial's body, so that its connection can be used again, and the time
/// for it. A longer one is not worth it.
const DRAIN_BYTES: usize = 16 * 1024;
const DRAIN_WITHIN: Duration = Duration::from_millis(250);

/// Sends requests again that were denied (429), that met a server short of capacity (503)
/// or no server at all, and slows down before the limit.
///
/// - The answer is what came last: a 429 that is not retried any more is a response, not an
///   error. [`Paused`](crate::Paused) is the only error of its own.
/// - Bodies that are streams cannot be sent again, and are not.
/// - Methods that are not idempotent (POST, PATCH) are retried only with an
///   `Idempotency-Key`: yours, or one made here, the same for all retries of a call. With one
///   made here it must be certain that the request was not taken: a 429, a 503 that says
///   when to come back, no connection. See [`keys_honoured`](Retry::keys_honoured).
/// - Clones share what they learn.
///
/// ```no_run
/// # async fn run() -> Result<(), reqwest_middleware::Error> {
/// use std::time::Duration;
/// use reqwest_middleware::ClientBuilder;
/// use tidegate_client::{Retry, RetryRules};
///
/// let rules = RetryRules::default().retries(3).deadline(Duration::from_secs(20));
/// let client = ClientBuilder::new(reqwest::Client::new()).with(Retry::new(rules)).build();
/// let response = client.post("http://localhost:3000/orders").body("{}").send().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Retry {
    rules: RetryRules,
    keys_honoured: bool,
    shared: Arc<Shared>,
}

impl Default for Retry {
    fn default() -> Self {
        Retry::new(RetryRules::default())
    }
}

impl Retry {
    /// A middleware with rules of your own.
    pub fn new(rules: RetryRules) -> Self {
        let shared = Shared { start: Instant::now(), peers: Mutex::default() };
        Retry { rules, keys_honoured: false, shared: Arc::new(shared) }
    }

    /// The servers asked do a request with the same `Idempotency-Key` once. Then a POST or
    /// PATCH is sent again also if nobody knows whether the first was taken. A key that you
    /// set yourself says so for its request.
    #[must_use]
    pub fn keys_honoured(mut self) -> Self {
        self.keys_honoured = true;
        self
    }

    /// Whether a request may be sent twice. Gives it a key where it needs one.
    fn make_repeatable(&self, request: &mut Request) -> Repeatable {
        if is_idempotent(request.method()) || request.headers().contains_key(IDEMPOTENCY_KEY) {
            return Repeatable::Always;
        }
        let Some(key) = new_key() else { return Repeatable::Never };
        request.headers_mut().insert(IDEMPOTENCY_KEY, key);
        if self.keys_honoured { Repeatable::Always } else { Repeatable::IfNotTaken }
    }
}

/// Whether a request may be sent twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeatable {
    Always,
    /// Only where it is certain that the first was not taken.
    IfNotTaken,
    Never,
}

impl Repeatable {
    fn after(self, outcome: &Outcome) -> bool {
        let was_not_taken = match outcome {
            Outcome::Denied(_) | Outcome::Unreachable => true,
            // Who says when to come back has not begun.
            Outcome::Unavailable(fields) => fields.wait.is_some(),
            Outcome::Answered(_) => false,
        };
        self == Repeatable::Always || self == Repeatable::IfNotTaken && was_not_taken
    }
}

#[async_trait::async_trait]
impl Middleware for Retry {
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let peer = PeerName::of(&request);
        let repeatable = self.make_repeatable(&mut request);
        let begun = self.shared.with(&peer, &self.rules, |peer, now| {
            Call::begin(&self.rules, peer, now, fastrand::f64())
        });
        let (mut call, mut turn) = begun.map_err(Error::middleware)?;
        loop {
            self.shared.wait_for(&peer, turn).await;
            let copy = if repeatable == Repeatable::Never { None } else { request.try_clone() };
            let answered = next.clone().run(request, extensions).await;
            let Some(outcome) = outcome_of(&answered) else { return answered };
            let can_repeat = copy.is_some() && repeatable.after(&outcome);
            let again = self.shared.with(&peer, &self.rules, |peer, now| {
                let end = End { now, outcome, can_repeat };
                call.ended(&self.rules, peer, &end, fastrand::f64())
            });
            let (Some(at), Some(copy)) = (again, copy) else { return answered };
            (turn, request) = (at, copy);
            if let Ok(response) = answered {
                // The turn is taken already: it must go back if this is where it ends.
                let unused = Turn { shared: &self.shared, peer: &peer, at: Some(turn) };
                drain(response).await;
                unused.keep();
            }
        }
    }
}

/// `None`: an error that says nothing about what the server did, so that it is not retried.
fn outcome_of(answered: &Result<Response>) -> Option<Outcome> {
    match answered {
        Ok(response) => {
            let fields = response.headers();
            let fields = fields.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
            let status = response.status().as_u16();
            Some(Outcome::of(status, Fields::read(status, fields, now_ms())))
        }
        Err(Error::Reqwest(error)) if error.is_connect() => Some(Outcome::Unreachable),
        Err(_) => None,
    }
}

/// Reads the rest of a response that nobody will see.
async fn drain(mut response: Response) {
    let read = async {
        let mut len = 0;
        while let Ok(Some(piece)) = response.chunk().await {
            len += piece.len();
            if len > DRAIN_BYTES {
                break;
            }
        }
    };
    // Too slow is as good as too long: the connection is closed.
    let _ = tokio::time::timeout(DRAIN_WITHIN, read).await;
}

fn is_idempotent(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::PUT, Method::DELETE]
        .contains(method)
}

/// A random UUID. `None` where the system has no randomness.
fn new_key() -> Option<HeaderValue> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    let bits = u128::from_be_bytes(bytes) & !(0xf << 76) & !(0b11 << 62) | 4 << 76 | 0b10 << 62;
    let hex = format!("{bits:032x}");
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    HeaderValue::try_from(parts.join("-")).ok()
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A server: scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PeerName(String);

impl PeerName {
    fn of(request: &Request) -> Self {
        PeerName(request.url().origin().ascii_serialization())
    }
}

/// What all clones know.
#[derive(Debug)]
struct Shared {
    start: Instant,
    peers: Mutex<HashMap<PeerName, Known>>,
}

#[derive(Debug)]
struct Known {
    peer: Peer,
    used: Duration,
}

impl Shared {
    /// Does something with what is known of a server, at the time it is.
    fn with<T>(
        &self,
        name: &PeerName,
        rules: &RetryRules,
        act: impl FnOnce(&mut Peer, Duration) -> T,
    ) -> T {
        // What is kept stays sound at every step, so a panic elsewhere spoils nothing.
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.start.elapsed();
        if !peers.contains_key(name) {
            make_room(&mut peers);
        }
        let new = || Known { peer: Peer::new(rules), used: now };
        let known = peers.entry(name.clone()).or_insert_with(new);
        known.used = now;
        act(&mut known.peer, now)
    }

    /// Sleeps until a turn comes. Dropped before, the turn is given back.
    async fn wait_for(&self, peer: &PeerName, turn: Duration) {
        let wait = turn.saturating_sub(self.start.elapsed());
        if !wait.is_zero() {
            let unused = Turn { shared: self, peer, at: Some(turn) };
            tokio::time::sleep(wait).await;
            unused.keep();
        }
    }

    fn give_back(&self, name: &PeerName, turn: Duration) {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = peers.get_mut(name) {
            known.peer.give_back(turn);
        }
    }
}

fn make_room(peers: &mut HashMap<PeerName, Known>) {
    if peers.len() < MAX_PEERS {
        return;
    }
    let oldest = peers.iter().min_by_key(|(_, known)| known.used).map(|(name, _)| name.clone());
    if let Some(oldest) = oldest {
        peers.remove(&oldest);
    }
}

/// A turn that goes back when it is dropped.
struct Turn<'a> {
    shared: &'a Shared,
    peer: &'a PeerName,
    at: Option<Duration>,
}

impl Turn<'_> {
    fn keep(mut self) {
        self.at = None;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(turn) = self.at {
            self.shared.give_back(self.peer, turn);
        }
    }
}
