//! Networks: the group that an address is counted in, and sets of networks for trusted proxies and
//! `client_ip` conditions.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;

use crate::policy::ConditionErrorKind;

/// The prefix lengths by which IPv6 addresses can be grouped. Zero would put the whole Internet
/// into one group.
pub(crate) const IPV6_PREFIXES: RangeInclusive<u8> = 1..=128;
/// The default prefix length of IPv6 groups. A household or a machine is typically assigned a /64,
/// and can use any address in it.
pub(crate) const DEFAULT_IPV6_PREFIX: u8 = 64;
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

/// A set of networks as disjoint address ranges in ascending order: first and last address of each.
///
/// A lookup is a binary search, so the list may be as long as that of a content delivery network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Networks {
    v4: Box<[(u32, u32)]>,
    v6: Box<[(u128, u128)]>,
}

impl Networks {
    /// Builds the set. IPv4-mapped networks are rejected by [`parse_network`].
    pub(crate) fn new(networks: &[IpNet]) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for network in IpNet::aggregate(&networks.to_vec()) {
            match network {
                IpNet::V4(net) => v4.push((net.network().to_bits(), net.broadcast().to_bits())),
                IpNet::V6(net) => v6.push((net.network().to_bits(), net.broadcast().to_bits())),
            }
        }
        // `aggregate` does not guarantee an order.
        v4.sort_unstable();
        v6.sort_unstable();
        Networks { v4: v4.into(), v6: v6.into() }
    }

    /// Returns whether an address is in one of the networks. An IPv4-mapped address counts as IPv4.
    #[inline]
    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => is_in(&self.v4, ip.to_bits()),
            IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
                Some(ip) => is_in(&self.v4, ip.to_bits()),
                None => is_in(&self.v6, ip.to_bits()),
            },
        }
    }
}

fn is_in<T: Ord + Copy>(ranges: &[(T, T)], address: T) -> bool {
    let after = ranges.partition_point(|(first, _)| *first <= address);
    ranges[..after].last().is_some_and(|(_, last)| address <= *last)
}

/// Parses a network, or an address as a network of one.
pub(crate) fn parse_network(text: &str) -> Result<IpNet, ConditionErrorKind> {
    let net = match text.parse::<IpNet>() {
        Ok(net) => net,
        Err(_) => text.parse::<IpAddr>().map_err(|_| ConditionErrorKind::Network)?.into(),
    };
    if let IpNet::V6(v6) = net
        && let Some(v4) = v6.addr().to_ipv4_mapped()
        && v6.prefix_len() >= 96
        && let Ok(v4) = IpNet::new(v4.into(), v6.prefix_len() - 96)
    {
        return Err(ConditionErrorKind::Mapped(v4.trunc()));
    }
    if net.trunc() != net {
        return Err(ConditionErrorKind::HostBits(net.trunc()));
    }
    Ok(net)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use ipnet::IpNet;

    use super::Networks;

    fn networks(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| super::parse_network(text).expect(text)).collect()
    }

    /// A linear scan, to compare with.
    fn scan(networks: &[IpNet], ip: IpAddr) -> bool {
        networks.iter().any(|network| network.contains(&ip))
    }

    /// Both ends of every network, and the addresses next to them.
    fn edges(networks: &[IpNet]) -> Vec<IpAddr> {
        let edges = networks.iter().flat_map(|network| match network {
            IpNet::V4(net) => {
                let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
                let all = [first, last, first.wrapping_sub(1), last.wrapping_add(1)];
                all.map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)))
            }
            IpNet::V6(net) => {
                let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
                let all = [first, last, first.wrapping_sub(1), last.wrapping_add(1)];
                all.map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits)))
            }
        });
        edges.collect()
    }

    #[test]
    fn lookup_of_many_networks_agrees_with_a_scan() {
        // A third of the /20 networks of 10.0.0.0/8, shuffled, and some /48 of 2001:db8::/32.
        let v4 = (0..4096_u32).filter(|n| n % 3 == 0).map(|n| n.wrapping_mul(2_654_435_761) % 4096);
        let v4 = v4.map(|n| format!("10.{}.{}.0/20", n >> 4, (n & 15) << 4));
        let v6 = (0..2000_u32).filter(|n| n % 5 == 0).map(|n| format!("2001:db8:{n:x}::/48"));
        let texts: Vec<String> = v4.chain(v6).collect();
        let list = networks(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        let lookup = Networks::new(&list);
        let (mut inside, mut outside) = (0, 0);
        for ip in edges(&list) {
            let expected = scan(&list, ip);
            assert_eq!(lookup.contains(ip), expected, "{ip}");
            *(if expected { &mut inside } else { &mut outside }) += 1;
        }
        assert!(inside > 3000 && outside > 1000, "{inside} inside, {outside} outside");
    }

    #[test]
    fn overlapping_prefixes_are_one_range() {
        let list = networks(&[
            "10.1.2.3",
            "10.0.0.0/8",
            "10.1.0.0/16",
            "10.255.255.255",
            "11.0.0.0/9",
            "2001:db8::/32",
            "2001:db8:1::/48",
            "2001:db8::7",
        ]);
        let lookup = Networks::new(&list);
        for ip in edges(&list) {
            assert_eq!(lookup.contains(ip), scan(&list, ip), "{ip}");
        }
        assert_eq!(
            lookup,
            Networks::new(&networks(&["10.0.0.0/8", "11.0.0.0/9", "2001:db8::/32"]))
        );
    }

    #[test]
    fn mapped_addresses_count_as_ipv4() {
        let lookup = Networks::new(&networks(&["192.0.2.0/24", "2001:db8::/32"]));
        let rows = [
            ("192.0.2.1", true),
            ("::ffff:192.0.2.1", true),
            ("::ffff:192.0.3.1", false),
            ("::192.0.2.1", false),
            ("2001:db8::1", true),
            ("2001:db9::1", false),
        ];
        for (ip, expected) in rows {
            assert_eq!(lookup.contains(ip.parse().expect(ip)), expected, "{ip}");
        }
    }

    #[test]
    fn empty_set_contains_nothing_and_a_zero_prefix_everything_of_its_family() {
        let empty = Networks::new(&[]);
        let all_v4 = Networks::new(&networks(&["0.0.0.0/0"]));
        for ip in ["0.0.0.0", "255.255.255.255", "::1"] {
            let ip: IpAddr = ip.parse().expect(ip);
            assert!(!empty.contains(ip), "{ip}");
            assert_eq!(all_v4.contains(ip), ip.is_ipv4(), "{ip}");
        }
    }
}
