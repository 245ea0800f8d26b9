//! The latency of the service, by policy and outcome.

use tidegate::unstable::policy::Mode;
use tidegate::unstable::stats::{Outcome, TIMED_EVERY};

use super::{ALICE, Fixture, from, rule};

#[test]
fn latency_is_recorded_by_policy_and_outcome() {
    let fixture = Fixture::new(|builder| {
        builder
            .rule(rule("watched", &["4 per 1m sliding-log"]).mode(Mode::Observe))
            .rule(rule("api", &["1000 per 1m sliding-log"]))
    });
    let every = u64::from(TIMED_EVERY);
    // Four requests that all rules allow, few of which are timed; then requests that one rule would
    // deny, all timed.
    for _ in 0..4 + 2 * every {
        assert_eq!(fixture.status(from(ALICE, "/")), 200);
    }
    let counted = |policy: &str, outcome| {
        let all = fixture.layer.stats().service_latency();
        let found = all.iter().find(|one| &*one.policy == policy && one.outcome == outcome);
        found.map_or(0, |one| one.counts.count())
    };
    assert_eq!(counted("watched", Outcome::WouldDeny), 2 * every);
    assert!(counted("api", Outcome::Allowed) >= 2 * every);
    assert_eq!(counted("api", Outcome::WouldDeny), 0);
}

#[test]
fn sampled_requests_are_timed_unless_they_failed() {
    let fixture = Fixture::with(rule("api", &["1000 per 1m"]));
    let every = u64::from(TIMED_EVERY);
    let count = || {
        let all = fixture.layer.stats().service_latency();
        all.iter().map(|one| one.counts.count()).sum::<u64>()
    };
    fixture.send(from(ALICE, "/"));
    assert_eq!(count(), 1, "a thread's first");
    for _ in 1..3 * every {
        fixture.send(from(ALICE, "/"));
    }
    let timed = count();
    assert!((3..=4).contains(&timed), "{timed}");
    for _ in 0..3 * every {
        drop(fixture.call(from(ALICE, "/silent")));
    }
    assert_eq!(count(), timed, "nobody knows how long those would have taken");
}

#[test]
fn metrics_show_denials_beside_the_latency_of_the_service() {
    let fixture = Fixture::new(|builder| {
        builder
            .rule(rule("watched", &["1 per 1m sliding-log"]).mode(Mode::Observe))
            .rule(rule("api", &["3 per 1m sliding-log"]))
    });
    let before = fixture.layer.metrics();
    assert!(!before.contains("tidegate_service_duration_seconds"), "{before}");
    let statuses = [200, 200, 200, 429, 429];
    assert_eq!(statuses.map(|_| fixture.status(from(ALICE, "/"))), statuses);

    let metrics = fixture.layer.metrics();
    for line in [
        r#"tidegate_requests_total{policy="watched",outcome="would_deny"} 2"#,
        r#"tidegate_requests_total{policy="api",outcome="denied"} 2"#,
        r#"tidegate_decisions_total{policy="watched",limit="1 per 1m sliding-log",mode="observe",outcome="would_deny",decided="exact"} 4"#,
        "# TYPE tidegate_service_duration_seconds histogram",
        r#"tidegate_service_duration_seconds_bucket{policy="watched",outcome="would_deny",le="60"} 2"#,
        r#"tidegate_service_duration_seconds_bucket{policy="watched",outcome="would_deny",le="+Inf"} 2"#,
        r#"tidegate_service_duration_seconds_count{policy="watched",outcome="would_deny"} 2"#,
        "tidegate_tracked_keys 2",
    ] {
        assert!(metrics.lines().any(|found| found == line), "no {line} in\n{metrics}");
    }
}

/// The number of requests that were timed under a policy.
fn timed(fixture: &Fixture, policy: &str) -> u64 {
    let all = fixture.layer.stats().service_latency();
    all.iter().filter(|one| &*one.policy == policy).map(|one| one.counts.count()).sum()
}

/// With one sampling counter for all layers, only one of two layers that alternate was timed.
#[test]
fn alternating_requests_are_sampled_alike() {
    let every = usize::from(TIMED_EVERY);
    let quick = || Fixture::with(rule("api", &["1000 per 1m"]));
    let (one, other) = (quick(), quick());
    for _ in 0..10 * every {
        assert_eq!((one.status(from(ALICE, "/")), other.status(from(ALICE, "/"))), (200, 200));
    }
    for fixture in [one, other] {
        assert!((9..=11).contains(&timed(&fixture, "api")), "{}", timed(&fixture, "api"));
    }
    // One of two rules denies every second request, which counts as allowed under the other.
    let fixture = Fixture::new(|builder| {
        let odd = rule("odd", &["0 per 1m"]).when(|head| head.uri().path() == "/odd");
        builder.rule(rule("api", &["1000 per 1m"])).rule(odd)
    });
    for _ in 0..10 * every {
        assert_eq!(
            (fixture.status(from(ALICE, "/")), fixture.status(from(ALICE, "/odd"))),
            (200, 429)
        );
    }
    assert!((9..=11).contains(&timed(&fixture, "api")), "{}", timed(&fixture, "api"));
}

#[test]
fn zero_cost_requests_are_not_timed() {
    for limits in [&["9 per 1m"][..], &["9 per 1m", "99 per 1h"]] {
        let fixture = Fixture::with(rule("api", limits).cost(|_| 0));
        for _ in 0..4 * TIMED_EVERY {
            assert_eq!(fixture.status(from(ALICE, "/")), 200);
        }
        assert_eq!(timed(&fixture, "api"), 0);
    }
}
