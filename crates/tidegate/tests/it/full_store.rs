//! `no_room`: reported for exactly the requests that were denied only for lack of capacity, and for
//! forced charges that were not recorded.
//!
//! All checks are at one instant. Then a used-up key yields the same numbers as an untracked one,
//! and only the store can distinguish them.

use std::sync::Arc;

use tidegate::unstable::gate::{AnyPermit, Gate, GateRequest, Subject};
use tidegate::unstable::identity::Identity;
use tidegate::unstable::policy::Policies;
use tidegate::unstable::stats::Stats;
use tidegate::{Cost, Limit, Limiter, ManualClock, Permit, WhenFull};

use crate::common::{NOW, at, limit};

const MAX_KEYS: usize = 10;

const ALGORITHMS: [&str; 5] =
    ["sliding-log", "sliding-window", "sliding-counter", "fixed-window", "token-bucket"];

const DENY: WhenFull = WhenFull::Deny;
const ALLOW: WhenFull = WhenFull::Allow;
const OVERFLOW: WhenFull = WhenFull::Overflow;

struct Fixture {
    gate: Gate,
}

impl Fixture {
    fn new(when_full: WhenFull, max_log_entries: u64) -> Self {
        let clock = ManualClock::new(at(NOW));
        let builder = Limiter::builder().max_keys(MAX_KEYS).when_full(when_full);
        let builder = builder.max_log_entries(max_log_entries).clock(clock.clock());
        let stats = Arc::new(Stats::new(clock.clock()));
        Fixture { gate: Gate::new(builder.build().expect("small"), no_policies(), stats) }
    }

    /// Creates a store with `keys` keys of one unit each, from `k0` on.
    fn filled(when_full: WhenFull, limit: &Limit, keys: usize) -> Self {
        let fixture = Fixture::new(when_full, 1_000);
        for number in 0..keys {
            let outcome = fixture.check(&format!("k{number}"), &[*limit], Cost::Ask(1), None);
            assert_eq!(outcome, (true, false));
        }
        fixture
    }

    /// Returns whether the request was allowed, and `no_room`.
    fn check(&self, key: &str, limits: &[Limit], cost: Cost, id: Option<&str>) -> (bool, bool) {
        let request = gate_request(key, limits, cost, id);
        let active = self.gate.active_policies();
        let verdict = self.gate.poll_now(self.gate.check(&active, &[request]));
        verdict.map(|a| (a.allowed, a.no_room)).expect("a valid request")
    }

    fn left(&self, key: &str, limit: &Limit) -> u64 {
        let limits = [*limit];
        let request = gate_request(key, &limits, Cost::PEEK, None);
        let active = self.gate.active_policies();
        let verdict = self.gate.poll_now(self.gate.check(&active, &[request])).expect("a verdict");
        verdict.results[0].decision.remaining
    }

    fn acquire(&self, key: &str, limit: &Limit) -> (Option<Permit>, (bool, bool)) {
        let limits = [*limit];
        let request = gate_request(key, &limits, Cost::Ask(1), None);
        let active = self.gate.active_policies();
        let held = self.gate.poll_now(self.gate.acquire(&active, &request, None));
        let held = held.expect("a concurrency limit");
        (held.permit.and_then(AnyPermit::local), (held.verdict.allowed, held.verdict.no_room))
    }
}

fn no_policies() -> Policies {
    Policies::new(Vec::new(), Identity::default()).expect("an empty list is valid")
}

fn gate_request<'a>(
    key: &'a str,
    limits: &'a [Limit],
    cost: Cost,
    id: Option<&'a str>,
) -> GateRequest<'a> {
    let subject = Subject::Limits { key: key.as_bytes(), limits };
    GateRequest { cost: Some(cost), id: id.map(str::as_bytes), ..GateRequest::new(subject) }
}

