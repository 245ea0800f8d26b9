//! The address of the client, determined so that the client cannot choose it.
//!
//! A naive implementation takes the leftmost entry of `X-Forwarded-For`, which the client itself
//! wrote. Every proxy appends the address of its peer at the *right*. So only the right end can be
//! trusted, and only as far as the proxies that wrote it are known:
//!
//! ```text
//! X-Forwarded-For: 6.6.6.6, 198.51.100.7, 10.0.0.2      peer 10.0.0.1
//!                  ^        ^             ^                  ^
//!                  claimed  the client    trusted            trusted
//!                           <------------- walked from here -+
//! ```
//!
//! The walk starts at the peer, continues while the address is a trusted proxy, and ends at the
//! first address that is not: the client. If an entry is not an address (`unknown`, an obfuscated
//! name, garbage, empty), the walk ends at the proxy that wrote it. It never skips such an entry,
//! because the entries to its left may come from anyone. So nothing left of the client's entry
//! affects the result.
//!
//! `X-Real-IP` is never read: it does not show who wrote it, and gateways that do not set it
//! forward the client's value.
//!
//! # Syntax
//!
//! The addresses in `X-Forwarded-For` and `Forwarded` (RFC 7239) are parsed from right to left.
//!
//! ```text
//! Forwarded: for=6.6.6.6, for="[2001:db8::7]:4711";proto=https;by=10.0.0.2
//! ```
//!
//! A value may be a quoted string that contains commas, semicolons and escaped quotes. If it were
//! parsed from the left, one open quote sent by the client would include everything that the
//! proxies appended. So elements are split off from the right, where the quote of a proxy's element
//! closes first: a proxy's element is parsed the same way, whatever precedes it.
//!
//! An element with a malformed part is malformed as a whole, because it may have been split in the
//! wrong position.
//!
//! An address may have a port (`1.2.3.4:80`), brackets (`[2001:db8::1]:80`) and a zone
//! (`fe80::1%eth0`). All are dropped: with the port in the key, every connection would be a
//! separate client. An IPv4-mapped address becomes IPv4. Anything else is not an address; a guess
//! would let the client choose the result.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use smallvec::SmallVec;

use super::Identity;
use crate::attributes::Headers;
use crate::policy::ParseEnumError;

/// The maximum number of entries that a walk examines, which is longer than real chains of proxies.
/// A longer chain of trusted addresses ends at the last one examined.
pub const MAX_HOPS: usize = 32;

/// The header field that the trusted proxies write.
///
/// A proxy maintains one of the fields and forwards the other as the client sent it. So if both are
/// present, they cannot both be trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Source {
    /// `X-Forwarded-For` if it is present, otherwise `Forwarded`. The former has precedence because
    /// gateways write it by default, and a `Forwarded` beside it is most likely from the client.
    #[default]
    Either,
    /// `X-Forwarded-For` only.
    XForwardedFor,
    /// `Forwarded` (RFC 7239) only, for proxies that write it and forward the client's
    /// `X-Forwarded-For`.
    Forwarded,
}

impl Source {
    /// Every source.
    pub const ALL: [Source; 3] = [Source::Either, Source::XForwardedFor, Source::Forwarded];

