//! The part of the Kubernetes API that the node role depends on: services, their endpoints and
//! Nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cluster::{SERVICE_NAME, Slices, api};

/// Namespace and name.
pub(crate) type Name = (String, String);

/// The part of a service that concerns the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Service {
    pub(crate) uid: String,
    /// Seconds since 1970.
    pub(crate) created: i64,
    pub(crate) cluster_ips: Vec<IpAddr>,
    /// External IPs, and those of a load balancer that forwards packets to the node.
    pub(crate) external_ips: Vec<IpAddr>,
    pub(crate) balancer_ips: Vec<IpAddr>,
    /// The clients that may use the load balancer's addresses; empty for all.
    pub(crate) source_ranges: Vec<IpNet>,
    pub(crate) ports: Vec<Port>,
    pub(crate) external_local: bool,
    pub(crate) internal_local: bool,
    /// In seconds.
    pub(crate) affinity: Option<u32>,
    pub(crate) health_port: Option<u16>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) name: String,
    /// In nft's form: `tcp`, `udp`, `sctp`.
    pub(crate) protocol: String,
    pub(crate) port: u16,
    pub(crate) node_port: Option<u16>,
}

/// A part of a service's endpoints.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) endpoints: Vec<Endpoint>,
    /// By port name: protocol and number.
    pub(crate) ports: BTreeMap<String, (String, u16)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) address: IpAddr,
    pub(crate) node: Option<String>,
    pub(crate) ready: bool,
    pub(crate) serving: bool,
}

/// A Node: this one and, in plain mode, the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ApiNode {
    pub(crate) uid: String,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) pod_cidrs: Vec<IpNet>,
    /// InternalIPs.
    pub(crate) addresses: Vec<IpAddr>,
}

/// The objects, as far as the watches have reported them.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) services: Kind<Name, Service>,
    pub(crate) slices: Slices<Slice>,
    pub(crate) slices_are_listed: bool,
    pub(crate) nodes: Kind<String, ApiNode>,
}

/// The objects of one kind.
#[derive(Debug)]
pub(crate) struct Kind<N, V> {
    pub(crate) objects: BTreeMap<N, V>,
    /// Whether the list was complete at least once.
    pub(crate) is_listed: bool,
}

/// A change of an object; None if it is gone.
#[derive(Debug)]
pub(crate) enum Change {
    Service(Name, Option<Service>),
    /// With the name of its service.
    Slice(
        podwire_cluster::ObjectName,
        Option<(podwire_cluster::Name, Slice)>,
    ),
    Node(String, Option<ApiNode>),
    /// An object can't be read; it stays what it was.
    Unreadable,
    /// All services have been listed.
    ServicesListed,
    SlicesListed,
    NodesListed,
}

impl Cluster {
    /// Applies a change, and returns whether anything differs.
    pub(crate) fn take(&mut self, change: Change) -> bool {
        match change {
            Change::Service(name, service) => self.services.set(name, service),
            Change::Slice(name, slice) => !self.slices.set(name, slice).is_empty(),
            Change::Node(name, node) => self.nodes.set(name, node),
            Change::Unreadable => true,
            Change::ServicesListed => !std::mem::replace(&mut self.services.is_listed, true),
            Change::SlicesListed => !std::mem::replace(&mut self.slices_are_listed, true),
            Change::NodesListed => !std::mem::replace(&mut self.nodes.is_listed, true),
        }
    }

    /// Whether services and their endpoints were listed at least once.
    pub(crate) fn is_listed(&self) -> bool {
        self.services.is_listed && self.slices_are_listed
    }
}

impl<N, V> Default for Kind<N, V> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            is_listed: false,
        }
    }
}

impl<N: Ord, V: PartialEq> Kind<N, V> {
    /// Sets or removes an object; returns whether it differs.
    fn set(&mut self, name: N, object: Option<V>) -> bool {
        if self.objects.get(&name) == object.as_ref() {
            return false;
        }
        match object {
            Some(object) => drop(self.objects.insert(name, object)),
            None => drop(self.objects.remove(&name)),
        }
        true
    }
}

