//! The gRPC front: Envoy's rate limit service, health and reflection.
//!
//! | service | file |
//! | --- | --- |
//! | `envoy.service.ratelimit.v3.RateLimitService` | `should_rate_limit.rs`, with `fronts/envoy/` |
//! | `grpc.health.v1.Health` | `health.rs` |
//! | `grpc.reflection.v1.ServerReflection`, and `v1alpha` | `reflection.rs` |
//!
//! The rate limit service is implemented over hyper. A call is a POST whose body is a message after
//! a prefix of five bytes, and a response ends with a status in its trailers (`body.rs`). That is
//! little code, and a general server such as tonic costs more than the decision: a tonic service
//! that always returns OK is no faster than this front, which decides. All other services, which
//! may stream, use tonic's codec and streams. Connections, TLS, draining and their bounds are in
//! `connections/`; HTTP/2 and its bounds are in `fronts/http_protocol.rs`. A stream ends with a
//! status when the server drains, and when its connection has reached its maximum age and the time
//! to finish calls has passed.
//!
//! The crates tonic-health and tonic-reflection are not used: the first lacks `List`, and the
//! second ends a stream at a symbol that it does not find.
//!
//! The deadline of a caller (`grpc-timeout`) is ignored: a decision in memory takes microseconds,
//! and a shared store has `store_timeout`.

mod body;
mod health;
mod reflection;
mod should_rate_limit;

use std::sync::Arc;
use std::task::Context;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, Request, Version};
use hyper::body::{Body as _, Incoming};
use prost::Message;
use tidegate::Algorithm;
use tidegate::unstable::gate::Gate;
use tidegate::unstable::headers::Forms;
use tonic::server::Grpc;
use tonic_prost::ProstCodec;

use self::body::{GrpcBody, GrpcResponse, NotGrpc, code, collect, read_error};
use self::health::Health;
use crate::authentication::Access;
use crate::connections::InFlight;
use crate::envoy_ratelimit::{CheckSettings, EnvoyMetrics};
use crate::error::{ErrorKind, RequestError};
use crate::fronts::request_body::MAX_ENVOY_BYTES;
use crate::fronts::{Front, FrontCall, Start};
use crate::server_state::{FrontName, ServerState};

/// The only hot method.
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The gRPC front.
#[derive(Debug)]
pub struct GrpcFront {
    gate: Arc<Gate>,
    server_state: Arc<ServerState>,
    forms: ArcSwap<Forms>,
    access: Access,
    /// The algorithm of limits that are sent with a request.
    algorithm: Algorithm,
    /// The contents of replies with `--as-envoy-ratelimit`.
    envoy_ratelimit: Option<CheckSettings>,
    /// The metrics of envoyproxy/ratelimit.
    metrics: Option<Arc<EnvoyMetrics>>,
}

impl GrpcFront {
    /// Creates a front over this gate. Replies carry header fields in `forms`. Only callers with
    /// `access` are accepted.
    pub fn new(
        gate: Arc<Gate>,
        server_state: Arc<ServerState>,
        forms: Forms,
        access: Access,
    ) -> Self {
        let forms = ArcSwap::from_pointee(forms);
        GrpcFront {
            gate,
            server_state,
            forms,
            access,
            algorithm: Algorithm::default(),
            envoy_ratelimit: None,
            metrics: None,
        }
    }

    /// Sets the algorithm of limits that are sent with a request.
    #[must_use]
    pub fn with_algorithm(self, algorithm: Algorithm) -> Self {
        GrpcFront { algorithm, ..self }
    }

    /// Sets the contents of replies in the form of envoyproxy/ratelimit.
    #[must_use]
    pub fn with_envoy_ratelimit(self, checks: Option<CheckSettings>) -> Self {
        GrpcFront { envoy_ratelimit: checks, ..self }
    }

    /// Counts calls in the metrics of envoyproxy/ratelimit.
    #[must_use]
    pub fn with_metrics(self, metrics: Option<Arc<EnvoyMetrics>>) -> Self {
        GrpcFront { metrics, ..self }
    }

    /// Replaces the forms of header fields, for all later replies.
    pub fn set_forms(&self, forms: Forms) {
        self.forms.store(Arc::new(forms));
    }

    /// Responds to all methods except the hot one.
    async fn route(&self, request: Request<Incoming>, in_flight: InFlight) -> GrpcResponse {
        let path = request.uri().path();
        // Health probes send no secret, as on the admin front.
        let is_open = path.starts_with(health::PREFIX);
        if !is_open && let Err(error) = self.authorize(request.headers()) {
            return GrpcBody::error(&error);
        }
        let response = match path {
            reflection::V1 | reflection::V1_ALPHA => Some(reflection::respond(request).await),
            _ => Health(Arc::clone(&self.server_state)).respond(request).await,
        };
        match response {
            Some(response) => GrpcBody::stream(response, self.stream_end(in_flight)),
            None => GrpcBody::error(&RequestError::new(
                ErrorKind::Unsupported,
                "unknown method: list the services by reflection (`grpcurl ... list`)",
            )),
        }
    }

