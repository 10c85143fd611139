//! The part of the Kubernetes API that the node role depends on: services, their endpoints and
//! Nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use podwire_apiserver::brief;
use podwire_cluster::condition::{IN_SYNC, NETWORK_UNAVAILABLE, NOT_IN_SYNC};
use podwire_cluster::resources::PREFIX;
use podwire_cluster::service::{Service, Slice, parsed};
use podwire_cluster::{Name, ObjectName, Slices, api};

/// A Node: this one or another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ApiNode {
    pub(crate) uid: String,
    /// Those with names of ovn-kubernetes.
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) pod_cidrs: Vec<IpNet>,
    /// InternalIPs.
    pub(crate) addresses: Vec<IpAddr>,
    /// Its capacity and its allocatable, of podwire's resources.
    pub(crate) resources: [Resources; 2],
    pub(crate) condition: Option<Condition>,
}

/// What a Node's condition NetworkUnavailable says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Condition {
    /// That a node has its network, or has it not; `problem` is empty if every item is as planned.
    pub(crate) fn of(has_network: bool, problem: &str) -> Self {
        let (reason, message) = match problem {
            "" => (IN_SYNC, "every item of podwire node run is as planned"),
            problem => (NOT_IN_SYNC, problem),
        };
        Self {
            status: if has_network { "False" } else { "True" }.to_owned(),
            reason: reason.to_owned(),
            message: brief(&message),
        }
    }
}

/// Quantities of extended resources, by name.
pub(crate) type Resources = BTreeMap<String, String>;

/// podwire's resources alone.
pub(crate) fn own(all: &Resources) -> Resources {
    let own = all.iter().filter(|(name, _)| name.starts_with(PREFIX));
    own.map(|(name, quantity)| (name.clone(), quantity.clone()))
        .collect()
}

/// The objects, as far as the watches have reported them.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) services: Store<ObjectName, Service>,
    pub(crate) slices: Slices<Slice>,
    pub(crate) slices_are_listed: bool,
    /// Each differs from the one before it, also where it looks like an earlier one again.
    pub(crate) nodes: Store<String, Arc<ApiNode>>,
}

/// The objects of one kind.
#[derive(Debug)]
pub(crate) struct Store<N, V> {
    pub(crate) objects: BTreeMap<N, V>,
    /// Whether the list was complete at least once.
    pub(crate) is_listed: bool,
}

/// A change of an object; None if it is gone.
#[derive(Debug)]
pub(crate) enum ApiChange {
    Service(ObjectName, Option<Service>),
    /// With the name of its service.
    Slice(ObjectName, Option<(Name, Slice)>),
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
    pub(crate) fn apply(&mut self, change: ApiChange) -> bool {
        match change {
            ApiChange::Service(name, service) => self.services.set(name, service),
            ApiChange::Slice(name, slice) => !self.slices.set(name, slice).is_empty(),
            ApiChange::Node(name, node) => self.nodes.set(name, node.map(Arc::new)),
            ApiChange::Unreadable => true,
            ApiChange::ServicesListed => !std::mem::replace(&mut self.services.is_listed, true),
            ApiChange::SlicesListed => !std::mem::replace(&mut self.slices_are_listed, true),
            ApiChange::NodesListed => !std::mem::replace(&mut self.nodes.is_listed, true),
        }
    }

    /// Whether services and their endpoints were listed at least once.
    pub(crate) fn is_listed(&self) -> bool {
        self.services.is_listed && self.slices_are_listed
    }
}

impl<N, V> Default for Store<N, V> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            is_listed: false,
        }
    }
}

impl<N: Ord, V: PartialEq> Store<N, V> {
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

impl From<&api::Node> for ApiNode {
    fn from(node: &api::Node) -> Self {
        Self {
            uid: node.metadata.uid.clone(),
            annotations: node
                .metadata
                .annotations
                .iter()
                .filter(|(key, _)| key.starts_with("k8s.ovn.org/"))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            pod_cidrs: parsed(node.spec.all_pod_cidrs()),
            addresses: parsed(node.status.internal_ips()),
            resources: [own(&node.status.capacity), own(&node.status.allocatable)],
            condition: node
                .status
                .conditions
                .iter()
                .find(|it| it.r#type == NETWORK_UNAVAILABLE)
                .map(|seen| Condition {
                    status: seen.status.clone(),
                    reason: seen.reason.clone(),
                    message: seen.message.clone(),
                }),
        }
    }
}
