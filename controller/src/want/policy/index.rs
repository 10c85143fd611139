//! All policies, and what depends on which.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use podwire_cluster::{Labels, Name, ObjectName, Selectors};
use podwire_ovs::nb::Table;

use super::compile::{Compiled, policy};
use super::matching::Family;
use super::members::{Pods, members_of, numbers_of, set_name};
use super::tiers::{NETWORK_POLICY, Tiers};
use super::{Candidate, PeerSet, at_tier, isolated_group};
use crate::cluster::policy::{Direction, NamedPort, Policy, Selected};
use crate::cluster::tiered::Content;
use crate::cluster::{Pod, of_namespace};
use crate::key::{Key, Network, Of};
use crate::members::{Group, Member};
use crate::want::Row;

/// The labels of all namespaces.
pub type Namespaces = BTreeMap<Name, Labels>;

/// Policies with their rows.
type Known = BTreeMap<ObjectName, (Policy, Compiled)>;

/// Policies, and none for those that are gone.
type Changed = BTreeMap<ObjectName, Option<Policy>>;

/// All policies with their rows.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    /// The network on which they apply.
    network: Network,
    known: Known,
    /// The sets of all rules, by their ids, each with the number of policies that use it.
    sets: BTreeMap<Name, (PeerSet, usize)>,
    /// Their ids by the pods that they can have.
    by_pods: Selectors<Name>,
    /// Those whose rows depend on the numbers of ports that pods name.
    with_names: BTreeMap<Name, BTreeSet<ObjectName>>,
    /// What changed since [`Policies::refresh`].
    changed: Changed,
    /// Whether OVN has tiers of ACLs.
    has_tiers: bool,
    /// Policies of the whole cluster, none without tiers.
    pub(super) tiers: Tiers,
}

/// What has rows, or members, because of policies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A namespace: its groups of isolated pods.
    Namespace(Name),
    /// A set of peers, by its id.
    Peers(Name),
    /// A policy.
    Policy(ObjectName),
    /// A policy of the whole cluster.
    Tiered(Key),
    /// A pod, which is a member.
    Pod(ObjectName),
}

impl Subject {
    /// The key of its rows on a network. Pods and namespaces have one key for all.
    pub fn key(self, network: &Network) -> Key {
        let on = |key: Key| key.on(network.clone());
        match self {
            Self::Namespace(name) => Key::named(Of::Namespace, name),
            Self::Peers(id) => on(Key::named(Of::Peers, id)),
            Self::Policy(id) => on(Key::object(Of::Policy, id)),
            Self::Tiered(key) => on(key),
            Self::Pod(id) => Key::pod(id),
        }
    }
}

impl Policies {
    /// None yet, on a network.
    pub fn on(network: Network, has_tiers: bool) -> Self {
        Self {
            network,
            has_tiers,
            ..Self::default()
        }
    }

    /// Sets a policy, or removes it.
    pub fn set(&mut self, name: ObjectName, policy: Option<Policy>) {
        self.changed.insert(name, policy);
    }

    /// Sets a policy of the whole cluster, or removes it. OVN must have tiers.
    pub fn set_tiered(&mut self, key: Key, content: Option<Content>) {
        self.tiers.set(key, content);
    }

    /// Whether OVN has tiers of ACLs.
    pub fn has_tiers(&self) -> bool {
        self.has_tiers
    }

    /// Sets whether OVN has tiers of ACLs: all rows may be others.
    pub fn set_has_tiers(&mut self, has_tiers: bool) {
        self.has_tiers = has_tiers;
        again(&self.known, &mut self.changed, self.known.keys());
    }

    /// A policy.
    pub fn get(&self, name: &ObjectName) -> Option<&Policy> {
        let known = self.known.get(name).map(|(policy, _)| policy);
        self.changed.get(name).map_or(known, Option::as_ref)
    }

    /// The policies of a namespace.
    pub fn of(&self, namespace: &str) -> impl Iterator<Item = (&Name, &Policy)> {
        self.compiled(namespace)
            .map(|(name, policy, _)| (name, policy))
    }

    fn compiled(&self, namespace: &str) -> impl Iterator<Item = (&Name, &Policy, &Compiled)> {
        let own = of_namespace(&self.known, namespace);
        own.map(|((_, name), (policy, compiled))| (name, policy, compiled))
    }

    /// Everything that has rows.
    pub fn subjects(&self) -> impl Iterator<Item = Subject> {
        let policies = self.known.keys().flat_map(|id| {
            [
                Subject::Namespace(id.0.clone()),
                Subject::Policy(id.clone()),
            ]
        });
        let sets = self.sets.keys().cloned().map(Subject::Peers);
        policies.chain(self.tiers.subjects()).chain(sets)
    }

