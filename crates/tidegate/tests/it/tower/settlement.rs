//! Charges that are settled by the outcome of a request.

use std::future::{Future, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tidegate::tower::{Mode, Rejection, Reservation, Rule};
use tidegate::{Limit, Overflow, RetryAfter};
use tower::{Layer, Service, service_fn};

use super::{ALICE, BOB, Broken, Fixture, from, rule, with};
use crate::common::limit;
use crate::futures::{Polled, Started, block_on};

fn tokens() -> Rule {
    rule("tokens", &["100 per 1m sliding-log", "1000 per 1h"])
        .key(|_| Some("ann".into()))
        .reserve(|_| 40)
}

fn logins() -> Rule {
    rule("login", &["2 per 1m sliding-log"])
        .key(|_| Some("ann".into()))
        .settle_when(|response| response.status() == StatusCode::UNAUTHORIZED)
}

fn used(fixture: &Fixture) -> u64 {
    100 - fixture.left("tokens", "ann")
}

#[test]
fn service_failure_refunds_the_estimate() {
    let rows =
        [(200, 40), (204, 40), (302, 40), (401, 40), (404, 40), (429, 40), (500, 0), (503, 0)];
    for (status, expected) in rows {
        let fixture = Fixture::with(tokens());
        assert_eq!(fixture.status(from(ALICE, &format!("/status/{status}"))), status);
        assert_eq!(used(&fixture), expected, "{status}");
        // A commit of the handler is kept after any response.
        let request = with(from(ALICE, &format!("/status/{status}")), "x-actual", "30");
        assert_eq!(fixture.status(request), status);
        assert_eq!(used(&fixture), expected + 30, "{status}");
    }
}

#[test]
fn only_failed_logins_count() {
    let fixture = Fixture::with(logins());
    assert_eq!(fixture.statuses(|| from(ALICE, "/"), 5), [200; 5]);
    assert_eq!(fixture.left("login", "ann"), 2);
    assert_eq!(fixture.statuses(|| from(ALICE, "/status/401"), 3), [401, 401, 429]);
    assert_eq!(fixture.status(from(ALICE, "/")), 429, "now also the right password");
    assert_eq!(fixture.calls(), 7);
}

#[test]
fn only_successful_generations_count() {
    let rule = rule("images", &["2 per 1m sliding-log"])
        .settle_when(|response| response.status().is_success());
    let fixture = Fixture::with(rule);
    assert_eq!(fixture.statuses(|| from(ALICE, "/status/422"), 4), [422; 4]);
    assert_eq!(fixture.statuses(|| from(ALICE, "/status/503"), 4), [503; 4]);
    assert_eq!(fixture.statuses(|| from(ALICE, "/"), 3), [200, 200, 429]);
}

/// Concurrent guesses must not exceed the limit together.
#[test]
fn charge_counts_until_it_is_settled() {
    let fixture = Fixture::with(logins());
    let silent = || Polled::start(fixture.call(from(ALICE, "/silent")));
    let (Started::Pending(first), Started::Pending(second)) = (silent(), silent()) else {
        panic!("the service is silent");
    };
    assert_eq!(fixture.status(from(ALICE, "/")), 429);
    // A client that disconnects does not avoid the charge.
    drop((first, second));
    assert_eq!(fixture.status(from(ALICE, "/")), 429);
    let fixture = Fixture::with(logins());
    assert_eq!(block_on(fixture.call(from(ALICE, "/broken"))).err(), Some(Broken));
    assert_eq!(fixture.left("login", "ann"), 1, "nor does a service that fails");
}

/// Sends a request to a closure behind the layer.
fn call<B: Send + 'static, F>(
    fixture: &Fixture,
    request: Request<()>,
    handler: impl Fn(Request<()>) -> F + Clone + Send + 'static,
) -> Response<tidegate::tower::LimitedBody<B>>
where
    F: Future<Output = Response<B>> + Send + 'static,
{
    let service = service_fn(move |request| {
        let response = handler(request);
        async move { Ok::<_, Broken>(response.await) }
    });
    block_on(fixture.layer.layer(service).call(request)).expect("the service works")
}

