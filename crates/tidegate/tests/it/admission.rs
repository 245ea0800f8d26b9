//! Admission of requests, immediately or after waiting, in memory and over a shared store.

use std::sync::Arc;
use std::time::Duration;

use tidegate::unstable::attributes::Attributes;
use tidegate::unstable::config::Config;
use tidegate::unstable::gate::{ActivePolicies, AnyPermit, Gate, GateRequest, Subject};
use tidegate::unstable::stats::{Outcome, Stats, StreamItem, TIMED_EVERY};
use tidegate::{ManualClock, MemoryOptions, MemoryStore};

use crate::common::limiter;
use crate::futures::{Polled, Started, block_on};

const POLICIES: &str = "
policies:
  - { name: often, key: all, limits: 1 per 10s sliding-log, quota: true }
  - { name: seldom, key: all, limits: 2 per 1h sliding-log, quota: true }
  - { name: places, match: { path: /held }, key: all, limits: 9 concurrent }
  - { name: strict, match: { path: /strict }, key: all, limits: 1 per 1m sliding-log }
";

/// Two quotas of which one has several limits.
const FREE_AND_PAID: &str = "
policies:
  - { name: free, key: all, limits: [2 per 1s, 9 per 1d, 9 concurrent lease 30s], quota: true }
  - { name: paid, key: all, limits: [99 per 1d, 99 concurrent lease 30s], quota: true }
";

/// Returns a gate that counts in memory, and one that counts in a shared store.
fn gates() -> [(Gate, ManualClock); 2] {
    gates_with(POLICIES)
}

fn gates_with(policies: &str) -> [(Gate, ManualClock); 2] {
    [false, true].map(|elsewhere| {
        let (limiter, clock) = limiter();
        let policies = Config::parse(policies, "test.yaml").expect("a config").policies;
        let gate = Gate::new(limiter, policies, Arc::new(Stats::new(clock.clock())));
        let store = MemoryStore::new(
            MemoryOptions { max_keys: 10_000, ..MemoryOptions::default() },
            clock.clock(),
        )
        .expect("memory");
        (if elsewhere { gate.with_shared_store(Arc::new(store), 1) } else { gate }, clock)
    })
}

fn request(path: &str) -> Attributes<'_> {
    Attributes { path: Some(path), ..Attributes::default() }
}

/// Admits a request, or checks it without serving it. Returns whether it is allowed.
async fn check(
    gate: &Gate,
    active: &ActivePolicies,
    attributes: &Attributes<'_>,
    max_wait: Option<Duration>,
    serves: bool,
) -> bool {
    let request = GateRequest { max_wait, ..GateRequest::new(Subject::Request(attributes)) };
    if serves {
        gate.admit(active, &[request]).await.expect("valid").verdict.allowed
    } else {
        gate.check(active, &[request]).await.expect("valid").allowed
    }
}

#[test]
fn one_free_quota_admits_a_waiting_request() {
    let attributes = request("/");
    for serves in [false, true] {
        for (gate, clock) in gates() {
            let active = Arc::clone(&gate.active_policies());
            let start = |seconds| {
                let max_wait = Some(Duration::from_secs(seconds));
                Polled::start(check(&gate, &active, &attributes, max_wait, serves))
            };
            // Both quotas have units left, then only one.
            for _ in 0..2 {
                assert!(matches!(start(5), Started::Ready(true)));
            }
            assert!(matches!(start(9), Started::Ready(false)), "no quota has units left for 10 s");
            let Started::Pending(mut first) = start(10) else {
                panic!("the request does not wait")
            };
            let Started::Pending(mut second) = start(15) else {
                panic!("the request does not wait")
            };
            clock.advance(Duration::from_micros(9_999_999));
            assert_eq!(first.poll(), None);
            clock.advance(Duration::from_micros(1));
            assert_eq!(
                (second.poll(), first.poll()),
                (None, Some(true)),
                "the first waiter passes first"
            );
            assert_eq!(
                second.poll(),
                Some(false),
                "the waiter is first, and 10 s exceed its max_wait"
            );
        }
    }
}

/// Regression: the skipped quota of an allowed request was published as a denial.
#[test]
fn skipped_quota_of_an_allowed_request_is_no_denial() {
    for (gate, _clock) in gates() {
        let (active, attributes) = (Arc::clone(&gate.active_policies()), request("/"));
        let mut reader = gate.stats().events().subscribe(None).expect("free capacity");
        let check = || block_on(check(&gate, &active, &attributes, None, false));
        assert!(check(), "both quotas have units left");
        assert!(check(), "the first quota is used up and skipped");
        assert_eq!(reader.try_next(), None);

        assert!(!check(), "both quotas are used up");
        for policy in ["often", "seldom"] {
            let Some(StreamItem::Denial(denial)) = reader.try_next() else { panic!("{policy}") };
            assert_eq!((&*denial.policy, denial.outcome), (policy, Outcome::Denied));
        }
        assert_eq!(reader.try_next(), None);
    }
}

