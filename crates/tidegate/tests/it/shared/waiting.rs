//! Waiting in order, over a shared store.

use std::sync::Arc;
use std::time::Duration;

use tidegate::unstable::gate::{ActivePolicies, GateError, GateRequest, Subject};
use tidegate::unstable::stats::Decided;
use tidegate::{Cost, Limit};

use super::{Fixture, Read, outcome, read, under, with_cost};
use crate::flaky_store::Behavior;
use crate::futures::{Polled, Started};

const LONG: Duration = Duration::from_secs(3_600);

type Waiting<'a> = Started<'a, Result<Read, GateError>>;

/// Starts to wait for the single unit of `slow`.
fn begin<'a>(
    fixture: &'a Fixture,
    active: &'a ActivePolicies,
    request: &'a GateRequest<'a>,
    max_wait: Duration,
) -> Waiting<'a> {
    let gate = &fixture.nodes[0];
    let request = GateRequest { max_wait: Some(max_wait), ..*request };
    Polled::start(async move { gate.check(active, &[request]).await.map(|verdict| read(&verdict)) })
}

/// Returns the waiting future, and panics if the request was decided immediately.
fn pending(begun: Waiting<'_>) -> Polled<'_, Result<Read, GateError>> {
    match begun {
        Started::Pending(waiting) => waiting,
        Started::Ready(ready) => panic!("ready at once: {ready:?}"),
    }
}

#[test]
fn waiters_pass_in_order_or_are_denied_immediately() {
    let fixture = Fixture::new();
    let active = Arc::clone(&fixture.nodes[0].active_policies());
    let (request, seconds) = (under("slow", "alice"), Duration::from_secs);
    let denied = Ok(outcome(false, Decided::Exact, "slow", Some(0)));
    let passed = Some(Ok(outcome(true, Decided::Exact, "slow", Some(0))));
    assert!(
        matches!(begin(&fixture, &active, &request, LONG), Started::Ready(Ok((true, ..)))),
        "a free unit is taken immediately"
    );
    let too_long = begin(&fixture, &active, &request, seconds(9));
    assert!(matches!(too_long, Started::Ready(ready) if ready == denied));
    let mut first = pending(begin(&fixture, &active, &request, LONG));
    let mut second = pending(begin(&fixture, &active, &request, LONG));
    // The wait would be too long even without other waiters.
    let too_long = begin(&fixture, &active, &request, seconds(9));
    assert!(matches!(too_long, Started::Ready(ready) if ready == denied));
    let mut impatient = pending(begin(&fixture, &active, &request, seconds(15)));

    fixture.clock.advance(seconds(10));
    assert_eq!((second.poll(), impatient.poll()), (None, None), "waiters pass in order");
    assert_eq!(first.poll(), passed);
    assert_eq!(second.poll(), None, "the second is now first, and waits for its unit");
    fixture.clock.advance(seconds(5));
    assert_eq!(impatient.poll(), Some(denied), "max_wait has passed");
    fixture.clock.advance(seconds(5));
    assert_eq!(second.poll(), passed);
    // No waiter remains in the queue, which would delay later ones.
    let last = pending(begin(&fixture, &active, &request, LONG));
    drop(last);
    fixture.clock.advance(seconds(10));
    assert!(matches!(begin(&fixture, &active, &request, LONG), Started::Ready(Ok((true, ..)))));
}

#[test]
fn queued_request_is_denied_although_units_are_left() {
    let fixture = Fixture::new();
    let active = Arc::clone(&fixture.nodes[0].active_policies());
    let limits: [Limit; 1] = ["2 per 10s sliding-log".parse().expect("a limit")];
    let own = GateRequest::new(Subject::Limits { key: b"alice", limits: &limits });
    fixture.read(0, &own);
    let two = with_cost(own, Cost::Ask(2));
    let _first = pending(begin(&fixture, &active, &two, LONG));
    let mut behind = pending(begin(&fixture, &active, &own, Duration::from_secs(1)));
    fixture.clock.advance(Duration::from_secs(1));
    let (allowed, decided, _, left) = behind.poll().expect("a verdict").expect("valid");
    assert_eq!((allowed, decided, left), (false, Decided::Exact, Some(1)));
}

#[test]
fn waiting_continues_during_an_outage() {
    let fixture = Fixture::new();
    let active = Arc::clone(&fixture.nodes[0].active_policies());
    let request = under("slow", "alice");
    fixture.read(0, &request);
    fixture.set_behavior(Behavior::Down);
    // The single unit is used up in local memory, too.
    let mut waiting = pending(begin(&fixture, &active, &request, LONG));
    fixture.clock.advance(Duration::from_secs(10));
    assert_eq!(waiting.poll(), Some(Ok(outcome(true, Decided::Local, "slow", Some(0)))));
    let (closed, open) = (under("closed", "alice"), under("open", "alice"));
    for (request, decided) in [(&closed, Decided::FailedClosed), (&open, Decided::FailedOpen)] {
        let verdict = begin(&fixture, &active, request, LONG);
        assert!(matches!(verdict, Started::Ready(Ok((_, actual, ..))) if actual == decided));
    }
}
