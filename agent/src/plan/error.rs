//! The wishes that can't be met, each with the field and the value.

use std::net::IpAddr;

use ipnet::IpNet;
use macaddr::MacAddr6;

use super::{MAX_MTU, MIN_MTU_IPV6};

/// Why a wish can't be met. Each names the field and the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The MTU is out of bounds.
    #[error(
        "mtu {mtu} of {interface} is not between {least} and {MAX_MTU}{}",
        if *.least == MIN_MTU_IPV6 { " (IPv6 needs at least 1280)" } else { "" }
    )]
    Mtu {
        /// Which interface.
        interface: String,
        /// The refused value.
        mtu: u32,
        /// What it must be at least.
        least: u32,
    },
    /// The MAC address can't be an interface's.
    #[error(
        "mac {mac} of {interface} is {}",
        if .mac.is_nil() { "all zero" } else { "a group address" }
    )]
    Mac {
        /// Which interface.
        interface: String,
        /// The refused value.
        mac: MacAddr6,
    },
    /// The address can't be a host's.
    #[error("address {address} of {interface} is {what}")]
    Address {
        /// Which interface.
        interface: String,
        /// The refused value.
        address: IpNet,
        /// What it is instead.
        what: &'static str,
    },
    /// A next hop without an address of its family to reach it from.
    #[error(
        "{field} {gateway} of {interface} needs an {} address on the interface, and there is none",
        family(.gateway)
    )]
    NoAddressForGateway {
        /// Which interface.
        interface: String,
        /// Which field holds it.
        field: &'static str,
        /// The refused value.
        gateway: IpAddr,
    },
    /// A next hop that is no host.
    #[error("{field} {gateway} of {interface} is {what}")]
    Gateway {
        /// Which interface.
        interface: String,
        /// Which field holds it.
        field: &'static str,
        /// The refused value.
        gateway: IpAddr,
        /// What it is instead.
        what: &'static str,
    },
    /// Destination and next hop of different families.
    #[error("route {dst} of {interface} goes by {gateway}: one is IPv4, the other IPv6")]
    RouteFamily {
        /// Which interface.
        interface: String,
        /// Destination.
        dst: IpNet,
        /// Next hop.
        gateway: IpAddr,
    },
    /// More of something than any pod has.
    #[error("{count} {what} for {interface}: at most {most} are allowed")]
    TooMany {
        /// Which interface.
        interface: String,
        /// What there are too many of.
        what: &'static str,
        /// How many.
        count: usize,
        /// How many there may be.
        most: usize,
    },
    /// The same thing twice.
    #[error("{what} {value} is given twice for {interface}")]
    Twice {
        /// Which interface.
        interface: String,
        /// What is there twice.
        what: &'static str,
        /// Its value.
        value: String,
    },
    /// Two interfaces of one name.
    #[error("two interfaces are both to be named {name}")]
    TwoOfOneName {
        /// The name.
        name: String,
    },
}

fn family(ip: &IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}
