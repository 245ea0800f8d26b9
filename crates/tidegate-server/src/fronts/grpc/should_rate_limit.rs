//! The rate limit service: decides `ShouldRateLimit` calls.

use std::time::Instant;

use http::HeaderMap;
use tidegate::unstable::gate::{ActivePolicies, GateVerdict};
use tidegate::unstable::policy::Policies;

use super::GrpcFront;
use super::body::{GrpcBody, GrpcResponse, single_message};
use crate::error::RequestError;
use crate::fronts::REQUEST_ID;
use crate::fronts::envoy::{self, EnvoyRequests, Reply, ReplyForm, RequestForm};

/// The initial capacity of a reply with one descriptor, and of each further descriptor.
const REPLY_BYTES: usize = 320;
const STATUS_BYTES: usize = 64;

impl GrpcFront {
    /// Decides in memory, without waiting.
    pub(super) fn decide_now(
        &self,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<GrpcResponse, RequestError> {
        self.authorize(headers)?;
        let active = self.gate.active_policies();
        self.gate.poll_now(self.decide(headers, body, &active))
    }

    /// Decides with any store.
    pub(super) async fn decide(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        active: &ActivePolicies,
    ) -> Result<GrpcResponse, RequestError> {
        envoy::require_config(&self.server_state)?;
        let message = single_message(headers, body)?;
        let request = decode(&message)?;
        let form = RequestForm {
            algorithm: self.algorithm,
            envoy_ratelimit: self.envoy_ratelimit.as_ref(),
            policies: active.policies(),
        };
        let envoy_requests = EnvoyRequests::new(&request, form)?;
        let gate_requests = envoy_requests.gate_requests(request_id(headers));
        let verdict = self.gate.check(active, &gate_requests).await;
        self.reply(&verdict.map_err(envoy::descriptor_error)?, &request, active.policies())
    }

    fn reply<'a>(
        &'a self,
        verdict: &GateVerdict<'a>,
        request: &'a envoy::RateLimitRequest<'_>,
        policies: &'a Policies,
    ) -> Result<GrpcResponse, RequestError> {
        if let Some(metrics) = &self.metrics {
            metrics.count(verdict, request, policies);
        }
        let form = ReplyForm {
            forms: **self.forms.load(),
            envoy_ratelimit: self.envoy_ratelimit.as_ref(),
            policies,
            now: self.gate.now(),
        };
        let reply = Reply::new(verdict, request, form)?;
        let capacity = REPLY_BYTES + STATUS_BYTES * (request.descriptors.len() - 1);
        Ok(GrpcBody::message(capacity, |out| reply.encode(out)))
    }

    /// Returns the time at which a call begins, if calls are timed.
    pub(super) fn call_started(&self) -> Option<Instant> {
        self.metrics.as_ref().map(|_| Instant::now())
    }

    /// Counts a call that began at `started`, and returns its response.
    pub(super) fn respond(
        &self,
        started: Option<Instant>,
        decided: Result<GrpcResponse, RequestError>,
    ) -> GrpcResponse {
        if let (Some(metrics), Some(started)) = (&self.metrics, started) {
            metrics.count_call(started.elapsed());
            decided.as_ref().err().into_iter().for_each(|error| metrics.count_error(error));
        }
        decided.unwrap_or_else(|error| GrpcBody::error(&error))
    }
}

fn decode(message: &[u8]) -> Result<envoy::RateLimitRequest<'_>, RequestError> {
    envoy::RateLimitRequest::decode(message)
        .map_err(|malformed| RequestError::invalid(malformed.to_string()))
}

fn request_id(headers: &HeaderMap) -> Option<&str> {
    headers.get(REQUEST_ID)?.to_str().ok()
}
