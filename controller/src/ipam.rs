//! Assigns addresses. Pure: the objects' annotations and the database contain everything, and the
//! state is rebuilt from them at every start.

mod addresses;
mod error;
mod join;
mod pool;
mod request;
mod subnets;
#[cfg(test)]
mod tests;

pub use addresses::{Addresses, Assigned, FormerAddresses, RecordedAddresses};
pub use error::{AddressError, SubnetOwner};
pub use join::{JOIN, Joins, join_addresses};
pub use podwire_cluster::address::{Mac, mac, nth};
pub use request::{REQUESTED_ADDRESSES, REQUESTED_MAC, Request, RequestError};
pub use subnets::{ClusterSubnet, ClusterSubnetError, SubnetError, Subnets};

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use podwire_cluster::networks::{node_subnets, strings};
use serde_json::{Value, json};

use crate::key::Network;

/// How the addresses of a network are divided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Each node has subnets of its own, with the router at the first address and the node at the
    /// second.
    #[default]
    Nodes,
    /// All nodes share the network's subnets, or it has none: its ports then have a MAC address
    /// alone.
    Shared {
        /// What no pod gets an address of.
        excluded: Vec<IpNet>,
    },
}

impl Layout {
    fn whose(&self, name: &str) -> SubnetOwner {
        match self {
            Self::Nodes => SubnetOwner::Node(name.to_owned()),
            Self::Shared { .. } => SubnetOwner::Network(name.to_owned()),
        }
    }
}

/// The subnets of nodes and the addresses of pods on one network.
#[derive(Clone, Debug, Default)]
pub struct Space {
    /// Of nodes.
    pub subnets: Subnets,
    /// Of pods.
    pub addresses: Addresses,
}

/// Those of all networks.
#[derive(Clone, Debug, Default)]
pub struct Spaces {
    /// That of the network that every pod is on.
    pub default: Space,
    /// The others.
    pub others: BTreeMap<Network, Space>,
}

impl Space {
    /// Nothing is assigned yet.
    pub fn new(networks: Vec<ClusterSubnet>, layout: Layout, rest: Duration) -> Self {
        Self {
            subnets: Subnets::new(networks),
            addresses: Addresses::new(layout, rest),
        }
    }
}

impl Spaces {
    /// All of them.
    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut Space> {
        std::iter::once(&mut self.default).chain(self.others.values_mut())
    }
}

/// The MAC address that podwire derived from an IPv6 address at first: `0a:58` and its last four
/// bytes. Pods that have one keep it.
fn former_mac(address: IpAddr) -> Mac {
    match address {
        IpAddr::V4(_) => mac(address),
        IpAddr::V6(address) => {
            let [.., a, b, c, d] = address.octets();
            Mac::derived([a, b, c, d])
        }
    }
}

/// The subnets in a node's annotation. Invalid ones are skipped, because they can't be kept.
pub fn read_node_subnets(annotation: &str) -> Vec<IpNet> {
    let texts = node_subnets(annotation).into_iter();
    texts.filter_map(|text| text.parse().ok()).collect()
}

/// A pod's entry in its annotation, in ovn-kubernetes' format: lists and, beside a list of one, its
/// only element.
pub fn pod_network(addresses: &[IpNet], mac: Mac) -> Value {
    let gateways: Vec<IpAddr> = addresses
        .iter()
        .map(|address| nth(address.trunc(), 1).addr())
        .collect();
    let mut entry = json!({
        "ip_addresses": addresses,
        "mac_address": mac.to_string(),
        "gateway_ips": gateways,
    });
    if let ([address], [gateway]) = (addresses, &gateways[..]) {
        entry["ip_address"] = json!(address);
        entry["gateway_ip"] = json!(gateway);
    }
    entry
}

/// The role of the default network's entry in a pod's annotation, if another network is the pod's
/// primary one, with ovn-kubernetes' word.
pub const LOCKED: &str = "infrastructure-locked";

/// The same for a pod whose primary network is another, with routes through its gateways to these
/// addresses.
pub fn locked_network(addresses: &[IpNet], mac: Mac, to: &[IpAddr]) -> Value {
    let mut entry = pod_network(addresses, mac);
    entry["role"] = LOCKED.into();
    let route = |to: &IpAddr| {
        let own = addresses
            .iter()
            .find(|it| it.addr().is_ipv4() == to.is_ipv4());
        let gateway = nth(own?.trunc(), 1).addr();
        Some(json!({ "dest": IpNet::from(*to), "nextHop": gateway }))
    };
    let routes: Vec<Value> = to.iter().filter_map(route).collect();
    if !routes.is_empty() {
        entry["routes"] = routes.into();
    }
    entry
}

/// A pod's addresses, according to its entry in its annotation.
pub fn read_pod_network(entry: &Value) -> RecordedAddresses {
    let addresses = strings(&entry["ip_addresses"]).chain(strings(&entry["ip_address"]));
    let mut recorded = RecordedAddresses {
        addresses: addresses.filter_map(|text| text.parse().ok()).collect(),
        mac: strings(&entry["mac_address"]).find_map(|text| text.parse().ok()),
        ..RecordedAddresses::default()
    };
    recorded.addresses.dedup();
    let written = recorded
        .mac
        .map(|mac| pod_network(&recorded.addresses, mac));
    recorded.is_locked = entry["role"] == LOCKED;
    recorded.is_exact = match entry.as_object() {
        // A pod keeps the routes that it was made with.
        Some(own) if recorded.is_locked => {
            let mut own = own.clone();
            own.retain(|field, _| field != "role" && field != "routes");
            written == Some(own.into())
        }
        _ => written.as_ref() == Some(entry),
    };
    recorded
}
