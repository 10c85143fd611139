//! Pods whose primary network is another than the default one: what their ports on the default
//! network, which are for their kubelets, still send and get.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use podwire_cluster::Name;
use podwire_cluster::address::digest;
use podwire_cluster::service::Protocol;
use podwire_ovs::nb::Table;

use super::index::member;
use super::{Ids, acl, always, at_tier, row};
use crate::cluster::policy::Direction;
use crate::key::Network;
use crate::members::Member;
use crate::want::Row;

/// Before the policies of the cluster.
const TIER: i64 = 0;
/// After everything else of OVN without tiers, where policies have 1000 and 1001.
const DROP: u16 = 1010;

fn ids(network: &Network) -> Ids {
    Ids::new("PrimaryNetwork", network.name().to_string())
}

/// The group's name. Whoever makes definitions chooses the network's, and must not get the name of
/// another group by it.
fn group(network: &Network) -> Name {
    let bytes = digest(network.name());
    format!("udn_{:032x}", u128::from_be_bytes(bytes)).into()
}

/// The place of a pod's port on the default network.
pub fn isolated(network: &Network, port: &str) -> Member {
    member(Table::PortGroup, group(network), port.into())
}

/// The group of such ports of a primary network's pods. Its pods reach these endpoints; their own
/// nodes reach them.
pub fn isolation(
    network: &Network,
    open: &BTreeSet<(Protocol, SocketAddr)>,
    has_tiers: bool,
) -> Vec<Row> {
    let name = group(network);
    let mut group = row(Table::PortGroup, ids(network));
    group.name = name.to_string();
    let mut rows = vec![group];
    for direction in Direction::BOTH {
        let of = (&*name, &*name, direction);
        let label = format!("UDN:{}:{direction}", network.name());
        let ids = |kind: &str| ids(network).and("direction", direction).and("type", kind);
        rows.push(acl(of, ("drop", DROP), "", &label, ids("defaultDeny")));
        let mut allowed = always(direction, &[]);
        if direction == Direction::Egress {
            let clauses = std::iter::once(allowed).chain(matches(open));
            allowed = super::matching::any(&clauses.collect::<Vec<_>>());
        }
        let allow = ("allow-related", DROP + 1);
        rows.push(acl(of, allow, &allowed, &label, ids("alwaysAllow")));
    }
    if has_tiers {
        at_tier(&mut rows, TIER);
    }
    rows
}

/// A match for each port.
fn matches(open: &BTreeSet<(Protocol, SocketAddr)>) -> Vec<String> {
    let mut by_port: BTreeMap<(bool, Protocol, u16), BTreeSet<IpAddr>> = BTreeMap::new();
    for (protocol, endpoint) in open {
        let port = (endpoint.is_ipv6(), *protocol, endpoint.port());
        by_port.entry(port).or_default().insert(endpoint.ip());
    }
    let of = by_port.iter().map(|((is_v6, protocol, port), addresses)| {
        let field = if *is_v6 { "ip6.dst" } else { "ip4.dst" };
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let (addresses, protocol) = (addresses.join(", "), protocol.name());
        format!("{field} == {{{addresses}}} && {protocol}.dst == {port}")
    });
    of.collect()
}
