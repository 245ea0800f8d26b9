//! The gate over a shared store that fails on demand. `combined.rs` tests several requests at once,
//! `permits.rs` and `waiting.rs` permits and waiting, and `local_mirror.rs` the memory that a node
//! keeps for an outage.

mod combined;
mod local_mirror;
mod permits;
mod waiting;

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use tidegate::unstable::attributes::Attributes;
use tidegate::unstable::config::Config;
use tidegate::unstable::gate::{DenialReason, Gate, GateError, GateRequest, GateVerdict, Subject};
use tidegate::unstable::policy::Key;
use tidegate::unstable::stats::{Decided, Stats};
use tidegate::{CheckError, Cost, Failure, Limiter, ManualClock, RetryAfter, Timestamp};

use crate::flaky_store::{Behavior, FlakyStore};
use crate::futures::{Polled, Started, block_on};

const POLICIES: &str = r#"
policies:
  - name: here
    match: { path: /mixed }
    key: "{client_ip}"
    limits: ["9 per 1h sliding-log"]
  - name: open
    match: { path: /mixed }
    key: "{client_ip}"
    limits: ["2 per 1h sliding-log"]
    on_store_failure: allow
  - name: closed
    match: { path: /mixed, method: POST }
    key: "{client_ip}"
    limits: ["2 per 1h sliding-log"]
    on_store_failure: deny
  - name: watched
    match: { path: /mixed }
    key: "{client_ip}"
    limits: ["2 per 1h sliding-log"]
    on_store_failure: deny
    mode: observe
  - name: quota-small
    key: "{client_ip}"
    limits: ["1 per 1h sliding-log"]
    quota: true
    mode: off
  - name: quota-large
    key: "{client_ip}"
    limits: ["2 per 1h sliding-log"]
    quota: true
    mode: off
  - name: quota-several
    key: "{client_ip}"
    limits: ["3 per 1m sliding-log", "9 per 1h sliding-log"]
    quota: true
    mode: off
  - name: bucket
    key: "{client_ip}"
    limits: ["12 per 1h token-bucket burst 6"]
    mode: off
  - name: small
    key: "{client_ip}"
    limits: ["2 per 1h sliding-log", "0 per 1m"]
    mode: off
  - name: jobs
    key: "{client_ip}"
    limits: ["6 concurrent lease 30s"]
    mode: off
  - name: open-jobs
    key: "{client_ip}"
    limits: ["6 concurrent lease 30s"]
    on_store_failure: allow
    mode: off
  - name: closed-jobs
    key: "{client_ip}"
    limits: ["6 concurrent lease 30s"]
    on_store_failure: deny
    mode: off
  - name: slow
    key: "{client_ip}"
    limits: ["1 per 10s sliding-log"]
    mode: off
"#;

/// The number of nodes that divide limits while the store fails.
const NODES: u32 = 3;

/// Returns whether the request was denied because the store failed.
fn has_failed(verdict: &GateVerdict<'_>) -> bool {
    verdict.denial_reason() == Some(DenialReason::StoreFailed)
}

/// Two nodes and their store.
struct Fixture {
    nodes: [Gate; 2],
    store: Arc<FlakyStore>,
    clock: ManualClock,
}

/// The parts of a verdict: whether it was allowed, how it was decided, the reported policy, and the
/// units left.
type Read = (bool, Decided, Option<String>, Option<u64>);

impl Fixture {
    fn new() -> Self {
        Fixture::with_store(FlakyStore::immediate)
    }

    /// Creates nodes over a delayed store: a request is pending before the store has decided it,
    /// and again before the decision arrives.
    fn with_delayed_store() -> Self {
        Fixture::with_store(FlakyStore::delayed)
    }

