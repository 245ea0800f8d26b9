//! The rate limit service: decides `ShouldRateLimit` calls.

use std::sync::Arc;
use std::task::Context;

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::Body as _;
use tidegate::unstable::gate::GateVerdict;

use super::body::{GrpcBody, GrpcResponse, code, collect, read_error, single_message};
use super::{GrpcFront, SHOULD_RATE_LIMIT, not_grpc};
use crate::admin::FrontName;
use crate::error::RequestError;
use crate::fronts::grpc::envoy::{self, EnvoyRequests, Reply};
use crate::fronts::response_future::{Call, Front, Start};

/// The initial capacity of a reply with one descriptor, and of each further descriptor.
const REPLY_BYTES: usize = 320;
const STATUS_BYTES: usize = 64;

/// The header that holds the request id of a caller.
const REQUEST_ID: &str = "x-request-id";

impl Front for GrpcFront {
    type Body = GrpcBody;

    /// Responds to a call of the rate limit service whose message arrived with its head, unless the
    /// store is shared.
    fn start(&self, call: &mut Call, context: &mut Context<'_>) -> Start<GrpcBody> {
        let is_hot = call.request.uri().path() == SHOULD_RATE_LIMIT;
        if !is_hot || not_grpc(&call.request).is_some() {
            return Start::Later(None);
        }
        let first_chunk = call.first_chunk(context);
        let headers = call.request.headers();
        match first_chunk {
            Ok(Some(body)) if call.request.body().is_end_stream() && !self.gate.is_shared() => {
                Start::Ready(respond(self.decide(headers, &body)))
            }
            Ok(first_chunk) => Start::Later(first_chunk),
            Err(broken) => {
                let error = self.authorize(headers).err().unwrap_or_else(|| read_error(broken));
                Start::Ready(GrpcBody::error(&error))
            }
        }
    }

    /// Responds to any call.
    async fn finish(self: Arc<Self>, call: Call, first_chunk: Option<Bytes>) -> GrpcResponse {
        let Call { request, in_flight, .. } = call;
        if let Some(why) = not_grpc(&request) {
            return GrpcBody::not_grpc(why);
        }
        if request.uri().path() != SHOULD_RATE_LIMIT {
            return self.route(request, in_flight).await;
        }
        let (head, body) = request.into_parts();
        // A caller without access is rejected before its body is awaited.
        if let Err(error) = self.authorize(&head.headers) {
            return GrpcBody::error(&error);
        }
        let decided = match collect(body, first_chunk).await {
            Ok(body) => self.decide_async(&head.headers, &body).await,
            Err(error) => Err(error),
        };
        respond(decided)
    }

    fn record(&self, response: &GrpcResponse) {
        match response.body() {
            // This is a plain HTTP response, not a gRPC call.
            GrpcBody::Plain(_) => {
                self.server_state.count_response(FrontName::Grpc, response.status())
            }
            GrpcBody::Empty => self.server_state.count_grpc_status(code(response.headers())),
            _ => self.server_state.count_grpc_status(0),
        }
    }
}

impl GrpcFront {
    /// Decides in memory, without waiting.
    fn decide(&self, headers: &HeaderMap, body: &[u8]) -> Result<GrpcResponse, RequestError> {
        self.authorize(headers)?;
        let request = decode(body)?;
        let envoy_requests = EnvoyRequests::new(&request, self.algorithm)?;
        let gate_requests = envoy_requests.gate_requests(request_id(headers));
        let active = self.gate.active_policies();
        let verdict = self.gate.sync(self.gate.check(&active, &gate_requests));
        self.reply(&verdict.map_err(envoy::descriptor_error)?, gate_requests.len())
    }

    /// Decides with any store.
    async fn decide_async(
        &self,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<GrpcResponse, RequestError> {
        let request = decode(body)?;
        let envoy_requests = EnvoyRequests::new(&request, self.algorithm)?;
        let gate_requests = envoy_requests.gate_requests(request_id(headers));
        let active = Arc::clone(&self.gate.active_policies());
        let verdict = self.gate.check(&active, &gate_requests).await;
        self.reply(&verdict.map_err(envoy::descriptor_error)?, gate_requests.len())
    }

    fn reply(
        &self,
        verdict: &GateVerdict<'_>,
        descriptors: usize,
    ) -> Result<GrpcResponse, RequestError> {
        let reply = Reply::new(verdict, descriptors, **self.forms.load(), self.gate.now())?;
        let capacity = REPLY_BYTES + STATUS_BYTES * (descriptors - 1);
        Ok(GrpcBody::message(capacity, |out| reply.encode(out)))
    }
}

fn respond(decided: Result<GrpcResponse, RequestError>) -> GrpcResponse {
    decided.unwrap_or_else(|error| GrpcBody::error(&error))
}

fn decode(body: &[u8]) -> Result<envoy::Request<'_>, RequestError> {
    let message = single_message(body)?;
    envoy::Request::decode(message)
        .map_err(|malformed| RequestError::invalid(malformed.to_string()))
}

fn request_id(headers: &HeaderMap) -> Option<&str> {
    headers.get(REQUEST_ID)?.to_str().ok()
}
