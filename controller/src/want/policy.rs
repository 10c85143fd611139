//! The rows of NetworkPolicies. What a pod costs is members of groups and sets, never an ACL.
//!
//! A namespace has a port group for each direction in which a policy isolates: what is not allowed
//! to or from its members is dropped. A policy with rules has a port group whose ACLs allow. The
//! pods that a rule names are an address set, shared by all rules that name the same ones.
//!
//! Names, priorities and external_ids are those of ovn-kubernetes.

mod index;
mod logging;
mod matching;
mod members;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use podwire_ovs::nb::Table;
use podwire_ovs::value::Value;

use super::Row;
use crate::cluster::Name;
use crate::cluster::policy::{Direction, NamedPort, Peer, Policy, Ports, Rule};
use crate::ipam::nth;
use crate::members::Member;
use index::member;
use logging::unlogged;
use matching::{Family, blocks, ports};
use members::set_name;

pub use index::{Namespaces, Policies, Subject, candidate};
pub use logging::{METER, logged};
pub use members::{Candidate, PeerSet};
pub use verdict::{Connection, Verdict, decide};

/// What OVN gives a pod that reaches itself through a service as its source.
const HAIRPIN: [&str; 2] = ["ip4.src == 169.254.169.5", "ip6.src == fd69::5"];
/// The priority of drops; what allows has one more.
const DROP: u16 = 1000;
/// The most bytes of an ACL's name.
const NAME: usize = 63;

/// Identifies a row as ovn-kubernetes does: by the type of its owner, and by parts of it.
struct Ids(Vec<(&'static str, String)>);

impl Ids {
    fn new(owner_type: &str, name: String) -> Self {
        Self(vec![
            (
                "k8s.ovn.org/owner-controller",
                "default-network-controller".to_owned(),
            ),
            ("k8s.ovn.org/owner-type", owner_type.to_owned()),
            ("k8s.ovn.org/name", name),
        ])
    }

    fn and(mut self, key: &'static str, value: impl ToString) -> Self {
        self.0.push((key, value.to_string()));
        self
    }

    fn id(&self) -> String {
        let parts: Vec<&str> = self.0.iter().map(|(_, value)| value.as_str()).collect();
        parts.join(":")
    }

    fn external_ids(self) -> Vec<(&'static str, String)> {
        let id = self.id();
        self.and("k8s.ovn.org/id", id).0
    }
}

/// FNV-1a, 64 bits, as a name that OVN's matches can have.
fn hashed(id: &str) -> String {
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("a{hash}")
}

fn isolated_ids(namespace: &str, direction: Direction) -> Ids {
    Ids::new("NetpolNamespace", namespace.to_owned()).and("direction", direction)
}

fn policy_ids(namespace: &str, name: &str) -> Ids {
    Ids::new("NetworkPolicy", format!("{namespace}:{name}"))
}

fn named_ids(namespace: &str, name: &str, named: &NamedPort, number: u16) -> Ids {
    policy_ids(namespace, name)
        .and("port-policy-protocol", named.protocol.name())
        .and("port-name", &named.name)
        .and("port", number)
}

fn nodes_ids() -> Ids {
    Ids::new("Cluster", "clusterPortGroup".to_owned())
}

fn nodes_set_ids(family: Family) -> Ids {
    Ids::new("Cluster", "managementPorts".to_owned()).and("ip-family", family.name())
}

/// The port group of the pods of a namespace that are isolated in a direction.
pub fn isolated_group(namespace: &str, direction: Direction) -> Name {
    hashed(&isolated_ids(namespace, direction).id()).into()
}

/// The port group of the pods that a policy selects.
pub fn policy_group(namespace: &str, name: &str) -> Name {
    hashed(&policy_ids(namespace, name).id()).into()
}

/// The port group of those of them that give a port this number.
pub fn named_group(namespace: &str, name: &str, named: &NamedPort, number: u16) -> Name {
    hashed(&named_ids(namespace, name, named, number).id()).into()
}

fn nodes_group() -> Name {
    hashed(&nodes_ids().id()).into()
}

/// The places of the management port of a node with these subnets.
pub fn node_members(node: &str, subnets: &[IpNet]) -> BTreeSet<Member> {
    let addresses = subnets.iter().map(|subnet| nth(*subnet, 2).addr());
    let addresses = addresses.map(|address| {
        let set = hashed(&nodes_set_ids(Family::of(address)).id());
        member(Table::AddressSet, set.into(), address.to_string().into())
    });
    let port = member(
        Table::PortGroup,
        nodes_group(),
        format!("k8s-{node}").into(),
    );
    let is_there = !subnets.is_empty();
    addresses.chain(is_there.then_some(port)).collect()
}

/// Shared by all policies: the nodes' management ports, from which kubelets reach their pods.
pub fn nodes() -> Vec<Row> {
    let sets = Family::BOTH.map(|family| row(Table::AddressSet, nodes_set_ids(family)));
    [row(Table::PortGroup, nodes_ids())]
        .into_iter()
        .chain(sets)
        .collect()
}

/// A namespace with policies that isolate in these directions.
pub fn namespace(namespace: &str, directions: &BTreeSet<Direction>) -> Vec<Row> {
    let mut rows = Vec::new();
    for &direction in directions {
        let ids = || isolated_ids(namespace, direction);
        let group = isolated_group(namespace, direction);
        rows.push(row(Table::PortGroup, ids()));
        let mut add = |kind: &str, action: &str, priority: u16, more: &str| {
            let name = format!("NP:{namespace}:{direction}");
            let ids = ids().and("type", kind);
            rows.push(acl(
                (&group, &group, direction),
                (action, priority),
                more,
                &name,
                ids,
            ));
        };
        add("defaultDeny", "drop", DROP, "");
        add("arpAllow", "allow", DROP + 1, "(arp || nd)");
        if direction == Direction::Ingress {
            for hairpin in HAIRPIN {
                add("hairpinAllow", "allow-related", DROP + 1, hairpin);
            }
            // From the pod's own node alone: what comes from others enters by the router.
            for family in Family::BOTH {
                let set = hashed(&nodes_set_ids(family).id());
                let from_node = format!(
                    "inport == @{} && {}.src == ${set}",
                    nodes_group(),
                    family.field()
                );
                add("nodeAllow", "allow-related", DROP + 1, &from_node);
            }
        }
    }
    rows
}

/// What a policy needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compiled {
    /// Its own rows: the first is the port group of the pods that it selects, if it has rules.
    pub rows: Vec<Row>,
    /// The sets of pods that its rules name.
    pub sets: BTreeSet<PeerSet>,
    /// The numbers of named ports for which it has port groups.
    pub named: BTreeSet<(NamedPort, u16)>,
}

impl Compiled {
    /// Whether it has the port group of the pods that it selects.
    fn has_group(&self, group: &str) -> bool {
        self.rows.first().is_some_and(|row| row.name == *group)
    }
}

/// The numbers that containers give a port: of the pods that a policy selects (None), or of those
/// in a set.
pub type Numbers<'a> = &'a dyn Fn(Option<&PeerSet>, &NamedPort) -> BTreeSet<u16>;

/// The rows of a policy.
pub fn policy(namespace: &str, name: &str, policy: &Policy, numbers: Numbers<'_>) -> Compiled {
    let mut compiler = Compiler {
        policy: (namespace, name),
        numbers,
        found: Compiled::default(),
    };
    for direction in Direction::BOTH {
        compiler.rules(direction, policy.rules(direction).unwrap_or_default());
    }
    compiler.found
}

struct Compiler<'a> {
    policy: (&'a str, &'a str),
    numbers: Numbers<'a>,
    found: Compiled,
}

