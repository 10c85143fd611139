//! Pods whose primary network is another than the default one: what their ports on the default
//! network, which are for their kubelets, still send and get.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use podwire_cluster::service::Protocol;
use podwire_cluster::{Name, ObjectName};
use podwire_ovs::nb::Table;

use super::index::member;
use super::matching::{self, Family};
use super::{FIRST_DROP, Ids, acl, before_policies, from_node, neighbours, row, unchosen};
use crate::cluster::policy::Direction;
use crate::key::Network;
use crate::members::Member;
use crate::want::Row;

fn ids(network: &Network) -> Ids {
    Ids::new("PrimaryNetwork", network.name().to_string())
}

/// The group's name.
fn group(network: &Network) -> Name {
    unchosen(network.name()).into()
}

/// The place of a pod's port on the default network.
pub fn isolated(network: &Network, port: &str) -> Member {
    member(Table::PortGroup, group(network), port.into())
}

/// The services whose endpoints such pods reach, with the endpoints' ports.
pub type Open = BTreeMap<ObjectName, BTreeSet<(Protocol, u16)>>;

/// The addresses of a service's endpoints: a set for each of their ports, so that one that comes
/// or goes changes no ACL.
pub fn open_sets(service: &ObjectName, ports: &BTreeSet<(Protocol, u16)>) -> Vec<Row> {
    let of =
        |port| Family::BOTH.map(|family| row(Table::AddressSet, open_ids(service, port, family)));
    ports.iter().flat_map(|port| of(*port)).collect()
}

/// The place of an endpoint there.
pub fn open_member(service: &ObjectName, protocol: Protocol, at: SocketAddr) -> Member {
    let ids = open_ids(service, (protocol, at.port()), Family::of(at.ip()));
    let set = ids.hashed().into();
    member(Table::AddressSet, set, at.ip().to_string().into())
}

fn open_ids((namespace, name): &ObjectName, port: (Protocol, u16), family: Family) -> Ids {
    let port = format!("{}/{}", port.1, port.0.api_name());
    let ids = Ids::new("OpenService", format!("{namespace}:{name}"));
    ids.and("port", port).and("ip-family", family.name())
}

/// The group of such ports of a primary network's pods. Its pods reach the endpoints of these
/// services; their own nodes reach them.
pub fn isolation(network: &Network, open: &Open, has_tiers: bool) -> Vec<Row> {
    let name = group(network);
    let mut group = row(Table::PortGroup, ids(network));
    group.name = name.to_string();
    let mut rows = vec![group];
    for direction in Direction::BOTH {
        let of = (&*name, &*name, direction);
        let label = format!("UDN:{}:{direction}", network.name());
        let ids = |kind: &str| ids(network).and("direction", direction).and("type", kind);
        rows.push(acl(
            of,
            ("drop", FIRST_DROP),
            "",
            &label,
            ids("defaultDeny"),
        ));
        let mut clauses = neighbours();
        match direction {
            Direction::Ingress => clauses.extend(from_node()),
            Direction::Egress => clauses.extend(matches(open)),
        }
        let allowed = matching::any(&clauses);
        let allow = ("allow-related", FIRST_DROP + 1);
        rows.push(acl(of, allow, &allowed, &label, ids("alwaysAllow")));
    }
    before_policies(&mut rows, has_tiers);
    rows
}

/// A match for each set.
fn matches(open: &Open) -> Vec<String> {
    let of = |service, (protocol, number)| {
        Family::BOTH.map(|family| {
            let field = matching::address(Direction::Egress, family);
            let set = open_ids(service, (protocol, number), family).hashed();
            let l4 = matching::port(protocol, number);
            matching::all([&format!("{field} == ${set}"), &l4])
        })
    };
    let all = open
        .iter()
        .flat_map(|(service, ports)| ports.iter().map(move |it| (service, *it)));
    all.flat_map(|(service, port)| of(service, port)).collect()
}
