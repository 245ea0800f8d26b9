//! Several gate requests at once, over a shared store that fails on demand.

use std::sync::Arc;

use tidegate::unstable::gate::{GateError, GateRequest, GateVerdict};
use tidegate::unstable::stats::Decided;
use tidegate::{CheckError, Cost};

use super::{Fixture, under, with_cost};
use crate::flaky_store::Behavior;
use crate::futures::block_on;

fn check<T>(
    fixture: &Fixture,
    node: usize,
    requests: &[GateRequest<'_>],
    read: impl Fn(&GateVerdict<'_>) -> T,
) -> Result<T, GateError> {
    let gate = &fixture.nodes[node];
    let active = Arc::clone(&gate.active_policies());
    block_on(gate.check(&active, requests)).map(|verdict| read(&verdict))
}

fn summary(verdict: &GateVerdict<'_>) -> (bool, Decided, Vec<(usize, Option<u64>)>) {
    let results =
        verdict.results.iter().map(|line| (line.request_index, line.remaining())).collect();
    (verdict.allowed, verdict.decided, results)
}

#[test]
fn requests_are_decided_together() {
    let fixture = Fixture::new();
    let both = [under("here", "alice"), under("open", "alice")];
    let left = |here, open| vec![(0, Some(here)), (1, Some(open))];
    for (node, allowed, results) in
        [(0, true, left(8, 1)), (1, true, left(7, 0)), (0, false, left(7, 0))]
    {
        assert_eq!(check(&fixture, node, &both, summary), Ok((allowed, Decided::Exact, results)));
    }
    assert_eq!(fixture.counted(0, "here"), [[2, 0, 0, 0], [0, 0, 0, 0]]);
    // Each policy applies its own `on_store_failure`; any denial wins.
    fixture.set_behavior(Behavior::Down);
    let during_outage = vec![(0, Some(1)), (1, None)];
    assert_eq!(check(&fixture, 0, &both, summary), Ok((true, Decided::FailedOpen, during_outage)));
    let closed = [under("here", "alice"), under("closed", "alice")];
    let denied = vec![(0, Some(1)), (1, None)];
    assert_eq!(check(&fixture, 0, &closed, summary), Ok((false, Decided::FailedClosed, denied)));
    // An invalid request is not a store failure. A refund is subtracted from the cost of the same
    // count.
    fixture.set_behavior(Behavior::Healthy);
    let [force, refund] =
        [Cost::Force(1), Cost::Refund(1)].map(|cost| with_cost(under("here", "alice"), cost));
    let netted = [under("here", "alice"), refund];
    assert_eq!(check(&fixture, 0, &netted, summary), Ok((true, Decided::Exact, left(7, 7))));
    let conflict = [under("here", "alice"), force];
    assert_eq!(check(&fixture, 0, &conflict, summary), Err(GateError::Check(CheckError::Conflict)));
    assert_eq!(check(&fixture, 0, &[], summary), Ok((true, Decided::Exact, vec![])));
    // A shared store cannot be used without awaiting.
    let gate = &fixture.nodes[0];
    let active = Arc::clone(&gate.active_policies());
    let verdict = gate.poll_now(gate.check(&active, &both));
    assert_eq!(verdict.err(), Some(GateError::MustAwait));
}

/// A used-up quota is skipped, on the other node as well, by the count of the store and not by
/// local memory.
#[test]
fn one_free_quota_is_enough() {
    let fixture = Fixture::new();
    let both = [under("quota-small", "alice"), under("quota-large", "alice")];
    let left = |small, large| vec![(0, Some(small)), (1, Some(large))];
    for (node, allowed, results) in
        [(0, true, left(0, 1)), (1, true, left(0, 0)), (0, false, left(0, 0))]
    {
        assert_eq!(check(&fixture, node, &both, summary), Ok((allowed, Decided::Exact, results)));
    }
}
