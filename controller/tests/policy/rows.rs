//! The rows of a world, and what OVN would make of them: a small interpreter of ACLs.

mod matching;
mod northbound;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;

use podwire_cluster::service::Protocol;
use podwire_cluster::{Name, ObjectName, api};
use podwire_controller::cluster::Pod;
use podwire_controller::cluster::policy::{Direction, Policy};
use podwire_controller::cluster::tiered::Tiered;
use podwire_controller::key::{Key, Of};
use podwire_controller::want::Row;
use podwire_controller::want::policy::{
    Connection, Namespaces, Policies, Subject, candidate, tiered_door,
};
use podwire_ovs::nb::Table;
use podwire_ovs::value::Value;

use matching::{Parser, tokens};

use crate::world::{Packet, World};

#[derive(Default)]
pub(crate) struct Rows {
    policies: Policies,
    applied: BTreeSet<ObjectName>,
    of_cluster: BTreeSet<Key>,
    pods: BTreeMap<ObjectName, Pod>,
    ports: BTreeMap<IpAddr, ObjectName>,
    namespaces: Namespaces,
    rows: BTreeMap<Subject, Vec<Row>>,
    /// Those that all policies of the whole cluster share.
    shared: Vec<Row>,
    /// The ACLs, as they are evaluated.
    acls: Vec<Acl>,
    /// All groups and sets, and all members.
    made: HashSet<String>,
    places: HashSet<(Name, Name)>,
    /// Of each pod: its groups, and the sets with its addresses.
    members: Members,
}

/// An ACL, ready to be evaluated.
struct Acl {
    direction: String,
    tier: i64,
    priority: i64,
    action: String,
    tokens: Vec<String>,
}

type Members = BTreeMap<ObjectName, BTreeSet<(Name, Name)>>;

impl PartialEq for Rows {
    fn eq(&self, other: &Self) -> bool {
        self.shown() == other.shown()
    }
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&self.shown(), f)
    }
}

impl Rows {
    pub(crate) fn of(world: &World) -> Self {
        let mut rows = Self::default();
        rows.change(world);
        rows
    }

    fn shown(&self) -> (&BTreeMap<Subject, Vec<Row>>, &Members) {
        (&self.rows, &self.members)
    }

