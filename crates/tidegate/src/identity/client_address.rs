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

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use smallvec::SmallVec;

use super::{Identity, forwarded_syntax};
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
                return self.walk(peer, &field_lines, forwarded_syntax::x_forwarded_for);
            }
        }
        self.walk(peer, &field_lines(headers, "forwarded"), forwarded_syntax::forwarded)
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
    forwarded_syntax::address(forwarded_syntax::trim(text.as_bytes()))
}
