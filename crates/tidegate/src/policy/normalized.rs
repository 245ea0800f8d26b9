//! A request's attributes as policies see them: path and host in one spelling,
//! and which of all patterns they match, worked out once for all policies.

use std::borrow::Cow;
use std::net::IpAddr;

use http::HeaderName;

use super::path::{self, PathVariants, Readings};
use super::pattern::{Matched, PatternSet};
use crate::attributes::Attributes;
use crate::identity::{Identity, IpGroup};

pub(super) struct NormalizedRequest<'a> {
    attributes: &'a Attributes<'a>,
    identity: &'a Identity,
    path: Option<NormalizedText<'a>>,
    /// Other readings of the path; see `path.rs`.
    path_variants: Vec<NormalizedText<'a>>,
    host: Option<NormalizedText<'a>>,
}

/// A path or host in one spelling, and the patterns of all policies that match it.
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

/// How a set of policies reads requests.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadOptions {
    pub(super) identity: Identity,
    pub(super) path_variants: PathVariants,
}

/// All patterns of all policies.
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

    /// Every reading of the path; empty if the request has no path.
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

    /// The descriptors in order.
    pub(super) fn entries(&self) -> &[(Cow<'_, str>, Cow<'_, str>)] {
        self.attributes.descriptors
    }

    /// The `nth` descriptor of a name, from 1; of any name if that is empty.
    pub(super) fn descriptor(&self, name: &str, nth: u16) -> Option<&[u8]> {
        let mut named = self.entries().iter().filter(|(key, _)| name.is_empty() || *key == *name);
        let (_, value) = named.nth(usize::from(nth).checked_sub(1)?)?;
        Some(value.as_bytes())
    }

    /// All descriptors as one value. Each name and value carries its length, so that no
    /// two lists are alike; `None` if there are none.
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

/// A host in lower case, without port and final dot.
pub(super) fn host_name(host: &str) -> Cow<'_, str> {
    let name = match host.rfind(':') {
        // In `[::1]` the colons are the address's own.
        Some(at) if !host[at..].contains(']') => &host[..at],
        _ => host,
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(name.to_ascii_lowercase()),
        false => Cow::Borrowed(name),
    }
}

/// A name or value of a query, with `+` and `%XX` decoded.
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
