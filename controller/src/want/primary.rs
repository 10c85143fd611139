//! Primary networks: the rows that they have in addition to those of others, with ovn-kubernetes'
//! names.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use podwire_cluster::service::{Service, Slice};
use podwire_ovs::nb::Table;
use podwire_ovs::value::Value;

use super::network::switch;
use super::{ROUTER, Row, network};
use crate::cluster::network::Shape;
use crate::ipam::mac;
use crate::key::Network;
use crate::names;

/// The router of a network: what has its pods' default routes, and leads them to the network's own
/// services. It leads nowhere else.
pub fn router(of: &Network, shape: &Shape) -> Vec<Row> {
    let Some(first) = shape.routers().next() else {
        return Vec::new();
    };
    let switch = switch(of, shape);
    let name = format!("{}{ROUTER}", names::prefix(of.name()));
    let to_switch = names::router_port(&switch);
    let mut router = Row::new(Table::LogicalRouter, &name)
        .set(
            "options",
            Value::map([("always_learn_from_arp_request", "false")]),
        )
        .protected();
    router.external_ids = network::ids(of, shape);
    let networks = shape.routers().map(|it| it.to_string());
    let mut port = Row::new(Table::LogicalRouterPort, &to_switch)
        .set("mac", mac(first.addr()).to_string())
        .set("networks", Value::set(networks))
        .under(Table::LogicalRouter, &name, "ports");
    port.external_ids = network::ids(of, shape);
    let mut peer = Row::new(Table::LogicalSwitchPort, names::switch_port(&switch))
        .set("type", "router")
        .set("addresses", "router")
        .set("options", Value::map([("router-port", &*to_switch)]))
        .under(Table::LogicalSwitch, &switch, "ports");
    peer.external_ids = network::ids(of, shape);
    vec![router, port, peer]
}

/// A service of a namespace with a primary network: the load balancers of that network's switch.
/// `own` has the addresses of its pods there, by those that slices name.
pub fn service<'a>(
    (namespace, name): (&str, &str),
    service: &Service,
    slices: impl Iterator<Item = &'a Slice>,
    own: &BTreeMap<IpAddr, IpAddr>,
    (of, shape): (&Network, &Shape),
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
    let switch = switch(of, shape);
    for row in &mut rows {
        row.parents = Vec::new();
        *row = row
            .clone()
            .under(Table::LogicalSwitch, &switch, "load_balancer");
    }
    rows
}
