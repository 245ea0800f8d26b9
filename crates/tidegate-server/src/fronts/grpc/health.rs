//! `grpc.health.v1`: whether the server accepts new calls, as a single reply or as a stream of
//! changes.

use std::collections::BTreeMap;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, stream};
use hyper::Request;
use hyper::body::Incoming;
use tonic::server::{ServerStreamingService, UnaryService};

use super::{TonicResponse, server};
use crate::fronts::envoy::SERVICE;
use crate::server_state::ServerState;

/// The prefix of all methods of the service.
pub const PREFIX: &str = "/grpc.health.v1.Health/";
pub const CHECK: &str = "/grpc.health.v1.Health/Check";
pub const LIST: &str = "/grpc.health.v1.Health/List";
pub const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// The services that have a status. The last one is the name in envoyproxy/ratelimit.
const SERVICES: [&str; 3] = ["", SERVICE, "ratelimit"];

#[derive(Clone, PartialEq, prost::Message)]
struct CheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CheckResponse {
    #[prost(enumeration = "Status", tag = "1")]
    status: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ListRequest {}

#[derive(Clone, PartialEq, prost::Message)]
struct ListResponse {
    #[prost(btree_map = "string, message", tag = "1")]
    statuses: BTreeMap<String, CheckResponse>,
}

/// A `HealthCheckResponse.ServingStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
enum Status {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

impl Status {
    fn of(is_ready: bool) -> Self {
        if is_ready { Status::Serving } else { Status::NotServing }
    }

    fn response(self) -> CheckResponse {
        CheckResponse { status: self.into() }
    }
}

/// The service. All services have the status of the server.
pub struct Health(pub Arc<ServerState>);

impl Health {
    /// Responds to a call of a method of the service.
    pub async fn respond(self, request: Request<Incoming>) -> Option<TonicResponse> {
        Some(match request.uri().path() {
            CHECK => server().unary(Check(self), request).await,
            LIST => server().unary(List(self), request).await,
            WATCH => server().server_streaming(Watch(self), request).await,
            _ => return None,
        })
    }

    /// The status of a service; `None` if there is no such service.
    fn status(&self, service: &str) -> Option<Status> {
        SERVICES.contains(&service).then(|| Status::of(self.0.is_ready()))
    }
}

struct Check(Health);

impl UnaryService<CheckRequest> for Check {
    type Response = CheckResponse;
    type Future = Ready<Result<tonic::Response<CheckResponse>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<CheckRequest>) -> Self::Future {
        let unknown = || {
            let help =
                format!("unknown service: use \"\" (all of it), \"{SERVICE}\" or \"ratelimit\"");
            tonic::Status::not_found(help)
        };
        let status = self.0.status(&request.get_ref().service).ok_or_else(unknown);
        ready(status.map(|status| tonic::Response::new(status.response())))
    }
}

struct List(Health);

impl UnaryService<ListRequest> for List {
    type Response = ListResponse;
    type Future = Ready<Result<tonic::Response<ListResponse>, tonic::Status>>;

    fn call(&mut self, _: tonic::Request<ListRequest>) -> Self::Future {
        let status = Status::of(self.0.0.is_ready()).response();
        let statuses = SERVICES.iter().map(|service| ((*service).to_owned(), status.clone()));
        ready(Ok(tonic::Response::new(ListResponse { statuses: statuses.collect() })))
    }
}

struct Watch(Health);

impl ServerStreamingService<CheckRequest> for Watch {
    type Response = CheckResponse;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<CheckResponse, tonic::Status>> + Send>>;
    type Future = Ready<Result<tonic::Response<Self::ResponseStream>, tonic::Status>>;

    /// Sends the status, and again whenever it changes. A service may be added later, so the status
    /// of an unknown one is not an error.
    fn call(&mut self, request: tonic::Request<CheckRequest>) -> Self::Future {
        let first = self.0.status(&request.get_ref().service).unwrap_or(Status::ServiceUnknown);
        let begun = (first, true, Arc::clone(&self.0.0));
        let statuses = stream::unfold(begun, |(last, is_first, server_state)| async move {
            let is_ready = last == Status::Serving;
            let status = match last {
                _ if is_first => last,
                Status::Serving | Status::NotServing
                    if server_state.ready_changed(is_ready).await || is_ready =>
                {
                    Status::of(!is_ready)
                }
                // Nothing changes any more: the service is unknown, or the server drains.
                _ => std::future::pending().await,
            };
            Some((Ok(status.response()), (status, false, server_state)))
        });
        ready(Ok(tonic::Response::new(Box::pin(statuses))))
    }
}