impl Compiler<'_> {
    fn rules(&mut self, direction: Direction, rules: &[Rule]) {
        // Equal peers are one rule: a set that is in several ACLs of a group multiplies flows.
        let mut by_peers: BTreeMap<_, (usize, Option<BTreeSet<Ports>>)> = BTreeMap::new();
        for (index, rule) in rules.iter().enumerate() {
            let merged = by_peers.entry(rule.peers.as_ref());
            let (_, all) = merged.or_insert_with(|| (index, Some(BTreeSet::new())));
            match (all.as_mut(), &rule.ports) {
                (Some(all), Some(ports)) => all.extend(ports.iter().cloned()),
                _ => *all = None,
            }
        }
        for (peers, (index, allowed)) in by_peers {
            self.rule(direction, index, peers, allowed.as_ref());
        }
    }

    fn rule(
        &mut self,
        direction: Direction,
        index: usize,
        peers: Option<&BTreeSet<Peer>>,
        allowed: Option<&BTreeSet<Ports>>,
    ) {
        let (namespace, name) = self.policy;
        let group = policy_group(namespace, name);
        let from_peers = self.peers(direction, peers);
        for (protocol, l4) in ports(allowed) {
            for (kind, peer) in &from_peers {
                self.allow(direction, index, &group, (kind, peer), (protocol, &l4));
            }
        }
        for named in allowed.into_iter().flatten() {
            let Ports::Named(named) = named else {
                continue;
            };
            match direction {
                Direction::Ingress => {
                    for number in (self.numbers)(None, named) {
                        let group = named_group(namespace, name, named, number);
                        if self.found.named.insert((named.clone(), number)) {
                            let ids = named_ids(namespace, name, named, number);
                            self.found.rows.push(row(Table::PortGroup, ids));
                        }
                        let l4 = matching::port(named.protocol, number);
                        for (kind, peer) in &from_peers {
                            let of = (named.protocol.name(), &*l4);
                            self.allow(direction, index, &group, (kind, peer), of);
                        }
                    }
                }
                Direction::Egress => {
                    let mut set = PeerSet::named(peers.cloned(), named.clone(), 0);
                    for number in (self.numbers)(Some(&set), named) {
                        set = PeerSet::named(peers.cloned(), named.clone(), number);
                        let l4 = matching::port(named.protocol, number);
                        for (kind, peer) in self.set(direction, set.clone()) {
                            let of = (named.protocol.name(), &*l4);
                            self.allow(direction, index, &group, (&kind, &peer), of);
                        }
                    }
                }
            }
        }
    }

    /// A match for each kind of peer: one set or one list of networks, and one family. Several of
    /// them joined in one ACL would be processed as a whole for each change of the set.
    fn peers(
        &mut self,
        direction: Direction,
        peers: Option<&BTreeSet<Peer>>,
    ) -> Vec<(String, String)> {
        let Some(peers) = peers else {
            return vec![("any".to_owned(), String::new())];
        };
        let mut found = Vec::new();
        if let Some(set) = PeerSet::of(peers) {
            found.extend(self.set(direction, set));
        }
        found.extend(blocks(direction, peers));
        found
    }

    fn set(&mut self, direction: Direction, set: PeerSet) -> Vec<(String, String)> {
        let id = set.id();
        let all = Family::BOTH.map(|family| {
            let field = matching::address(direction, family);
            let of = format!("{field} == ${}", set_name(&id, family));
            (format!("pods-{}", family.name()), of)
        });
        self.found.sets.insert(set);
        all.into()
    }

    fn allow(
        &mut self,
        direction: Direction,
        index: usize,
        group: &str,
        (kind, peer): (&str, &str),
        (protocol, l4): (&str, &str),
    ) {
        let (namespace, name) = self.policy;
        let own = policy_group(namespace, name);
        if group == own && !self.found.has_group(&own) {
            let ids = policy_ids(namespace, name);
            self.found.rows.insert(0, row(Table::PortGroup, ids));
        }
        let more: Vec<&str> = [peer, l4].into_iter().filter(|it| !it.is_empty()).collect();
        let more = match more.is_empty() {
            true => "ip".to_owned(),
            false => more.join(" && "),
        };
        let ids = policy_ids(namespace, name)
            .and("direction", direction)
            .and("gress-index", index)
            .and("port-policy-protocol", protocol)
            .and("peers", kind);
        let acl_name = format!("NP:{namespace}:{name}:{direction}:{index}");
        let action = ("allow-related", DROP + 1);
        let row = acl((group, group, direction), action, &more, &acl_name, ids);
        self.found.rows.push(row);
    }
}