    /// Returns the name used in the config.
    pub const fn name(self) -> &'static str {
        match self {
            Source::Either => "either",
            Source::XForwardedFor => "x-forwarded-for",
            Source::Forwarded => "forwarded",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Source {
    type Err = ParseEnumError;

    fn from_str(text: &str) -> Result<Self, ParseEnumError> {
        let found = Source::ALL.into_iter().find(|source| source.name() == text);
        found.ok_or(ParseEnumError("either, x-forwarded-for or forwarded"))
    }
}

impl Identity {
    /// Returns the client's address, without port and zone. An IPv4-mapped address is returned as
    /// IPv4.
    ///
    /// Returns `None` if the peer lacks an address, as on a Unix socket, because it cannot be a
    /// trusted proxy then.
    #[inline]
    pub fn client_ip(&self, peer: Option<IpAddr>, headers: &Headers<'_>) -> Option<IpAddr> {
        let mut address = peer;
        self.resolve(&mut address, headers);
        address
    }

    /// Replaces the address of a peer with that of the client. Most peers are the client, and
    /// copying the sixteen bytes of an address right after four of them were written stalls.
    #[inline]
    pub(crate) fn resolve(&self, address: &mut Option<IpAddr>, headers: &Headers<'_>) {
        match address {
            Some(IpAddr::V4(peer)) if !self.trusted.contains((*peer).into()) => {}
            Some(peer) => *peer = self.client_of(peer.to_canonical(), headers),
            None => {}
        }
    }

    #[inline(never)]
    fn client_of(&self, peer: IpAddr, headers: &Headers<'_>) -> IpAddr {
        if self.trusted.contains(peer) { self.client_behind(peer, headers) } else { peer }
    }

    /// The client's address behind a trusted peer.
    fn client_behind(&self, peer: IpAddr, headers: &Headers<'_>) -> IpAddr {
        if self.source != Source::Forwarded {
            let field_lines = field_lines(headers, "x-forwarded-for");
            if !field_lines.is_empty() || self.source == Source::XForwardedFor {
                return self.walk(peer, &field_lines, x_forwarded_for);
            }
        }
        self.walk(peer, &field_lines(headers, "forwarded"), forwarded)
    }

    /// Walks from the peer to the left. Returns the first address that is not trusted, or the last
    /// one before an entry that is not an address.
    fn walk<'a, H>(
        &self,
        peer: IpAddr,
        field_lines: &[&'a [u8]],
        hops_of: fn(&'a [u8]) -> H,
    ) -> IpAddr
    where
        H: Iterator<Item = Option<IpAddr>>,
    {
        let mut reached = peer;
        for hop in
            field_lines.iter().rev().flat_map(|field_line| hops_of(field_line)).take(MAX_HOPS)
        {
            let Some(ip) = hop else { break };
            reached = ip;
            if !self.trusts(ip) {
                break;
            }
        }
        reached
    }
}

/// The lines of a field, which form one list in this order (RFC 9110, section 5.3).
fn field_lines<'a>(headers: &Headers<'a>, name: &str) -> SmallVec<[&'a [u8]; 4]> {
    headers.all(name).collect()
}

/// Parses an address as proxies write it. A port, brackets and a zone are dropped, and an
/// IPv4-mapped address becomes IPv4. Returns `None` if the text is not an address.
///
/// ```
/// use tidegate::unstable::identity::parse_address;
///
/// assert_eq!(parse_address("[fe80::1%eth0]:443"), "fe80::1".parse().ok());
/// assert_eq!(parse_address("localhost"), None);
/// ```
pub fn parse_address(text: &str) -> Option<IpAddr> {
    address(trim(text.as_bytes()))
}

/// The `for` addresses of the elements of a field line, from the right.
fn forwarded(field_line: &[u8]) -> impl Iterator<Item = Option<IpAddr>> {
    Parts { rest: Some(field_line), separator: b',' }.map(address_of)
}

/// The address of `for=`. Returns `None` if it is missing, repeated or not an address, or if the
/// element is malformed.
fn address_of(element: &[u8]) -> Option<IpAddr> {
    let mut client = None;
    for pair in (Parts { rest: Some(element), separator: b';' }).map(trim) {
        // The grammar allows `;;` and a trailing `;`.
        if pair.is_empty() {
            continue;
        }
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (&pair[..equals], &pair[equals + 1..]);
        if !is_token(name) || !is_value(value) {
            return None;
        }
        if name.eq_ignore_ascii_case(b"for") && client.replace(value).is_some() {
            return None;
        }
    }
    let value = client?;
    match value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")) {
        None => address(value),
        Some(inside) => address(&unescape(inside)?),
    }
}

/// The parts of a text between separators outside of quotes, from the right.
struct Parts<'a> {
    rest: Option<&'a [u8]>,
    separator: u8,
}

impl<'a> Iterator for Parts<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let text = self.rest.take()?;
        let Some(cut) = last_unquoted(text, self.separator) else { return Some(text) };
        self.rest = Some(&text[..cut]);
        Some(&text[cut + 1..])
    }
}

