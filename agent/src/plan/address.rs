//! Checks whether an interface can have an address or an MTU.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{MAX_MTU, MIN_MTU, MIN_MTU_IPV6, PlanError};

pub(super) fn check_mtu(interface: &str, mtu: u32, addresses: &[IpNet]) -> Result<u32, PlanError> {
    let has_ipv6 = addresses
        .iter()
        .any(|address| matches!(address, IpNet::V6(_)));
    let least = if has_ipv6 { MIN_MTU_IPV6 } else { MIN_MTU };
    if (least..=MAX_MTU).contains(&mtu) {
        Ok(mtu)
    } else {
        Err(PlanError::Mtu {
            interface: interface.to_owned(),
            mtu,
            least,
        })
    }
}

pub(super) fn check_addresses(interface: &str, addresses: &[IpNet]) -> Result<(), PlanError> {
    for (at, address) in addresses.iter().enumerate() {
        let what = not_a_host(address.addr()).or_else(|| not_in_its_subnet(address));
        if let Some(what) = what {
            return Err(PlanError::Address {
                interface: interface.to_owned(),
                address: *address,
                what,
            });
        }
        if addresses[..at]
            .iter()
            .any(|other| other.addr() == address.addr())
        {
            let (interface, value) = (interface.to_owned(), address.to_string());
            return Err(PlanError::Twice {
                interface,
                what: "address",
                value,
            });
        }
    }
    Ok(())
}

/// What kind of address this is, if no annotation may give it to an interface. The administrator's
/// IPAM plugin may.
pub fn not_an_interfaces(net: &IpNet) -> Option<&'static str> {
    /// The prefix length of the largest usual networks: 10.0.0.0/8 and fd00::/8.
    const SHORTEST_PREFIX: u8 = 8;
    not_a_host(net.addr()).or_else(|| match net.addr() {
        // A host chooses one itself (RFC 3927 §1.9); a cloud's metadata server uses one too.
        IpAddr::V4(ip) if ip.is_link_local() => Some("an IPv4 link-local address"),
        _ if net.prefix_len() < SHORTEST_PREFIX => {
            Some("in a network larger than any (its prefix is shorter than 8 bits)")
        }
        _ => None,
    })
}

/// What kind of address this is, if no host can have it.
pub fn not_a_host(ip: IpAddr) -> Option<&'static str> {
    match ip {
        _ if ip.is_unspecified() => Some("the unspecified address"),
        _ if ip.is_multicast() => Some("a multicast address"),
        _ if ip.is_loopback() => Some("a loopback address"),
        IpAddr::V4(ip) if ip.is_broadcast() => Some("the broadcast address"),
        // RFC 1122 §3.2.1.3.
        IpAddr::V4(ip) if ip.octets()[0] == 0 => Some("an address of \"this network\" (0.0.0.0/8)"),
        IpAddr::V6(ip) if ip.to_ipv4().is_some() => Some("an IPv4 address written as an IPv6 one"),
        _ => None,
    }
}

fn not_in_its_subnet(address: &IpNet) -> Option<&'static str> {
    let IpNet::V4(net) = address else { return None };
    if net.prefix_len() >= 31 {
        None
    } else if net.addr() == net.network() {
        Some("its subnet's network address")
    } else if net.addr() == net.broadcast() {
        Some("its subnet's broadcast address")
    } else {
        None
    }
}
