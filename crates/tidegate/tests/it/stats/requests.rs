//! Every request is counted once, under one policy.

use std::collections::BTreeMap;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use tidegate::unstable::attributes::Attributes;
use tidegate::unstable::config::Config;
use tidegate::unstable::gate::{Gate, GateRequest, Subject};
use tidegate::unstable::policy::Policies;
use tidegate::unstable::stats::{CALLER, OTHER, RankBy, Stats};
use tidegate::{Cost, Limit};

use crate::common::{limit, limiter};

const POLICIES: &str = r#"
policies:
  - name: api
    match: { path: "/api/**" }
    key: all
    limits: ["2 per 1s sliding-log", "600 per 1m"]
  - name: address
    match: { path: "/api/strict" }
    key: all
    limits: ["1 per 1h sliding-log"]
  - name: watched
    match: { path: ["/watched", "/api/watched"] }
    key: all
    limits: ["1 per 1h sliding-log", "2 per 1d sliding-log"]
    mode: observe
  - name: partner
    match: { path: "/partner" }
    key: all
    limits: unlimited
  - name: retired
    match: { path: "/retired" }
    key: all
    limits: ["1 per 1h"]
    mode: off
  - name: jobs
    match: { path: "/jobs" }
    key: all
    limits: ["1 concurrent"]
"#;

struct Fixture {
    gate: Gate,
}

impl Fixture {
    fn new() -> Self {
        let (limiter, clock) = limiter();
        let stats = Arc::new(Stats::new(clock.clock()));
        Fixture { gate: Gate::new(limiter, policies(POLICIES), stats) }
    }

    /// Checks requests with these paths together.
    fn check(&self, paths: &[&str]) -> bool {
        let attributes: Vec<_> = paths.iter().map(|path| at(path)).collect();
        let requests: Vec<_> =
            attributes.iter().map(|one| GateRequest::new(Subject::Request(one))).collect();
        self.check_all(&requests)
    }

    fn check_all(&self, requests: &[GateRequest<'_>]) -> bool {
        let active = self.gate.active_policies();
        self.gate.poll_now(self.gate.check(&active, requests)).expect("a verdict").allowed
    }

    /// Returns the policies with requests: allowed, denied, and those that it would have denied.
    fn counted(&self) -> Vec<(String, [u64; 3])> {
        let all = self.gate.stats().requests().into_iter();
        let used = all.filter(|one| one.outcomes != [0; 3]);
        used.map(|one| (one.policy.to_string(), one.outcomes)).collect()
    }
}

fn policies(text: &str) -> Policies {
    Config::parse(text, "test.yaml").expect("a config").policies
}

fn at(path: &str) -> Attributes<'_> {
    Attributes { path: Some(path), ..Attributes::default() }
}

fn expected(rows: &[(&str, [u64; 3])]) -> Vec<(String, [u64; 3])> {
    rows.iter().map(|(policy, counts)| ((*policy).to_owned(), *counts)).collect()
}

/// Regression: a request that one limit denied counted as allowed under the others, so that the
/// share of denied requests seemed to be smaller than it was.
#[test]
fn request_denied_by_one_limit_is_not_allowed_by_another() {
    let fixture = Fixture::new();
    let allowed = (0..5).filter(|_| fixture.check(&["/api/x"])).count();
    assert_eq!(allowed, 2);
    assert_eq!(fixture.counted(), expected(&[("api", [2, 3, 0])]));
}

#[test]
fn request_counts_under_the_policy_that_its_verdict_reports() {
    // Rows of the paths of a request, and how often it is sent; then the counts.
    let rows: [(&[&str], u32, &[(&str, [u64; 3])]); 8] = [
        (&["/api/strict"], 2, &[("address", [1, 1, 0])]),
        (&["/elsewhere"], 2, &[("", [2, 0, 0])]),
        (&["/retired"], 1, &[("", [1, 0, 0])]),
        (&["/partner"], 2, &[("partner", [2, 0, 0])]),
        // Observed policies do not deny, and a request that two of their limits would have denied
        // is one request.
        (&["/watched"], 4, &[("watched", [1, 0, 3])]),
        // It is denied only once an enforced policy denies it.
        (&["/api/watched"], 4, &[("api", [1, 2, 0]), ("watched", [0, 0, 1])]),
        // Requests that are decided together are one request.
        (&["/api/x", "/elsewhere"], 3, &[("api", [2, 1, 0])]),
        (&["/partner", "/elsewhere"], 1, &[("partner", [1, 0, 0])]),
    ];
    for (paths, times, counts) in rows {
        let fixture = Fixture::new();
        for _ in 0..times {
            fixture.check(paths);
        }
        assert_eq!(fixture.counted(), expected(counts), "{paths:?}");
    }
}

