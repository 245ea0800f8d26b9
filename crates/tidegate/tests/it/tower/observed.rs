//! Observed policies do not affect responses.

use std::sync::Arc;

use http::Request;
use tidegate::tower::RateLimitLayer;
use tidegate::unstable::config::Config;
use tidegate::unstable::gate::Gate;
use tidegate::unstable::policy::Mode;
use tidegate::unstable::stats::Stats;

use super::{Fixture, rule, with};
use crate::common::limiter;

/// A request without a client address.
fn anonymous(path: &str) -> Request<()> {
    Request::builder().uri(path).body(()).expect("a request")
}

/// A layer over a gate with these policies.
fn layer_with_policies(policies: &str) -> Fixture {
    let (limiter, clock) = limiter();
    let policies = Config::parse(policies, "test.yaml").expect("a config").policies;
    let gate = Gate::new(limiter, policies, Arc::new(Stats::new(clock.clock())));
    Fixture::of(RateLimitLayer::from_gate(Arc::new(gate)).build().expect("a layer"), clock)
}

#[test]
fn only_enforced_rules_require_an_address() {
    for (mode, expected) in [(Mode::Enforce, 500), (Mode::Observe, 200), (Mode::Off, 200)] {
        let rules = [
            rule("api", &["1 per 1m sliding-log"]),
            rule("api", &["1 per 1m sliding-log"]).key_template("{client_ip}/{path}"),
        ];
        for rule in rules {
            let fixture = Fixture::with(rule.mode(mode));
            assert_eq!(fixture.statuses(|| anonymous("/"), 2), [expected; 2], "{mode}");
        }
    }
}

#[test]
fn observed_rule_counts_missing_addresses_under_one_key() {
    let fixture = Fixture::with(rule("api", &["2 per 1m sliding-log"]).mode(Mode::Observe));
    assert_eq!(fixture.statuses(|| anonymous("/"), 3), [200; 3]);
    let series = fixture.layer.stats().series();
    let api = series.iter().find(|one| &*one.policy == "api").expect("it is counted");
    assert_eq!((api.allowed[0], api.denied[0]), (2, 1));
}

#[test]
fn only_matching_policies_require_an_address() {
    let policy = |mode: &str| {
        format!(
            r#"policies: [{{ name: api, match: {{ path: /api }}, key: "{{client_ip}}", mode: {mode}, limits: 5 per 1m }}]"#
        )
    };
    let rows = [
        ("enforce", "/api", 500),
        ("enforce", "/other", 200),
        ("observe", "/api", 200),
        ("off", "/api", 200),
    ];
    for (mode, path, expected) in rows {
        assert_eq!(
            layer_with_policies(&policy(mode)).status(anonymous(path)),
            expected,
            "{mode} {path}"
        );
    }
}

#[test]
fn invalid_cost_is_an_error_only_if_enforced() {
    for (mode, expected) in [("enforce", 400), ("observe", 200), ("off", 200)] {
        let fixture = layer_with_policies(&format!(
            r#"policies: [{{ name: api, key: all, mode: {mode}, cost: "{{header:x-cost}}", limits: 5 per 1m }}]"#
        ));
        assert_eq!(fixture.status(with(anonymous("/"), "x-cost", "lots")), expected, "{mode}");
    }
}