impl Service {
    /// None for a service that is headless, an alias or another proxy's.
    pub(crate) fn of(service: &api::Service) -> Option<Self> {
        let spec = &service.spec;
        let own = "service.kubernetes.io/service-proxy-name";
        if service.metadata.labels.contains_key(own) {
            return None;
        }
        let cluster_ips = parsed(spec.all_cluster_ips());
        if cluster_ips.is_empty() {
            return None;
        }
        let balancer = service.status.load_balancer.ingress.iter();
        // A load balancer in proxy mode sends packets to node ports (KEP-1860).
        let balancer = balancer.filter(|it| it.ip_mode != "Proxy");
        let seconds = spec.session_affinity_config.client_ip.timeout_seconds;
        let seconds = seconds.and_then(|seconds| u32::try_from(seconds).ok());
        let ports = spec.ports.iter().filter_map(|it| {
            Some(Port {
                name: it.name.clone(),
                protocol: protocol(&it.protocol),
                port: port(it.port)?,
                node_port: port(it.node_port),
            })
        });
        let external_local = spec.external_traffic_policy == "Local";
        Some(Self {
            uid: service.metadata.uid.clone(),
            created: service
                .metadata
                .creation_timestamp
                .map_or(i64::MAX, |time| time.as_second()),
            cluster_ips,
            external_ips: parsed(spec.external_ips.iter()),
            balancer_ips: parsed(balancer.map(|it| &it.ip)),
            source_ranges: parsed(spec.load_balancer_source_ranges.iter()),
            ports: ports.collect(),
            external_local,
            internal_local: spec.internal_traffic_policy == "Local",
            // Kubernetes' default.
            affinity: (spec.session_affinity == "ClientIP").then(|| seconds.unwrap_or(10_800)),
            health_port: port(spec.health_check_node_port).filter(|_| external_local),
        })
    }
}

fn parsed<'a, T: std::str::FromStr>(texts: impl Iterator<Item = &'a String>) -> Vec<T> {
    texts.filter_map(|text| text.trim().parse().ok()).collect()
}

/// A valid port number.
fn port(number: Option<i64>) -> Option<u16> {
    u16::try_from(number?).ok().filter(|number| *number != 0)
}

/// The API's default is TCP.
fn protocol(name: &str) -> String {
    match name {
        "" => "tcp".to_owned(),
        name => name.to_lowercase(),
    }
}

impl Slice {
    /// The service of a slice, and its endpoints; None if it belongs to no service.
    pub(crate) fn of(slice: &api::EndpointSlice) -> Option<(podwire_cluster::Name, Self)> {
        let service = slice.metadata.labels.get(SERVICE_NAME)?;
        let ports = slice.ports.iter().filter_map(|it| {
            let number = port(it.port)?;
            Some((it.name.clone(), (protocol(&it.protocol), number)))
        });
        let endpoints = slice.endpoints.iter().filter_map(|endpoint| {
            let ready = endpoint.conditions.ready.unwrap_or(true);
            Some(Endpoint {
                // Further addresses of one endpoint must not be used (discovery/v1).
                address: endpoint.addresses.first()?.parse().ok()?,
                node: endpoint.node().map(str::to_owned),
                ready,
                serving: endpoint.conditions.serving.unwrap_or(ready),
            })
        });
        let slice = Self {
            endpoints: endpoints.collect(),
            ports: ports.collect(),
        };
        Some((service.as_str().into(), slice))
    }
}

impl From<&api::Node> for ApiNode {
    fn from(node: &api::Node) -> Self {
        Self {
            uid: node.metadata.uid.clone(),
            annotations: node.metadata.annotations.clone(),
            pod_cidrs: parsed(node.spec.all_pod_cidrs()),
            addresses: parsed(node.status.internal_ips()),
        }
    }
}
