//! Reservations that a handler commits.

use std::pin::pin;

use http::Request;
use tidegate::tower::{Reservation, Rule};
use tidegate::unstable::policy::Mode;

use super::{ALICE, Broken, Fixture, from, rule, with};
use crate::common::limit;
use crate::futures::{Polled, Started, block_on};

fn reserving(limits: &[&str]) -> Rule {
    rule("tokens", limits).key(|_| Some("ann".into())).reserve(|_| 40)
}

fn fixture() -> Fixture {
    Fixture::with(reserving(&["100 per 1m sliding-log", "1000 per 1h sliding-window"]))
}

fn used(fixture: &Fixture) -> u64 {
    100 - fixture.left("tokens", "ann")
}

fn costing(actual: &str) -> Request<()> {
    with(from(ALICE, "/"), "x-actual", actual)
}

#[test]
fn committed_cost_is_charged() {
    let rows = [("10", 10), ("40", 40), ("0", 0), ("70", 70), ("250", 100)];
    for (actual, expected) in rows {
        let fixture = fixture();
        assert_eq!(fixture.status(costing(actual)), 200);
        assert_eq!(used(&fixture), expected, "{actual}");
    }
    let fixture = fixture();
    assert_eq!(fixture.status(from(ALICE, "/")), 200);
    assert_eq!(used(&fixture), 40, "nobody said: the estimate stands");
}

#[test]
fn estimate_is_charged_first() {
    let fixture = fixture();
    let silent = || Polled::start(fixture.call(from(ALICE, "/silent")));
    let (Started::Pending(first), Started::Pending(second)) = (silent(), silent()) else {
        panic!("the service is silent");
    };
    assert_eq!(used(&fixture), 80);
    assert_eq!(fixture.status(from(ALICE, "/")), 429, "forty more are not left");
    drop(first);
    assert_eq!(used(&fixture), 40, "a dropped future refunds");
    drop(second);
    assert_eq!(used(&fixture), 0);
}

#[test]
fn failure_refunds_uncommitted_units() {
    let fixture = fixture();
    assert_eq!(block_on(fixture.call(from(ALICE, "/broken"))).err(), Some(Broken));
    assert_eq!(used(&fixture), 0);
    // A commit is final, also if the service then fails.
    let broken = with(from(ALICE, "/broken"), "x-actual", "30");
    assert_eq!(block_on(fixture.call(broken)).err(), Some(Broken));
    assert_eq!(used(&fixture), 30);
    // It is refunded when the service fails, not only when the future is dropped.
    let mut failing = pin!(fixture.call(from(ALICE, "/broken")));
    assert_eq!(block_on(&mut failing).err(), Some(Broken));
    assert_eq!(used(&fixture), 30);
}

/// Completes a call and returns the reservation that its handler got.
fn reserved(fixture: &Fixture) -> Reservation {
    let (reservation, response) = called(fixture, "/");
    block_on(response).expect("the service works");
    reservation
}

/// Starts a call and returns the reservation that its handler got.
fn called(
    fixture: &Fixture,
    path: &str,
) -> (Reservation, impl Future<Output = Result<(), Broken>> + use<>) {
    let kept = std::sync::Arc::new(std::sync::Mutex::new(None));
    let keep = std::sync::Arc::clone(&kept);
    let service = tower::service_fn(move |request: Request<()>| {
        *keep.lock().expect("no panic") = request.extensions().get::<Reservation>().cloned();
        std::future::ready(Ok::<_, Broken>(http::Response::new(())))
    });
    let mut service = tower::Layer::layer(&fixture.layer, service);
    let response = tower::Service::call(&mut service, from(ALICE, path));
    let reservation = kept.lock().expect("no panic").take().expect("a reservation");
    (reservation, async { response.await.map(drop) })
}

/// The work of a handler can outlive its request. Its commit was ignored then.
#[test]
fn a_commit_after_the_future_was_dropped_counts() {
    for (actual, expected) in [(0, 0), (30, 30), (70, 70)] {
        let fixture = fixture();
        let (reservation, response) = called(&fixture, "/");
        assert_eq!(used(&fixture), 40);
        drop(response);
        assert_eq!(used(&fixture), 0);
        reservation.commit(actual);
        reservation.commit(99);
        assert_eq!(used(&fixture), expected);
    }
}

/// `tokens.out` is a rule here, although it could be the name of a plan of `tokens`.
#[test]
fn commit_for_matches_the_whole_rule_name() {
    let named =
        |name: &str| rule(name, &["100 per 1m"]).key(|_| Some("ann".into())).reserve(|_| 40);
    let plan = |rule: Rule| rule.plan("pro", [limit("90 per 1m")]).plan_of(|_| Some("pro".into()));
    let left = |fixture: &Fixture, rules: &[&str]| -> Vec<u64> {
        rules.iter().map(|rule| fixture.left(rule, "ann")).collect()
    };
    let fixture = Fixture::new(|builder| builder.rule(named("tokens")).rule(named("tokens.out")));
    assert!(reserved(&fixture).commit_for("tokens", 1));
    assert_eq!(left(&fixture, &["tokens", "tokens.out"]), [99, 60]);
    for (name, expected) in [("tokens", 80), ("tokens.pro", 80), ("pro", 50), ("tokens.", 50)] {
        let fixture = Fixture::with(plan(named("tokens")));
        assert_eq!(reserved(&fixture).commit_for(name, 10), expected == 80, "{name}");
        assert_eq!(left(&fixture, &["tokens.pro"]), [expected], "{name}");
    }
}

#[test]
fn only_the_first_commit_counts() {
    let fixture = fixture();
    let reservation = reserved(&fixture);
    assert_eq!(reservation.estimate(), 40);
    reservation.clone().commit(10);
    reservation.commit(90);
    drop(reservation);
    assert_eq!(used(&fixture), 10);
}

#[test]
fn reserving_rules_are_settled_separately() {
    let fixture = Fixture::new(|builder| {
        builder
            .rule(reserving(&["100 per 1m sliding-log"]))
            .rule(
                rule("money", &["9 per 1m sliding-log"]).key(|_| Some("ann".into())).reserve(|_| 5),
            )
            .rule(rule("calls", &["7 per 1m sliding-log"]).key(|_| Some("ann".into())))
    });
    let reservation = reserved(&fixture);
    assert!(reservation.commit_for("money", 2));
    assert!(!reservation.commit_for("calls", 2), "it reserves nothing");
    assert!(!reservation.commit_for("mon", 2));
    reservation.commit(60);
    let left = ["tokens", "money", "calls"].map(|rule| fixture.left(rule, "ann"));
    assert_eq!(left, [40, 7, 6]);
}

/// An observed limit that would have denied was not charged. A refund would take units of other
/// requests.
#[test]
fn uncharged_units_are_not_refunded() {
    let limits = [limit("50 per 1m sliding-log"), limit("1000 per 1h sliding-log")];
    let rule = Rule::new("tokens", limits).key(|_| Some("ann".into())).reserve(|_| 40);
    let fixture = Fixture::with(rule.mode(Mode::Observe));
    assert_eq!(fixture.status(from(ALICE, "/")), 200);
    assert_eq!(fixture.status(costing("0")), 200, "would have been denied by the first");
    let limits = block_on(fixture.layer.peek("tokens", "ann")).expect("a rule");
    let left: Vec<u64> = limits.iter().map(|(_, decision)| decision.remaining).collect();
    assert_eq!(left, [10, 960]);
}
