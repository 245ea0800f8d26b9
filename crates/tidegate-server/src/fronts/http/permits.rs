//! `/v1/permits`: permits of `concurrency` limits, held by a token.
//!
//! The token is part of the path. Everyone who knows it can renew or release the permit, so it must
//! not be guessable.
//!
//! - A permit in the memory of this node is known only here. Its token is 128 random bits, under
//!   which [`LocalPermits`] finds it. The store keeps the permit and ends its lease.
//! - A permit in a shared store must be found by any node, and no node knows which permits another
//!   has issued. Its token therefore contains the whole permit: `1.` and the bytes of the permit in
//!   base64url. It cannot be guessed either, because the id of the permit in it is random.

use std::collections::HashMap;
use std::fmt;
use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::GeneralPurpose;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use tidegate::Permit;
use tidegate::unstable::gate::{AnyPermit, GateError, GateRequest, GateVerdict, SharedPermit};
use tidegate::unstable::headers::{PROBLEM_JSON, write_problem_as};

use super::check_response::{VERDICT_BYTES, write_open_verdict};
use super::json_body::{PermitBody, RenewBody, decode};
use super::response::{HttpResponse, RequestId, content, json};
use super::{HttpFront, json_only, read_json};
use crate::error::{ErrorKind, RequestError};
use crate::fronts::REQUEST_ID;
use crate::fronts::request_body::{self, MAX_PERMIT_BYTES};

impl HttpFront {
    pub(super) async fn acquire_permit(&self, request: Request<Incoming>) -> HttpResponse {
        let (head, body) = request.into_parts();
        let read = read_json(&head, body, None, MAX_PERMIT_BYTES).await;
        let id = RequestId::of(&head.headers);
        let taken = match read {
            Ok(body) => self.acquire(&body, &id).await,
            Err(error) => Err(error),
        };
        taken.unwrap_or_else(|error| error_response(error, &id))
    }

    async fn acquire(&self, body: &[u8], id: &RequestId<'_>) -> Result<HttpResponse, RequestError> {
        let body: PermitBody<'_> = decode(body)?;
        let inputs = body.inputs()?;
        let gate_request =
            GateRequest { request_id: Some(id.as_str()), ..body.gate_request(&inputs)? };
        let lease = body.lease()?;
        // Permits in a shared store take no memory here.
        if !self.gate.is_shared() && !self.local_permits.has_room() {
            return Err(full());
        }
        let active = Arc::clone(&self.gate.active_policies());
        let held = self.gate.acquire(&active, &gate_request, lease).await?;
        let token = match held.permit {
            None => return Ok(self.deny(&held.verdict, None, id)),
            Some(AnyPermit::Shared(permit)) => PermitToken::Shared(permit),
            Some(AnyPermit::Local(permit)) => {
                let kept = self.local_permits.keep(permit, held.lease, held.max_lease);
                PermitToken::Local(kept.ok_or_else(full)?)
            }
        };
        let mut out = Vec::with_capacity(VERDICT_BYTES + 64);
        write_open_verdict(&held.verdict, &mut out);
        write_lease(&mut out, ",", &token, held.lease);
        let mut response = json(StatusCode::CREATED, out);
        if let Ok(location) = HeaderValue::try_from(format!("/v1/permits/{token}")) {
            response.headers_mut().insert(LOCATION, location);
        }
        self.render(&held.verdict, response.headers_mut());
        Ok(response)
    }

    pub(super) async fn renew_permit(&self, request: Request<Incoming>, id: &str) -> HttpResponse {
        let (head, body) = request.into_parts();
        let lease = match request_body::collect(body, None, MAX_PERMIT_BYTES).await {
            Ok(body) if body.is_empty() => Ok(None),
            Ok(body) => json_only(&head.headers).and_then(|()| decode::<RenewBody>(&body)?.lease()),
            Err(error) => Err(error),
        };
        let renewed = match lease {
            Ok(lease) => self.renew(id, lease).await,
            Err(error) => Err(error),
        };
        renewed.unwrap_or_else(|error| error_response(error, &RequestId::of(&head.headers)))
    }

