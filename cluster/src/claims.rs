//! Which service has an address of those that whoever may create services can name: external IPs
//! and load balancers' addresses (CVE-2020-8554).

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use itertools::Itertools as _;

use crate::service::{Protocol, Service, Slice};
use crate::slices::Slices;

/// The service of the API server, whose endpoints are its addresses.
pub const API_SERVER: (&str, &str) = ("default", "kubernetes");

/// The addresses that a service can't have, by protocol, each with the reason.
pub type Refused = BTreeMap<(SocketAddr, Protocol), String>;

/// The services that can't have all addresses that they name. A cluster IP is its service's alone;
/// an address of the API server, of a node (`node_with`) or of the pods (`network_with`) is
/// nobody's; an older service goes before a younger one.
pub fn refused<'a, S: Display + Ord>(
    services: impl Iterator<Item = (&'a (S, S), &'a Service)> + Clone,
    slices: &Slices<Slice>,
    node_with: impl Fn(IpAddr) -> Option<&'a str>,
    network_with: impl Fn(IpAddr) -> Option<IpNet>,
) -> BTreeMap<&'a (S, S), Refused> {
    let mut claiming: Vec<_> = services
        .clone()
        .map(|(name, service)| (name, service, external(service)))
        .filter(|(_, _, external)| !external.is_empty())
        .collect();
    claiming.sort_by_key(|(name, service, _)| (service.created, service.uid.as_str(), *name));
    let all: HashSet<IpAddr> = claiming.iter().flat_map(|it| &it.2).copied().collect();
    let mut cluster_ips = HashMap::new();
    for (name, service) in services.filter(|_| !all.is_empty()) {
        let own = service.cluster_ips.iter().filter(|it| all.contains(it));
        cluster_ips.extend(own.map(|address| (*address, name)));
    }
    let servers = slices.of(API_SERVER.0, API_SERVER.1);
    let servers = servers.flat_map(|slice| &slice.endpoints);
    let servers: BTreeSet<IpAddr> = servers.map(|endpoint| endpoint.address).collect();
    let named = |(namespace, name): &(S, S)| format!("{namespace}/{name}");
    let taken = |address: IpAddr| {
        if let Some(holder) = cluster_ips.get(&address) {
            Some(format!("a cluster IP of service {}", named(holder)))
        } else if let Some(node) = node_with(address) {
            Some(format!("an address of node {node}"))
        } else if servers.contains(&address) {
            Some("the API server's".to_owned())
        } else {
            network_with(address).map(|net| format!("a part of the pods' network {net}"))
        }
    };
    let mut holders: HashMap<(SocketAddr, Protocol), &(S, S)> = HashMap::new();
    let mut refused: BTreeMap<&(S, S), Refused> = BTreeMap::new();
    for (name, service, external) in claiming {
        let own = &service.cluster_ips;
        for address in external.into_iter().filter(|it| !own.contains(it)) {
            let taken = taken(address);
            for port in &service.ports {
                let key = (SocketAddr::new(address, port.port), port.protocol);
                let reason = match (&taken, holders.entry(key)) {
                    (Some(taken), _) => format!("{address} is {taken}"),
                    (None, Entry::Occupied(holder)) if *holder.get() != name => {
                        let holder = named(holder.get());
                        format!("the older service {holder} has {} {}", key.1, key.0)
                    }
                    (None, entry) => {
                        entry.or_insert(name);
                        continue;
                    }
                };
                refused.entry(name).or_default().insert(key, reason);
            }
        }
    }
    refused
}

/// The addresses that whoever makes a service can name.
fn external(service: &Service) -> BTreeSet<IpAddr> {
    let all = service.external_ips.iter().chain(&service.balancer_ips);
    all.copied().collect()
}

/// What a service is told.
pub fn text(refused: &Refused) -> String {
    let reasons = refused.values().sorted().dedup().join("; ");
    format!("external IPs or load balancer's addresses that it can't have are left out: {reasons}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Name;
    use crate::service::ServicePort;

    #[test]
    fn an_address_is_the_older_services_and_a_cluster_ip_its_services_alone() {
        let service = |last: u8, created: i64, uid: &str, external: &str, ports: &[u16]| {
            let port = |port: &u16| ServicePort {
                port: *port,
                ..ServicePort::default()
            };
            Service {
                uid: uid.into(),
                created,
                cluster_ips: vec![IpAddr::from([10, 96, 0, last])],
                external_ips: external.split(' ').map(|it| it.parse().unwrap()).collect(),
                ports: ports.iter().map(port).collect(),
                ..Service::default()
            }
        };
        let shared = "198.51.100.1";
        let services = [
            ("dns", service(10, 9, "u", "10.96.0.10", &[53])),
            ("a-younger", service(11, 5, "u", shared, &[80, 443])),
            ("older", service(12, 1, "b", shared, &[80])),
            ("same-age", service(13, 1, "c", shared, &[80])),
            ("thief", service(14, 0, "u", "10.96.0.10 192.0.2.1", &[53])),
        ];
        let named = |(name, it)| ((Name::from("ns"), Name::from(name)), it);
        let services: BTreeMap<_, Service> = services.map(named).into();
        let node = IpAddr::from([192, 0, 2, 1]);
        let refused = refused(
            services.iter(),
            &Slices::default(),
            |address| (address == node).then_some("n"),
            |_| None,
        );
        let told = refused
            .iter()
            .map(|(name, it)| (&*name.1, it.len(), text(it)));
        let told: Vec<_> = told.collect();
        let of_older = "the older service ns/older has tcp 198.51.100.1:80";
        let of_thief = "10.96.0.10 is a cluster IP of service ns/dns; 192.0.2.1 is an address of";
        let expected = [
            ("a-younger", 1, of_older),
            ("same-age", 1, of_older),
            ("thief", 2, of_thief),
        ];
        assert_eq!(told.len(), expected.len(), "{told:?}");
        for ((name, count, text), (expected, number, part)) in told.iter().zip(expected) {
            assert_eq!((*name, *count), (expected, number));
            assert!(text.contains(part), "{text}");
        }
    }
}
