//! What is answered instead.

use bytes::Bytes;
use http::{Request, Response};
use tidegate::policy::{Charge, Policies, Policy};

use super::{ALICE, World, from, rule, with};

#[test]
fn a_denial_is_a_problem_document() {
    let world = World::with(rule("login", &["1 per 1m sliding-log"]));
    world.ask(from(ALICE, "/login"));
    let told = world.ask(from(ALICE, "/login"));
    assert_eq!(told.status, 429);
    let fields = [
        ("content-type", "application/problem+json"),
        ("retry-after", "60"),
        ("ratelimit", "\"login\";r=0;t=60"),
        ("ratelimit-policy", "\"login\";q=1;w=60"),
    ];
    for (name, value) in fields {
        assert_eq!(told.header(name), Some(value), "{name}");
    }
    assert_eq!(
        told.body,
        "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
         \"title\":\"Request cannot be satisfied as assigned quota has been exceeded\",\
         \"status\":429,\"detail\":\"used up: `1 per 1m sliding-log` of policy login; retry after 60 s\",\
         \"violated-policies\":[\"login\"]}"
    );
}

#[test]
fn a_grpc_call_is_told_in_its_own_words() {
    let world = World::with(rule("rpc", &["1 per 1m sliding-log"]));
    let call = || with(from(ALICE, "/greeter/hello"), "content-type", "application/grpc+proto");
    assert_eq!(world.ask(call()).status, 200);
    let told = world.ask(call());
    assert_eq!((told.status.as_u16(), told.body.as_str()), (200, ""));
    let fields = [
        ("content-type", "application/grpc+proto"),
        ("grpc-status", "8"),
        ("grpc-message", "a rate limit is used up"),
        ("grpc-retry-pushback-ms", "60000"),
        ("retry-after", "60"),
    ];
    for (name, value) in fields {
        assert_eq!(told.header(name), Some(value), "{name}");
    }
}

#[test]
fn a_denial_can_be_anything() {
    let world = World::new(|builder| {
        builder.rule(rule("api", &["0 per 1m"])).on_denied(|denied| {
            let policy = denied.answer().speaker().and_then(|line| line.policy);
            let text = format!("{} {policy:?} {}", denied.head().method(), denied.status());
            let mut response = Response::new(Bytes::from(text));
            *response.status_mut() = http::StatusCode::IM_A_TEAPOT;
            response.headers_mut().extend(denied.fields());
            response
        })
    });
    let told = world.ask(from(ALICE, "/"));
    assert_eq!(told.status, 418);
    assert_eq!(told.body, "GET Some(\"api\") 429 Too Many Requests");
    assert_eq!(told.header("ratelimit-policy"), Some("\"api\";q=0;w=60"));
}

#[test]
fn without_an_address_nobody_is_counted_as_somebody_else() {
    let anonymous = |path: &str| Request::builder().uri(path).body(()).expect("a request");
    let expected = "{\"type\":\"about:blank\",\"title\":\"Internal Server Error\",\"status\":500,\
        \"detail\":\"the client's address is not known: serve the app with \
        `into_make_service_with_connect_info::<SocketAddr>()` (and tidegate's feature `axum`), \
        or tell the layer where it is with `peer(..)`\"}";
    let by_template = |template: &str| {
        rule("api", &["5 per 1m"]).key_template(template.parse().expect("a template"))
    };
    let rows = [
        (rule("api", &["5 per 1m"]), 500),
        (by_template("{client_ip}"), 500),
        (by_template("{header:x-key | client_ip}"), 500),
        (by_template("{header:x-key}"), 200),
        (rule("api", &["5 per 1m"]).key(|_| Some("all".into())), 200),
        (rule("api", &["5 per 1m"]).when(|head| head.uri().path() == "/other"), 200),
    ];
    for (rule, status) in rows {
        let shown = format!("{rule:?}");
        let world = World::with(rule);
        let told = world.ask(anonymous("/"));
        assert_eq!(told.status, status, "{shown}");
        assert_eq!(world.calls(), usize::from(status == 200), "{shown}");
        if status == 500 {
            assert_eq!(told.body, expected);
        }
    }
    let world = World::new(|builder| {
        let rule = rule("api", &["1 per 1m sliding-log"]);
        builder.rule(rule).peer(|extensions| extensions.get::<[u8; 4]>().map(|ip| (*ip).into()))
    });
    let mut known = anonymous("/");
    known.extensions_mut().insert(ALICE);
    assert_eq!([known.clone(), known].map(|request| world.status(request)), [200, 429]);
}

#[test]
fn what_a_request_gets_wrong_is_its_fault() {
    let (limiter, clock) = crate::common::limiter();
    let policy = Policy::new(
        "file",
        "{client_ip}".parse().expect("a template"),
        vec![crate::common::limit("5 per 1m")],
    );
    let cost = Charge::from_template(&"{header:x-cost}".parse().expect("a template"));
    let policy = policy.expect("a policy").with_cost(cost.expect("a cost"));
    let policies = Policies::new(vec![policy], Default::default()).expect("policies");
    let gate = tidegate::gate::Gate::new(limiter, policies, Default::default());
    let layer = tidegate::tower::RateLimitLayer::over(gate.into()).build().expect("a layer");
    let world = World::of(layer, clock);
    let bad = || with(from(ALICE, "/"), "x-cost", "many");
    let told = world.ask(bad());
    assert_eq!(told.status, 400);
    let detail =
        "\"detail\":\"the cost for policy `file` comes from {header:x-cost}, which holds `many`";
    assert!(told.body.contains(detail), "{}", told.body);
    let told = world.ask(with(bad(), "content-type", "application/grpc"));
    assert_eq!((told.status.as_u16(), told.header("grpc-status")), (200, Some("3")));
    assert_eq!(world.calls(), 0);
}
