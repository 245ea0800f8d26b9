//! Plans, and limits that come with a request.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Request;
use http_body_util::BodyExt;
use tidegate::Limit;
use tidegate::tower::{Limits, Rule, UnknownPlan};
use tidegate::unstable::headers::Forms;

use super::{ALICE, Fixture, from, rule, with};
use crate::common::limit;
use crate::futures::block_on;

/// The name and plan of a client, as an outer layer provides them.
#[derive(Clone)]
struct User(String, String);

fn user(name: &str, plan: &str) -> Request<()> {
    let mut request = from(ALICE, "/");
    request.extensions_mut().insert(User(name.into(), plan.into()));
    request
}

fn per_user(limits: &[&str]) -> Rule {
    rule("user", limits).key(|head| Some(head.extension::<User>()?.0.as_str().into()))
}

fn with_plans(rule: Rule) -> Rule {
    rule.plan_of(|head| Some(head.extension::<User>()?.1.as_str().into()))
}

/// The limits that an outer layer has loaded for a request.
#[derive(Clone)]
struct Loaded(Limits);

fn loaded(limits: impl Into<Limits>) -> Request<()> {
    let mut request = user("ann", "");
    request.extensions_mut().insert(Loaded(limits.into()));
    request
}

fn by_request(rule: Rule) -> Rule {
    rule.limits_of(|head| Some(head.extension::<Loaded>()?.0.clone()))
}

#[test]
fn plans_have_separate_limits() {
    let fixture = Fixture::with(with_plans(
        per_user(&["1 per 1m sliding-log"])
            .plan("gold", limit("3 per 1m sliding-log"))
            .plan("basic", [limit("2 per 1m sliding-log"), limit("9 per 1h")]),
    ));
    for (plan, admitted) in [("gold", 3), ("basic", 2), ("none such", 1), ("", 1)] {
        let statuses = fixture.statuses(|| user(&format!("on {plan}"), plan), 4);
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), admitted, "{plan}");
    }
    let response = fixture.send(user("ben", "gold"));
    assert_eq!(response.header("ratelimit"), Some("\"user.gold\";r=2;t=60"));
    let series: Vec<String> =
        fixture.layer.stats().series().iter().map(|series| series.policy.to_string()).collect();
    assert_eq!(series, ["(caller)", "user", "user.basic", "user.basic", "user.gold"]);
}

/// A client that changed plan started from zero, so a client that alternated between two plans had
/// the limits of both.
#[test]
fn change_of_plan_keeps_usage() {
    let algorithms =
        ["sliding-window", "sliding-log", "sliding-counter", "fixed-window", "token-bucket"];
    for algorithm in algorithms {
        let of = |count: u64, window: &str| limit(&format!("{count} per {window} {algorithm}"));
        let rule = Rule::new("user", of(10, "1m"))
            .key(|head| Some(head.extension::<User>()?.0.as_str().into()))
            .plan("pro", [of(20, "1m"), of(100, "1h")])
            .plan("large", of(3_000_000, "1m"))
            .plan("hourly", of(50, "1h"));
        let fixture = Fixture::with(with_plans(rule));
        for _ in 0..5 {
            assert_eq!(fixture.status(user("ann", "")), 200);
        }
        let left = |plan: &str| fixture.left(plan, "ann");
        assert_eq!((left("user"), left("user.pro")), (5, 15), "{algorithm}: an upgrade");
        // Another window has a separate count.
        assert_eq!(left("user.hourly"), 50, "{algorithm}");
        for _ in 0..13 {
            assert_eq!(fixture.status(user("ann", "pro")), 200, "{algorithm}");
        }
        assert_eq!((left("user.pro"), left("user.hourly")), (2, 37), "{algorithm}");
        assert_eq!(fixture.status(user("ann", "")), 429, "{algorithm}: a downgrade");
        assert_eq!(left("user"), 0, "{algorithm}");
        assert!(left("user.large") <= 2_999_982, "{algorithm}: {}", left("user.large"));
        // Back under the first window, the earlier count is found again.
        assert_eq!(fixture.status(user("ann", "large")), 200, "{algorithm}");
        assert_eq!(fixture.status(user("ann", "")), 429, "{algorithm}");
        fixture.clock.advance(Duration::from_secs(121));
        assert_eq!(fixture.status(user("ann", "")), 200, "{algorithm}");
    }
}

