//! Primary networks: the rows that they have in addition to those of others, with ovn-kubernetes'
//! names.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use podwire_cluster::service::{Service, Slice};
use podwire_ovs::nb::Table;

use super::network::switch;
use super::{Row, exit, network};
use crate::cluster::network::{Shape, Topology};
use crate::key::Network;

/// The router of a network, what has its pods' default routes, and leads them to the network's own
/// services, and to the gateways by which they leave ([`exit`]). Between nodes' switches there is
/// one anyway.
pub fn router(of: &Network, shape: &Shape) -> Vec<Row> {
    let mut rows = Vec::new();
    if shape.topology == Topology::Layer2 {
        let addresses: Vec<_> = shape.routers().collect();
        rows.push(network::router_row(of));
        rows.extend(network::routed(of, &switch(of, shape, ""), &addresses));
    }
    rows.extend(exit::shared(of, shape));
    network::marked(rows, (of, shape))
}

/// A service of a namespace with a primary network: the load balancers of that network's switches.
/// `own` has the addresses of its pods there, by those that slices name.
pub fn service<'a>(
    (namespace, name): (&str, &str),
    service: &Service,
    slices: impl Iterator<Item = &'a Slice>,
    own: &BTreeMap<IpAddr, IpAddr>,
    switches: &[String],
) -> Vec<Row> {
    // Its network has no nodes. What is to come by a node could be another's address there, such as
    // that of another namespace's service or pod.
    let service = Service {
        is_internal_local: false,
        external_ips: Vec::new(),
        balancer_ips: Vec::new(),
        ..service.clone()
    };
    let there: BTreeSet<IpAddr> = own.values().copied().collect();
    let translated = slices.map(|slice| {
        let mut slice = slice.clone();
        slice.endpoints.retain_mut(|it| match own.get(&it.address) {
            Some(address) => {
                it.address = *address;
                true
            }
            // One that a user wrote, or nobody of its network.
            None => there.contains(&it.address),
        });
        slice
    });
    let translated: Vec<Slice> = translated.collect();
    let none = podwire_cluster::claims::Refused::new();
    let mut rows = super::service(namespace, name, &service, translated.iter(), &[], &none);
    for row in &mut rows {
        row.parents = Vec::new();
        for switch in switches {
            *row = row
                .clone()
                .under(Table::LogicalSwitch, switch, "load_balancer");
        }
    }
    rows.retain(|row| !row.parents.is_empty());
    rows
}