/// Regression: a request that two policies denied was ranked under both of them.
#[test]
fn rankings_count_a_request_once_as_its_outcome_does() {
    let fixture = Fixture::new();
    // `api` admits two of these and `address` one. Both deny the others, `address` for longer.
    for _ in 0..6 {
        fixture.check(&["/api/strict"]);
    }
    // `watched` would deny all but the first; `api` denies all.
    for _ in 0..3 {
        fixture.check(&["/api/watched"]);
    }
    // `watched` would deny two of these, for longer under its second limit.
    for _ in 0..3 {
        fixture.check(&["/watched"]);
    }
    let stats = fixture.gate.stats();
    let counted = fixture.counted();
    for (index, by) in [(1, RankBy::Denied), (2, RankBy::WouldDeny)] {
        let top = stats.top(by, None, 9);
        for ranking in [top.keys, top.routes] {
            let mut ranked: BTreeMap<String, u64> = BTreeMap::new();
            for entry in ranking.entries {
                *ranked.entry(entry.policy.to_string()).or_default() += entry.count;
            }
            let outcomes = counted.iter().filter(|(_, outcomes)| outcomes[index] > 0);
            let outcomes = outcomes.map(|(policy, outcomes)| (policy.clone(), outcomes[index]));
            assert_eq!(ranked, outcomes.collect(), "{by}");
        }
    }
}

#[test]
fn peeks_refunds_and_forced_charges_are_not_requests() {
    let fixture = Fixture::new();
    for path in ["/api/x", "/partner", "/elsewhere"] {
        let attributes = at(path);
        let request = GateRequest::new(Subject::Request(&attributes));
        for cost in [Cost::PEEK, Cost::Refund(1), Cost::Force(1)] {
            fixture.check_all(&[GateRequest { cost: Some(cost), ..request }]);
        }
        fixture.check_all(&[GateRequest { force: true, ..request }]);
    }
    assert_eq!(fixture.counted(), []);
}

#[test]
fn batches_and_permits_count_every_request() {
    let fixture = Fixture::new();
    let key = |policy| GateRequest::new(Subject::Key { policy, key: b"k", attributes: None });
    let limits: [Limit; 1] = [limit("1 per 1h")];
    let own = GateRequest::new(Subject::Limits { key: b"k", limits: &limits });
    let elsewhere = at("/elsewhere");
    let unmatched = GateRequest::new(Subject::Request(&elsewhere));
    let requests =
        [key("api"), key("address"), key("api"), key("api"), key("address"), own, own, unmatched];
    let active = fixture.gate.active_policies();
    fixture.gate.check_each(&active, &requests, |_, verdict| {
        verdict.expect("a verdict");
    });
    let jobs = key("jobs");
    let permits: Vec<_> = (0..2)
        .map(|_| {
            fixture.gate.poll_now(fixture.gate.acquire(&active, &jobs, None)).expect("a verdict")
        })
        .collect();
    assert_eq!(permits.iter().filter(|grant| grant.permit.is_some()).count(), 1);
    let counts = [
        ("", [1, 0, 0]),
        (CALLER, [1, 1, 0]),
        ("address", [1, 1, 0]),
        ("api", [2, 1, 0]),
        ("jobs", [1, 1, 0]),
    ];
    assert_eq!(fixture.counted(), expected(&counts));
}

#[test]
fn waiting_request_counts_once() {
    let fixture = Fixture::new();
    let request = GateRequest::new(Subject::Key { policy: "address", key: b"k", attributes: None });
    let waiting = GateRequest { max_wait: Some(Duration::from_millis(1)), ..request };
    for _ in 0..2 {
        // The second request would have to wait for an hour, so it is denied immediately.
        fixture.check_all(slice::from_ref(&waiting));
    }
    assert_eq!(fixture.counted(), expected(&[("address", [1, 1, 0])]));
}

#[test]
fn counts_survive_reloads_and_never_decrease() {
    let fixture = Fixture::new();
    for _ in 0..3 {
        fixture.check(&["/api/x"]);
    }
    let total = || fixture.counted().iter().map(|(_, counts)| counts.iter().sum::<u64>()).sum();
    for round in 0..300_u32 {
        let one = |number: u32| {
            let limit = round * 20 + number + 1;
            format!("  - {{ name: p{round}-{number}, key: all, limits: {limit} per 1h }}\n")
        };
        let text: String = (0..20).map(one).collect();
        fixture.gate.reload(policies(&format!("policies:\n{text}")));
        let sum: u64 = total();
        assert_eq!(sum, 3, "round {round}");
    }
    assert_eq!(fixture.counted(), expected(&[(OTHER, [2, 1, 0])]));
}
