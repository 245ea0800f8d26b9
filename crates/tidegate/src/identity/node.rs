//! One address as proxies write it, and the list of them in `X-Forwarded-For`.
//!
//! Besides plain addresses there are ports (`1.2.3.4:80`: taken into the key,
//! every connection would be somebody else), brackets (`[2001:db8::1]:80`) and
//! zones (`fe80::1%eth0`). All are dropped, and a mapped IPv4 address becomes
//! IPv4. What is none of these is nothing: guessing would let a client choose.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longer is no address: the longest has 39 characters, and a zone, brackets and
/// a port have room.
pub(super) const MAX_NODE_BYTES: usize = 96;

/// The entries of a line of `X-Forwarded-For`, from the right.
///
/// An empty entry is one that cannot be read, not one that is not there: a proxy
/// that did not know whom it heard may have written it.
pub(super) fn from_the_right(line: &[u8]) -> impl Iterator<Item = Option<IpAddr>> {
    line.rsplit(|byte| *byte == b',').map(|entry| address(trim(entry)))
}

/// The address in `text`, canonical; `None` if it is anything else.
pub(super) fn address(text: &[u8]) -> Option<IpAddr> {
    if text.len() > MAX_NODE_BYTES {
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
