//! Requests that wait under `max_wait`.

use std::future::{Ready, poll_fn, ready};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tidegate::tower::RateLimitLayer;
use tidegate::unstable::policy::Mode;
use tower::{Layer, Service};

use super::{ALICE, Broken, Fixture, from, rule};
use crate::common::limiter;
use crate::futures::{Polled, Started, block_on};

fn fixture() -> Fixture {
    Fixture::new(|builder| {
        let rule = rule("slow", &["1 per 10s sliding-log"]);
        builder.rule(rule).max_wait(Duration::from_secs(15))
    })
}

fn start<'w>(fixture: &'w Fixture) -> Started<'w, u16> {
    let call = fixture.call(from(ALICE, "/"));
    Polled::start(async { call.await.expect("the service works").status().as_u16() })
}

fn waiting<'w>(fixture: &'w Fixture) -> Polled<'w, u16> {
    match start(fixture) {
        Started::Pending(polled) => polled,
        Started::Ready(status) => panic!("answered {status} at once"),
    }
}

fn at_once(fixture: &Fixture) -> u16 {
    match start(fixture) {
        Started::Ready(status) => status,
        Started::Pending(_) => panic!("it waits"),
    }
}

#[test]
fn waiting_request_passes_in_order() {
    let fixture = fixture();
    assert_eq!(at_once(&fixture), 200);
    let mut second = waiting(&fixture);
    assert_eq!(at_once(&fixture), 429, "a third would wait for 20 s");
    assert_eq!(fixture.calls(), 1);
    fixture.clock.advance(Duration::from_millis(9_999));
    assert_eq!((second.poll(), fixture.calls()), (None, 1));
    fixture.clock.advance(Duration::from_millis(1));
    assert_eq!((second.poll(), fixture.calls()), (Some(200), 2));
}

/// A service that must be polled for readiness before a call. A clone must be polled again.
struct Choosy {
    is_ready: bool,
}

impl Clone for Choosy {
    fn clone(&self) -> Self {
        Choosy { is_ready: false }
    }
}

impl Service<Request<()>> for Choosy {
    type Response = Response<Full<Bytes>>;
    type Error = Broken;
    type Future = Ready<Result<Self::Response, Broken>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let is_ready = std::mem::take(&mut self.is_ready);
        ready(if is_ready { Ok(Response::default()) } else { Err(Broken) })
    }
}

#[test]
fn layer_calls_the_service_instance_that_was_ready() {
    for max_wait in [None, Some(Duration::from_secs(15))] {
        let builder = RateLimitLayer::builder().limiter(limiter().0);
        let mut builder = builder.rule(rule("slow", &["9 per 10s sliding-log"]));
        if let Some(max_wait) = max_wait {
            builder = builder.max_wait(max_wait);
        }
        let mut service = builder.build().expect("a layer").layer(Choosy { is_ready: false });
        for _ in 0..3 {
            block_on(poll_fn(|context| service.poll_ready(context))).expect("it is ready");
            let response = block_on(service.call(from(ALICE, "/"))).expect("the one that was");
            assert_eq!(response.status(), 200, "{max_wait:?}");
        }
    }
}

#[test]
fn dropped_request_leaves_the_queue_uncharged() {
    let fixture = fixture();
    assert_eq!(at_once(&fixture), 200);
    drop(waiting(&fixture));
    let mut third = waiting(&fixture);
    fixture.clock.advance(Duration::from_secs(10));
    assert_eq!(third.poll(), Some(200));
    assert_eq!(fixture.calls(), 2);
}

#[test]
fn concurrency_limits_do_not_wait() {
    let fixture = Fixture::new(|builder| {
        let rule = rule("jobs", &["1 concurrent lease 30s"]);
        builder.rule(rule).max_wait(Duration::from_secs(15))
    });
    let held = crate::futures::block_on(fixture.call(from(ALICE, "/"))).expect("the service works");
    assert_eq!(at_once(&fixture), 429);
    drop(held);
    assert_eq!(at_once(&fixture), 200);
}

/// Observed permits are not part of the decision, and are held while the request is served.
#[test]
fn observed_concurrency_limits_do_not_prevent_waiting() {
    let fixture = Fixture::new(|builder| {
        let permits = rule("jobs", &["1 concurrent lease 30s"]).mode(Mode::Observe);
        let slow = rule("slow", &["1 per 10s sliding-log"]);
        builder.rule(permits).rule(slow).max_wait(Duration::from_secs(15))
    });
    assert_eq!(at_once(&fixture), 200);
    let Started::Pending(mut second) = Polled::start(fixture.call(from(ALICE, "/"))) else {
        panic!("it does not wait")
    };
    fixture.clock.advance(Duration::from_secs(10));
    let response = second.poll().expect("its turn");
    assert_eq!(fixture.left("jobs", "192.0.2.1"), 0, "it is being served");
    drop(response);
    assert_eq!(fixture.left("jobs", "192.0.2.1"), 1);
}