    /// As the controller does: only what is told to have changed is computed again.
    pub(crate) fn change(&mut self, world: &World) {
        let mut changed = BTreeSet::new();
        let namespaces: Namespaces = world
            .namespaces
            .iter()
            .map(|(name, labels)| {
                let labels = serde_json::from_value(labels.clone()).unwrap();
                (name.as_str().into(), labels)
            })
            .collect();
        let of_changed = |name: &Name| namespaces.get(name) != self.namespaces.get(name);
        let pods = world.pods.iter();
        let pods = pods.map(|pod| (Name::from(&*pod.namespace), Name::from(&*pod.name)));
        changed.extend(
            pods.clone()
                .filter(|(ns, _)| of_changed(ns))
                .map(Subject::Pod),
        );
        if namespaces != self.namespaces {
            self.policies.namespace_changed();
        }
        self.namespaces = namespaces;

        let present: BTreeSet<ObjectName> = pods.collect();
        let gone: Vec<_> = self
            .pods
            .keys()
            .filter(|id| !present.contains(*id))
            .cloned()
            .collect();
        for id in gone {
            let before = self.pods.remove(&id);
            self.policies
                .pod_changed(before.as_ref().map(|pod| &pod.selected), None);
            changed.insert(Subject::Pod(id));
        }
        for pod in &world.pods {
            let id = (Name::from(&*pod.namespace), Name::from(&*pod.name));
            let object: api::Pod = serde_json::from_value(pod.object.clone()).unwrap();
            let after = Pod::of(&object).unwrap();
            let before = self.pods.insert(id.clone(), after.clone());
            let selected = before.as_ref().map(|pod| &pod.selected);
            self.policies.pod_changed(selected, Some(&after.selected));
            if before.as_ref() != Some(&after) {
                changed.insert(Subject::Pod(id.clone()));
            }
            self.ports
                .extend(pod.addresses.map(|address| (address, id.clone())));
        }

        if self.policies.has_tiers() != world.has_tiers {
            self.policies.set_has_tiers(world.has_tiers);
        }
        self.shared = match world.has_tiers {
            true => tiered_door(),
            false => Vec::new(),
        };
        let (mut applied, mut of_cluster) = (BTreeSet::new(), BTreeSet::new());
        for policy in world.policies.as_array().unwrap() {
            if policy["kind"] != "NetworkPolicy" {
                let (key, tiered) = tiered(policy);
                let is_refused = !policy["metadata"]["labels"]["refused"].is_null();
                assert_eq!(tiered.content.is_err(), is_refused, "{:?}", tiered.content);
                self.policies.set_tiered(key.clone(), tiered.content.ok());
                of_cluster.insert(key);
                continue;
            }
            let policy: api::NetworkPolicy = serde_json::from_value(policy.clone()).unwrap();
            let meta = &policy.metadata;
            let id = (Name::from(&*meta.namespace), Name::from(&*meta.name));
            self.policies.set(id.clone(), Policy::of(&policy));
            applied.insert(id);
        }
        for id in self.applied.difference(&applied) {
            self.policies.set(id.clone(), None);
        }
        self.applied = applied;
        for key in self.of_cluster.difference(&of_cluster) {
            self.policies.set_tiered(key.clone(), None);
        }
        self.of_cluster = of_cluster;
        changed.extend(self.policies.refresh(&self.pods, &self.namespaces));
        for subject in changed {
            let rows = match &subject {
                Subject::Namespace(name) => self.policies.namespace_rows(name, false),
                Subject::Peers(id) => self.policies.peers_rows(id),
                Subject::Policy(id) => self.policies.policy_rows(id).to_vec(),
                Subject::Tiered(key) => self.policies.tiered_rows(key).to_vec(),
                Subject::Pod(id) => {
                    self.contribute(world, id);
                    continue;
                }
            };
            match rows.is_empty() {
                true => self.rows.remove(&subject),
                false => self.rows.insert(subject, rows),
            };
        }
        let nodes = podwire_controller::want::policy::nodes();
        let all = self
            .rows
            .values()
            .flatten()
            .chain(&self.shared)
            .chain(&nodes);
        let groups = all.filter(|row| row.table != Table::Acl);
        self.made = groups.map(|row| row.name.clone()).collect();
        self.places = self.members.values().flatten().cloned().collect();
        let acls = self.acls().map(|acl| Acl {
            direction: text(acl, "direction").to_owned(),
            tier: self.tier(acl),
            priority: value(acl, "priority").as_integer().unwrap(),
            action: text(acl, "action").to_owned(),
            tokens: tokens(text(acl, "match")),
        });
        self.acls = acls.collect();
    }

    fn contribute(&mut self, world: &World, id: &ObjectName) {
        let Some(pod) = self.pods.get(id) else {
            self.members.remove(id);
            return;
        };
        let mut all = world.pods.iter();
        let own = all.find(|it| (it.namespace.as_str(), it.name.as_str()) == (&id.0, &id.1));
        let candidate = candidate(id, pod, &self.namespaces);
        let members = {
            let port = format!("{}_{}", candidate.namespace, candidate.name).into();
            self.policies
                .members(&candidate, &port, &own.unwrap().addresses)
        };
        let members = members
            .into_iter()
            .map(|it| (it.group.name, it.member))
            .collect();
        self.members.insert(id.clone(), members);
    }

    /// The rows without what tells them apart in time: tables, names and columns.
    pub(crate) fn shapes(&self) -> Vec<&Row> {
        self.rows.values().flatten().collect()
    }

    /// Whether no ACL has what makes OVN process a changed set as a whole.
    pub(crate) fn is_lean(&self) -> bool {
        self.acls().all(|acl| {
            let text = text(acl, "match");
            let mut clauses = text.split("||");
            let is_once = |clause: &str, field: &str| clause.matches(field).count() <= 1;
            !text.contains("!=")
                && clauses.all(|it| is_once(it, ".src == $") && is_once(it, ".dst == $"))
        })
    }

