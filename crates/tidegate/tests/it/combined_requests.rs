//! Several gate requests decided as one: all are charged or none.

use std::borrow::Cow;
use std::sync::Arc;

use tidegate::unstable::attributes::Attributes;
use tidegate::unstable::config::Config;
use tidegate::unstable::gate::{Gate, GateError, GateRequest, GateVerdict, Subject};
use tidegate::unstable::policy::Mode;
use tidegate::unstable::stats::Stats;
use tidegate::{CheckError, Cost, Limit, Limiter, MAX_CHECKS, ManualClock, Timestamp};

const POLICIES: &str = r#"
policies:
  - name: address
    match: { domain: edge, descriptors: [remote_address] }
    key: "{descriptor:remote_address}"
    limits: [2 per 1h sliding-log, 3 per 1d sliding-log]
  - name: user
    match: { domain: edge, descriptors: [user] }
    key: "{descriptor:user}"
    limits: 4 per 1h sliding-log
  - name: watched
    match: { domain: edge, descriptors: [watched] }
    key: all
    limits: 1 per 1h sliding-log
    mode: observe
  - name: staff
    match: { domain: edge, descriptors: [staff] }
    key: all
    limits: unlimited
    replaces: [user, address]
  - name: small
    match: { domain: edge, descriptors: [small] }
    key: all
    limits: 1 per 1h sliding-log
    quota: true
  - name: large
    match: { domain: edge, descriptors: [large] }
    key: all
    limits: [2 per 1h sliding-log, 9 per 1d sliding-log]
    quota: true
  - name: other
    match: { domain: edge, descriptors: [other] }
    key: all
    limits: 3 per 1h sliding-log
  - name: tenant
    match: { domain: edge, descriptors: { tenant: "*" } }
    key: all
    limits: [10 per 1h sliding-log, 20 per 1d sliding-log]
    overrides:
      - when: { "descriptor:tenant": large }
        limits: [100 per 1h sliding-log, 200 per 1w sliding-log]
      - when: { "descriptor:tenant": watched }
        mode: observe
  - name: bucket
    match: { domain: edge, descriptors: { bucket: "*" } }
    key: all
    limits: 10 per 1h token-bucket burst 4
    overrides:
      - when: { "descriptor:bucket": wide }
        limits: 10 per 1h token-bucket burst 8
  - name: watched-twice
    match: { domain: edge, descriptors: [watched-twice] }
    key: all
    limits: [1 per 1h sliding-log, 3 per 1d sliding-log]
    mode: observe
  - name: held
    match: { domain: edge, descriptors: [held] }
    key: all
    limits: 1 concurrent
  - name: held-watched
    match: { domain: edge, descriptors: [held-watched] }
    key: all
    limits: 1 concurrent
    mode: observe
"#;

fn gate() -> Gate {
    let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
    let limiter = Limiter::builder().max_keys(10_000).clock(clock.clock()).build().expect("memory");
    let policies = Config::parse(POLICIES, "test.yaml").expect("a config").policies;
    Gate::new(limiter, policies, Arc::new(Stats::new(clock.clock())))
}

type Entries = [(Cow<'static, str>, Cow<'static, str>); 1];

/// One descriptor and its cost.
struct DescriptorRequest {
    entries: Entries,
    cost: Option<Cost>,
}

fn descriptor_request(name: &'static str, value: &'static str) -> DescriptorRequest {
    DescriptorRequest { entries: [(name.into(), value.into())], cost: None }
}

impl DescriptorRequest {
    fn at(self, cost: Cost) -> Self {
        DescriptorRequest { cost: Some(cost), ..self }
    }
}

/// Returns whether the request is allowed, then for each limit its policy, the index of its gate
/// request, its decision and the units left.
fn check(gate: &Gate, all: &[DescriptorRequest]) -> Result<String, GateError> {
    let attributes: Vec<Attributes<'_>> = all
        .iter()
        .map(|one| Attributes {
            domain: Some("edge"),
            descriptors: &one.entries,
            ..Attributes::default()
        })
        .collect();
    let requests: Vec<GateRequest<'_>> = all
        .iter()
        .zip(&attributes)
        .map(|(one, attributes)| GateRequest {
            cost: one.cost,
            ..GateRequest::new(Subject::Request(attributes))
        })
        .collect();
    let active = gate.active_policies();
    gate.poll_now(gate.check(&active, &requests)).map(|verdict| show(&verdict))
}

