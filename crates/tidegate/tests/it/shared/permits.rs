//! Permits that any node can renew and release.

use std::sync::Arc;
use std::time::Duration;

use tidegate::unstable::attributes::Attributes;
use tidegate::unstable::gate::{AnyPermit, GateError, GateRequest, SharedPermit, Subject};
use tidegate::unstable::stats::Decided;
use tidegate::{Failure, MAX_CHECKS};

use super::{Fixture, under};
use crate::flaky_store::Behavior;
use crate::futures::block_on;

/// Acquires a permit. Returns the permit and how it was decided.
fn take(fixture: &Fixture, node: usize, policy: &str) -> (Option<AnyPermit>, Decided) {
    let gate = &fixture.nodes[node];
    let active = Arc::clone(&gate.active_policies());
    let request = under(policy, "alice");
    let held = block_on(gate.acquire(&active, &request, None)).expect("a verdict");
    assert_eq!(held.permit.is_some(), held.verdict.allowed);
    (held.permit, held.verdict.decided)
}

fn shared(fixture: &Fixture, node: usize) -> SharedPermit {
    let (permit, decided) = take(fixture, node, "jobs");
    assert_eq!(decided, Decided::Exact);
    permit.expect("a permit").shared().expect("a shared permit")
}

#[test]
fn permit_is_released_and_renewed_on_any_node() {
    let fixture = Fixture::new();
    let permits: Vec<_> = (0..6).map(|number| shared(&fixture, number % 2)).collect();
    assert!(take(&fixture, 0, "jobs").0.is_none());
    let [first, second] = &fixture.nodes;
    // The permit in the form that another node receives.
    let sent = SharedPermit::from_bytes(&permits[0].to_bytes()).expect("a permit");
    assert_eq!(sent, permits[0]);
    assert_eq!(block_on(sent.release(second)), Ok(true));
    assert_eq!(block_on(sent.release(first)), Ok(false));
    assert_eq!(block_on(sent.renew(first, None)), Ok(None));
    let other = shared(&fixture, 1);

    let seconds = Duration::from_secs;
    assert_eq!((other.lease(), other.max_lease()), (seconds(30), seconds(30)));
    fixture.clock.advance(seconds(29));
    assert_eq!(block_on(other.renew(first, None)), Ok(Some(seconds(30))));
    assert_eq!(block_on(permits[1].renew(first, Some(seconds(5)))), Ok(Some(seconds(5))));
    let too_long = Err(GateError::LeaseTooLong { max_lease: seconds(30) });
    assert_eq!(block_on(other.renew(first, Some(seconds(31)))), too_long);
    fixture.clock.advance(seconds(1));
    // The leases of the four permits that were not renewed have ended.
    assert_eq!(block_on(permits[2].renew(first, None)), Ok(None));
    assert!(block_on(permits[1].release(first)) == Ok(true));
    fixture.set_behavior(Behavior::Lost);
    let failed = GateError::Store(Failure::Lost);
    assert_eq!(block_on(other.release(first)), Err(failed.clone()));
    assert_eq!(block_on(other.renew(first, None)), Err(failed));
}

#[test]
fn acquire_without_a_matching_policy_holds_nothing() {
    let fixture = Fixture::new();
    let attributes = Attributes { path: Some("/other"), ..Attributes::default() };
    let nothing = GateRequest::new(Subject::Request(&attributes));
    for behavior in [Behavior::Healthy, Behavior::Down] {
        fixture.set_behavior(behavior);
        let active = Arc::clone(&fixture.nodes[0].active_policies());
        let held = block_on(fixture.nodes[0].acquire(&active, &nothing, None)).expect("a verdict");
        assert_eq!((held.verdict.allowed, held.verdict.decided), (true, Decided::Exact));
        assert!(held.permit.and_then(AnyPermit::local).is_some());
    }
}

#[test]
fn rejects_malformed_permit_bytes() {
    let fixture = Fixture::new();
    let bytes = shared(&fixture, 0).to_bytes();
    for length in 0..bytes.len() {
        let cut = SharedPermit::from_bytes(&bytes[..length]);
        // Without its only key, it is a permit that holds nothing.
        assert!(cut.is_none_or(|cut| block_on(cut.release(&fixture.nodes[0])) == Ok(true)));
    }
    for bad in [&[0xff; 64][..], &[0; 4], &[1, 0, 0], &vec![1; 64 * 1024]] {
        assert_eq!(SharedPermit::from_bytes(bad), None);
    }
    // Each key is a call to the store. Regression: a permit with 39,000 empty keys kept the store
    // busy for seconds.
    let with_keys = |more: usize| [&bytes[..], &vec![0; more]].concat();
    assert!(SharedPermit::from_bytes(&with_keys(MAX_CHECKS - 1)).is_some());
    assert_eq!(SharedPermit::from_bytes(&with_keys(MAX_CHECKS)), None);
    assert!(take(&fixture, 0, "jobs").0.is_some());
}

#[test]
fn permits_during_an_outage_are_local_or_none() {
    let fixture = Fixture::new();
    // One of the two permits of this node is known to be held.
    let kept = shared(&fixture, 0);
    fixture.set_behavior(Behavior::Down);
    let (second, decided) = take(&fixture, 0, "jobs");
    assert_eq!(decided, Decided::Local);
    let second = second.expect("a permit").local().expect("a local permit");
    assert!(matches!(take(&fixture, 0, "jobs"), (None, Decided::Local)));
    assert!(second.renew());
    drop(second);
    assert!(take(&fixture, 0, "jobs").0.is_some());

    for _ in 0..9 {
        let (permit, decided) = take(&fixture, 0, "open-jobs");
        let permit = permit.expect("allowed").local().expect("a permit that holds nothing");
        assert!(permit.renew() && decided == Decided::FailedOpen);
        assert!(matches!(take(&fixture, 0, "closed-jobs"), (None, Decided::FailedClosed)));
    }
    fixture.set_behavior(Behavior::Healthy);
    assert_eq!(block_on(kept.release(&fixture.nodes[0])), Ok(true));
    fixture.set_behavior(Behavior::Down);
    let permits: Vec<_> = (0..3).map(|_| take(&fixture, 0, "jobs").0).collect();
    assert_eq!(permits.iter().flatten().count(), 2, "released permits are free locally as well");
}

#[test]
fn permit_calls_the_store_for_all_keys_concurrently() {
    // Regression: sequential calls took one deadline for each key.
    let fixture = Fixture::new();
    let held = [shared(&fixture, 0).to_bytes(), b"\x01x\x01y".to_vec()].concat();
    let held = SharedPermit::from_bytes(&held).expect("a permit");
    let gate = &fixture.nodes[0];
    assert_eq!(fixture.concurrent_store_calls(held.release(gate)), 3);
    assert_eq!(fixture.concurrent_store_calls(held.renew(gate, None)), 3);
    // A permit that is held under only some of its keys is still released under those.
    assert_eq!(block_on(held.release(gate)), Ok(false));
    let permits = (0..7).filter(|_| take(&fixture, 1, "jobs").0.is_some());
    assert_eq!(permits.count(), 6);
}