fn last_unquoted(text: &[u8], separator: u8) -> Option<usize> {
    let mut quoted = false;
    for at in (0..text.len()).rev() {
        match text[at] {
            b'"' if !quoted => quoted = true,
            // From the right, the first quote that is not escaped opens the quoted string.
            b'"' if !is_escaped(text, at) => quoted = false,
            byte if byte == separator && !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// Whether the byte is escaped: an odd number of backslashes precedes it.
fn is_escaped(text: &[u8], at: usize) -> bool {
    let backslashes = text[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
    !backslashes.is_multiple_of(2)
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty()
        && text.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
}

/// Whether this is a complete quoted string, or visible text without quotes. The grammar requires
/// quotes around colons and brackets, but many proxies omit them.
fn is_value(value: &[u8]) -> bool {
    let Some(rest) = value.strip_prefix(b"\"") else {
        return !value.is_empty() && value.iter().all(|b| b.is_ascii_graphic() && *b != b'"');
    };
    let mut bytes = rest.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return bytes.as_slice().is_empty(),
            b'\\' if bytes.next().is_none() => return false,
            _ => {}
        }
    }
    false
}

/// Unescapes the content of a quoted string. Returns `None` if it is longer than any address.
fn unescape(inside: &[u8]) -> Option<SmallVec<[u8; MAX_ADDRESS_BYTES]>> {
    let mut plain = SmallVec::new();
    let mut bytes = inside.iter();
    while let Some(byte) = bytes.next() {
        if plain.len() == MAX_ADDRESS_BYTES {
            return None;
        }
        plain.push(if *byte == b'\\' { *bytes.next()? } else { *byte });
    }
    Some(plain)
}

/// The maximum length of an address. The longest address has 39 characters; the rest is for a zone,
/// brackets and a port.
pub(super) const MAX_ADDRESS_BYTES: usize = 96;

/// The entries of a line of `X-Forwarded-For`, from the right.
///
/// An empty entry is returned as `None` and not skipped: a proxy that did not know its peer may
/// have written it.
fn x_forwarded_for(field_line: &[u8]) -> impl Iterator<Item = Option<IpAddr>> {
    field_line.rsplit(|byte| *byte == b',').map(|entry| address(trim(entry)))
}

/// Parses an address into canonical form. Returns `None` if the text is anything else.
fn address(text: &[u8]) -> Option<IpAddr> {
    if text.len() > MAX_ADDRESS_BYTES {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, after) = rest.split_once(']')?;
        let port_is_fine = after.is_empty() || after.strip_prefix(':').is_some_and(is_port);
        return if port_is_fine { ipv6(inside) } else { None };
    }
    match text.split_once(':') {
        None => ipv4(text),
        Some((host, port)) if !port.contains(':') => is_port(port).then(|| ipv4(host)).flatten(),
        // Two or more colons: an IPv6 address without brackets, which cannot have a port.
        Some(_) => ipv6(text),
    }
}

/// Removes spaces and tabs around an entry.
fn trim(text: &[u8]) -> &[u8] {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let Some(start) = text.iter().position(|byte| !blank(byte)) else { return &[] };
    let end = text.iter().rposition(|byte| !blank(byte)).map_or(start, |last| last + 1);
    &text[start..end]
}

fn ipv4(text: &str) -> Option<IpAddr> {
    text.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
}

fn ipv6(text: &str) -> Option<IpAddr> {
    let (address, zone) = text.split_once('%').map_or((text, None), |(a, zone)| (a, Some(zone)));
    if zone.is_some_and(|zone| !is_zone(zone)) {
        return None;
    }
    address.parse::<Ipv6Addr>().ok().map(|ip| IpAddr::V6(ip).to_canonical())
}

/// Whether this is the name or number of an interface. A URI writes the `%` before it as `%25`.
fn is_zone(zone: &str) -> bool {
    let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'~' | b'%');
    !zone.is_empty() && zone.bytes().all(fine)
}

/// Whether this is a port, or an obfuscated port of RFC 7239 (`_a1`).
fn is_port(port: &str) -> bool {
    if let Some(hidden) = port.strip_prefix('_') {
        let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        return !hidden.is_empty() && hidden.bytes().all(fine);
    }
    port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok()
}
