//! What identifies an object, and with it all rows created for it.

use std::cmp::Ordering;
use std::fmt;

use podwire_apiserver::object::Object;
use podwire_cluster::{Name, ObjectName, api};
use podwire_ovs::nb::Table;

/// What a key is the key of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Of {
    /// What all nodes of a network share: the router and the group of load balancers.
    Cluster,
    /// The switch between the nodes' gateway routers and the router that joins all nodes.
    Join,
    /// A NetworkAttachmentDefinition.
    Definition,
    /// A MultiNetworkPolicy. Its rows are those of policies on networks.
    MultiPolicy,
    /// A UserDefinedNetwork.
    UserNetwork,
    /// A ClusterUserDefinedNetwork.
    ClusterUserNetwork,
    /// A node.
    Node,
    /// A node's gateway router; on another network, that network's way out on the node.
    Gateway,
    /// A namespace with policies: its groups of isolated pods.
    Namespace,
    /// The pods that policies' rules name, by the id of such a set.
    Peers,
    /// A NetworkPolicy.
    Policy,
    /// A ClusterNetworkPolicy.
    ClusterPolicy,
    /// An AdminNetworkPolicy.
    AdminPolicy,
    /// A BaselineAdminNetworkPolicy.
    BaselinePolicy,
    /// A pod.
    Pod,
    /// A service.
    Service,
    /// The members of all groups: those that nothing contributes are removed.
    Members,
}

/// The order in which changed keys are processed. Switches and groups come before the pods whose
/// ports refer to them, so that one transaction can contain both; members that nobody contributes
/// come when everybody has said which ones they do.
pub const ORDER: [Of; 17] = [
    Of::Cluster,
    Of::Join,
    Of::Definition,
    Of::MultiPolicy,
    Of::UserNetwork,
    Of::ClusterUserNetwork,
    Of::Node,
    Of::Gateway,
    Of::Namespace,
    Of::Peers,
    Of::Policy,
    Of::ClusterPolicy,
    Of::AdminPolicy,
    Of::BaselinePolicy,
    Of::Pod,
    Of::Service,
    Of::Members,
];

/// Identifies an object on a network, and with it all rows created for it there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// What it is.
    pub of: Of,
    /// Empty if it has none.
    pub namespace: Name,
    /// Empty for what exists once.
    pub name: Name,
    /// The network.
    pub network: Network,
}

/// A network: by its name, that of the default one in the annotations of nodes and pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network(Name);

impl Network {
    /// The one that every pod is on.
    pub const DEFAULT: Self = Self(Name::new_static(podwire_cluster::networks::DEFAULT));

    /// With this name, which is not checked.
    pub fn named(name: impl Into<Name>) -> Self {
        Self(name.into())
    }

    /// Its name.
    pub fn name(&self) -> &Name {
        &self.0
    }
}

/// The default one.
impl Default for Network {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// An interface of a pod: what has a logical port and addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attachment {
    /// The pod.
    pub pod: ObjectName,
    /// Its entry in the pod's annotation: `default`; else the NetworkAttachmentDefinition,
    /// `NAMESPACE/NAME`, with `/1`, `/2`, … for further ones to the same.
    pub entry: Name,
}

impl Attachment {
    /// What a network's router has on the default one, on a node.
    pub fn gateway(network: &Network, node: Name) -> Self {
        // No pod's: those have namespaces.
        Self {
            pod: (Name::default(), node),
            entry: network.0.clone(),
        }
    }
}

/// That on the default network.
impl From<ObjectName> for Attachment {
    fn from(pod: ObjectName) -> Self {
        let entry = Network::DEFAULT.0;
        Self { pod, entry }
    }
}

/// For a message.
impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pod {
            (namespace, node) if namespace.is_empty() => {
                write!(f, "the router of network {} on node {node}", self.entry)
            }
            (namespace, name) => write!(f, "pod {namespace}/{name}"),
        }
    }
}