    /// A pod changed: the rows of policies that name a port of its may be others.
    pub fn pod_changed(&mut self, before: Option<&Selected>, after: Option<&Selected>) {
        if before == after {
            return;
        }
        let ports = before.into_iter().chain(after).flat_map(|it| &it.ports);
        let names: BTreeSet<&Name> = ports.map(|(named, _)| &named.name).collect();
        let ids = names.iter().filter_map(|name| self.with_names.get(*name));
        again(&self.known, &mut self.changed, ids.flatten());
        self.tiers.again(Some(&names));
    }

    /// The labels of a namespace changed: what policies make of the ports that pods name may be
    /// others.
    pub fn namespace_changed(&mut self) {
        let ids = self.with_names.values().flatten();
        again(&self.known, &mut self.changed, ids);
        self.tiers.again(None);
    }

    /// Brings the rows in line with what changed. Returns those whose rows or members differ.
    pub fn refresh(&mut self, pods: &Pods, namespaces: &Namespaces) -> BTreeSet<Subject> {
        let mut keys = BTreeSet::new();
        for (id, policy) in std::mem::take(&mut self.changed) {
            let namespace = &id.0;
            let compiled = policy.map(|policy| {
                let mut compiled = compile(&id, &policy, &self.network, pods, namespaces);
                self.at_tier(&mut compiled.rows);
                (policy, compiled)
            });
            let before = self.known.remove(&id);
            if before == compiled {
                self.known.extend(compiled.map(|it| (id, it)));
                continue;
            }
            keys.insert(Subject::Namespace(namespace.clone()));
            keys.insert(Subject::Policy(id.clone()));
            let selectors = before
                .iter()
                .chain(&compiled)
                .map(|(policy, _)| &policy.selector);
            let selectors: Vec<_> = selectors.collect();
            let own = of_namespace(pods, namespace);
            let own =
                own.filter(|(_, pod)| selectors.iter().any(|it| it.matches(&pod.selected.labels)));
            keys.extend(own.map(|(id, _)| Subject::Pod(id.clone())));

            let none = BTreeSet::new();
            let sets = |it: &Option<(Policy, Compiled)>| {
                it.as_ref()
                    .map_or(none.clone(), |(_, compiled)| compiled.sets.clone())
            };
            let (old, new) = (sets(&before), sets(&compiled));
            self.exchange([old, new], (pods, namespaces), &mut keys);
            for named in before.iter().flat_map(|(policy, _)| policy.named_ports()) {
                if let Entry::Occupied(mut ids) = self.with_names.entry(named.name.clone()) {
                    ids.get_mut().remove(&id);
                    if ids.get().is_empty() {
                        ids.remove();
                    }
                }
            }
            for named in compiled.iter().flat_map(|(policy, _)| policy.named_ports()) {
                let ids = self.with_names.entry(named.name.clone()).or_default();
                ids.insert(id.clone());
            }
            self.known.extend(compiled.map(|it| (id, it)));
        }
        for change in self.tiers.refresh(&self.network, pods, namespaces) {
            keys.extend(change.subjects);
            self.exchange(change.sets, (pods, namespaces), &mut keys);
        }
        keys
    }

    /// A policy uses other sets than before: adds those whose rows or members differ.
    fn exchange(
        &mut self,
        [old, new]: [BTreeSet<PeerSet>; 2],
        (pods, namespaces): (&Pods, &Namespaces),
        keys: &mut BTreeSet<Subject>,
    ) {
        for set in new.symmetric_difference(&old) {
            let is_first_or_last = match new.contains(set) {
                true => self.add(set),
                false => self.drop(set),
            };
            if is_first_or_last {
                keys.extend(members_of(set, pods, namespaces));
                keys.insert(Subject::Peers(set.id(&self.network)));
            }
        }
    }

    fn at_tier(&self, rows: &mut [Row]) {
        if self.has_tiers {
            at_tier(rows, NETWORK_POLICY);
        }
    }

    /// Whether it is the first use of a set.
    fn add(&mut self, set: &PeerSet) -> bool {
        let id = set.id(&self.network);
        let (_, users) = self.sets.entry(id.clone()).or_insert((set.clone(), 0));
        *users += 1;
        let is_first = *users == 1;
        if is_first {
            self.by_pods.insert(&id, set.places());
        }
        is_first
    }

    /// Whether it was the last use.
    fn drop(&mut self, set: &PeerSet) -> bool {
        let id = set.id(&self.network);
        let Some((_, users)) = self.sets.get_mut(&id) else {
            return false;
        };
        *users -= 1;
        if *users > 0 {
            return false;
        }
        self.sets.remove(&id);
        self.by_pods.remove(&id, set.places());
        true
    }

    /// The rows of a policy.
    pub fn policy_rows(&self, id: &ObjectName) -> &[Row] {
        self.known
            .get(id)
            .map_or(&[], |(_, compiled)| &compiled.rows)
    }

    /// The rows of a policy of the whole cluster.
    pub fn tiered_rows(&self, key: &Key) -> &[Row] {
        self.tiers.rows(key)
    }

