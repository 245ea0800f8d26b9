//! The gate: policies in front of a limiter, on a manual clock.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use tidegate::unstable::attributes::Attributes;
use tidegate::unstable::config::Config;
use tidegate::unstable::gate::{Gate, GateError, GateRequest, GateVerdict, Subject};
use tidegate::unstable::policy::{Key, Mode, Policies};
use tidegate::unstable::stats::Stats;
use tidegate::{CheckError, Cost, Limit, Limiter, ManualClock, RetryAfter, Timestamp};

use crate::futures::block_on;

const POLICIES: &str = r#"
policies:
  - name: user
    match: { path: "/api/**" }
    key: "{header:x-user}"
    limits: ["3 per 1h sliding-log", "5 per 1d sliding-log"]
  - name: address
    match: { path: "/api/**" }
    key: "{client_ip}"
    limits: ["2 per 1h sliding-log"]
    overrides:
      - when: { method: POST }
        mode: observe
  - name: watched
    match: { path: /watched }
    key: "{client_ip}"
    limits: ["1 per 1h sliding-log"]
    mode: observe
  - name: jobs
    match: { path: /jobs }
    key: "{client_ip}"
    limits: ["1 concurrent lease 30s", "3 per 1h sliding-log"]
  - name: watched-jobs
    match: { path: /watched }
    key: "{client_ip}"
    limits: ["1 concurrent"]
    mode: observe
"#;

fn policies(text: &str) -> Policies {
    Config::parse(text, "test.yaml").expect("a config").policies
}

struct Fixture {
    gate: Gate,
    clock: ManualClock,
}

impl Fixture {
    fn new() -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
        let limiter =
            Limiter::builder().max_keys(10_000).clock(clock.clock()).build().expect("memory");
        let stats = Arc::new(Stats::new(clock.clock()));
        Fixture { gate: Gate::new(limiter, policies(POLICIES), stats), clock }
    }

    /// Checks a request, and applies `read` to the verdict.
    fn check<T>(
        &self,
        request: &GateRequest<'_>,
        read: impl Fn(&GateVerdict<'_>) -> T,
    ) -> Result<T, GateError> {
        let active = self.gate.active_policies();
        let future = self.gate.check(&active, slice::from_ref(request));
        self.gate.poll_now(future).map(|verdict| read(&verdict))
    }

    /// Returns the units left of the limits of a policy for a key.
    fn left(&self, policy: &str, key: &str) -> Vec<u64> {
        let active = self.gate.active_policies();
        let keys = self.gate.keys(&active, policy).expect("a policy");
        let verdict =
            self.gate.poll_now(keys.peek(&Key::literal(key.as_bytes()), 0)).expect("a verdict");
        verdict.results.iter().map(|result| result.decision.remaining).collect()
    }

    /// Returns the numbers of allowed and denied decisions of a policy.
    fn counted(&self, policy: &str) -> (u64, u64) {
        let all = self.gate.stats().series();
        let of = all.iter().filter(|series| &*series.policy == policy);
        of.fold((0, 0), |(allowed, refused), series| {
            let sum = |counts: &[u64]| counts.iter().sum::<u64>();
            (allowed + sum(&series.allowed), refused + sum(&series.denied))
        })
    }
}

fn request<'a>(
    method: &'a str,
    path: &'a str,
    user: &'a [(std::borrow::Cow<'a, str>, std::borrow::Cow<'a, str>)],
) -> Attributes<'a> {
    Attributes {
        method: Some(method),
        path: Some(path),
        client_ip: Some([192, 0, 2, 1].into()),
        headers: tidegate::unstable::attributes::Headers::Pairs(user),
        ..Attributes::default()
    }
}

fn under<'a>(policy: &'a str, key: &'a str) -> GateRequest<'a> {
    GateRequest::new(Subject::Key { policy, key: key.as_bytes(), attributes: None })
}

