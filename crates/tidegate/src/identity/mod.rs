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

mod forwarded;
mod networks;

pub(crate) use self::networks::{Networks, parse_network};

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use ipnet::IpNet;
use smallvec::SmallVec;

use crate::policy::attributes::Headers;
use crate::policy::{ConditionErrorKind, ParseEnumError};
use crate::text::excerpt;

/// The prefix lengths by which IPv6 addresses can be grouped. Zero would put the whole Internet
/// into one group.
pub(crate) const IPV6_PREFIXES: RangeInclusive<u8> = 1..=128;
/// The default prefix length of IPv6 groups. A household or a machine is typically assigned a /64,
/// and can use any address in it.
pub(crate) const DEFAULT_IPV6_PREFIX: u8 = 64;
/// The maximum number of entries that a walk examines, which is longer than real chains of proxies.
/// A longer chain of trusted addresses ends at the last one examined.
pub const MAX_HOPS: usize = 32;

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
    forwarded::address(forwarded::trim(text.as_bytes()))
}

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

/// A text that [`Identity::trusting`] rejects. The message says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkError {
    text: String,
    kind: ConditionErrorKind,
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}: {}", self.text, self.kind.problem(), self.kind.help())
    }
}

impl std::error::Error for NetworkError {}

/// Determines and groups the addresses of clients.
///
/// ```
/// use tidegate::tower::{Headers, Identity};
///
/// let identity = Identity::trusting(["10.0.0.0/8"])?;
/// let mut map = http::HeaderMap::new();
/// map.insert("x-forwarded-for", "6.6.6.6, 2001:db8:0:1::7, 10.0.0.2".parse()?);
/// let client = identity.client_ip(Some("10.0.0.1".parse()?), &Headers::Map(&map));
/// assert_eq!(client, Some("2001:db8:0:1::7".parse()?));
/// assert_eq!(identity.group("2001:db8:0:1::7".parse()?).to_string(), "2001:db8:0:1::/64");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    trusted: Networks,
    ipv6_prefix: u8,
    source: Source,
}

impl Default for Identity {
    /// Trusts no proxy, so the peer is the client. IPv6 addresses are grouped by /64.
    fn default() -> Self {
        Identity::of(Vec::new())
    }
}

impl Identity {
    /// Trusts the proxies in these networks. Each text is an address or a network such as
    /// `10.0.0.0/8`. IPv6 addresses are grouped by /64.
    ///
    /// # Errors
    /// Returns an error if a text is not an address or a network, has bits beyond its prefix, or is
    /// an IPv4-mapped network.
    pub fn trusting<T: AsRef<str>>(
        proxies: impl IntoIterator<Item = T>,
    ) -> Result<Self, NetworkError> {
        let parse = |text: T| {
            let text = text.as_ref();
            parse_network(text).map_err(|kind| NetworkError { text: excerpt(text), kind })
        };
        Ok(Identity::of(proxies.into_iter().map(parse).collect::<Result<_, _>>()?))
    }

    pub(crate) fn of(trusted: Vec<IpNet>) -> Self {
        Identity {
            trusted: Networks::new(&trusted),
            ipv6_prefix: DEFAULT_IPV6_PREFIX,
            source: Source::default(),
        }
    }

    /// Groups IPv6 addresses by this many bits. Values outside of 1 to 128 are clamped.
    #[must_use]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        let ipv6_prefix = bits.clamp(*IPV6_PREFIXES.start(), *IPV6_PREFIXES.end());
        Identity { ipv6_prefix, ..self }
    }

    /// Sets the header field that the trusted proxies write.
    #[must_use]
    pub fn reading(self, source: Source) -> Self {
        Identity { source, ..self }
    }

    /// Returns whether this address is that of a trusted proxy.
    #[inline]
    pub fn trusts(&self, ip: IpAddr) -> bool {
        self.trusted.contains(ip)
    }

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
                return self.walk(peer, &field_lines, forwarded::x_forwarded_for);
            }
        }
        self.walk(peer, &field_lines(headers, "forwarded"), forwarded::forwarded)
    }

    /// Returns the group that this address is counted in: an IPv4 address on its own, or the
    /// network of an IPv6 address.
    #[inline]
    pub fn group(&self, ip: IpAddr) -> IpGroup {
        IpGroup::new(ip, self.ipv6_prefix)
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

/// An IPv4 address, or an IPv6 network such as `2001:db8:0:1::/64`.
///
/// A client with one IPv6 address usually has 2^64 of them. If they were counted separately, it
/// would never reach a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpGroup {
    network: IpAddr,
    prefix: u8,
}

impl IpGroup {
    /// Creates the group of an address. `ipv6_prefix` is 1 to 128.
    #[inline]
    pub(super) fn new(ip: IpAddr, ipv6_prefix: u8) -> Self {
        match ip {
            IpAddr::V4(ip) => IpGroup { network: IpAddr::V4(ip), prefix: 32 },
            IpAddr::V6(ip) => IpGroup::new_v6(ip, ipv6_prefix),
        }
    }

    #[inline(never)]
    fn new_v6(ip: Ipv6Addr, prefix: u8) -> Self {
        match ip.to_canonical() {
            ip @ IpAddr::V4(_) => IpGroup { network: ip, prefix: 32 },
            IpAddr::V6(ip) => {
                let mask = u128::MAX << (128 - u32::from(prefix));
                IpGroup { network: IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & mask)), prefix }
            }
        }
    }

    /// Returns the first address of the group.
    pub const fn network(&self) -> IpAddr {
        self.network
    }

    /// Returns the number of bits that the addresses of the group have in common.
    pub const fn prefix(&self) -> u8 {
        self.prefix
    }
}

/// The prefix is omitted if the group is a single address.
impl fmt::Display for IpGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network {
            IpAddr::V6(network) if self.prefix < 128 => write!(f, "{network}/{}", self.prefix),
            network => write!(f, "{network}"),
        }
    }
}
