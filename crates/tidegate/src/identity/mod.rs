//! Who the client is: which proxies are believed, and how addresses are grouped.

use std::fmt;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv6Net};

/// Which proxies are believed, and how addresses are grouped into keys.
#[derive(Clone, Debug)]
pub struct Identity {
    trusted: Vec<IpNet>,
    ipv6_prefix: u8,
}

impl Identity {
    /// Believes the proxies in `trusted` and groups IPv6 addresses by `ipv6_prefix` bits.
    pub fn new(trusted: Vec<IpNet>, ipv6_prefix: u8) -> Self {
        Identity { trusted, ipv6_prefix: ipv6_prefix.min(128) }
    }

    /// Whether what this address says about others is believed.
    pub fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|net| net.contains(&address))
    }

    /// The group an address is counted in.
    pub fn group(&self, address: IpAddr) -> IpGroup {
        match address.to_canonical() {
            IpAddr::V6(address) if self.ipv6_prefix < 128 => {
                let net = Ipv6Net::new(address, self.ipv6_prefix).unwrap_or(address.into());
                IpGroup::Net(net.trunc())
            }
            address => IpGroup::One(address),
        }
    }
}

impl Default for Identity {
    fn default() -> Self {
        Identity::new(Vec::new(), 64)
    }
}

/// An address, or the network it is counted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpGroup {
    /// Counted alone.
    One(IpAddr),
    /// Counted with its network.
    Net(Ipv6Net),
}

impl fmt::Display for IpGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IpGroup::One(address) => address.fmt(f),
            IpGroup::Net(net) => net.fmt(f),
        }
    }
}
