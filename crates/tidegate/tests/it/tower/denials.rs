//! The responses to rejected requests.

use http::{Request, Response};
use serde_json::Value;
use tidegate::tower::{Head, Keyless, Rejection, Rule, UnknownPlan};
use tidegate::unstable::policy::{CostSource, Policies, Policy};
use tidegate::{DenialReason, Limit};

use super::{ALICE, Fixture, from, rule, with};
use crate::common::limit;

#[test]
fn a_denial_is_a_problem_document() {
    let fixture = Fixture::with(rule("login", &["1 per 1m sliding-log"]));
    fixture.send(from(ALICE, "/login"));
    let response = fixture.send(from(ALICE, "/login"));
    assert_eq!(response.status, 429);
    let fields = [
        ("content-type", "application/problem+json"),
        ("retry-after", "60"),
        ("ratelimit", "\"login\";r=0;t=60"),
        ("ratelimit-policy", "\"login\";q=1;w=60"),
    ];
    for (name, value) in fields {
        assert_eq!(response.header(name), Some(value), "{name}");
    }
    assert_eq!(
        response.body,
        "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
         \"title\":\"Request cannot be satisfied as assigned quota has been exceeded\",\
         \"status\":429,\"detail\":\"used up: `1 per 1m sliding-log` of policy login; retry after 60 s\",\
         \"violated-policies\":[\"login\"]}"
    );
}

#[test]
fn denied_grpc_call_gets_a_grpc_status() {
    let fixture = Fixture::with(rule("rpc", &["1 per 1m sliding-log"]));
    let call = || with(from(ALICE, "/greeter/hello"), "content-type", "application/grpc+proto");
    assert_eq!(fixture.send(call()).status, 200);
    let response = fixture.send(call());
    assert_eq!((response.status.as_u16(), response.body.as_str()), (200, ""));
    let fields = [
        ("content-type", "application/grpc+proto"),
        ("grpc-status", "8"),
        ("grpc-message", "used up: `1 per 1m sliding-log` of policy rpc; retry after 60 s"),
        ("grpc-retry-pushback-ms", "60000"),
        ("retry-after", "60"),
    ];
    for (name, value) in fields {
        assert_eq!(response.header(name), Some(value), "{name}");
    }
}

#[test]
fn on_denied_replaces_the_response() {
    let fixture = Fixture::new(|builder| {
        builder.rule(rule("api", &["0 per 1m"])).on_denied(|head, mut rejection| {
            let (policy, limit) = (rejection.policy(), rejection.limit().map(ToString::to_string));
            let text =
                format!("{} {policy:?} {limit:?} {:?}", head.method(), rejection.retry_after());
            *rejection.response_mut().status_mut() = http::StatusCode::IM_A_TEAPOT;
            *rejection.response_mut().body_mut() = text;
            Response::from(rejection)
        })
    });
    let response = fixture.send(from(ALICE, "/"));
    assert_eq!(response.status, 418);
    let limit = "0 per 1m sliding-window";
    assert_eq!(response.body, format!("GET Some(\"api\") Some(\"{limit}\") Never"));
    assert_eq!(response.header("ratelimit-policy"), Some("\"api\";q=0;w=60"));
}

/// A new response from `on_denied` was sent as a 200 without `Retry-After`.
#[test]
fn replaced_response_keeps_status_and_header_fields() {
    let plain = |_: &Head<'_>, _: Rejection| Response::new("slow down".to_owned());
    let fixture = Fixture::new(|builder| {
        builder.rule(rule("api", &["1 per 1m sliding-log"])).on_denied(plain)
    });
    assert_eq!(fixture.status(from(ALICE, "/")), 200);
    let response = fixture.send(from(ALICE, "/"));
    assert_eq!((response.status.as_u16(), response.body.as_str()), (429, "slow down"));
    let fields = [
        ("retry-after", Some("60")),
        ("ratelimit", Some("\"api\";r=0;t=60")),
        ("ratelimit-policy", Some("\"api\";q=1;w=60")),
        ("content-type", None),
    ];
    for (name, value) in fields {
        assert_eq!(response.header(name), value, "{name}");
    }
    // A gRPC call keeps its status field.
    let response = fixture.send(with(from(ALICE, "/"), "content-type", "application/grpc"));
    assert_eq!((response.status.as_u16(), response.header("grpc-status")), (200, Some("8")));
}