#[test]
fn all_policies_are_charged_or_none() {
    let fixture = Fixture::new();
    let (alice, bob) = ([("x-user".into(), "alice".into())], [("x-user".into(), "bob".into())]);
    let check = |user| {
        let attributes = request("GET", "/api/x", user);
        fixture.check(&GateRequest::new(Subject::Request(&attributes)), |verdict| {
            let reported = verdict.reported_limit().expect("an enforced limit");
            (verdict.allowed, reported.policy.map(str::to_owned), verdict.results.len())
        })
    };
    let address = |allowed| Ok((allowed, Some("address".to_owned()), 3));
    assert_eq!(check(&alice), address(true));
    assert_eq!(check(&bob), address(true));
    assert_eq!(check(&bob), address(false));
    // A denied request charges nothing, under any policy.
    assert_eq!(
        (fixture.left("user", "bob"), fixture.left("address", "192.0.2.1")),
        (vec![2, 4], vec![0])
    );
    assert_eq!((fixture.counted("user"), fixture.counted("address")), ((6, 0), (2, 1)));
}

#[test]
fn override_can_switch_to_observe() {
    let fixture = Fixture::new();
    let user = [("x-user".into(), "alice".into())];
    let attributes = request("POST", "/api/x", &user);
    let request = GateRequest::new(Subject::Request(&attributes));
    let check = || {
        fixture.check(&request, |verdict| {
            let watched = verdict.results.last().expect("a result");
            let view = verdict.with_view(|view| (view.limits.len(), view.reported));
            (verdict.allowed, watched.mode, watched.decision.allowed, view)
        })
    };
    let row = |watched| Ok((true, Mode::Observe, watched, (2, Some(0))));
    assert_eq!([check(), check(), check()], [row(true), row(true), row(false)]);
    assert!(!check().expect("a verdict").0, "the limit of the user denies");
    assert_eq!(fixture.counted("address"), (2, 2));
}

#[test]
fn observed_limit_never_denies_and_is_not_reported() {
    let fixture = Fixture::new();
    let attributes = request("GET", "/watched", &[]);
    let request = GateRequest::new(Subject::Request(&attributes));
    for _ in 0..3 {
        // The observed concurrency limit cannot be held by a check, and is left out.
        let verdict = fixture.check(&request, |verdict| {
            (
                verdict.allowed,
                verdict.reported_limit().is_none(),
                verdict.retry_after(),
                verdict.results.len(),
            )
        });
        assert_eq!(verdict, Ok((true, true, RetryAfter::Now, 1)));
    }
    assert_eq!(fixture.counted("watched"), (1, 2));
}

#[test]
fn caller_sets_cost_and_id() {
    let fixture = Fixture::new();
    let check = |request: &GateRequest<'_>| {
        fixture.check(request, |verdict| (verdict.allowed, verdict.results[0].decision.remaining))
    };
    let alice = under("user", "alice");
    let cost = |cost| GateRequest { cost: Some(cost), ..alice };
    assert_eq!(check(&cost(Cost::Ask(2))), Ok((true, 1)));
    assert_eq!(check(&cost(Cost::PEEK)), Ok((true, 1)));
    assert_eq!(check(&cost(Cost::Refund(1))), Ok((true, 2)));
    assert_eq!(check(&GateRequest { force: true, ..alice }), Ok((true, 1)));
    assert_eq!(check(&cost(Cost::Force(9))), Ok((true, 0)));
    // Only ordinary costs are counted as decisions: two limits, once each.
    assert_eq!(fixture.counted("user"), (2, 0));

    let named =
        |key, cost| GateRequest { id: Some(b"order-1"), cost: Some(cost), ..under("user", key) };
    assert_eq!(check(&named("bob", Cost::Ask(1))), Ok((true, 2)));
    assert_eq!(check(&named("bob", Cost::Ask(1))), Ok((true, 2)));
    assert_eq!(check(&named("bob", Cost::Ask(2))), Err(GateError::Check(CheckError::IdReused)));
    assert_eq!(check(&named("carol", Cost::Ask(2))), Ok((true, 1)));
}

#[test]
fn caller_limits_do_not_share_counts_with_policies() {
    let fixture = Fixture::new();
    let limits: [Limit; 2] =
        ["3 per 1h sliding-log", "9 per 1d"].map(|text| text.parse().expect("a limit"));
    let own = GateRequest::new(Subject::Limits { key: b"alice", limits: &limits });
    let read = |verdict: &GateVerdict<'_>| {
        (verdict.results[0].policy.is_none(), verdict.results[0].decision.remaining)
    };
    assert_eq!(fixture.check(&own, read), Ok((true, 2)));
    assert_eq!(fixture.left("user", "alice"), [3, 5]);
    // All limits of callers share one counter.
    assert_eq!(fixture.counted(tidegate::unstable::stats::CALLER), (2, 0));
    let twice: [Limit; 2] = ["3 per 1h", "4 per 1h"].map(|text| text.parse().expect("a limit"));
    let conflict = GateRequest::new(Subject::Limits { key: b"alice", limits: &twice });
    assert_eq!(fixture.check(&conflict, read), Err(GateError::Check(CheckError::Conflict)));
}

