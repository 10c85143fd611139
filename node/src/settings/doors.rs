//! The doors of other nodes, from their annotations.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use podwire_cluster::address::overlap;
use podwire_cluster::address::{Mac, mac, management};
use podwire_cluster::annotations::{DOOR_MAC, HOST_ADDRESSES, NODE_SUBNETS};
use podwire_cluster::networks::node_subnets;

use super::{Door, Settings};
use crate::cluster::ApiNode;

/// What doors have already: no two of them the same.
#[derive(Default)]
struct Taken {
    macs: HashSet<Mac>,
    /// The last address of each subnet by its first one; none overlaps another.
    subnets: BTreeMap<IpAddr, IpAddr>,
}

impl Taken {
    /// Takes what a door has, unless something of it is taken.
    fn take(&mut self, door: &Door) -> bool {
        let mut own = door.subnets.iter().enumerate();
        let is_double = own.any(|(at, net)| {
            let mut before = door.subnets[..at].iter();
            self.has_part(net) || before.any(|it| overlap(it, net))
        });
        if is_double || self.macs.contains(&door.mac) {
            return false;
        }
        self.macs.insert(door.mac);
        let ends = door
            .subnets
            .iter()
            .map(|net| (net.network(), net.broadcast()));
        self.subnets.extend(ends);
        true
    }

    fn has_part(&self, net: &IpNet) -> bool {
        // All IPv4 addresses come before those of IPv6.
        let before = self.subnets.range(..=net.broadcast()).next_back();
        before.is_some_and(|(first, last)| {
            first.is_ipv4() == net.addr().is_ipv4() && *last >= net.network()
        })
    }
}

impl Settings {
    /// The usable ones of these nodes, in their order; None if there can't be any, as they lead to
    /// the pods of the cluster's networks alone. What is wrong with one node's annotations is that
    /// one's matter: its pods are reached as without a door.
    pub(super) fn doors_of(&self, nodes: &BTreeMap<String, Arc<ApiNode>>) -> Option<Vec<Door>> {
        if self.cluster_subnets.is_empty() {
            return None;
        }
        let mut doors: Vec<Door> = Vec::new();
        let mut taken = Taken::default();
        let others = nodes.iter().filter(|(name, _)| **name != self.node_name);
        for door in others.filter_map(|(_, node)| self.door(node)) {
            if taken.take(&door) {
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
