//! The text printed at start: the store, the policies, the addresses, the pages, and a command to
//! try, made from the first policy.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde_json::{Map, Value, json};
use tidegate::unstable::attributes::{Attributes, Headers};
use tidegate::unstable::config::Config;
use tidegate::unstable::policy::{Mode, Policies, Policy, RequestField};

use super::BoundFront;
use super::config_source::ConfigSource;
use super::settings::secret_of;
use crate::authentication::Access;
use crate::logs;
use crate::server_state::FrontName;

/// The text of the banner, built once the sockets are bound.
pub struct Banner {
    text: String,
    /// A `curl` command to try.
    command: Option<String>,
}

impl Banner {
    pub fn new(
        config: &Config,
        store_is_up: bool,
        source: &ConfigSource,
        fronts: [(FrontName, Option<&BoundFront>); 4],
    ) -> Self {
        let missing = if store_is_up { "" } else { " (not reachable yet)" };
        let version = env!("CARGO_PKG_VERSION");
        let mut text = format!("tidegate {version}: {} store{missing}, ", config.store);
        // Writing to memory cannot fail.
        let _ = match source.is_none() {
            false => {
                let count = config.policies.len();
                let noun = if count == 1 { "policy" } else { "policies" };
                writeln!(text, "{count} {noun} from {source}")
            }
            true => {
                writeln!(text, "no config: `default` allows 100 per 1m to every client address")
            }
        };
        for (front, bound) in fronts {
            let url = bound.map(|bound| match bound.socket.tcp_address() {
                Some(address) => url(bound, address),
                None => bound.settings.address.to_string(),
            });
            let _ = writeln!(text, "  {:<6} {}", front.name(), url.as_deref().unwrap_or("off"));
        }
        let bound = |name| fronts.into_iter().find(|(front, _)| *front == name)?.1;
        let (http, admin) = (bound(FrontName::Http), bound(FrontName::Admin));
        let pages = [("playground", http), ("dashboard", admin)];
        if http.or(admin).is_some() {
            text.push_str("Open:\n");
        }
        for (page, bound) in pages {
            if let Some(url) = bound.and_then(local_url) {
                let _ = writeln!(text, "  {page:<10} {url}/{page}");
            }
        }
        Banner { text, command: http.and_then(|bound| example_command(bound, config)) }
    }

    /// Prints the banner. A stalled or closed reader does not stop the server.
    pub fn print(mut self, exposed: &[FrontName]) {
        if let Some(command) = &self.command {
            let _ = writeln!(self.text, "{command}");
        }
        let mut warnings = String::new();
        for front in exposed {
            let _ = writeln!(
                warnings,
                "WARNING: --insecure-no-auth: whoever can reach --{} needs no secret",
                front.name()
            );
        }
        if !warnings.is_empty() {
            logs::print(std::io::stderr(), warnings);
        }
        logs::print(std::io::stdout(), self.text);
    }
}

fn url(bound: &BoundFront, address: SocketAddr) -> String {
    let scheme = match (bound.settings.front, bound.settings.tls.is_some()) {
        (FrontName::Grpc, false) => "grpc",
        (FrontName::Grpc, true) => "grpcs",
        (FrontName::Resp, false) => "redis",
        (FrontName::Resp, true) => "rediss",
        (_, false) => "http",
        (_, true) => "https",
    };
    format!("{scheme}://{address}")
}

/// The URL of a front for clients on this machine.
fn local_url(bound: &BoundFront) -> Option<String> {
    let mut address = bound.socket.tcp_address()?;
    // Clients cannot connect to the unspecified address.
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    Some(url(bound, address))
}

/// A command to try on this machine. It does not contain the secret, which must not be displayed.
fn example_command(bound: &BoundFront, config: &Config) -> Option<String> {
    let example = Example::new(&config.policies)?;
    // The certificate is rarely valid for the address.
    let insecure = if bound.settings.tls.is_some() { " -k" } else { "" };
    let (hint, secret) = match &bound.settings.access {
        Access::Secrets(_) => (
            format!(" ($TOKEN is one of {})", secret_of(bound.settings.front)),
            " -H \"Authorization: Bearer $TOKEN\"",
        ),
        Access::Local | Access::Unrestricted => (String::new(), ""),
    };
    let url = local_url(bound)?;
    let Example { path, body } = example;
    Some(format!("Try{hint}:\n  curl{insecure} {url}{path}{secret} -d '{body}'"))
}

/// A request of the HTTP API that the first policy decides.
struct Example {
    path: &'static str,
    /// JSON without a `'`, so that a shell takes it between two of them.
    body: String,
}

impl Example {
    /// Returns an example for the first policy that is not off and has limits, else for the first.
    /// `None` if there are no policies.
    fn new(policies: &Policies) -> Option<Self> {
        let has_effect = |policy: &&Policy| policy.mode() != Mode::Off && !policy.is_unlimited();
        let policy = policies.iter().find(has_effect).or(policies.iter().next())?;
        let named = || json!({ "policy": policy.name(), "key": "alice" });
        let (path, body) = match policy.has_concurrency() {
            true => ("/v1/permits", named()),
            false => ("/v1/check", example_attributes(policies, policy).unwrap_or_else(named)),
        };
        Some(Example { path, body: body.to_string().replace('\'', "\\u0027") })
    }
}

/// Returns a check with the attributes of a request that the policy decides; `None` if no such
/// request is obvious, or if it needs a permit for another policy.
fn example_attributes(policies: &Policies, policy: &Policy) -> Option<Value> {
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
