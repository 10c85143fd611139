//! Kubernetes' objects, reduced to what the network depends on. A cluster has many pods, and most
//! of a pod's object is not needed here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Node as ApiNode, Pod as ApiPod, Service as ApiService};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;

use crate::ipam::{Had, Mac, REQUESTED_ADDRESSES, REQUESTED_MAC};
pub use crate::name::{Name, ObjectName};

/// Identifies an object, and with it all rows created for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Shared by the whole cluster: the router and the group of load balancers.
    Cluster,
    /// A node.
    Node(Name),
    /// A pod: namespace and name.
    Pod(Name, Name),
    /// A service: namespace and name.
    Service(Name, Name),
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Distinguishes several nodes with this name over time.
    pub uid: Name,
    /// See [`version`].
    pub version: u64,
    /// Seconds since 1970. Of two nodes with the same subnet, the older keeps it.
    pub created: i64,
    /// `k8s.ovn.org/node-subnets`, unchanged.
    pub subnets: Option<String>,
    /// `k8s.ovn.org/node-chassis-id`: the node's name in OVN, once it has one.
    pub chassis: Option<String>,
    /// The MAC address of the node's management port, if the node has published it
    /// (`management_mac`).
    pub mac: Option<Mac>,
    /// `spec.podCIDRs`, assigned by kube-controller-manager.
    pub pod_cidrs: Vec<String>,
    /// The addresses of the node itself (`status.addresses`, InternalIP).
    pub addresses: Vec<IpAddr>,
    /// Whether the condition NetworkUnavailable is `False`.
    pub network_available: bool,
}

/// A pod that has a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Distinguishes several pods with this name over time.
    pub uid: Name,
    /// See [`version`].
    pub version: u64,
    /// Its node.
    pub node: Name,
    /// Seconds since 1970. Of two pods that claim an address, the older keeps it.
    pub created: i64,
    /// The addresses that its kubelet reports (`status.podIPs`).
    pub reported: Box<[IpAddr]>,
    /// The content of `k8s.ovn.org/pod-networks`.
    pub networks: Option<Had>,
    /// [`REQUESTED_ADDRESSES`], unchanged.
    pub requested_addresses: Option<Box<str>>,
    /// [`REQUESTED_MAC`], unchanged.
    pub requested_mac: Option<Box<str>>,
}

/// A service that has at least one cluster IP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Distinguishes several services with this name over time.
    pub uid: Name,
    /// Its cluster IPs.
    pub cluster_ips: Vec<IpAddr>,
    /// Its other addresses: external IPs, load balancers' addresses.
    pub external_ips: Vec<IpAddr>,
    /// Whether its cluster IPs lead only to endpoints on the client's node (`internalTrafficPolicy:
    /// Local`).
    pub is_internal_local: bool,
    /// Its ports.
    pub ports: Vec<ServicePort>,
    /// Session affinity by client address.
    pub is_affine: bool,
    /// Whether endpoints that are not ready count as ready.
    pub publish_unready: bool,
}

/// A port of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name, which links it to the ports of endpoints; may be empty.
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The number that clients use.
    pub port: u16,
}

/// A part of a service's endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// The service's name.
    pub service: Name,
    /// The endpoints.
    pub endpoints: Vec<Endpoint>,
    /// By the port's name: protocol and number.
    pub ports: BTreeMap<String, (String, u16)>,
}

/// An endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address.
    pub address: Option<IpAddr>,
    /// The node that it is on.
    pub node: Option<Box<str>>,
    /// Accepts new connections.
    pub ready: bool,
    /// Still answers while it terminates.
    pub serving: bool,
}

/// All objects.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// By name.
    pub nodes: BTreeMap<Name, Node>,
    /// By namespace and name; only those with an address in the cluster's network.
    pub pods: BTreeMap<ObjectName, Pod>,
    /// By namespace and name.
    pub services: BTreeMap<ObjectName, Service>,
    /// By namespace, service and the slice's name.
    pub slices: BTreeMap<(Name, Name, Name), Slice>,
}

impl Cluster {
    /// The keys of all objects.
    pub fn keys(&self) -> BTreeSet<Key> {
        let nodes = self.nodes.keys().cloned().map(Key::Node);
        let pods = self
            .pods
            .keys()
            .map(|(ns, name)| Key::Pod(ns.clone(), name.clone()));
        let services = self
            .services
            .keys()
            .map(|(ns, name)| Key::Service(ns.clone(), name.clone()));
        nodes
            .chain(pods)
            .chain(services)
            .chain([Key::Cluster])
            .collect()
    }

