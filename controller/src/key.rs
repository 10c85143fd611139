//! What identifies an object, and with it all rows created for it.

use std::fmt;

use podwire_apiserver::object::Object;
use podwire_cluster::{Name, ObjectName, api};
use podwire_ovs::nb::Table;

/// Declares what keys are of: each with the word that the key begins with, the number of names in
/// it, the objects that have such keys, and the tables with the rows of such keys.
macro_rules! kinds {
    ($(
        $(#[$doc:meta])*
        $of:ident = $word:literal, $names:literal $(of $object:ident)?, [$($table:ident),*];
    )+) => {
        /// What a key is the key of, in the order in which changed keys are processed. Switches and
        /// groups come before the pods whose ports refer to them, so that one transaction can
        /// contain both; members that nobody contributes come when everybody has said which ones
        /// they do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Of {
            $($(#[$doc])* $of,)+
        }

        impl Of {
            /// All of them, in this order.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$of),+];

            /// The word that a key begins with.
            fn word(self) -> &'static str {
                match self {
                    $(Self::$of => $word,)+
                }
            }

            /// The number of names in a key.
            fn names(self) -> usize {
                match self {
                    $(Self::$of => $names,)+
                }
            }

            /// The API, the kind and the name in URLs of such objects, if they are objects.
            fn object(self) -> Option<[&'static str; 3]> {
                match self {
                    $(Self::$of => [$(named::<api::$object>())?].first().copied(),)+
                }
            }

            /// The tables with the rows of such keys.
            pub(crate) fn tables(self) -> &'static [Table] {
                match self {
                    $(Self::$of => &[$(Table::$table),*],)+
                }
            }
        }
    };
}

kinds! {
    /// What all nodes of a network share: the router and the group of load balancers.
    Cluster = "cluster", 0,
        [LogicalRouter, LogicalRouterPort, LogicalSwitch, LogicalSwitchPort, StaticRoute,
         RouterPolicy, PortGroup, AddressSet, Acl, Copp];
    /// The switch between the nodes' gateway routers and the router that joins all nodes.
    Join = "join", 0, [LogicalSwitch, LogicalSwitchPort, LogicalRouterPort];
    /// A NetworkAttachmentDefinition.
    Definition = "definition", 2 of NetworkAttachmentDefinition, [];
    /// A MultiNetworkPolicy. Its rows are those of policies on networks.
    MultiPolicy = "multi-policy", 2 of MultiNetworkPolicy, [];
    /// A UserDefinedNetwork.
    UserNetwork = "user-network", 2 of UserDefinedNetwork, [];
    /// A ClusterUserDefinedNetwork.
    ClusterUserNetwork = "cluster-user-network", 1 of ClusterUserDefinedNetwork, [];
    /// A node.
    Node = "node", 1 of Node,
        [LogicalSwitch, LogicalSwitchPort, LogicalRouterPort, GatewayChassis, StaticRoute,
         RouterPolicy, Qos];
    /// A node's gateway router; on another network, that network's way out on the node.
    Gateway = "gateway", 1 of Node,
        [LogicalRouter, LogicalSwitch, LogicalSwitchPort, LogicalRouterPort, GatewayChassis,
         StaticRoute, RouterPolicy, Nat];
    /// A namespace with policies: its groups of isolated pods.
    Namespace = "namespace", 1 of Namespace, [PortGroup, Acl];
    /// The pods that policies' rules name, by the id of such a set.
    Peers = "peers", 1, [AddressSet];
    /// A NetworkPolicy.
    Policy = "policy", 2 of NetworkPolicy, [PortGroup, Acl];
    /// A ClusterNetworkPolicy.
    ClusterPolicy = "cluster-policy", 1 of ClusterNetworkPolicy, [PortGroup, Acl];
    /// An AdminNetworkPolicy.
    AdminPolicy = "admin-policy", 1 of AdminNetworkPolicy, [PortGroup, Acl];
    /// A BaselineAdminNetworkPolicy.
    BaselinePolicy = "baseline-policy", 1 of BaselineAdminNetworkPolicy, [PortGroup, Acl];
    /// A pod.
    Pod = "pod", 2 of Pod, [LogicalSwitchPort];
    /// A service.
    Service = "service", 2 of Service, [LoadBalancer, AddressSet];
    /// The members of all groups: those that nothing contributes are removed.
    Members = "members", 0, [];
}

/// Identifies an object on a network, and with it all rows created for it there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

    /// That of this pod with this entry.
    pub fn of(pod: &ObjectName, entry: &Name) -> Self {
        let (pod, entry) = (pod.clone(), entry.clone());
        Self { pod, entry }
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
    /// The API and the kind of such objects; `None` for what is no object.
    pub(crate) fn kind(self) -> Option<(&'static str, &'static str)> {
        self.object().map(|[api, kind, _]| (api, kind))
    }
}

const fn named<K: Object>() -> [&'static str; 3] {
    [K::API, K::KIND, K::PLURAL]
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

    /// The path of the objects of its kind, of custom resources, in its namespace if it has one;
    /// `None` for what is no object.
    pub(crate) fn path(&self) -> Option<String> {
        let [api, _, plural] = self.of.object()?;
        Some(match &*self.namespace {
            "" => format!("/apis/{api}/{plural}"),
            namespace => format!("/apis/{api}/namespaces/{namespace}/{plural}"),
        })
    }

    /// Parses what [`Key`] displays; `None` if it is invalid.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let word = parts.next()?;
        let of = Of::ALL.into_iter().find(|of| of.word() == word)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Vec<Key> {
        let id = || ("ns".into(), "x".into());
        let of_default = Of::ALL.map(|of| match of.names() {
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
        let (default, other) = texts.split_at(Of::ALL.len());
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
        let twice: Vec<Of> = Of::ALL.into_iter().flat_map(|of| [of, of]).collect();
        assert_eq!(order, twice);
    }
}