    /// All policies of the whole cluster that are applied.
    pub fn tiered(&self) -> impl Iterator<Item = (&Key, &Content)> {
        self.tiers.all()
    }

    /// The sets of a policy.
    pub fn sets_of(&self, key: &Key) -> impl Iterator<Item = &PeerSet> {
        let sets = match key.of {
            Of::Policy => self.known.get(&key.id()).map(|(_, it)| &it.sets),
            _ => self.tiers.sets(key),
        };
        sets.into_iter().flatten()
    }

    /// The rows of a set.
    pub fn peers_rows(&self, id: &Name) -> Vec<Row> {
        let set = self.sets.get(id);
        set.map_or_else(Vec::new, |(set, _)| super::peers(id, set, &self.network))
    }

    /// The rows of a namespace, which is there, or which policies name nevertheless.
    pub fn namespace_rows(&self, namespace: &str, is_there: bool) -> Vec<Row> {
        let isolates = |direction: &Direction| {
            self.of(namespace)
                .any(|(_, policy)| policy.rules(*direction).is_some())
        };
        let directions: BTreeSet<Direction> =
            Direction::BOTH.into_iter().filter(isolates).collect();
        let mut rows = match directions.is_empty() && !is_there {
            true => Vec::new(),
            false => super::namespace_groups(namespace),
        };
        rows.extend(super::namespace(namespace, &directions));
        self.at_tier(&mut rows);
        rows
    }

    /// The groups and sets in which a pod with this port and these addresses should be.
    pub fn members(
        &self,
        pod: &Candidate<'_>,
        port: &Name,
        addresses: &[IpAddr],
    ) -> BTreeSet<Member> {
        let mut found = BTreeSet::new();
        let namespace = pod.namespace;
        let group = |name| member(Table::PortGroup, name, port.clone());
        for (_, policy, compiled) in self.compiled(namespace) {
            if !policy.selector.matches(&pod.selected.labels) {
                continue;
            }
            let isolates =
                |it: &Direction| self.network == Network::DEFAULT && policy.rules(*it).is_some();
            let isolating = Direction::BOTH.into_iter().filter(isolates);
            found.extend(isolating.map(|it| group(isolated_group(namespace, it))));
            found.extend(compiled.group.iter().cloned().map(group));
        }
        found.extend(self.tiers.groups(pod).into_iter().map(group));
        let labels = &pod.selected.labels;
        let ids = self
            .by_pods
            .candidates(namespace, pod.namespace_labels, labels);
        let sets = ids.into_iter().filter_map(|id| self.sets.get_key_value(id));
        for (id, (set, _)) in sets {
            found.extend(places(id, set, pod, addresses));
        }
        found
    }

    /// The pods that may be in a set.
    pub fn pods_of(&self, id: &Name, pods: &Pods, namespaces: &Namespaces) -> BTreeSet<Subject> {
        let set = self.sets.get(id);
        set.map_or_else(BTreeSet::new, |(set, _)| members_of(set, pods, namespaces))
    }

    /// The places of a pod with these addresses in a set.
    pub fn places(&self, id: &Name, pod: &Candidate<'_>, addresses: &[IpAddr]) -> Vec<Member> {
        let set = self.sets.get(id);
        let all = set.map(|(set, _)| places(id, set, pod, addresses).collect());
        all.unwrap_or_default()
    }
}

fn places(
    id: &Name,
    set: &PeerSet,
    pod: &Candidate<'_>,
    addresses: &[IpAddr],
) -> impl Iterator<Item = Member> {
    let own = addresses
        .iter()
        .filter(move |address| set.has(pod, **address));
    own.map(move |address| {
        let name = set_name(id, Family::of(*address));
        member(Table::AddressSet, name, address.to_string().into())
    })
}

/// Has policies compiled again that have not changed themselves.
fn again<'a>(known: &Known, changed: &mut Changed, ids: impl Iterator<Item = &'a ObjectName>) {
    for id in ids {
        if let Some((policy, _)) = known.get(id) {
            let same = || Some(policy.clone());
            changed.entry(id.clone()).or_insert_with(same);
        }
    }
}

fn compile(
    (namespace, name): &ObjectName,
    of: &Policy,
    network: &Network,
    pods: &Pods,
    namespaces: &Namespaces,
) -> Compiled {
    let numbers = |set: &PeerSet, named: &NamedPort| numbers_of(set, named, pods, namespaces);
    policy((namespace, name), of, network, &numbers)
}

/// A pod, for [`Policies::members`].
pub fn candidate<'a>(
    (namespace, name): &'a ObjectName,
    pod: &'a Pod,
    namespaces: &'a Namespaces,
) -> Candidate<'a> {
    Candidate {
        namespace,
        name,
        namespace_labels: namespaces.get(namespace),
        selected: &pod.selected,
    }
}

/// A place of a port or an address in a row.
pub(super) fn member(table: Table, name: Name, member: Name) -> Member {
    let group = Group { table, name };
    Member { group, member }
}
