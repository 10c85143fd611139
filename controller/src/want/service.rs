use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use podwire_cluster::claims::Refused;
use podwire_cluster::service::{Endpoint, Protocol, Service, ServicePort, Slice};
use podwire_ovs::nb::Table;
use podwire_ovs::value::Value;

use super::{GROUP, Row};

/// A service: a load balancer for each of its protocols, in the one group of all switches. If
/// cluster IPs lead only to endpoints on the client's node, each node with endpoints has its own
/// load balancer for them, and all others share one without endpoints. `nodes` are those with a
/// switch. `refused` are the addresses that it can't have. A load balancer's address that not all
/// clients may use (`loadBalancerSourceRanges`) is left to the nodes, whose tables know the ranges.
pub fn service<'a>(
    namespace: &str,
    name: &str,
    service: &Service,
    slices: impl Iterator<Item = &'a Slice> + Clone,
    nodes: &[&str],
    refused: &Refused,
) -> Vec<Row> {
    let protocols: BTreeSet<Protocol> = service.ports.iter().map(|it| it.protocol).collect();
    let mut rows = Vec::new();
    for protocol in protocols {
        let row = |suffix: &str, vips: BTreeMap<String, String>| {
            let full_name = format!(
                "Service_{namespace}/{name}_{}_{suffix}",
                protocol.api_name()
            );
            let mut row = Row::new(Table::LoadBalancer, full_name)
                .set("protocol", protocol.name())
                .set("vips", Value::map(vips))
                .set("options", options(protocol))
                .set("selection_fields", selection_fields(service));
            row.external_ids = vec![
                ("k8s.ovn.org/kind", "Service".to_owned()),
                ("k8s.ovn.org/owner", format!("{namespace}/{name}")),
            ];
            row
        };
        let vips = |addresses: &[IpAddr], node: Option<&str>| {
            let ports = service.ports.iter().filter(|it| it.protocol == protocol);
            ports
                .flat_map(|port| {
                    let of_family = [true, false].map(|v4| {
                        let is_wanted = |it: &Endpoint| {
                            it.address.is_ipv4() == v4
                                && node.is_none_or(|node| it.node.as_deref() == Some(node))
                        };
                        service.endpoints(port, slices.clone(), is_wanted)
                    });
                    let is_its = |address: &&IpAddr| {
                        let socket = SocketAddr::new(**address, port.port);
                        !refused.contains_key(&(socket, protocol))
                    };
                    let own = addresses.iter().filter(is_its);
                    let vips = own.map(|&address| {
                        let [v4, v6] = &of_family;
                        vip(address, port, if address.is_ipv4() { v4 } else { v6 })
                    });
                    vips.collect::<Vec<_>>()
                })
                .collect::<BTreeMap<_, _>>()
        };
        let open = service.balancer_ips.iter().copied();
        let open = open.filter(|it| service.sources(it.is_ipv4()).is_empty());
        let external = service.external_ips.iter().copied().chain(open);
        let everywhere: Vec<IpAddr> = match service.is_internal_local {
            true => external.collect(),
            false => service
                .cluster_ips
                .iter()
                .copied()
                .chain(external)
                .collect(),
        };
        let everywhere = vips(&everywhere, None);
        if !everywhere.is_empty() {
            let row = row("cluster", everywhere);
            rows.push(row.under(Table::LoadBalancerGroup, GROUP, "load_balancer"));
        }
        if !service.is_internal_local {
            continue;
        }
        let mut without = row(WITHOUT, vips(&service.cluster_ips, Some("")));
        for node in nodes {
            let vips = vips(&service.cluster_ips, Some(node));
            if vips.values().all(String::is_empty) {
                without = without.under(Table::LogicalSwitch, node, "load_balancer");
            } else {
                let own = row(&format!("{NODE_SWITCH}{node}"), vips);
                rows.push(own.under(Table::LogicalSwitch, node, "load_balancer"));
            }
        }
        if !without.parents.is_empty() {
            rows.push(without);
        }
    }
    rows
}

/// Suffix of a node's own load balancer, before the node's name.
pub const NODE_SWITCH: &str = "node_switch_";
/// Suffix of the load balancer for nodes without endpoints. No node has this name: names of nodes
/// contain no underscore.
const WITHOUT: &str = "node_switch_without_endpoints";

/// A virtual address, and its endpoints. With an empty list OVN rejects connections, as Kubernetes
/// requires for a service without endpoints.
fn vip(address: IpAddr, port: &ServicePort, endpoints: &BTreeSet<SocketAddr>) -> (String, String) {
    let endpoints: Vec<_> = endpoints.iter().map(SocketAddr::to_string).collect();
    let vip = SocketAddr::new(address, port.port).to_string();
    (vip, endpoints.join(","))
}

/// Clients that talk to an endpoint that is gone are to reach another: by UDP ovn-controller ends
/// their connections (`ct_flush`, from OVN 23.03.1 on). By TCP they end by themselves, and a pod
/// that terminates still answers by those that it has.
fn options(protocol: Protocol) -> Value {
    let flush = (protocol == Protocol::Udp).then_some(("ct_flush", "true"));
    let all = [
        ("reject", "true"),
        ("event", "false"),
        ("skip_snat", "false"),
        ("neighbor_responder", "none"),
        ("hairpin_snat_ip", "169.254.169.5 fd69::5"),
    ];
    Value::map(all.into_iter().chain(flush))
}

/// Affinity: the fields that select the endpoint. `affinity_timeout` would also keep the time, but
/// OVN drops each client's first packet with it (decision 0043).
fn selection_fields(service: &Service) -> Value {
    match service.affinity.is_some() {
        true => Value::set(["ip_dst", "ip_src"]),
        false => Value::empty(),
    }
}
