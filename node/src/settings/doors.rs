//! The doors of other nodes, from their annotations.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cluster::address::{mac, management};
use podwire_cluster::annotations::{DOOR_MAC, HOST_ADDRESSES, NODE_SUBNETS};
use podwire_cluster::networks::node_subnets;

use super::{Door, Settings};
use crate::cluster::ApiNode;
use crate::overlap::overlap;

impl Settings {
    /// The usable ones of these nodes, in their order; None if there can't be any, as they lead to
    /// the pods of the cluster's networks alone. What is wrong with one node's annotations is that
    /// one's matter: its pods are reached as without a door.
    pub(super) fn doors_of(&self, nodes: &BTreeMap<String, ApiNode>) -> Option<Vec<Door>> {
        if self.cluster_subnets.is_empty() {
            return None;
        }
        let mut doors: Vec<Door> = Vec::new();
        let others = nodes.iter().filter(|(name, _)| **name != self.node_name);
        for door in others.filter_map(|(_, node)| self.door(node)) {
            let mut taken = doors.iter().flat_map(|other| &other.subnets);
            let is_free = !taken.any(|net| door.subnets.iter().any(|it| overlap(it, net)));
            if is_free && doors.iter().all(|other| other.mac != door.mac) {
                doors.push(door);
            }
        }
        Some(doors)
    }

    fn door(&self, node: &ApiNode) -> Option<Door> {
        let said = node.annotations.get(DOOR_MAC)?;
        let subnets = node_subnets(node.annotations.get(NODE_SUBNETS)?);
        let subnets = subnets.iter().map(|net| net.parse::<IpNet>().ok());
        let subnets: Vec<IpNet> = subnets.collect::<Option<_>>()?;
        let mac = mac(management(subnets.first()?).addr());
        let is_pods = |net: &IpNet| {
            let mut clusters = self.cluster_subnets.iter();
            clusters.any(|cluster| cluster.contains(net))
                && !self.node_subnets.iter().any(|own| overlap(own, net))
        };
        if *said != mac.to_string() || !subnets.iter().all(is_pods) {
            return None;
        }
        let addresses = node.annotations.get(HOST_ADDRESSES);
        let addresses: Vec<IpAddr> = serde_json::from_str(addresses?).ok()?;
        Some(Door {
            mac,
            subnets,
            addresses: addresses
                .into_iter()
                .chain(node.addresses.clone())
                .collect(),
        })
    }
}