impl Of {
    /// The word that a key begins with.
    fn word(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Join => "join",
            Self::Definition => "definition",
            Self::MultiPolicy => "multi-policy",
            Self::UserNetwork => "user-network",
            Self::ClusterUserNetwork => "cluster-user-network",
            Self::Node => "node",
            Self::Gateway => "gateway",
            Self::Namespace => "namespace",
            Self::Peers => "peers",
            Self::Policy => "policy",
            Self::ClusterPolicy => "cluster-policy",
            Self::AdminPolicy => "admin-policy",
            Self::BaselinePolicy => "baseline-policy",
            Self::Pod => "pod",
            Self::Service => "service",
            Self::Members => "members",
        }
    }

    /// The number of names in a key.
    fn names(self) -> usize {
        match self {
            Self::Cluster | Self::Join | Self::Members => 0,
            Self::Node
            | Self::Gateway
            | Self::Namespace
            | Self::Peers
            | Self::ClusterPolicy
            | Self::AdminPolicy
            | Self::BaselinePolicy
            | Self::ClusterUserNetwork => 1,
            Self::Definition
            | Self::MultiPolicy
            | Self::UserNetwork
            | Self::Policy
            | Self::Pod
            | Self::Service => 2,
        }
    }

    /// The tables with the rows of such keys.
    pub(crate) fn tables(self) -> &'static [Table] {
        match self {
            Self::Cluster => &[
                Table::LogicalRouter,
                Table::LogicalRouterPort,
                Table::LogicalSwitch,
                Table::LogicalSwitchPort,
                Table::StaticRoute,
                Table::RouterPolicy,
                Table::PortGroup,
                Table::AddressSet,
                Table::Acl,
                Table::Copp,
            ],
            Self::Join => &[
                Table::LogicalSwitch,
                Table::LogicalSwitchPort,
                Table::LogicalRouterPort,
            ],
            Self::Gateway => &[
                Table::LogicalRouter,
                Table::LogicalSwitch,
                Table::LogicalSwitchPort,
                Table::LogicalRouterPort,
                Table::GatewayChassis,
                Table::StaticRoute,
                Table::RouterPolicy,
                Table::Nat,
            ],
            Self::Node => &[
                Table::LogicalSwitch,
                Table::LogicalSwitchPort,
                Table::LogicalRouterPort,
                Table::GatewayChassis,
                Table::StaticRoute,
                Table::RouterPolicy,
                Table::Qos,
            ],
            Self::Namespace
            | Self::Policy
            | Self::ClusterPolicy
            | Self::AdminPolicy
            | Self::BaselinePolicy => &[Table::PortGroup, Table::Acl],
            Self::Peers => &[Table::AddressSet],
            Self::Pod => &[Table::LogicalSwitchPort],
            Self::Service => &[Table::LoadBalancer, Table::AddressSet],
            Self::Definition
            | Self::MultiPolicy
            | Self::UserNetwork
            | Self::ClusterUserNetwork
            | Self::Members => &[],
        }
    }

    /// The API and the kind of such objects; `None` for what is no object.
    pub(crate) fn kind(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Cluster | Self::Join | Self::Members | Self::Peers => None,
            Self::Namespace => Some(("v1", "Namespace")),
            Self::Definition => Some(named::<api::NetworkAttachmentDefinition>()),
            Self::MultiPolicy => Some(named::<api::MultiNetworkPolicy>()),
            Self::UserNetwork => Some(named::<api::UserDefinedNetwork>()),
            Self::ClusterUserNetwork => Some(named::<api::ClusterUserDefinedNetwork>()),
            Self::Node | Self::Gateway => Some(("v1", "Node")),
            Self::Policy => Some(("networking.k8s.io/v1", "NetworkPolicy")),
            Self::ClusterPolicy => Some(named::<api::ClusterNetworkPolicy>()),
            Self::AdminPolicy => Some(named::<api::AdminNetworkPolicy>()),
            Self::BaselinePolicy => Some(named::<api::BaselineAdminNetworkPolicy>()),
            Self::Pod => Some(("v1", "Pod")),
            Self::Service => Some(("v1", "Service")),
        }
    }

    /// The name of such objects in a URL, of custom resources that the controller writes.
    fn plural(self) -> Option<&'static str> {
        Some(match self {
            Self::Definition => api::NetworkAttachmentDefinition::PLURAL,
            Self::UserNetwork => api::UserDefinedNetwork::PLURAL,
            Self::ClusterUserNetwork => api::ClusterUserDefinedNetwork::PLURAL,
            Self::ClusterPolicy => api::ClusterNetworkPolicy::PLURAL,
            Self::AdminPolicy => api::AdminNetworkPolicy::PLURAL,
            Self::BaselinePolicy => api::BaselineAdminNetworkPolicy::PLURAL,
            _ => return None,
        })
    }

    fn place(self) -> Option<usize> {
        ORDER.iter().position(|of| *of == self)
    }
}

fn named<K: Object>() -> (&'static str, &'static str) {
    (K::API, K::KIND)
}

impl Key {
    fn new(of: Of, namespace: Name, name: Name) -> Self {
        Self {
            of,
            namespace,
            name,
            network: Network::DEFAULT,
        }
    }

    /// That of what exists once.
    pub fn only(of: Of) -> Self {
        Self::new(of, Name::default(), Name::default())
    }

