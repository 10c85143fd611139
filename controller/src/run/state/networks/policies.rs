//! Policies on other networks than the default one, with the ports and addresses that pods have
//! there. A primary network has those of the namespaces whose pods are there, and those of the
//! whole cluster; a secondary one has the MultiNetworkPolicies that are for it. A peer is a pod of
//! the same network: others do not reach it.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use podwire_cluster::annotations::POLICY_FOR;
use tokio::time::Instant;

use super::super::State;
use super::super::wanted::Effects;
use super::{definition_of, shared};
use crate::cluster::multi::MultiPolicy;
use crate::cluster::network::{Role, Shape};
use crate::cluster::policy::Policy;
use crate::cluster::tiered::Content;
use crate::cluster::{Name, ObjectName, Pod};
use crate::ipam::Assigned;
use crate::key::{Attachment, Key, Network, Of};
use crate::names::{attached_port, pod_port};
use crate::want::policy::Policies;

/// The policies of a network.
#[derive(Debug, Default)]
pub(in crate::run::state) struct Scope {
    policies: Policies,
    /// Whose they are; of one that is not on the network any more, until when.
    namespaces: BTreeMap<Name, Option<Instant>>,
    /// Or which MultiNetworkPolicies.
    multi: BTreeSet<ObjectName>,
    /// Whether those of the whole cluster are among them.
    has_tiered: bool,
}

/// By network.
pub(in crate::run::state) type Scopes = BTreeMap<Network, Scope>;

impl Scope {
    /// Learns a policy of a namespace.
    pub(in crate::run::state) fn learn(&mut self, id: &ObjectName, policy: Option<&Policy>) {
        if self.has(&id.0) {
            self.policies.set(id.clone(), policy.cloned());
        }
    }

    /// Learns a MultiNetworkPolicy.
    pub(in crate::run::state) fn learn_multi(&mut self, id: &ObjectName, it: Option<&MultiPolicy>) {
        if self.multi.contains(id) {
            self.policies
                .set(id.clone(), it.map(|it| it.policy.clone()));
        }
    }

    /// Learns a policy of the whole cluster.
    pub(in crate::run::state) fn learn_tiered(&mut self, key: &Key, content: Option<&Content>) {
        if self.has_tiered {
            self.policies.set_tiered(key.clone(), content.cloned());
        }
    }

    /// Whether policies of a namespace are among them.
    pub(in crate::run::state) fn has(&self, namespace: &Name) -> bool {
        self.namespaces.contains_key(namespace)
    }

    /// Whether some of them have stayed long enough.
    pub(super) fn has_rested(&self) -> bool {
        let now = Instant::now();
        let mut rests = self.namespaces.values().flatten();
        rests.any(|until| *until <= now)
    }
}

/// Those of all networks.
pub(in crate::run::state) fn everywhere<'a>(
    default: &'a mut Policies,
    scopes: &'a mut Scopes,
) -> impl Iterator<Item = &'a mut Policies> {
    iter::once(default).chain(scopes.values_mut().map(|it| &mut it.policies))
}

impl State {
    /// Those of a network, if it has any.
    pub(crate) fn policies_on(&self, network: &Network) -> Option<&Policies> {
        match *network == Network::DEFAULT {
            true => Some(&self.policies),
            false => self.scopes.get(network).map(|it| &it.policies),
        }
    }

    /// The networks on which policies of a namespace, or of the whole cluster, have rows.
    pub(crate) fn networks_of(&self, namespace: &Name) -> Vec<Network> {
        let scopes = self.scopes.iter();
        let own = scopes.filter(|(_, it)| namespace.is_empty() || it.has(namespace));
        let own = own.map(|(network, _)| network.clone());
        iter::once(Network::DEFAULT).chain(own).collect()
    }

