//! Why a pool refuses a request.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::Usage;
use crate::ipam::subnet::Reserved;
use crate::ipam::{Family, Owner};

/// Why an address was not allocated, or not released.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// No subnet is configured.
    #[error(
        "there is no subnet to allocate an address for {owner} from; with `--subnet node`, \
         `podwire node run --mode plain` provides the node's"
    )]
    NoSubnet {
        /// The owner.
        owner: Owner,
    },
    /// Every address of a family is held.
    #[error("no {family} address is left for {owner}: {}", Listed(subnets))]
    Exhausted {
        /// The family.
        family: Family,
        /// The owner.
        owner: Owner,
        /// That family's subnets.
        subnets: Vec<Usage>,
    },
    /// Another attachment holds the address.
    #[error("address {address} belongs to {holder}")]
    Taken {
        /// The address.
        address: IpAddr,
        /// Its holder.
        holder: Owner,
    },
    /// The address is in no subnet of the node.
    #[error(
        "address {address} is in none of the node's subnets ({})",
        Listed(subnets)
    )]
    OutsideSubnets {
        /// The address.
        address: IpAddr,
        /// All subnets.
        subnets: Vec<IpNet>,
    },
    /// The address is reserved.
    #[error("pods can't have address {address}: it is the {reserved} of {subnet}")]
    Reserved {
        /// The address.
        address: IpAddr,
        /// Its subnet.
        subnet: IpNet,
        /// What it is reserved for.
        reserved: Reserved,
    },
}

/// A comma-separated list for messages.
struct Listed<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Listed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{item}")?;
        }
        Ok(())
    }
}