    /// Those of policies, and what policies of the whole cluster let pass before them.
    fn acls(&self) -> impl Iterator<Item = &Row> {
        let all = self.rows.values().flatten().chain(&self.shared);
        all.filter(|row| row.table == Table::Acl)
    }

    pub(crate) fn passes(&self, packet: &Packet) -> bool {
        ["from-lport", "to-lport"]
            .iter()
            .all(|direction| self.evaluate(direction, packet))
    }

    /// As OVN does: in the first tier in which an ACL decides.
    fn evaluate(&self, direction: &str, packet: &Packet) -> bool {
        let ports = (self.ports.get(&packet.from), self.ports.get(&packet.to));
        let own = self.acls.iter().filter(|acl| acl.direction == direction);
        let matching = own.filter(|acl| {
            let mut parser = Parser {
                rows: self,
                packet,
                ports,
                left: &acl.tokens,
            };
            let found = parser.any();
            assert!(parser.left.is_empty(), "{:?}", acl.tokens);
            found
        });
        let matching: Vec<&Acl> = matching.collect();
        for tier in 0..=3 {
            let own = matching.iter().filter(|acl| acl.tier == tier);
            let Some(highest) = own.clone().map(|acl| acl.priority).max() else {
                continue;
            };
            let best = own.filter(|acl| acl.priority == highest);
            let actions: BTreeSet<&str> = best.map(|acl| &*acl.action).collect();
            assert_eq!(actions.len(), 1, "OVN may choose: {packet:?}");
            match actions.first().copied().unwrap() {
                "drop" => return false,
                "pass" => {}
                "allow" | "allow-related" => return true,
                other => panic!("{other}"),
            }
        }
        true
    }

    fn tier(&self, acl: &Row) -> i64 {
        let tier = acl.value("tier");
        assert_eq!(tier.is_some(), self.policies.has_tiers(), "{acl:?}");
        tier.map_or(0, |tier| tier.as_integer().unwrap())
    }

    /// Whether no verdict of either end's policies denies it.
    pub(crate) fn explained(&self, packet: &Packet) -> bool {
        let candidate = |address: IpAddr| {
            let (id, pod) = self.pods.get_key_value(self.ports.get(&address)?)?;
            Some(candidate(id, pod, &self.namespaces))
        };
        let protocol = Protocol::named(packet.protocol).unwrap();
        let ends = [
            (Direction::Egress, packet.from, packet.to),
            (Direction::Ingress, packet.to, packet.from),
        ];
        ends.into_iter().all(|(direction, own, address)| {
            let Some(pod) = candidate(own) else {
                return true;
            };
            let connection = Connection {
                pod,
                other: candidate(address),
                address,
                port: Some((protocol, packet.port)),
            };
            !self.policies.verdict(direction, &connection).is_denied()
        })
    }

    fn is_member(&self, group: &str, member: &str) -> bool {
        assert!(self.made.contains(group), "{group}");
        self.places.contains(&(group.into(), member.into()))
    }
}

fn tiered(policy: &serde_json::Value) -> (Key, Tiered) {
    let name = policy["metadata"]["name"].as_str().unwrap();
    let (of, tiered) = match policy["kind"].as_str().unwrap() {
        "ClusterNetworkPolicy" => (
            Of::ClusterPolicy,
            Tiered::of_cluster(&serde_json::from_value(policy.clone()).unwrap()),
        ),
        "AdminNetworkPolicy" => (
            Of::AdminPolicy,
            Tiered::of_admin(&serde_json::from_value(policy.clone()).unwrap()),
        ),
        _ => (
            Of::BaselinePolicy,
            Tiered::of_baseline(&serde_json::from_value(policy.clone()).unwrap()),
        ),
    };
    (Key::named(of, name.into()), tiered)
}

fn value<'r>(row: &'r Row, column: &str) -> &'r Value {
    let value = row.value(column);
    value.unwrap_or_else(|| panic!("{row:?} without {column}"))
}

fn text<'r>(row: &'r Row, column: &str) -> &'r str {
    value(row, column).as_str().unwrap()
}