    /// Waits until a stream has to end, and returns the reason. The call counts as in flight until
    /// the returned future is dropped.
    fn stream_end(
        &self,
        in_flight: InFlight,
    ) -> impl Future<Output = RequestError> + Send + 'static {
        let server_state = Arc::clone(&self.server_state);
        async move {
            let message = tokio::select! {
                () = server_state.draining() => "the server is shutting down: connect again",
                () = in_flight.streams_end() => {
                    "the connection has reached its maximum age: connect again"
                }
            };
            RequestError::new(ErrorKind::Unavailable, message)
        }
    }

    /// Checks whether a caller with this metadata is accepted.
    fn authorize(&self, headers: &HeaderMap) -> Result<(), RequestError> {
        let secret_location = "metadata `authorization: Bearer ...`";
        self.access.authorize(headers).map_err(|error| error.error(secret_location, "`origin`"))
    }
}

impl Front for GrpcFront {
    type Body = GrpcBody;

    /// Responds to a call of the rate limit service whose message arrived with its head, unless the
    /// store is shared.
    fn start(&self, call: &mut FrontCall, context: &mut Context<'_>) -> Start<GrpcBody> {
        let is_hot = call.request.uri().path() == SHOULD_RATE_LIMIT;
        if !is_hot || not_grpc(&call.request).is_some() {
            return Start::Later(None);
        }
        let started = self.call_started();
        let first_chunk = call.first_chunk(context);
        let headers = call.request.headers();
        match first_chunk {
            Ok(Some(body)) if call.request.body().is_end_stream() && !self.gate.is_shared() => {
                Start::Ready(self.respond(started, self.decide_now(headers, &body)))
            }
            Ok(first_chunk) => Start::Later(first_chunk),
            Err(broken) => {
                let error = self.authorize(headers).err().unwrap_or_else(|| read_error(broken));
                Start::Ready(GrpcBody::error(&error))
            }
        }
    }

    /// Responds to any call.
    async fn finish(self: Arc<Self>, call: FrontCall, first_chunk: Option<Bytes>) -> GrpcResponse {
        let FrontCall { request, in_flight, .. } = call;
        if let Some(why) = not_grpc(&request) {
            return GrpcBody::not_grpc(why);
        }
        if request.uri().path() != SHOULD_RATE_LIMIT {
            return self.route(request, in_flight).await;
        }
        let started = self.call_started();
        let (head, body) = request.into_parts();
        // A caller without access is rejected before its body is awaited.
        if let Err(error) = self.authorize(&head.headers) {
            return GrpcBody::error(&error);
        }
        let decided = match collect(body, first_chunk).await {
            Ok(body) => {
                let active = Arc::clone(&self.gate.active_policies());
                self.decide(&head.headers, &body, &active).await
            }
            Err(error) => Err(error),
        };
        self.respond(started, decided)
    }

    fn record(&self, response: &GrpcResponse) {
        match response.body() {
            // This is a plain HTTP response, not a gRPC call.
            GrpcBody::Plain(_) => {
                self.server_state.count_response(FrontName::Grpc, response.status())
            }
            GrpcBody::Empty | GrpcBody::Stream(_) => {
                self.server_state.count_grpc_status(code(response.headers()));
            }
            _ => self.server_state.count_grpc_status(0),
        }
    }
}

/// A response of tonic.
type TonicResponse = http::Response<tonic::body::Body>;

/// Returns the codec and bounds of the services that use tonic.
fn server<T, U>() -> Grpc<ProstCodec<T, U>>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    Grpc::new(ProstCodec::default()).max_decoding_message_size(MAX_ENVOY_BYTES)
}

/// Why a request is not gRPC, if it is not.
fn not_grpc(request: &Request<Incoming>) -> Option<NotGrpc> {
    if request.version() != Version::HTTP_2 {
        return Some(NotGrpc::Version);
    }
    if request.method() != Method::POST {
        return Some(NotGrpc::Method);
    }
    let kind = request.headers().get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    let is_grpc = match kind.strip_prefix(b"application/grpc") {
        Some(b"" | b"+proto") => true,
        Some(rest) => rest.starts_with(b";") || rest.starts_with(b"+proto;"),
        None => false,
    };
    (!is_grpc).then_some(NotGrpc::ContentType)
}
