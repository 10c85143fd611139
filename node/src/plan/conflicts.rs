//! Settings that would take from this machine what it needs for itself, from wherever they come.
//!
//! init refuses them before the first change. Later they may come about, as when a VPN connects a
//! network that the pods have: then what exists stays, and what is missing is not made
//! (docs/decisions/0064).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cluster::address::nth;
use podwire_cluster::address::overlap;

use super::AGENT_FILE;
use crate::LINKS;
use crate::firewalld::RuleKind;
use crate::items::{Actual, ENCAP_IP, Item};
use crate::overlap::{By, InUse, not_for_pods, taken};
use crate::settings::{Mode, Peer, Settings, check_subnets};

/// A setting that this machine can't have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// Its name and value.
    pub(crate) setting: String,
    /// RuleKind it conflicts with, and what to do.
    problem: String,
    /// Where it comes from, if that is not the command line.
    origin: String,
    blocks: Blocks,
}

/// RuleKind is not made because of a conflict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Blocks {
    /// RuleKind leads to another node's subnet.
    Peer(IpNet),
    /// RuleKind leads to a network.
    Network(IpNet),
    /// The same, and that the agent gets it.
    Subnet(IpNet),
    /// The tunnels' end.
    EncapIp,
    /// A NIC in the bridge of a physical network.
    Nic(String),
    /// What is set on the link to the other nodes.
    Uplink(String),
    /// Nothing: the plan is one that the machine can have.
    Nothing,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}{}", self.setting, self.problem, self.origin)
    }
}

impl Conflict {
    pub(super) fn of(settings: &Settings, flag: &str, value: &str, problem: String) -> Self {
        Self {
            setting: format!("{flag} {value}"),
            problem,
            origin: settings.origins.get(flag).cloned().unwrap_or_default(),
            blocks: Blocks::Nothing,
        }
    }

    pub(super) fn blocking(self, blocks: Blocks) -> Self {
        Self { blocks, ..self }
    }

    /// Whether it keeps this node from being set up: it is not only about another node's pods, or
    /// a link that others provide.
    pub(crate) fn is_of_all(&self) -> bool {
        !matches!(self.blocks, Blocks::Peer(_) | Blocks::Uplink(_))
    }

    /// Whether an item waits for a link that is missing: the node goes on without it.
    pub(crate) fn is_of_link(&self, item: &Item) -> bool {
        matches!(self.blocks, Blocks::Uplink(_)) && self.blocks(item)
    }

    /// Whether it is about this node's subnets.
    pub(crate) fn is_of_subnets(&self) -> bool {
        matches!(self.blocks, Blocks::Subnet(_))
    }

    /// Whether this item is not made because of it.
    pub(crate) fn blocks(&self, item: &Item) -> bool {
        let net = match &self.blocks {
            Blocks::Peer(net) | Blocks::Network(net) | Blocks::Subnet(net) => net,
            Blocks::EncapIp => {
                return matches!(item, Item::Key(it) if it.key == ENCAP_IP);
            }
            Blocks::Nic(nic) => {
                return match item {
                    Item::NicPort(it) => it.nic == *nic,
                    Item::LinkUp(it) => it.0 == *nic,
                    _ => false,
                };
            }
            Blocks::Uplink(link) => {
                return match item {
                    Item::Sysctl(it) => it.link() == Some(link),
                    Item::Uplink(it) => it.nic == *link,
                    _ => false,
                };
            }
            Blocks::Nothing => return false,
        };
        match item {
            Item::Address(address) => address.0.trunc() == *net,
            Item::Neighbour(it) => net.contains(&it.ip),
            Item::Route(route) => route.destination == *net,
            Item::Firewalld(rule) => rule.what == RuleKind::Source(*net),
            Item::File(it) => self.is_of_subnets() && it.path == AGENT_FILE,
            _ => false,
        }
    }
}

/// A network to which podwire is to lead packets.
struct Network<'a> {
    net: &'a IpNet,
    /// The name of its setting.
    setting: &'a str,
    /// The node that it is of, in plain mode.
    node: Option<&'a str>,
    blocks: Blocks,
}