#[test]
fn settlement_reads_fields_and_extensions_of_the_response() {
    #[derive(Clone)]
    struct Cached;
    let rule = rule("images", &["5 per 1m sliding-log"]).settle_when(|response| {
        response.extensions().get::<Cached>().is_none()
            && !response.headers().contains_key("x-cached")
    });
    let fixture = Fixture::with(rule);
    let rows = [("", 4), ("field", 4), ("extension", 4), ("", 3)];
    for (cached, left) in rows {
        let response = call(&fixture, from(ALICE, "/"), move |_| {
            let mut response = Response::new(());
            *response.version_mut() = http::Version::HTTP_2;
            response.headers_mut().insert("x-kept", "yes".parse().expect("a value"));
            match cached {
                "field" => {
                    response.headers_mut().insert("x-cached", "yes".parse().expect("a value"));
                }
                "extension" => drop(response.extensions_mut().insert(Cached)),
                _ => {}
            }
            ready(response)
        });
        assert_eq!(fixture.left("images", "192.0.2.1"), left, "{cached}");
        // The response still has its fields and extensions.
        assert_eq!(response.headers()["x-kept"], "yes");
        assert!(response.headers().contains_key("ratelimit"));
        assert_eq!(response.version(), http::Version::HTTP_2);
        assert_eq!(response.extensions().get::<Cached>().is_some(), cached == "extension");
    }
}

/// The handler commits tokens, and the login is charged 1 as before.
#[test]
fn commit_applies_only_to_reserving_rules() {
    let fixture = Fixture::new(|builder| builder.rule(logins()).rule(tokens()));
    let request = with(from(ALICE, "/status/401"), "x-actual", "30");
    assert_eq!(fixture.status(request), 401);
    assert_eq!((used(&fixture), fixture.left("login", "ann")), (30, 1));

    let fixture = Fixture::with(logins());
    let response = call(&fixture, from(ALICE, "/"), |request| {
        ready(Response::new(request.extensions().get::<Reservation>().is_some()))
    });
    assert_eq!(response.status(), 200);
    let fixture = Fixture::new(|builder| builder.rule(logins()).rule(tokens()));
    call(&fixture, from(ALICE, "/"), |request| {
        let reservation = request.extensions().get::<Reservation>().cloned().expect("one");
        assert!(!reservation.commit_for("login", 2));
        assert_eq!(reservation.estimate(), 40);
        ready(Response::new(()))
    });
    assert_eq!(fixture.left("login", "ann"), 2);
}

#[test]
fn a_late_commit_counts_after_a_failure() {
    let fixture = Fixture::with(tokens());
    let kept = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&kept);
    call(&fixture, from(ALICE, "/"), move |request| {
        *keep.lock().expect("no panic") = request.extensions().get::<Reservation>().cloned();
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        ready(response)
    });
    assert_eq!(used(&fixture), 0);
    kept.lock().expect("no panic").take().expect("a reservation").commit(25);
    assert_eq!(used(&fixture), 25);
}

/// The charge is settled under the limits that came with the request.
#[test]
fn limits_of_a_request_are_settled() {
    let rule = tokens().limits_of(|head| {
        let count = head.header("x-limit")?;
        Some(limit(&format!("{count} per 1m sliding-log")))
    });
    let fixture = Fixture::with(rule);
    let request = |status: u16| with(from(ALICE, &format!("/status/{status}")), "x-limit", "50");
    assert_eq!(fixture.status(request(500)), 500);
    assert_eq!(used(&fixture), 0);
    assert_eq!(fixture.status(with(request(200), "x-actual", "45")), 200);
    assert_eq!((used(&fixture), fixture.status(request(200))), (45, 429));
}

#[test]
fn panic_in_a_closure_charges_nothing() {
    let trap = |head: &tidegate::tower::Head<'_>| assert_ne!(head.path(), "/panic", "as told");
    let api = || rule("api", &["5 per 1m sliding-log"]).key(|_| Some("ann".into()));
    let rules: [(&str, Rule); 7] = [
        ("when", api().when(move |head| (trap(head), true).1)),
        ("key", api().key(move |head| (trap(head), Some("ann".into())).1)),
        ("plan_of", api().plan("pro", limit("9 per 1m")).plan_of(move |head| (trap(head), None).1)),
        ("limits_of", api().limits_of(move |head| (trap(head), None::<Limit>).1)),
        ("cost", api().cost(move |head| (trap(head), 1).1)),
        ("reserve", api().reserve(move |head| (trap(head), 1).1)),
        (
            "on_unknown_plan",
            api()
                .plan("pro", limit("9 per 1m"))
                .plan_of(|head| (head.path() == "/panic").then(|| "none".into()))
                .on_unknown_plan(|_| panic!("as told")),
        ),
    ];
    for (name, rule) in rules {
        let fixture = Fixture::with(rule);
        let result = catch_unwind(AssertUnwindSafe(|| fixture.status(from(ALICE, "/panic"))));
        assert!(result.is_err(), "{name}");
        assert_eq!((fixture.left("api", "ann"), fixture.calls()), (5, 0), "{name}");
        assert_eq!(fixture.status(from(ALICE, "/")), 200, "{name}");
    }
    let denied = Fixture::new(|builder| {
        builder.rule(rule("api", &["0 per 1m"])).on_denied(move |head, rejection| {
            trap(head);
            Response::<String>::from(rejection)
        })
    });
    let result = catch_unwind(AssertUnwindSafe(|| denied.status(from(ALICE, "/panic"))));
    assert!(result.is_err(), "on_denied");
    assert_eq!((denied.status(from(ALICE, "/")), denied.calls()), (429, 0));
}

