//! Errors of building a layer, and layers over a gate.

use std::error::Error;
use std::sync::Arc;

use tidegate::tower::{LayerBuilder, RateLimitLayer, Rule, UnknownPlan};
use tidegate::unstable::gate::Gate;
use tidegate::unstable::identity::Identity;
use tidegate::unstable::policy::{PathVariants, Policies, Policy, PolicyError};
use tidegate::unstable::stats::Stats;

use super::{ALICE, Fixture, from, rule, with};
use crate::common::{limit, limiter};

fn gate(limits: &[&str]) -> (Arc<Gate>, tidegate::ManualClock) {
    let (limiter, clock) = limiter();
    let gate = Gate::new(limiter, policies(limits), Arc::new(Stats::new(clock.clock())));
    (Arc::new(gate), clock)
}

fn policies(limits: &[&str]) -> Policies {
    named("file", limits)
}

fn named(name: &str, limits: &[&str]) -> Policies {
    let limits = limits.iter().map(|text| limit(text)).collect();
    let policy = Policy::new(name, "{client_ip}".parse().expect("a template"), limits);
    Policies::new(vec![policy.expect("a policy")], Identity::default()).expect("policies")
}

#[test]
fn invalid_layers_are_errors_with_a_fix() {
    let one = |name: &str| rule(name, &["5 per 1m"]);
    let rows: [(LayerBuilder, &str); 17] = [
        (RateLimitLayer::builder(), "there is nothing to limit: add a rule with `rule`"),
        (
            RateLimitLayer::builder().rule(one("a b")),
            "rule `a b`: this cannot be a policy's name: use 1 to 64 letters, digits, `.`, `_` and `-`, for example `login`",
        ),
        (
            RateLimitLayer::builder().rule(rule("empty", &[])),
            "rule `empty` has no limit: give it one, for example `Limit::per_minute(100)`",
        ),
        (
            RateLimitLayer::builder().rule(one("api").reserve(|_| 20).cost(|_| 7)),
            "rule `api` has both `cost` and `reserve`: keep `reserve` if the handler settles the \
             cost, and `cost` if it is known before",
        ),
        (
            RateLimitLayer::builder().rule(one("api").cost(|_| 7).reserve(|_| 20)),
            "rule `api` has both `cost` and `reserve`: keep `reserve` if the handler settles the \
             cost, and `cost` if it is known before",
        ),
        (
            RateLimitLayer::builder()
                .rule(one("api").plan("", [limit("1 per 1s")]).plan_of(|_| None)),
            "rule `api` has a plan with an empty name: give it a name",
        ),
        (
            RateLimitLayer::builder().rule(one("api").on_unknown_plan(|_| UnknownPlan::Reject)),
            "rule `api` has `on_unknown_plan` but no plans: add them with `plan` and `plan_of`, or \
             leave out `on_unknown_plan`",
        ),
        (
            RateLimitLayer::builder()
                .rule(one("api").plan("gold", [limit("1 per 1s")]).plan_of(|_| None))
                .rule(one("api.gold")),
            "two policies are called `api.gold`: give each rule a different name",
        ),
        (
            RateLimitLayer::builder().rule(rule("jobs", &["2 concurrent"]).cost(|_| 2)),
            "rule `jobs` has a cost or `settle_when`, and a concurrency limit, which takes one permit per request: put the concurrency limit into a separate rule",
        ),
        (
            RateLimitLayer::builder().rule(rule("jobs", &["2 concurrent"]).settle_when(|_| true)),
            "rule `jobs` has a cost or `settle_when`, and a concurrency limit, which takes one permit per request: put the concurrency limit into a separate rule",
        ),
        (
            RateLimitLayer::builder().rule((0..1_025).fold(one("api"), |rule, number| {
                rule.plan(format!("plan-{number}"), limit("1 per 1s"))
            })),
            "rule `api` has more than 1024 plans: give each request its limits with `limits_of`",
        ),
        (
            RateLimitLayer::builder().rule(one("api").plan("gold", [limit("1 per 1s")])),
            "rule `api` defines plans but no `plan_of`: add one to choose a plan per request",
        ),
        (
            RateLimitLayer::builder().rule(one("api").plan_of(|_| Some("gold".into()))),
            "rule `api` has `plan_of` but no plans: add them with `plan`, or leave out `plan_of`",
        ),
        (
            RateLimitLayer::builder().rule(one("api").key_template("{ip}")),
            "rule `api`: its key template: unknown request field: use client_ip, method, path, host, \
             header:NAME, query:NAME, cookie:NAME, domain, descriptor:NAME or descriptors",
        ),
        (
            RateLimitLayer::from_gate(gate(&["5 per 1m"]).0).rule(one("file")),
            "two policies are called `file`: give each rule a different name",
        ),
        (
            RateLimitLayer::from_gate(gate(&["5 per 1m"]).0).identity(Identity::default()),
            "a gate has its own identity: leave `identity` out, or make the gate with it",
        ),
        (
            RateLimitLayer::from_gate(gate(&["5 per 1m"]).0).path_variants(PathVariants::Keep),
            "a gate has its own path_variants: leave `path_variants` out, or make the gate with it",
        ),
    ];
    for (builder, expected) in rows {
        let error = builder.build().expect_err(expected);
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn an_error_names_its_source() {
    let unnamed = RateLimitLayer::builder().rule(rule("a b", &["5 per 1m"])).build();
    let source = unnamed.as_ref().err().and_then(|error| error.source()).expect("a source");
    assert!(source.is::<PolicyError>(), "{source}");
    let nothing = RateLimitLayer::builder().build().expect_err("no rule");
    assert!(nothing.source().is_none());
}

#[test]
fn rules_and_policies_of_a_gate_are_decided_together() {
    let (gate, clock) = gate(&["2 per 1m sliding-log"]);
    let by_key = rule("key", &["3 per 1m sliding-log"]).key(|_| Some("everybody".into()));
    let layer = RateLimitLayer::from_gate(Arc::clone(&gate)).rule(by_key).build().expect("a layer");
    let fixture = Fixture::of(layer, clock);
    assert_eq!(fixture.statuses(|| from(ALICE, "/"), 4), [200, 200, 429, 429]);
    assert_eq!(fixture.left("key", "everybody"), 1);
    let response = fixture.send(from(super::BOB, "/"));
    let policy = "\"key\";q=3;w=60, \"file\";q=2;w=60";
    assert_eq!(response.header("ratelimit-policy"), Some(policy));
    // A reload applies from the next request on, and keeps the rule.
    gate.reload(policies(&["9 per 1m sliding-log"]));
    fixture.clock.advance(std::time::Duration::from_secs(60));
    assert_eq!(fixture.statuses(|| from(ALICE, "/"), 4), [200, 200, 200, 429]);
}

/// A reload does not check rules, so it may add a policy with the name of a rule.
#[test]
fn policy_with_the_name_of_a_rule_counts_separately() {
    let layer = |rule: Rule| {
        let (gate, clock) = gate(&["9 per 1m sliding-log"]);
        let layer =
            RateLimitLayer::from_gate(Arc::clone(&gate)).rule(rule).build().expect("a layer");
        (Fixture::of(layer, clock), gate)
    };
    // With the same key and window both are charged, under the stricter of the two limits.
    let (fixture, gate) = layer(rule("api", &["5 per 1m sliding-log"]));
    gate.reload(named("api", &["4 per 1m sliding-log"]));
    assert_eq!(fixture.statuses(|| from(ALICE, "/"), 3), [200, 200, 429]);
    // With another window only the rule has reserved, and only its charge is settled.
    let (fixture, gate) = layer(rule("api", &["100 per 1m sliding-log"]).reserve(|_| 40));
    let windows: Vec<String> = (1..=16).map(|hours| format!("100 per {hours}h")).collect();
    gate.reload(named("api", &windows.iter().map(String::as_str).collect::<Vec<_>>()));
    assert_eq!(fixture.status(with(from(ALICE, "/"), "x-actual", "10")), 200);
    assert_eq!(fixture.left("api", "192.0.2.1"), 90);
}
