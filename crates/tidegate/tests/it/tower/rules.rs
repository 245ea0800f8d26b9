//! Keys, limits and costs of rules.

use tidegate::Overflow;
use tidegate::tower::{Keyless, RateLimitLayer, Rule};
use tidegate::unstable::headers::Forms;
use tidegate::unstable::policy::{Mode, PathVariants};
use tidegate::unstable::stats::RankBy;

use super::{ALICE, BOB, Fixture, from, rule, with};
use crate::common::limit;
use crate::futures::block_on;

/// The user, as an outer layer that checks logins provides it.
#[derive(Clone)]
struct User(&'static str);

fn user(name: &'static str) -> http::Request<()> {
    let mut request = from(ALICE, "/");
    request.extensions_mut().insert(User(name));
    request
}

fn per_user(limits: &[&str]) -> Rule {
    rule("user", limits).key(|head| Some(head.extension::<User>()?.0.into()))
}

#[test]
fn each_address_has_its_own_count() {
    let fixture = Fixture::with(rule("api", &["2 per 1m sliding-log"]));
    assert_eq!(fixture.statuses(|| from(ALICE, "/"), 3), [200, 200, 429]);
    assert_eq!(fixture.statuses(|| from(BOB, "/"), 3), [200, 200, 429]);
    assert_eq!(fixture.calls(), 4, "what is denied does not reach the service");
    // IPv6 addresses count by /64, and an IPv4-mapped address counts as IPv4.
    let six = |last: u16| from([0x2001, 0xdb8, 0, 1, 0, 0, 0, last], "/");
    assert_eq!([1, 2, 3].map(|last| fixture.status(six(last))), [200, 200, 429]);
    assert_eq!(fixture.status(from([0, 0, 0, 0, 0, 0xffff, 0xc000, 0x201], "/")), 429);
}

#[test]
fn minimal_layer_limits_by_address() {
    let layer = RateLimitLayer::new(limit("1 per 1h sliding-log"));
    let fixture = Fixture::of(layer, tidegate::ManualClock::new(crate::common::at(0)));
    let response = fixture.send(from(ALICE, "/"));
    assert_eq!((response.status.as_u16(), response.body.as_str()), (200, "hello"));
    assert_eq!(response.header("ratelimit-policy"), Some("\"default\";q=1;w=3600"));
    assert_eq!(fixture.status(from(ALICE, "/")), 429);
}

#[test]
fn keys_are_made_by_closures_and_templates() {
    let rows: [(Rule, [(&str, u16); 4]); 7] = [
        (
            rule("key", &["1 per 1m sliding-log"]).key(|head| head.header("x-key").map(Into::into)),
            // Requests without a key share one, which no other request can have.
            [("a", 200), ("b", 200), ("", 200), ("", 429)],
        ),
        (
            rule("key", &["1 per 1m sliding-log"])
                .key(|head| head.header("x-key").map(Into::into))
                .keyless(Keyless::Skip),
            [("a", 200), ("a", 429), ("", 200), ("", 200)],
        ),
        (
            rule("key", &["1 per 1m sliding-log"]).key_template("{header:x-key | client_ip}"),
            [("a", 200), ("192.0.2.1", 200), ("", 200), ("a", 429)],
        ),
        (
            rule("key", &["1 per 1m sliding-log"]).key_template("{header:x-key}"),
            [("a", 200), ("a", 429), ("", 200), ("", 429)],
        ),
        // A request that lacks a part of the template is without a key.
        (
            rule("key", &["1 per 1m sliding-log"])
                .key_template("{header:x-key}")
                .keyless(Keyless::Skip),
            [("a", 200), ("a", 429), ("", 200), ("", 200)],
        ),
        (
            rule("key", &["1 per 1m sliding-log", "9 per 1h"])
                .key_template("{client_ip}:{header:x-key}")
                .keyless(Keyless::Skip),
            [("a", 200), ("a", 429), ("", 200), ("", 200)],
        ),
        (
            rule("key", &["1 per 1m sliding-log"])
                .key_template("{header:x-key | client_ip}")
                .keyless(Keyless::Skip),
            [("a", 200), ("a", 429), ("", 200), ("", 429)],
        ),
    ];
    for (rule, requests) in rows {
        let displayed = format!("{rule:?}");
        let fixture = Fixture::with(rule);
        for (key, expected) in requests {
            let request = from(ALICE, "/");
            let request = if key.is_empty() { request } else { with(request, "x-key", key) };
            assert_eq!(fixture.status(request), expected, "`{key}` under {displayed}");
        }
    }
}

/// If the layer that provides the user runs too late, all users would share one key.
#[test]
fn rejects_requests_without_a_key_if_configured() {
    let per_user = || per_user(&["2 per 1m sliding-log"]).keyless(Keyless::Reject);
    let by_template = rule("key", &["2 per 1m"]).key_template("{client_ip}:{header:x-key}");
    for rule in [per_user(), by_template.keyless(Keyless::Reject)] {
        let fixture = Fixture::with(rule);
        let response = fixture.send(from(ALICE, "/"));
        assert_eq!(response.status, 500);
        assert!(response.body.contains("the request has no key under rule `"), "{}", response.body);
        assert_eq!(fixture.calls(), 0);
    }
    let fixture = Fixture::with(per_user());
    assert_eq!(fixture.statuses(|| user("ann"), 3), [200, 200, 429]);
    // An observed rule never makes a request fail.
    let fixture = Fixture::with(per_user().mode(Mode::Observe));
    assert_eq!(fixture.statuses(|| from(ALICE, "/"), 3), [200, 200, 200]);
}

/// Text that cannot be a key was treated as a key that has used nothing.
#[test]
fn a_text_that_cannot_be_a_key_is_an_error() {
    let composite = rule("pair", &["9 per 1m"]).key_template("{header:a}:{header:b}");
    let fixture = Fixture::new(|builder| builder.rule(rule("api", &["9 per 1m"])).rule(composite));
    assert_eq!(fixture.status(with(with(from(ALICE, "/"), "a", "x"), "b", "y")), 200);
    assert_eq!(fixture.left("pair", "1#x:1#y"), 8);
    assert_eq!(fixture.left("api", "192.0.2.1"), 8);
    for (rule, text) in
        [("pair", "x:y"), ("pair", "x"), ("api", "not an address"), ("api", "192.0.2.0/24")]
    {
        let peeked = block_on(fixture.layer.peek(rule, text));
        let error = peeked.expect_err(text).to_string();
        let expected = format!("`{text}` is not a key of rule `{rule}`: give an address");
        assert!(error.starts_with(&expected), "{error}");
        assert!(block_on(fixture.layer.reset(rule, text)).is_err(), "{text}");
    }
    let fixture = Fixture::with(per_user(&["9 per 1m"]));
    assert_eq!(fixture.left("user", "any text: a closure makes any"), 9);
}

/// `/login;1` and `/login;2` are one key, except with `PathVariants::Keep`.
#[test]
fn path_variants_share_a_key() {
    for (variants, expected) in [(PathVariants::Merge, 429), (PathVariants::Keep, 200)] {
        let rule = rule("key", &["1 per 1m sliding-log"]).key_template("{path}");
        let fixture = Fixture::new(|builder| builder.rule(rule).path_variants(variants));
        assert_eq!(fixture.status(from(ALICE, "/login;1")), 200, "{variants}");
        assert_eq!(fixture.status(from(ALICE, "/login;2")), expected, "{variants}");
    }
}

#[test]
fn several_rules_are_charged_together_or_not_at_all() {
    let fixture = Fixture::new(|builder| {
        builder
            .rule(per_user(&["2 per 1m sliding-log", "10 per 1h sliding-log"]))
            .rule(rule("address", &["3 per 1m sliding-log"]))
    });
    assert_eq!(fixture.statuses(|| user("ann"), 2), [200, 200]);
    // Ann is denied, so the address, which has units left, is not charged.
    assert_eq!(fixture.statuses(|| user("ann"), 5), [429; 5]);
    assert_eq!(fixture.left("address", "192.0.2.1"), 1);
    assert_eq!(fixture.statuses(|| user("ben"), 2), [200, 429]);
    assert_eq!(fixture.left("user", "ben"), 1, "the address denied, so Ben is not charged");
    let denied = fixture.send(user("ben"));
    let policy = "\"user-1m\";q=2;w=60, \"user-1h\";q=10;w=3600, \"address\";q=3;w=60";
    assert_eq!(denied.header("ratelimit-policy"), Some(policy));
    assert_eq!(denied.header("ratelimit"), Some("\"address\";r=0;t=60"), "who denied speaks");
}

#[test]
fn rule_applies_when_its_condition_holds() {
    let fixture = Fixture::with(
        rule("login", &["1 per 1m sliding-log"]).when(|head| head.uri().path() == "/login"),
    );
    assert_eq!(fixture.statuses(|| from(ALICE, "/"), 3), [200; 3]);
    assert_eq!(fixture.statuses(|| from(ALICE, "/login"), 2), [200, 429]);
    let response = fixture.send(from(ALICE, "/"));
    assert_eq!(response.header("ratelimit-policy"), None, "no limit, nothing to tell");
}

#[test]
fn closure_sets_the_cost() {
    let cost = |head: &tidegate::tower::Head<'_>| {
        head.header("x-cost").and_then(|cost| cost.parse().ok()).unwrap_or(1)
    };
    let fixture = Fixture::with(rule("api", &["10 per 1m sliding-log"]).cost(cost));
    let costing = |cost: &str| fixture.send(with(from(ALICE, "/"), "x-cost", cost));
    let rows = [("4", 200, 6), ("7", 429, 6), ("6", 200, 0), ("0", 429, 0)];
    for (cost, status, left) in rows {
        assert_eq!(costing(cost).status, status, "{cost}");
        assert_eq!(fixture.left("api", "192.0.2.1"), left, "{cost}");
    }
    // A cost that can never pass is denied without `Retry-After`.
    let response = costing("18446744073709551615");
    assert_eq!((response.status.as_u16(), response.header("retry-after")), (429, None));
}

