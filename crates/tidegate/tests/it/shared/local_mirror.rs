//! The local memory that a node keeps for an outage of the store.

use std::sync::Arc;
use std::time::Duration;

use super::{Fixture, outcome, under, with_cost};
use crate::flaky_store::Behavior;
use crate::futures::{Polled, Started, block_on};
use tidegate::unstable::gate::{Gate, GateRequest, SharedPermit, Subject};
use tidegate::unstable::policy::Key;
use tidegate::unstable::stats::Decided;
use tidegate::{Algorithm, Cost, Limit, MAX_CHECKS, Overflow};

/// Returns the units that a node would admit alone: its share, minus the units it has counted.
fn units_left_locally(fixture: &Fixture, node: usize, policy: &str, key: &str) -> u64 {
    fixture.set_behavior(Behavior::Down);
    let request = with_cost(under(policy, key), Cost::PEEK);
    let (_, decided, _, remaining) = fixture.read(node, &request);
    assert_eq!(decided, Decided::Local);
    fixture.set_behavior(Behavior::Healthy);
    remaining.expect("a local count")
}

fn with_id<'a>(id: &'a [u8], request: GateRequest<'a>) -> GateRequest<'a> {
    GateRequest { id: Some(id), ..request }
}

#[test]
fn replays_are_charged_once() {
    let fixture = Fixture::new();
    let request = with_id(b"order-1", under("here", "alice"));
    for _ in 0..5 {
        assert_eq!(fixture.read(0, &request), outcome(true, Decided::Exact, "here", Some(8)));
    }
    assert_eq!(units_left_locally(&fixture, 0, "here", "alice"), 2, "one of three");
    let request = with_id(b"order-2", under("bucket", "alice"));
    for _ in 0..5 {
        assert!(fixture.read(0, &request).0);
    }
    assert_eq!(units_left_locally(&fixture, 0, "bucket", "alice"), 1, "one of two");
}

#[test]
fn id_admitted_before_an_outage_is_admitted_during_it() {
    let fixture = Fixture::new();
    for policy in ["here", "bucket"] {
        let request = with_id(b"order-1", under(policy, "alice"));
        assert!(fixture.read(0, &request).0);
        // The rest of this node's share of three, or of a burst of two, is used up by other
        // requests.
        for _ in 0..5 {
            fixture.read(0, &under(policy, "alice"));
        }
        fixture.set_behavior(Behavior::Down);
        assert!(
            !fixture.read(0, &under(policy, "alice")).0,
            "{policy}: this node's share is used up"
        );
        let (allowed, decided, ..) = fixture.read(0, &request);
        assert_eq!((allowed, decided), (true, Decided::Local), "{policy}");
        let other = with_id(b"order-1", with_cost(under(policy, "alice"), Cost::Ask(2)));
        assert!(
            fixture.check(0, &other, |_| ()).is_err(),
            "{policy}: another cost under the same id"
        );
        fixture.set_behavior(Behavior::Healthy);
    }
}

/// A replay returns the numbers of the first verdict, which do not show the current usage.
#[test]
fn replayed_id_does_not_adjust_local_usage() {
    let fixture = Fixture::new();
    let request = with_id(b"order-1", under("here", "alice"));
    fixture.read(0, &request);
    fixture.read(0, &under("here", "alice"));
    fixture.read(0, &request);
    assert_eq!(units_left_locally(&fixture, 0, "here", "alice"), 1);
    // On another node the request is charged there once, because that node has not seen the id.
    fixture.read(1, &request);
    fixture.read(1, &request);
    assert_eq!(units_left_locally(&fixture, 1, "here", "alice"), 2);
}

#[test]
fn reset_on_another_node_is_mirrored_by_the_next_verdict() {
    let fixture = Fixture::new();
    for policy in ["here", "bucket"] {
        for _ in 0..3 {
            assert!(fixture.read(0, &under(policy, "alice")).0);
        }
        assert_eq!(units_left_locally(&fixture, 0, policy, "alice"), 0);
        let other = &fixture.nodes[1];
        let active = Arc::clone(&other.active_policies());
        assert_eq!(
            block_on(other.keys(&active, policy).expect("a policy").reset(&Key::literal(b"alice"))),
            Ok(true)
        );
        assert!(fixture.read(0, &under(policy, "alice")).0);
        let share = if policy == "here" { 3 } else { 2 };
        assert_eq!(units_left_locally(&fixture, 0, policy, "alice"), share - 1, "{policy}");
    }
}

