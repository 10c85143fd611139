//! What passes between the default network and the routers of primary ones: what leaves the
//! cluster, and the answers to that.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cluster::Name;
use podwire_ovs::nb::Table;

use super::index::member;
use super::matching::{self, Family};
use super::{FIRST_DROP, Ids, acl, before_policies, nodes_set_ids, row};
use crate::cluster::policy::Direction;
use crate::key::Network;
use crate::members::Member;
use crate::want::Row;

fn inside_ids(family: Family) -> Ids {
    Ids::new("Cluster", "inside".to_owned()).and("ip-family", family.name())
}

fn group_ids(network: &Network) -> Ids {
    Ids::new("Gateways", network.name().to_string()).on(network)
}

fn own_ids(network: &Network, family: Family) -> Ids {
    group_ids(network).and("ip-family", family.name())
}

fn exposed_ids(network: &Network, family: Family) -> Ids {
    own_ids(network, family).and("type", "exposed")
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

/// The places of a way out: of the port on a node's switch, of the addresses there, and of those of
/// endpoints that are reached by it.
pub fn gateway_members(
    network: &Network,
    port: Name,
    addresses: &[IpAddr],
    exposed: impl Iterator<Item = IpAddr>,
) -> BTreeSet<Member> {
    let group = group_ids(network).hashed().into();
    let place = |ids: fn(&Network, Family) -> Ids, address: IpAddr| {
        let set = ids(network, Family::of(address)).hashed().into();
        member(Table::AddressSet, set, address.to_string().into())
    };
    let own = addresses.iter().map(|it| place(own_ids, *it));
    own.chain(exposed.map(|it| place(exposed_ids, it)))
        .chain([member(Table::PortGroup, group, port)])
        .collect()
}

/// The group of the ports of a network's router on nodes' switches. By them goes out what is not
/// for the cluster itself, and comes in what is for the router's own addresses there, or for
/// exposed endpoints, from outside or from nodes: a neighbour on the switch could send it frames
/// for the network's pods.
pub fn boundary(network: &Network, has_tiers: bool) -> Vec<Row> {
    let group = row(Table::PortGroup, group_ids(network));
    let name = group.name.clone();
    let mut rows = vec![group];
    for ids in [own_ids, exposed_ids] {
        rows.extend(Family::BOTH.map(|family| row(Table::AddressSet, ids(network, family))));
    }
    let mut add = |direction: Direction, (action, priority), clauses: &[String]| {
        let of = (&*name, &*name, direction);
        let label = format!("Gateways:{}:{direction}", network.name());
        let ids = group_ids(network)
            .and("direction", direction)
            .and("type", format!("{action}:{priority}"));
        let clauses = matching::any(clauses);
        rows.push(acl(of, (action, priority), &clauses, &label, ids));
    };
    use Direction::{Egress, Ingress};
    let is = |direction: Direction, ids: Ids, family: Family| {
        let field = matching::address(direction, family);
        format!("{field} == ${}", ids.hashed())
    };
    let to_inside = Family::BOTH.map(|family| is(Egress, inside_ids(family), family));
    let from_inside = Family::BOTH.map(|family| is(Ingress, inside_ids(family), family));
    let to_own = Family::BOTH.map(|family| is(Egress, own_ids(network, family), family));
    let to_exposed = Family::BOTH.map(|family| is(Egress, exposed_ids(network, family), family));
    let answers = Family::BOTH.map(|family| {
        let from = is(Ingress, exposed_ids(network, family), family);
        let to = is(Egress, nodes_set_ids(family), family);
        format!("{from} && {to}")
    });
    let asked = to_exposed.iter().zip(Family::BOTH).map(|(to, family)| {
        let from = is(Ingress, nodes_set_ids(family), family);
        format!("{from} && {to}")
    });
    let first: Vec<String> = asked.chain(["nd".to_owned()]).collect();
    // Connections are not followed at ports to routers.
    add(Egress, ("allow-stateless", FIRST_DROP + 1), &answers);
    add(Egress, ("drop", FIRST_DROP), &to_inside);
    add(Ingress, ("allow-stateless", FIRST_DROP + 3), &first);
    add(Ingress, ("drop", FIRST_DROP + 2), &from_inside);
    let own = [to_own, to_exposed];
    add(
        Ingress,
        ("allow-stateless", FIRST_DROP + 1),
        own.as_flattened(),
    );
    add(Ingress, ("drop", FIRST_DROP), &["ip".to_owned()]);
    before_policies(&mut rows, has_tiers);
    rows
}
