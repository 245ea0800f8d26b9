//! `POST /v1/check` and `/v1/check/batch`.

use std::slice;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use futures_util::future::join_all;
use http::request::Parts;
use http::{HeaderMap, Request, StatusCode};
use hyper::body::Incoming;
use tidegate::unstable::gate::{GateError, GateRequest, GateVerdict, MAX_CONCURRENT_CHECKS};

use super::check_request::ParsedInputs;
use super::check_response::{VERDICT_BYTES, respond, write_verdict};
use super::json_body::{BatchBody, CheckBody, Object, decode};
use super::response::{HttpResponse, RequestId, json};
use super::{HttpFront, json_only, read_json};
use crate::error::RequestError;
use crate::fronts::request_body::{self, MAX_BATCH_BYTES, MAX_CHECK_BYTES};

/// The maximum number of checks in a batch: enough that the overhead of a request no longer
/// matters, and few enough that other requests are not delayed.
const MAX_BATCH: usize = 1000;

/// The maximum number of checks that wait concurrently: each holds a connection. Above it, a
/// check is decided without waiting.
const MAX_WAITING: usize = 10_000;

/// The result of a check without waiting.
enum CheckProgress {
    Decided(HttpResponse),
    MustWait,
}

impl HttpFront {
    /// Responds to a check whose body has arrived. Returns `None` if it has to wait or the body is
    /// too large.
    pub(super) fn check_in_place(&self, headers: &HeaderMap, body: &[u8]) -> Option<HttpResponse> {
        let decided = if let Err(error) = self.authorize(headers) {
            Err(error)
        } else if body.len() > MAX_CHECK_BYTES {
            return None;
        } else {
            json_only(headers).and_then(|()| self.check_sync(headers, body))
        };
        match decided {
            Ok(CheckProgress::Decided(response)) => Some(response),
            Ok(CheckProgress::MustWait) => None,
            Err(error) => Some(error.respond(&RequestId::of(headers))),
        }
    }

