//! `overflow` of policies and requests: which takes precedence, and what a gate consumes.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use tidegate::unstable::attributes::Attributes;
use tidegate::unstable::config::Config;
use tidegate::unstable::gate::{Gate, GateError, GateRequest, GateVerdict, Subject};
use tidegate::unstable::policy::Key;
use tidegate::unstable::stats::{Decided, Stats};
use tidegate::{Cost, Limiter, ManualClock, Overflow, Timestamp};

use crate::flaky_store::{Behavior, FlakyStore};
use crate::futures::block_on;

const POLICIES: &str = r#"
policies:
  - { name: unsaid, match: { path: /all }, key: all, limits: 10 per 1h sliding-log }
  - { name: refusing, match: { path: /all }, key: all, limits: 10 per 1h, overflow: refuse }
  - name: consuming
    match: { path: /all }
    key: all
    limits: [10 per 1h, 20 per 1d token-bucket]
    overflow: consume
    overrides: [{ when: { method: PUT }, overflow: refuse }]
  - name: watched
    match: { path: /all }
    key: all
    limits: 10 per 1h
    mode: observe
    overflow: consume
  - { name: small, match: { path: /quotas }, key: all, limits: 5 per 1h, quota: true }
  - { name: large, match: { path: /quotas }, key: all, limits: 9 per 1h, quota: true }
"#;

/// The number of nodes: limits are divided by two while the store fails.
const NODES: u32 = 2;

struct Fixture {
    gate: Gate,
    store: Arc<FlakyStore>,
}

impl Fixture {
    fn new(is_shared: bool) -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
        let limiter =
            Limiter::builder().max_keys(10_000).clock(clock.clock()).build().expect("memory");
        let stats = Arc::new(Stats::new(clock.clock()));
        let policies = Config::parse(POLICIES, "test.yaml").expect("a config").policies;
        let gate = Gate::new(limiter, policies, stats);
        let store = Arc::new(FlakyStore::immediate(&clock));
        let shared = Arc::<FlakyStore>::clone(&store);
        Fixture {
            gate: if is_shared { gate.with_shared_store(shared, NODES) } else { gate },
            store,
        }
    }

    fn check(&self, request: &GateRequest<'_>) -> (bool, Decided) {
        let active = Arc::clone(&self.gate.active_policies());
        let verdict =
            block_on(self.gate.check(&active, slice::from_ref(request))).expect("a verdict");
        (verdict.allowed, verdict.decided)
    }

    /// Returns the units left of the limits of a policy.
    fn left(&self, policy: &str) -> Vec<u64> {
        let active = Arc::clone(&self.gate.active_policies());
        let keys = self.gate.keys(&active, policy).expect("a policy");
        let verdict = block_on(keys.peek(&Key::literal(b"all"), 0)).expect("a verdict");
        verdict.results.iter().map(|result| result.decision.remaining).collect()
    }
}

fn under(policy: &str, cost: u64, overflow: Overflow) -> GateRequest<'_> {
    let subject = Subject::Key { policy, key: b"all", attributes: None };
    GateRequest { cost: Some(Cost::Ask(cost)), overflow, ..GateRequest::new(subject) }
}

fn request_with_cost<'a>(attributes: &'a Attributes<'a>, cost: u64) -> GateRequest<'a> {
    let subject = Subject::Request(attributes);
    GateRequest { cost: Some(Cost::Ask(cost)), ..GateRequest::new(subject) }
}

