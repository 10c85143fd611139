//! Whether addresses and an MTU can be an interface's.

use std::net::{IpAddr, Ipv4Addr};

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
        if let Some(what) = not_a_host(address.addr()).or_else(|| not_in_its_subnet(address)) {
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

/// What an address is when it can be no host's.
pub(super) fn not_a_host(ip: IpAddr) -> Option<&'static str> {
    if ip.is_unspecified() {
        Some("the unspecified address")
    } else if ip.is_multicast() {
        Some("a multicast address")
    } else if ip.is_loopback() {
        Some("a loopback address")
    } else if ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
        Some("the broadcast address")
    } else {
        None
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
