//! Layers within layers, and services that set rate limit fields themselves.

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body_util::{BodyExt, Full};
use tidegate::tower::{LimitedBody, RateLimitLayer, Rule};
use tower::{Layer, Service, service_fn};

use super::{ALICE, Stub, from, rule};
use crate::futures::block_on;

fn layer(rule: Rule, forms: &str) -> RateLimitLayer {
    let forms = forms.parse().expect("forms");
    RateLimitLayer::builder().rule(rule).headers(forms).build().expect("a layer")
}

/// Two rules with the same decisions, without and with a reservation.
fn equivalent_rules(name: &str, limit: &str) -> [Rule; 2] {
    [rule(name, &[limit]), rule(name, &[limit]).reserve(|_| 1)]
}

const FIELDS: [(&str, &[&str]); 3] = [
    ("draft-10", &["ratelimit", "ratelimit-policy"]),
    ("draft-7", &["ratelimit", "ratelimit-policy"]),
    ("x-ratelimit", &["x-ratelimit-limit", "x-ratelimit-remaining"]),
];

fn field_values<'f>(fields: &'f HeaderMap, names: &[&str]) -> Vec<Option<&'f str>> {
    let field_values = |name: &&str| fields.get(*name).map(|value| value.to_str().expect("text"));
    names.iter().map(field_values).collect()
}

/// The outer layer replaced the header fields of a denial by the inner layer.
#[test]
fn inner_layer_sets_the_header_fields() {
    for (forms, names) in FIELDS {
        for outer in equivalent_rules("outer", "50 per 1h fixed-window") {
            let inner = layer(rule("inner", &["1 per 1h fixed-window"]), forms);
            let mut inner_only = inner.layer(Stub::default());
            let mut both = layer(outer, forms).layer(
                layer(rule("inner", &["1 per 1h fixed-window"]), forms).layer(Stub::default()),
            );
            for status in [200, 429] {
                let one = block_on(inner_only.call(from(ALICE, "/"))).expect("the service works");
                let two = block_on(both.call(from(ALICE, "/"))).expect("the service works");
                assert_eq!((one.status().as_u16(), two.status().as_u16()), (status, status));
                assert!(field_values(one.headers(), names).iter().all(Option::is_some), "{forms}");
                let without_time = |fields| {
                    let field_values = field_values(fields, names).into_iter().flatten();
                    let field_values = field_values
                        .map(|text| text.split(";t=").next().unwrap_or(text).to_owned());
                    field_values
                        .map(|text| text.split(", reset=").next().unwrap_or(&text).to_owned())
                        .collect::<Vec<String>>()
                };
                assert_eq!(without_time(two.headers()), without_time(one.headers()), "{forms}");
            }
        }
    }
}

#[test]
fn header_fields_of_the_service_are_kept() {
    for (forms, names) in FIELDS {
        for rule in equivalent_rules("ours", "50 per 1h") {
            let upstream = service_fn(move |_: http::Request<()>| async move {
                let mut response = Response::builder().status(429);
                for name in names {
                    response = response.header(*name, "theirs");
                }
                Ok::<_, Infallible>(response.body(Full::<Bytes>::default()).expect("a response"))
            });
            let mut service = layer(rule, forms).layer(upstream);
            let response = block_on(service.call(from(ALICE, "/"))).expect("it cannot fail");
            assert_eq!(field_values(response.headers(), names), vec![Some("theirs"); 2], "{forms}");
        }
    }
}

/// Outer layers that respond themselves, such as time-outs, need a default body.
#[test]
fn limited_body_has_a_default() {
    let body = LimitedBody::<Full<Bytes>>::default();
    assert!(block_on(body.collect()).expect("a body").to_bytes().is_empty());
}