#[test]
fn reset_clears_all_plans() {
    for name in ["user", "user.hourly"] {
        let fixture = Fixture::with(with_plans(
            per_user(&["1 per 1m sliding-log"]).plan("hourly", limit("1 per 1h sliding-log")),
        ));
        for plan in ["", "hourly"] {
            assert_eq!(fixture.statuses(|| user("ann", plan), 2), [200, 429], "{plan}");
        }
        assert_eq!(block_on(fixture.layer.reset(name, "ann")), Ok(true), "{name}");
        assert_eq!(block_on(fixture.layer.reset(name, "ann")), Ok(false), "{name}");
        for plan in ["", "hourly"] {
            assert_eq!(fixture.statuses(|| user("ann", plan), 2), [200, 429], "{plan}");
        }
    }
}

#[test]
fn on_unknown_plan_decides() {
    let plans = || with_plans(per_user(&["1 per 1m sliding-log"]).plan("pro", limit("9 per 1m")));
    let base = Fixture::with(plans());
    assert_eq!(base.statuses(|| user("ann", "gold"), 2), [200, 429]);

    let seen = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&seen);
    let warned = Fixture::with(plans().on_unknown_plan(move |plan| {
        recorded.lock().expect("no panic").push(plan.to_owned());
        UnknownPlan::Base
    }));
    assert_eq!(warned.statuses(|| user("ann", "gold"), 2), [200, 429]);
    assert_eq!(warned.statuses(|| user("ben", "pro"), 2), [200, 200]);
    assert_eq!(*seen.lock().expect("no panic"), ["gold", "gold"]);

    let strict = Fixture::with(plans().on_unknown_plan(|_| UnknownPlan::Reject));
    let response = strict.send(user("ann", "go\"ld\n"));
    let detail = "\"status\":500,\"detail\":\"rule `user` has no plan `go\\\"ld\\\\x0a`: add it with `plan`\"";
    assert_eq!(response.status, 500);
    assert!(response.body.contains(detail), "{}", response.body);
    assert_eq!((strict.status(user("ann", "pro")), strict.calls()), (200, 1));
    // A request without a plan does not have an unknown plan.
    assert_eq!(strict.status(from(ALICE, "/")), 200);
    let long = "x".repeat(10_000);
    assert!(strict.send(user("ann", &long)).body.len() < 500);
}

#[test]
fn limits_come_with_the_request() {
    let fixture = Fixture::with(by_request(per_user(&["1 per 1m sliding-log"])));
    let of = |count: u64| loaded(limit(&format!("{count} per 1m sliding-log")));
    let response = fixture.send(of(3));
    assert_eq!(response.header("ratelimit"), Some("\"user\";r=2;t=60"));
    assert_eq!(response.header("ratelimit-policy"), Some("\"user\";q=3;w=60"));
    assert_eq!(fixture.statuses(|| of(3), 3), [200, 200, 429]);
    assert_eq!(fixture.status(of(4)), 200, "what was used stays used");
    let denied = fixture.send(of(4));
    assert_eq!((denied.status.as_u16(), denied.header("retry-after")), (429, Some("60")));
    assert!(denied.body.contains("used up: `4 per 1m sliding-log` of policy user"));
    // A request without limits has the rule's.
    assert_eq!(fixture.statuses(|| user("ben", ""), 2), [200, 429]);
    // Several limits, from any type of list.
    let both = [limit("9 per 1m"), limit("2 per 1h sliding-log")];
    let lists: [Limits; 3] = [both.into(), both.to_vec().into(), Arc::<[Limit]>::from(both).into()];
    let statuses = lists.map(|limits| fixture.send(loaded(limits)).status.as_u16());
    assert_eq!(statuses, [200, 200, 429]);
}

