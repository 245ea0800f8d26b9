//! Retries and pacing as reqwest middleware.
//!
//! The middleware reads the clock and the response and sleeps; [`Call`] decides. State is kept
//! per server (scheme, host and port), because limits are per server. A client that follows
//! links contacts many servers, so only the most recently used are kept.
//!
//! Dropping the future of a request cancels it: nothing more is sent, and an unused turn is
//! given back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::{Extensions, HeaderName, HeaderValue, Method};
use reqwest::{Request, Response};
use reqwest_middleware::{Error, Middleware, Next, Result};

use crate::{Call, End, Fields, Outcome, Peer, RetryRules};

/// The header field by which a server recognises a repeated request.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The most servers that state is kept for. The one used least recently is evicted.
const MAX_PEERS: usize = 256;

/// The most that is read of a denial's body, and for how long, so that its connection can be
/// reused. Opening a connection is cheaper than reading more.
const DRAIN_BYTES: usize = 16 * 1024;
const DRAIN_WITHIN: Duration = Duration::from_millis(250);

/// Middleware that retries requests after a 429, a 503 or a failed connection, and slows down
/// before a limit is reached.
///
/// - The result is the last response: a 429 that is not retried is a response, not an error.
///   [`Paused`](crate::Paused) is the only error that the middleware adds.
/// - Requests whose body is a stream are not retried.
/// - Methods that are not idempotent (POST, PATCH) carry an `Idempotency-Key`: yours, or a
///   generated one, the same for all retries of a call. With a generated key they are retried
///   only after a response that says that the server did not process the request: a 429, or a
///   503 with a time to retry, that does not come from another address to which the request was
///   redirected. See [`keys_honoured`](Retry::keys_honoured).
/// - Clones share their state.
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
    /// Creates a middleware with the given rules.
    pub fn new(rules: RetryRules) -> Self {
        let shared = Shared { start: Instant::now(), peers: Mutex::default() };
        Retry { rules, keys_honoured: false, shared: Arc::new(shared) }
    }

    /// Declares that the servers process requests with the same `Idempotency-Key` once. A POST
    /// or PATCH is then retried even if the first one may have been processed. Setting the
    /// header field yourself declares this for one request.
    #[must_use]
    pub fn keys_honoured(mut self) -> Self {
        self.keys_honoured = true;
        self
    }

    /// Returns whether a request may be sent twice. Adds a key to it if it needs one.
    fn make_repeatable(&self, request: &mut Request) -> Repeatable {
        if is_idempotent(request.method()) || request.headers().contains_key(IDEMPOTENCY_KEY) {
            return Repeatable::Always;
        }
        let Some(key) = new_key() else { return Repeatable::Never };
        request.headers_mut().insert(IDEMPOTENCY_KEY, key);
        if self.keys_honoured { Repeatable::Always } else { Repeatable::IfNotProcessed }
    }
}

/// Whether a request may be sent twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeatable {
    Always,
    /// Only if the server certainly did not process the first.
    IfNotProcessed,
    Never,
}

impl Repeatable {
    /// Whether it may be sent again after an outcome. A server that redirects a request has
    /// processed it. A failed connection may be that to which the request was redirected.
    fn after(self, outcome: &Outcome, was_redirected: bool) -> bool {
        let was_not_processed = match outcome {
            _ if was_redirected => false,
            Outcome::Denied(_) => true,
            // A server that sends a time to retry has not processed the request.
            Outcome::Unavailable(fields) => fields.wait.is_some(),
            Outcome::Answered(_) | Outcome::Unreachable => false,
        };
        self == Repeatable::Always || self == Repeatable::IfNotProcessed && was_not_processed
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
        let (peer, url) = (PeerName::of(&request), request.url().clone());
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
            let was_redirected = matches!(&answered, Ok(response) if *response.url() != url);
            let can_repeat = copy.is_some() && repeatable.after(&outcome, was_redirected);
            let again = self.shared.with(&peer, &self.rules, |peer, now| {
                let end = End { now, outcome, can_repeat };
                call.ended(&self.rules, peer, &end, fastrand::f64())
            });
            let (Some(at), Some(copy)) = (again, copy) else { return answered };
            (turn, request) = (at, copy);
            if let Ok(response) = answered {
                // The turn is already taken: it is given back if the future is dropped here.
                let unused = Turn { shared: &self.shared, peer: &peer, at: Some(turn) };
                drain(response).await;
                unused.keep();
            }
        }
    }
}

/// Classifies a result. `None` for errors after which the request may have been processed, and
/// which are not retried.
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

/// Reads the rest of a response that is discarded.
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
    // After a timeout the connection is closed, as it is if the body is too long.
    let _ = tokio::time::timeout(DRAIN_WITHIN, read).await;
}

fn is_idempotent(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::PUT, Method::DELETE]
        .contains(method)
}

/// Returns a random UUID, or `None` if the system's source of randomness fails.
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

/// The state that all clones share.
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
    /// Runs `act` with the state of a server and the current time.
    fn with<T>(
        &self,
        name: &PeerName,
        rules: &RetryRules,
        act: impl FnOnce(&mut Peer, Duration) -> T,
    ) -> T {
        // The state is valid after every step, so a poisoned lock is safe to use.
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

    /// Sleeps until a turn. Gives the turn back if it is dropped earlier.
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

/// A turn that is given back on drop.
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
