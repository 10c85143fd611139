//! Kubernetes' objects, reduced to what the network depends on. A cluster has many pods, and most
//! of a pod's object is not needed here.

pub mod logging;
pub mod multi;
pub mod network;
pub mod policy;
pub mod tiered;
pub mod user;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use podwire_apiserver::object::Metadata;
use podwire_cluster::annotations::{
    ANSWERS, GATEWAY, HOST_ADDRESSES, MANAGEMENT_MAC, MANAGEMENT_MACS, NETWORKS, NO_LIMIT,
    NODE_CHASSIS, NODE_SUBNETS, OVN_KUBERNETES, POD_NETWORKS, TO_HOST,
};
use podwire_cluster::api;
use podwire_cluster::condition::{NETWORK_UNAVAILABLE, is_of_node_role};
use podwire_cluster::gateway::{Gateway, GatewayError};
use podwire_cluster::networks::{self, OtherNetworks};
use podwire_cluster::service::{Service, Slice};
use podwire_cluster::{Labels, Slices};
pub use podwire_cluster::{Name, ObjectName};
use serde_json::{Value, json};

use self::logging::Logging;
use self::multi::MultiPolicy;
use self::network::{Definition, Selections};
use self::policy::Selected;
use self::tiered::Tiered;
use self::user::{Stored, UserNetwork};
use crate::ipam::{Mac, REQUESTED_ADDRESSES, REQUESTED_MAC, RecordedAddresses};
use crate::key::{Key, Of};

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
    /// The gateway of OVN's own that it announces, or what is wrong with that.
    pub gateway: Option<Result<Gateway, GatewayError>>,
    /// Whether its Open vSwitch knows no limit of a pod's connections ([`NO_LIMIT`]).
    pub is_unlimited: bool,
    /// Whether it is told that its pods' answers to clients from outside come back to its host
    /// ([`ANSWERS`]).
    pub answers_host: bool,
    /// Whether it is told by ovn-kubernetes' control plane that its gateway router leads these
    /// clients ([`OVN_KUBERNETES`]).
    pub router_leads: bool,
    /// All addresses of its host, if it has published them.
    pub host_addresses: Vec<IpAddr>,
    /// Whether the condition NetworkUnavailable is `False`, or the node role's, which knows better.
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
    pub networks: Option<RecordedAddresses>,
    /// Its entries of other networks.
    pub other_networks: OtherNetworks,
    /// The networks that it asks for beside the default one.
    pub selections: Selections,
    /// [`REQUESTED_ADDRESSES`], unchanged.
    pub requested_addresses: Option<Box<str>>,
    /// [`REQUESTED_MAC`], unchanged.
    pub requested_mac: Option<Box<str>>,
    /// What policies select it by.
    pub selected: Selected,
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
    /// By their service.
    pub slices: Slices<Slice>,
    /// Policies of the whole cluster.
    pub tiered: BTreeMap<Key, Tiered>,
    /// Policies for networks beside the default one.
    pub multi: BTreeMap<ObjectName, MultiPolicy>,
    /// Networks beside the default one.
    pub definitions: BTreeMap<ObjectName, Definition>,
    /// UserDefinedNetworks and ClusterUserDefinedNetworks.
    pub user_networks: BTreeMap<Key, UserNetwork>,
    /// All NetworkAttachmentDefinitions as objects, by name and namespace.
    pub stored: BTreeMap<Name, BTreeMap<Name, Stored>>,
    /// The labels of namespaces.
    pub namespaces: BTreeMap<Name, Labels>,
    /// Namespaces that are being deleted: nothing new is made in them.
    pub deleted: BTreeSet<Name>,
    /// What they have logged, of those that say so.
    pub logging: BTreeMap<Name, Logging>,
}

impl Cluster {
    /// The keys of all objects.
    pub fn keys(&self) -> BTreeSet<Key> {
        let nodes = self.nodes.keys().cloned().map(Key::node);
        let pods = self.pods.keys().cloned().map(Key::pod);
        let services = self.services.keys().cloned().map(Key::service);
        let definitions = self.definitions.keys().cloned();
        let definitions = definitions.map(|id| Key::object(Of::Definition, id));
        let multi = self.multi.keys().cloned();
        let multi = multi.map(|id| Key::object(Of::MultiPolicy, id));
        let stored = self.stored.values().flat_map(BTreeMap::values);
        let owners = stored.filter_map(|it| Some(it.owner.as_ref()?.key.clone()));
        nodes
            .chain(pods)
            .chain(services)
            .chain(definitions)
            .chain(multi)
            .chain(self.user_networks.keys().cloned())
            .chain(owners)
            .chain(self.tiered.keys().cloned())
            .chain([Of::Cluster, Of::Members].map(Key::only))
            .collect()
    }

    /// The uid of an object; `None` if it does not exist.
    pub fn uid(&self, key: &Key) -> Option<&str> {
        let uid = match key.of {
            Of::Cluster | Of::Join | Of::Members | Of::Peers | Of::Policy => None,
            Of::Namespace => self.logging.get(&key.name).map(|it| &it.uid),
            Of::ClusterPolicy | Of::AdminPolicy | Of::BaselinePolicy => {
                self.tiered.get(key).map(|it| &it.uid)
            }
            Of::MultiPolicy => self.multi.get(&key.id()).map(|it| &it.policy.uid),
            Of::Definition => self.definitions.get(&key.id()).map(|it| &it.uid),
            Of::UserNetwork | Of::ClusterUserNetwork => {
                self.user_networks.get(key).map(|it| &it.uid)
            }
            Of::Node | Of::Gateway => self.nodes.get(&key.name).map(|node| &node.uid),
            Of::Pod => self.pods.get(&key.id()).map(|pod| &pod.uid),
            Of::Service => self.services.get(&key.id()).map(|service| &service.uid),
        };
        uid.map(Name::as_str)
    }
}

