//! Who a request came from, as an address that the client cannot choose.
//!
//! The naive way takes the leftmost entry of `X-Forwarded-For`: the one the
//! client itself wrote. Every proxy appends the address it saw at the *right*,
//! so only the right end can be believed, and only as far as the proxies that
//! wrote it are known:
//!
//! ```text
//! X-Forwarded-For: 6.6.6.6, 198.51.100.7, 10.0.0.2      peer 10.0.0.1
//!                  ^        ^             ^                  ^
//!                  claimed  the client    trusted            trusted
//!                           <------------- walked from here -+
//! ```
//!
//! The walk starts at the peer, goes on while the address reached is a trusted
//! proxy, and ends at the first that is not: the client. Where an entry is no
//! address (`unknown`, an obfuscated name, garbage, nothing at all) it ends at
//! the proxy that wrote it. It never steps over such an entry, because what
//! stands to its left may be anybody's. So everything left of the client's
//! entry has no effect, whatever it is.
//!
//! `X-Real-IP` is never read: it holds one address without a trace of who wrote
//! it, and gateways that do not set it pass on the client's.

mod forwarded;
mod networks;

pub(crate) use self::networks::{Networks, parse_network};

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use ipnet::IpNet;
use smallvec::SmallVec;

use crate::attributes::Headers;
use crate::policy::{ConditionErrorKind, ParseEnumError};
use crate::text::excerpt;

/// The prefix lengths by which IPv6 addresses can be grouped. 0 would put the
/// whole Internet into one group.
pub(crate) const IPV6_PREFIXES: RangeInclusive<u8> = 1..=128;
/// How IPv6 addresses are grouped when nobody says: a /64 is what one household
/// or one machine is given, and it can use any address in it.
pub(crate) const DEFAULT_IPV6_PREFIX: u8 = 64;
/// The most entries a walk looks at: more proxies in a row than anybody has. A
/// longer chain of trusted addresses ends at the last one looked at.
pub const MAX_HOPS: usize = 32;

/// The address in a text as proxies write it: with or without a port, brackets or a
/// zone, which are dropped; mapped IPv4 becomes IPv4. `None` if it is none.
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

/// Which header field the trusted proxies write.
///
/// A proxy maintains one of them and passes the other on as the client sent it.
/// So if both are present they cannot both be believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Source {
    /// `X-Forwarded-For` if it is there at all, else `Forwarded`. The former
    /// wins because it is what gateways write unless told otherwise: a
    /// `Forwarded` beside it is most likely the client's own.
    #[default]
    Either,
    /// `X-Forwarded-For` only.
    XForwardedFor,
    /// `Forwarded` (RFC 7239) only: for proxies that write it and pass
    /// `X-Forwarded-For` on.
    Forwarded,
}

impl Source {
    /// Every source.
    pub const ALL: [Source; 3] = [Source::Either, Source::XForwardedFor, Source::Forwarded];

    /// The name used in the config.
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

/// A text that [`Identity::trusting`] cannot take. Its message says what to write instead.
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

/// How a client's address is found and grouped.
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
    /// Nobody is trusted, so the peer is the client; IPv6 by /64.
    fn default() -> Self {
        Identity::of(Vec::new())
    }
}

impl Identity {
    /// Trusts what the proxies in these networks write. Each is an address or a such as
    /// `10.0.0.0/8`. IPv6 addresses are grouped by /64.
    ///
    /// # Errors
    /// When a text is not an address or a has bits beyond its prefix, or is a mapped IPv4
    /// network.
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

    /// Groups IPv6 addresses by this many bits, 1 to 128. Others are taken as the nearest of these.
    #[must_use]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        let ipv6_prefix = bits.clamp(*IPV6_PREFIXES.start(), *IPV6_PREFIXES.end());
        Identity { ipv6_prefix, ..self }
    }

    /// The same, reading only what the proxies are known to write.
    #[must_use]
    pub fn reading(self, source: Source) -> Self {
        Identity { source, ..self }
    }

    /// Whether this address is one of the trusted proxies.
    #[inline]
    pub fn trusts(&self, ip: IpAddr) -> bool {
        self.trusted.contains(ip)
    }

    /// The client's address, without port and zone and with a mapped IPv4
    /// address as IPv4.
    ///
    /// `None` if the peer has none (a Unix socket): then there is nobody whose
    /// word could be trusted.
    #[inline]
    pub fn client_ip(&self, peer: Option<IpAddr>, headers: &Headers<'_>) -> Option<IpAddr> {
        match peer? {
            // Copies four bytes: a read of sixteen right after a write of four stalls.
            IpAddr::V4(peer) if !self.trusted.contains(peer.into()) => Some(peer.into()),
            peer => Some(self.resolve(peer.to_canonical(), headers)),
        }
    }

    #[inline(never)]
    fn resolve(&self, peer: IpAddr, headers: &Headers<'_>) -> IpAddr {
        if self.trusted.contains(peer) { self.client_behind(peer, headers) } else { peer }
    }

    /// The client's address, behind a peer that is trusted.
    fn client_behind(&self, peer: IpAddr, headers: &Headers<'_>) -> IpAddr {
        if self.source != Source::Forwarded {
            let lines = lines(headers, "x-forwarded-for");
            if !lines.is_empty() || self.source == Source::XForwardedFor {
                return self.walk(peer, &lines, forwarded::x_forwarded_for);
            }
        }
        self.walk(peer, &lines(headers, "forwarded"), forwarded::forwarded)
    }

    /// The group this address is counted in: an IPv4 address by itself, an IPv6
    /// address with its prefix.
    #[inline]
    pub fn group(&self, ip: IpAddr) -> IpGroup {
        IpGroup::new(ip, self.ipv6_prefix)
    }

    /// From the peer leftwards to the first address that is not trusted, or to
    /// the last that is before something unreadable.
    fn walk<'a, H>(&self, peer: IpAddr, lines: &[&'a [u8]], hops_of: fn(&'a [u8]) -> H) -> IpAddr
    where
        H: Iterator<Item = Option<IpAddr>>,
    {
        let mut reached = peer;
        for hop in lines.iter().rev().flat_map(|line| hops_of(line)).take(MAX_HOPS) {
            let Some(ip) = hop else { break };
            reached = ip;
            if !self.trusts(ip) {
                break;
            }
        }
        reached
    }
}

/// Several lines of a field are one list, in order (RFC 9110, section 5.3).
fn lines<'a>(headers: &Headers<'a>, name: &str) -> SmallVec<[&'a [u8]; 4]> {
    headers.all(name).collect()
}

/// An IPv4 address, or an IPv6 address with its prefix: `2001:db8:0:1::/64`.
///
/// Whoever has one IPv6 address has its whole 2^64 of them as a rule:
/// counted one by one, a limit would never be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpGroup {
    network: IpAddr,
    prefix: u8,
}

impl IpGroup {
    /// `ipv6_prefix` is 1 to 128.
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

    /// Its first address.
    pub const fn network(&self) -> IpAddr {
        self.network
    }

    /// How many bits its addresses have in common.
    pub const fn prefix(&self) -> u8 {
        self.prefix
    }
}

/// The prefix is left out where a group is a single address.
impl fmt::Display for IpGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network {
            IpAddr::V6(network) if self.prefix < 128 => write!(f, "{network}/{}", self.prefix),
            network => write!(f, "{network}"),
        }
    }
}
