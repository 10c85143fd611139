//! Policies of the whole cluster. Their ACLs are in tiers of OVN (ACL.tier): what the first one
//! decides is final, and what it passes on comes to NetworkPolicies, and then to the last one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use podwire_cluster::{Name, Selectors};

use super::compile::{Compiled, tiered};
use super::members::{Pods, members_of, numbers_of};
use super::{Candidate, Namespaces, PeerSet, Subject, at_tier, tiered_pods_group};
use crate::cluster::policy::{Direction, NamedPort};
use crate::cluster::tiered::{Action, Content, Level, TieredRule};
use crate::key::{Key, Network};
use crate::want::Row;

/// The tier of what comes before NetworkPolicies.
pub(super) const ADMIN: i64 = 1;
/// The tier of NetworkPolicies. No policy has that of OVN's default, 0.
pub(super) const NETWORK_POLICY: i64 = 2;
/// The tier of what comes after NetworkPolicies.
const BASELINE: i64 = 3;

/// The priority of what passes in any case: above [`Level::priority`].
pub(super) const DOOR: u16 = 32_767;

/// All of them, with their rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Tiers {
    known: BTreeMap<Key, (Content, Compiled)>,
    /// Their keys by the pods that they are for.
    by_subject: Selectors<Key>,
    /// Those whose rows depend on the numbers of ports that pods name.
    with_names: BTreeMap<Name, BTreeSet<Key>>,
    /// What changed since [`Tiers::refresh`].
    changed: BTreeMap<Key, Option<Content>>,
}

/// One that has other rows than before.
pub(super) struct TierChange {
    /// Whose rows or members differ.
    pub(super) subjects: BTreeSet<Subject>,
    /// The sets that its rules name: before and after.
    pub(super) sets: [BTreeSet<PeerSet>; 2],
}

/// One of them with its rules for a direction.
pub(super) type Ranked<'a> = (Level, &'a Key, &'a [TieredRule]);

/// Which rule of such a policy decides about a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Decision {
    /// The policy.
    pub policy: Key,
    /// Its place among others.
    pub level: Level,
    /// The rule, by its number.
    pub rule: usize,
    /// Its name; may be empty.
    pub name: Name,
    /// What it does.
    pub action: Action,
}

impl Level {
    fn tier(self) -> i64 {
        match self {
            Self::Admin(_) => ADMIN,
            Self::Baseline(_) | Self::Last => BASELINE,
        }
    }
}

impl Tiers {
    /// Sets a policy, or removes it.
    pub(super) fn set(&mut self, key: Key, content: Option<Content>) {
        self.changed.insert(key, content);
    }

    /// Everything that has rows.
    pub(super) fn subjects(&self) -> impl Iterator<Item = Subject> {
        self.known.keys().cloned().map(Subject::Tiered)
    }

    /// The rows of a policy.
    pub(super) fn rows(&self, key: &Key) -> &[Row] {
        self.known.get(key).map_or(&[], |(_, it)| &it.rows)
    }

    /// Has those compiled again that name ports with these names, or any.
    pub(super) fn again(&mut self, names: Option<&BTreeSet<&Name>>) {
        let with_names = self.with_names.iter();
        let own = with_names.filter(|(name, _)| names.is_none_or(|names| names.contains(name)));
        for key in own.flat_map(|(_, keys)| keys) {
            if let Some((content, _)) = self.known.get(key) {
                let same = || Some(content.clone());
                self.changed.entry(key.clone()).or_insert_with(same);
            }
        }
    }