    /// What a pod has on its networks: its ports, with their addresses.
    pub(crate) fn places(
        &self,
        id: &ObjectName,
        pod: &Pod,
    ) -> impl Iterator<Item = (Network, Name, &Assigned)> {
        let held = self.networks.of(id).map(|(entry, network)| {
            let (pod, entry) = (id.clone(), entry.clone());
            (network.clone(), Attachment { pod, entry })
        });
        let default = (Network::DEFAULT, Attachment::from(id.clone()));
        iter::once(default)
            .chain(held)
            .filter_map(|(network, own)| {
                let (space, part, port) = match network == Network::DEFAULT {
                    true => (&self.spaces.default, &pod.node, pod_port(id)),
                    false => {
                        let space = self.spaces.others.get(&network)?;
                        let part = self.part(&network, &pod.node);
                        (space, part, attached_port(&own))
                    }
                };
                let is_its = space.addresses.has(&own, (&pod.uid, part));
                let assigned = space.addresses.of(&own).filter(|_| is_its)?;
                Some((network, port.into(), assigned))
            })
    }

    /// That on a network.
    pub(crate) fn place_on(
        &self,
        id: &ObjectName,
        pod: &Pod,
        network: &Network,
    ) -> Option<(Name, &Assigned)> {
        let mut places = self.places(id, pod);
        let (_, port, own) = places.find(|(it, ..)| it == network)?;
        Some((port, own))
    }

    /// Marks what differs since policies of networks changed, or whose they are.
    pub(in crate::run::state) fn refresh_scopes(&mut self) {
        if std::mem::take(&mut self.scopes_changed) {
            self.set_scopes();
        }
        for (network, scope) in &mut self.scopes {
            let (pods, namespaces) = (&self.cluster.pods, &self.cluster.namespaces);
            let changed = scope.policies.refresh(pods, namespaces);
            self.dirty
                .extend(changed.into_iter().map(|it| it.key(network)));
        }
    }

    /// A network has policies as soon as a definition says so: before it has a pod.
    fn set_scopes(&mut self) {
        let live = self.networks.live.iter();
        let primary = live.filter(|(_, shape)| shape.role == Role::Primary);
        let mut wanted: BTreeMap<Network, BTreeSet<Name>> = primary
            .map(|(it, _)| (it.clone(), BTreeSet::new()))
            .collect();
        for ((namespace, _), definition) in &self.cluster.definitions {
            if let Ok((network, shape)) = &definition.network
                && self.role(network, shape) == Role::Primary
            {
                let own = wanted.entry(network.clone()).or_default();
                own.insert(namespace.clone());
            }
        }
        for ((namespace, _), entries) in &self.networks.held {
            for network in entries.values() {
                if let Some(own) = wanted.get_mut(network) {
                    own.insert(namespace.clone());
                }
            }
        }
        let multi = self.multi_by_network();
        for network in wanted.keys().chain(multi.keys()) {
            self.scopes.entry(network.clone()).or_insert_with(|| {
                let has_tiers = self.policies.has_tiers();
                Scope {
                    policies: Policies::on(network.clone(), has_tiers),
                    ..Scope::default()
                }
            });
        }
        let now = Instant::now();
        let (nobody, nothing) = (BTreeSet::new(), BTreeSet::new());
        for (network, scope) in &mut self.scopes {
            // A network may have become a primary one, or one that is not. One that is gone keeps
            // what it has until its namespaces have rested.
            let is_secondary = multi.contains_key(network);
            let has_tiered = wanted.contains_key(network) || (scope.has_tiered && !is_secondary);
            if std::mem::replace(&mut scope.has_tiered, has_tiered) != has_tiered {
                for (key, content) in self.policies.tiered() {
                    let content = has_tiered.then(|| content.clone());
                    scope.policies.set_tiered(key.clone(), content);
                }
            }
            let own = multi.get(network).unwrap_or(&nothing);
            let former = std::mem::replace(&mut scope.multi, own.clone());
            for id in former.symmetric_difference(own) {
                let policy = self.cluster.multi.get(id).filter(|_| own.contains(id));
                scope
                    .policies
                    .set(id.clone(), policy.map(|it| it.policy.clone()));
            }
            let own = wanted.get(network).unwrap_or(&nobody);
            let mut changed = BTreeSet::new();
            for namespace in own {
                if scope.namespaces.insert(namespace.clone(), None).is_none() {
                    changed.insert(namespace.clone());
                }
            }
            // ovn-northd 26.03 loses groups that are made again before it looks.
            let until = now + self.rules.rest;
            scope.namespaces.retain(|namespace, rests| {
                if own.contains(namespace) {
                    return true;
                }
                if rests.is_none() {
                    self.retries.insert((until, shared(network)));
                }
                let stays = *rests.get_or_insert(until) > now;
                if !stays {
                    changed.insert(namespace.clone());
                }
                stays
            });
            for namespace in &changed {
                let is_there = scope.has(namespace);
                for (name, policy) in self.policies.of(namespace) {
                    let id = (namespace.clone(), name.clone());
                    scope.policies.set(id, is_there.then(|| policy.clone()));
                }
            }
        }
        self.scopes.retain(|network, scope| {
            let is_wanted = wanted.contains_key(network) || multi.contains_key(network);
            let stays = is_wanted || !scope.namespaces.is_empty();
            if !stays {
                let subjects = scope.policies.subjects();
                self.dirty.extend(subjects.map(|it| it.key(network)));
            }
            stays
        });
        if !std::mem::take(&mut self.networks.turned).is_empty() {
            self.unblock();
        }
    }

