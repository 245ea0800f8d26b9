//! Permits are held until the response has ended, with or without an error.

use http_body_util::BodyExt;

use super::{ALICE, BOB, Broken, Fixture, from, rule};
use crate::futures::{Polled, Started, block_on};

fn fixture() -> Fixture {
    Fixture::with(rule("jobs", &["1 concurrent lease 30s", "100 per 1h"]))
}

#[test]
fn permit_is_held_until_the_body_has_ended() {
    let fixture = fixture();
    let mut response = block_on(fixture.call(from(ALICE, "/"))).expect("the service works");
    assert_eq!(fixture.status(from(ALICE, "/")), 429, "the first body is still on its way");
    assert_eq!(fixture.status(from(BOB, "/")), 200);
    let frame = block_on(response.body_mut().frame()).expect("a frame").expect("no error");
    assert_eq!(frame.into_data().expect("data"), "hello");
    assert_eq!(fixture.status(from(ALICE, "/")), 429);
    assert!(block_on(response.body_mut().frame()).is_none());
    // The body has ended, but was not dropped.
    assert_eq!(fixture.status(from(ALICE, "/")), 200);
    drop(response);
    assert_eq!(fixture.status(from(ALICE, "/")), 200);
}

#[test]
fn permit_is_released_when_the_request_is_dropped() {
    let fixture = fixture();
    let response = block_on(fixture.call(from(ALICE, "/"))).expect("the service works");
    drop(response);
    assert_eq!(fixture.status(from(ALICE, "/")), 200, "a body that was dropped");

    let Started::Pending(silent) = Polled::start(fixture.call(from(ALICE, "/silent"))) else {
        panic!("the service is silent");
    };
    assert_eq!(fixture.status(from(ALICE, "/")), 429);
    drop(silent);
    assert_eq!(fixture.status(from(ALICE, "/")), 200, "a future that was dropped");

    assert_eq!(block_on(fixture.call(from(ALICE, "/broken"))).err(), Some(Broken));
    assert_eq!(fixture.status(from(ALICE, "/")), 200, "a service that failed");
}

#[test]
fn a_denied_request_holds_and_charges_nothing() {
    let fixture = fixture();
    let response = block_on(fixture.call(from(ALICE, "/"))).expect("the service works");
    assert_eq!(fixture.statuses(|| from(ALICE, "/"), 3), [429; 3]);
    drop(response);
    let response = fixture.send(from(ALICE, "/"));
    assert_eq!(response.status, 200);
    let policy = "\"jobs-concurrent\";q=1;qu=\"concurrent-requests\", \"jobs-1h\";q=100;w=3600";
    assert_eq!(response.header("ratelimit-policy"), Some(policy));
    let limits = block_on(fixture.layer.peek("jobs", "192.0.2.1")).expect("a rule");
    assert_eq!(limits[1].1.remaining, 98, "two were admitted");
}
