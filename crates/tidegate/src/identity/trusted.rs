//! The proxies that are believed, as ranges to search.

use std::net::IpAddr;

use ipnet::IpNet;

/// Disjoint ranges in order, first and last address of each: a lookup is a
/// binary search, for lists as long as a content network's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trusted {
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
}

impl Trusted {
    /// Mapped IPv4 networks are refused where networks are read.
    pub(super) fn new(nets: &Vec<IpNet>) -> Self {
        let mut trusted = Trusted { v4: Vec::new(), v6: Vec::new() };
        for net in IpNet::aggregate(nets) {
            match net {
                IpNet::V4(net) => {
                    trusted.v4.push((net.network().to_bits(), net.broadcast().to_bits()));
                }
                IpNet::V6(net) => {
                    trusted.v6.push((net.network().to_bits(), net.broadcast().to_bits()));
                }
            }
        }
        // No order is promised for an aggregate.
        trusted.v4.sort_unstable();
        trusted.v6.sort_unstable();
        trusted
    }

    /// Whether `ip`, canonical, is one of them.
    #[inline]
    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => holds(&self.v4, ip.to_bits()),
            IpAddr::V6(ip) => holds(&self.v6, ip.to_bits()),
        }
    }
}

fn holds<T: Ord + Copy>(ranges: &[(T, T)], address: T) -> bool {
    let after = ranges.partition_point(|(first, _)| *first <= address);
    ranges[..after].last().is_some_and(|(_, last)| address <= *last)
}