#[test]
fn refund_on_another_node_is_mirrored() {
    let fixture = Fixture::new();
    assert!(fixture.read(0, &with_cost(under("here", "alice"), Cost::Ask(3))).0);
    assert!(fixture.read(1, &with_cost(under("here", "alice"), Cost::Refund(2))).0);
    assert!(fixture.read(0, &under("here", "alice")).0);
    assert_eq!(units_left_locally(&fixture, 0, "here", "alice"), 1, "two of three are used");
}

/// Neither the store nor local memory charges a skipped quota, not even where it has room.
#[test]
fn skipped_quota_is_not_mirrored() {
    let fixture = Fixture::new();
    let gate = &fixture.nodes[0];
    let active = Arc::clone(&gate.active_policies());
    // Without usage of another node, a wrong local charge would be corrected by the store's count.
    assert!(fixture.read(1, &with_cost(under("quota-several", "alice"), Cost::Ask(2))).0);
    let quotas = [under("quota-several", "alice"), under("quota-large", "alice")];
    for _ in 0..2 {
        let verdict = block_on(gate.check(&active, &quotas)).expect("a verdict");
        assert!(verdict.allowed);
    }
    let peek = with_cost(under("quota-several", "alice"), Cost::PEEK);
    for (behavior, left) in [(Behavior::Healthy, 6), (Behavior::Down, 2)] {
        fixture.set_behavior(behavior);
        let remaining = fixture.check(0, &peek, |verdict| verdict.results[1].decision.remaining);
        assert_eq!(remaining, Ok(left), "{behavior:?}");
    }
}

#[test]
fn usage_of_other_nodes_is_not_mirrored() {
    let fixture = Fixture::new();
    assert!(fixture.read(0, &under("here", "alice")).0);
    assert!(fixture.read(1, &with_cost(under("here", "alice"), Cost::Ask(5))).0);
    assert!(fixture.read(0, &under("here", "alice")).0);
    assert_eq!(units_left_locally(&fixture, 0, "here", "alice"), 1);
    // A forced charge exceeds the limit by an unknown amount, so the local count is not corrected.
    assert!(fixture.read(0, &with_cost(under("here", "bob"), Cost::Ask(2))).0);
    assert!(fixture.read(0, &with_cost(under("here", "bob"), Cost::Force(20))).0);
    assert_eq!(units_left_locally(&fixture, 0, "here", "bob"), 0);
}

fn acquire(gate: &Gate) -> Option<SharedPermit> {
    let active = Arc::clone(&gate.active_policies());
    let held = block_on(gate.acquire(&active, &under("jobs", "alice"), None));
    held.expect("a verdict").permit?.shared()
}

/// Returns the number of permits that a node would still give alone: two of six among three nodes.
fn permits_left_locally(fixture: &Fixture, node: usize) -> usize {
    fixture.set_behavior(Behavior::Down);
    let gate = &fixture.nodes[node];
    let active = Arc::clone(&gate.active_policies());
    let take = || block_on(gate.acquire(&active, &under("jobs", "alice"), None));
    let held: Vec<_> = (0..6).map_while(|_| take().expect("a verdict").permit?.local()).collect();
    fixture.set_behavior(Behavior::Healthy);
    held.len()
}

#[test]
fn release_on_another_node_is_mirrored() {
    let fixture = Fixture::new();
    let [one, other] = &fixture.nodes;
    let held = [acquire(one).expect("a permit"), acquire(one).expect("a permit")];
    assert_eq!(permits_left_locally(&fixture, 0), 0);
    for permit in &held {
        assert_eq!(block_on(permit.release(other)), Ok(true));
    }
    let third = acquire(one).expect("a permit");
    assert_eq!(permits_left_locally(&fixture, 0), 1);
    // This node knows the permit that is held, so its release frees it here as well.
    assert_eq!(block_on(third.release(one)), Ok(true));
    assert_eq!(permits_left_locally(&fixture, 0), 2);
    fixture.clock.advance(Duration::from_secs(31));
    assert_eq!(permits_left_locally(&fixture, 0), 2);
}

