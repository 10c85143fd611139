//! The addresses of services on this node, and what is behind them: pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use podwire_cluster::ObjectName;
use podwire_cluster::claims::{Refused, refused};
use podwire_cluster::service::{Endpoint, Protocol, Service, ServicePort};

use crate::cluster::Cluster;
use crate::items::{Actual, Led};
use crate::settings::Settings;

/// The API's longest session affinity, in seconds; nft refuses one of 50 days.
const MOST_AFFINITY: u32 = 86_400;

/// An address of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) protocol: Protocol,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
}

/// What is behind an address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Frontend {
    pub(crate) service: ObjectName,
    /// Chosen with equal probability.
    pub(crate) endpoints: Vec<SocketAddr>,
    /// For clients on this node, if those from outside only get local endpoints.
    pub(crate) inner: Vec<SocketAddr>,
    /// Whether there are endpoints elsewhere, if there are none here.
    pub(crate) elsewhere: bool,
    /// How many seconds a client sticks to its endpoint.
    pub(crate) affinity: Option<u32>,
    /// The allowed clients, without overlaps, which nft refuses; empty for all.
    pub(crate) sources: Vec<IpNet>,
    /// Whether it is for clients from outside.
    pub(crate) is_external: bool,
}

/// All addresses of services on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Frontends {
    pub(crate) by_key: BTreeMap<Key, Frontend>,
    /// By healthCheckNodePort: the service, and its number of endpoints here.
    pub(crate) health: BTreeMap<u16, (ObjectName, usize)>,
    /// The addresses that services can't have.
    pub(crate) refused: BTreeMap<ObjectName, Refused>,
}

/// The facts about this node that services depend on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LocalNode {
    pub(crate) node: String,
    /// The addresses of node ports.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// The networks of pods.
    pub(crate) pods: Vec<IpNet>,
    /// The addresses of pods here that have a primary network of their own.
    pub(crate) locked: BTreeSet<IpAddr>,
    /// Whether a gateway router of OVN's leads clients from outside to pods.
    pub(crate) router_leads: bool,
}

impl LocalNode {
    pub(crate) fn of(settings: &Settings, actual: &Actual) -> Self {
        let pods = settings
            .node_subnets
            .iter()
            .chain(&settings.cluster_subnets);
        Self {
            node: settings.node_name.clone(),
            addresses: actual.node_addresses(),
            pods: pods.copied().collect(),
            locked: actual.switch.locked.clone(),
            router_leads: settings.router_leads,
        }
    }

    pub(super) fn is_pod(&self, endpoint: &SocketAddr) -> bool {
        self.pods.iter().any(|net| net.contains(&endpoint.ip()))
    }
}

impl Frontends {
    /// The frontends of the services that are `wanted`. If two services have the same address and
    /// port, the first by name gets it.
    pub(crate) fn of(
        cluster: &Cluster,
        here: &LocalNode,
        wanted: impl Fn(&ObjectName) -> bool,
    ) -> Self {
        let refused = refused(
            cluster.services.objects.iter(),
            &cluster.slices,
            |address| here.addresses.contains(&address).then_some(&*here.node),
            |address| here.pods.iter().find(|net| net.contains(&address)).copied(),
        );
        let refused = refused.into_iter().filter(|(name, _)| wanted(name));
        let mut frontends = Self {
            refused: refused.map(|(name, it)| (name.clone(), it)).collect(),
            ..Self::default()
        };
        let services = cluster.services.objects.iter();
        for (name, service) in services.filter(|(name, _)| wanted(name)) {
            for port in &service.ports {
                for v4 in [true, false] {
                    frontends.add(cluster, here, (name, service), port, v4);
                }
            }
            if let Some(number) = service.health_port {
                let mut local = BTreeSet::new();
                for slice in cluster.slices.of(&name.0, &name.1) {
                    let here = slice
                        .endpoints
                        .iter()
                        .filter(|it| is_here(it, here) && it.ready);
                    local.extend(here.map(|endpoint| endpoint.address));
                }
                frontends
                    .health
                    .entry(number)
                    .or_insert((name.clone(), local.len()));
            }
        }
        frontends
    }

