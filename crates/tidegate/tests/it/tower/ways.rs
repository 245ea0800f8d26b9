//! The usual request has ways of its own through the layer, and they come to the same.
//!
//! On the clock that programs have, not on one that stands: only there are requests let
//! in on the shortest way. The window is so long that it does not end meanwhile.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Request;
use tidegate::Limiter;
use tidegate::identity::Identity;
use tidegate::policy::Template;
use tidegate::tower::{Builder, RateLimitLayer, Rule};

use super::{ALICE, BOB, World, rule};
use crate::common::limiter;

/// A request as servers hand it on: with the socket's address.
fn from_socket(address: impl Into<IpAddr>) -> Request<()> {
    let mut request = Request::builder().uri("/").body(()).expect("a request");
    request.extensions_mut().insert(SocketAddr::new(address.into(), 40_000));
    request
}

fn world(build: impl FnOnce(Builder) -> Builder) -> World {
    let builder = build(RateLimitLayer::builder().limiter(Limiter::new()));
    World::of(builder.build().expect("a layer"), limiter().1)
}

type Way = (&'static str, fn(Rule, Builder) -> Builder);

/// By address, on every way.
const WAYS: [Way; 5] = [
    ("the shortest", |rule, builder| builder.rule(rule)),
    ("with a peer of its own", |rule, builder| {
        let peer = |extensions: &http::Extensions| Some(extensions.get::<SocketAddr>()?.ip());
        builder.rule(rule).peer(peer)
    }),
    ("behind proxies", |rule, builder| {
        let trusted = vec!["10.0.0.0/8".parse().expect("a network")];
        builder.rule(rule).identity(Identity::new(trusted, 64))
    }),
    ("by a template", |rule, builder| {
        let template: Template = "{client_ip}".parse().expect("a template");
        builder.rule(rule.key_template(template))
    }),
    ("for all", |rule, builder| builder.rule(rule.reserve(|_| 1))),
];

#[test]
fn every_way_counts_alike() {
    let long = "a-name-so-long-that-its-prefix-is-not-short";
    for (way, build) in WAYS {
        for (name, algorithm) in
            [("api", "sliding-counter"), ("api", "token-bucket"), (long, "sliding-counter")]
        {
            let limit = format!("100 per 366d {algorithm}");
            let world = world(|builder| build(rule(name, &[&limit]), builder));
            for left in (0..100).rev() {
                let told = world.ask(from_socket(ALICE));
                let said = told.header("ratelimit").expect("a field");
                assert_eq!(told.status, 200, "{way}, {limit}");
                assert!(said.starts_with(&format!("\"{name}\";r={left};t=")), "{way}: {said}");
            }
            assert_eq!(world.status(from_socket(ALICE)), 429, "{way}, {limit}");
            assert_eq!(world.status(from_socket(BOB)), 200, "{way}, {limit}");
            assert_eq!(world.left(name, "192.0.2.1"), 0, "{way}, {limit}");
            assert_eq!(world.left(name, "192.0.2.2"), 99, "{way}, {limit}");
            let all = world.layer.stats().series();
            let series = all.iter().find(|one| &*one.policy == name).expect("its counts");
            let (allowed, refused) = (series.allowed.iter().sum(), series.refused.iter().sum());
            // Near are those that left 5 or fewer.
            assert_eq!((allowed, refused, series.near), (101_u64, 1_u64, 6), "{way}, {limit}");
        }
    }
}

/// A socket for both kinds of address shows an IPv4 address as an IPv6 one.
#[test]
fn an_address_is_one_however_it_is_written() {
    for (way, build) in WAYS {
        let world = world(|builder| build(rule("api", &["4 per 366d"]), builder));
        let mapped = || from_socket(Ipv4Addr::from(ALICE).to_ipv6_mapped());
        let statuses = [from_socket(ALICE), mapped(), from_socket(ALICE), mapped()];
        assert_eq!(statuses.map(|request| world.status(request)), [200; 4], "{way}");
        assert_eq!(world.status(from_socket(ALICE)), 429, "{way}");
        assert_eq!(world.status(mapped()), 429, "{way}");
    }
}

/// Closures may count or log: each is called once for a request, whatever becomes of it.
#[test]
fn closures_are_called_once() {
    for algorithm in ["sliding-counter", "token-bucket"] {
        for (way, build) in &WAYS[..4] {
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
            let world = world(|builder| build(rule, builder));
            // Two each for those of the small plan: the first passes, the others do not.
            for round in 0..20 {
                let expected = if round % 2 == 0 || round < 2 { 200 } else { 429 };
                assert_eq!(world.status(from_socket(ALICE)), expected, "{way}, {limit}, {round}");
            }
            let called = calls.map(|calls| calls.load(Ordering::Relaxed));
            assert_eq!(called, [20; 3], "{way}, {limit}");
        }
    }
}