/// The outcome is unknown, as if the future had been dropped.
#[test]
fn panic_while_handling_the_response_settles() {
    let settle = |response: &Response<()>| -> bool {
        assert_ne!(response.status(), 418, "as told");
        true
    };
    let login = logins().settle_when(settle);
    let fixture = Fixture::new(|builder| builder.rule(tokens().settle_when(settle)).rule(login));
    let result = catch_unwind(AssertUnwindSafe(|| fixture.status(from(ALICE, "/status/418"))));
    assert!(result.is_err());
    assert_eq!((used(&fixture), fixture.left("login", "ann")), (0, 1));
    assert_eq!(fixture.status(from(ALICE, "/")), 200);
    assert_eq!((used(&fixture), fixture.left("login", "ann")), (40, 0));
}

/// A body that never ends, with a guard that its handler has put into it.
struct Endless(Option<Settling>);

/// Commits what was used so far when it is dropped.
struct Settling(Reservation, u64);

impl Drop for Settling {
    fn drop(&mut self) {
        self.0.commit(self.1);
    }
}

impl Body for Endless {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if let Some(settling) = &mut self.0 {
            settling.1 += 1;
        }
        Poll::Ready(Some(Ok(Frame::data(Bytes::from("token ")))))
    }
}

#[test]
fn endless_body_is_settled_when_the_client_disconnects() {
    for commits in [false, true] {
        let fixture = Fixture::new(|builder| {
            let at_once = rule("jobs", &["1 concurrent lease 30s"]);
            builder.rule(tokens()).rule(at_once)
        });
        let mut response = call(&fixture, from(ALICE, "/"), move |request| {
            let reservation = request.extensions().get::<Reservation>().cloned();
            let settling = reservation.filter(|_| commits).map(|one| Settling(one, 0));
            ready(Response::new(Endless(settling)))
        });
        for _ in 0..7 {
            assert!(block_on(response.body_mut().frame()).is_some_and(|frame| frame.is_ok()));
        }
        assert_eq!(used(&fixture), 40, "the estimate stands while it lasts");
        assert_eq!(fixture.status(from(ALICE, "/")), 429, "and the place is held");
        drop(response);
        assert_eq!(used(&fixture), if commits { 7 } else { 40 });
        assert_eq!(fixture.status(from(ALICE, "/")), 200, "the place is free");
    }
}

#[test]
fn a_response_without_a_body_is_settled() {
    for (status, expected) in [(204, 40), (304, 40), (500, 0)] {
        let fixture = Fixture::new(|builder| {
            builder.rule(tokens()).rule(rule("jobs", &["1 concurrent lease 30s"]))
        });
        let response = call(&fixture, from(ALICE, "/"), move |_| {
            let mut response = Response::new(http_body_util::Empty::<Bytes>::new());
            *response.status_mut() = StatusCode::from_u16(status).expect("a status");
            ready(response)
        });
        assert!(response.body().is_end_stream());
        assert_eq!(used(&fixture), expected, "{status}");
        // A server does not poll such a body; it drops it.
        drop(response);
        assert_eq!(fixture.left("jobs", "192.0.2.1"), 1, "{status}");
    }
}

/// The reservation of a request that is being served.
fn reserved(fixture: &Fixture) -> (Reservation, impl Future<Output = Result<(), Broken>> + use<>) {
    let kept = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&kept);
    let service = service_fn(move |request: Request<()>| {
        *keep.lock().expect("no panic") = request.extensions().get::<Reservation>().cloned();
        ready(Ok::<_, Broken>(Response::new(())))
    });
    let response = fixture.layer.layer(service).call(from(ALICE, "/"));
    let reservation = kept.lock().expect("no panic").take().expect("a reservation");
    (reservation, async { response.await.map(drop) })
}