    /// Those that are `wanted`.
    pub(crate) fn only(&self, wanted: impl Fn(&Frontend) -> bool) -> Self {
        let frontends = self.by_key.iter().filter(|(_, frontend)| wanted(frontend));
        Self {
            by_key: frontends
                .map(|(key, frontend)| (*key, frontend.clone()))
                .collect(),
            ..Self::default()
        }
    }

    /// The addresses that a gateway router with these addresses of the node leads to pods; all
    /// others are the host's.
    pub(crate) fn led(&self, here: &LocalNode, gateway: &[IpAddr]) -> BTreeSet<Led> {
        let led = self.by_key.iter().filter(|(key, frontend)| {
            let is_own = here.addresses.contains(&key.address);
            frontend.is_external
                && (!is_own || gateway.contains(&key.address))
                && frontend.endpoints.iter().any(|end| here.is_pod(end))
        });
        led.map(|(key, frontend)| Led {
            protocol: key.protocol.number(),
            address: key.address,
            port: key.port,
            is_own: here.addresses.contains(&key.address),
            sources: frontend.sources.clone(),
        })
        .collect()
    }

    fn add(
        &mut self,
        cluster: &Cluster,
        here: &LocalNode,
        (name, service): (&ObjectName, &Service),
        port: &ServicePort,
        v4: bool,
    ) {
        let usable = |wanted: &dyn Fn(&Endpoint) -> bool| -> Vec<SocketAddr> {
            let slices = cluster.slices.of(&name.0, &name.1);
            let wanted = |it: &Endpoint| it.address.is_ipv4() == v4 && wanted(it);
            service
                .endpoints(port, slices, wanted)
                .into_iter()
                .collect()
        };
        let all = usable(&|_| true);
        let local = usable(&|endpoint| is_here(endpoint, here));
        let frontend = |is_local: bool| Frontend {
            service: name.clone(),
            endpoints: if is_local { local.clone() } else { all.clone() },
            elsewhere: is_local && !all.is_empty(),
            affinity: service
                .affinity
                .filter(|seconds| *seconds != 0)
                .map(|seconds| seconds.min(MOST_AFFINITY)),
            ..Frontend::default()
        };
        let mut put = |address: &IpAddr, number: u16, frontend: Frontend| {
            if address.is_ipv4() == v4 {
                let key = Key {
                    protocol: port.protocol,
                    address: *address,
                    port: number,
                };
                self.by_key.entry(key).or_insert(frontend);
            }
        };
        for ip in &service.cluster_ips {
            put(ip, port.port, frontend(service.is_internal_local));
        }
        let sources = service.sources(v4);
        let external = |sources: &[IpNet]| {
            let mut it = Frontend {
                inner: if service.is_external_local {
                    all.clone()
                } else {
                    Vec::new()
                },
                sources: sources.to_vec(),
                is_external: true,
                ..frontend(service.is_external_local)
            };
            // The host can't lead these clients to pods, and no gateway router to the host.
            let mut ends = it.endpoints.iter();
            if here.router_leads && ends.any(|end| here.addresses.contains(&end.ip())) {
                it.endpoints.retain(|end| !here.is_pod(end));
            }
            it
        };
        let refused = self.refused.get(name);
        let is_its = |ip: &&IpAddr| {
            let key = (SocketAddr::new(**ip, port.port), port.protocol);
            !refused.is_some_and(|refused| refused.contains_key(&key))
        };
        for ip in service.external_ips.iter().filter(is_its) {
            put(ip, port.port, external(&[]));
        }
        for ip in service.balancer_ips.iter().filter(is_its) {
            put(ip, port.port, external(&sources));
        }
        if let Some(number) = port.node_port {
            for ip in &here.addresses {
                put(ip, number, external(&[]));
            }
        }
    }
}

fn is_here(endpoint: &Endpoint, here: &LocalNode) -> bool {
    endpoint.node.as_deref() == Some(&*here.node) || here.addresses.contains(&endpoint.address)
}
