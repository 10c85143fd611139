use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};
use podwire_cluster::address::overlap;

/// The minimum number of bits for the pods in a node's subnet: four addresses are not for pods.
const SMALLEST: u8 = 3;

/// A network of the cluster, and the prefix length of each node's part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterSubnet {
    net: IpNet,
    node_prefix: u8,
}

/// The text is no [`ClusterSubnet`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not ADDRESS/LENGTH/NODE-LENGTH, such as 10.244.0.0/16/24: {problem}")]
pub struct ClusterSubnetError {
    text: String,
    problem: &'static str,
}

/// Why a node has no subnet, or not its former one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubnetError {
    /// All are taken.
    #[error(
        "no subnet is left in {0}: add another network to --cluster-subnets, or remove nodes that \
         no longer exist"
    )]
    Exhausted(String),
    /// Another node has it.
    #[error(
        "its annotation k8s.ovn.org/node-subnets has {subnet}, but node {holder} has {other}, so \
         it has another subnet"
    )]
    Taken {
        /// The subnet.
        subnet: IpNet,
        /// The other node.
        holder: String,
        /// The other node's subnet.
        other: IpNet,
    },
    /// It is no part of the cluster's networks.
    #[error(
        "its annotation k8s.ovn.org/node-subnets has {subnet}, which is no part of \
         --cluster-subnets {networks}: correct the setting, or remove the annotation for the node \
         to get another subnet"
    )]
    Outside {
        /// The subnet.
        subnet: IpNet,
        /// The setting.
        networks: String,
    },
    /// Kubernetes has assigned none.
    #[error(
        "its spec.podCIDRs are empty, but the controller runs with --use-pod-cidrs: start \
         kube-controller-manager with --allocate-node-cidrs and --cluster-cidr"
    )]
    NoPodCidrs,
    /// Pods use another than Kubernetes has assigned.
    #[error(
        "its pods have addresses of {0}, which is not what its spec.podCIDRs say, so it keeps that \
         until they are gone: drain the node"
    )]
    InUse(String),
    /// The one that Kubernetes has assigned can't be its subnet.
    #[error("{text:?} of its spec.podCIDRs can't be its subnet: {problem}")]
    PodCidr {
        /// Its text.
        text: String,
        /// What is wrong.
        problem: String,
    },
}

/// The subnets of all nodes.
#[derive(Clone, Debug, Default)]
pub struct Subnets {
    networks: Vec<ClusterSubnet>,
    holders: BTreeMap<IpNet, String>,
    of: BTreeMap<String, Vec<IpNet>>,
}

impl Subnets {
    /// No subnets are assigned yet.
    pub fn new(networks: Vec<ClusterSubnet>) -> Self {
        Self {
            networks,
            holders: BTreeMap::new(),
            of: BTreeMap::new(),
        }
    }

    /// Changes of what nodes get subnets; they keep those that they have.
    pub fn set_networks(&mut self, networks: Vec<ClusterSubnet>) {
        self.networks = networks;
    }