impl Network<'_> {
    fn conflict(&self, settings: &Settings, problem: &str) -> Conflict {
        let value = match self.node {
            Some(node) => format!("{} of node {node}", self.net),
            None => self.net.to_string(),
        };
        let flag = self.setting;
        Conflict::of(settings, flag, &value, problem.to_owned()).blocking(self.blocks.clone())
    }
}

/// All conflicts.
pub(super) fn find(settings: &Settings, actual: &Actual, take_over: bool) -> Vec<Conflict> {
    let networks = networks(settings);
    let in_use: Vec<InUse> = actual
        .in_use
        .iter()
        .filter(|it| !(is_own(it, settings) || take_over && is_replaced(it, actual)))
        .cloned()
        .chain(peers(settings))
        .collect();
    let mut conflicts = Vec::new();
    for network in &networks {
        let problem = not_for_pods(network.net).or_else(|| {
            let in_use = in_use.iter();
            match network.setting == "--service-cidr" {
                true => taken(
                    network.net,
                    in_use.filter(|it| !is_of_services(it, network.net)),
                ),
                false => taken(network.net, in_use),
            }
        });
        if let Some(problem) = problem {
            let advice = match network.setting {
                "podCIDRs" => "give the cluster other podCIDRs",
                setting if setting.starts_with("--") => "name another network",
                _ => "have the control plane assign another subnet",
            };
            conflicts.push(network.conflict(settings, &format!("{problem}: {advice}")));
        }
    }
    conflicts.extend(invalid_peers(settings));
    conflicts.extend(among_nodes(settings, &networks));
    conflicts.extend(encap_ips(settings, actual));
    conflicts
}

/// The settings without other nodes that are in a conflict and were not reached before.
pub(super) fn without_refused<'a>(
    settings: &'a Settings,
    actual: &Actual,
    conflicts: &[Conflict],
) -> Cow<'a, Settings> {
    let is_refused = |peer: &Peer| {
        let is_it = |net: &IpNet| {
            let mut conflicts = conflicts.iter();
            conflicts.any(|conflict| conflict.blocks == Blocks::Peer(*net))
        };
        let is_reached = |net: &IpNet| {
            let mut routes = actual.routes.iter();
            routes.any(|route| route.ours && route.destination == *net)
        };
        peer.subnets.iter().any(is_it) && !peer.subnets.iter().any(is_reached)
    };
    if !settings.peers.iter().any(is_refused) {
        return Cow::Borrowed(settings);
    }
    let mut settings = settings.clone();
    settings.peers.retain(|peer| !is_refused(peer));
    Cow::Owned(settings)
}

fn networks(settings: &Settings) -> Vec<Network<'_>> {
    let is_plain = settings.mode == Mode::Plain;
    let node = is_plain.then_some(settings.node_name.as_str());
    let own = settings.node_subnets.iter().map(|net| Network {
        net,
        setting: settings.subnets_setting(),
        node,
        blocks: Blocks::Subnet(*net),
    });
    let flags = [
        ("--cluster-subnet", &settings.cluster_subnets),
        ("--service-cidr", &settings.service_cidrs),
    ];
    let by_flag = flags.into_iter().flat_map(|(setting, nets)| {
        nets.iter().map(move |net| Network {
            net,
            setting,
            node: None,
            blocks: Blocks::Network(*net),
        })
    });
    let of_peers = settings.peers.iter().flat_map(|peer| {
        peer.subnets.iter().map(|net| Network {
            net,
            setting: "podCIDRs",
            node: Some(&peer.name),
            blocks: Blocks::Peer(*net),
        })
    });
    own.chain(by_flag).chain(of_peers).collect()
}

/// Whether it is the pods' gateway, which the agent sets on their bridge in plain mode.
fn is_own(it: &InUse, settings: &Settings) -> bool {
    settings.mode == Mode::Plain
        && it.by == By::Link(settings.bridge.clone())
        && settings.node_subnets.contains(&it.net)
}