#[test]
fn denied_cost_exhausts_a_consuming_rule() {
    let cost = |head: &tidegate::tower::Head<'_>| {
        head.header("x-cost").and_then(|cost| cost.parse().ok()).unwrap_or(1)
    };
    let api = rule("api", &["10 per 1m sliding-log"]).cost(cost).overflow(Overflow::Consume);
    let fixture = Fixture::with(api);
    for (cost, status, left) in [("4", 200, 6), ("7", 429, 0), ("1", 429, 0)] {
        let response = fixture.send(with(from(ALICE, "/"), "x-cost", cost));
        assert_eq!(response.status, status, "{cost}");
        assert_eq!(fixture.left("api", "192.0.2.1"), left, "{cost}");
    }
}

#[test]
fn an_observed_rule_counts_and_never_denies() {
    let fixture = Fixture::new(|builder| {
        builder
            .rule(rule("watched", &["1 per 1m sliding-log"]).mode(Mode::Observe))
            .rule(rule("api", &["3 per 1m sliding-log"]))
            .rule(rule("off", &["0 per 1m"]).mode(Mode::Off))
    });
    assert_eq!(fixture.statuses(|| from(ALICE, "/"), 4), [200, 200, 200, 429]);
    let series = fixture.layer.stats().series();
    let counted = |policy: &str| {
        let series = series.iter().find(|series| &*series.policy == policy).expect("a series");
        (series.allowed[0], series.denied[0])
    };
    // The fourth request was denied by another rule. The decision of the observed rule about it is
    // still counted.
    assert_eq!((counted("watched"), counted("api")), ((1, 3), (3, 1)));
    let response = fixture.send(from(BOB, "/"));
    assert_eq!(response.header("ratelimit-policy"), Some("\"api\";q=3;w=60"));
}

