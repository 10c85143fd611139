//! The addresses of services on this node, and what is behind them: pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::cluster::{Cluster, Endpoint, Name, Port, Service};

/// An address of a service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// In nft's form.
    pub(crate) protocol: String,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
}

/// What is behind an address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Front {
    /// Chosen with equal probability.
    pub(crate) endpoints: Vec<SocketAddr>,
    /// For clients on this node, if those from outside only get local endpoints.
    pub(crate) inner: Vec<SocketAddr>,
    /// Whether there are endpoints elsewhere, if there are none here.
    pub(crate) elsewhere: bool,
    /// How many seconds a client sticks to its endpoint.
    pub(crate) affinity: Option<u32>,
    /// The allowed clients; empty for all.
    pub(crate) sources: Vec<IpNet>,
}

/// All addresses of services on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Fronts {
    pub(crate) by_key: BTreeMap<Key, Front>,
    /// By healthCheckNodePort: the service, and its number of endpoints here.
    pub(crate) health: BTreeMap<u16, (Name, usize)>,
}

/// The facts about this node that services depend on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Here {
    pub(crate) node: String,
    /// The addresses of node ports.
    pub(crate) addresses: BTreeSet<IpAddr>,
}

impl Fronts {
    /// If two services have the same address and port, the first by name gets it.
    pub(crate) fn of(cluster: &Cluster, here: &Here) -> Self {
        let mut fronts = Self::default();
        for (name, service) in &cluster.services.objects {
            for port in &service.ports {
                for v4 in [true, false] {
                    fronts.add(cluster, here, name, service, port, v4);
                }
            }
            if let Some(number) = service.health_port {
                let mut local = BTreeSet::new();
                for slice in cluster.slices_of(name) {
                    let here = slice
                        .endpoints
                        .iter()
                        .filter(|it| is_here(it, here) && it.ready);
                    local.extend(here.map(|endpoint| endpoint.address));
                }
                fronts
                    .health
                    .entry(number)
                    .or_insert((name.clone(), local.len()));
            }
        }
        fronts
    }

    fn add(
        &mut self,
        cluster: &Cluster,
        here: &Here,
        name: &Name,
        service: &Service,
        port: &Port,
        v4: bool,
    ) {
        let mut found = Vec::new();
        for slice in cluster.slices_of(name) {
            let number = slice.ports.get(&port.name);
            let Some((_, number)) = number.filter(|(protocol, _)| *protocol == port.protocol)
            else {
                continue;
            };
            let of_family = slice
                .endpoints
                .iter()
                .filter(|it| it.address.is_ipv4() == v4);
            found.extend(of_family.map(|it| (it, SocketAddr::new(it.address, *number))));
        }
        let all = usable(&found, |_| true);
        let local = usable(&found, |endpoint| is_here(endpoint, here));
        let front = |is_local: bool| Front {
            endpoints: if is_local { local.clone() } else { all.clone() },
            elsewhere: is_local && !all.is_empty(),
            affinity: service.affinity,
            ..Front::default()
        };
        let mut put = |address: &IpAddr, port_number: u16, front: Front| {
            if address.is_ipv4() == v4 {
                let key = Key {
                    protocol: port.protocol.clone(),
                    address: *address,
                    port: port_number,
                };
                self.by_key.entry(key).or_insert(front);
            }
        };
        for ip in &service.cluster_ips {
            put(ip, port.port, front(service.internal_local));
        }
        let external = |sources: &[IpNet]| Front {
            inner: if service.external_local {
                all.clone()
            } else {
                Vec::new()
            },
            sources: sources
                .iter()
                .filter(|net| net.addr().is_ipv4() == v4)
                .copied()
                .collect(),
            ..front(service.external_local)
        };
        for ip in &service.external_ips {
            put(ip, port.port, external(&[]));
        }
        for ip in &service.balancer_ips {
            put(ip, port.port, external(&service.source_ranges));
        }
        if let Some(number) = port.node_port {
            for ip in &here.addresses {
                put(ip, number, external(&[]));
            }
        }
    }
}

/// Those that are ready; if none is, those that still serve while they terminate.
fn usable(
    found: &[(&Endpoint, SocketAddr)],
    counts: impl Fn(&Endpoint) -> bool,
) -> Vec<SocketAddr> {
    let of = |wanted: fn(&Endpoint) -> bool| -> BTreeSet<SocketAddr> {
        let found = found.iter().filter(|(it, _)| counts(it) && wanted(it));
        found.map(|(_, address)| *address).collect()
    };
    let ready = of(|endpoint| endpoint.ready);
    match ready.is_empty() {
        false => ready.into_iter().collect(),
        true => of(|endpoint| endpoint.serving).into_iter().collect(),
    }
}

fn is_here(endpoint: &Endpoint, here: &Here) -> bool {
    endpoint.node.as_deref() == Some(&here.node) || here.addresses.contains(&endpoint.address)
}
