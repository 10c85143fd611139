//! IPv4 packets from no address, of pods whose agents ask by ARP from no address whether another
//! host has theirs (RFC 5227). OVN's port security can't allow one without the other.

use podwire_cluster::Name;
use podwire_ovs::nb::Table;

use super::index::member;
use super::{FIRST_DROP, Ids, acl, before_policies, row};
use crate::cluster::policy::Direction;
use crate::key::Network;
use crate::members::Member;
use crate::want::Row;

fn ids(network: &Network) -> Ids {
    Ids::new("PhysicalNetwork", network.name().to_string()).on(network)
}

/// The place of a pod's port on a physical network.
pub fn asking_member(network: &Network, port: Name) -> Member {
    member(Table::PortGroup, ids(network).hashed().into(), port)
}

/// The group of such ports of a network. What port security allows to the agents' ARP and to DHCP,
/// it allows to nobody: these pods have their addresses.
pub fn asking(network: &Network, has_tiers: bool) -> Vec<Row> {
    let group = row(Table::PortGroup, ids(network));
    let name = &*group.name.clone();
    let label = format!("PhysicalNetwork:{}", network.name());
    let ids = ids(network).and("direction", Direction::Egress);
    let of = (name, name, Direction::Egress);
    let drop = acl(of, ("drop", FIRST_DROP), "ip4.src == 0.0.0.0", &label, ids);
    let mut rows = vec![group, drop];
    before_policies(&mut rows, has_tiers);
    rows
}