/// Runs `meanwhile` after the future has sent its request and before the store decides it.
fn run_while_in_flight<T>(future: impl Future<Output = T>, meanwhile: impl FnOnce()) -> T {
    let Started::Pending(mut polled) = Polled::start(future) else {
        panic!("a delayed store does not decide immediately")
    };
    meanwhile();
    loop {
        if let Some(ready) = polled.poll() {
            return ready;
        }
    }
}

/// Regression: neither the store's decision nor this node counts the units any more, and the
/// difference to the earlier count of this node was refunded a second time.
#[test]
fn refunds_units_released_during_a_request_once() {
    let fixture = Fixture::with_delayed_store();
    let gate = &fixture.nodes[0];
    let active = Arc::clone(&gate.active_policies());
    let here = under("here", "alice");
    assert!(fixture.read(0, &with_cost(here, Cost::Ask(3))).0);
    let verdict = run_while_in_flight(gate.check(&active, &[here]), || {
        assert!(fixture.read(0, &with_cost(here, Cost::Refund(2))).0);
    });
    assert!(verdict.expect("a verdict").allowed);
    assert_eq!(units_left_locally(&fixture, 0, "here", "alice"), 1, "two of three units are used");

    let [first, _second] = [(); 2].map(|()| acquire(gate).expect("a permit"));
    let jobs = under("jobs", "alice");
    let held = run_while_in_flight(gate.acquire(&active, &jobs, None), || {
        assert_eq!(block_on(first.release(gate)), Ok(true));
    });
    assert!(held.expect("a verdict").verdict.allowed);
    assert_eq!(permits_left_locally(&fixture, 0), 0, "both permits are held");
}

/// Regression: of a request with the maximum number of checks, the last one was not consumed,
/// because the check that turns the local request into a denial replaced it.
#[test]
fn denial_of_the_maximum_number_of_checks_consumes_every_local_limit() {
    let fixture = Fixture::new();
    let windows = 1..=u64::try_from(MAX_CHECKS).expect("small");
    let limits: Vec<Limit> = windows
        .map(|hours| Limit::new(9, Duration::from_secs(3600 * hours), Algorithm::SlidingLog))
        .collect::<Result<_, _>>()
        .expect("limits");
    let subject = Subject::Limits { key: b"alice", limits: &limits };
    let report = GateRequest { overflow: Overflow::Consume, ..GateRequest::new(subject) };
    for id in [None, Some(&b"report-1"[..])] {
        let report = GateRequest { id, ..with_cost(report, Cost::Ask(10)) };
        let (allowed, decided, ..) = fixture.read(0, &report);
        assert_eq!((allowed, decided), (false, Decided::Exact));
        fixture.set_behavior(Behavior::Down);
        let peek = with_cost(GateRequest::new(subject), Cost::PEEK);
        let left = fixture.check(0, &peek, |verdict| {
            verdict.results.iter().map(|result| result.decision.remaining).collect::<Vec<u64>>()
        });
        assert_eq!(left, Ok(vec![0; MAX_CHECKS]), "{id:?}");
        fixture.set_behavior(Behavior::Healthy);
        fixture.clock.advance(Duration::from_secs(3600 * 257));
    }
}

/// Regression: a request for a permit consumes its other limits, but locally it was rejected for
/// lack of a permit, and nothing was consumed.
#[test]
fn denied_permit_consumes_local_rate_limits() {
    let fixture = Fixture::new();
    let gate = &fixture.nodes[0];
    let active = Arc::clone(&gate.active_policies());
    let limits = ["9 per 1h sliding-log", "12 concurrent"].map(|text| text.parse().expect(text));
    let request_with_limits = |limits| GateRequest::new(Subject::Limits { key: b"alice", limits });
    let report = GateRequest { overflow: Overflow::Consume, ..request_with_limits(&limits) };
    let report = with_cost(report, Cost::Ask(10));
    let held = block_on(gate.acquire(&active, &report, None)).expect("a verdict");
    assert_eq!((held.verdict.allowed, held.verdict.decided), (false, Decided::Exact));
    fixture.set_behavior(Behavior::Down);
    let (.., remaining) =
        fixture.read(0, &with_cost(request_with_limits(&limits[..1]), Cost::PEEK));
    assert_eq!(remaining, Some(0), "this node's three of nine");
    drop(held);
}
