//! The layer over a shared store that can be made to fail.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::tower::{LayerBuilder, RateLimitLayer, Rejection, Reservation, Rule};
use tidegate::unstable::policy::OnStoreFailure;
use tower::Service;

use super::{ALICE, Fixture, from, rule, with};
use crate::common::limiter;
use crate::flaky_store::{Behavior, FlakyStore};

/// Two nodes over one store.
fn nodes(rule: impl Fn() -> Rule) -> ([Fixture; 2], Arc<FlakyStore>) {
    nodes_with(|builder| builder.rule(rule()))
}

fn nodes_with(build: impl Fn(LayerBuilder) -> LayerBuilder) -> ([Fixture; 2], Arc<FlakyStore>) {
    let (_, clock) = limiter();
    let store = Arc::new(FlakyStore::delayed(&clock));
    let node = || {
        let limiter = tidegate::Limiter::builder()
            .max_keys(10_000)
            .clock(clock.clock())
            .build()
            .expect("memory");
        let layer = build(RateLimitLayer::builder()).limiter(limiter);
        let layer = layer.store(Arc::<FlakyStore>::clone(&store), 2).build().expect("a layer");
        Fixture::of(layer, clock.clone())
    };
    ([node(), node()], store)
}

async fn status(fixture: &Fixture, request: http::Request<()>) -> u16 {
    fixture.call(request).await.expect("the service works").status().as_u16()
}

#[tokio::test]
async fn nodes_share_a_limit() {
    let ([one, other], _) = nodes(|| rule("api", &["2 per 1m sliding-log"]));
    let mut statuses = Vec::new();
    for node in [&one, &other, &one, &other] {
        statuses.push(status(node, from(ALICE, "/")).await);
    }
    assert_eq!(statuses, [200, 200, 429, 429]);
    assert_eq!(one.layer.reset("api", "192.0.2.1").await, Ok(true));
    assert_eq!(status(&other, from(ALICE, "/")).await, 200);
}

#[tokio::test]
async fn on_store_failure_applies_per_rule() {
    let rows = [
        (OnStoreFailure::Allow, [200; 4]),
        (OnStoreFailure::Deny, [503; 4]),
        // This node's share is half of four.
        (OnStoreFailure::Local, [200, 200, 429, 429]),
    ];
    for (behavior, expected) in rows {
        let rule = || rule("api", &["4 per 1m sliding-log"]).on_store_failure(behavior);
        let ([node, _], store) = nodes(rule);
        store.set_behavior(Behavior::Down);
        let mut statuses = [0; 4];
        for slot in &mut statuses {
            *slot = status(&node, from(ALICE, "/")).await;
        }
        assert_eq!(statuses, expected, "{behavior}");
        store.set_behavior(Behavior::Healthy);
        assert_eq!(status(&node, from(ALICE, "/")).await, 200, "back by itself");
    }
}

#[tokio::test]
async fn store_failure_is_not_a_429() {
    let rule = || rule("api", &["4 per 1m"]).on_store_failure(OnStoreFailure::Deny);
    let ([node, _], store) = nodes(rule);
    store.set_behavior(Behavior::Down);
    let response = node.call(from(ALICE, "/")).await.expect("the service works");
    assert_eq!(response.headers()["retry-after"], "1");
    let body = http_body_util::BodyExt::collect(response.into_body()).await.expect("a body");
    let body = String::from_utf8(body.to_bytes().to_vec()).expect("text");
    assert!(body.contains("#temporary-reduced-capacity\""), "{body}");
    let call = with(from(ALICE, "/"), "content-type", "application/grpc");
    let response = node.call(call).await.expect("the service works");
    assert_eq!(
        (response.status().as_u16(), &response.headers()["grpc-status"]),
        (200, &"14".parse().expect("a value"))
    );
}

async fn reduced(fixture: &Fixture, request: http::Request<()>) -> (u16, Option<String>, bool) {
    let response = fixture.call(request).await.expect("the service works");
    let retry_after = response.headers().get("retry-after");
    let retry_after = retry_after.map(|value| value.to_str().expect("text").to_owned());
    let status = response.status().as_u16();
    let body = http_body_util::BodyExt::collect(response.into_body()).await.expect("a body");
    let body = String::from_utf8(body.to_bytes().to_vec()).expect("text");
    (status, retry_after, body.contains("#temporary-reduced-capacity\""))
}

/// A policy that fails closed, beside a limit that is used up, was answered 429 here and 503 by the
/// server.
#[tokio::test]
async fn failing_closed_beside_a_denial_is_not_a_429() {
    let build = |builder: LayerBuilder| {
        let closed = rule("closed", &["4 per 1m"]).on_store_failure(OnStoreFailure::Deny);
        builder
            .rule(rule("here", &["2 per 1m sliding-log"]))
            .rule(closed.when(|head| head.uri().path() == "/both"))
    };
    let ([node, _], store) = nodes_with(build);
    store.set_behavior(Behavior::Down);
    assert_eq!(status(&node, from(ALICE, "/")).await, 200);
    assert_eq!(status(&node, from(ALICE, "/")).await, 429);
    assert_eq!(reduced(&node, from(ALICE, "/both")).await, (503, Some("60".into()), true));
}

