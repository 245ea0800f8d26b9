//! The gRPC front: Envoy's rate limit service, health and reflection.
//!
//! | service | file |
//! | --- | --- |
//! | `envoy.service.ratelimit.v3.RateLimitService` | `rls.rs`, with `envoy/` |
//! | `grpc.health.v1.Health` | `health.rs` |
//! | `grpc.reflection.v1.ServerReflection`, and `v1alpha` | `reflection.rs`, `file_descriptors.rs` |
//!
//! gRPC is spoken here, over hyper: a call is a POST whose body is messages behind five
//! bytes each (`framing.rs`), and an answer ends with a status in its trailers (`body.rs`).
//! That is little, and a general server around it (tonic's) costs more than the decision: with
//! it, a service that always answers OK is no faster than this one that decides.
//! Connections, TLS, draining and their bounds are those of `serve/`.
//!
//! A deadline of the caller's (`grpc-timeout`) needs no care: a decision in memory takes
//! microseconds, and a shared store has its own, shorter one.

mod body;
pub mod envoy;
mod health;
mod reflection;
mod rls;

use std::sync::Arc;

use arc_swap::ArcSwap;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, Request, Version};
use hyper::body::Incoming;
use tidegate::Algorithm;
use tidegate::unstable::gate::Gate;
use tidegate::unstable::headers::Forms;

use self::body::{GrpcBody, GrpcResponse, NotGrpc};
use crate::access::Access;
use crate::admin::ServerState;
use crate::error::{ErrorKind, RequestError};
use crate::serve::InFlight;

/// The one hot method.
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The largest message. Envoy passes on headers up to 60 KiB, and a dozen descriptors may hold
/// the same one: a client must not be able to make the question fail, because Envoy may let it
/// pass then.
const MAX_MESSAGE_BYTES: usize = 1024 * 1024;

/// Decisions over gRPC.
#[derive(Debug)]
pub struct GrpcFront {
    gate: Arc<Gate>,
    server_state: Arc<ServerState>,
    forms: ArcSwap<Forms>,
    access: Access,
    /// How limits that come with a request are counted.
    algorithm: Algorithm,
}

impl GrpcFront {
    /// Asks this gate; answers carry headers in these forms; only those with
    /// `access` may ask.
    pub fn new(
        gate: Arc<Gate>,
        server_state: Arc<ServerState>,
        forms: Forms,
        access: Access,
    ) -> Self {
        let forms = ArcSwap::from_pointee(forms);
        GrpcFront { gate, server_state, forms, access, algorithm: Algorithm::default() }
    }

    /// The same, counting limits that come with a request so.
    #[must_use]
    pub fn with_algorithm(self, algorithm: Algorithm) -> Self {
        GrpcFront { algorithm, ..self }
    }

    /// Other forms of headers from now on.
    pub fn set_forms(&self, forms: Forms) {
        self.forms.store(Arc::new(forms));
    }

    /// Everything but the hot method.
    async fn route(&self, request: Request<Incoming>, in_flight: InFlight) -> GrpcResponse {
        let path = request.uri().path();
        // Probes know no secrets, here as on the admin front.
        let is_open = path.starts_with(health::PREFIX);
        if !is_open && let Err(error) = self.admit(request.headers()) {
            return GrpcBody::error(&error);
        }
        match path {
            health::CHECK => self.check_health(request.into_body()).await,
            health::LIST => self.list_health(),
            health::WATCH => self.watch_health(request.into_body(), in_flight).await,
            reflection::V1 | reflection::V1_ALPHA => self.reflect(request.into_body(), in_flight),
            _ => GrpcBody::error(&RequestError::new(
                ErrorKind::Unsupported,
                "there is no such method: see the services by reflection (`grpcurl ... list`)",
            )),
        }
    }

    /// Whether a caller with this metadata may ask.
    fn admit(&self, headers: &HeaderMap) -> Result<(), RequestError> {
        let there = "metadata `authorization: Bearer ...`";
        self.access.admit(headers).map_err(|why| why.error(there, "`origin`"))
    }
}

/// What is not gRPC at all.
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
