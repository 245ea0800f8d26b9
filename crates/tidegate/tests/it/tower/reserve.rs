//! Reserve before, commit after.

use http::Request;
use tidegate::policy::Mode;
use tidegate::tower::{Reservation, Rule};

use super::{ALICE, Broken, World, from, rule, with};
use crate::common::limit;
use crate::futures::{Polled, Started, block_on};

fn reserving(limits: &[&str]) -> Rule {
    rule("tokens", limits).key(|_| Some("ann".into())).reserve(|_| 40)
}

fn world() -> World {
    World::with(reserving(&["100 per 1m sliding-log", "1000 per 1h sliding-buckets"]))
}

fn used(world: &World) -> u64 {
    100 - world.left("tokens", "ann")
}

fn costing(actual: &str) -> Request<()> {
    with(from(ALICE, "/"), "x-actual", actual)
}

#[test]
fn what_it_came_to_is_charged() {
    let rows = [("10", 10), ("40", 40), ("0", 0), ("70", 70), ("250", 100)];
    for (actual, expected) in rows {
        let world = world();
        assert_eq!(world.status(costing(actual)), 200);
        assert_eq!(used(&world), expected, "{actual}");
    }
    let world = world();
    assert_eq!(world.status(from(ALICE, "/")), 200);
    assert_eq!(used(&world), 40, "nobody said: the estimate stands");
}

#[test]
fn the_estimate_is_charged_before() {
    let world = world();
    let silent = || Polled::start(world.call(from(ALICE, "/silent")));
    let (Started::Pending(first), Started::Pending(second)) = (silent(), silent()) else {
        panic!("the service is silent");
    };
    assert_eq!(used(&world), 80);
    assert_eq!(world.status(from(ALICE, "/")), 429, "forty more are not left");
    drop(first);
    assert_eq!(used(&world), 40, "a dropped future refunds");
    drop(second);
    assert_eq!(used(&world), 0);
}

#[test]
fn a_failure_refunds_what_was_not_committed() {
    let world = world();
    assert_eq!(block_on(world.call(from(ALICE, "/broken"))).err(), Some(Broken));
    assert_eq!(used(&world), 0);
    // What was committed is settled, whatever comes then.
    let broken = with(from(ALICE, "/broken"), "x-actual", "30");
    assert_eq!(block_on(world.call(broken)).err(), Some(Broken));
    assert_eq!(used(&world), 30);
}

/// Calls with a reservation in hand, as the handler has it.
fn reserved(world: &World) -> Reservation {
    let kept = std::sync::Arc::new(std::sync::Mutex::new(None));
    let keep = std::sync::Arc::clone(&kept);
    let service = tower::service_fn(move |request: Request<()>| {
        *keep.lock().expect("no panic") = request.extensions().get::<Reservation>().cloned();
        std::future::ready(Ok::<_, Broken>(http::Response::new(())))
    });
    let mut service = tower::Layer::layer(&world.layer, service);
    block_on(tower::Service::call(&mut service, from(ALICE, "/"))).expect("the service works");
    kept.lock().expect("no panic").take().expect("a reservation")
}

#[test]
fn only_the_first_commit_counts() {
    let world = world();
    let reservation = reserved(&world);
    assert_eq!(reservation.estimate(), 40);
    reservation.clone().commit(10);
    reservation.commit(90);
    drop(reservation);
    assert_eq!(used(&world), 10);
}

#[test]
fn rules_that_reserve_are_told_apart() {
    let world = World::new(|builder| {
        builder
            .rule(reserving(&["100 per 1m sliding-log"]))
            .rule(
                rule("money", &["9 per 1m sliding-log"]).key(|_| Some("ann".into())).reserve(|_| 5),
            )
            .rule(rule("calls", &["7 per 1m sliding-log"]).key(|_| Some("ann".into())))
    });
    let reservation = reserved(&world);
    assert!(reservation.commit_for("money", 2));
    assert!(!reservation.commit_for("calls", 2), "it reserves nothing");
    assert!(!reservation.commit_for("mon", 2));
    reservation.commit(60);
    let left = ["tokens", "money", "calls"].map(|rule| world.left(rule, "ann"));
    assert_eq!(left, [40, 7, 6]);
}

/// An observed limit that would have denied was not charged, so that nothing of it can
/// be given back: it would be others'.
#[test]
fn what_was_not_charged_is_not_refunded() {
    let limits = [limit("50 per 1m sliding-log"), limit("1000 per 1h sliding-log")];
    let rule = Rule::new("tokens", limits).key(|_| Some("ann".into())).reserve(|_| 40);
    let world = World::with(rule.mode(Mode::Observe));
    assert_eq!(world.status(from(ALICE, "/")), 200);
    assert_eq!(world.status(costing("0")), 200, "would have been denied by the first");
    let answer = block_on(world.layer.peek("tokens", "ann")).expect("a rule");
    let left: Vec<u64> = answer.lines.iter().map(|line| line.decision.remaining).collect();
    assert_eq!(left, [10, 960]);
}