/// A cost above this node's share, but not above the limit, was denied as one that never passes.
#[tokio::test]
async fn cost_beyond_the_node_share_is_not_a_429() {
    let cost = |head: &tidegate::tower::Head<'_>| if head.uri().path() == "/five" { 5 } else { 3 };
    let ([node, _], store) = nodes(|| rule("api", &["4 per 1m"]).cost(cost));
    store.set_behavior(Behavior::Down);
    assert_eq!(reduced(&node, from(ALICE, "/")).await, (503, Some("1".into()), true));
    assert_eq!(reduced(&node, from(ALICE, "/five")).await, (429, None, false), "never");
    let call = with(from(ALICE, "/"), "content-type", "application/grpc");
    let response = node.call(call).await.expect("the service works");
    assert_eq!(response.headers()["grpc-status"], "14");
    assert_eq!(response.headers()["grpc-retry-pushback-ms"], "1000");
}

/// Lets background tasks run: each of their steps takes one poll.
async fn run_background_tasks() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn shared_permits_are_released() {
    let ([one, other], _) = nodes(|| rule("jobs", &["1 concurrent lease 30s"]));
    let response = one.call(from(ALICE, "/")).await.expect("the service works");
    assert_eq!(status(&other, from(ALICE, "/")).await, 429);
    drop(response);
    run_background_tasks().await;
    assert_eq!(status(&other, from(ALICE, "/")).await, 200);
    run_background_tasks().await;
    // Also if the future is dropped while the service is pending.
    let mut silent = Box::pin(one.call(from(ALICE, "/silent")));
    for _ in 0..10 {
        let polled = futures_poll(&mut silent).await;
        assert!(polled.is_none());
    }
    assert_eq!(status(&other, from(ALICE, "/")).await, 429);
    drop(silent);
    run_background_tasks().await;
    assert_eq!(status(&other, from(ALICE, "/")).await, 200);
}

/// Polls once, and returns the output if the future is ready.
async fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match std::pin::Pin::new(&mut *future).poll(context) {
            std::task::Poll::Ready(ready) => Some(ready),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[tokio::test]
async fn reservations_are_settled_in_the_store() {
    let rule = || rule("tokens", &["100 per 1m sliding-log"]).reserve(|_| 40);
    let ([one, other], store) = nodes(rule);
    let left = async |node: &Fixture| {
        let limits = node.layer.peek("tokens", "192.0.2.1").await.expect("a rule");
        limits[0].1.remaining
    };
    assert_eq!(status(&one, with(from(ALICE, "/"), "x-actual", "10")).await, 200);
    run_background_tasks().await;
    assert_eq!(left(&other).await, 90);
    assert!(other.call(from(ALICE, "/broken")).await.is_err());
    run_background_tasks().await;
    assert_eq!(left(&one).await, 90);
    // A charge in this node's memory, made while the store failed, is settled there and not in the
    // store.
    store.set_behavior(Behavior::Down);
    let response = one.call(from(ALICE, "/silent"));
    let mut silent = Box::pin(response);
    for _ in 0..10 {
        assert!(futures_poll(&mut silent).await.is_none());
    }
    assert_eq!(one.calls(), 2, "it was admitted by this node alone");
    store.set_behavior(Behavior::Healthy);
    drop(silent);
    run_background_tasks().await;
    assert_eq!(left(&other).await, 90);
}

/// The future of a changed estimate.
type Changing = Pin<Box<dyn Future<Output = Result<(), Rejection>> + Send>>;

/// The reservation of a request, and the future of the request, which is being served.
async fn reserved(node: &Fixture) -> (Reservation, impl Future<Output = ()> + use<>) {
    let kept = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&kept);
    let service = tower::service_fn(move |request: http::Request<()>| {
        *keep.lock().expect("no panic") = request.extensions().get::<Reservation>().cloned();
        std::future::pending::<Result<http::Response<()>, std::convert::Infallible>>()
    });
    let mut serving = Box::pin(tower::Layer::layer(&node.layer, service).call(from(ALICE, "/")));
    for _ in 0..10 {
        assert!(futures_poll(&mut serving).await.is_none());
    }
    let reservation = kept.lock().expect("no panic").take().expect("a reservation");
    (reservation, async move { drop(serving) })
}