    /// What exists wins.
    fn role(&self, network: &Network, defined: &Shape) -> Role {
        self.networks.live.get(network).unwrap_or(defined).role
    }

    /// The MultiNetworkPolicies of secondary networks. Pods stay on a network whose definition is
    /// gone, and with them what is for that.
    fn multi_by_network(&self) -> BTreeMap<Network, BTreeSet<ObjectName>> {
        let mut found: BTreeMap<Network, BTreeSet<ObjectName>> = BTreeMap::new();
        if self.cluster.multi.is_empty() {
            return found;
        }
        let mut by_definition: BTreeMap<ObjectName, BTreeSet<&Network>> = BTreeMap::new();
        for (entry, network) in self.networks.held.values().flatten() {
            let of = by_definition.entry(definition_of(entry)).or_default();
            of.insert(network);
        }
        for (id, definition) in &self.cluster.definitions {
            if let Ok((network, _)) = &definition.network {
                by_definition.entry(id.clone()).or_default().insert(network);
            }
        }
        for (id, multi) in &self.cluster.multi {
            let networks = multi
                .definitions
                .iter()
                .filter_map(|it| by_definition.get(it));
            for network in networks.flatten().filter(|it| !self.is_defined_primary(it)) {
                found
                    .entry((*network).clone())
                    .or_default()
                    .insert(id.clone());
            }
        }
        found
    }

    fn is_defined_primary(&self, network: &Network) -> bool {
        let defined = self.cluster.definitions.values();
        let mut defined = defined.filter_map(|it| it.network.as_ref().ok());
        match self.networks.live.get(network) {
            Some(shape) => shape.role == Role::Primary,
            None => defined.any(|(it, shape)| it == network && shape.role == Role::Primary),
        }
    }

    /// A definition has changed: what is said of the MultiNetworkPolicies for it may be other.
    pub(super) fn mark_multi(&mut self, definition: &ObjectName) {
        let multi = self.cluster.multi.iter();
        let own = multi.filter(|(_, it)| it.definitions.contains(definition));
        let keys = own.map(|(id, _)| Key::object(Of::MultiPolicy, id.clone()));
        self.dirty.extend(keys);
    }

    /// What is said of a MultiNetworkPolicy: its mistakes, and where it has no effect.
    pub(in crate::run::state) fn check_multi(&self, id: &ObjectName, effects: &mut Effects) {
        let Some(multi) = self.cluster.multi.get(id) else {
            return;
        };
        let mut problems = multi.policy.problems.clone();
        let held = self.networks.held.values().flat_map(BTreeMap::keys);
        let held: BTreeSet<ObjectName> = held.map(|it| definition_of(it)).collect();
        for id in &multi.definitions {
            let definition = self.cluster.definitions.get(id);
            let why = match definition.map(|it| &it.network) {
                Some(Ok((network, _))) if self.is_defined_primary(network) => {
                    "its network is a primary one, on which NetworkPolicies apply"
                }
                Some(Ok(_)) => continue,
                // Pods stay on its network.
                _ if held.contains(id) => continue,
                Some(Err(_)) => "it has a mistake, and is no network",
                None => "there is no NetworkAttachmentDefinition of OVN's with that name",
            };
            let of = format!("{}/{}", id.0, id.1);
            problems.push(format!(
                "the annotation {POLICY_FOR}: {of}: {why}; there it has no effect"
            ));
        }
        if !problems.is_empty() {
            effects.warning = Some(("PolicyMistake", problems.join("; ")));
        }
    }
}