#[test]
fn builder_sets_the_header_forms() {
    let fields = |forms: &str| {
        let forms: Forms = forms.parse().expect("forms");
        let fixture =
            Fixture::new(|builder| builder.rule(rule("api", &["5 per 1m"])).headers(forms));
        let response = fixture.send(from(ALICE, "/"));
        let mut names: Vec<String> = response.headers.keys().map(ToString::to_string).collect();
        names.sort();
        names.join(" ")
    };
    let rows = [
        ("draft-10", "ratelimit ratelimit-policy"),
        ("draft-6", "ratelimit-limit ratelimit-policy ratelimit-remaining ratelimit-reset"),
        ("x-ratelimit", "x-ratelimit-limit x-ratelimit-remaining x-ratelimit-reset"),
        ("none", ""),
    ];
    for (forms, expected) in rows {
        assert_eq!(fields(forms), expected, "{forms}");
    }
}

/// `X-RateLimit-Reset` is a point in time on the limiter's clock, for one limit and for several.
#[test]
fn reset_times_use_the_clock_of_the_limiter() {
    let forms: Forms = "x-ratelimit".parse().expect("forms");
    let resets = |limits: &[&str]| {
        let fixture = Fixture::new(|builder| builder.rule(rule("api", limits)).headers(forms));
        let now = fixture.clock.now().as_micros();
        let responses = [fixture.send(from(ALICE, "/")), fixture.send(from(ALICE, "/"))];
        responses.map(|response| {
            let reset = response.header("x-ratelimit-reset").expect("a time").parse::<u64>();
            (response.status.as_u16(), reset.expect("a number") - now / 1_000_000)
        })
    };
    assert_eq!(resets(&["1 per 10s sliding-log"]), [(200, 10), (429, 10)]);
    assert_eq!(resets(&["1 per 10s sliding-log", "9 per 1h"])[0], (200, 10));
}

