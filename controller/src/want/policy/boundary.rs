//! What passes between the default network and the routers of primary ones: what leaves the
//! cluster, and the answers to that.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cluster::Name;
use podwire_ovs::nb::Table;

use super::index::member;
use super::matching::{self, Family};
use super::{Ids, acl, at_tier, row};
use crate::cluster::policy::Direction;
use crate::key::Network;
use crate::members::Member;
use crate::want::Row;

/// Before the policies of the cluster.
const TIER: i64 = 0;
/// As with locked ports ([`super::isolation`]).
const DROP: u16 = 1010;

fn inside_ids(family: Family) -> Ids {
    Ids::new("Cluster", "inside".to_owned()).and("ip-family", family.name())
}

fn group_ids(network: &Network) -> Ids {
    Ids::new("Gateways", network.name().to_string()).on(network)
}

fn own_ids(network: &Network, family: Family) -> Ids {
    group_ids(network).and("ip-family", family.name())
}

/// The addresses of the cluster itself, which no way out leads to: one set for all networks.
pub fn inside() -> Vec<Row> {
    let sets = Family::BOTH.map(|family| row(Table::AddressSet, inside_ids(family)));
    sets.into()
}

/// The place of a network there, or of an address.
pub fn inside_member(net: IpNet) -> Member {
    let set = inside_ids(Family::of(net.addr())).hashed().into();
    let text = match net.prefix_len() == net.max_prefix_len() {
        true => net.addr().to_string(),
        false => net.to_string(),
    };
    member(Table::AddressSet, set, text.into())
}

/// The places of a way out: of the port on a node's switch, and of the addresses there.
pub fn gateway_members(network: &Network, port: Name, addresses: &[IpAddr]) -> BTreeSet<Member> {
    let group = group_ids(network).hashed().into();
    let addresses = addresses.iter().map(|address| {
        let set = own_ids(network, Family::of(*address)).hashed().into();
        member(Table::AddressSet, set, address.to_string().into())
    });
    addresses
        .chain([member(Table::PortGroup, group, port)])
        .collect()
}

/// The group of the ports of a network's router on nodes' switches. By them goes out what is not
/// for the cluster itself, and comes in what is for the router's own addresses there: a neighbour
/// on the switch could send it frames for the network's pods.
pub fn boundary(network: &Network, has_tiers: bool) -> Vec<Row> {
    let group = row(Table::PortGroup, group_ids(network));
    let name = group.name.clone();
    let mut rows = vec![group];
    rows.extend(Family::BOTH.map(|family| row(Table::AddressSet, own_ids(network, family))));
    let mut add = |direction: Direction, (action, priority), clauses: &[String]| {
        let of = (&*name, &*name, direction);
        let label = format!("Gateways:{}:{direction}", network.name());
        let ids = group_ids(network)
            .and("direction", direction)
            .and("type", action);
        let clauses = matching::any(clauses);
        rows.push(acl(of, (action, priority), &clauses, &label, ids));
    };
    let to = |set: Ids, family: Family| {
        let field = matching::address(Direction::Egress, family);
        format!("{field} == ${}", set.hashed())
    };
    let inside = Family::BOTH.map(|family| to(inside_ids(family), family));
    let own = Family::BOTH.map(|family| to(own_ids(network, family), family));
    let own: Vec<String> = own.into_iter().chain(["nd".to_owned()]).collect();
    add(Direction::Egress, ("drop", DROP), &inside);
    // Connections are not followed at ports to routers.
    add(Direction::Ingress, ("allow-stateless", DROP + 1), &own);
    add(Direction::Ingress, ("drop", DROP), &["ip".to_owned()]);
    if has_tiers {
        at_tier(&mut rows, TIER);
    }
    rows
}
