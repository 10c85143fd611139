//! The addresses of services on this node, and what is behind them: pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use podwire_apiserver::claims::{Claims, Refused, refused};

use crate::cluster::{Cluster, Endpoint, Name, Port, Service};

/// The API's longest session affinity, in seconds; nft refuses one of 50 days.
const MOST_AFFINITY: u32 = 86_400;

/// A protocol that services can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    pub(crate) const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// By its name in the API, in lower case, which is nft's too.
    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }

    /// Its number in IP headers (IANA).
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

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
    pub(crate) service: Name,
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
}

/// All addresses of services on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Frontends {
    pub(crate) by_key: BTreeMap<Key, Frontend>,
    /// By healthCheckNodePort: the service, and its number of endpoints here.
    pub(crate) health: BTreeMap<u16, (Name, usize)>,
    /// The addresses that services can't have.
    pub(crate) refused: BTreeMap<Name, Refused>,
}

/// The facts about this node that services depend on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Here {
    pub(crate) node: String,
    /// The addresses of node ports.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// The networks of pods.
    pub(crate) pods: Vec<IpNet>,
}

impl Frontends {
    /// The frontends of the services that are `wanted`. If two services have the same address and
    /// port, the first by name gets it.
    pub(crate) fn of(cluster: &Cluster, here: &Here, wanted: impl Fn(&Name) -> bool) -> Self {
        let refused = claims(cluster, here);
        let refused = refused.into_iter().filter(|(name, _)| wanted(name));
        let mut frontends = Self {
            refused: refused.map(|(name, it)| (name.clone(), it)).collect(),
            ..Self::default()
        };
        let services = cluster.services.objects.iter();
        for (name, service) in services.filter(|(name, _)| wanted(name)) {
            for port in &service.ports {
                let Some(protocol) = Protocol::named(&port.protocol) else {
                    continue;
                };
                for v4 in [true, false] {
                    frontends.add(cluster, here, (name, service), (port, protocol), v4);
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

    fn add(
        &mut self,
        cluster: &Cluster,
        here: &Here,
        (name, service): (&Name, &Service),
        (port, protocol): (&Port, Protocol),
        v4: bool,
    ) {
        let mut found = Vec::new();
        for slice in cluster.slices.of(&name.0, &name.1) {
            let number = slice.ports.get(&port.name);
            let number = number.filter(|(protocol, _)| *protocol == port.protocol);
            let Some(number) = number.map(|(_, number)| *number).filter(|it| *it != 0) else {
                continue;
            };
            let of_family = slice
                .endpoints
                .iter()
                .filter(|it| it.address.is_ipv4() == v4);
            found.extend(of_family.map(|it| (it, SocketAddr::new(it.address, number))));
        }
        let all = usable(&found, |_| true);
        let local = usable(&found, |endpoint| is_here(endpoint, here));
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
        let mut put = |address: &IpAddr, port: u16, frontend: Frontend| {
            if address.is_ipv4() == v4 {
                let key = Key {
                    protocol,
                    address: *address,
                    port,
                };
                self.by_key.entry(key).or_insert(frontend);
            }
        };
        for ip in &service.cluster_ips {
            put(ip, port.port, frontend(service.internal_local));
        }
        let of_family = |net: &&IpNet| net.addr().is_ipv4() == v4;
        let sources = service.source_ranges.iter().filter(of_family).copied();
        let sources = IpNet::aggregate(&sources.collect());
        let external = |sources: &[IpNet]| Frontend {
            inner: if service.external_local {
                all.clone()
            } else {
                Vec::new()
            },
            sources: sources.to_vec(),
            ..frontend(service.external_local)
        };
        let refused = self.refused.get(name);
        let is_its = |ip: &&IpAddr| {
            let key = (SocketAddr::new(**ip, port.port), port.protocol.clone());
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

/// The addresses that services can't have, as far as this node knows.
fn claims<'a>(cluster: &'a Cluster, here: &Here) -> BTreeMap<&'a Name, Refused> {
    let services = cluster.services.objects.iter().map(|(name, service)| {
        let external = service.external_ips.iter().chain(&service.balancer_ips);
        let ports = service.ports.iter();
        Claims {
            service: name,
            age: (service.created, &service.uid),
            cluster_ips: &service.cluster_ips,
            external_ips: external.copied().collect(),
            ports: ports.map(|it| (it.protocol.clone(), it.port)).collect(),
        }
    });
    let slices = cluster.slices.of("default", "kubernetes");
    let servers: BTreeSet<IpAddr> = slices
        .flat_map(|slice| slice.endpoints.iter().map(|it| it.address))
        .collect();
    let reserved = |address| {
        let is_own = here.addresses.contains(&address);
        let of_node = is_own.then(|| format!("an address of node {}", here.node));
        let of_server = || {
            servers
                .contains(&address)
                .then(|| "the API server's".to_owned())
        };
        let of_pods = || {
            let network = here.pods.iter().find(|net| net.contains(&address))?;
            Some(format!("a part of the pods' network {network}"))
        };
        of_node.or_else(of_server).or_else(of_pods)
    };
    refused(services, reserved, |(namespace, name)| {
        format!("{namespace}/{name}")
    })
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
