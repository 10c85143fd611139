//! A gateway of OVN's own on a node: its gateway router, between the switch join, on which the
//! router of all nodes has a port, and a switch with the node's bridge.
//!
//! The gateway router has the addresses and the MAC address of the node itself. The node's role
//! tells on the bridge which packets are whose.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cluster::gateway::{ANSWER, Gateway, NETWORK};
use podwire_ovs::nb::Table;
use podwire_ovs::value::Value;

use super::policy::Family;
use super::{ROUTER, Row, policy_of, router_port, to_router};
use crate::ipam::{join_addresses, mac};
use crate::names;

/// The switch of all gateway routers. ovn-kubernetes' has this name, too.
const SWITCH: &str = "join";
/// The place of the router of all nodes on it.
pub(super) const FIRST: u16 = 1;

/// How a node's pods leave by its gateway router.
#[derive(Clone, Copy, Debug)]
pub struct WayOut<'a> {
    /// The gateway.
    pub gateway: &'a Gateway,
    /// The gateway router's place on the switch join.
    pub place: u16,
    /// The networks of all pods.
    pub cluster: &'a [IpNet],
    /// Whether OVN can mark answers.
    pub has_marks: bool,
}

impl WayOut<'_> {
    /// Whether what this node's pods answer to clients from outside comes back to its host, which
    /// has led these to the pods. What comes from outside never reaches a pod by the gateway
    /// router.
    pub fn answers_return(&self, subnets: &[IpNet]) -> bool {
        let by_host = |subnet: &IpNet| self.gateway.way(subnet.addr().is_ipv4()).is_none();
        self.has_marks && subnets.iter().all(|it| by_host(it) || self.leads_back(it))
    }

    fn leads_back(&self, subnet: &IpNet) -> bool {
        let v4 = subnet.addr().is_ipv4();
        self.has_marks
            && self.gateway.way(v4).is_some()
            && self.cluster.iter().any(|net| net.addr().is_ipv4() == v4)
    }

    /// The rows for that: what pods of this subnet answer has a mark, by which the router of all
    /// nodes leads to the host what does not go to another pod.
    pub(super) fn answers(&self, name: &str, subnet: &IpNet, host: IpAddr) -> Vec<Row> {
        if !self.leads_back(subnet) {
            return Vec::new();
        }
        let family = Family::of(subnet.addr());
        let ip = family.field();
        let pods = self
            .cluster
            .iter()
            .filter(|net| Family::of(net.addr()) == family);
        let pods: Vec<String> = pods.map(ToString::to_string).collect();
        let own = format!(
            r#"inport == "{}" && pkt.mark == {ANSWER} && {ip}"#,
            names::router_port(name)
        );
        let among_pods = format!("{own}.dst == {{{}}}", pods.join(", "));
        vec![
            Row::new(Table::Qos, "")
                .set("direction", "from-lport")
                .set("priority", 1000)
                .set("match", format!("ct.rpl && {ip}.src == {subnet}"))
                .set("action", Value::map([("mark", i64::from(ANSWER))]))
                .under(Table::LogicalSwitch, name, "qos_rules"),
            policy_of(ROUTER, 1003, among_pods, "allow", Value::empty()),
            policy_of(ROUTER, 1002, own, "reroute", host.to_string()),
        ]
    }
}

/// What all gateways share, if there are pods of these families.
pub fn join(families: &[IpNet]) -> Vec<Row> {
    let port = format!("rtoj-{ROUTER}");
    let mut rows = vec![Row::new(Table::LogicalSwitch, SWITCH).protected()];
    rows.extend(joined(ROUTER, &port, &join_addresses(FIRST, families)));
    rows
}

/// A router's port on the switch join, and the switch's port to it.
fn joined(router: &str, port: &str, addresses: &[IpNet]) -> Vec<Row> {
    let Some(first) = addresses.first() else {
        return Vec::new();
    };
    vec![
        router_port(router, port, mac(first.addr()), addresses.iter().copied()),
        to_router(SWITCH, format!("jtor-{router}"), port),
    ]
}

