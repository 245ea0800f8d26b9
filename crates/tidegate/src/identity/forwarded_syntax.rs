//! Parses the addresses in `X-Forwarded-For` and `Forwarded` (RFC 7239), from right to left.
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

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smallvec::SmallVec;

/// The `for` addresses of the elements of a field line, from the right.
pub(super) fn forwarded(field_line: &[u8]) -> impl Iterator<Item = Option<IpAddr>> {
    Parts { rest: Some(field_line), separator: b',' }.map(client_of)
}

/// The address of `for=`. Returns `None` if it is missing, repeated or not an address, or if the
/// element is malformed.
fn client_of(element: &[u8]) -> Option<IpAddr> {
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
pub(super) fn x_forwarded_for(field_line: &[u8]) -> impl Iterator<Item = Option<IpAddr>> {
    field_line.rsplit(|byte| *byte == b',').map(|entry| address(trim(entry)))
}

/// Parses an address into canonical form. Returns `None` if the text is anything else.
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
        // Two or more colons: an IPv6 address without brackets, which cannot have a port.
        Some(_) => ipv6(text),
    }
}

/// Removes spaces and tabs around an entry.
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