    /// The nodes with subnets.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.of.keys().map(String::as_str)
    }

    /// A node's subnets: one of each family.
    pub fn of(&self, node: &str) -> &[IpNet] {
        self.of.get(node).map_or(&[], Vec::as_slice)
    }

    /// Lets a node keep the subnets that exist: rows or running pods have them. Of each family it
    /// keeps the first that overlaps with no other node's.
    pub fn hold(&mut self, node: &str, existing: impl IntoIterator<Item = IpNet>) {
        for subnet in existing {
            if !self.has_family(node, subnet) && self.overlapping(subnet).is_none() {
                self.give(node, subnet);
            }
        }
    }

    /// Lets a node keep the subnets that its annotation claims.
    ///
    /// # Errors
    /// [`SubnetError::Outside`] for one that is no part of the cluster's networks, if the node has
    /// none yet; nothing is kept then. [`SubnetError::Taken`] for the first that it can't have; the
    /// others are kept nevertheless.
    pub fn keep(&mut self, node: &str, claimed: &[IpNet]) -> Result<(), SubnetError> {
        let is_part = |net: &IpNet| self.networks.iter().any(|network| network.has(*net));
        if self.of(node).is_empty()
            && let Some(&subnet) = claimed.iter().find(|net| !is_part(net))
        {
            let networks = ClusterSubnet::list(&self.networks);
            return Err(SubnetError::Outside { subnet, networks });
        }
        let (claimed, _): (Vec<IpNet>, Vec<IpNet>) = claimed.iter().partition(|net| is_part(net));
        let mut kept = Ok(());
        for subnet in claimed {
            match self.overlapping(subnet) {
                Some((_, holder)) if holder == node => {}
                Some((&other, holder)) => {
                    let holder = holder.clone();
                    let taken = SubnetError::Taken {
                        subnet,
                        holder,
                        other,
                    };
                    kept = kept.and(Err(taken));
                }
                None => self.hold(node, [subnet]),
            }
        }
        kept
    }

    /// The subnet of a node, one of whose pods has this address; without networks of the cluster,
    /// the one that the address has a prefix length for.
    pub fn around(&self, address: IpNet) -> Option<IpNet> {
        if self.networks.is_empty() {
            let has_length = address.prefix_len() < address.max_prefix_len();
            return has_length.then(|| address.trunc());
        }
        let mut networks = self.networks.iter();
        let network = networks.find(|it| it.net.contains(&address.addr()))?;
        let part = IpNet::new(address.addr(), network.node_prefix).ok()?;
        Some(part.trunc())
    }

    /// The network of the cluster or subnet of a node that has an address.
    pub fn containing(&self, address: IpAddr) -> Option<IpNet> {
        let networks = self.networks.iter().map(|network| &network.net);
        let mut all = networks.chain(self.holders.keys());
        all.find(|net| net.contains(&address)).copied()
    }

    /// The first of these subnets that no network of the cluster contains.
    pub fn outside(&self, subnets: &[IpNet]) -> Option<IpNet> {
        let is_outside = |subnet: &&IpNet| {
            let mut networks = self.networks.iter();
            !networks.any(|network| network.net.contains(*subnet))
        };
        subnets.iter().find(is_outside).copied()
    }

    /// The other node's subnet that overlaps with this one.
    fn overlapping(&self, subnet: IpNet) -> Option<(&IpNet, &String)> {
        // They don't overlap with each other, so only the last that begins before its end can.
        let end = IpNet::new_assert(subnet.broadcast(), subnet.max_prefix_len());
        let (other, holder) = self.holders.range(..=end).next_back()?;
        overlap(other, &subnet).then_some((other, holder))
    }

    fn has_family(&self, node: &str, subnet: IpNet) -> bool {
        self.of(node).iter().any(|own| is_v4(own) == is_v4(&subnet))
    }

    /// Assigns a node a subnet of each family that it lacks.
    ///
    /// # Errors
    /// [`SubnetError::Exhausted`].
    pub fn complete(&mut self, node: &str) -> Result<(), SubnetError> {
        for v4 in [true, false] {
            let networks = || self.networks.iter().filter(|it| is_v4(&it.net) == v4);
            if networks().next().is_none() || self.of(node).iter().any(|own| is_v4(own) == v4) {
                continue;
            }
            let free = networks()
                .flat_map(ClusterSubnet::parts)
                .find(|subnet| self.overlapping(*subnet).is_none());
            let Some(free) = free else {
                let full: Vec<_> = networks().map(|it| it.net.to_string()).collect();
                return Err(SubnetError::Exhausted(full.join(", ")));
            };
            self.give(node, free);
        }
        Ok(())
    }

    /// The subnets in a node's `spec.podCIDRs`, IPv4 first.
    ///
    /// # Errors
    /// [`SubnetError::NoPodCidrs`] and [`SubnetError::PodCidr`].
    pub fn pod_cidrs(&self, node: &str, pod_cidrs: &[String]) -> Result<Vec<IpNet>, SubnetError> {
        if pod_cidrs.is_empty() {
            return Err(SubnetError::NoPodCidrs);
        }
        let mut own = Vec::new();
        for text in pod_cidrs {
            let subnet = self.pod_cidr(node, text, &own);
            own.push(subnet.map_err(|problem| SubnetError::PodCidr {
                text: text.clone(),
                problem,
            })?);
        }
        own.sort_by_key(|subnet| !is_v4(subnet));
        Ok(own)
    }

    fn pod_cidr(&self, node: &str, text: &str, own: &[IpNet]) -> Result<IpNet, String> {
        let subnet: IpNet = text.parse().map_err(|_| "it is no network".to_owned())?;
        let subnet = subnet.trunc();
        if subnet.prefix_len() > subnet.max_prefix_len() - SMALLEST {
            return Err("it has no room for pods".to_owned());
        }
        if own.iter().any(|other| is_v4(other) == is_v4(&subnet)) {
            return Err("a node has one of each family".to_owned());
        }
        let mut others = self.holders.iter().filter(|(_, holder)| *holder != node);
        match others.find(|(other, _)| overlap(other, &subnet)) {
            Some((other, holder)) => Err(format!("node {holder} has {other}")),
            None => Ok(subnet),
        }
    }

    /// Frees a node's subnets.
    pub fn release(&mut self, node: &str) {
        for subnet in self.of.remove(node).into_iter().flatten() {
            self.holders.remove(&subnet);
        }
    }

    fn give(&mut self, node: &str, subnet: IpNet) {
        self.holders.insert(subnet, node.to_owned());
        let own = self.of.entry(node.to_owned()).or_default();
        own.push(subnet);
        own.sort_by_key(|subnet| !is_v4(subnet));
    }
}