fn show(verdict: &GateVerdict<'_>) -> String {
    let results = verdict.results.iter().map(|result| {
        let request = result.request_index;
        let sign = if result.decision.allowed { '+' } else { '-' };
        let policy = result.policy.unwrap_or("caller");
        format!("{policy}@{request}{sign}{}", result.decision.remaining)
    });
    let results =
        results.chain(verdict.unlimited.iter().map(|request| format!("unlimited@{request}")));
    let outcome = if verdict.allowed { "yes" } else { "no" };
    std::iter::once(outcome.to_owned()).chain(results).collect::<Vec<_>>().join(" ")
}

/// A request that is a quota has room if no enforced limit applies to it, and limits that come with
/// a request are a quota.
#[test]
fn requests_that_are_quotas_choose_one_with_room() {
    let gate = gate();
    let limits: [Limit; 1] = ["1 per 1h sliding-log".parse().expect("a limit")];
    let check = |names: &[&'static str]| {
        let all: Vec<Entries> = names.iter().map(|name| [((*name).into(), "v".into())]).collect();
        let attributes = all.iter().map(|descriptors| Attributes {
            domain: Some("edge"),
            descriptors,
            ..Attributes::default()
        });
        let attributes: Vec<Attributes<'_>> = attributes.collect();
        let requests = names.iter().zip(&attributes).map(|(name, attributes)| {
            let subject = match *name {
                "sent" => Subject::Limits { key: b"sent", limits: &limits },
                _ => Subject::Request(attributes),
            };
            GateRequest { is_quota: true, ..GateRequest::new(subject) }
        });
        let requests: Vec<GateRequest<'_>> = requests.collect();
        let active = gate.active_policies();
        let verdict = gate.poll_now(gate.check(&active, &requests)).expect("a verdict");
        show(&verdict)
    };
    assert_eq!(check(&["small"]), "yes small@0+0");
    assert_eq!(check(&["small"]), "no small@0-0");
    assert_eq!(check(&["small", "unmatched"]), "yes small@0-0");
    assert_eq!(check(&["unmatched", "small"]), "yes small@1-0");
    assert_eq!(check(&["small", "watched"]), "yes small@0-0 watched@1+0");
    assert_eq!(check(&["small", "watched"]), "yes small@0-0 watched@1-0");
    assert_eq!(check(&["small", "staff"]), "no small@0-0 unlimited@1");
    assert_eq!(check(&["small", "sent"]), "yes small@0-0 caller@1+0");
    assert_eq!(check(&["small", "sent"]), "no small@0-0 caller@1-0");
    assert_eq!(check(&["small", "sent", "unmatched"]), "yes small@0-0 caller@1-0");
    // A policy that is not a quota must admit the request.
    for _ in 0..3 {
        assert!(check(&["other"]).starts_with("yes"));
    }
    assert!(check(&["other", "unmatched"]).starts_with("no"));
}

fn address() -> DescriptorRequest {
    descriptor_request("remote_address", "192.0.2.1")
}

fn user() -> DescriptorRequest {
    descriptor_request("user", "alice")
}

#[test]
fn combined_requests_decide_as_tabulated() {
    let gate = gate();
    let steps: Vec<(Vec<DescriptorRequest>, &str)> = vec![
        (vec![], "yes"),
        (vec![descriptor_request("unknown", "x")], "yes"),
        (vec![address(), user()], "yes address@0+1 address@0+2 user@1+3"),
        // The results are in the order of the gate requests.
        (
            vec![user(), descriptor_request("unknown", "x"), address()],
            "yes user@0+2 address@2+0 address@2+1",
        ),
        // One denies, and none is charged.
        (vec![user(), address()], "no user@0+2 address@1-0 address@1+1"),
        (vec![user().at(Cost::Ask(2))], "yes user@0+0"),
        (
            vec![address().at(Cost::PEEK), user().at(Cost::Refund(1))],
            "no address@0-0 address@0+1 user@1+0",
        ),
        (vec![user().at(Cost::Refund(3))], "yes user@0+3"),
        // Equal requests are added up, and get equal results.
        (vec![user(), user()], "yes user@0+1 user@1+1"),
        (vec![user(), user()], "no user@0-1 user@1-1"),
        (vec![user()], "yes user@0+0"),
        // An observed limit does not deny, and is not charged by a denial.
        (vec![descriptor_request("watched", "x"), user()], "no watched@0+1 user@1-0"),
        (vec![descriptor_request("watched", "x")], "yes watched@0+0"),
        (vec![descriptor_request("watched", "x")], "yes watched@0-0"),
        // An unlimited policy replaces the others, in any order.
        (vec![user(), descriptor_request("staff", "x"), address()], "yes unlimited@1"),
        (
            vec![descriptor_request("held-watched", "x"), descriptor_request("watched", "x")],
            "yes watched@1-0",
        ),
    ];
    for (number, (all, expected)) in steps.iter().enumerate() {
        assert_eq!(check(&gate, all).as_deref(), Ok(*expected), "step {number}");
    }
}