/// The rows of a set of peers.
fn peers(id: &str, set: &PeerSet) -> Vec<Row> {
    let rows = Family::BOTH.map(|family| {
        let mut row = row(Table::AddressSet, set.ids(family));
        row.name = set_name(id, family).to_string();
        row
    });
    rows.into()
}

/// A row with the name that ovn-kubernetes gives it.
fn row(table: Table, ids: Ids) -> Row {
    let mut row = Row::new(table, hashed(&ids.id()));
    row.external_ids = ids.external_ids();
    row
}

/// An ACL of a port group, for what leads to its members, or what comes from them.
fn acl(
    (holder, group, direction): (&str, &str, Direction),
    (action, priority): (&str, u16),
    more: &str,
    name: &str,
    ids: Ids,
) -> Row {
    let (port, lport) = match direction {
        Direction::Ingress => ("outport", "to-lport"),
        Direction::Egress => ("inport", "from-lport"),
    };
    let joined = if more.is_empty() { "" } else { " && " };
    let options: &[(&str, &str)] = match direction {
        // It sees a service's endpoint.
        Direction::Egress => &[("apply-after-lb", "true")],
        Direction::Ingress => &[],
    };
    let end = name.len().min(NAME);
    let mut row = unlogged(Row::new(Table::Acl, ""))
        .set("name", &name[..end])
        .set("direction", lport)
        .set("priority", i64::from(priority))
        .set("match", format!("{port} == @{group}{joined}{more}"))
        .set("action", action)
        .set("options", Value::map(options.iter().copied()))
        .under(Table::PortGroup, holder, "acls");
    row.external_ids = ids.external_ids();
    row
}
