//! The tower layer, in front of a service whose behaviour depends on the path.

mod addresses;
mod allocations;
#[cfg(feature = "axum")]
mod axum;
mod builder_errors;
mod concurrency;
#[cfg(feature = "config")]
mod config_file;
mod denials;
#[cfg(feature = "config")]
mod observed;
mod plans;
mod reservations;
mod rules;
mod service_latency;
mod settlement;
mod shared;
mod stacked_layers;
mod waiting;

use std::future::{Future, Ready, pending, ready};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tidegate::tower::{LayerBuilder, LimitedBody, RateLimit, RateLimitLayer, Reservation, Rule};
use tidegate::{Limit, ManualClock};
use tower::{Layer, Service};

use crate::common::{limit, limiter};
use crate::futures::block_on;

/// The error of the service.
#[derive(Debug, PartialEq, Eq)]
struct Broken;

/// A service that responds, fails or stays pending, depending on the path, and counts its calls.
#[derive(Clone, Default)]
struct Stub {
    calls: Arc<AtomicUsize>,
}

type Answered = Result<Response<Full<Bytes>>, Broken>;

/// The future of a response. It does not allocate if the response is ready.
enum Answering {
    Ready(Ready<Answered>),
    Later(Pin<Box<dyn Future<Output = Answered> + Send>>),
}

impl Future for Answering {
    type Output = Answered;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answered> {
        match self.get_mut() {
            Answering::Ready(ready) => Pin::new(ready).poll(context),
            Answering::Later(later) => later.as_mut().poll(context),
        }
    }
}

impl Service<Request<()>> for Stub {
    type Response = Response<Full<Bytes>>;
    type Error = Broken;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Answering {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(actual) = request.headers().get("x-actual") {
            let actual = actual.to_str().expect("text").parse().expect("a number");
            request.extensions().get::<Reservation>().expect("a reservation").commit(actual);
        }
        let path = request.uri().path();
        if let Some(status) = path.strip_prefix("/status/") {
            let mut response = Response::new(Full::new(Bytes::from("hello")));
            *response.status_mut() = status.parse().expect("a status");
            return Answering::Ready(ready(Ok(response)));
        }
        match path {
            "/broken" => Answering::Ready(ready(Err(Broken))),
            "/silent" => Answering::Later(Box::pin(pending())),
            _ => Answering::Ready(ready(Ok(Response::new(Full::new(Bytes::from("hello")))))),
        }
    }
}

/// A layer with a manual clock, and its service.
struct Fixture {
    layer: RateLimitLayer,
    service: RateLimit<Stub>,
    calls: Arc<AtomicUsize>,
    clock: ManualClock,
}

impl Fixture {
    fn new(build: impl FnOnce(LayerBuilder) -> LayerBuilder) -> Self {
        let (limiter, clock) = limiter();
        let builder = build(RateLimitLayer::builder().limiter(limiter));
        Fixture::of(builder.build().expect("a layer"), clock)
    }

    fn of(layer: RateLimitLayer, clock: ManualClock) -> Self {
        let stub = Stub::default();
        let calls = Arc::clone(&stub.calls);
        Fixture { service: layer.layer(stub), layer, calls, clock }
    }

    /// A layer with a single rule.
    fn with(rule: Rule) -> Self {
        Fixture::new(|builder| builder.rule(rule))
    }

    fn call(&self, request: Request<()>) -> impl Future<Output = Limited> + use<> {
        self.service.clone().call(request)
    }

    /// Sends a request and reads the whole response.
    fn send(&self, request: Request<()>) -> TestResponse {
        let response = block_on(self.call(request)).expect("the service works");
        let (parts, body) = response.into_parts();
        let body = block_on(body.collect()).expect("a body").to_bytes();
        let body = String::from_utf8(body.to_vec()).expect("text");
        TestResponse { status: parts.status, headers: parts.headers, body }
    }

    fn status(&self, request: Request<()>) -> u16 {
        self.send(request).status.as_u16()
    }

    /// Sends the same request several times and returns the statuses.
    fn statuses(&self, request: impl Fn() -> Request<()>, times: usize) -> Vec<u16> {
        (0..times).map(|_| self.status(request())).collect()
    }

    /// Returns what a key has left under a rule.
    fn left(&self, rule: &str, key: &str) -> u64 {
        let limits = block_on(self.layer.peek(rule, key)).expect("a rule");
        limits.iter().map(|(_, decision)| decision.remaining).min().expect("a limit")
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }
}

type Limited = Result<Response<LimitedBody<Full<Bytes>>>, Broken>;

/// A response with its whole body.
struct TestResponse {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl TestResponse {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("text"))
    }
}

const ALICE: [u8; 4] = [192, 0, 2, 1];
const BOB: [u8; 4] = [192, 0, 2, 2];

/// A request for a path, with the address of its socket as an extension, as servers provide it.
fn from(address: impl Into<IpAddr>, path: &str) -> Request<()> {
    let mut request = Request::builder().uri(path).body(()).expect("a request");
    request.extensions_mut().insert(SocketAddr::new(address.into(), 40_000));
    request
}

/// Adds a header field to a request.
fn with(mut request: Request<()>, name: &'static str, value: &str) -> Request<()> {
    request.headers_mut().insert(name, value.parse().expect("a value"));
    request
}

fn rule(name: &str, limits: &[&str]) -> Rule {
    Rule::new(name, limits.iter().map(|text| limit(text)).collect::<Vec<Limit>>())
}
