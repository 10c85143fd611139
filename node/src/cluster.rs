//! The part of the Kubernetes API that the node role depends on: services, their endpoints and
//! Nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, Service as ApiService};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt as _;

/// Namespace and name.
pub(crate) type Name = (String, String);

/// The part of a service that concerns the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Service {
    pub(crate) uid: String,
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
    /// By namespace, service and the slice's name.
    pub(crate) slices: Kind<(String, String, String), Slice>,
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
    Slice((String, String, String), Option<Slice>),
    Node(String, Option<ApiNode>),
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
            Change::Slice(name, slice) => self.slices.set(name, slice),
            Change::Node(name, node) => self.nodes.set(name, node),
            Change::ServicesListed => !std::mem::replace(&mut self.services.is_listed, true),
            Change::SlicesListed => !std::mem::replace(&mut self.slices.is_listed, true),
            Change::NodesListed => !std::mem::replace(&mut self.nodes.is_listed, true),
        }
    }

    /// Whether services and their endpoints were listed at least once.
    pub(crate) fn is_listed(&self) -> bool {
        self.services.is_listed && self.slices.is_listed
    }

    /// The slices of a service.
    pub(crate) fn slices_of(&self, (namespace, service): &Name) -> impl Iterator<Item = &Slice> {
        let from = (namespace.clone(), service.clone(), String::new());
        let slices = self.slices.objects.range(from..);
        slices
            .take_while(move |((of, name, _), _)| of == namespace && name == service)
            .map(|(_, slice)| slice)
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

/// The label in which a slice names its service.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";

impl Service {
    /// None for a service that is headless, an alias or another proxy's.
    pub(crate) fn of(service: &ApiService) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        let own = "service.kubernetes.io/service-proxy-name";
        if service.labels().contains_key(own) {
            return None;
        }
        let cluster_ips = match spec.cluster_ips.as_deref() {
            Some(ips @ [_, ..]) => ips,
            _ => std::slice::from_ref(spec.cluster_ip.as_ref()?),
        };
        let cluster_ips = parsed(cluster_ips.iter());
        if cluster_ips.is_empty() {
            return None;
        }
        let balancer = service
            .status
            .as_ref()
            .and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref());
        let balancer = balancer.into_iter().flatten();
        // A load balancer in proxy mode sends packets to node ports (KEP-1860).
        let balancer = balancer.filter(|it| it.ip_mode.as_deref() != Some("Proxy"));
        let local = |policy: &Option<String>| policy.as_deref() == Some("Local");
        let seconds = spec
            .session_affinity_config
            .as_ref()
            .and_then(|config| config.client_ip.as_ref()?.timeout_seconds)
            .and_then(|seconds| u32::try_from(seconds).ok());
        let is_client_ip = spec.session_affinity.as_deref() == Some("ClientIP");
        let ports = spec.ports.iter().flatten().filter_map(|port| {
            let number = |number: i32| u16::try_from(number).ok().filter(|port| *port != 0);
            Some(Port {
                name: port.name.clone().unwrap_or_default(),
                protocol: protocol(port.protocol.as_deref()),
                port: number(port.port)?,
                node_port: port.node_port.and_then(number),
            })
        });
        Some(Self {
            uid: service.uid().unwrap_or_default(),
            cluster_ips,
            external_ips: parsed(spec.external_ips.iter().flatten()),
            balancer_ips: parsed(balancer.filter_map(|it| it.ip.as_ref())),
            source_ranges: parsed(spec.load_balancer_source_ranges.iter().flatten()),
            ports: ports.collect(),
            external_local: local(&spec.external_traffic_policy),
            internal_local: local(&spec.internal_traffic_policy),
            // Kubernetes' default.
            affinity: is_client_ip.then(|| seconds.unwrap_or(10_800)),
            health_port: spec
                .health_check_node_port
                .and_then(|port| u16::try_from(port).ok())
                .filter(|port| *port != 0 && local(&spec.external_traffic_policy)),
        })
    }
}

fn parsed<'a, T: std::str::FromStr>(texts: impl Iterator<Item = &'a String>) -> Vec<T> {
    texts.filter_map(|text| text.trim().parse().ok()).collect()
}

fn protocol(name: Option<&str>) -> String {
    name.unwrap_or("TCP").to_lowercase()
}

impl From<&EndpointSlice> for Slice {
    fn from(slice: &EndpointSlice) -> Self {
        let ports = slice.ports.iter().flatten().filter_map(|port| {
            let number = u16::try_from(port.port?).ok()?;
            let name = port.name.clone().unwrap_or_default();
            Some((name, (protocol(port.protocol.as_deref()), number)))
        });
        let endpoints = slice.endpoints.iter().filter_map(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            let ready = conditions.and_then(|it| it.ready).unwrap_or(true);
            Some(Endpoint {
                // Further addresses of one endpoint must not be used (discovery/v1).
                address: endpoint.addresses.first()?.parse().ok()?,
                node: endpoint.node_name.clone(),
                ready,
                serving: conditions.and_then(|it| it.serving).unwrap_or(ready),
            })
        });
        Self {
            endpoints: endpoints.collect(),
            ports: ports.collect(),
        }
    }
}

impl From<&Node> for ApiNode {
    fn from(node: &Node) -> Self {
        let spec = node.spec.as_ref();
        let cidrs = spec.and_then(|spec| spec.pod_cidrs.as_deref());
        let one = spec.and_then(|spec| spec.pod_cidr.as_ref());
        let status = node.status.iter();
        let addresses = status.flat_map(|status| status.addresses.iter().flatten());
        let internal = addresses.filter(|address| address.type_ == "InternalIP");
        Self {
            uid: node.uid().unwrap_or_default(),
            annotations: node.annotations().clone(),
            pod_cidrs: parsed(
                cidrs
                    .unwrap_or(one.map_or(&[], std::slice::from_ref))
                    .iter(),
            ),
            addresses: parsed(internal.map(|address| &address.address)),
        }
    }
}