    fn with_store(store: impl Fn(&ManualClock) -> FlakyStore) -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
        let store = Arc::new(store(&clock));
        // A policy that is off does not apply to the requests of other tests, but can be named.
        let text = POLICIES.replace("    mode: off\n", "    match: { path: /named }\n");
        let node = || {
            let limiter =
                Limiter::builder().max_keys(10_000).clock(clock.clock()).build().expect("memory");
            let stats = Arc::new(Stats::new(clock.clock()));
            let policies = Config::parse(&text, "test.yaml").expect("a config").policies;
            Gate::new(limiter, policies, stats)
                .with_shared_store(Arc::<FlakyStore>::clone(&store), NODES)
        };
        Fixture { nodes: [node(), node()], store, clock }
    }

    fn set_behavior(&self, behavior: Behavior) {
        self.store.set_behavior(behavior);
    }

    /// Returns the number of calls to the store before the first one completes.
    fn concurrent_store_calls<T>(&self, future: impl Future<Output = T>) -> usize {
        self.set_behavior(Behavior::Silent);
        let before = self.store.unanswered();
        assert!(matches!(Polled::start(future), Started::Pending(_)));
        self.set_behavior(Behavior::Healthy);
        self.store.unanswered() - before
    }

    fn check<T>(
        &self,
        node: usize,
        request: &GateRequest<'_>,
        read: impl Fn(&GateVerdict<'_>) -> T,
    ) -> Result<T, GateError> {
        let gate = &self.nodes[node];
        let active = Arc::clone(&gate.active_policies());
        block_on(gate.check(&active, slice::from_ref(request))).map(|verdict| read(&verdict))
    }

    fn read(&self, node: usize, request: &GateRequest<'_>) -> Read {
        self.check(node, request, read).expect("a verdict")
    }

    /// Returns the counts of a policy: allowed and denied, by how they were decided.
    fn counted(&self, node: usize, policy: &str) -> [[u64; 4]; 2] {
        let all = self.nodes[node].stats().series();
        let series = all.iter().find(|series| &*series.policy == policy).expect("a series");
        [series.allowed, series.denied]
    }
}

fn read(verdict: &GateVerdict<'_>) -> Read {
    let reported = verdict.reported_limit();
    let policy = reported.and_then(|result| result.policy).map(str::to_owned);
    (verdict.allowed, verdict.decided, policy, reported.and_then(|result| result.remaining()))
}

fn outcome(allowed: bool, decided: Decided, policy: &str, remaining: Option<u64>) -> Read {
    (allowed, decided, Some(policy.to_owned()), remaining)
}

fn under<'a>(policy: &'a str, key: &'a str) -> GateRequest<'a> {
    GateRequest::new(Subject::Key { policy, key: key.as_bytes(), attributes: None })
}

