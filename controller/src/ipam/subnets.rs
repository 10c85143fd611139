use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};

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
    /// An older node has it.
    #[error("its subnet {subnet} belongs to the older node {holder}, so it gets another")]
    Taken {
        /// The subnet.
        subnet: IpNet,
        /// Its owner.
        holder: String,
    },
    /// Kubernetes has assigned none.
    #[error(
        "its spec.podCIDRs are empty, but the controller runs with --use-pod-cidrs: start \
         kube-controller-manager with --allocate-node-cidrs and --cluster-cidr"
    )]
    NoPodCidrs,
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
#[derive(Clone, Debug)]
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

    /// A node's subnets: one of each family.
    pub fn of(&self, node: &str) -> &[IpNet] {
        self.of.get(node).map_or(&[], Vec::as_slice)
    }

    /// Lets a node keep those of its former subnets that are parts of the cluster's networks and
    /// nobody else's.
    ///
    /// # Errors
    /// [`SubnetError::Taken`] for the first that is another's; the others are kept nevertheless.
    pub fn keep(&mut self, node: &str, had: &[IpNet]) -> Result<(), SubnetError> {
        let mut taken = Ok(());
        for &subnet in had {
            let is_part = self.networks.iter().any(|network| network.has(subnet));
            let has_family = self.of(node).iter().any(|own| is_v4(own) == is_v4(&subnet));
            match self.holders.get(&subnet) {
                Some(holder) if holder != node => {
                    let holder = holder.clone();
                    taken = taken.and(Err(SubnetError::Taken { subnet, holder }));
                }
                None if is_part && !has_family => self.give(node, subnet),
                _ => {}
            }
        }
        taken
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
                .find(|subnet| !self.holders.contains_key(subnet));
            let Some(free) = free else {
                let full: Vec<_> = networks().map(|it| it.net.to_string()).collect();
                return Err(SubnetError::Exhausted(full.join(", ")));
            };
            self.give(node, free);
        }
        Ok(())
    }

    /// Assigns a node the subnets in its `spec.podCIDRs`, in place of former ones.
    ///
    /// # Errors
    /// [`SubnetError::NoPodCidrs`] and [`SubnetError::PodCidr`]; the node has none then.
    pub fn assign(&mut self, node: &str, pod_cidrs: &[String]) -> Result<(), SubnetError> {
        self.release(node);
        if pod_cidrs.is_empty() {
            return Err(SubnetError::NoPodCidrs);
        }
        let mut own = Vec::new();
        for text in pod_cidrs {
            let subnet = self.pod_cidr(text, &own);
            own.push(subnet.map_err(|problem| SubnetError::PodCidr {
                text: text.clone(),
                problem,
            })?);
        }
        for subnet in own {
            self.give(node, subnet);
        }
        Ok(())
    }

    fn pod_cidr(&self, text: &str, own: &[IpNet]) -> Result<IpNet, String> {
        let subnet: IpNet = text.parse().map_err(|_| "it is no network".to_owned())?;
        let subnet = subnet.trunc();
        if subnet.prefix_len() > subnet.max_prefix_len() - SMALLEST {
            return Err("it has no room for pods".to_owned());
        }
        if own.iter().any(|other| is_v4(other) == is_v4(&subnet)) {
            return Err("a node has one of each family".to_owned());
        }
        let mut holders = self.holders.iter();
        match holders.find(|(other, _)| overlap(other, &subnet)) {
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
        if net.trunc() != net {
            return Err(refused("the address has bits beyond the network's"));
        }
        if node_prefix < net.prefix_len() || node_prefix > net.max_prefix_len() - SMALLEST {
            return Err(refused("a node's part does not fit"));
        }
        Ok(Self { net, node_prefix })
    }
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

fn is_v4(net: &IpNet) -> bool {
    matches!(net, IpNet::V4(_))
}
