//! The reserved addresses in every node's subnet.

use std::net::IpAddr;

use ipnet::IpNet;

/// The host's own address in a node's subnet: the second.
pub(crate) fn management(subnet: &IpNet) -> IpNet {
    IpNet::new(nth(subnet, 2), subnet.prefix_len()).unwrap_or(*subnet)
}

/// The router's: the first.
pub(crate) fn gateway(subnet: &IpNet) -> IpAddr {
    nth(subnet, 1)
}

/// The address with this number.
pub(crate) fn nth(subnet: &IpNet, number: u8) -> IpAddr {
    match subnet.network() {
        IpAddr::V4(ip) => (u32::from(ip) + u32::from(number)).to_be_bytes().into(),
        IpAddr::V6(ip) => (u128::from(ip) + u128::from(number)).to_be_bytes().into(),
    }
}