    /// The uid of an object; empty if it does not exist, or none is kept.
    pub fn uid(&self, key: &Key) -> &str {
        let pair = |namespace: &Name, name: &Name| (namespace.clone(), name.clone());
        let uid = match key {
            Key::Cluster => None,
            Key::Node(name) => self.nodes.get(name).map(|node| &node.uid),
            Key::Pod(namespace, name) => self.pods.get(&pair(namespace, name)).map(|pod| &pod.uid),
            Key::Service(namespace, name) => {
                let service = self.services.get(&pair(namespace, name));
                service.map(|service| &service.uid)
            }
        };
        uid.map_or("", Name::as_str)
    }

    /// The slices of a service.
    pub fn slices_of(&self, namespace: &str, service: &str) -> impl Iterator<Item = &Slice> {
        let from = (namespace.into(), service.into(), Name::default());
        self.slices
            .range(from..)
            .take_while(move |((ns, name, _), _)| ns == namespace && name == service)
            .map(|(_, slice)| slice)
    }
}

fn uid(metadata: &ObjectMeta) -> Name {
    metadata.uid.as_deref().unwrap_or_default().into()
}

/// Seconds since 1970.
fn created(metadata: &ObjectMeta) -> i64 {
    let time = metadata.creation_timestamp.as_ref();
    time.map_or(i64::MAX, |time| time.0.as_second())
}

/// The resourceVersion of an object as a number, which tells whether an event is older than the
/// controller's own write: they are increasing numbers (KEP-5504). 0 if it is no number.
pub fn version(metadata: &ObjectMeta) -> u64 {
    let version = metadata.resource_version.as_ref();
    version.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// In the form of [`podwire_ovs::nb::KEY`].
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster => f.write_str("cluster"),
            Self::Node(name) => write!(f, "node/{name}"),
            Self::Pod(namespace, name) => write!(f, "pod/{namespace}/{name}"),
            Self::Service(namespace, name) => write!(f, "service/{namespace}/{name}"),
        }
    }
}

impl Key {
    /// Parses what [`Key`] displays; `None` if it is invalid.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let mut next = || parts.next().filter(|part| !part.is_empty());
        let key = match (next()?, next(), next()) {
            ("cluster", None, None) => Self::Cluster,
            ("node", Some(name), None) => Self::Node(name.into()),
            ("pod", Some(namespace), Some(name)) => Self::Pod(namespace.into(), name.into()),
            ("service", Some(namespace), Some(name)) => {
                Self::Service(namespace.into(), name.into())
            }
            _ => return None,
        };
        parts.next().is_none().then_some(key)
    }
}

impl From<&ApiNode> for Node {
    fn from(node: &ApiNode) -> Self {
        let annotation = |name: &str| node.annotations().get(name).cloned();
        let status = node.status.as_ref();
        let addresses = status.and_then(|status| status.addresses.as_ref());
        let conditions = status.and_then(|status| status.conditions.as_ref());
        Self {
            uid: uid(&node.metadata),
            version: version(&node.metadata),
            created: created(&node.metadata),
            subnets: annotation(crate::ipam::NODE_SUBNETS),
            chassis: annotation("k8s.ovn.org/node-chassis-id")
                .filter(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_graphic())),
            mac: management_mac(node),
            pod_cidrs: pod_cidrs(node),
            addresses: addresses
                .into_iter()
                .flatten()
                .filter(|address| address.type_ == "InternalIP")
                .filter_map(|address| address.address.parse().ok())
                .collect(),
            network_available: conditions.into_iter().flatten().any(|condition| {
                condition.type_ == "NetworkUnavailable" && condition.status == "False"
            }),
        }
    }
}

impl Pod {
    /// The relevant part of a pod; `None` if the pod needs nothing: it has no node yet, uses its
    /// node's network, or has finished, which frees its address.
    pub(crate) fn of(pod: &ApiPod) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        if spec.host_network == Some(true) || matches!(phase, Some("Succeeded" | "Failed")) {
            return None;
        }
        Some(Self {
            uid: uid(&pod.metadata),
            version: version(&pod.metadata),
            node: spec
                .node_name
                .as_deref()
                .filter(|name| !name.is_empty())?
                .into(),
            created: created(&pod.metadata),
            reported: reported(pod),
            networks: pod
                .annotations()
                .get(crate::ipam::POD_NETWORKS)
                .map(|it| crate::ipam::read_pod_networks(it)),
            requested_addresses: annotation(pod, REQUESTED_ADDRESSES),
            requested_mac: annotation(pod, REQUESTED_MAC),
        })
    }
}