#[test]
fn request_limits_take_precedence_over_the_plan() {
    let rule = with_plans(per_user(&["1 per 1m sliding-log"]).plan("pro", limit("2 per 1m")));
    let fixture = Fixture::with(by_request(rule).when(|head| head.path() != "/free"));
    assert_eq!(fixture.send(user("ann", "pro")).header("ratelimit"), Some("\"user.pro\";r=1;t=60"));
    let mut both = loaded(limit("9 per 1m"));
    both.extensions_mut().insert(User("ann".into(), "pro".into()));
    assert_eq!(fixture.send(both).header("ratelimit"), Some("\"user\";r=7;t=60"));
    let mut free = loaded(limit("0 per 1m"));
    *free.uri_mut() = "/free".parse().expect("a path");
    assert_eq!(fixture.status(free), 200, "the rule does not apply");
}

#[test]
fn request_limits_can_be_concurrency_limits() {
    let fixture = Fixture::with(by_request(per_user(&["9 per 1m"])));
    let held = || loaded(limit("1 concurrent lease 30s"));
    let response = block_on(fixture.call(held())).expect("the service works");
    assert_eq!(fixture.status(held()), 429);
    block_on(response.into_body().collect()).expect("a body");
    assert_eq!(fixture.status(held()), 200);
}

#[test]
fn invalid_request_limits_are_a_server_error() {
    let rule = || per_user(&["9 per 1m"]);
    let two = [limit("1 per 1m"), limit("2 per 1m")];
    let many: Vec<Limit> = (1..=17).map(|hours| limit(&format!("9 per {hours}h"))).collect();
    let rows: [(Rule, Limits, &str); 5] = [
        (rule(), Vec::new().into(), "gave rule `user` an empty list: return `None`"),
        (rule(), two.into(), "limits 1 and 2 have the same algorithm and window"),
        (rule(), many.into(), "a policy has too many limits"),
        (rule().cost(|_| 2), limit("1 concurrent").into(), "which has a cost, a concurrency limit"),
        (
            rule().settle_when(|_| true),
            limit("1 concurrent").into(),
            "which has a cost, a concurrency limit",
        ),
    ];
    for (rule, limits, detail) in rows {
        let fixture = Fixture::with(by_request(rule));
        let response = fixture.send(loaded(limits));
        assert_eq!(response.status, 500, "{detail}");
        assert!(response.body.contains(detail), "{}", response.body);
        assert_eq!((fixture.calls(), fixture.left("user", "ann")), (0, 9), "{detail}");
    }
}

/// A cost above the capacity of a plan or of the request's limit never passes, so the denial is
/// sent without `Retry-After`.
#[test]
fn a_cost_above_a_plan_never_passes() {
    let cost = |head: &tidegate::tower::Head<'_>| {
        head.header("x-cost").and_then(|cost| cost.parse().ok()).unwrap_or(1)
    };
    let rule = per_user(&["10 per 1m"]).plan("pro", limit("100 per 1m")).cost(cost);
    let fixture = Fixture::with(by_request(with_plans(rule)));
    let costing = |request: Request<()>, cost: &str| {
        let response = fixture.send(with(request, "x-cost", cost));
        (response.status.as_u16(), response.header("retry-after").map(str::to_owned))
    };
    assert_eq!(costing(user("ann", ""), "11"), (429, None));
    assert_eq!(costing(user("ann", "pro"), "11"), (200, None));
    assert_eq!(costing(user("ann", "pro"), "101"), (429, None));
    assert_eq!(costing(user("ann", "pro"), "90").0, 429);
    assert!(costing(user("ann", "pro"), "90").1.is_some(), "some day");
    assert_eq!(costing(loaded(limit("1000 per 1m")), "1001"), (429, None));
    assert_eq!(costing(loaded(limit("1000 per 1m")), "18446744073709551615"), (429, None));
    assert_eq!(costing(loaded(limit("1000 per 1m")), "900"), (200, None));
}

