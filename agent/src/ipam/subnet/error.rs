//! Why a subnet is refused.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{AddressRange, Reserved};

/// Why a subnet is invalid. Each variant names the field and the value as written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The text before the first comma is no CIDR.
    #[error("subnet {value:?}: not an address and a prefix length, as in 10.186.0.0/22")]
    Cidr {
        /// As written.
        value: String,
    },
    /// The subnet's address is not the first of the subnet.
    #[error(
        "subnet {value}: the address has bits below the prefix length; the subnet is {network}"
    )]
    HostBits {
        /// As written.
        value: IpNet,
        /// The subnet that holds it.
        network: IpNet,
    },
    /// Multicast, loopback, unspecified or IPv6 link-local: addresses at which no pod could be
    /// reached.
    #[error("subnet {value}: not a range of ordinary unicast addresses")]
    NotUnicast {
        /// As written.
        value: IpNet,
    },
    /// A /32 or a /128.
    #[error("subnet {value}: too small, it has no room for a gateway and a pod")]
    TooSmall {
        /// As written.
        value: IpNet,
    },
    /// An option without `=`, or one that does not exist.
    #[error("subnet {subnet}: unknown option {value:?}; there are gateway=, range= and exclude=")]
    UnknownKey {
        /// The subnet.
        subnet: IpNet,
        /// The option as written.
        value: String,
    },
    /// An option that is allowed once is given twice.
    #[error("subnet {subnet}: {key} is given twice, the second time as {value:?}")]
    DuplicateKey {
        /// The subnet.
        subnet: IpNet,
        /// The option's name.
        key: &'static str,
        /// The second value.
        value: String,
    },
    /// An option's value is not an address, range or CIDR.
    #[error("subnet {subnet}: {key}={value}: not {expected}")]
    Value {
        /// The subnet.
        subnet: IpNet,
        /// The option's name.
        key: &'static str,
        /// As written.
        value: String,
        /// What is valid.
        expected: &'static str,
    },
    /// An option's value is partly or wholly outside of the subnet.
    #[error("subnet {subnet}: {key}={value} is not within the subnet")]
    Outside {
        /// The subnet.
        subnet: IpNet,
        /// The option's name.
        key: &'static str,
        /// As written.
        value: String,
    },
    /// No host can have the gateway's address.
    #[error("subnet {subnet}: gateway={gateway} is the subnet's {reserved}")]
    GatewayReserved {
        /// The subnet.
        subnet: IpNet,
        /// The gateway.
        gateway: IpAddr,
        /// What that address is.
        reserved: Reserved,
    },
    /// A range ends before it begins.
    #[error("subnet {subnet}: range={range} ends before it begins")]
    Reversed {
        /// The subnet.
        subnet: IpNet,
        /// As written.
        range: AddressRange,
    },
    /// Two ranges share addresses.
    #[error("subnet {subnet}: range={second} overlaps range={first}")]
    RangesOverlap {
        /// The subnet.
        subnet: IpNet,
        /// The lower one.
        first: AddressRange,
        /// The higher one.
        second: AddressRange,
    },
    /// Ranges and exclusions leave no address.
    #[error("subnet {subnet}: its ranges and exclusions leave no address for a pod")]
    Empty {
        /// The subnet.
        subnet: IpNet,
    },
    /// Two subnets share addresses.
    #[error("subnets {first} and {second} overlap")]
    SubnetsOverlap {
        /// The lower one.
        first: IpNet,
        /// The other one.
        second: IpNet,
    },
}