fn with_cost(request: GateRequest<'_>, cost: Cost) -> GateRequest<'_> {
    GateRequest { cost: Some(cost), ..request }
}

#[test]
fn nodes_share_a_limit() {
    let fixture = Fixture::new();
    for (node, left) in [(0, 1), (1, 0)] {
        let expected = outcome(true, Decided::Exact, "open", Some(left));
        assert_eq!(fixture.read(node, &under("open", "alice")), expected);
    }
    for node in [0, 1] {
        let expected = outcome(false, Decided::Exact, "open", Some(0));
        assert_eq!(fixture.read(node, &under("open", "alice")), expected);
    }
    assert_eq!(fixture.counted(0, "open"), [[1, 0, 0, 0], [1, 0, 0, 0]]);
    // A request without a policy needs no decision.
    let attributes = Attributes { path: Some("/other"), ..Attributes::default() };
    let nothing = GateRequest::new(Subject::Request(&attributes));
    assert_eq!(fixture.read(0, &nothing), (true, Decided::Exact, None, None));
}

/// The units that remain of a lease are not those that remain of the limit.
#[test]
fn requests_from_leases_are_not_near_misses() {
    for (behavior, near_misses) in [(Behavior::Healthy, 1), (Behavior::Leased, 0)] {
        let fixture = Fixture::new();
        fixture.set_behavior(behavior);
        let expected = outcome(true, Decided::Exact, "slow", Some(0));
        assert_eq!(fixture.read(0, &under("slow", "alice")), expected);
        let all = fixture.nodes[0].stats().series();
        let series = all.iter().find(|series| &*series.policy == "slow").expect("a series");
        assert_eq!(series.near, near_misses, "{behavior:?}");
    }
}

#[test]
fn on_store_failure_decides_while_the_store_fails() {
    for behavior in [Behavior::Down, Behavior::TimedOut, Behavior::Lost] {
        let fixture = Fixture::new();
        fixture.set_behavior(behavior);
        // Each of three nodes has a share of three of nine.
        for left in [2, 1, 0] {
            let expected = outcome(true, Decided::Local, "here", Some(left));
            assert_eq!(fixture.read(0, &under("here", "alice")), expected);
        }
        let denied = outcome(false, Decided::Local, "here", Some(0));
        assert_eq!(fixture.read(0, &under("here", "alice")), denied);
        for _ in 0..5 {
            let expected = outcome(true, Decided::FailedOpen, "open", None);
            assert_eq!(fixture.read(0, &under("open", "alice")), expected);
            let expected = outcome(false, Decided::FailedClosed, "closed", None);
            assert_eq!(fixture.read(0, &under("closed", "alice")), expected);
        }
        assert_eq!(fixture.counted(0, "here"), [[0, 3, 0, 0], [0, 1, 0, 0]]);
        assert_eq!(fixture.counted(0, "open"), [[0, 0, 5, 0], [0; 4]]);
        assert_eq!(fixture.counted(0, "closed"), [[0; 4], [0, 0, 0, 5]]);
        // No request is sent to a store that is down.
        let sent = if matches!(behavior, Behavior::Down) { 0 } else { 14 };
        assert_eq!(fixture.nodes[0].stats().store_latency().count(), sent);
    }
}

#[test]
fn node_share_is_at_least_one() {
    let fixture = Fixture::new();
    fixture.set_behavior(Behavior::Down);
    let allowed = |policy, index: usize| {
        fixture.check(0, &with_cost(under(policy, "alice"), Cost::PEEK), |verdict| {
            (verdict.results[index].decision.limit, verdict.results[index].decision.remaining)
        })
    };
    assert_eq!(allowed("bucket", 0), Ok((4, 2)), "12 and a burst of 6 among 3 nodes");
    assert_eq!(allowed("small", 0), Ok((1, 1)), "2 among 3 nodes");
    assert_eq!(allowed("small", 1), Ok((0, 0)), "a limit of 0 stays 0");
    fixture.nodes[0].set_nodes(2);
    assert_eq!(allowed("bucket", 0), Ok((6, 3)));
}

/// Regression: a cost that the whole limit allows, but this node's share does not, was denied for
/// ever.
#[test]
fn a_cost_beyond_the_share_passes_when_the_store_is_back() {
    let fixture = Fixture::new();
    fixture.set_behavior(Behavior::Down);
    // Shares: three of nine, and a burst of two of six. Rows of (policy, cost, retry after, whether
    // the store's failure is the reason).
    let rows = [
        ("here", 3, RetryAfter::Now, false),
        ("here", 4, RetryAfter::Micros(1_000_000), true),
        ("here", 9, RetryAfter::Micros(1_000_000), true),
        ("here", 10, RetryAfter::Never, false),
        ("bucket", 3, RetryAfter::Micros(1_000_000), true),
        ("bucket", 7, RetryAfter::Never, false),
        ("small", 1, RetryAfter::Never, false),
    ];
    for (policy, cost, retry_after, is_failure) in rows {
        let request = with_cost(under(policy, "alice"), Cost::Ask(cost));
        let outcome_read = fixture.check(0, &request, |verdict| {
            assert_eq!(verdict.decided, Decided::Local);
            (verdict.retry_after(), has_failed(verdict))
        });
        assert_eq!(outcome_read, Ok((retry_after, is_failure)), "{cost} of {policy}");
    }
    // A cost that one limit can never admit is denied for ever, whatever this node's share of
    // another limit is.
    let limits = ["4 per 1s", "100 per 1m"].map(|text| text.parse().expect("a limit"));
    let both = GateRequest::new(Subject::Limits { key: b"alice", limits: &limits });
    let outcome_read = fixture.check(0, &with_cost(both, Cost::Ask(50)), |verdict| {
        (verdict.retry_after(), has_failed(verdict))
    });
    assert_eq!(outcome_read, Ok((RetryAfter::Never, false)));
    // A used-up local share is an ordinary denial.
    let used_up = fixture.check(0, &under("here", "alice"), has_failed);
    assert_eq!(used_up, Ok(false));
    let waits = |policy| {
        let gate = &fixture.nodes[0];
        let active = Arc::clone(&gate.active_policies());
        let max_wait = Some(Duration::from_secs(3600));
        let request = GateRequest { max_wait, ..with_cost(under(policy, "bob"), Cost::Ask(4)) };
        block_on(gate.check(&active, &[request]))
            .map(|verdict| (verdict.allowed, has_failed(&verdict)))
    };
    assert_eq!(waits("here"), Ok((false, true)), "requests do not wait while the store fails");
    fixture.set_behavior(Behavior::Healthy);
    assert!(fixture.read(0, &with_cost(under("here", "bob"), Cost::Ask(9))).0);
}

/// Two checks of one count are one cost.
#[test]
fn costs_of_one_count_are_summed_before_the_capacity_check() {
    let fixture = Fixture::new();
    fixture.set_behavior(Behavior::Down);
    let gate = &fixture.nodes[0];
    let active = Arc::clone(&gate.active_policies());
    for (cost, is_failure) in [(4, true), (5, false)] {
        let one = with_cost(under("here", "alice"), Cost::Ask(cost));
        let verdict = block_on(gate.check(&active, &[one, one])).expect("a verdict");
        assert_eq!(has_failed(&verdict), is_failure, "twice {cost} of nine");
    }
}

#[test]
fn any_denial_charges_nothing() {
    let fixture = Fixture::new();
    fixture.set_behavior(Behavior::Down);
    let attributes = |method| Attributes {
        method: Some(method),
        path: Some("/mixed"),
        client_ip: Some([192, 0, 2, 1].into()),
        ..Attributes::default()
    };
    let (get, post) = (attributes("GET"), attributes("POST"));
    let results = |request: &GateRequest<'_>| {
        fixture.check(0, request, |verdict| {
            let read = |result: &tidegate::unstable::gate::LimitResult<'_>| {
                (result.decision.allowed, result.decided, result.remaining())
            };
            verdict.results.iter().map(read).collect::<Vec<_>>()
        })
    };
    let post = GateRequest::new(Subject::Request(&post));
    let denied = outcome(false, Decided::FailedClosed, "closed", None);
    for _ in 0..5 {
        assert_eq!(fixture.read(0, &post), denied);
    }
    // The results of the local decisions are reported, but were not charged.
    let expected = vec![
        (true, Decided::Local, Some(3)),
        (true, Decided::FailedOpen, None),
        (false, Decided::FailedClosed, None),
        (false, Decided::FailedClosed, None),
    ];
    assert_eq!(results(&post), Ok(expected));
    let waits = fixture.check(0, &post, |verdict| verdict.retry_after());
    assert_eq!(waits, Ok(RetryAfter::Micros(1_000_000)), "the wait after a store failure");

    // Without the closed policy the others are enforced. The observed one never denies.
    let get = GateRequest::new(Subject::Request(&get));
    for _ in 0..3 {
        assert_eq!(fixture.read(0, &get), outcome(true, Decided::FailedOpen, "open", None));
    }
    let denied = outcome(false, Decided::FailedOpen, "here", Some(0));
    assert_eq!(fixture.read(0, &get), denied);
    assert_eq!(fixture.counted(0, "watched"), [[0; 4], [0, 0, 0, 11]]);
}

