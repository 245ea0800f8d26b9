//! The allocations of an admitted request: its header values.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use allocation_counter::measure;
use tidegate::unstable::headers::Forms;
use tidegate::unstable::stats::TIMED_EVERY;
use tower::Service;

use super::{ALICE, Fixture, from, rule};

/// Counts the allocations of one call after a warm-up, without those of request and response.
fn allocations(fixture: &Fixture) -> u64 {
    let mut service = fixture.service.clone();
    let mut most = 0;
    let some = 2 * usize::from(TIMED_EVERY);
    for round in 0..2 * some {
        let request = from(ALICE, "/");
        let mut response = None;
        let info = measure(|| {
            let mut future = pin!(service.call(request));
            let Poll::Ready(answered) =
                future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            else {
                panic!("it is decided at once");
            };
            response = Some(answered);
        });
        let response = response.expect("an answer").expect("the service works");
        assert_eq!(response.status(), 200);
        // The first calls allocate the key, the counters of the thread and the timers of the
        // policy.
        if round >= some {
            most = most.max(info.count_total);
        }
    }
    most
}

#[test]
fn an_admitted_request_allocates_its_header_values() {
    let bare = |builder: tidegate::tower::LayerBuilder| builder.headers(Forms::NONE);
    let one = || rule("api", &["1000 per 1m"]);
    let by_key = || rule("key", &["1000 per 1m"]).key(|head| Some(head.uri().path().into()));
    // One request in `TIMED_EVERY` is timed, and its timer is boxed.
    assert_eq!(allocations(&Fixture::new(|builder| bare(builder.rule(one())))), 1);
    assert_eq!(allocations(&Fixture::new(|builder| bare(builder.rule(by_key())))), 1);
    let both = Fixture::new(|builder| bare(builder.rule(one()).rule(by_key())));
    assert_eq!(allocations(&both), 1);
    // `RateLimit`, and the two tables of a response that had no fields before. `RateLimit-Policy`
    // is shared by all responses.
    assert_eq!(allocations(&Fixture::new(|builder| builder.rule(one()))), 4);
    // If several policies apply, `RateLimit-Policy` is joined from their texts.
    let both = Fixture::new(|builder| builder.rule(one()).rule(by_key()));
    assert_eq!(allocations(&both), 5);
}