/// `podIPs`, or the older `podIP`.
fn reported(pod: &ApiPod) -> Box<[IpAddr]> {
    let Some(status) = &pod.status else {
        return Box::default();
    };
    let all = status.pod_ips.iter().flatten().map(|it| &it.ip);
    let mut parsed: Vec<IpAddr> = all.filter_map(|ip| ip.parse().ok()).collect();
    if parsed.is_empty() {
        parsed.extend(
            status
                .pod_ip
                .iter()
                .filter_map(|ip| ip.parse::<IpAddr>().ok()),
        );
    }
    parsed.into()
}

fn annotation(pod: &ApiPod, name: &str) -> Option<Box<str>> {
    pod.annotations().get(name).map(|it| it.as_str().into())
}

/// The interface's MAC address as ovn-kubernetes' nodes publish it: since 2023 for each network,
/// before that for the only one.
fn management_mac(node: &ApiNode) -> Option<Mac> {
    let annotation = |name: &str| node.annotations().get(name);
    let by_network = annotation("k8s.ovn.org/node-mgmt-port-mac-addresses").and_then(|text| {
        let all: BTreeMap<String, String> = serde_json::from_str(text).ok()?;
        all.get("default")?.parse().ok()
    });
    let only = || {
        annotation("k8s.ovn.org/node-mgmt-port-mac-address")?
            .parse()
            .ok()
    };
    by_network.or_else(only)
}

/// `podCIDRs`, or the older `podCIDR`.
fn pod_cidrs(node: &ApiNode) -> Vec<String> {
    let spec = node.spec.as_ref();
    let list = spec.and_then(|spec| spec.pod_cidrs.clone());
    let one = || spec.and_then(|spec| spec.pod_cidr.clone());
    list.unwrap_or_else(|| one().into_iter().collect())
}

impl Service {
    /// The relevant part of a service; `None` for one that is headless or an alias.
    pub(crate) fn of(service: &ApiService) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        let cluster_ips = match spec.cluster_ips.as_deref() {
            Some(ips @ [_, ..]) => ips,
            _ => std::slice::from_ref(spec.cluster_ip.as_ref()?),
        };
        let cluster_ips: Vec<IpAddr> = cluster_ips
            .iter()
            .filter_map(|ip| ip.parse().ok())
            .collect();
        if cluster_ips.is_empty() {
            return None;
        }
        let ingress = service
            .status
            .as_ref()
            .and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref());
        let ingress = ingress
            .into_iter()
            .flatten()
            .filter_map(|it| it.ip.as_ref());
        let external = spec.external_ips.iter().flatten().chain(ingress);
        Some(Self {
            uid: uid(&service.metadata),
            cluster_ips,
            external_ips: external.filter_map(|ip| ip.parse().ok()).collect(),
            is_internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
            ports: spec
                .ports
                .iter()
                .flatten()
                .filter_map(|port| {
                    Some(ServicePort {
                        name: port.name.clone().unwrap_or_default(),
                        protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                        port: u16::try_from(port.port).ok()?,
                    })
                })
                .collect(),
            is_affine: spec.session_affinity.as_deref() == Some("ClientIP"),
            publish_unready: spec.publish_not_ready_addresses == Some(true),
        })
    }
}

impl Slice {
    /// The endpoints of a slice; `None` if it belongs to no service.
    pub(crate) fn of(slice: &EndpointSlice) -> Option<Self> {
        let service: Name = slice
            .labels()
            .get("kubernetes.io/service-name")?
            .as_str()
            .into();
        let ports = slice.ports.iter().flatten().filter_map(|port| {
            let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
            let number = u16::try_from(port.port?).ok()?;
            Some((port.name.clone().unwrap_or_default(), (protocol, number)))
        });
        let endpoints = slice.endpoints.iter().map(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            let is =
                |condition: Option<Option<bool>>, default| condition.flatten().unwrap_or(default);
            let ready = is(conditions.map(|it| it.ready), true);
            Endpoint {
                // Further addresses of one endpoint must not be used (discovery/v1).
                address: endpoint.addresses.first().and_then(|it| it.parse().ok()),
                node: endpoint.node_name.as_deref().map(Into::into),
                ready,
                serving: is(conditions.map(|it| it.serving), ready),
            }
        });
        Some(Self {
            service,
            endpoints: endpoints.collect(),
            ports: ports.collect(),
        })
    }
}