/// `on_denied` was called only for denials by a limit.
#[test]
fn every_response_of_the_layer_can_be_replaced() {
    let anonymous = Request::builder().uri("/").body(()).expect("a request");
    let unknown = |_: &str| UnknownPlan::Reject;
    let rows = [
        (rule("api", &["0 per 1m"]), from(ALICE, "/"), 429),
        (rule("api", &["5 per 1m"]), anonymous, 500),
        (
            rule("api", &["5 per 1m"])
                .plan("pro", limit("9 per 1m"))
                .plan_of(|_| Some("none".into()))
                .on_unknown_plan(unknown),
            from(ALICE, "/"),
            500,
        ),
        (
            rule("api", &["5 per 1m"]).limits_of(|_| Some(Vec::<Limit>::new())),
            from(ALICE, "/"),
            500,
        ),
    ];
    for (rule, request, status) in rows {
        let fixture = Fixture::new(|builder| {
            builder.rule(rule).on_denied(|_, rejection| {
                let mut response = Response::new(format!("mine: {}", rejection.status().as_u16()));
                response.headers_mut().insert("x-mine", "yes".parse().expect("a value"));
                response
            })
        });
        let response = fixture.send(request);
        assert_eq!((response.status.as_u16(), response.body), (status, format!("mine: {status}")));
        assert_eq!(response.headers["x-mine"], "yes");
        assert_eq!(fixture.calls(), 0);
    }
}

/// A body that `on_denied` makes could not contain the cause, which only the prepared body had.
#[test]
fn a_rejection_names_its_cause() {
    let anonymous = || Request::builder().uri("/").body(()).expect("a request");
    let api = || rule("api", &["9 per 1m sliding-log"]);
    let plans = |plan: &'static str| {
        let rule = api().plan("pro", limit("9 per 1m")).plan_of(move |_| Some(plan.into()));
        rule.on_unknown_plan(|_| UnknownPlan::Reject)
    };
    let long: &str = Box::leak("x".repeat(9_000).into_boxed_str());
    let cut = format!("rule `api` has no plan `{}...`: add it with `plan`", &long[..64]);
    let rows: [(Rule, Request<()>, Option<DenialReason>, &str); 6] = [
        (
            api().cost(|_| 10),
            from(ALICE, "/"),
            Some(DenialReason::LimitReached),
            "this cost can never pass `9 per 1m sliding-log` of policy api",
        ),
        (api(), anonymous(), None, "the client's address is not known: "),
        (
            api().key(|_| None).keyless(Keyless::Reject),
            from(ALICE, "/"),
            None,
            "the request has no key under rule `api`: ",
        ),
        (
            plans("gold"),
            from(ALICE, "/"),
            None,
            "rule `api` has no plan `gold`: add it with `plan`",
        ),
        // The name of a plan may come from the client.
        (
            plans("<\u{1b}[2J\u{202e}\n\">"),
            from(ALICE, "/"),
            None,
            "rule `api` has no plan `<\\x1b[2J\\xe2\\x80\\xae\\x0a\">`: ",
        ),
        (plans(long), from(ALICE, "/"), None, &cut),
    ];
    for (rule, request, reason, detail) in rows {
        let fixture = Fixture::new(move |builder| {
            builder.rule(rule).on_denied(move |_, rejection| {
                assert_eq!(rejection.reason(), reason);
                let prepared: Value =
                    serde_json::from_str(rejection.response().body()).expect("JSON");
                assert_eq!(prepared["detail"], rejection.detail());
                let error: &dyn std::error::Error = &rejection;
                let text = format!("({}): {}", rejection.status(), rejection.detail());
                assert_eq!(error.to_string(), format!("the request is rejected {text}"));
                Response::new(rejection.detail().to_owned())
            })
        });
        let response = fixture.send(request);
        assert!(response.body.starts_with(detail), "{}", response.body);
        assert!(response.body.len() <= detail.len() + 200, "{}", response.body);
    }
}

