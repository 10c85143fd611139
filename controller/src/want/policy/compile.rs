//! The rows of one policy: its group, and an ACL for each rule.

use std::collections::{BTreeMap, BTreeSet};

use podwire_ovs::nb::Table;

use super::matching::{self, Family, blocks, ports};
use super::members::set_name;
use super::{DROP, Ids, PeerSet, acl, isolating, of_uid, policy_ids, row, tiered_ids};
use crate::cluster::Name;
use crate::cluster::policy::{Direction, NamedPort, Namespaces, Peer, Policy, Ports, Rule};
use crate::cluster::tiered::{Action, Content};
use crate::key::{Key, Network};
use crate::want::Row;

/// What a policy needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compiled {
    /// Its own rows: the first is the port group of the pods that it selects. That stays as long as
    /// the policy, with rules and without: ovn-northd 26.03 loses a group that is deleted and made
    /// again before it looks.
    pub rows: Vec<Row>,
    /// The sets of pods that its rules name.
    pub sets: BTreeSet<PeerSet>,
    /// That group, if it has ACLs: without any it needs no members.
    pub group: Option<Name>,
}

/// The numbers that the containers of the pods in a set give a port.
pub(super) type Numbers<'a> = &'a dyn Fn(&PeerSet, &NamedPort) -> BTreeSet<u16>;

/// The rows of a policy on a network.
pub(super) fn policy(
    (namespace, name): (&str, &str),
    policy: &Policy,
    network: &Network,
    numbers: Numbers<'_>,
) -> Compiled {
    let owner = Owner::Policy(namespace, name, &policy.uid);
    let subject = Peer::Pods {
        namespaces: Namespaces::Own(namespace.into()),
        pods: policy.selector.clone(),
    };
    let mut compiler = Compiler::new(owner, &subject, network, numbers);
    for direction in Direction::BOTH {
        let Some(rules) = policy.rules(direction) else {
            continue;
        };
        // The groups of isolated pods of a namespace are for the default network.
        if *network != Network::DEFAULT {
            compiler.isolate(direction);
        }
        compiler.rules(direction, rules.iter().enumerate());
    }
    compiler.found
}

/// The rows of a policy of the whole cluster on a network.
pub(super) fn tiered(
    key: &Key,
    policy: &Content,
    network: &Network,
    numbers: Numbers<'_>,
) -> Compiled {
    let owner = Owner::Tiered(key, &policy.uid);
    let mut compiler = Compiler::new(owner, &policy.subject, network, numbers);
    for direction in Direction::BOTH {
        for (run, rules) in policy.runs(direction) {
            let action = match rules.first().map(|rule| rule.action) {
                None | Some(Action::Accept) => "allow-related",
                Some(Action::Deny) => "drop",
                Some(Action::Pass) => "pass",
            };
            compiler.verdict = (action, policy.level.priority(run));
            let rules = rules.iter().map(|rule| (rule.number, &rule.matching));
            compiler.rules(direction, rules);
        }
    }
    compiler.found
}

/// Whose rows they are.
#[derive(Clone, Copy)]
enum Owner<'a> {
    /// A NetworkPolicy's, by its namespace, name and uid.
    Policy(&'a str, &'a str, &'a str),
    /// Those of a policy of the whole cluster, with its uid.
    Tiered(&'a Key, &'a str),
}

impl Owner<'_> {
    fn ids(self) -> Ids {
        match self {
            Self::Policy(namespace, name, _) => policy_ids(namespace, name),
            Self::Tiered(key, _) => tiered_ids(key),
        }
    }

    /// The group of its pods.
    fn group_ids(self) -> Ids {
        let (Self::Policy(_, _, uid) | Self::Tiered(_, uid)) = self;
        of_uid(self.ids(), uid)
    }

    /// What its ACLs' names begin with.
    fn name(self) -> String {
        match self {
            Self::Policy(namespace, name, _) => format!("NP:{namespace}:{name}"),
            Self::Tiered(key, _) => {
                let kind = key.of.kind().map_or("", |(_, kind)| kind);
                let initials: String = kind.chars().filter(char::is_ascii_uppercase).collect();
                format!("{initials}:{}", key.name)
            }
        }
    }
}

struct Compiler<'a> {
    owner: Owner<'a>,
    /// The pods that the policy selects.
    subject: &'a Peer,
    network: &'a Network,
    /// Their group.
    group: Name,
    /// Action and priority of the ACLs.
    verdict: (&'static str, u16),
    numbers: Numbers<'a>,
    found: Compiled,
}

