//! `grpc.health.v1`: whether the server accepts new calls, as a single reply or as a stream of
//! changes.

use std::sync::Arc;

use futures_util::stream;
use hyper::body::Incoming;

use super::GrpcFront;
use super::body::{GrpcBody, GrpcResponse, StreamItem, collect, framed, single_message};
use crate::error::{ErrorKind, RequestError};
use crate::fronts::grpc::envoy::SERVICE;
use crate::fronts::grpc::protobuf::{Fields, Malformed, put_bytes, put_nested, put_number};
use crate::serve::InFlight;

/// The prefix of all methods of the service.
pub const PREFIX: &str = "/grpc.health.v1.Health/";
pub const CHECK: &str = "/grpc.health.v1.Health/Check";
pub const LIST: &str = "/grpc.health.v1.Health/List";
pub const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// The services that have a status. The last one is the name in envoyproxy/ratelimit.
const SERVICES: [&str; 3] = ["", SERVICE, "ratelimit"];

/// A `HealthCheckResponse.ServingStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

impl GrpcFront {
    pub(super) async fn check_health(&self, body: Incoming) -> GrpcResponse {
        match parse_service(body).await.map(|known| known.then(|| self.health())) {
            Ok(Some(status)) => GrpcBody::message(2, |out| put(status, out)),
            Ok(None) => GrpcBody::error(&RequestError::new(
                ErrorKind::NotFound,
                format!("unknown service: use \"\" (all of it) or \"{SERVICE}\""),
            )),
            Err(error) => GrpcBody::error(&error),
        }
    }

    /// Returns the status of all services.
    pub(super) fn list_health(&self) -> GrpcResponse {
        let status = self.health();
        GrpcBody::message(64, |out| {
            for service in SERVICES {
                put_nested(out, 1, |out| {
                    put_bytes(out, 1, service.as_bytes());
                    put_nested(out, 2, |out| put(status, out));
                });
            }
        })
    }

    /// Sends the status, and again whenever it changes. The stream ends when the server drains.
    pub(super) async fn watch_health(&self, body: Incoming, in_flight: InFlight) -> GrpcResponse {
        let known = match parse_service(body).await {
            Ok(known) => known,
            Err(error) => return GrpcBody::error(&error),
        };
        let first = if known { self.health() } else { Status::ServiceUnknown };
        let server_state = Arc::clone(&self.server_state);
        enum Step {
            Send(Status),
            Waiting(Status),
            Closing,
            Closed,
        }
        let statuses =
            stream::unfold((Step::Send(first), server_state), |(step, server_state)| async move {
                let encode = |status| framed(2, |out| put(status, out));
                let (next, step): (StreamItem, Step) = match step {
                    Step::Send(status) => (Ok(encode(status)), Step::Waiting(status)),
                    Step::Waiting(Status::ServiceUnknown) => {
                        server_state.draining().await;
                        (Err(ending()), Step::Closed)
                    }
                    Step::Waiting(status) => {
                        let is_open = server_state.ready_changed(status == Status::Serving).await;
                        let changed = other(status);
                        match (is_open, status) {
                            (true, _) => (Ok(encode(changed)), Step::Waiting(changed)),
                            (false, Status::Serving) => (Ok(encode(changed)), Step::Closing),
                            (false, _) => (Err(ending()), Step::Closed),
                        }
                    }
                    Step::Closing => (Err(ending()), Step::Closed),
                    Step::Closed => return None,
                };
                Some((next, (step, server_state)))
            });
        GrpcBody::stream(statuses, in_flight)
    }

    fn health(&self) -> Status {
        if self.server_state.is_ready() { Status::Serving } else { Status::NotServing }
    }
}

/// The status that follows a change.
fn other(status: Status) -> Status {
    if status == Status::Serving { Status::NotServing } else { Status::Serving }
}

fn ending() -> RequestError {
    RequestError::new(ErrorKind::Unavailable, "the server is shutting down: connect again")
}

fn put(status: Status, out: &mut Vec<u8>) {
    put_number(out, 1, status as u64);
}

/// Parses a request and returns whether its service exists. All services have the status of the
/// server.
async fn parse_service(body: Incoming) -> Result<bool, RequestError> {
    let body = collect(body, None).await?;
    let name = service(single_message(&body)?)
        .map_err(|malformed| RequestError::invalid(malformed.to_string()))?;
    Ok(SERVICES.iter().any(|service| name == service.as_bytes()))
}

fn service(message: &[u8]) -> Result<&[u8], Malformed> {
    let mut name = &[][..];
    for field in Fields::new(message) {
        if let (1, value) = field? {
            name = value.bytes()?;
        }
    }
    Ok(name)
}
