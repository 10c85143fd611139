//! Requests that can't be met, each with its field and value.

use std::net::IpAddr;

use ipnet::IpNet;
use macaddr::MacAddr6;

use super::{MAX_MTU, MIN_MTU_IPV6};

/// Why a request can't be met. Each variant names the field and the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The MTU is out of range.
    #[error(
        "mtu {mtu} of {interface} is not between {least} and {MAX_MTU}{}",
        if *.least == MIN_MTU_IPV6 { " (IPv6 needs at least 1280)" } else { "" }
    )]
    Mtu {
        /// Which interface.
        interface: String,
        /// The refused value.
        mtu: u32,
        /// The minimum.
        least: u32,
    },
    /// No interface can have the MAC address.
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
    /// No host can have the address.
    #[error("address {address} of {interface} is {what}")]
    Address {
        /// Which interface.
        interface: String,
        /// The refused value.
        address: IpNet,
        /// What kind of address it is.
        what: &'static str,
    },
    /// The interface has no address of the next hop's family.
    #[error(
        "{field} {gateway} of {interface} needs an {} address on the interface, which has none",
        family(.gateway)
    )]
    NoAddressForGateway {
        /// Which interface.
        interface: String,
        /// The field that has it.
        field: &'static str,
        /// The refused value.
        gateway: IpAddr,
    },
    /// The next hop is no host.
    #[error("{field} {gateway} of {interface} is {what}")]
    Gateway {
        /// Which interface.
        interface: String,
        /// The field that has it.
        field: &'static str,
        /// The refused value.
        gateway: IpAddr,
        /// What kind of address it is.
        what: &'static str,
    },
    /// Destination and next hop differ in family.
    #[error("route {dst} of {interface} has gateway {gateway}: one is IPv4, the other IPv6")]
    RouteFamily {
        /// Which interface.
        interface: String,
        /// Destination.
        dst: IpNet,
        /// Next hop.
        gateway: IpAddr,
    },
    /// More than a pod can have.
    #[error("{count} {what} for {interface}: at most {most} are allowed")]
    TooMany {
        /// Which interface.
        interface: String,
        /// What there is too much of.
        what: &'static str,
        /// How many.
        count: usize,
        /// The maximum.
        most: usize,
    },
    /// The same value twice.
    #[error("{what} {value} is given twice for {interface}")]
    Twice {
        /// Which interface.
        interface: String,
        /// What is given twice.
        what: &'static str,
        /// Its value.
        value: String,
    },
    /// Two interfaces with the same name.
    #[error("two interfaces have the same name {name}")]
    TwoOfOneName {
        /// The name.
        name: String,
    },
}

fn family(ip: &IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}