fn path(path: &'static str) -> Attributes<'static> {
    Attributes { path: Some(path), method: Some("GET"), ..Attributes::default() }
}

#[test]
fn policy_overflow_takes_precedence_over_the_request() {
    for is_shared in [false, true] {
        #[rustfmt::skip]
        let rows = [
            ("unsaid", Overflow::Refuse, vec![4]),
            ("unsaid", Overflow::Consume, vec![0]),
            ("refusing", Overflow::Consume, vec![4]),
            ("consuming", Overflow::Refuse, vec![0, 7]),
            ("watched", Overflow::Consume, vec![4]),
        ];
        for (policy, overflow, left) in rows {
            let fixture = Fixture::new(is_shared);
            fixture.check(&under(policy, 6, overflow));
            fixture.check(&under(policy, 7, overflow));
            assert_eq!(fixture.left(policy), left, "{policy} {overflow:?} shared: {is_shared}");
        }
    }
}

#[test]
fn override_sets_the_overflow() {
    let fixture = Fixture::new(false);
    let put = Attributes { method: Some("PUT"), ..path("/all") };
    for (attributes, left) in [(&put, vec![10, 20]), (&path("/all"), vec![0, 9])] {
        let subject = Subject::Policy { policy: "consuming", attributes };
        fixture.check(&GateRequest { cost: Some(Cost::Ask(11)), ..GateRequest::new(subject) });
        assert_eq!(fixture.left("consuming"), left);
    }
}

/// Each policy of a request applies its own `overflow`.
#[test]
fn each_policy_applies_its_own_overflow() {
    for is_shared in [false, true] {
        let fixture = Fixture::new(is_shared);
        let all = path("/all");
        assert!(fixture.check(&request_with_cost(&all, 6)).0);
        assert!(!fixture.check(&request_with_cost(&all, 1 + 4)).0);
        let left = ["unsaid", "refusing", "consuming", "watched"].map(|name| fixture.left(name));
        assert_eq!(left, [vec![4], vec![4], vec![0, 9], vec![4]], "shared: {is_shared}");
    }
}

/// Attempts with other quotas consume nothing; the last denial does.
#[test]
fn quotas_are_consumed_once_when_none_has_room() {
    for is_shared in [false, true] {
        let fixture = Fixture::new(is_shared);
        let quotas = path("/quotas");
        let check = |cost| {
            fixture.check(&GateRequest {
                overflow: Overflow::Consume,
                ..request_with_cost(&quotas, cost)
            })
        };
        assert!(check(4).0);
        assert!(check(3).0, "the small quota is skipped");
        assert_eq!((fixture.left("small"), fixture.left("large")), (vec![1], vec![2]));
        assert!(!check(3).0);
        assert_eq!((fixture.left("small"), fixture.left("large")), (vec![0], vec![0]));
    }
}

#[test]
fn check_each_consumes_as_single_checks() {
    let fixture = Fixture::new(false);
    let active = fixture.gate.active_policies();
    let limits = ["5 per 1h".parse().expect("a limit")];
    let subject = Subject::Limits { key: b"all", limits: &limits };
    let own = GateRequest { cost: Some(Cost::Ask(6)), ..GateRequest::new(subject) };
    let requests = [
        under("unsaid", 6, Overflow::Consume),
        under("unsaid", 6, Overflow::Consume),
        under("refusing", 11, Overflow::Consume),
        under("consuming", 11, Overflow::Refuse),
        GateRequest { overflow: Overflow::Consume, ..own },
        GateRequest { cost: Some(Cost::PEEK), ..own },
    ];
    let mut allowed = Vec::new();
    let mut push = |verdict: Result<&GateVerdict<'_>, GateError>| {
        allowed.push(verdict.expect("valid").allowed)
    };
    fixture.gate.check_each(&active, &requests, |_, verdict| push(verdict));
    assert_eq!(allowed, [true, false, false, false, false, false]);
    let left = ["unsaid", "refusing", "consuming"].map(|name| fixture.left(name));
    assert_eq!(left, [vec![0], vec![10], vec![0, 9]]);
}

#[test]
fn waiting_and_peeking_consume_nothing() {
    for is_shared in [false, true] {
        let fixture = Fixture::new(is_shared);
        fixture.check(&under("consuming", 6, Overflow::Refuse));
        let active = Arc::clone(&fixture.gate.active_policies());
        let max_wait = Some(Duration::from_secs(1));
        let request = GateRequest { max_wait, ..under("consuming", 7, Overflow::Consume) };
        let waited = block_on(fixture.gate.check(&active, &[request]));
        assert!(!waited.expect("a verdict").allowed);
        assert_eq!(fixture.left("consuming"), [4, 14], "shared: {is_shared}");
    }
}

/// Units that the store consumed are consumed locally as well, in case it fails. A denial without
/// the store consumes locally.
#[test]
fn local_memory_consumes_its_share() {
    let fixture = Fixture::new(true);
    assert_eq!(fixture.check(&under("consuming", 11, Overflow::Refuse)), (false, Decided::Exact));
    assert_eq!(fixture.check(&under("unsaid", 3, Overflow::Consume)), (true, Decided::Exact));
    fixture.store.set_behavior(Behavior::Down);
    let check = |policy, cost| fixture.check(&under(policy, cost, Overflow::Consume));
    assert_eq!(check("consuming", 1), (false, Decided::Local), "5 of 5 are used");
    assert_eq!(check("unsaid", 1), (true, Decided::Local), "4 of 5 are used");
    assert_eq!(check("unsaid", 2), (false, Decided::Local), "now all are used");
    assert_eq!(check("unsaid", 1), (false, Decided::Local));
    fixture.store.set_behavior(Behavior::Healthy);
    assert_eq!(fixture.left("unsaid"), [7], "the store is not charged");
}

#[test]
fn explain_shows_the_overflow() {
    let policies = Config::parse(POLICIES, "test.yaml").expect("a config").policies;
    let explained = policies.explain(&path("/all")).to_string();
    let lines: Vec<&str> = explained.lines().filter(|line| line.contains("overflow")).collect();
    assert_eq!(
        lines,
        [
            "  overflow refuse: a denial charges nothing",
            "  overflow consume: a denied cost above 1 uses up what is left",
            "  overflow consume: a denied cost above 1 uses up what is left",
        ]
    );
}