/// A node's gateway router at a place of the switch join, for its pods in these subnets. `cluster`
/// are the networks of all pods.
pub fn gateway(
    name: &str,
    (gateway, chassis): (&Gateway, &str),
    subnets: &[IpNet],
    cluster: &[IpNet],
    place: u16,
) -> Vec<Row> {
    let router = names::gateway(name);
    let outside = format!("rtoe-{router}");
    let external = names::external(name);
    let mut row = Row::new(Table::LogicalRouter, &router).set(
        "options",
        Value::map([
            ("always_learn_from_arp_request", "false"),
            ("chassis", chassis),
            // Otherwise each gateway router has the addresses of each other one.
            ("dynamic_neigh_routers", "true"),
            ("mac_binding_age_threshold", "300"),
            // That of the host's own connections, so that a pod's gets another port than theirs.
            ("snat-ct-zone", "0"),
        ]),
    );
    let own: Vec<String> = gateway
        .addresses
        .iter()
        .map(|it| it.addr().to_string())
        .collect();
    row.external_ids = vec![
        ("physical_ip", own.first().cloned().unwrap_or_default()),
        ("physical_ips", own.join(",")),
    ];
    let mut rows = vec![row.protected()];
    rows.extend(joined(
        &router,
        &names::join_port(name),
        &join_addresses(place, subnets),
    ));
    let mtu = gateway.mtu.map(|mtu| mtu.to_string());
    let addresses = gateway.addresses.iter().copied();
    // Who sends pods a larger packet from outside is told so.
    let mut out = router_port(&router, &outside, gateway.mac, addresses).set(
        "options",
        Value::map(mtu.iter().map(|mtu| ("gateway_mtu", &**mtu))),
    );
    out.external_ids = vec![("gateway-physical-ip", "yes".to_owned())];
    rows.push(out);
    rows.push(Row::new(Table::LogicalSwitch, &external).protected());
    let mut bridge = Row::new(Table::LogicalSwitchPort, &gateway.interface)
        .set("type", "localnet")
        .set("addresses", "unknown")
        .set("options", Value::map([("network_name", NETWORK)]))
        .under(Table::LogicalSwitch, &external, "ports");
    let tag = gateway.vlan.map(i64::from);
    bridge = bridge.set("tag_request", tag.map_or_else(Value::empty, Value::from));
    rows.push(bridge);
    rows.push(to_router(&external, format!("etor-{router}"), &outside));
    let route = |prefix: String, via: String, port: Value| {
        Row::new(Table::StaticRoute, "")
            .set("ip_prefix", prefix)
            .set("nexthop", via)
            .set("output_port", port)
            .under(Table::LogicalRouter, &router, "static_routes")
    };
    let served = |net: &&IpNet| gateway.way(net.addr().is_ipv4()).is_some();
    for subnet in subnets.iter().filter(served) {
        let Some((source, hop)) = gateway.way(subnet.addr().is_ipv4()) else {
            continue;
        };
        for first in join_addresses(FIRST, &[*subnet]) {
            let via = first.addr().to_string();
            rows.push(route(subnet.to_string(), via, Value::empty()));
        }
        let out = Value::from(&*outside);
        rows.push(route(all_zero(subnet).to_owned(), hop.to_string(), out));
        let nat = Row::new(Table::Nat, "")
            .set("type", "snat")
            .set("external_ip", source.to_string())
            .set("logical_ip", subnet.to_string());
        rows.push(nat.under(Table::LogicalRouter, &router, "nat"));
    }
    // Packets to nobody's address would go to and fro between both routers, or leave the node.
    for net in cluster
        .iter()
        .filter(served)
        .filter(|net| !subnets.contains(net))
    {
        rows.push(route(net.to_string(), "discard".to_owned(), Value::empty()));
    }
    rows
}

/// Where the router of all nodes leads what a node's pods of this subnet send outside: to the
/// node's gateway router, at a place of the switch join.
pub(super) fn way_out(place: u16, subnet: &IpNet) -> Option<IpAddr> {
    join_addresses(place, &[*subnet]).first().map(IpNet::addr)
}

/// The whole of a family's addresses.
pub(super) fn all_zero(subnet: &IpNet) -> &'static str {
    match subnet {
        IpNet::V4(_) => "0.0.0.0/0",
        IpNet::V6(_) => "::/0",
    }
}
