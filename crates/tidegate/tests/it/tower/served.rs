//! How long the service took, by policy and outcome.

use tidegate::policy::Mode;
use tidegate::stats::{Outcome, TIMED_EVERY};

use super::{ALICE, World, from, rule};

#[test]
fn latency_is_recorded_by_policy_and_outcome() {
    let world = World::new(|builder| {
        builder
            .rule(rule("watched", &["4 per 1m sliding-log"]).mode(Mode::Observe))
            .rule(rule("api", &["1000 per 1m sliding-log"]))
    });
    let every = u64::from(TIMED_EVERY);
    // Four that all allow, of which few are timed; then those that one would deny, all timed.
    for _ in 0..4 + 2 * every {
        assert_eq!(world.status(from(ALICE, "/")), 200);
    }
    let counted = |policy: &str, outcome| {
        let all = world.layer.stats().service_latency();
        let found = all.iter().find(|one| &*one.policy == policy && one.outcome == outcome);
        found.map_or(0, |one| one.counts.count())
    };
    assert_eq!(counted("watched", Outcome::WouldDeny), 2 * every);
    assert!(counted("api", Outcome::Allowed) >= 2 * every);
    assert_eq!(counted("api", Outcome::WouldDeny), 0);
}

#[test]
fn one_request_in_some_is_timed_and_none_that_failed() {
    let world = World::with(rule("api", &["1000 per 1m"]));
    let every = u64::from(TIMED_EVERY);
    let count = || {
        let all = world.layer.stats().service_latency();
        all.iter().map(|one| one.counts.count()).sum::<u64>()
    };
    for _ in 0..3 * every {
        world.ask(from(ALICE, "/"));
    }
    assert_eq!(count(), 3);
    for _ in 0..3 * every {
        drop(world.call(from(ALICE, "/silent")));
    }
    assert_eq!(count(), 3, "nobody knows how long those would have taken");
}
