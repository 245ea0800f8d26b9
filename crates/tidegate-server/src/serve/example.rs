//! A request to try, made from the first policy.

use std::borrow::Cow;
use std::net::IpAddr;

use serde_json::{Map, Value, json};
use tidegate::unstable::attributes::{Attributes, Headers};
use tidegate::unstable::policy::{Mode, Policies, Policy, RequestField};

/// A request of the HTTP API that the first policy decides.
pub struct Example {
    pub path: &'static str,
    /// JSON without a `'`, so that a shell takes it between two of them.
    pub body: String,
}

impl Example {
    /// Returns an example for the first policy that is not off and has limits, else for the first.
    /// `None` if there are no policies.
    pub fn new(policies: &Policies) -> Option<Self> {
        let has_effect = |policy: &&Policy| policy.mode() != Mode::Off && !policy.is_unlimited();
        let policy = policies.iter().find(has_effect).or(policies.iter().next())?;
        let named = || json!({ "policy": policy.name(), "key": "alice" });
        let (path, body) = match policy.has_concurrency() {
            true => ("/v1/permits", named()),
            false => ("/v1/check", attributes(policies, policy).unwrap_or_else(named)),
        };
        Some(Example { path, body: body.to_string().replace('\'', "\\u0027") })
    }
}

/// Returns a check with the attributes of a request that the policy decides; `None` if no such
/// request is obvious, or if it needs a permit for another policy.
fn attributes(policies: &Policies, policy: &Policy) -> Option<Value> {
    let fields = policy.example_request()?;
    let (mut body, mut headers) = (Map::new(), Vec::new());
    for (field, value) in &fields {
        let name = match field {
            RequestField::Method => "method",
            RequestField::Path => "path",
            RequestField::Host => "host",
            RequestField::ClientIp => "client_ip",
            RequestField::Header(name) => {
                headers.push((Cow::from(name.as_str()), Cow::from(value.as_str())));
                continue;
            }
            _ => return None,
        };
        body.insert(name.into(), value.as_str().into());
    }
    let text = |name: &str| body.get(name).and_then(Value::as_str);
    let attributes = Attributes {
        method: text("method"),
        path: text("path"),
        host: text("host"),
        client_ip: text("client_ip").and_then(|address| address.parse::<IpAddr>().ok()),
        headers: Headers::Pairs(&headers),
        ..Attributes::default()
    };
    let selected = policies.select(&attributes).ok()?;
    let is_decided = selected.iter().any(|one| one.policy.name() == policy.name());
    if !is_decided || selected.iter().any(|one| one.policy.has_concurrency()) {
        return None;
    }
    if !headers.is_empty() {
        let headers: Map<String, Value> =
            headers.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        body.insert("headers".into(), headers.into());
    }
    Some(json!({ "attributes": body }))
}
