//! A request as policies see it: its [`Attributes`] with the normalised path and host, and the
//! patterns that match them, computed once for all policies.

use std::borrow::Cow;
use std::net::IpAddr;

use http::HeaderName;

use super::path::{self, PathVariants, Readings};
use super::pattern::{Matched, PatternSet};
use crate::attributes::Attributes;
use crate::identity::{Identity, IpGroup};

/// The normalised attributes of one request.
pub(super) struct NormalizedRequest<'a> {
    attributes: &'a Attributes<'a>,
    identity: &'a Identity,
    path: Option<NormalizedText<'a>>,
    /// The other readings of the path; see `path.rs`.
    path_variants: Vec<NormalizedText<'a>>,
    host: Option<NormalizedText<'a>>,
}

/// A normalised path or host, with the patterns of all policies that match it.
pub(super) struct NormalizedText<'a> {
    pub(super) text: Cow<'a, str>,
    pub(super) matched: Matched,
}

impl<'a> NormalizedText<'a> {
    fn new(text: Cow<'a, str>, set: &PatternSet) -> Self {
        let matched = if set.is_empty() { Matched::new() } else { set.matched(&text) };
        NormalizedText { text, matched }
    }
}

/// The settings by which a set of policies reads requests.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadOptions {
    pub(super) identity: Identity,
    pub(super) path_variants: PathVariants,
}

/// The patterns of all policies that need an automaton.
#[derive(Clone, Debug, Default)]
pub(super) struct Patterns {
    pub(super) paths: PatternSet,
    pub(super) hosts: PatternSet,
}

impl<'a> NormalizedRequest<'a> {
    pub(super) fn new(
        attributes: &'a Attributes<'a>,
        options: &'a ReadOptions,
        patterns: &Patterns,
    ) -> Self {
        let readings = attributes.path.map(|path| path::readings(path, options.path_variants));
        let (path, path_variants) = match readings {
            None => (None, Vec::new()),
            Some(Readings { merged, others }) => {
                let normalized = |text| NormalizedText::new(text, &patterns.paths);
                let others = others.into_iter().map(|other| normalized(Cow::Owned(other)));
                (Some(normalized(merged)), others.collect())
            }
        };
        let host =
            attributes.host.map(|host| NormalizedText::new(host_name(host), &patterns.hosts));
        NormalizedRequest { attributes, identity: &options.identity, path, path_variants, host }
    }

    pub(super) fn client_ip(&self) -> Option<IpAddr> {
        self.attributes.client_ip.map(|address| address.to_canonical())
    }

    pub(super) fn group(&self) -> Option<IpGroup> {
        self.attributes.client_ip.map(|address| self.identity.group(address))
    }

    pub(super) fn method(&self) -> Option<Cow<'_, [u8]>> {
        let method = self.attributes.method?;
        Some(match method.bytes().any(|byte| byte.is_ascii_lowercase()) {
            true => Cow::Owned(method.to_ascii_uppercase().into_bytes()),
            false => Cow::Borrowed(method.as_bytes()),
        })
    }

    pub(super) fn path(&self) -> Option<&str> {
        self.path.as_ref().map(|path| &*path.text)
    }

    /// Returns every reading of the path; empty for a request without a path.
    pub(super) fn paths(&self) -> impl Iterator<Item = &NormalizedText<'a>> {
        self.path.iter().chain(&self.path_variants)
    }

    pub(super) fn host(&self) -> Option<&str> {
        self.normalized_host().map(|host| &*host.text)
    }

    pub(super) fn normalized_host(&self) -> Option<&NormalizedText<'a>> {
        self.host.as_ref()
    }

    pub(super) fn header(&self, name: &HeaderName) -> Option<&[u8]> {
        self.attributes.headers.named(name).map(<[u8]>::trim_ascii)
    }

    pub(super) fn query(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let pairs = self.attributes.query?.split('&');
        let mut pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let (_, value) = pairs.find(|(key, _)| *form_decode(key) == *name.as_bytes())?;
        Some(form_decode(value))
    }

    pub(super) fn cookie(&self, name: &str) -> Option<&[u8]> {
        let headers = self.attributes.headers.all("cookie");
        let mut cookies = headers.flat_map(|header| header.split(|&byte| byte == b';'));
        cookies.find_map(|cookie| {
            let at = cookie.iter().position(|&byte| byte == b'=')?;
            let (key, value) = (cookie[..at].trim_ascii(), cookie[at + 1..].trim_ascii());
            (key == name.as_bytes()).then_some(value)
        })
    }

    pub(super) fn domain(&self) -> Option<&str> {
        self.attributes.domain
    }

    /// Returns the descriptors in order.
    pub(super) fn entries(&self) -> &[(Cow<'_, str>, Cow<'_, str>)] {
        self.attributes.descriptors
    }

    /// Returns the `nth` descriptor with this name, counted from 1. An empty name counts all.
    pub(super) fn descriptor(&self, name: &str, nth: u16) -> Option<&[u8]> {
        let mut named = self.entries().iter().filter(|(key, _)| name.is_empty() || *key == *name);
        let (_, value) = named.nth(usize::from(nth).checked_sub(1)?)?;
        Some(value.as_bytes())
    }

    /// Returns all descriptors as one value; `None` for a request without descriptors. Names and
    /// values are prefixed with their lengths, so that different lists give different values.
    pub(super) fn descriptors(&self) -> Option<Cow<'_, [u8]>> {
        use std::fmt::Write as _;
        let mut out = String::new();
        for (name, value) in self.entries() {
            // Writing to memory cannot fail.
            let _ = write!(out, "{}#{name}{}#{value}", name.len(), value.len());
        }
        (!out.is_empty()).then(|| Cow::Owned(out.into_bytes()))
    }
}

/// Returns a host in lower case, without port and final dot.
pub(super) fn host_name(host: &str) -> Cow<'_, str> {
    let name = match host.rfind(':') {
        // In `[::1]` the colons belong to the address.
        Some(at) if !host[at..].contains(']') => &host[..at],
        _ => host,
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(name.to_ascii_lowercase()),
        false => Cow::Borrowed(name),
    }
}

/// Decodes `+` and `%XX` in a name or value of a query.
fn form_decode(text: &str) -> Cow<'_, [u8]> {
    let bytes = text.as_bytes();
    if !bytes.iter().any(|byte| matches!(byte, b'+' | b'%')) {
        return Cow::Borrowed(bytes);
    }
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let (byte, width) = match path::unescape(&bytes[at..]) {
            Some(byte) => (byte, 3),
            None if byte == b'+' => (b' ', 1),
            None => (byte, 1),
        };
        out.push(byte);
        at += width;
    }
    Cow::Owned(out)
}
