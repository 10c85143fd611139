//! The way out of primary networks. On each node with pods of a network, its router has a port on
//! the node's switch, as a pod has, with an address of the node's subnet: what the network's pods
//! there send outside has that as its source, and leaves as that of any pod of the node. So two
//! networks may have the same addresses, and a node's host needs to know nothing of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use podwire_cluster::service::Protocol;
use podwire_ovs::nb::Table;
use podwire_ovs::value::Value;

use super::gateway::{FIRST, all_zero};
use super::network::{marked, router};
use super::policy::{Family, from_nodes};
use super::{Column, ROUTER, Row, gateway_chassis, policy_of, router_port, to_router};
use crate::cluster::network::Shape;
use crate::ipam::{Assigned, join_addresses, mac, nth};
use crate::key::Network;
use crate::names;

/// The priorities of the policies of a network's router: what stays inside, what leaves by a node's
/// port, and all else.
const INSIDE: i64 = 102;
const OUT: i64 = 101;
const NOWHERE: i64 = 100;
/// Those of the router of all nodes, for the exposed ports of pods on primary networks: what nodes
/// themselves send there, what pods send each other, what nodes pass on, and the answers.
const FROM_NODES: i64 = 1001;
const AMONG_PODS: i64 = 1000;
const PASSED_ON: i64 = 999;
/// The place in the router's own network to which its default routes lead, so that its policies
/// are asked. Nobody has it.
const NOBODY: u16 = u16::MAX;

/// What the router of a network has on all nodes: nothing leaves that no node leads out.
pub(super) fn shared(of: &Network, shape: &Shape) -> Vec<Row> {
    let router = router(of);
    let own = join_addresses(FIRST, &shape.subnets);
    let Some(first) = own.first() else {
        return Vec::new();
    };
    // A port to nowhere, for routes need a next hop that is somebody's neighbour.
    let port = format!("rtoj-{router}");
    let mut rows = vec![router_port(
        &router,
        &port,
        mac(first.addr()),
        own.iter().copied(),
    )];
    for subnet in &shape.subnets {
        let ip = Family::of(subnet.addr()).field();
        for nobody in join_addresses(NOBODY, &[*subnet]) {
            rows.push(
                Row::new(Table::StaticRoute, "")
                    .set("ip_prefix", all_zero(subnet))
                    .set("nexthop", nobody.addr().to_string())
                    .under(Table::LogicalRouter, &router, "static_routes"),
            );
        }
        let inside = format!("{ip}.dst == {subnet}");
        let none = Value::empty;
        rows.push(policy_of(&router, INSIDE, inside, "allow", none()));
        rows.push(policy_of(&router, NOWHERE, ip, "drop", none()));
    }
    rows
}

/// The port on a node's switch that leads to a network's router.
pub fn gateway_port(of: &Network, node: &str) -> String {
    format!("etor-{}{node}", names::prefix(of.name()))
}

/// That of the router.
pub fn outer_port(of: &Network, node: &str) -> String {
    format!("rtoe-{}{node}", names::prefix(of.name()))
}