#[test]
fn invalid_requests_have_distinct_errors() {
    let fixture = Fixture::new();
    let jobs = request("GET", "/jobs", &[]);
    let held: [Limit; 1] = ["3 concurrent".parse().expect("a limit")];
    let needs = |policy: Option<&str>| GateError::NeedsPermit { policy: policy.map(Into::into) };
    let rows = [
        (
            under("nobody", "x").subject,
            GateError::UnknownPolicy { name: "nobody".into(), near: None },
        ),
        (
            Subject::Policy { policy: "no\n", attributes: &jobs },
            GateError::UnknownPolicy { name: "no\\x0a".into(), near: None },
        ),
        (Subject::Request(&jobs), needs(Some("jobs"))),
        (under("watched-jobs", "x").subject, needs(Some("watched-jobs"))),
        (Subject::Limits { key: b"x", limits: &held }, needs(None)),
    ];
    for (subject, expected) in rows {
        let request = GateRequest::new(subject);
        assert_eq!(fixture.check(&request, |_| ()), Err(expected.clone()), "{subject:?}");
        let active = fixture.gate.active_policies();
        assert_eq!(active.validate(&request), Err(expected), "{subject:?}");
    }
}

#[test]
fn permits_are_held_for_their_lease() {
    let fixture = Fixture::new();
    let active = fixture.gate.active_policies();
    let request = under("jobs", "alice");
    let take = |lease| fixture.gate.poll_now(fixture.gate.acquire(&active, &request, lease));
    let seconds = Duration::from_secs;
    let first = take(Some(seconds(10))).expect("a permit");
    assert_eq!((first.permit.is_some(), first.lease), (true, seconds(10)));
    let denied = take(None).expect("a verdict");
    assert!(denied.permit.is_none() && !denied.verdict.allowed);
    assert_eq!(denied.verdict.retry_after(), RetryAfter::Micros(10_000_000));
    // The denied request charged nothing, and a peek holds nothing.
    assert_eq!(fixture.left("jobs", "alice"), [0, 2]);
    fixture.clock.advance(seconds(10));
    let second = take(None).expect("a permit");
    assert_eq!((second.permit.is_some(), second.lease), (true, seconds(30)));
    drop(second);
    assert_eq!(fixture.left("jobs", "alice"), [1, 1]);

    let too_long = take(Some(seconds(31))).map(drop);
    assert_eq!(too_long, Err(GateError::LeaseTooLong { max_lease: seconds(30) }));
    let request = under("user", "alice");
    let nothing = fixture.gate.poll_now(fixture.gate.acquire(&active, &request, None)).map(drop);
    assert_eq!(nothing, Err(GateError::NoConcurrencyLimit { policy: Some("user".into()) }));
}

#[test]
fn reload_keeps_counts() {
    let fixture = Fixture::new();
    let check = || fixture.check(&under("user", "alice"), |verdict| verdict.allowed);
    assert_eq!(check(), Ok(true));
    fixture.gate.reload(policies(
        &POLICIES.replace("3 per 1h", "30 per 1h").replace("5 per 1d", "5 per 2d"),
    ));
    assert_eq!(fixture.left("user", "alice"), [29, 5]);
    // Policies that are in use do not change.
    let before = Arc::clone(&fixture.gate.active_policies());
    fixture.gate.reload(policies(&POLICIES.replace("name: user", "name: other")));
    assert!(fixture.gate.keys(&before, "user").is_ok());
    let unknown = GateError::UnknownPolicy { name: "user".into(), near: None };
    assert_eq!(check(), Err(unknown));
    assert_eq!(fixture.left("other", "alice"), [3, 5]);
}