    async fn renew(&self, id: &str, lease: Option<Duration>) -> Result<HttpResponse, RequestError> {
        let token = PermitToken::parse(id).ok_or_else(not_held)?;
        let lease = match &token {
            PermitToken::Local(id) => {
                self.local_permits.renew(*id, lease).map_err(|error| match error {
                    RenewError::NotHeld => not_held(),
                    RenewError::TooLong(max_lease) => GateError::LeaseTooLong { max_lease }.into(),
                })?
            }
            PermitToken::Shared(permit) => {
                permit.renew(&self.gate, lease).await?.ok_or_else(not_held)?
            }
        };
        let mut out = Vec::with_capacity(64);
        write_lease(&mut out, "{", &token, lease);
        Ok(json(StatusCode::OK, out))
    }

    pub(super) async fn release_permit(&self, headers: &HeaderMap, id: &str) -> HttpResponse {
        let released = match PermitToken::parse(id) {
            None => Ok(false),
            Some(PermitToken::Local(id)) => Ok(self.local_permits.release(id)),
            Some(PermitToken::Shared(permit)) => permit.release(&self.gate).await,
        };
        let error = match released {
            Ok(true) => {
                let mut response = Response::new(content(Vec::new()));
                *response.status_mut() = StatusCode::NO_CONTENT;
                return response;
            }
            Ok(false) => not_held(),
            Err(error) => error.into(),
        };
        error_response(error, &RequestId::of(headers))
    }

    /// Creates the response to a denial: 429, or `status` if the gateway has set one.
    pub(super) fn deny(
        &self,
        verdict: &GateVerdict<'_>,
        status: Option<StatusCode>,
        id: &RequestId<'_>,
    ) -> HttpResponse {
        let mut body = String::with_capacity(384);
        let status = verdict.with_view(|view| {
            let problem = verdict.problem(view);
            let status = match problem.status() {
                own @ StatusCode::TOO_MANY_REQUESTS => status.unwrap_or(own),
                // A failed store is not an exceeded limit, and gateways must be able to distinguish
                // them.
                failed => failed,
            };
            write_problem_as(&problem, status, &mut body);
            status
        });
        let mut response = Response::new(content(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        headers.insert(REQUEST_ID, id.header());
        self.render(verdict, headers);
        response
    }

    /// Adds the rate limit header fields.
    pub(super) fn render(&self, verdict: &GateVerdict<'_>, headers: &mut HeaderMap) {
        verdict.write_fields(**self.forms.load(), self.gate.now(), headers);
    }
}

fn write_lease(out: &mut Vec<u8>, open: &str, token: &PermitToken, lease: Duration) {
    // Writing to memory cannot fail.
    let _ = write!(out, "{open}\"id\":\"{token}\",\"ttl_ms\":{}}}", lease.as_millis());
}

/// Creates an error response. If the store failed, it explains what happens to the permit.
fn error_response(mut error: RequestError, id: &RequestId<'_>) -> HttpResponse {
    if error.kind == ErrorKind::StoreFailed {
        error.detail += "; a permit that is not renewed ends with its lease";
    }
    error.respond(id)
}

fn not_held() -> RequestError {
    let detail = "unknown permit: it was released, its lease has ended, or it never existed";
    RequestError::new(ErrorKind::NotFound, detail)
}

fn full() -> RequestError {
    let detail = "too many permits are held: try again later";
    RequestError::new(ErrorKind::Unavailable, detail)
}

/// The maximum number of permits in the table: about 40 MB of ids and permits.
const MAX_PERMITS: usize = 100_000;

/// The id of a permit: 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalPermitId(u128);

impl LocalPermitId {
    /// Returns an id that cannot be guessed; `None` if random bytes are unavailable.
    fn random() -> Option<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).ok()?;
        Some(LocalPermitId(u128::from_ne_bytes(bytes)))
    }

    /// Parses the id in a path.
    fn parse(text: &str) -> Option<Self> {
        let digits =
            text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let number = digits.then(|| u128::from_str_radix(text, 16).ok());
        number.flatten().map(LocalPermitId)
    }
}

impl std::fmt::Display for LocalPermitId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[derive(Debug)]
struct LocalPermit {
    permit: Permit,
    lease: Duration,
    /// The longest possible lease.
    max_lease: Duration,
    ends: Instant,
}

/// Why a lease cannot be renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RenewError {
    /// The permit is not held, or no longer.
    NotHeld,
    /// The lease is longer than possible. Holds the longest possible lease.
    TooLong(Duration),
}