impl<'a> Compiler<'a> {
    fn new(
        owner: Owner<'a>,
        subject: &'a Peer,
        network: &'a Network,
        numbers: Numbers<'a>,
    ) -> Self {
        let group = row(Table::PortGroup, owner.group_ids().on(network));
        Self {
            owner,
            subject,
            network,
            group: group.name.as_str().into(),
            verdict: ("allow-related", DROP + 1),
            numbers,
            found: Compiled {
                rows: vec![group],
                ..Compiled::default()
            },
        }
    }

    /// Drops what no rule allows.
    fn isolate(&mut self, direction: Direction) {
        self.found.group = Some(self.group.clone());
        let ids = || {
            let ids = self.owner.ids().on(self.network);
            ids.and("direction", direction)
        };
        let name = format!("{}:{direction}", self.owner.name());
        let of = (&*self.group, self.network);
        let rows = isolating(of, direction, &name, ids);
        self.found.rows.extend(rows);
    }

    /// Rules of which it does not matter which comes first, by their places in the object.
    fn rules<'r>(&mut self, direction: Direction, rules: impl Iterator<Item = (usize, &'r Rule)>) {
        // Equal peers are one rule: a set that is in several ACLs of a group multiplies flows.
        let mut by_peers: BTreeMap<_, (usize, Option<BTreeSet<Ports>>)> = BTreeMap::new();
        for (index, rule) in rules {
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
        let from_peers = self.peers(direction, peers);
        let mut clauses = both(&from_peers, &ports(allowed));
        for named in allowed.into_iter().flatten() {
            let Ports::Named(named) = named else {
                continue;
            };
            match direction {
                Direction::Ingress => {
                    let subject = BTreeSet::from([self.subject.clone()]);
                    let mut set = PeerSet::named(Some(subject.clone()), named.clone(), 0);
                    for number in (self.numbers)(&set, named) {
                        set = PeerSet::named(Some(subject.clone()), named.clone(), number);
                        let l4 = matching::port(named.protocol, number);
                        let to_pods = self.set(Direction::Egress, set);
                        for (family, to_pods) in Family::BOTH.into_iter().zip(&to_pods) {
                            let own = from_peers.iter().filter(|it| family.may_be(it));
                            let own: Vec<String> = own.cloned().collect();
                            clauses.extend(both(&own, &[matching::all([to_pods, &l4])]));
                        }
                    }
                }
                Direction::Egress => {
                    let mut set = PeerSet::named(peers.cloned(), named.clone(), 0);
                    for number in (self.numbers)(&set, named) {
                        set = PeerSet::named(peers.cloned(), named.clone(), number);
                        let to_peers = self.set(direction, set.clone());
                        let l4 = matching::port(named.protocol, number);
                        clauses.extend(both(&to_peers, &[l4]));
                    }
                }
            }
        }
        self.decide(direction, index, &clauses);
    }

    /// A match for each kind of peer: one set or one list of networks, and one family.
    fn peers(&mut self, direction: Direction, peers: Option<&BTreeSet<Peer>>) -> Vec<String> {
        let Some(peers) = peers else {
            return vec![String::new()];
        };
        let mut found = Vec::new();
        if let Some(set) = PeerSet::of(peers) {
            found.extend(self.set(direction, set));
        }
        found.extend(blocks(direction, peers));
        found
    }

    fn set(&mut self, direction: Direction, set: PeerSet) -> [String; 2] {
        let id = set.id(self.network);
        self.found.sets.insert(set);
        Family::BOTH.map(|family| {
            let field = matching::address(direction, family);
            format!("{field} == ${}", set_name(&id, family))
        })
    }

    /// The ACL for what meets any of these, if there are any.
    fn decide(&mut self, direction: Direction, index: usize, clauses: &[String]) {
        if clauses.is_empty() {
            return;
        }
        self.found.group = Some(self.group.clone());
        let ids = self.owner.ids().on(self.network);
        let ids = ids.and("direction", direction).and("gress-index", index);
        let acl_name = format!("{}:{direction}:{index}", self.owner.name());
        let of = (&*self.group, &*self.group, direction);
        let row = acl(of, self.verdict, &matching::any(clauses), &acl_name, ids);
        self.found.rows.push(row);
    }
}

/// Each of some peers with each of some ports.
fn both(peers: &[String], ports: &[String]) -> Vec<String> {
    let with = |peer: &String| {
        let all = ports.iter();
        all.map(|l4| matching::all([peer, l4])).collect::<Vec<_>>()
    };
    peers.iter().flat_map(with).collect()
}
