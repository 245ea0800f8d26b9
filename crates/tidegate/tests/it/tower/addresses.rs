//! Requests from one address are counted under the same key, whichever setting finds the address.
//!
//! These tests use the default clock, not a manual one. The window is so long that it does not end
//! while they run.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate::Limiter;
use tidegate::tower::{LayerBuilder, RateLimitLayer, Rule};
use tidegate::unstable::headers::Forms;
use tidegate::unstable::identity::Identity;
use tidegate::unstable::stats::TIMED_EVERY;

use super::{ALICE, Fixture, from, rule, with};
use crate::common::limiter;

fn fixture(build: impl FnOnce(LayerBuilder) -> LayerBuilder) -> Fixture {
    let builder = build(RateLimitLayer::builder().limiter(Limiter::new()));
    Fixture::of(builder.build().expect("a layer"), limiter().1)
}

type Configuration = (&'static str, fn(Rule, LayerBuilder) -> LayerBuilder);

/// Layers that count by address, one for each setting that finds the address.
const CONFIGURATIONS: [Configuration; 5] = [
    ("the address of the socket", |rule, builder| builder.rule(rule)),
    ("a peer function", |rule, builder| {
        let peer = |extensions: &http::Extensions| Some(extensions.get::<SocketAddr>()?.ip());
        builder.rule(rule).peer(peer)
    }),
    ("with trusted proxies, and not from one", |rule, builder| {
        builder.rule(rule).identity(Identity::trusting(["10.0.0.0/8"]).expect("a network"))
    }),
    ("a template", |rule, builder| builder.rule(rule.key_template("{client_ip}"))),
    ("with a reservation", |rule, builder| builder.rule(rule.reserve(|_| 1))),
];

#[test]
fn every_configuration_counts_alike() {
    for (configuration, build) in CONFIGURATIONS {
        for (name, algorithm) in [
            ("api", "sliding-counter"),
            ("api", "sliding-window"),
            ("api", "token-bucket"),
            ("a-name-so-long-that-no-short-buffer-holds-it", "sliding-counter"),
        ] {
            let limit = format!("100 per 366d {algorithm}");
            let fixture = fixture(|builder| build(rule(name, &[&limit]), builder));
            for left in (0..100).rev() {
                let response = fixture.send(from(ALICE, "/"));
                let field = response.header("ratelimit").expect("a field");
                assert_eq!(response.status, 200, "{configuration}, {limit}");
                assert!(
                    field.starts_with(&format!("\"{name}\";r={left};t=")),
                    "{configuration}: {field}"
                );
            }
            assert_eq!(fixture.status(from(ALICE, "/")), 429, "{configuration}, {limit}");
            // The longest textual form of an address.
            assert_eq!(fixture.status(from([255; 4], "/")), 200, "{configuration}, {limit}");
            assert_eq!(fixture.left(name, "192.0.2.1"), 0, "{configuration}, {limit}");
            assert_eq!(fixture.left(name, "255.255.255.255"), 99, "{configuration}, {limit}");
            let all = fixture.layer.stats().series();
            let series = all.iter().find(|one| &*one.policy == name).expect("its counts");
            let (allowed, refused) = (series.allowed.iter().sum(), series.denied.iter().sum());
            // Requests that left 5 or fewer are near the limit.
            assert_eq!(
                (allowed, refused, series.near),
                (101_u64, 1_u64, 6),
                "{configuration}, {limit}"
            );
        }
    }
}

#[test]
fn plan_has_its_own_name_and_shares_the_count_of_its_rule() {
    for (configuration, build) in &CONFIGURATIONS[..4] {
        let limit = "10000 per 366d";
        let rule = rule("api", &[limit])
            .plan("large", [limit.parse().expect("a limit")])
            .plan_of(|head| head.header("x-plan").map(|plan| plan.to_owned().into()));
        let fixture = fixture(|builder| build(rule, builder));
        for _ in 0..1_000 {
            assert_eq!(fixture.status(from(ALICE, "/")), 200, "{configuration}");
            assert_eq!(
                fixture.status(with(from(ALICE, "/"), "x-plan", "large")),
                200,
                "{configuration}"
            );
            assert_eq!(
                fixture.status(with(from(ALICE, "/"), "x-plan", "large")),
                200,
                "{configuration}"
            );
        }
        let left = ["api", "api.large"].map(|name| fixture.left(name, "192.0.2.1"));
        assert_eq!(left, [7_000, 7_000], "{configuration}");
        let series = fixture.layer.stats().series();
        let allowed = ["api", "api.large"].map(|name| {
            let series = series.iter().find(|series| &*series.policy == name).expect("a series");
            series.allowed[0]
        });
        assert_eq!(allowed, [1_000, 2_000], "{configuration}");
    }
}

#[test]
fn every_configuration_is_timed() {
    let every = usize::from(TIMED_EVERY);
    for (configuration, build) in CONFIGURATIONS {
        for forms in [Forms::NONE, Forms::default()] {
            let rule = rule("api", &["1000000 per 1h"]);
            let fixture = fixture(|builder| build(rule, builder.headers(forms)));
            assert_eq!(fixture.statuses(|| from(ALICE, "/"), 10 * every), vec![200; 10 * every]);
            let all = fixture.layer.stats().service_latency();
            let timed: u64 = all.iter().map(|one| one.counts.count()).sum();
            assert!((9..=11).contains(&timed), "{configuration}: {timed}");
        }
    }
}

#[test]
fn keys_other_than_the_socket_address_are_counted() {
    let one = || rule("api", &["1 per 366d"]);
    let key = || one().key(|head| head.header("x-who").map(|client| client.to_owned().into()));
    let template = || one().key_template("{header:x-who}");
    let trusted = || Identity::trusting(["192.0.2.0/24"]).expect("a network");
    let peer = |extensions: &http::Extensions| extensions.get::<IpAddr>().copied();
    let fixtures = [
        ("a closure's key", fixture(|builder| builder.rule(key()))),
        ("a template's key", fixture(|builder| builder.rule(template()))),
        ("behind a proxy", fixture(|builder| builder.rule(one()).identity(trusted()))),
        ("a peer of its own", fixture(|builder| builder.rule(one()).peer(peer))),
        ("IPv6", fixture(|builder| builder.rule(one()))),
    ];
    for (description, fixture) in fixtures {
        let send = |client: u8| {
            let address = Ipv4Addr::new(198, 51, 100, client).to_string();
            let mut request = match description {
                "IPv6" => from(Ipv6Addr::new(0x2001, 0xdb8, 0, client.into(), 0, 0, 0, 1), "/"),
                _ => from(ALICE, "/"),
            };
            request = with(with(request, "x-who", &address), "x-forwarded-for", &address);
            request.extensions_mut().insert(address.parse::<IpAddr>().expect("an address"));
            fixture.status(request)
        };
        assert_eq!([1, 2, 1, 2].map(send), [200, 200, 429, 429], "{description}");
    }
    // With two rules, both apply.
    let fixture = fixture(|builder| builder.rule(rule("most", &["9 per 366d"])).rule(one()));
    assert_eq!(fixture.statuses(|| from(ALICE, "/"), 2), [200, 429]);
}

/// A dual-stack socket reports an IPv4 address as an IPv6 address.
#[test]
fn spellings_of_an_address_share_a_count() {
    for (configuration, build) in CONFIGURATIONS {
        let fixture = fixture(|builder| build(rule("api", &["4 per 366d"]), builder));
        let mapped = || from(Ipv4Addr::from(ALICE).to_ipv6_mapped(), "/");
        let statuses = [from(ALICE, "/"), mapped(), from(ALICE, "/"), mapped()];
        assert_eq!(statuses.map(|request| fixture.status(request)), [200; 4], "{configuration}");
        assert_eq!(fixture.status(from(ALICE, "/")), 429, "{configuration}");
        assert_eq!(fixture.status(mapped()), 429, "{configuration}");
    }
}

/// Closures may count or log, so each is called once per request, whether it is admitted or not.
#[test]
fn closures_are_called_once() {
    for algorithm in ["sliding-counter", "token-bucket"] {
        for (configuration, build) in &CONFIGURATIONS[..4] {
            let calls: [Arc<AtomicUsize>; 3] = Default::default();
            let [when, plan, cost] = calls.clone();
            let limit = format!("100 per 366d {algorithm}");
            let rule = rule("api", &[&limit])
                .plan("small", ["3 per 366d".parse().expect("a limit")])
                .when(move |_| when.fetch_add(1, Ordering::Relaxed) < usize::MAX)
                .plan_of(move |_| {
                    let call = plan.fetch_add(1, Ordering::Relaxed);
                    (call % 2 == 1).then_some("small".into())
                })
                .cost(move |_| 1 + cost.fetch_add(1, Ordering::Relaxed) as u64 % 2);
            let fixture = fixture(|builder| build(rule, builder));
            // Requests under the small plan cost two each: the first passes, the others do not.
            for round in 0..20 {
                let expected = if round % 2 == 0 || round < 2 { 200 } else { 429 };
                assert_eq!(
                    fixture.status(from(ALICE, "/")),
                    expected,
                    "{configuration}, {limit}, {round}"
                );
            }
            let called = calls.map(|calls| calls.load(Ordering::Relaxed));
            assert_eq!(called, [20; 3], "{configuration}, {limit}");
        }
    }
}
