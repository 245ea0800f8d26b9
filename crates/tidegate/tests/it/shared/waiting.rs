//! Waiting in turn for a store that others use too.

use std::sync::Arc;
use std::time::Duration;

use tidegate::unstable::gate::{ActivePolicies, GateError, GateRequest, Subject};
use tidegate::unstable::stats::Decided;
use tidegate::{Cost, Limit};

use super::{Read, World, costing, read, said, under};
use crate::futures::{Polled, Started};
use crate::moody::Mood;

const LONG: Duration = Duration::from_secs(3_600);

type Waiting<'a> = Started<'a, Result<Read, GateError>>;

/// Begins to wait for the one place of `slow`.
fn begin<'a>(
    world: &'a World,
    rules: &'a ActivePolicies,
    question: &'a GateRequest<'a>,
    max_wait: Duration,
) -> Waiting<'a> {
    let gate = &world.nodes[0];
    let question = GateRequest { max_wait: Some(max_wait), ..*question };
    Polled::start(async move { gate.check(rules, &[question]).await.map(|answer| read(&answer)) })
}

/// Who has begun and must wait.
fn pending(begun: Waiting<'_>) -> Polled<'_, Result<Read, GateError>> {
    match begun {
        Started::Pending(waiting) => waiting,
        Started::Ready(ready) => panic!("ready at once: {ready:?}"),
    }
}

#[test]
fn waiters_pass_in_order_or_are_told_at_once() {
    let world = World::new();
    let rules = Arc::clone(&world.nodes[0].active_policies());
    let (question, seconds) = (under("slow", "alice"), Duration::from_secs);
    let denied = Ok(said(false, Decided::Exact, "slow", Some(0)));
    let passed = Some(Ok(said(true, Decided::Exact, "slow", Some(0))));
    assert!(
        matches!(begin(&world, &rules, &question, LONG), Started::Ready(Ok((true, ..)))),
        "a free place is taken at once"
    );
    let too_long = begin(&world, &rules, &question, seconds(9));
    assert!(matches!(too_long, Started::Ready(ready) if ready == denied));
    let mut first = pending(begin(&world, &rules, &question, LONG));
    let mut second = pending(begin(&world, &rules, &question, LONG));
    // Even alone it would wait for too long.
    let too_long = begin(&world, &rules, &question, seconds(9));
    assert!(matches!(too_long, Started::Ready(ready) if ready == denied));
    let mut impatient = pending(begin(&world, &rules, &question, seconds(15)));

    world.clock.advance(seconds(10));
    assert_eq!((second.poll(), impatient.poll()), (None, None), "not before the first");
    assert_eq!(first.poll(), passed);
    assert_eq!(second.poll(), None, "it asks, and waits for its own");
    world.clock.advance(seconds(5));
    assert_eq!(impatient.poll(), Some(denied), "its patience has ended");
    world.clock.advance(seconds(5));
    assert_eq!(second.poll(), passed);
    // Nobody is left behind whom others would wait for.
    let last = pending(begin(&world, &rules, &question, LONG));
    drop(last);
    world.clock.advance(seconds(10));
    assert!(matches!(begin(&world, &rules, &question, LONG), Started::Ready(Ok((true, ..)))));
}

#[test]
fn who_is_behind_is_denied_also_where_there_is_room() {
    let world = World::new();
    let rules = Arc::clone(&world.nodes[0].active_policies());
    let limits: [Limit; 1] = ["2 per 10s sliding-log".parse().expect("a limit")];
    let own = GateRequest::new(Subject::Limits { key: b"alice", limits: &limits });
    world.read(0, &own);
    let two = costing(own, Cost::Ask(2));
    let _first = pending(begin(&world, &rules, &two, LONG));
    let mut behind = pending(begin(&world, &rules, &own, Duration::from_secs(1)));
    world.clock.advance(Duration::from_secs(1));
    let (allowed, decided, _, left) = behind.poll().expect("an answer").expect("sound");
    assert_eq!((allowed, decided, left), (false, Decided::Exact, Some(1)));
}

#[test]
fn waiting_goes_on_without_the_store() {
    let world = World::new();
    let rules = Arc::clone(&world.nodes[0].active_policies());
    let question = under("slow", "alice");
    world.read(0, &question);
    world.set_mood(Mood::Down);
    // Its one place is taken here too.
    let mut waiting = pending(begin(&world, &rules, &question, LONG));
    world.clock.advance(Duration::from_secs(10));
    assert_eq!(waiting.poll(), Some(Ok(said(true, Decided::Local, "slow", Some(0)))));
    let (closed, open) = (under("closed", "alice"), under("open", "alice"));
    for (question, decided) in [(&closed, Decided::FailedClosed), (&open, Decided::FailedOpen)] {
        let answer = begin(&world, &rules, question, LONG);
        assert!(matches!(answer, Started::Ready(Ok((_, how, ..))) if how == decided));
    }
}