#[test]
fn handler_reserves_by_the_body() {
    let fixture = Fixture::with(tokens());
    let (reservation, response) = reserved(&fixture);
    for (units, expected) in [(70, 70), (20, 20), (20, 20), (100, 100), (0, 0), (60, 60)] {
        assert!(block_on(reservation.reserve(units)).is_ok(), "{units}");
        assert_eq!((used(&fixture), reservation.estimate()), (expected, expected));
    }
    block_on(response).expect("the service works");
    assert_eq!(used(&fixture), 60);
    reservation.commit(10);
    assert!(block_on(reservation.reserve(90)).is_ok(), "it is settled, so nothing changes");
    assert_eq!(used(&fixture), 10);
}

fn rejected(reservation: &Reservation, units: u64) -> Rejection {
    block_on(reservation.reserve(units)).expect_err("it is not left")
}

#[test]
fn denied_handler_reservation_is_refunded() {
    let fixture = Fixture::with(tokens());
    let (other, _kept) = reserved(&fixture);
    let (reservation, response) = reserved(&fixture);
    assert_eq!(used(&fixture), 80);
    let rejection = rejected(&reservation, 70);
    assert_eq!(used(&fixture), 40, "only the other is left");
    assert_eq!((rejection.status().as_u16(), rejection.policy()), (429, Some("tokens")));
    assert_eq!(rejection.limit(), Some(&limit("100 per 1m sliding-log")));
    let fields = rejection.response().headers();
    assert_eq!(fields["retry-after"], "60");
    assert_eq!(fields["ratelimit"], "\"tokens-1m\";r=60;t=60");
    assert_eq!(fields["ratelimit-policy"], "\"tokens-1m\";q=100;w=60, \"tokens-1h\";q=1000;w=3600");
    assert_eq!(fields["content-type"], "application/problem+json");
    let refused: u64 = fixture.layer.stats().series().iter().map(|series| series.denied[0]).sum();
    assert!(refused > 0, "it is counted");
    let requests = fixture.layer.stats().requests();
    let tokens = requests.iter().find(|one| &*one.policy == "tokens").expect("it is counted");
    assert_eq!(tokens.outcomes, [2, 0, 0], "a changed estimate is not another request");
    block_on(response).expect("the service works");
    assert_eq!(used(&fixture), 40, "there is nothing left to settle");
    // An estimate above the limit never passes, however much is held already.
    let rejection = rejected(&other, 101);
    assert_eq!(rejection.retry_after(), RetryAfter::Never);
    assert_eq!(rejection.response().headers().get("retry-after"), None);
    assert_eq!(used(&fixture), 0);
    let (last, _kept) = reserved(&fixture);
    assert_eq!(rejected(&last, u64::MAX).retry_after(), RetryAfter::Never);
    // A handler that continues can still commit.
    last.commit(33);
    assert_eq!(used(&fixture), 33);
}

/// After a denial `reserve` returned `Ok` for any estimate, and charged nothing.
#[test]
fn a_smaller_estimate_is_checked_after_a_denial() {
    let fixture = Fixture::with(tokens());
    let (reservation, response) = reserved(&fixture);
    assert_eq!(rejected(&reservation, 500).retry_after(), RetryAfter::Never);
    assert_eq!(used(&fixture), 0);
    assert!(block_on(reservation.reserve(90)).is_ok(), "a smaller model");
    assert_eq!((used(&fixture), reservation.estimate()), (90, 90));
    assert_eq!(fixture.status(from(ALICE, "/")), 429, "40 are not left");
    block_on(response).expect("the service works");
    assert_eq!(used(&fixture), 90);
    // The request has ended, and its work continues.
    rejected(&reservation, 101);
    assert!(block_on(reservation.reserve(70)).is_ok());
    assert_eq!(used(&fixture), 70);
}

/// A client opened slow requests, one in each window, and dropped them all in the last window.
/// Every estimate was refunded, although only the last still counted, and so took units of other
/// charges.
#[test]
fn expired_estimate_is_not_refunded() {
    for (text, seconds) in
        [("100 per 1m sliding-log", 60), ("100 per 1m", 60), ("100 per 1m fixed-window", 59)]
    {
        let fixture =
            Fixture::with(rule("tokens", &[text]).key(|_| Some("ann".into())).reserve(|_| 40));
        let (slow, response) = reserved(&fixture);
        // The tests start one second into a minute.
        fixture.clock.advance(Duration::from_secs(seconds));
        let (other, kept) = reserved(&fixture);
        block_on(kept).expect("the service works");
        assert!(block_on(other.reserve(80)).is_ok());
        assert_eq!(used(&fixture), 80, "{text}");
        drop((slow, response));
        assert_eq!(used(&fixture), 80, "{text}: what the other request charged");
        other.commit(30);
        assert_eq!(used(&fixture), 30, "{text}");
    }
}