#[test]
fn reset_clears_a_key_under_all_limits() {
    let fixture = Fixture::new();
    let active = fixture.gate.active_policies();
    for key in ["alice", "bob"] {
        fixture.check(&under("user", key), |_| ()).expect("a verdict");
    }
    let keys = fixture.gate.keys(&active, "user").expect("a policy");
    let reset = || fixture.gate.poll_now(keys.reset(&Key::literal(b"alice")));
    assert_eq!([reset(), reset()], [Ok(true), Ok(false)]);
    assert_eq!(
        (fixture.left("user", "alice"), fixture.left("user", "bob")),
        (vec![3, 5], vec![2, 4])
    );
    assert!(fixture.gate.keys(&active, "nobody").is_err());
}

#[test]
fn check_each_decides_as_single_checks() {
    let (one, many) = (Fixture::new(), Fixture::new());
    let limits: [Limit; 3] = ["4 per 1h", "3 per 1h sliding-log", "2 per 1h token-bucket"]
        .map(|text| text.parse().expect("a limit"));
    let (long, plain) = ("k".repeat(2000), request("GET", "/api/x", &[]));
    let keys = ["a", "b", "", "\0a", &long];
    let policies = ["user", "address", "watched", "jobs", "nobody"];
    let costs =
        [None, Some(Cost::Ask(2)), Some(Cost::PEEK), Some(Cost::Refund(1)), Some(Cost::Force(1))];
    let mut requests = Vec::new();
    for round in 0..200 {
        let key = keys[round % keys.len()];
        let subject = match round % 7 {
            0..3 => Subject::Key {
                policy: policies[round % policies.len()],
                key: key.as_bytes(),
                attributes: None,
            },
            3..5 => Subject::Limits { key: key.as_bytes(), limits: &limits[round % 3..][..1] },
            5 => Subject::Limits { key: key.as_bytes(), limits: &limits },
            _ => Subject::Request(&plain),
        };
        let id: Option<&[u8]> = (round % 11 == 0).then_some(b"id");
        requests.push(GateRequest {
            cost: costs[round % costs.len()],
            force: round % 13 == 0,
            id,
            ..GateRequest::new(subject)
        });
    }
    let format_result = |verdict: Result<GateVerdict<'_>, GateError>| format!("{verdict:?}");
    let active = one.gate.active_policies();
    let each = requests.iter().map(slice::from_ref);
    let each = each.map(|request| one.gate.poll_now(one.gate.check(&active, request)));
    let expected: Vec<String> = each.map(format_result).collect();
    let active = many.gate.active_policies();
    let mut verdicts = Vec::new();
    many.gate.check_each(&active, &requests, |index, verdict| {
        assert_eq!(index, verdicts.len());
        verdicts.push(format_result(verdict.cloned()));
    });
    assert_eq!(verdicts, expected);
    // The counters are equal, too.
    assert_eq!(many.gate.stats().series(), one.gate.stats().series());
    let denied = one.gate.stats().series().iter().map(|series| series.denied[0]).sum::<u64>();
    assert!(denied > 10 && expected.iter().any(|verdict| verdict.starts_with("Err")), "{denied}");
}

/// Regression: the units left were compared with the burst of the bucket, which admits nothing at a
/// rate of zero.
#[test]
fn unused_key_is_not_seen_under_a_zero_limit() {
    let text = r#"
policies:
  - { name: bucket, key: all, limits: 0 per 1m token-bucket burst 5 }
  - { name: log, key: all, limits: 0 per 1m sliding-log }
"#;
    let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
    let limiter = Limiter::builder().max_keys(10_000).clock(clock.clock()).build().expect("memory");
    let gate = Gate::new(limiter, policies(text), Arc::new(Stats::new(clock.clock())));
    let active = gate.active_policies();
    for policy in ["bucket", "log"] {
        let keys = gate.keys(&active, policy).expect("a policy");
        let find = block_on(keys.find(b"alice"));
        let key = find.expect("a policy").key;
        let is_seen = || block_on(keys.is_seen(&key));
        assert_eq!(is_seen(), Ok(false), "{policy}: never used");
        assert!(
            !gate
                .poll_now(gate.check(&active, &[under(policy, "alice")]))
                .expect("a verdict")
                .allowed
        );
        assert_eq!(is_seen(), Ok(true), "{policy}: denied");
    }
}