#[test]
fn clones_share_their_counts_and_time_passes() {
    let fixture = Fixture::with(rule("api", &["1 per 10s sliding-log"]));
    let other = Fixture::of(fixture.layer.clone(), fixture.clock.clone());
    assert_eq!(fixture.status(from(ALICE, "/")), 200);
    let response = other.send(from(ALICE, "/"));
    assert_eq!((response.status.as_u16(), response.header("retry-after")), (429, Some("10")));
    fixture.clock.advance(std::time::Duration::from_secs(10));
    assert_eq!(other.status(from(ALICE, "/")), 200);
    let reset = crate::futures::block_on(fixture.layer.reset("api", "192.0.2.1"));
    assert_eq!(reset, Ok(true));
    assert_eq!(fixture.status(from(ALICE, "/")), 200);
}

/// The layer's statistics showed credentials.
#[test]
fn keys_of_a_template_are_masked_and_can_be_unmasked() {
    let template = "{header:x-api-key | client_ip}";
    let fixture = Fixture::with(rule("api", &["1 per 1m sliding-log"]).key_template(template));
    let request = || with(from(ALICE, "/"), "x-api-key", "sk_live_4eC39HqLyjWD");
    assert_eq!(fixture.statuses(request, 2), [200, 429]);
    let stats = fixture.layer.stats();
    let displayed = stats.top(RankBy::Denied, Some("api"), 1).keys.entries[0].name.to_string();
    assert!(displayed.starts_with("header:x-api-key=sk_l...#"), "{displayed}");
    let key = stats.unmask("api", &displayed).expect("it is known");
    assert_eq!(key.to_string(), "header:x-api-key=sk_live_4eC39HqLyjWD");
}
