use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use podwire_apiserver::claims::Refused;
use podwire_ovs::nb::Table;
use podwire_ovs::value::Value;

use super::{GROUP, Row};
use crate::cluster::{Endpoint, Service, ServicePort, Slice};

/// A service: a load balancer for each of its protocols, in the one group of all switches. If
/// cluster IPs lead only to endpoints on the client's node, each node with endpoints has its own
/// load balancer for them, and all others share one without endpoints. `nodes` are those with a
/// switch. `refused` are the addresses that it can't have.
pub fn service<'a>(
    namespace: &str,
    name: &str,
    service: &Service,
    slices: impl Iterator<Item = &'a Slice> + Clone,
    nodes: &[&str],
    refused: &Refused,
) -> Vec<Row> {
    let protocols: BTreeSet<&str> = service.ports.iter().map(|it| &*it.protocol).collect();
    let mut rows = Vec::new();
    for protocol in protocols {
        let row = |suffix: &str, vips: BTreeMap<String, String>| {
            let full_name = format!("Service_{namespace}/{name}_{protocol}_{suffix}");
            let mut row = Row::new(Table::LoadBalancer, full_name)
                .set("protocol", protocol.to_lowercase())
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
                    let on_node =
                        |it: &Endpoint| node.is_none_or(|node| it.node.as_deref() == Some(node));
                    let endpoints = endpoints(service, port, slices.clone(), on_node);
                    let is_its = |address: &&IpAddr| {
                        let socket = SocketAddr::new(**address, port.port);
                        !refused.contains_key(&(socket, protocol.to_lowercase()))
                    };
                    let own = addresses.iter().filter(is_its);
                    let vips = own.map(|&address| vip(address, port, &endpoints));
                    vips.collect::<Vec<_>>()
                })
                .collect::<BTreeMap<_, _>>()
        };
        let everywhere = match service.is_internal_local {
            true => service.external_ips.clone(),
            false => [&service.cluster_ips[..], &service.external_ips].concat(),
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
                let own = row(&format!("node_switch_{node}"), vips);
                rows.push(own.under(Table::LogicalSwitch, node, "load_balancer"));
            }
        }
        if !without.parents.is_empty() {
            rows.push(without);
        }
    }
    rows
}

/// Suffix of the load balancer for nodes without endpoints. No node has this name: names of nodes
/// contain no underscore.
const WITHOUT: &str = "node_switch_without_endpoints";

/// A virtual address, and the endpoints of its family. With an empty list OVN rejects connections,
/// as Kubernetes requires for a service without endpoints.
fn vip(address: IpAddr, port: &ServicePort, endpoints: &BTreeSet<SocketAddr>) -> (String, String) {
    let of_family: Vec<_> = endpoints
        .iter()
        .filter(|endpoint| endpoint.is_ipv4() == address.is_ipv4())
        .map(SocketAddr::to_string)
        .collect();
    let vip = SocketAddr::new(address, port.port).to_string();
    (vip, of_family.join(","))
}

/// Those that are ready; if none is, those that still serve while they terminate.
fn endpoints<'a>(
    service: &Service,
    port: &ServicePort,
    slices: impl Iterator<Item = &'a Slice>,
    is_wanted: impl Fn(&Endpoint) -> bool,
) -> BTreeSet<SocketAddr> {
    let (mut ready, mut ending) = (BTreeSet::new(), BTreeSet::new());
    for slice in slices {
        let Some((protocol, number)) = slice.ports.get(&port.name) else {
            continue;
        };
        if *protocol != port.protocol {
            continue;
        }
        for endpoint in slice.endpoints.iter().filter(|it| is_wanted(it)) {
            let Some(address) = endpoint.address.filter(|it| !is_of_a_host(it)) else {
                continue;
            };
            let target = SocketAddr::new(address, *number);
            if endpoint.ready || service.publish_unready {
                ready.insert(target);
            } else if endpoint.serving {
                ending.insert(target);
            }
        }
    }
    if ready.is_empty() { ending } else { ready }
}

/// An address that can't be a pod's: the API forbids loopback and link-local endpoints.
fn is_of_a_host(address: &IpAddr) -> bool {
    address.is_loopback() || address.is_unspecified()
}

/// Clients that talk to an endpoint that is gone are to reach another: by UDP ovn-controller ends
/// their connections (`ct_flush`, from OVN 23.03.1 on). By TCP they end by themselves, and a pod
/// that terminates still answers by those that it has.
fn options(protocol: &str) -> Value {
    let flush = (protocol == "UDP").then_some(("ct_flush", "true"));
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
    match service.is_affine {
        true => Value::set(["ip_dst", "ip_src"]),
        false => Value::empty(),
    }
}