/// A network's way out on a node with this chassis, by what it is given of the node's subnets.
pub fn gateway(
    (of, shape): (&Network, &Shape),
    (node, chassis): (&str, &str),
    assigned: &Assigned,
) -> Vec<Row> {
    let router = router(of);
    let outer = outer_port(of, node);
    let mut rows = vec![
        router_port(
            &router,
            &outer,
            assigned.mac,
            assigned.addresses.iter().copied(),
        ),
        gateway_chassis(&outer, chassis),
        to_router(node, gateway_port(of, node), &outer),
    ];
    for subnet in &shape.subnets {
        let family = Family::of(subnet.addr());
        let mut own = assigned.addresses.iter();
        let Some(own) = own.find(|it| Family::of(it.addr()) == family) else {
            continue;
        };
        let mut nat = Row::new(Table::Nat, "")
            .set("type", "snat")
            .set("external_ip", own.addr().to_string())
            .set("logical_ip", subnet.to_string());
        let port = Column::Reference(Table::LogicalRouterPort, outer.as_str().into());
        nat.columns.push(("gateway_port", port));
        rows.push(nat.under(Table::LogicalRouter, &router, "nat"));
        // The router is everywhere: each node's pods leave by their own.
        let ip = family.field();
        let here = format!(r#"{ip}.src == {subnet} && is_chassis_resident("cr-{outer}")"#);
        let hop = nth(own.trunc(), 1).addr().to_string();
        rows.push(policy_of(&router, OUT, here, "reroute", hop));
    }
    marked(rows, (of, shape))
}

/// Endpoints of services with addresses outside of the cluster, on one node and of one network: by
/// address and port on the default network, the address on the network.
pub type Exposed = BTreeMap<(Protocol, SocketAddr), IpAddr>;

/// What the router of all nodes has for all networks: what pods send each other is not what a node
/// passes on.
pub fn among_pods(pods: &[IpNet]) -> Vec<Row> {
    let own = |family: Family| {
        let nets = pods.iter().filter(|net| Family::of(net.addr()) == family);
        let nets: BTreeSet<String> = nets.map(ToString::to_string).collect();
        let ip = family.field();
        let nets = Vec::from_iter(nets).join(", ");
        (!nets.is_empty()).then(|| {
            let both = format!("{ip}.src == {{{nets}}} && {ip}.dst == {{{nets}}}");
            policy_of(ROUTER, AMONG_PODS, both, "allow", Value::empty())
        })
    };
    Family::BOTH.into_iter().filter_map(own).collect()
}

/// The way to a network's pods on a node, by its way out there. What they answer comes back to the
/// node's host, also if pods leave by a gateway router.
pub fn inward(
    (of, shape): (&Network, &Shape),
    node: &str,
    assigned: &Assigned,
    exposed: &Exposed,
) -> Vec<Row> {
    let outer = outer_port(of, node);
    let mut rows = Vec::new();
    let pods = exposed.iter().map(|((_, at), own)| (at.ip(), own));
    for (address, own) in BTreeMap::from_iter(pods) {
        let mut nat = Row::new(Table::Nat, "")
            .set("type", "dnat")
            .set("external_ip", address.to_string())
            .set("logical_ip", own.to_string());
        let port = Column::Reference(Table::LogicalRouterPort, outer.as_str().into());
        nat.columns.push(("gateway_port", port));
        rows.push(nat.under(Table::LogicalRouter, &router(of), "nat"));
    }
    for own in &assigned.addresses {
        let family = Family::of(own.addr());
        if !exposed.keys().any(|(_, at)| Family::of(at.ip()) == family) {
            continue;
        }
        let by = format!(r#"inport == "{}""#, names::router_port(node));
        let [to, from] = ["dst", "src"].map(|side| sockets(exposed, family, side));
        let host = nth(own.trunc(), 2);
        let ways = [
            (FROM_NODES, format!("{} && {to}", from_nodes(family)), own),
            (PASSED_ON, format!("{by} && {to}"), own),
            (PASSED_ON, format!("{by} && {from}"), &host),
        ];
        rows.extend(ways.map(|(priority, matching, hop)| {
            policy_of(
                ROUTER,
                priority,
                matching,
                "reroute",
                hop.addr().to_string(),
            )
        }));
    }
    marked(rows, (of, shape))
}

/// Packets from (`src`) or to (`dst`) these endpoints of a family, and errors about such.
fn sockets(exposed: &Exposed, family: Family, side: &str) -> String {
    let ip = family.field();
    let mut by_port: BTreeMap<(Protocol, u16), BTreeSet<IpAddr>> = BTreeMap::new();
    let mut all = BTreeSet::new();
    for (protocol, at) in exposed
        .keys()
        .filter(|(_, at)| Family::of(at.ip()) == family)
    {
        let addresses = by_port.entry((*protocol, at.port())).or_default();
        addresses.insert(at.ip());
        all.insert(at.ip());
    }
    let of = |addresses: BTreeSet<IpAddr>| {
        let addresses = Vec::from_iter(addresses.iter().map(IpAddr::to_string));
        format!("{ip}.{side} == {{{}}}", addresses.join(", "))
    };
    let errors = format!("({} && {})", of(all), family.errors());
    let clauses = by_port.into_iter().map(|((protocol, port), addresses)| {
        format!("({} && {protocol}.{side} == {port})", of(addresses))
    });
    format!("({})", Vec::from_iter(clauses.chain([errors])).join(" || "))
}