#[tokio::test]
async fn handlers_reserve_more_in_the_store() {
    let tokens = || rule("tokens", &["100 per 1m sliding-log"]).reserve(|_| 40);
    let ([one, other], _) = nodes(tokens);
    let left = async |node: &Fixture| {
        run_background_tasks().await;
        let limits = node.layer.peek("tokens", "192.0.2.1").await.expect("a rule");
        limits[0].1.remaining
    };
    let (reservation, serving) = reserved(&one).await;
    for (units, expected) in [(70, 30), (20, 80), (100, 0), (60, 40)] {
        assert!(reservation.reserve(units).await.is_ok(), "{units}");
        assert_eq!(left(&other).await, expected, "{units}");
    }
    // A decision whose future was dropped is completed, and its charge is not lost.
    for polls in 1..=2 {
        let wanting = reservation.clone();
        let mut changing: Changing = Box::pin(async move { wanting.reserve(80).await });
        for _ in 0..polls {
            assert!(futures_poll(&mut changing).await.is_none());
        }
        drop(changing);
        assert_eq!((left(&other).await, reservation.estimate()), (20, 80));
        assert!(reservation.reserve(60).await.is_ok());
    }
    let rejection = reservation.reserve(101).await.expect_err("above the limit");
    assert_eq!((rejection.status().as_u16(), left(&other).await), (429, 100));
    serving.await;
    assert_eq!(left(&other).await, 100);
    // A store failure is answered 503.
    let ([node, _], store) = nodes(|| tokens().on_store_failure(OnStoreFailure::Deny));
    let (reservation, serving) = reserved(&node).await;
    store.set_behavior(Behavior::Down);
    assert_eq!(reservation.reserve(60).await.expect_err("it failed").status(), 503);
    store.set_behavior(Behavior::Healthy);
    serving.await;
}

/// Units that were charged in this node's memory must not be refunded in the store: that would take
/// units of other requests.
#[tokio::test]
async fn an_outage_does_not_refund_the_units_of_others() {
    let ([one, other], store) =
        nodes(|| rule("tokens", &["100 per 1m sliding-log"]).reserve(|_| 40));
    let (reservation, serving) = reserved(&one).await;
    let (_kept, _serving) = reserved(&other).await;
    store.set_behavior(Behavior::Down);
    assert!(reservation.reserve(45).await.is_ok(), "this node decides alone");
    store.set_behavior(Behavior::Healthy);
    reservation.commit(0);
    run_background_tasks().await;
    let limits = other.layer.peek("tokens", "192.0.2.1").await.expect("a rule");
    assert_eq!(limits[0].1.remaining, 60, "the other reservation stands");
    serving.await;
}

/// The verdict of the store was lost with the future, so its permits and charges were kept.
#[tokio::test]
async fn future_dropped_during_a_decision_holds_nothing() {
    let build = |builder: LayerBuilder| {
        let tokens = rule("tokens", &["100 per 1m sliding-log"]).reserve(|_| 40);
        builder.rule(rule("jobs", &["1 concurrent lease 30s"])).rule(tokens)
    };
    // Dropped before the call to the store, during the call, and before its answer is read.
    for polls in 0..=2 {
        let ([one, other], _) = nodes_with(build);
        let mut call = Box::pin(one.call(from(ALICE, "/")));
        for _ in 0..polls {
            assert!(futures_poll(&mut call).await.is_none());
        }
        drop(call);
        run_background_tasks().await;
        let left = async |rule| {
            let limits = other.layer.peek(rule, "192.0.2.1").await.expect("a rule");
            limits[0].1.remaining
        };
        assert_eq!((left("jobs").await, left("tokens").await), (1, 100), "after {polls} polls");
        assert_eq!(one.calls(), 0, "nobody waits for what the service would say");
    }
}

#[tokio::test]
async fn dropped_request_leaves_the_queue_of_a_shared_store() {
    let build = |builder: LayerBuilder| {
        let rule = rule("slow", &["1 per 10s sliding-log"]);
        builder.rule(rule).max_wait(Duration::from_secs(15))
    };
    // Dropped during the call to the store, and while the request waits.
    for polls in [1, 2, 9] {
        let ([node, _], _) = nodes_with(build);
        assert_eq!(status(&node, from(ALICE, "/")).await, 200);
        let mut call = Box::pin(node.call(from(ALICE, "/")));
        for _ in 0..polls {
            assert!(futures_poll(&mut call).await.is_none());
        }
        drop(call);
        run_background_tasks().await;
        node.clock.advance(Duration::from_secs(10));
        run_background_tasks().await;
        let mut call = Box::pin(node.call(from(ALICE, "/")));
        let mut answered = None;
        for _ in 0..10 {
            answered = answered.or(futures_poll(&mut call).await);
            if answered.is_some() {
                break;
            }
        }
        let answered = answered.map(|response| response.expect("the service works").status());
        assert_eq!(answered.map(|status| status.as_u16()), Some(200), "after {polls} polls");
    }
}

#[tokio::test]
async fn permits_dropped_outside_the_runtime_are_released_on_it() {
    let ([one, other], _) = nodes(|| rule("jobs", &["1 concurrent lease 30s"]));
    let response = one.call(from(ALICE, "/")).await.expect("the service works");
    std::thread::spawn(move || drop(response)).join().expect("no panic");
    run_background_tasks().await;
    assert_eq!(status(&other, from(ALICE, "/")).await, 200);
}