    /// A node's.
    pub fn node(name: Name) -> Self {
        Self::new(Of::Node, Name::default(), name)
    }

    /// That of a node's gateway router.
    pub fn gateway(node: Name) -> Self {
        Self::new(Of::Gateway, Name::default(), node)
    }

    /// That of what has a name alone.
    pub fn named(of: Of, name: Name) -> Self {
        Self::new(of, Name::default(), name)
    }

    /// That of an object in a namespace.
    pub fn object(of: Of, (namespace, name): ObjectName) -> Self {
        Self::new(of, namespace, name)
    }

    /// A pod's.
    pub fn pod(name: ObjectName) -> Self {
        Self::object(Of::Pod, name)
    }

    /// A service's.
    pub fn service(name: ObjectName) -> Self {
        Self::object(Of::Service, name)
    }

    /// On another network.
    #[must_use]
    pub fn on(self, network: Network) -> Self {
        Self { network, ..self }
    }

    /// Namespace and name.
    pub fn id(&self) -> ObjectName {
        (self.namespace.clone(), self.name.clone())
    }

    /// The path of the objects of its kind, in its namespace if it has one; `None` for what is no
    /// custom resource that the controller writes.
    pub(crate) fn path(&self) -> Option<String> {
        let ((api, _), plural) = self.of.kind().zip(self.of.plural())?;
        Some(match &*self.namespace {
            "" => format!("/apis/{api}/{plural}"),
            namespace => format!("/apis/{api}/namespaces/{namespace}/{plural}"),
        })
    }

    /// Parses what [`Key`] displays; `None` if it is invalid.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let word = parts.next()?;
        let of = ORDER.into_iter().find(|of| of.word() == word)?;
        let mut next = || parts.next().filter(|part| !part.is_empty()).map(Name::from);
        let (namespace, name) = match of.names() {
            0 => (Name::default(), Name::default()),
            1 => (Name::default(), next()?),
            _ => (next()?, next()?),
        };
        // The rest: names of networks may have slashes.
        let network: Vec<&str> = parts.collect();
        let key = Self::new(of, namespace, name);
        match &network[..] {
            [] => Some(key),
            [""] => None,
            network => Some(key.on(Network(network.join("/").into()))),
        }
    }
}

/// In the form of [`podwire_ovs::nb::KEY`].
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.of.word())?;
        for name in [&self.namespace, &self.name] {
            if !name.is_empty() {
                write!(f, "/{name}")?;
            }
        }
        match self.network == Network::DEFAULT {
            true => Ok(()),
            false => write!(f, "/{}", self.network.0),
        }
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_kind = self.of.place().cmp(&other.of.place());
        let by_name = || (&self.namespace, &self.name).cmp(&(&other.namespace, &other.name));
        by_kind
            .then_with(by_name)
            .then_with(|| self.network.cmp(&other.network))
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Vec<Key> {
        let id = || ("ns".into(), "x".into());
        let of_default = ORDER.map(|of| match of.names() {
            0 => Key::only(of),
            1 => Key::named(of, "x".into()),
            _ => Key::object(of, id()),
        });
        let other = Network("tenants/blue".into());
        let on_other = of_default.clone().map(|key| key.on(other.clone()));
        of_default.into_iter().chain(on_other).collect()
    }

    #[test]
    fn a_key_reads_what_it_shows_and_nothing_else() {
        for key in keys() {
            assert_eq!(Key::parse(&key.to_string()), Some(key));
        }
        let texts: Vec<String> = keys().iter().map(Key::to_string).collect();
        let (default, other) = texts.split_at(ORDER.len());
        assert_eq!(
            default,
            [
                "cluster",
                "join",
                "definition/ns/x",
                "multi-policy/ns/x",
                "user-network/ns/x",
                "cluster-user-network/x",
                "node/x",
                "gateway/x",
                "namespace/x",
                "peers/x",
                "policy/ns/x",
                "cluster-policy/x",
                "admin-policy/x",
                "baseline-policy/x",
                "pod/ns/x",
                "service/ns/x",
                "members"
            ]
        );
        assert_eq!(other[14], "pod/ns/x/tenants/blue");
        for wrong in [
            "", "pod", "pod/ns", "pod/ns/", "pod//x", "node/", "node/x/", "other/x",
        ] {
            assert_eq!(Key::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn keys_come_in_the_stated_order_whatever_their_names() {
        let mut sorted = keys();
        sorted.sort();
        let order: Vec<Of> = sorted.iter().map(|key| key.of).collect();
        let twice: Vec<Of> = ORDER.into_iter().flat_map(|of| [of, of]).collect();
        assert_eq!(order, twice);
    }
}