#[test]
fn forced_charges_and_refunds_follow_the_same_rules() {
    let fixture = Fixture::new();
    fixture.set_behavior(Behavior::Down);
    let force = GateRequest { force: true, ..under("closed", "alice") };
    assert_eq!(fixture.read(0, &force), outcome(false, Decided::FailedClosed, "closed", None));
    let here = under("here", "alice");
    for (cost, left) in [(Cost::Force(2), 1), (Cost::Refund(1), 2), (Cost::PEEK, 2)] {
        let expected = outcome(true, Decided::Local, "here", Some(left));
        assert_eq!(fixture.read(0, &with_cost(here, cost)), expected, "{cost:?}");
    }
}

#[test]
fn store_admissions_are_mirrored_locally() {
    let fixture = Fixture::new();
    let here = under("here", "alice");
    let exact = |node, cost| {
        let (allowed, decided, ..) = fixture.read(node, &with_cost(here, cost));
        assert_eq!((allowed, decided), (true, Decided::Exact));
    };
    exact(0, Cost::Ask(2));
    exact(0, Cost::Force(1));
    exact(0, Cost::Refund(1));
    exact(0, Cost::PEEK);
    exact(1, Cost::Ask(5));
    // The store denies a cost above the units left, which charges nothing locally either.
    let (allowed, ..) = fixture.read(0, &with_cost(here, Cost::Ask(9)));
    assert!(!allowed);
    fixture.set_behavior(Behavior::Down);
    // The first node has used two of its three units, and the other all of its own.
    assert_eq!(fixture.read(0, &here), outcome(true, Decided::Local, "here", Some(0)));
    assert_eq!(fixture.read(1, &here), outcome(false, Decided::Local, "here", Some(0)));
    fixture.set_behavior(Behavior::Healthy);
    // The store is not charged for requests that were decided without it.
    assert_eq!(fixture.read(0, &here), outcome(true, Decided::Exact, "here", Some(1)));
    // Policies that never decide locally keep nothing in local memory.
    let tracked = |node: usize| fixture.nodes[node].limiter().stats().tracked_keys;
    let before = tracked(0);
    fixture.read(0, &under("open", "bob"));
    assert_eq!(tracked(0), before);
    fixture.read(0, &under("here", "bob"));
    assert_eq!(tracked(0), before + 1);
}