/// One quota with units left is enough. Used-up quotas are skipped.
#[test]
fn quotas_decide_as_tabulated() {
    let (small, large, other) = (
        || descriptor_request("small", "x"),
        || descriptor_request("large", "x"),
        || descriptor_request("other", "x"),
    );
    let watched_twice = || descriptor_request("watched-twice", "x");
    let all = || vec![small(), large(), other()];
    let steps: Vec<(Vec<DescriptorRequest>, &str)> = vec![
        (all(), "yes small@0+0 large@1+1 large@1+8 other@2+2"),
        (all(), "yes small@0-0 large@1+0 large@1+7 other@2+1"),
        // All quotas are used up, and nothing is charged.
        (all(), "no small@0-0 large@1-0 large@1+7 other@2+1"),
        (vec![other().at(Cost::PEEK)], "yes other@0+1"),
        // A single quota is an ordinary limit.
        (vec![small()], "no small@0-0"),
        (vec![large().at(Cost::Refund(1))], "yes large@0+1 large@0+8"),
        // Policies that are not quotas are enforced as well.
        (
            vec![small(), large(), other().at(Cost::Ask(2))],
            "no small@0-0 large@1+1 large@1+8 other@2-1",
        ),
        (vec![large(), small()], "yes large@0+0 large@0+7 small@1-0"),
        // A quota that is skipped is not charged, not even where it has room.
        (vec![small().at(Cost::Refund(1))], "yes small@0+1"),
        (vec![large(), small()], "yes large@0-0 large@0+7 small@1+0"),
        (vec![large().at(Cost::Refund(2))], "yes large@0+2 large@0+9"),
        // Neither is a policy that is observed, and would have denied.
        (vec![watched_twice()], "yes watched-twice@0+0 watched-twice@0+2"),
        (vec![watched_twice()], "yes watched-twice@0-0 watched-twice@0+2"),
    ];
    let gate = gate();
    for (number, (all, expected)) in steps.iter().enumerate() {
        assert_eq!(check(&gate, all).as_deref(), Ok(*expected), "step {number}");
    }
}

/// Counters and logs name the limit that decided.
#[test]
fn conflicting_requests_are_counted_under_the_deciding_limit() {
    let gate = gate();
    let both = [descriptor_request("tenant", "large"), descriptor_request("tenant", "x")];
    check(&gate, &both).expect("valid");
    let series = gate.stats().series();
    let tenant = series.iter().filter(|one| &*one.policy == "tenant" && one.mode == Mode::Enforce);
    let mut counted: Vec<(&str, u64)> = tenant.map(|one| (&*one.limit, one.allowed[0])).collect();
    counted.sort_unstable();
    let expected = [
        ("10 per 1h sliding-log", 2),
        ("100 per 1h sliding-log", 0),
        ("20 per 1d sliding-log", 1),
        ("200 per 1w sliding-log", 1),
    ];
    assert_eq!(counted, expected);
}

