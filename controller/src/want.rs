//! The rows that an object should have in the northbound database: those of docs/controller.md.
//! Pure: the same objects give the same rows.

pub mod exit;
pub mod gateway;
pub mod network;
pub mod policy;
pub mod primary;
pub mod protect;
mod service;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cluster::gateway::led;
use podwire_ovs::nb::Table;
use podwire_ovs::value::Value;

use crate::cluster::{Name, Node, ObjectName, Pod};
use crate::ipam::{Assigned, mac, nth};
use crate::names;

pub use gateway::WayOut;
pub use service::{NODE_SWITCH, service};

/// The router that joins all nodes.
pub const ROUTER: &str = "ovn_cluster_router";
/// The switch by which nodes pass on what came from outside for another node's pods, with its
/// source. No node has this name.
pub const DOORS: &str = "podwire_doors";
/// The load balancers of all switches.
pub const GROUP: &str = "clusterLBGroup";

/// A wanted row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its table.
    pub table: Table,
    /// Distinguishes it from others in its table; empty if rows have no name and the columns
    /// distinguish them.
    pub name: String,
    /// Every relevant column, without name and external_ids.
    pub columns: Vec<(&'static str, Column)>,
    /// Entries of external_ids that others read.
    pub external_ids: Vec<(&'static str, String)>,
    /// The rows that refer to it.
    pub parents: Vec<Parent>,
}

/// The content of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// This.
    Value(Value),
    /// A reference to the row with this name.
    Reference(Table, Name),
}

/// The place of a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parent {
    /// The referring row's table.
    pub table: Table,
    /// Its name.
    pub name: String,
    /// The column with the references.
    pub column: &'static str,
}

impl Row {
    fn new(table: Table, name: impl Into<String>) -> Self {
        Self {
            table,
            name: name.into(),
            columns: Vec::new(),
            external_ids: Vec::new(),
            parents: Vec::new(),
        }
    }

    /// The content of a column; `None` if it is a reference.
    pub fn value(&self, column: &str) -> Option<&Value> {
        let mut columns = self.columns.iter();
        match columns.find(|(name, _)| *name == column) {
            Some((_, Column::Value(value))) => Some(value),
            _ => None,
        }
    }

    fn set(mut self, column: &'static str, value: impl Into<Value>) -> Self {
        self.columns.push((column, Column::Value(value.into())));
        self
    }

    fn under(mut self, table: Table, name: &str, column: &'static str) -> Self {
        let name = name.to_owned();
        self.parents.push(Parent {
            table,
            name,
            column,
        });
        self
    }
}

/// Shared by the whole cluster.
pub fn cluster() -> Vec<Row> {
    let mut router = Row::new(Table::LogicalRouter, ROUTER).set(
        "options",
        Value::map([
            ("always_learn_from_arp_request", "false"),
            // In seconds, as ovn-kubernetes' routers; OVN before 22.09 ignores it.
            ("mac_binding_age_threshold", "300"),
        ]),
    );
    router.external_ids = vec![("k8s-cluster-router", "yes".to_owned())];
    let mut rows = vec![
        protect::row(),
        router.protected(),
        Row::new(Table::LoadBalancerGroup, GROUP),
        Row::new(Table::LogicalSwitch, DOORS),
    ];
    rows.extend(policy::nodes());
    rows
}