#[test]
fn local_bucket_owes_nothing_for_other_nodes() {
    let fixture = Fixture::new();
    let bucket = under("bucket", "alice");
    // All traffic comes to one node: three times its share, for hours.
    for _ in 0..36 {
        assert_eq!(fixture.read(0, &bucket).1, Decided::Exact);
        fixture.clock.advance(Duration::from_secs(300));
    }
    assert!(fixture.read(0, &with_cost(bucket, Cost::Ask(2))).0);
    fixture.set_behavior(Behavior::Down);
    // The node holds two units and regains one in a quarter of an hour.
    let denied = outcome(false, Decided::Local, "bucket", Some(0));
    assert!(!fixture.read(0, &with_cost(bucket, Cost::Ask(2))).0);
    while fixture.read(0, &bucket).0 {}
    assert_eq!(fixture.read(0, &bucket), denied);
    fixture.clock.advance(Duration::from_secs(900));
    assert_eq!(fixture.read(0, &bucket), outcome(true, Decided::Local, "bucket", Some(0)));
}

#[test]
fn invalid_request_is_not_a_store_failure() {
    let fixture = Fixture::new();
    let named =
        |cost| GateRequest { id: Some(b"order-1"), ..with_cost(under("open", "bob"), cost) };
    let left = |request: &GateRequest<'_>| fixture.check(0, request, |a| a.results[0].remaining());
    assert_eq!(left(&named(Cost::Ask(1))), Ok(Some(1)));
    assert_eq!(left(&named(Cost::Ask(1))), Ok(Some(1)), "charged once");
    assert_eq!(left(&named(Cost::Ask(2))), Err(GateError::Check(CheckError::IdReused)));
    let needs = GateError::NeedsPermit { policy: Some("jobs".into()) };
    for behavior in [Behavior::Healthy, Behavior::Down] {
        fixture.set_behavior(behavior);
        assert_eq!(left(&under("jobs", "bob")), Err(needs.clone()));
        let unknown = GateError::UnknownPolicy { name: "nobody".into(), near: None };
        assert_eq!(left(&under("nobody", "bob")), Err(unknown));
    }
    // A store that must be awaited cannot be used synchronously.
    let gate = &fixture.nodes[0];
    let active = Arc::clone(&gate.active_policies());
    let request = under("open", "bob");
    let must_await = Err(GateError::MustAwait);
    assert_eq!(gate.poll_now(gate.check(&active, &[request])).map(drop), must_await);
    assert_eq!(gate.poll_now(gate.acquire(&active, &request, None)).map(drop), must_await);
    let (keys, bob) = (gate.keys(&active, "open").expect("a policy"), Key::literal(b"bob"));
    assert_eq!(gate.poll_now(keys.peek(&bob, 0)).map(drop), must_await);
    assert_eq!(gate.poll_now(keys.reset(&bob)).map(drop), must_await);
    fixture.set_behavior(Behavior::Healthy);
    assert!(fixture.read(0, &request).0, "nothing was charged before");
}

