use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use podwire_ovs::nb::Table;
use podwire_ovs::value::Value;

use super::{GROUP, Row};
use crate::cluster::{Service, ServicePort, Slice};

/// A service: a load balancer for each of its protocols, in the one group of all switches.
pub fn service<'a>(
    namespace: &str,
    name: &str,
    service: &Service,
    slices: impl Iterator<Item = &'a Slice> + Clone,
) -> Vec<Row> {
    let mut by_protocol: BTreeMap<&str, BTreeMap<String, String>> = BTreeMap::new();
    for port in &service.ports {
        let vips = by_protocol.entry(&port.protocol).or_default();
        let endpoints = endpoints(service, port, slices.clone());
        for &address in &service.addresses {
            // An empty list makes OVN reject, as Kubernetes wants it of a service without endpoints.
            let of_family: Vec<_> = endpoints
                .iter()
                .filter(|endpoint| endpoint.is_ipv4() == address.is_ipv4())
                .map(SocketAddr::to_string)
                .collect();
            let vip = SocketAddr::new(address, port.port).to_string();
            vips.insert(vip, of_family.join(","));
        }
    }
    by_protocol
        .into_iter()
        .map(|(protocol, vips)| {
            let mut row = Row::new(
                Table::LoadBalancer,
                format!("Service_{namespace}/{name}_{protocol}_cluster"),
            )
            .set("protocol", protocol.to_lowercase())
            .set("vips", Value::map(vips))
            .set("options", options(service))
            .under(Table::LoadBalancerGroup, GROUP, "load_balancer");
            row.external_ids = vec![
                ("k8s.ovn.org/kind", "Service".to_owned()),
                ("k8s.ovn.org/owner", format!("{namespace}/{name}")),
            ];
            row
        })
        .collect()
}

/// Those that are ready; where none is, those that still serve while they end.
fn endpoints<'a>(
    service: &Service,
    port: &ServicePort,
    slices: impl Iterator<Item = &'a Slice>,
) -> BTreeSet<SocketAddr> {
    let (mut ready, mut ending) = (BTreeSet::new(), BTreeSet::new());
    for slice in slices {
        let Some((protocol, number)) = slice.ports.get(&port.name) else {
            continue;
        };
        if *protocol != port.protocol {
            continue;
        }
        for endpoint in &slice.endpoints {
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

/// An address that can be no pod's: the API forbids loopback and link-local endpoints.
fn is_of_a_host(address: &IpAddr) -> bool {
    address.is_loopback() || address.is_unspecified()
}

fn options(service: &Service) -> Value {
    let fixed = [
        ("reject", "true"),
        ("event", "false"),
        ("skip_snat", "false"),
        ("neighbor_responder", "none"),
        ("hairpin_snat_ip", "169.254.169.5 fd69::5"),
    ];
    let affinity = service.affinity.map(|seconds| seconds.to_string());
    let affinity = affinity.as_deref().map(|it| ("affinity_timeout", it));
    Value::map(fixed.into_iter().chain(affinity))
}
