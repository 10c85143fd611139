//! The ends of connections, in groups of those for which policies can't tell one from another.
//!
//! Pods of one namespace are alike if they have the same values of all labels that any selector
//! terms at, the same numbers of all ports that any rule names, and addresses in the same networks
//! of rules. So a comparison of groups says the same as one of all pods.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use itertools::Itertools as _;

use crate::cluster::policy::{Direction, Peer, Policy, Rule, pieces};
use crate::cluster::tiered::Content;
use crate::cluster::{Cluster, Name, Pod};
use crate::ipam::{self, nth};
use crate::want::policy::{Candidate, candidate};

/// Ends that are alike.
pub(super) struct Group<'a> {
    /// One of its pods; None for what is no pod.
    pub(super) pod: Option<Candidate<'a>>,
    /// One of its addresses of each family.
    pub(super) addresses: Vec<IpAddr>,
    /// The number of its pods, or of its addresses.
    pub(super) count: usize,
    /// Where it is: a namespace, or `nodes`, or `outside`.
    pub(super) place: String,
    /// What its members have in common: labels, or a network.
    pub(super) detail: String,
    /// The direction of connections with pods that is asked for; None for both.
    pub(super) only: Option<Direction>,
}

/// What the rules of policies name.
#[derive(Default)]
pub(super) struct RuleTerms<'a> {
    labels: BTreeSet<&'a str>,
    ports: BTreeSet<&'a Name>,
    nets: BTreeSet<IpNet>,
}

/// The most networks of rules that ends outside are split by.
const NETS: usize = 64;

impl<'a> RuleTerms<'a> {
    /// Also those of a NetworkPolicy.
    pub(super) fn policy(&mut self, policy: &'a Policy) {
        self.labels.extend(policy.selector.keys());
        let rules = Direction::BOTH.into_iter();
        let rules = rules.filter_map(|it| policy.rules(it));
        rules.flatten().for_each(|rule| self.rule(rule));
    }

    /// Also those of a policy of the whole cluster.
    pub(super) fn tiered(&mut self, content: &'a Content) {
        self.peer(&content.subject);
        let rules = content.ingress.iter().chain(&content.egress);
        rules.for_each(|rule| self.rule(&rule.matching));
    }

    fn rule(&mut self, rule: &'a Rule) {
        rule.peers.iter().flatten().for_each(|it| self.peer(it));
        let names = rule.named_ports().map(|it| &it.name);
        self.ports.extend(names);
    }

    fn peer(&mut self, peer: &'a Peer) {
        match peer {
            Peer::Block(net, except) => self.nets.extend(except.iter().chain([net])),
            Peer::Pods { pods, .. } => self.labels.extend(pods.keys()),
        }
    }

    /// The networks that an address is in.
    fn around(&self, address: IpAddr) -> Vec<bool> {
        self.nets.iter().map(|net| net.contains(&address)).collect()
    }
}

/// All ends of a cluster, as some policies see them, and what is outside as those see it that
/// change; and whether networks were left out.
pub(super) fn groups<'a>(
    cluster: &'a Cluster,
    terms: &RuleTerms<'_>,
    of_changed: &RuleTerms<'_>,
) -> (Vec<Group<'a>>, bool) {
    let mut by_looks: BTreeMap<_, Group<'a>> = BTreeMap::new();
    for (id, pod) in &cluster.pods {
        let labels = pod.selected.labels.iter();
        let labels: Vec<_> = labels
            .filter(|(key, _)| terms.labels.contains(&***key))
            .collect();
        let ports = pod.selected.ports.iter();
        let ports: Vec<_> = ports
            .filter(|(it, _)| terms.ports.contains(&it.name))
            .collect();
        let addresses = addresses_of(pod);
        let nets: Vec<_> = addresses.iter().map(|it| terms.around(*it)).collect();
        let mut detail = labels.iter().map(|(key, value)| format!("{key}={value}"));
        let detail = detail.join(",");
        let group = by_looks.entry((&id.0, labels, ports, nets));
        let group = group.or_insert_with(|| Group {
            pod: Some(candidate(id, pod, &cluster.namespaces)),
            addresses,
            count: 0,
            place: id.0.to_string(),
            detail,
            only: None,
        });
        group.count += 1;
    }
    let mut all: Vec<Group<'a>> = by_looks.into_values().collect();
    all.extend(nodes(cluster, terms));
    all.extend(outside(cluster, of_changed));
    (all, of_changed.nets.len() > NETS)
}

