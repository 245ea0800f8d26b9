//! Who a client is by its address: `client_address.rs` determines the address behind proxies, and
//! `networks.rs` groups addresses by network, and looks them up in lists of networks.

mod client_address;
mod networks;

pub use self::client_address::{MAX_HOPS, Source, parse_address};
pub use self::networks::IpGroup;
pub(crate) use self::networks::{DEFAULT_IPV6_PREFIX, IPV6_PREFIXES, Networks, parse_network};

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::policy::ConditionErrorKind;
use crate::text::excerpt;

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

    /// Returns the group that this address is counted in: an IPv4 address on its own, or the
    /// network of an IPv6 address.
    #[inline]
    pub fn group(&self, ip: IpAddr) -> IpGroup {
        IpGroup::new(ip, self.ipv6_prefix)
    }
}