/// Whether it is a route that the operator allows to be replaced.
fn is_replaced(it: &InUse, actual: &Actual) -> bool {
    let connects = |net: &IpNet| net.trunc() == it.net;
    let mut addresses = actual.addresses.iter();
    let mut routes = actual.routes.iter();
    matches!(it.by, By::Link(_))
        && !addresses.any(|seen| connects(&seen.address))
        && routes.any(|seen| seen.destination == it.net)
}

/// Whether it may be a service itself: an address that a program gives a link of its own for a
/// service on this machine, as kube-proxy and NodeLocal DNSCache do; or one of the two that
/// Kubernetes gives itself, the first for the API server and, by custom, the tenth for DNS.
fn is_of_services(it: &InUse, services: &IpNet) -> bool {
    let by_custom: [IpAddr; 2] = [1, 10].map(|place| nth(*services, place).addr());
    let is_address = it.net.prefix_len() == it.net.max_prefix_len();
    match it.by {
        By::Link(_) => is_address,
        By::Server(_) => by_custom.contains(&it.net.addr()),
        By::Gateway => false,
    }
}

/// The other nodes, which must be reached for their pods to be.
fn peers(settings: &Settings) -> impl Iterator<Item = InUse> {
    settings.peers.iter().flat_map(|peer| {
        peer.addresses.iter().map(|ip| InUse {
            net: IpNet::from(*ip),
            by: By::Server(format!("node {}", peer.name)),
        })
    })
}

/// Other nodes' subnets that no node can have.
fn invalid_peers(settings: &Settings) -> impl Iterator<Item = Conflict> {
    settings.peers.iter().filter_map(|peer| {
        let error = check_subnets("podCIDRs", &peer.subnets, &[]).err()?;
        let net = error.value.parse().ok()?;
        let value = format!("{net} of node {}", peer.name);
        let conflict = Conflict::of(settings, error.flag, &value, error.problem);
        Some(conflict.blocking(Blocks::Peer(net)))
    })
}

/// Nodes with the same subnet, which would give two pods one address.
fn among_nodes(settings: &Settings, networks: &[Network<'_>]) -> Vec<Conflict> {
    let mut of_nodes: Vec<&Network<'_>> = networks
        .iter()
        .filter(|network| network.node.is_some())
        .collect();
    // A net sorts directly after one that contains it, or after another of those.
    of_nodes.sort_by_key(|it| (it.net.network(), it.net.prefix_len()));
    let mut conflicts: BTreeMap<(IpNet, Option<&str>), Conflict> = BTreeMap::new();
    let mut widest: Option<&Network<'_>> = None;
    for network in of_nodes {
        let Some(wide) = widest.filter(|wide| overlap(wide.net, network.net)) else {
            widest = Some(network);
            continue;
        };
        for (one, other) in [(network, wide), (wide, network)] {
            let said = format!(
                "it overlaps {} of node {}: give each node podCIDRs of its own",
                other.net,
                other.node.unwrap_or_default()
            );
            let conflict = || one.conflict(settings, &said);
            conflicts
                .entry((*one.net, one.node))
                .or_insert_with(conflict);
        }
    }
    conflicts.into_values().collect()
}

/// Tunnels that would end at an address that this machine does not have.
fn encap_ips(settings: &Settings, actual: &Actual) -> Vec<Conflict> {
    let addresses = actual.addresses.iter();
    let own = addresses.filter(|seen| !LINKS.contains(&&*seen.link));
    let own: Vec<IpAddr> = own.map(|seen| seen.address.addr()).collect();
    let usable: Vec<String> = own
        .iter()
        .filter(|ip| not_for_pods(&IpNet::from(**ip)).is_none())
        .map(ToString::to_string)
        .collect();
    let missing = settings.encap_ips.iter().filter(|ip| !own.contains(ip));
    missing
        .map(|ip| {
            let problem = format!(
                "this machine does not have this address: name one of {}",
                usable.join(", ")
            );
            Conflict::of(settings, "--encap-ip", &ip.to_string(), problem).blocking(Blocks::EncapIp)
        })
        .collect()
}