    /// Responds to any check. `first` is the part of its body that was already read.
    pub(super) async fn check(
        &self,
        request: Request<Incoming>,
        first: Option<Bytes>,
    ) -> HttpResponse {
        let (head, body) = request.into_parts();
        if let Err(error) = self.authorize(&head.headers) {
            request_body::discard(head.version, body).await;
            return error.respond(&RequestId::of(&head.headers));
        }
        let decided = match read_json(&head, body, first, MAX_CHECK_BYTES).await {
            Ok(body) if self.gate.is_shared() => self.check_async(&head, &body).await,
            Ok(body) => match self.check_sync(&head.headers, &body) {
                Ok(CheckProgress::Decided(response)) => return response,
                Ok(CheckProgress::MustWait) => self.check_async(&head, &body).await,
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        decided.unwrap_or_else(|error| error.respond(&RequestId::of(&head.headers)))
    }

    fn check_sync(&self, headers: &HeaderMap, body: &[u8]) -> Result<CheckProgress, RequestError> {
        let body = decode_check(body)?;
        let inputs = body.inputs()?;
        let gate_request = body.gate_request(&inputs)?;
        if body.max_wait()?.is_some() {
            return Ok(CheckProgress::MustWait);
        }
        let request_id = RequestId::of(headers);
        let active = self.gate.active_policies();
        let gate_request = GateRequest { request_id: Some(request_id.as_str()), ..gate_request };
        let verdict = self.gate.poll_now(self.gate.check(&active, &[gate_request]))?;
        Ok(CheckProgress::Decided(respond(&verdict, &request_id)))
    }

    /// Decides a check that may wait, or whose store is shared.
    ///
    /// A check that waits was already decoded by [`HttpFront::check_sync`], which finds out that it
    /// waits, and is decoded again here. The decoded check borrows from its body, so it cannot be
    /// passed on to the boxed future that waits, and decoding is short compared with a wait.
    async fn check_async(&self, head: &Parts, body: &[u8]) -> Result<HttpResponse, RequestError> {
        let body = decode_check(body)?;
        let inputs = body.inputs()?;
        let request_id = RequestId::of(&head.headers);
        let gate_request =
            GateRequest { request_id: Some(request_id.as_str()), ..body.gate_request(&inputs)? };
        let active = Arc::clone(&self.gate.active_policies());
        let waits = body.max_wait()?.and_then(|max_wait| {
            WaitingCheck::begin(&self.waiting).map(|waiting| (max_wait, waiting))
        });
        let max_wait = waits.as_ref().map(|(max_wait, _)| *max_wait);
        let verdict = self.gate.check(&active, &[GateRequest { max_wait, ..gate_request }]).await?;
        Ok(respond(&verdict, &request_id))
    }

    pub(super) async fn batch(&self, request: Request<Incoming>) -> HttpResponse {
        let (head, body) = request.into_parts();
        let read = read_json(&head, body, None, MAX_BATCH_BYTES).await;
        let request_id = RequestId::of(&head.headers);
        let answered = match read {
            Ok(body) => self.batch_of(&body, &request_id).await,
            Err(error) => Err(error),
        };
        answered.unwrap_or_else(|error| error.respond(&request_id))
    }

    /// Decides a batch. All checks are validated before any is charged.
    async fn batch_of(
        &self,
        body: &[u8],
        request_id: &RequestId<'_>,
    ) -> Result<HttpResponse, RequestError> {
        let BatchBody { checks } = decode_batch(body)?;
        if checks.len() > MAX_BATCH {
            let detail = format!("there are {}: send at most {MAX_BATCH} at once", checks.len());
            return Err(RequestError::field("checks", detail));
        }
        let active = Arc::clone(&self.gate.active_policies());
        let at_index =
            |index: usize| move |error: RequestError| error.within(&format!("checks[{index}]"));
        let numbered = || checks.iter().enumerate();
        let inputs =
            numbered().map(|(index, Object(check))| check.inputs().map_err(at_index(index)));
        let inputs: Vec<ParsedInputs<'_>> = inputs.collect::<Result<_, _>>()?;
        let gate_requests = numbered().zip(&inputs).map(|((index, Object(check)), inputs)| {
            let gate_request = batch_gate_request(check, inputs).map_err(at_index(index))?;
            let gate_request =
                GateRequest { request_id: Some(request_id.as_str()), ..gate_request };
            let valid = active.validate(&gate_request).map_err(RequestError::from);
            valid.map_err(at_index(index))?;
            Ok(gate_request)
        });
        let gate_requests: Vec<GateRequest<'_>> =
            gate_requests.collect::<Result<_, RequestError>>()?;
        let mut out = Vec::with_capacity(16 + gate_requests.len() * VERDICT_BYTES);
        out.extend_from_slice(b"{\"answers\":[");
        let mut put = |index: usize, verdict: Result<&GateVerdict<'_>, GateError>| {
            if index > 0 {
                out.push(b',');
            }
            match verdict {
                Ok(verdict) => write_verdict(verdict, &mut out),
                // Some errors appear only when a check is charged, such as an id that was used with
                // another cost.
                Err(error) => {
                    let mut problem = String::new();
                    at_index(index)(error.into()).write_problem(&mut problem);
                    out.extend_from_slice(problem.as_bytes());
                }
            }
        };
        if self.gate.is_shared() {
            let mut index = 0;
            for together in gate_requests.chunks(MAX_CONCURRENT_CHECKS) {
                let single = together.iter().map(slice::from_ref);
                let checks = single.map(|gate_request| self.gate.check(&active, gate_request));
                for verdict in join_all(checks).await {
                    put(index, verdict.as_ref().map_err(GateError::clone));
                    index += 1;
                }
            }
        } else {
            self.gate.check_each(&active, &gate_requests, put);
        }
        out.extend_from_slice(b"]}");
        Ok(json(StatusCode::OK, out))
    }
}

/// Decodes a check. A batch that was sent as a check gets the path of batches.
fn decode_check(body: &[u8]) -> Result<CheckBody<'_>, RequestError> {
    decode(body).map_err(|error: RequestError| match error.field.as_deref() {
        Some("checks") => RequestError::field(
            "checks",
            "it is unknown here: send several checks to /v1/check/batch",
        ),
        _ => error,
    })
}

/// Decodes a batch. Checks that were sent as a list get the form of a batch.
fn decode_batch(body: &[u8]) -> Result<BatchBody<'_>, RequestError> {
    if body.trim_ascii_start().starts_with(b"[") {
        let detail = "the body must be an object, but is a list: send `{\"checks\": [...]}`";
        return Err(RequestError::invalid(detail));
    }
    decode(body)
}

fn batch_gate_request<'q, 'a: 'q>(
    check: &'a CheckBody<'a>,
    inputs: &'q ParsedInputs<'a>,
) -> Result<GateRequest<'q>, RequestError> {
    let gate_request = check.gate_request(inputs)?;
    if check.max_wait()?.is_some() {
        let detail = "not supported in a batch: leave it out, or send this check separately";
        return Err(RequestError::field("max_wait_ms", detail));
    }
    Ok(gate_request)
}

/// A check that waits, of which there are at most [`MAX_WAITING`].
struct WaitingCheck<'a>(&'a AtomicUsize);

impl<'a> WaitingCheck<'a> {
    /// Counts another check that waits. Returns `None` if too many do.
    fn begin(waiting: &'a AtomicUsize) -> Option<Self> {
        let check = WaitingCheck(waiting);
        (waiting.fetch_add(1, Relaxed) < MAX_WAITING).then_some(check)
    }
}

impl Drop for WaitingCheck<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