/// The cost of a request may be more than what is left of a limit that is not used up.
#[test]
fn a_rejected_grpc_call_has_the_cause_as_its_message() {
    let costly = rule("rpc", &["100 per 1m sliding-log"]).cost(|head| match head.path() {
        "/greeter/hello" => 21,
        _ => 90,
    });
    let fixture = Fixture::new(|builder| {
        builder.rule(costly).on_denied(|_, mut rejection| {
            *rejection.response_mut().body_mut() = rejection.detail().to_owned();
            Response::from(rejection)
        })
    });
    let call = |path| with(from(ALICE, path), "content-type", "application/grpc");
    assert_eq!(fixture.send(call("/greeter/hello")).header("grpc-status"), None);
    let response = fixture.send(call("/greeter/books"));
    let message = "not enough left: `100 per 1m sliding-log` of policy rpc; retry after 60 s";
    assert_eq!(response.header("grpc-message"), Some(message));
    assert_eq!(response.body, message);
}

#[test]
fn missing_address_is_an_error() {
    let anonymous = |path: &str| Request::builder().uri(path).body(()).expect("a request");
    let expected = "{\"type\":\"about:blank\",\"title\":\"Internal Server Error\",\"status\":500,\
        \"detail\":\"the client's address is not known: serve the app with \
        `into_make_service_with_connect_info::<SocketAddr>()` (and tidegate's feature `axum`), \
        or set it with `peer(..)`\"}";
    let by_template = |template: &str| rule("api", &["5 per 1m"]).key_template(template);
    let rows = [
        (rule("api", &["5 per 1m"]), 500),
        (by_template("{client_ip}"), 500),
        (by_template("{header:x-key | client_ip}"), 500),
        (by_template("{header:x-key}"), 200),
        (rule("api", &["5 per 1m"]).key(|_| Some("all".into())), 200),
        (rule("api", &["5 per 1m"]).when(|head| head.uri().path() == "/other"), 200),
        // A rule can skip requests without an address.
        (rule("api", &["0 per 1m"]).keyless(Keyless::Skip), 200),
        (by_template("{client_ip}").keyless(Keyless::Skip), 200),
        (by_template("{header:x-key | client_ip}").keyless(Keyless::Skip), 200),
    ];
    for (rule, status) in rows {
        let displayed = format!("{rule:?}");
        let fixture = Fixture::with(rule);
        let response = fixture.send(anonymous("/"));
        assert_eq!(response.status, status, "{displayed}");
        assert_eq!(fixture.calls(), usize::from(status == 200), "{displayed}");
        if status == 500 {
            assert_eq!(response.body, expected);
        }
    }
    let fixture = Fixture::new(|builder| {
        let rule = rule("api", &["1 per 1m sliding-log"]);
        builder.rule(rule).peer(|extensions| extensions.get::<[u8; 4]>().map(|ip| (*ip).into()))
    });
    let mut known = anonymous("/");
    known.extensions_mut().insert(ALICE);
    assert_eq!([known.clone(), known].map(|request| fixture.status(request)), [200, 429]);
}

#[test]
fn invalid_request_is_a_client_error() {
    let (limiter, clock) = crate::common::limiter();
    let policy =
        Policy::new("file", "{client_ip}".parse().expect("a template"), vec![limit("5 per 1m")]);
    let cost = CostSource::from_template(&"{header:x-cost}".parse().expect("a template"));
    let policy = policy.expect("a policy").with_cost(cost.expect("a cost"));
    let policies = Policies::new(vec![policy], Default::default()).expect("policies");
    let gate = tidegate::unstable::gate::Gate::new(limiter, policies, Default::default());
    let layer = tidegate::tower::RateLimitLayer::from_gate(gate.into()).build().expect("a layer");
    let fixture = Fixture::of(layer, clock);
    let bad = || with(from(ALICE, "/"), "x-cost", "many");
    let response = fixture.send(bad());
    assert_eq!(response.status, 400);
    let detail =
        "\"detail\":\"the cost for policy `file` comes from {header:x-cost}, which holds `many`";
    assert!(response.body.contains(detail), "{}", response.body);
    let response = fixture.send(with(bad(), "content-type", "application/grpc"));
    assert_eq!((response.status.as_u16(), response.header("grpc-status")), (200, Some("3")));
    assert_eq!(fixture.calls(), 0);
}