impl ClusterSubnet {
    /// A network, and the prefix length of a node's part of it.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn new(net: IpNet, node_prefix: u8) -> Result<Self, &'static str> {
        if net.trunc() != net {
            return Err("the address has bits beyond the network's");
        }
        if node_prefix < net.prefix_len() || node_prefix > net.max_prefix_len() - SMALLEST {
            return Err("a node's part does not fit");
        }
        Ok(Self { net, node_prefix })
    }

    /// The network of all nodes' subnets.
    pub fn network(&self) -> IpNet {
        self.net
    }

    /// That of a cluster that names none.
    pub(crate) const USUAL: Self = Self {
        net: IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(10, 244, 0, 0), 16)),
        node_prefix: 24,
    };

    /// The first two that overlap.
    pub fn overlapping(networks: &[Self]) -> Option<(IpNet, IpNet)> {
        networks.iter().enumerate().find_map(|(number, one)| {
            let mut later = networks[number + 1..].iter();
            let other = later.find(|other| overlap(&one.net, &other.net))?;
            Some((one.net, other.net))
        })
    }

    /// As the setting has them.
    pub fn list(networks: &[Self]) -> String {
        let texts: Vec<_> = networks.iter().map(Self::to_string).collect();
        texts.join(",")
    }

    fn has(&self, subnet: IpNet) -> bool {
        is_v4(&self.net) == is_v4(&subnet)
            && subnet.prefix_len() == self.node_prefix
            && subnet.trunc() == subnet
            && self.net.contains(&subnet)
    }

    fn parts(&self) -> impl Iterator<Item = IpNet> + use<> {
        // The prefix length has been checked against the network's.
        self.net.subnets(self.node_prefix).into_iter().flatten()
    }
}

/// As in the setting.
impl fmt::Display for ClusterSubnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.net, self.node_prefix)
    }
}

impl FromStr for ClusterSubnet {
    type Err = ClusterSubnetError;

    fn from_str(text: &str) -> Result<Self, ClusterSubnetError> {
        let refused = |problem| ClusterSubnetError {
            text: text.to_owned(),
            problem,
        };
        let (net, node_prefix) = text
            .rsplit_once('/')
            .filter(|(net, _)| net.contains('/'))
            .ok_or_else(|| refused("expected three parts"))?;
        let net: IpNet = net
            .parse()
            .map_err(|_| refused("the first two parts are no network"))?;
        let node_prefix = node_prefix
            .parse()
            .map_err(|_| refused("the last part is no number"))?;
        Self::new(net, node_prefix).map_err(refused)
    }
}

fn is_v4(net: &IpNet) -> bool {
    matches!(net, IpNet::V4(_))
}
