//! `/v1/permits`: permits of `concurrency` limits, held by a token.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use tidegate::unstable::gate::{AnyPermit, GateError, GateRequest, GateVerdict};
use tidegate::unstable::headers::{PROBLEM_JSON, write_problem_as};

use super::check_json::{PermitBody, RenewBody, decode};
use super::check_response::{self, VERDICT_BYTES};
use super::local_permits::RenewError;
use super::permit_token::PermitToken;
use super::response::{HttpResponse, REQUEST_ID, RequestId, content, json};
use super::{HttpFront, body, json_only, read_json};
use crate::error::{ErrorKind, RequestError};

/// The maximum size of a permit request.
const MAX_PERMIT_BYTES: usize = 64 * 1024;

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
        check_response::write_open(&held.verdict, &mut out);
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
        let lease = match body::collect(body, None, MAX_PERMIT_BYTES).await {
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
