//! Networks beside the default one, with ovn-kubernetes' names.

use ipnet::IpNet;
use podwire_ovs::nb::Table;
use podwire_ovs::value::Value;
use serde_json::json;

use super::{
    ROUTER, Row, gateway_chassis, limit, port_addresses, router_port, switch_config, to_router,
};
use crate::cluster::Pod;
use crate::cluster::network::{Shape, Topology};
use crate::ipam::{Assigned, mac, nth};
use crate::key::{Attachment, Network};
use crate::names;

/// The key of `external_ids` with what a network is: what exists counts more than what a
/// definition says.
pub const SHAPE: &str = "podwire.io/network";
/// The key of `external_ids` with a network's name.
pub const NETWORK: &str = "k8s.ovn.org/network";
/// The key of `external_ids` of a pod's port with its attachment.
pub const ATTACHMENT: &str = "k8s.ovn.org/nad";

/// The switch of a network on a node; most networks have one for all.
pub fn switch(network: &Network, shape: &Shape, node: &str) -> String {
    let prefix = names::prefix(network.name());
    match shape.topology {
        Topology::Layer2 => format!("{prefix}ovn_layer2_switch"),
        Topology::Layer3 => format!("{prefix}{node}"),
        Topology::Localnet => format!("{prefix}ovn_localnet_switch"),
    }
}

/// The router of a network that has one.
pub fn router(network: &Network) -> String {
    format!("{}{ROUTER}", names::prefix(network.name()))
}

/// The row that all nodes share, and that says what the network is: its switch, or the router
/// between nodes' switches.
pub fn shared_row(network: &Network, shape: &Shape) -> (Table, String) {
    match shape.topology {
        Topology::Layer3 => (Table::LogicalRouter, router(network)),
        Topology::Layer2 | Topology::Localnet => (Table::LogicalSwitch, switch(network, shape, "")),
    }
}

/// What all nodes share.
pub fn network(network: &Network, shape: &Shape) -> Vec<Row> {
    let (table, name) = shared_row(network, shape);
    let mut row = match table {
        Table::LogicalRouter => router_row(network),
        _ => Row::new(table, &name),
    };
    row.external_ids = ids(network, shape);
    // It is text, numbers and lists.
    let text = json!(shape).to_string();
    row.external_ids.push((SHAPE, text));
    let mut rows = vec![row];
    if shape.topology == Topology::Localnet {
        let physical = shape.physical_network_name.as_deref();
        let physical = physical.unwrap_or(network.name());
        let tag = shape.vlan.map(i64::from);
        let port = format!("{}ovn_localnet_port", names::prefix(network.name()));
        let mut port = Row::new(Table::LogicalSwitchPort, port)
            .set("type", "localnet")
            .set("addresses", "unknown")
            .set("options", Value::map([("network_name", physical)]))
            .set("tag_request", Value::set(tag))
            .under(Table::LogicalSwitch, &name, "ports");
        port.external_ids = ids(network, shape);
        rows.push(port);
    }
    rows
}

pub(super) fn router_row(network: &Network) -> Row {
    let options = Value::map([("always_learn_from_arp_request", "false")]);
    Row::new(Table::LogicalRouter, router(network))
        .set("options", options)
        .protected()
}

/// The ports between a switch of a network and its router, which has these addresses there.
pub(super) fn routed(network: &Network, switch: &str, addresses: &[IpNet]) -> Vec<Row> {
    let Some(first) = addresses.first() else {
        return Vec::new();
    };
    let to_switch = names::router_port(switch);
    let addresses = addresses.iter().copied();
    vec![
        router_port(&router(network), &to_switch, mac(first.addr()), addresses),
        to_router(switch, names::switch_port(switch), &to_switch),
    ]
}

/// Rows that say whose they are.
pub(super) fn marked(mut rows: Vec<Row>, (network, shape): (&Network, &Shape)) -> Vec<Row> {
    for row in &mut rows {
        row.external_ids = ids(network, shape);
    }
    rows
}

/// A node's part of a layer 3 network: a switch with these subnets, which the network's router
/// joins with those of other nodes.
pub fn node(
    (network, shape): (&Network, &Shape),
    (node, chassis): (&str, Option<&str>),
    subnets: &[IpNet],
) -> Vec<Row> {
    let name = switch(network, shape, node);
    let switch = Row::new(Table::LogicalSwitch, &name)
        .set("other_config", Value::map(switch_config(subnets)))
        .protected();
    let mut rows = vec![switch];
    let routers: Vec<IpNet> = subnets.iter().map(|subnet| nth(*subnet, 1)).collect();
    rows.extend(routed(network, &name, &routers));
    let to_switch = names::router_port(&name);
    // It keeps the datapaths of other nodes out of this node's ovn-controller.
    rows.extend(chassis.map(|chassis| gateway_chassis(&to_switch, chassis)));
    marked(rows, (network, shape))
}