    /// Brings the rows in line with what changed.
    pub(super) fn refresh(
        &mut self,
        network: &Network,
        pods: &Pods,
        namespaces: &Namespaces,
    ) -> Vec<TierChange> {
        let mut changes = Vec::new();
        for (key, content) in std::mem::take(&mut self.changed) {
            let after = content.map(|content| {
                let compiled = compile(&key, &content, network, pods, namespaces);
                (content, compiled)
            });
            let before = self.known.remove(&key);
            if before == after {
                self.known.extend(after.map(|it| (key, it)));
                continue;
            }
            let mut subjects = BTreeSet::from([Subject::Tiered(key.clone())]);
            for (content, _) in before.iter().chain(&after) {
                subjects.extend(members_of(&subject(content), pods, namespaces));
            }
            if let Some((content, _)) = &before {
                self.by_subject.remove(&key, subject(content).places());
                for named in content.named_ports() {
                    self.with_names
                        .entry(named.name.clone())
                        .or_default()
                        .remove(&key);
                }
                self.with_names.retain(|_, keys| !keys.is_empty());
            }
            if let Some((content, _)) = &after {
                self.by_subject.insert(&key, subject(content).places());
                for named in content.named_ports() {
                    let keys = self.with_names.entry(named.name.clone()).or_default();
                    keys.insert(key.clone());
                }
            }
            let sets = [&before, &after].map(|it| {
                let compiled = it.as_ref().map(|(_, compiled)| &compiled.sets);
                compiled.cloned().unwrap_or_default()
            });
            self.known.extend(after.map(|it| (key, it)));
            changes.push(TierChange { subjects, sets });
        }
        changes
    }

    fn selecting(&self, pod: &Candidate<'_>) -> impl Iterator<Item = (&Key, &Content, &Compiled)> {
        let labels = &pod.selected.labels;
        let keys = self
            .by_subject
            .candidates(pod.namespace, pod.namespace_labels, labels);
        let known = keys
            .into_iter()
            .filter_map(|key| self.known.get_key_value(key));
        let known = known.map(|(key, (content, compiled))| (key, content, compiled));
        known.filter(|(_, content, _)| pod.is_in(&content.subject))
    }

    /// The groups in which a pod's port should be.
    pub(super) fn groups(&self, pod: &Candidate<'_>) -> BTreeSet<Name> {
        let mut found = BTreeSet::new();
        for (_, _, compiled) in self.selecting(pod) {
            if let Some(group) = &compiled.group {
                found.extend([tiered_pods_group(), group.clone()]);
            }
        }
        found
    }

    /// Those with rules for a pod in a direction, before NetworkPolicies and after them. Of several
    /// of one priority OVN chooses; here the first by kind and name.
    pub(super) fn ranked(&self, direction: Direction, pod: &Candidate<'_>) -> [Vec<Ranked<'_>>; 2] {
        let own = self.selecting(pod).filter_map(|(key, content, _)| {
            let rules = content.rules(direction);
            (!rules.is_empty()).then_some((content.level, key, rules))
        });
        let mut own: Vec<Ranked<'_>> = own.collect();
        own.sort_by_key(|(level, key, _)| (*level, *key));
        let own = own.into_iter();
        let (first, last) = own.partition(|(level, ..)| level.tier() == ADMIN);
        [first, last]
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = (&Key, &Content)> {
        self.known.iter().map(|(key, (content, _))| (key, content))
    }

    /// The sets of a policy.
    pub(super) fn sets(&self, key: &Key) -> Option<&BTreeSet<PeerSet>> {
        self.known.get(key).map(|(_, compiled)| &compiled.sets)
    }
}

/// The pods that a policy is for.
fn subject(content: &Content) -> PeerSet {
    PeerSet::selected(content.subject.clone())
}

fn compile(
    key: &Key,
    content: &Content,
    network: &Network,
    pods: &Pods,
    namespaces: &Namespaces,
) -> Compiled {
    let numbers = |set: &PeerSet, named: &NamedPort| numbers_of(set, named, pods, namespaces);
    let mut compiled = tiered(key, content, network, &numbers);
    at_tier(&mut compiled.rows, content.level.tier());
    compiled
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            policy,
            level,
            rule,
            name,
            action,
        } = self;
        let done = match action {
            Action::Accept => "allowed",
            Action::Deny => "denied",
            Action::Pass => "passed on",
        };
        let kind = policy.of.kind().map_or("", |(_, kind)| kind);
        write!(f, "{done} by rule {rule}")?;
        if !name.is_empty() {
            write!(f, " ({name})")?;
        }
        write!(f, " of {kind} {} (tier {})", policy.name, level.tier_name())
    }
}