/// A node with these subnets: its switch, its ports on router and switch, and its pods' routes to
/// the outside.
///
/// A pod can have this many connections on it: 0 is no limit. With a gateway router at a place of
/// the switch join, its pods leave by that.
pub fn node(
    name: &str,
    node: &Node,
    subnets: &[IpNet],
    connections: u32,
    gateway: Option<&WayOut<'_>>,
) -> Vec<Row> {
    let Some(first) = subnets.first() else {
        return Vec::new();
    };
    let router = |place: u128| subnets.iter().map(move |subnet| nth(*subnet, place));
    let to_switch = names::router_port(name);
    let management: Vec<IpAddr> = router(2).map(|address| address.addr()).collect();
    let management_mac = node.mac.unwrap_or_else(|| mac(nth(*first, 2).addr()));
    // Nodes tell each other by it, and it has no IP address.
    let door = mac(nth(*first, 2).addr()).to_string();
    // An interface with the port's name on another node, such as one of ovnPort, does not get it.
    let on_node = || Value::map([("requested-chassis", name)]);
    let mut switch = Row::new(Table::LogicalSwitch, name)
        .set(
            "other_config",
            Value::map(switch_config(subnets).chain(limit(connections))),
        )
        .protected();
    switch.columns.push((
        "load_balancer_group",
        Column::Reference(Table::LoadBalancerGroup, Name::new_static(GROUP)),
    ));
    let mut rows = vec![
        switch,
        router_port(ROUTER, &to_switch, mac(nth(*first, 1).addr()), router(1)),
        to_router(name, names::switch_port(name), &to_switch),
        Row::new(Table::LogicalSwitchPort, names::management_port(name))
            .set("type", "")
            .set(
                "addresses",
                port_addresses(management_mac.to_string(), router(2)),
            )
            .set("options", on_node())
            .under(Table::LogicalSwitch, name, "ports"),
        Row::new(Table::LogicalSwitchPort, names::door_port(name))
            .set("type", "")
            .set("addresses", &*door)
            .set("port_security", &*door)
            .set("options", on_node())
            .under(Table::LogicalSwitch, DOORS, "ports"),
    ];
    // It keeps the datapaths of other nodes out of this node's ovn-controller.
    let chassis = node.chassis.iter();
    rows.extend(chassis.map(|chassis| gateway_chassis(&to_switch, chassis)));
    rows.extend(subnets.iter().zip(&management).map(|(subnet, host)| {
        let by_gateway = gateway
            .filter(|way| way.gateway.way(subnet.addr().is_ipv4()).is_some())
            .and_then(|way| gateway::way_out(way.place, subnet));
        let next_hop = by_gateway.unwrap_or(*host);
        Row::new(Table::StaticRoute, "")
            .set("ip_prefix", subnet.to_string())
            .set("nexthop", next_hop.to_string())
            .set("policy", "src-ip")
            .under(Table::LogicalRouter, ROUTER, "static_routes")
    }));
    // Packets of its pods to the node itself must not go to another node's router.
    let of_family = |address: &IpAddr| {
        management
            .iter()
            .find(|next_hop| next_hop.is_ipv4() == address.is_ipv4())
            .map(|next_hop| (*address, *next_hop))
    };
    let mut own: BTreeSet<IpAddr> = node.addresses.iter().copied().collect();
    if gateway.is_some() {
        // Its host alone has these, too.
        own.extend(node.host_addresses.iter().filter(|it| !it.is_loopback()));
        own.extend([true, false].map(led));
    }
    rows.extend(own.iter().filter_map(of_family).map(|(address, next_hop)| {
        let family = policy::Family::of(address).field();
        let matching = format!(r#"inport == "{to_switch}" && {family}.dst == {address}"#);
        policy_of(ROUTER, 1004, matching, "reroute", next_hop.to_string())
    }));
    rows.extend(gateway.into_iter().flat_map(|way| {
        let hosts = subnets.iter().zip(&management);
        hosts.flat_map(|(subnet, host)| way.answers(name, subnet, *host))
    }));
    rows
}

/// A pod with these addresses: its logical port.
pub fn pod(id: &ObjectName, pod: &Pod, assigned: &Assigned) -> Vec<Row> {
    let addresses = assigned.addresses.iter().copied();
    let all = port_addresses(assigned.mac.to_string(), addresses);
    let options = Value::map([
        ("iface-id-ver", &*pod.uid),
        ("requested-chassis", &*pod.node),
    ]);
    let mut port = Row::new(Table::LogicalSwitchPort, names::pod_port(id))
        .set("type", "")
        .set("addresses", &*all)
        .set("port_security", &*all)
        .set("options", options)
        .under(Table::LogicalSwitch, &pod.node, "ports");
    port.external_ids = vec![("namespace", id.0.to_string()), ("pod", "true".to_owned())];
    vec![port]
}

/// A router's port with these addresses.
fn router_port(
    router: &str,
    name: &str,
    mac: impl ToString,
    addresses: impl IntoIterator<Item = IpNet>,
) -> Row {
    let networks = addresses.into_iter().map(|it| it.to_string());
    Row::new(Table::LogicalRouterPort, name)
        .set("mac", mac.to_string())
        .set("networks", Value::set(networks))
        .under(Table::LogicalRouter, router, "ports")
}

/// A switch's port that leads to a router's.
fn to_router(switch: &str, name: impl Into<String>, port: &str) -> Row {
    Row::new(Table::LogicalSwitchPort, name)
        .set("type", "router")
        .set("addresses", "router")
        .set("options", Value::map([("router-port", port)]))
        .under(Table::LogicalSwitch, switch, "ports")
}

/// Binds a router's port to a chassis.
fn gateway_chassis(port: &str, chassis: &str) -> Row {
    Row::new(Table::GatewayChassis, format!("{port}-{chassis}"))
        .set("chassis_name", chassis)
        .set("priority", 1)
        .under(Table::LogicalRouterPort, port, "gateway_chassis")
}

/// A router's policy; one that reroutes has a next hop.
fn policy_of(
    router: &str,
    priority: i64,
    matching: impl Into<Value>,
    action: &str,
    hop: impl Into<Value>,
) -> Row {
    Row::new(Table::RouterPolicy, "")
        .set("priority", priority)
        .set("match", matching)
        .set("action", action)
        .set("nexthops", hop)
        .under(Table::LogicalRouter, router, "policies")
}

fn switch_config(subnets: &[IpNet]) -> impl Iterator<Item = (&'static str, String)> {
    subnets.iter().map(|subnet| match subnet {
        IpNet::V4(net) => ("subnet", net.to_string()),
        IpNet::V6(net) => ("ipv6_prefix", net.network().to_string()),
    })
}

/// The limit of a port's zone, or of those of a switch's ports; OVN before 24.09 ignores it.
fn limit(connections: u32) -> Option<(&'static str, String)> {
    (connections > 0).then(|| ("ct-zone-limit", connections.to_string()))
}

/// A MAC address and the IP addresses that go with it.
fn port_addresses(mac: String, addresses: impl Iterator<Item = IpNet>) -> String {
    addresses.fold(mac, |all, address| format!("{all} {}", address.addr()))
}