/// A million unknown plans and a million different limits keep no memory in use.
#[test]
fn a_million_plans_take_no_memory() {
    let rule = with_plans(per_user(&["1 per 1m"]).plan("pro", limit("9 per 1m")));
    let rule = rule.on_unknown_plan(|_| UnknownPlan::Base).limits_of(|head| {
        let count = head.header("x-count")?.parse().ok()?;
        Limit::new(count, Duration::from_secs(60), tidegate::Algorithm::SlidingWindow).ok()
    });
    let fixture = Fixture::new(|builder| builder.rule(rule).headers(Forms::NONE));
    let send = |number: u64| {
        let request = match number % 2 {
            0 => user("ann", &format!("plan-{number}")),
            _ => with(user("ben", ""), "x-count", &number.to_string()),
        };
        drop(block_on(fixture.call(request)).expect("the service works"));
    };
    (0..1_000).for_each(send);
    let grown = allocation_counter::measure(|| (1_000..1_000_000).for_each(send));
    assert!(grown.bytes_current < 1 << 20, "{} bytes", grown.bytes_current);
    let series = fixture.layer.stats().series();
    let limits: Vec<&str> = series.iter().map(|series| &*series.limit).collect();
    let expected =
        ["(caller)", "1 per 1m sliding-window", "per-request", "9 per 1m sliding-window"];
    assert_eq!(limits, expected);
    assert_eq!(series[2].allowed[0] + series[2].denied[0], 500_000);
}

/// A value that contains the separators of templates, policies and keys is a separate key.
#[test]
fn separators_in_keys_keep_keys_distinct() {
    let template = "{header:x-a}:{header:x-b}";
    let fixture = Fixture::with(rule("key", &["1 per 1m sliding-log"]).key_template(template));
    let pairs = [("x", "y:z"), ("x:y", "z"), ("1#x", "y"), ("1#x:1#y", "z"), ("", "x"), ("x", "")];
    for (a, b) in pairs {
        let request = || {
            let request = from(ALICE, "/");
            let request = if a.is_empty() { request } else { with(request, "x-a", a) };
            if b.is_empty() { request } else { with(request, "x-b", b) }
        };
        assert_eq!(fixture.statuses(request, 2), [200, 429], "{a} {b}");
    }
    // Closures may return any text, also the name of a plan or the bytes of the shared key.
    let fixture = Fixture::with(with_plans(
        per_user(&["1 per 1m sliding-log"]).plan("pro", limit("1 per 1m sliding-log")),
    ));
    for name in ["ann", "pro", "user.pro", "user\0ann", "\0", "\0\0", "", "{client_ip}", "a|b"] {
        assert_eq!(fixture.statuses(|| user(name, "pro"), 2), [200, 429], "{name:?}");
    }
    assert_eq!(fixture.statuses(|| from(ALICE, "/"), 2), [200, 429], "no key at all");
}

/// Closures can be stored in variables before they are used.
#[test]
fn stored_closures_compile() {
    let when = |head: &tidegate::tower::Head<'_>| head.path() == "/";
    let cost = |head: &tidegate::tower::Head<'_>| head.path().len() as u64;
    let limits = |head: &tidegate::tower::Head<'_>| Some(head.extension::<Loaded>()?.0.clone());
    let unknown = |_: &str| UnknownPlan::Base;
    let settle = |response: &http::Response<()>| response.status().is_success();
    let denied = |_: &tidegate::tower::Head<'_>, rejection: tidegate::tower::Rejection| {
        http::Response::<String>::from(rejection)
    };
    let rule = rule("api", &["1 per 1m"]).when(when).cost(cost).limits_of(limits);
    let rule = rule.plan("pro", limit("2 per 1m")).plan_of(|_| None);
    let rule = rule.on_unknown_plan(unknown).settle_when(settle);
    let fixture = Fixture::new(|builder| builder.rule(rule).on_denied(denied));
    assert_eq!(fixture.statuses(|| from(ALICE, "/"), 2), [200, 429]);
}
