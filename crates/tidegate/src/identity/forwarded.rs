//! Addresses that proxies write: `X-Forwarded-For` and `Forwarded` (RFC 7239), read from the right.
//!
//! ```text
//! Forwarded: for=6.6.6.6, for="[2001:db8::7]:4711";proto=https;by=10.0.0.2
//! ```
//!
//! A value may be a quoted string with commas, semicolons and escaped quotes in
//! it. Read from the left, one open quote sent by the client would swallow what
//! the proxies appended. So elements are cut off at the right end, where a quote
//! closes first: a proxy's element is read the same whatever stands before it.
//!
//! Only whole elements count. If any part of one is malformed all of it is,
//! because then the cut may be in the wrong place.
//!
//! Besides plain addresses there are ports (`1.2.3.4:80`: taken into the key,
//! every connection would be somebody else), brackets (`[2001:db8::1]:80`) and
//! zones (`fe80::1%eth0`). All are dropped, and a mapped IPv4 address becomes
//! IPv4. What is none of these is nothing: guessing would let a client choose.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smallvec::SmallVec;

/// What the elements of a line say about `for`, from the right.
pub(super) fn forwarded(line: &[u8]) -> impl Iterator<Item = Option<IpAddr>> {
    Parts { rest: Some(line), separator: b',' }.map(client_of)
}

/// The address after `for=`; `None` if it is missing, said twice, no address, or
/// in an element that is malformed.
fn client_of(element: &[u8]) -> Option<IpAddr> {
    let mut client = None;
    for pair in (Parts { rest: Some(element), separator: b';' }).map(trim) {
        // The grammar allows `;;` and a `;` at the end.
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

/// The parts of a text between separators that are not quoted, from the right.
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
            // From the right, the quote that opens is the first that is not escaped.
            b'"' if !is_escaped(text, at) => quoted = false,
            byte if byte == separator && !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// An odd number of backslashes before it: the last of them is its own.
fn is_escaped(text: &[u8], at: usize) -> bool {
    let backslashes = text[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
    !backslashes.is_multiple_of(2)
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty()
        && text.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
}

/// A quoted string, whole, or visible text without quotes. The grammar wants
/// colons and brackets quoted; many proxies do not quote them.
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

/// The inside of a quoted string; `None` if it is longer than any address.
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

/// Longer is no address: the longest has 39 characters, and a zone, brackets and
/// a port have room.
pub(super) const MAX_ADDRESS_BYTES: usize = 96;

/// The entries of a line of `X-Forwarded-For`, from the right.
///
/// An empty entry is one that cannot be read, not one that is not there: a proxy
/// that did not know whom it heard may have written it.
pub(super) fn x_forwarded_for(line: &[u8]) -> impl Iterator<Item = Option<IpAddr>> {
    line.rsplit(|byte| *byte == b',').map(|entry| address(trim(entry)))
}

/// The address in `text`, canonical; `None` if it is anything else.
pub(super) fn address(text: &[u8]) -> Option<IpAddr> {
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
        // Two colons or more: a bare IPv6 address, which has no port.
        Some(_) => ipv6(text),
    }
}

/// Without the blanks that may stand around an entry.
pub(super) fn trim(text: &[u8]) -> &[u8] {
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

/// An interface's name or number; `%25` is how a URI writes the `%` before it.
fn is_zone(zone: &str) -> bool {
    let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'~' | b'%');
    !zone.is_empty() && zone.bytes().all(fine)
}

/// A port, or the obfuscated kind that RFC 7239 has (`_a1`).
fn is_port(port: &str) -> bool {
    if let Some(hidden) = port.strip_prefix('_') {
        let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        return !hidden.is_empty() && hidden.bytes().all(fine);
    }
    port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok()
}