/// All permits that callers hold.
#[derive(Debug, Default)]
pub struct LocalPermits {
    held: Mutex<HashMap<LocalPermitId, LocalPermit>>,
}

impl LocalPermits {
    /// Whether one more permit can be held.
    fn has_room(&self) -> bool {
        if self.held().len() < MAX_PERMITS {
            return true;
        }
        self.sweep();
        self.held().len() < MAX_PERMITS
    }

    /// Stores a permit and returns its id. Returns `None` and releases the permit if the table is
    /// full or random bytes are unavailable.
    fn keep(&self, permit: Permit, lease: Duration, max_lease: Duration) -> Option<LocalPermitId> {
        let id = LocalPermitId::random()?;
        let mut held = self.held();
        if held.len() >= MAX_PERMITS {
            return None;
        }
        held.insert(id, LocalPermit { permit, lease, max_lease, ends: Instant::now() + lease });
        Some(id)
    }

    /// Restarts the lease of a permit, with its previous duration or with `lease`. Returns the new
    /// duration.
    fn renew(&self, id: LocalPermitId, lease: Option<Duration>) -> Result<Duration, RenewError> {
        let mut held = self.held();
        let local = held.get_mut(&id).ok_or(RenewError::NotHeld)?;
        let renewed = match lease {
            Some(lease) if lease > local.max_lease => {
                return Err(RenewError::TooLong(local.max_lease));
            }
            Some(lease) => {
                let renewed = local.permit.renew_for(lease);
                renewed.map_err(|_| RenewError::TooLong(local.max_lease))?
            }
            None => local.permit.renew(),
        };
        if renewed {
            local.lease = lease.unwrap_or(local.lease);
            local.ends = Instant::now() + local.lease;
            return Ok(local.lease);
        }
        let ended = held.remove(&id);
        drop(held);
        drop(ended);
        Err(RenewError::NotHeld)
    }

    /// Releases a permit. Returns `false` if it is not held, or no longer.
    fn release(&self, id: LocalPermitId) -> bool {
        let removed = self.held().remove(&id);
        removed.is_some_and(|local| local.ends > Instant::now())
    }

    /// Removes permits whose lease has ended.
    pub fn sweep(&self) {
        let now = Instant::now();
        let ended: Vec<LocalPermit> =
            self.held().extract_if(|_, local| local.ends <= now).map(|(_, local)| local).collect();
        // Released without holding the lock.
        drop(ended);
    }

    fn held(&self) -> MutexGuard<'_, HashMap<LocalPermitId, LocalPermit>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The encoding of a shared permit: all characters are valid in a path. Unused bits must be zero,
/// else a permit would have several tokens.
const TOKEN_ENCODING: GeneralPurpose = BASE64_URL_SAFE_NO_PAD;

/// The prefix of the token of a shared permit: a version of the encoding.
const SHARED: &str = "1.";

/// The token of a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PermitToken {
    /// A permit in the memory of this node.
    Local(LocalPermitId),
    /// A permit in the store that nodes share.
    Shared(SharedPermit),
}

impl PermitToken {
    /// Parses the token in a path.
    fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix(SHARED) {
            Some(encoded) => {
                let permit = SharedPermit::from_bytes(&TOKEN_ENCODING.decode(encoded).ok()?);
                permit.map(PermitToken::Shared)
            }
            None => LocalPermitId::parse(text).map(PermitToken::Local),
        }
    }
}

impl fmt::Display for PermitToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PermitToken::Local(id) => id.fmt(f),
            PermitToken::Shared(permit) => {
                write!(f, "{SHARED}{}", TOKEN_ENCODING.encode(permit.to_bytes()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permit_has_one_token() {
        assert_eq!(TOKEN_ENCODING.encode([0xff, 0xfe, 0x00, 0xfb]), "__4A-w");
        for text in ["__4A-x", "__4A-w==", "//4A+w", "__4A-", "__4A- w"] {
            assert!(TOKEN_ENCODING.decode(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rejects_malformed_permit_tokens() {
        for text in ["", "1.", "1.!", "1.AAAA", "2.Zm9v", "x", &"0".repeat(31), &"A".repeat(32)] {
            assert_eq!(PermitToken::parse(text), None, "{text}");
        }
    }
}
