//! `tidegate explain`: shows which policies and limits apply to a request, and why.
//!
//! The request is built from flags and matched by the code that the server uses, so the output is
//! what the server would do.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use http::HeaderName;
use tidegate::unstable::attributes::{Attributes, Headers, RequestTarget};
use tidegate::unstable::config::{Config, ConfigErrors, StoreUrl};
use tidegate::unstable::identity::parse_address;
use tidegate::unstable::policy::{Explained, Mode};

type Pair = (Cow<'static, str>, Cow<'static, str>);

/// Show which policies apply to a request, with their keys and limits, and why
///
/// The request has only the properties that are given.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  tidegate explain --config tidegate.yaml --method POST --path /login \
                        --client-ip 192.0.2.1 --header \"X-Org: acme\""
)]
pub struct ExplainArgs {
    /// The config; without it, the built-in default policy
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// The method
    #[arg(long)]
    method: Option<String>,

    /// The path, with the query if there is one, or a whole URL
    #[arg(long)]
    path: Option<String>,

    /// The query, e.g. "a=1&b=2"
    #[arg(long)]
    query: Option<String>,

    /// The host
    #[arg(long)]
    host: Option<String>,

    /// The client's address; a port, brackets or an IPv6 zone are dropped
    #[arg(long, value_name = "ADDRESS", conflicts_with = "peer", value_parser = address)]
    client_ip: Option<IpAddr>,

    /// The address of the connection, such as a gateway; the client's address is found
    /// through trusted proxies, from X-Forwarded-For or Forwarded
    #[arg(long, value_name = "ADDRESS")]
    peer: Option<IpAddr>,

    /// A header
    #[arg(long = "header", value_name = "NAME:VALUE", value_parser = header)]
    headers: Vec<Pair>,

    /// The domain that descriptors belong to, as Envoy sends it
    #[arg(long)]
    domain: Option<String>,

    /// An entry of a descriptor, as Envoy sends them; given several times, in this order
    #[arg(long = "descriptor", value_name = "NAME=VALUE", value_parser = descriptor)]
    descriptors: Vec<Pair>,
}

/// Text for standard output.
#[derive(Debug, Default)]
pub struct Output {
    pub text: String,
    /// Whether the server would reject the request with 400.
    pub is_bad_input: bool,
}

/// Matches the request against the policies and describes the result.
pub fn run(args: &ExplainArgs) -> Result<Output, ConfigErrors> {
    let config = match &args.config {
        Some(file) => Config::load(file)?,
        None => Config::default(),
    };
    let headers = Headers::Pairs(&args.headers);
    let resolved = config.identity.client_ip(args.peer, &headers);
    // As in `/v1/check`, a whole URL also has a host and a query.
    let target = args.path.as_deref().map(RequestTarget::new);
    let attributes = Attributes {
        method: args.method.as_deref(),
        path: target.map(|target| target.path),
        query: args.query.as_deref().or(target.and_then(|target| target.query)),
        host: args.host.as_deref().or(target.and_then(|target| target.host)),
        client_ip: args.client_ip.or(resolved),
        headers,
        domain: args.domain.as_deref(),
        descriptors: &args.descriptors,
    };
    Ok(output(&config, &attributes, args))
}

fn output(config: &Config, attributes: &Attributes<'_>, args: &ExplainArgs) -> Output {
    let mut out = String::new();
    if let (Some(peer), Some(client)) = (args.peer, attributes.client_ip) {
        let is_trusted = config.identity.trusts(peer);
        let why = if is_trusted { "a trusted proxy" } else { "not a trusted proxy" };
        // Writing to memory cannot fail.
        let _ = writeln!(out, "client {client}: {peer} is {why}\n");
    }
    let is_chain = |(name, _): &Pair| {
        ["x-forwarded-for", "forwarded"].iter().any(|chain| name.eq_ignore_ascii_case(chain))
    };
    if attributes.client_ip.is_none()
        && let Some((name, _)) = args.headers.iter().find(|header| is_chain(header))
    {
        let _ = writeln!(
            out,
            "no client_ip: {name} is used only if the peer is known; add --peer, or set the client \
             with --client-ip\n"
        );
    }
    if config.store != StoreUrl::Memory {
        let _ = write!(out, "{}", super::config::shared(config));
        let _ = match config.nodes {
            0 => {
                writeln!(out, "; what is decided locally has its limits divided by their number\n")
            }
            1 => writeln!(out, "\n"),
            nodes => writeln!(out, "; what is decided locally has its limits divided by {nodes}\n"),
        };
    }
    let explanation = config.policies.explain(attributes);
    let _ = writeln!(out, "{explanation}");
    let names = |which: &dyn Fn(&Explained<'_>) -> bool| {
        let chosen = explanation.policies.iter().filter(|explained| which(explained));
        chosen.map(|explained| explained.policy.name()).collect::<Vec<_>>().join(", ")
    };
    if let Err(bad) = config.policies.select(attributes) {
        let _ = writeln!(out, "Refused as bad input (400): {bad}");
        return Output { text: out, is_bad_input: true };
    }
    let in_mode = |mode| names(&|explained| explained.mode() == Some(mode));
    let (decided, observed) = (in_mode(Mode::Enforce), in_mode(Mode::Observe));
    let _ = match &*decided {
        "" => writeln!(out, "Nothing limits this request."),
        decided => writeln!(out, "Decided by: {decided}"),
    };
    let held = names(&|explained| explained.needs_permit());
    if !held.is_empty() {
        let _ = writeln!(
            out,
            "Needs a permit for: {held} (POST /v1/permits; /v1/check and /v1/forward-auth answer 409)"
        );
    }
    if !observed.is_empty() {
        let _ = writeln!(out, "Only observed by: {observed}");
    }
    Output { text: out, is_bad_input: false }
}

/// Parses an address with the parser of the server.
fn address(text: &str) -> Result<IpAddr, ParseAddressError> {
    parse_address(text).ok_or(ParseAddressError)
}

fn header(text: &str) -> Result<Pair, ParsePairError> {
    let pair = text.split_once(':').map(|(name, value)| (name.trim(), value.trim()));
    let pair = pair.filter(|(name, _)| HeaderName::from_bytes(name.as_bytes()).is_ok());
    let (name, value) = pair.ok_or(ParsePairError("NAME:VALUE"))?;
    Ok((name.to_owned().into(), value.to_owned().into()))
}

fn descriptor(text: &str) -> Result<Pair, ParsePairError> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = pair.ok_or(ParsePairError("NAME=VALUE"))?;
    Ok((name.to_owned().into(), value.to_owned().into()))
}

/// The text is not an IP address.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("not an IP address: give one such as 192.0.2.1")]
struct ParseAddressError;

/// The text is not a pair in the expected form.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("write it as {0}")]
struct ParsePairError(&'static str);