/// Regression: a denial reported the quota with the longest wait, and the request passes as soon as
/// one quota has room.
#[test]
fn denial_reports_the_limit_that_the_request_waits_for() {
    for (gate, clock) in gates() {
        let active = Arc::clone(&gate.active_policies());
        let check = |path, max_wait| {
            let attributes = request(path);
            let request =
                GateRequest { max_wait, ..GateRequest::new(Subject::Request(&attributes)) };
            let verdict = block_on(gate.check(&active, &[request])).expect("valid");
            let policy = verdict.reported_limit().and_then(|result| result.policy);
            (policy.map(str::to_owned), verdict.retry_after().as_millis())
        };
        let seconds = Duration::from_secs;
        let waits_for = |policy: &str, wait: u64| (Some(policy.to_owned()), Some(wait * 1_000));
        for _ in 0..2 {
            check("/", None);
        }
        for max_wait in [None, Some(seconds(5))] {
            assert_eq!(
                check("/", max_wait),
                waits_for("often", 10),
                "shared: {}",
                gate.is_shared()
            );
        }
        clock.advance(seconds(10));
        check("/strict", None);
        clock.advance(seconds(10));
        // One quota has room, so the other one does not matter.
        assert_eq!(check("/strict", None), waits_for("strict", 50), "shared: {}", gate.is_shared());
    }
}

#[test]
fn one_free_quota_admits_a_request_with_a_permit() {
    let attributes = request("/held");
    for (gate, _) in gates() {
        let active = Arc::clone(&gate.active_policies());
        let allowed = [(); 3].map(|()| block_on(check(&gate, &active, &attributes, None, true)));
        assert_eq!(allowed, [true, true, false], "shared: {}", gate.is_shared());
    }
}

/// Regression: of a skipped quota, the limits that had room were charged, so its day was used up by
/// requests that another quota admitted.
#[test]
fn skipped_quota_charges_and_holds_nothing() {
    for (gate, clock) in gates_with(FREE_AND_PAID) {
        let (active, attributes) = (Arc::clone(&gate.active_policies()), request("/"));
        let admit = |remaining: [u64; 5]| {
            let request = GateRequest::new(Subject::Request(&attributes));
            let admitted = block_on(gate.admit(&active, &[request])).expect("valid");
            let results = admitted.verdict.results.iter();
            let left: Vec<u64> = results.map(|result| result.decision.remaining).collect();
            assert_eq!(left, remaining, "shared: {}", gate.is_shared());
            admitted.permit.expect("a permit")
        };
        let _held = [admit([1, 8, 8, 98, 98]), admit([0, 7, 7, 97, 97])];
        let skipped: Vec<AnyPermit> =
            (0..20).rev().map(|n| admit([0, 7, 7, 77 + n, 77 + n])).collect();
        // A permit is renewed under all limits that it is held under.
        let renewed = match skipped.last().expect("a permit") {
            AnyPermit::Local(permit) => permit.renew(),
            AnyPermit::Shared(permit) => {
                block_on(permit.renew(&gate, None)).expect("a store").is_some()
            }
        };
        assert!(renewed, "shared: {}", gate.is_shared());
        clock.advance(Duration::from_secs(2));
        admit([1, 6, 6, 76, 76]);
    }
}

/// Regression: every request that skipped a quota was timed under that quota, with the outcome
/// `would_deny`, which is that of observed policies.
#[test]
fn skipped_quota_is_not_an_observed_denial() {
    for (gate, _) in gates_with(FREE_AND_PAID) {
        let (active, attributes) = (Arc::clone(&gate.active_policies()), request("/"));
        // The first two requests are charged to both quotas, the others skip the first quota.
        let requests = 2 * TIMED_EVERY;
        for _ in 0..requests {
            let request = GateRequest::new(Subject::Request(&attributes));
            let admitted = block_on(gate.admit(&active, &[request])).expect("valid");
            assert!(admitted.verdict.allowed);
            if let Some(timer) = admitted.timer {
                timer.finish();
            }
            match admitted.permit.expect("a permit") {
                AnyPermit::Local(permit) => drop(permit),
                AnyPermit::Shared(permit) => assert_eq!(block_on(permit.release(&gate)), Ok(true)),
            }
        }
        for times in gate.stats().service_latency() {
            let (policy, timed) = (&times.policy, times.counts.count());
            assert_eq!(times.outcome, Outcome::Allowed, "{policy}");
            assert!(timed < u64::from(requests), "{policy}: {timed}");
        }
    }
}