#[test]
fn ids_are_kept_locally_when_the_store_fails() {
    let fixture = Fixture::new();
    fixture.set_behavior(Behavior::Down);
    let request = GateRequest { id: Some(b"order-1"), ..under("here", "alice") };
    for _ in 0..5 {
        assert_eq!(fixture.read(0, &request), outcome(true, Decided::Local, "here", Some(2)));
    }
}

#[test]
fn peek_and_reset_use_the_store_only() {
    let fixture = Fixture::new();
    fixture.read(0, &under("here", "alice"));
    let [first, second] = &fixture.nodes;
    let active = Arc::clone(&second.active_policies());
    let (keys, alice) = (second.keys(&active, "here").expect("a policy"), Key::literal(b"alice"));
    let left = || block_on(keys.peek(&alice, 0)).map(|a| read(&a));
    assert_eq!(left(), Ok(outcome(true, Decided::Exact, "here", Some(8))));
    let reset = || block_on(keys.reset(&alice));
    fixture.set_behavior(Behavior::TimedOut);
    assert_eq!(left(), Err(GateError::Store(Failure::TimedOut)));
    assert_eq!(reset(), Err(GateError::Store(Failure::TimedOut)));
    fixture.set_behavior(Behavior::Healthy);
    assert_eq!((reset(), reset()), (Ok(true), Ok(false)));
    assert_eq!(left(), Ok(outcome(true, Decided::Exact, "here", Some(9))));
    let unknown = GateError::UnknownPolicy { name: "nobody".into(), near: None };
    assert_eq!(first.keys(&active, "nobody").map(drop), Err(unknown));
}

/// A reset that failed had already reset the counts of this node, which decides by them while the
/// store is down.
#[test]
fn failed_reset_keeps_local_counts() {
    let fixture = Fixture::new();
    fixture.set_behavior(Behavior::Down);
    fixture.read(0, &under("here", "alice"));
    let gate = &fixture.nodes[0];
    let active = Arc::clone(&gate.active_policies());
    let keys = gate.keys(&active, "here").expect("a policy");
    let reset = || block_on(keys.reset(&Key::literal(b"alice")));
    assert_eq!(reset(), Err(GateError::Store(Failure::Down)));
    let expected = outcome(true, Decided::Local, "here", Some(1));
    assert_eq!(fixture.read(0, &under("here", "alice")), expected);
    fixture.set_behavior(Behavior::Healthy);
    assert!(reset().is_ok());
    fixture.set_behavior(Behavior::Down);
    let expected = outcome(true, Decided::Local, "here", Some(2));
    assert_eq!(fixture.read(0, &under("here", "alice")), expected);
}

#[test]
fn all_limits_of_a_key_are_reset_at_once() {
    let fixture = Fixture::new();
    let gate = &fixture.nodes[0];
    let active = Arc::clone(&gate.active_policies());
    let keys = gate.keys(&active, "small").expect("a policy");
    assert_eq!(fixture.concurrent_store_calls(keys.reset(&Key::literal(b"alice"))), 2);
}