/// Runs a test with every algorithm and every `when_full`, with and without an id. These take
/// different paths through the store.
fn for_each_configuration(run: impl Fn(&Limit, WhenFull, Option<&'static str>, &str)) {
    for algorithm in ALGORITHMS {
        for when_full in [DENY, ALLOW, OVERFLOW] {
            for id in [None, Some("id")] {
                let limit = limit(&format!("5 per 1h {algorithm}"));
                run(&limit, when_full, id, &format!("{algorithm} {when_full:?} {id:?}"));
            }
        }
    }
}

/// If there is capacity for one more key, a forced charge is recorded, as for tracked keys.
#[test]
fn recorded_forced_charge_does_not_report_no_room() {
    for_each_configuration(|limit, when_full, id, case| {
        for key in ["k9", "k1"] {
            let fixture = Fixture::filled(when_full, limit, MAX_KEYS - 1);
            assert_eq!(
                fixture.check(key, &[*limit], Cost::Force(5), id),
                (true, false),
                "{key} {case}"
            );
            assert_eq!(fixture.left(key, limit), 0, "{key} {case}");
        }
    });
}

/// Tracked keys report their usage, however full the store is.
#[test]
fn tracked_keys_do_not_report_no_room() {
    for_each_configuration(|limit, when_full, id, case| {
        let fixture = Fixture::filled(when_full, limit, MAX_KEYS);
        let limits = [*limit];
        assert_eq!(fixture.check("k1", &limits, Cost::Ask(4), id), (true, false), "{case}");
        assert_eq!(fixture.check("k1", &limits, Cost::Ask(1), None), (false, false), "{case}");
        assert_eq!(fixture.check("k2", &limits, Cost::Force(5), id), (true, false), "{case}");
        assert_eq!(fixture.check("k2", &limits, Cost::Ask(1), None), (false, false), "{case}");
        assert_eq!(fixture.left("k2", limit), 0, "{case}");
    });
}

#[test]
fn denied_untracked_keys_report_no_room() {
    // The cost, and the results of a full store that denies, allows, or counts together.
    let rows = [
        (Cost::Ask(1), [(false, true), (true, false), (true, false)]),
        (Cost::PEEK, [(false, true), (true, false), (true, false)]),
        (Cost::Ask(6), [(false, false), (false, false), (false, false)]),
        (Cost::Force(5), [(true, true), (true, true), (true, false)]),
        (Cost::Force(0), [(true, false), (true, false), (true, false)]),
        (Cost::Refund(1), [(true, false), (true, false), (true, false)]),
    ];
    for_each_configuration(|limit, when_full, id, case| {
        for (cost, [deny, allow, overflow]) in rows {
            let fixture = Fixture::filled(when_full, limit, MAX_KEYS);
            let expected = match when_full {
                WhenFull::Deny => deny,
                WhenFull::Allow => allow,
                WhenFull::Overflow => overflow,
            };
            assert_eq!(fixture.check("x", &[*limit], cost, id), expected, "{cost:?} {case}");
        }
    });
}

/// The overflow count can be used up, which is not a lack of capacity.
#[test]
fn exhausted_overflow_count_does_not_report_no_room() {
    for_each_configuration(|limit, _, id, case| {
        let fixture = Fixture::filled(OVERFLOW, limit, MAX_KEYS);
        assert_eq!(fixture.check("x", &[*limit], Cost::Force(5), id), (true, false), "{case}");
        assert_eq!(fixture.check("y", &[*limit], Cost::Ask(1), id), (false, false), "{case}");
    });
}

/// Capacity would not have helped a request that has also used up a limit.
#[test]
fn no_room_is_reported_only_if_it_alone_denied() {
    for_each_configuration(|limit, _, id, case| {
        let fixture = Fixture::filled(DENY, limit, MAX_KEYS);
        let both = [*limit, crate::common::limit("5 per 2h")];
        assert_eq!(fixture.check("k1", &both, Cost::Ask(1), id), (false, true), "{case}");
        assert_eq!(fixture.check("k1", &both, Cost::Force(4), id), (true, true), "{case}");
        assert_eq!(fixture.left("k1", limit), 0, "{case}: the tracked key is charged");
        assert_eq!(fixture.check("k1", &both, Cost::Ask(1), None), (false, false), "{case}");
    });
}

/// There can be capacity for keys, but none for their entries.
#[test]
fn log_entry_and_permit_bounds_report_no_room() {
    let log = limit("5 per 1h sliding-log");
    let held = limit("5 concurrent");
    for when_full in [DENY, ALLOW, OVERFLOW] {
        let fixture = Fixture::new(when_full, 1);
        let (_permit, outcome) = fixture.acquire("a", &held);
        assert_eq!(outcome, (true, false));
        let denied = when_full != ALLOW;
        assert_eq!(fixture.acquire("a", &held).1, (!denied, denied), "{when_full:?}");
        let expected = [(!denied, denied), (true, true)];
        // With `overflow` the keys may share one log, which already has an entry.
        if when_full != OVERFLOW {
            let outcome =
                [Cost::Ask(1), Cost::Force(1)].map(|cost| fixture.check("b", &[log], cost, None));
            assert_eq!(outcome, expected, "{when_full:?}");
        }
    }
}