/// The same without a cluster: what no controller does, OVN does, which gives ports with the
/// address `dynamic` one of the subnets (ovn-nb(5), Logical_Switch, `other_config`).
pub fn alone(network: &Network, shape: &Shape) -> Vec<Row> {
    let mut rows = self::network(network, shape);
    let mut config = Vec::new();
    for net in &shape.subnets {
        match net {
            IpNet::V4(_) => config.push(("subnet", net.to_string())),
            // A prefix of 64 bits is the only one that it knows.
            IpNet::V6(net) if net.prefix_len() == 64 => {
                config.push(("ipv6_prefix", net.network().to_string()));
            }
            IpNet::V6(_) => {}
        }
    }
    let excluded = shape.exclude_subnets.iter().filter_map(|net| match net {
        IpNet::V4(net) => Some(format!("{}..{}", net.network(), net.broadcast())),
        IpNet::V6(_) => None,
    });
    let excluded: Vec<String> = excluded.collect();
    if !excluded.is_empty() {
        config.push(("exclude_ips", excluded.join(" ")));
    }
    if let Some(switch) = rows.first_mut() {
        *switch = switch.clone().set("other_config", Value::map(config));
    }
    rows
}

pub(super) fn ids(network: &Network, shape: &Shape) -> Vec<(&'static str, String)> {
    vec![
        (NETWORK, network.name().to_string()),
        ("k8s.ovn.org/topology", shape.topology.word().to_owned()),
        ("k8s.ovn.org/role", shape.role.word().to_owned()),
    ]
}

/// The logical port of an attachment, with a limit of its connections: the switch may have ports on
/// many nodes.
pub fn port(
    attachment: &Attachment,
    pod: &Pod,
    (network, shape): (&Network, &Shape),
    assigned: &Assigned,
    connections: u32,
) -> Row {
    let (known, secured) = known_and_secured(shape, assigned);
    let mut options = vec![
        ("iface-id-ver", pod.uid.to_string()),
        ("requested-chassis", pod.node.to_string()),
    ];
    options.extend(limit(connections));
    let mut port = Row::new(Table::LogicalSwitchPort, names::attached_port(attachment))
        .set("type", "")
        .set("addresses", known)
        .set("port_security", secured)
        .set("options", Value::map(options))
        .under(
            Table::LogicalSwitch,
            &switch(network, shape, &pod.node),
            "ports",
        );
    port.external_ids = vec![
        ("namespace", attachment.pod.0.to_string()),
        ("pod", "true".to_owned()),
        (NETWORK, network.name().to_string()),
        ("k8s.ovn.org/topology", shape.topology.word().to_owned()),
        (ATTACHMENT, attachment.entry.to_string()),
    ];
    port
}

/// What OVN knows of a port, and what port security lets pass there.
fn known_and_secured(shape: &Shape, assigned: &Assigned) -> (String, Value) {
    let mac = assigned.mac.to_string();
    let all = port_addresses(mac.clone(), assigned.addresses.iter().copied());
    if assigned.addresses.is_empty() {
        // Any address, and anything else. The former is said, too: with the latter alone, OVN
        // before 23.03.2 drops neighbour advertisements.
        let any = format!("{mac} 0.0.0.0/0 ::/0");
        return (all, Value::set([mac, any]));
    }
    if shape.topology != Topology::Localnet {
        return (all.clone(), all.into());
    }
    // OVN would answer for the IP addresses that it knows, whoever on the physical network has
    // them. From no address a pod's agent asks by ARP for that of its own (RFC 5227); for IPv6 OVN
    // lets that pass anyway.
    let has_ipv4 = assigned.addresses.iter().any(|it| it.addr().is_ipv4());
    let secured = match has_ipv4 {
        true => format!("{all} 0.0.0.0"),
        false => all,
    };
    (mac, secured.into())
}

/// An attachment's entry in the pod's annotation, in ovn-kubernetes' format.
pub fn entry(
    shape: &Shape,
    assigned: &Assigned,
    gateways: &[std::net::IpAddr],
) -> serde_json::Value {
    let addresses: &[IpNet] = &assigned.addresses;
    let mut entry = json!({
        "ip_addresses": addresses,
        "mac_address": assigned.mac.to_string(),
        "role": shape.role.word(),
    });
    if let [address] = addresses {
        entry["ip_address"] = json!(address);
    }
    if !gateways.is_empty() {
        entry["gateway_ips"] = json!(gateways);
    }
    if let Some(mtu) = shape.mtu {
        entry["mtu"] = json!(mtu);
    }
    if shape.topology == Topology::Layer3 {
        // To the parts of other nodes.
        let routes = shape.subnets.iter().filter_map(|subnet| {
            let is_same = |it: &&IpNet| it.addr().is_ipv4() == subnet.addr().is_ipv4();
            let own = addresses.iter().find(is_same)?;
            Some(json!({ "dest": subnet, "nextHop": nth(own.trunc(), 1).addr() }))
        });
        entry["routes"] = routes.collect();
    }
    entry
}