/// A client that chooses descriptor values must not be able to make the request fail, because
/// failed requests may pass.
#[test]
fn conflicting_requests_use_the_strictest_limit() {
    let tenant = |value| descriptor_request("tenant", value);
    let bucket = |value| descriptor_request("bucket", value);
    let steps: Vec<(Vec<DescriptorRequest>, &str)> = vec![
        // The strictest limit applies to both, and both are counted. Other windows are separate.
        (vec![tenant("x"), tenant("large")], "yes tenant@0+8 tenant@0+19 tenant@1+8 tenant@1+199"),
        (
            vec![tenant("large").at(Cost::Ask(8)), tenant("x")],
            "no tenant@0-8 tenant@0+199 tenant@1-8 tenant@1+19",
        ),
        (vec![tenant("large").at(Cost::Ask(8))], "yes tenant@0+90 tenant@0+191"),
        // A request under an observing override is counted separately.
        (
            vec![tenant("x").at(Cost::PEEK), tenant("watched")],
            "no tenant@0-0 tenant@0+19 tenant@1+10 tenant@1+20",
        ),
        // Refunds are subtracted from costs of the same count.
        (vec![user(), user().at(Cost::Refund(1))], "yes user@0+4 user@1+4"),
        (vec![user().at(Cost::Refund(1)), user().at(Cost::Ask(4))], "yes user@0+1 user@1+1"),
        (
            vec![user().at(Cost::Ask(4)), user().at(Cost::Refund(1)), user()],
            "no user@0-1 user@1-1 user@2-1",
        ),
        (vec![user().at(Cost::Ask(9)), user().at(Cost::Refund(10))], "yes user@0+2 user@1+2"),
        (vec![user().at(Cost::Ask(2)), user().at(Cost::PEEK)], "yes user@0+0 user@1+0"),
        // The sum is 0. That changes nothing, so it passes, even if the limit is used up.
        (vec![user(), user().at(Cost::Refund(1))], "yes user@0+0 user@1+0"),
        (
            vec![user().at(Cost::Ask(u64::MAX)), user().at(Cost::Refund(u64::MAX)), user()],
            "yes user@0+0 user@1+0 user@2+0",
        ),
        // If only one of several windows is shared, the others are counted separately.
        (
            vec![tenant("x").at(Cost::Refund(2)), tenant("large").at(Cost::Ask(1))],
            "yes tenant@0+1 tenant@0+20 tenant@1+1 tenant@1+190",
        ),
        (vec![bucket("wide"), bucket("x")], "yes bucket@0+2 bucket@1+2"),
        (vec![bucket("x").at(Cost::Ask(2)), bucket("wide")], "no bucket@0-2 bucket@1-2"),
    ];
    let gate = gate();
    for (number, (all, expected)) in steps.iter().enumerate() {
        assert_eq!(check(&gate, all).as_deref(), Ok(*expected), "step {number}");
    }
    // Limits from the caller, as a gateway may send them.
    let active = gate.active_policies();
    let limit = |text: &str| -> [Limit; 1] { [text.parse().expect("a limit")] };
    let (two, nine) = (limit("2 per 1h"), limit("9 per 1h"));
    let own = |limits| GateRequest::new(Subject::Limits { key: b"own", limits });
    let verdict = gate.poll_now(gate.check(&active, &[own(&nine), own(&two)])).expect("a verdict");
    assert_eq!(show(&verdict), "yes caller@0+0 caller@1+0");
    assert_eq!(verdict.results[0].limit, &two[0]);
}

#[test]
fn invalid_combinations_are_rejected() {
    let gate = gate();
    let both = [user(), user().at(Cost::Force(1))];
    assert_eq!(check(&gate, &both), Err(GateError::Check(CheckError::Conflict)));
    let held = GateError::NeedsPermit { policy: Some("held".into()) };
    assert_eq!(check(&gate, &[user(), descriptor_request("held", "x")]), Err(held));
    let many: Vec<DescriptorRequest> = (0..=MAX_CHECKS).map(|_| user()).collect();
    let too_many = GateError::Check(CheckError::TooManyChecks(MAX_CHECKS + 1));
    assert_eq!(check(&gate, &many), Err(too_many));
    assert_eq!(check(&gate, &[user()]).as_deref(), Ok("yes user@0+3"));
}

#[test]
fn all_kinds_of_subjects_combine() {
    let gate = gate();
    let active = gate.active_policies();
    let limits: [Limit; 1] = ["5 per 1h sliding-log".parse().expect("a limit")];
    let bob = descriptor_request("user", "bob");
    let bob =
        Attributes { domain: Some("edge"), descriptors: &bob.entries, ..Attributes::default() };
    let subjects = [
        Subject::Limits { key: b"own", limits: &limits },
        Subject::Key { policy: "user", key: b"alice", attributes: None },
        Subject::Request(&bob),
        Subject::Policy { policy: "user", attributes: &bob },
    ];
    let requests: Vec<GateRequest<'_>> = subjects.into_iter().map(GateRequest::new).collect();
    let verdict = gate.poll_now(gate.check(&active, &requests)).expect("a verdict");
    assert_eq!(show(&verdict), "yes caller@0+4 user@1+3 user@2+2 user@3+2");
    // One id covers all of them: they are charged once.
    let again = GateRequest { id: Some(b"order-1"), ..requests[1] };
    for _ in 0..2 {
        let verdict = gate.poll_now(gate.check(&active, &[requests[0], again])).expect("a verdict");
        assert_eq!(show(&verdict), "yes caller@0+3 user@1+2");
    }
}

/// A request with one descriptor and a known key does not allocate.
#[test]
fn checking_does_not_allocate() {
    let gate = gate();
    let active = gate.active_policies();
    let user = user();
    let attributes =
        Attributes { domain: Some("edge"), descriptors: &user.entries, ..Attributes::default() };
    let request = GateRequest::new(Subject::Request(&attributes));
    let check = || {
        let verdict = gate.poll_now(gate.check(&active, &[request])).expect("a verdict");
        assert_eq!(verdict.results[0].request_index, 0);
    };
    for _ in 0..40 {
        check();
    }
    assert_eq!(allocation_counter::measure(check).count_total, 0);
}