/// A body that is sent slowly: the estimate has left the window, but its units were counted towards
/// the new estimate. So more than the limit was admitted in one window.
#[test]
fn expired_estimate_is_charged_again() {
    for (text, seconds) in [
        ("100 per 1m sliding-log", 60),
        ("100 per 1m", 60),
        ("100 per 1m fixed-window", 59),
        ("100 per 1m token-bucket", 60),
    ] {
        let limits = [text, "1000 per 1h sliding-window"];
        let world =
            Fixture::with(rule("tokens", &limits).key(|_| Some("ann".into())).reserve(|_| 40));
        let (reservation, _response) = reserved(&world);
        world.clock.advance(Duration::from_secs(seconds));
        assert_eq!(rejected(&reservation, 101).retry_after(), RetryAfter::Never, "{text}");
        assert!(block_on(reservation.reserve(100)).is_ok(), "{text}");
        assert_eq!((used(&world), reservation.estimate()), (100, 100), "{text}");
        assert_eq!(world.status(from(ALICE, "/")), 429, "{text}");
        // The units were charged again, so they are refunded.
        reservation.commit(30);
        assert_eq!(used(&world), 30, "{text}");
    }
}

/// The layer's `max_wait` had no effect on the estimates of handlers.
#[test]
fn a_handler_waits_for_its_estimate() {
    let world = Fixture::new(|builder| builder.rule(tokens()).max_wait(Duration::from_secs(90)));
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    let service = service_fn(move |request: Request<()>| {
        keep.lock().expect("no panic").extend(request.extensions().get::<Reservation>().cloned());
        ready(Ok::<_, Broken>(Response::new(())))
    });
    let mut service = world.layer.layer(service);
    for _ in 0..2 {
        block_on(service.call(from(ALICE, "/"))).expect("the service works");
    }
    let reservations = kept.lock().expect("no panic").clone();
    let Started::Pending(mut waiting) = Polled::start(reservations[0].reserve(90)) else {
        panic!("20 are left")
    };
    world.clock.advance(Duration::from_secs(59));
    assert!(waiting.poll().is_none());
    world.clock.advance(Duration::from_secs(1));
    assert!(waiting.poll().expect("the others have left the window").is_ok());
    // An estimate that a limit never admits is denied immediately.
    assert_eq!(rejected(&reservations[1], 101).retry_after(), RetryAfter::Never);
}

/// A denied estimate used up a limit that consumes, although the reservation was refunded.
#[test]
fn denied_estimate_charges_nothing() {
    let fixture = Fixture::with(tokens().overflow(Overflow::Consume));
    let (reservation, _kept) = reserved(&fixture);
    rejected(&reservation, 101);
    assert_eq!(used(&fixture), 0);
}

/// Units that an observed limit did not admit were settled as if they had been charged.
#[test]
fn units_not_charged_by_an_observed_limit_are_not_refunded() {
    let fixture = Fixture::with(tokens().mode(Mode::Observe));
    let (reservation, _kept) = reserved(&fixture);
    assert!(block_on(reservation.reserve(500)).is_ok(), "it is only observed");
    assert_eq!(used(&fixture), 40);
    reservation.commit(90);
    assert_eq!(used(&fixture), 90);
}

#[test]
fn a_handler_reserves_under_all_rules_or_none() {
    let money =
        rule("money", &["50 per 1m sliding-log"]).key(|_| Some("ann".into())).reserve(|_| 0);
    let fixture = Fixture::new(|builder| builder.rule(tokens()).rule(money).rule(logins()));
    let left = || (used(&fixture), 50 - fixture.left("money", "ann"));
    let (reservation, _kept) = reserved(&fixture);
    assert_eq!(left(), (40, 0));
    assert!(block_on(reservation.reserve(45)).is_ok());
    assert_eq!(left(), (45, 45));
    let rejection = rejected(&reservation, 60);
    assert_eq!(rejection.policy(), Some("money"));
    assert_eq!(left(), (0, 0));
    assert_eq!(fixture.left("login", "ann"), 1, "a rule that does not reserve has no part in it");
}

/// Each charge is settled by its own rule and request.
#[test]
fn other_rules_are_not_settled() {
    let per_address = rule("address", &["9 per 1m sliding-log"]).settle_when(|_| false);
    let fixture = Fixture::new(|builder| builder.rule(tokens()).rule(per_address));
    assert_eq!(fixture.status(from(ALICE, "/")), 200);
    assert_eq!(fixture.status(from(BOB, "/status/500")), 500);
    assert_eq!(used(&fixture), 40);
    assert_eq!(
        (fixture.left("address", "192.0.2.1"), fixture.left("address", "192.0.2.2")),
        (9, 9)
    );
}