/// The objects of a namespace.
pub fn of_namespace<'a, T>(
    all: &'a BTreeMap<ObjectName, T>,
    namespace: &str,
) -> impl Iterator<Item = (&'a ObjectName, &'a T)> {
    let namespace = Name::from(namespace);
    let from = (namespace.clone(), Name::default());
    all.range(from..)
        .take_while(move |((of, _), _)| *of == namespace)
}

/// Seconds since 1970.
fn created(metadata: &Metadata) -> i64 {
    let time = metadata.creation_timestamp;
    time.map_or(i64::MAX, |time| time.as_second())
}

/// The resourceVersion of an object as a number, which tells whether an event is older than the
/// controller's own write: they are increasing numbers (KEP-5504). 0 if it is no number.
pub fn version(resource_version: &str) -> u64 {
    resource_version.parse().unwrap_or(0)
}

/// The metadata of a change that is for this object alone, as it is known.
pub fn guard(uid: &str, version: u64) -> Value {
    let mut metadata = json!({ "uid": uid });
    if version != 0 {
        metadata["resourceVersion"] = version.to_string().into();
    }
    metadata
}

impl From<&api::Node> for Node {
    fn from(node: &api::Node) -> Self {
        let metadata = &node.metadata;
        let annotation = |name: &str| metadata.annotations.get(name).cloned();
        Self {
            uid: metadata.uid.as_str().into(),
            version: version(&metadata.resource_version),
            created: created(metadata),
            subnets: annotation(NODE_SUBNETS),
            chassis: annotation(NODE_CHASSIS)
                .filter(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_graphic())),
            mac: management_mac(metadata),
            pod_cidrs: node.spec.all_pod_cidrs().cloned().collect(),
            addresses: node
                .status
                .internal_ips()
                .filter_map(|address| address.parse().ok())
                .collect(),
            gateway: metadata
                .annotations
                .get(GATEWAY)
                .and_then(|text| Gateway::read(&metadata.name, &networks::read(text).0)),
            host_addresses: metadata
                .annotations
                .get(HOST_ADDRESSES)
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_default(),
            is_unlimited: annotation(NO_LIMIT).as_deref() == Some("true"),
            answers_host: annotation(ANSWERS).as_deref() == Some(TO_HOST),
            router_leads: OVN_KUBERNETES.iter().any(|key| annotation(key).is_some()),
            network_available: node.status.conditions.iter().any(|condition| {
                condition.r#type == NETWORK_UNAVAILABLE
                    && (condition.status == "False" || is_of_node_role(&condition.reason))
            }),
        }
    }
}

impl Pod {
    /// The relevant part of a pod; `None` if the pod needs nothing: it has no node yet, uses its
    /// node's network, or has finished, which frees its address.
    pub fn of(pod: &api::Pod) -> Option<Self> {
        let api::PodSpec {
            node_name,
            host_network,
            ..
        } = &pod.spec;
        let is_finished = matches!(&*pod.status.phase, "Succeeded" | "Failed");
        if *host_network || is_finished || node_name.is_empty() {
            return None;
        }
        let metadata = &pod.metadata;
        let annotation = |name: &str| Some(metadata.annotations.get(name)?.as_str());
        let networks = annotation(POD_NETWORKS).map(networks::read);
        let (networks, other_networks) = networks.unzip();
        Some(Self {
            uid: metadata.uid.as_str().into(),
            version: version(&metadata.resource_version),
            node: node_name.as_str().into(),
            created: created(metadata),
            reported: reported(&pod.status),
            networks: networks.as_ref().map(crate::ipam::read_pod_network),
            other_networks: other_networks.unwrap_or_default(),
            selections: Selections::of(annotation(NETWORKS), &metadata.namespace),
            requested_addresses: annotation(REQUESTED_ADDRESSES).map(Into::into),
            requested_mac: annotation(REQUESTED_MAC).map(Into::into),
            selected: Selected::of(pod),
        })
    }
}

/// `podIPs`, or the older `podIP`.
fn reported(status: &api::PodStatus) -> Box<[IpAddr]> {
    let all = status.pod_ips.iter().map(|it| &it.ip);
    let mut parsed: Vec<IpAddr> = all.filter_map(|ip| ip.parse().ok()).collect();
    if parsed.is_empty() {
        parsed.extend(status.pod_ip.parse::<IpAddr>());
    }
    parsed.into()
}

/// The interface's MAC address as ovn-kubernetes' nodes publish it: since 2023 for each network,
/// before that for the only one.
fn management_mac(metadata: &Metadata) -> Option<Mac> {
    let annotation = |name: &str| metadata.annotations.get(name);
    let by_network =
        annotation(MANAGEMENT_MACS).and_then(|text| networks::read(text).0.as_str()?.parse().ok());
    by_network.or_else(|| annotation(MANAGEMENT_MAC)?.parse().ok())
}
