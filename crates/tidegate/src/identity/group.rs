//! The addresses that count as one.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// An IPv4 address, or an IPv6 address with its prefix: `2001:db8:0:1::/64`.
///
/// Whoever has one IPv6 address has its whole network, 2^64 of them as a rule:
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