fn addresses_of(pod: &Pod) -> Vec<IpAddr> {
    let recorded = pod.networks.iter().flat_map(|recorded| &recorded.addresses);
    let recorded: Vec<IpAddr> = recorded.map(IpNet::addr).collect();
    match recorded.is_empty() {
        true => pod.reported.to_vec(),
        false => recorded,
    }
}

/// As receivers their own addresses, and as senders their management ports.
fn nodes<'a>(cluster: &Cluster, terms: &RuleTerms<'_>) -> Vec<Group<'a>> {
    let mut found: BTreeMap<_, Group<'a>> = BTreeMap::new();
    let mut add = |address: IpAddr, only: Direction, detail: &str| {
        let key = (only, address.is_ipv4(), terms.around(address));
        let group = found.entry(key).or_insert_with(|| Group {
            pod: None,
            addresses: vec![address],
            count: 0,
            place: "nodes".to_owned(),
            detail: detail.to_owned(),
            only: Some(only),
        });
        group.count += 1;
    };
    for node in cluster.nodes.values() {
        for address in &node.addresses {
            add(*address, Direction::Egress, "their addresses");
        }
        for subnet in subnets(node) {
            let address = nth(subnet, 2).addr();
            add(
                address,
                Direction::Ingress,
                "management ports of other nodes than the pod's",
            );
        }
    }
    found.into_values().collect()
}

fn subnets(node: &crate::cluster::Node) -> Vec<IpNet> {
    node.subnets
        .as_deref()
        .map(ipam::read_node_subnets)
        .unwrap_or_default()
}

/// One address of each network of the rules that is in no smaller one, and one of the rest.
fn outside<'a>(cluster: &Cluster, terms: &RuleTerms<'_>) -> Vec<Group<'a>> {
    let pods: BTreeSet<IpNet> = cluster.nodes.values().flat_map(subnets).collect();
    let mut nets: Vec<IpNet> = terms.nets.iter().copied().take(NETS).collect();
    for all in ["0.0.0.0/0", "::/0"] {
        let all: Option<IpNet> = all.parse().ok();
        nets.extend(all.filter(|it| !terms.nets.contains(it)));
    }
    let others: BTreeSet<IpNet> = nets.iter().chain(&pods).copied().collect();
    let of_net = |net: &IpNet| {
        let inside: BTreeSet<IpNet> = others
            .iter()
            .filter(|it| *it != net && net.contains(*it))
            .copied()
            .collect();
        let free = pieces(*net, &inside);
        // Not what is first of all: no network and no host has it.
        let free = free
            .iter()
            .map(|piece| nth(*piece, u128::from(piece.prefix_len() == 0)));
        let address = free
            .map(|it| it.addr())
            .find(|it| !pods.iter().any(|net| net.contains(it)))?;
        let detail = match (inside.is_empty(), net.prefix_len()) {
            (_, 0) if net.addr().is_ipv4() => "the rest of IPv4".to_owned(),
            (_, 0) => "the rest of IPv6".to_owned(),
            (true, _) => net.to_string(),
            (false, _) => format!("the rest of {net}"),
        };
        Some(Group {
            pod: None,
            addresses: vec![address],
            count: 1,
            place: "outside".to_owned(),
            detail,
            only: None,
        })
    };
    nets.iter().filter_map(of_net).collect()
}
