use std::fmt;
use std::net::IpAddr;
use std::time::Instant;

use ipnet::IpNet;

use super::{Mac, RequestError};

/// Why a pod gets no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Its node has no subnet yet.
    #[error("node {0} has no subnet yet")]
    NoSubnet(String),
    /// All are in use.
    #[error("no address is left in {subnet}: {}", .whose.more())]
    Full {
        /// The subnet.
        subnet: IpNet,
        /// SubnetOwner it is.
        whose: SubnetOwner,
    },
    /// All unused ones were freed moments ago.
    #[error("all free addresses of {subnet} were released by other pods only a moment ago")]
    Resting {
        /// The subnet.
        subnet: IpNet,
        /// When the first one may be assigned again.
        until: Instant,
    },
    /// It claims an address that was freed moments ago.
    #[error(
        "it requests {address}, which another pod may have released only a moment ago; it gets the \
         address in less than a minute if nobody has it"
    )]
    Released {
        /// The address.
        address: IpAddr,
        /// When it may be assigned again.
        until: Instant,
    },
    /// It requests an address that no pod on its node, or on its network, can have.
    #[error("it requests {address}, which no pod of {whose} can have: {}", .whose.has(.subnets))]
    Outside {
        /// The address.
        address: IpAddr,
        /// The node or the network.
        whose: SubnetOwner,
        /// Its subnets.
        subnets: String,
    },
    /// It requests an address that the network excludes.
    #[error("it requests {address}, but its network excludes {excluded}: request another")]
    Excluded {
        /// The address.
        address: IpAddr,
        /// What the network excludes.
        excluded: IpNet,
    },
    /// It requests what another has.
    #[error("it requests {what}, which {holder} has: request another, or remove what has it")]
    Taken {
        /// The IP or MAC address.
        what: String,
        /// The pod or port that has it.
        holder: String,
    },
    /// It runs with what another has too.
    #[error("it runs with {what}, which {holder} has too: delete one of the two")]
    Twice {
        /// The IP or MAC address.
        what: String,
        /// The pod or port that has it.
        holder: String,
    },
    /// Its request is invalid.
    #[error("{0}")]
    Request(#[from] RequestError),
    /// It requests a MAC address that belongs to an IP address other than its own.
    #[error(
        "it requests the MAC address {0}, but MAC addresses that begin with 0a:58 are derived from \
         IP addresses; request another"
    )]
    Derived(Mac),
}

/// What has subnets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubnetOwner {
    /// A node.
    Node(String),
    /// A network that all nodes share.
    Network(String),
}

impl SubnetOwner {
    fn more(&self) -> String {
        match self {
            Self::Node(node) => {
                format!("remove pods from node {node}, or give nodes larger subnets")
            }
            Self::Network(name) => {
                format!("remove pods from network {name}, or exclude fewer of its addresses")
            }
        }
    }

    fn has(&self, subnets: &str) -> String {
        match self {
            Self::Node(_) => format!(
                "the node's subnets are {subnets}, without their first three addresses and the \
                 last; request another address, or place the pod on another node"
            ),
            Self::Network(_) if subnets.is_empty() => "the network has no subnets".to_owned(),
            Self::Network(_) => format!(
                "the network's subnets are {subnets}, without their first address and the last"
            ),
        }
    }
}

impl fmt::Display for SubnetOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(name) => write!(f, "node {name}"),
            Self::Network(name) => write!(f, "network {name}"),
        }
    }
}
