//! Policies on primary networks: those of the namespaces whose pods are there, and those of the
//! whole cluster, with the ports and addresses that pods have there. A peer is a pod of the same
//! network: others do not reach it.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use super::super::State;
use crate::cluster::network::Role;
use crate::cluster::policy::Policy;
use crate::cluster::{Name, ObjectName, Pod};
use crate::ipam::Assigned;
use crate::key::{Attachment, Network};
use crate::names::{attached_port, pod_port};
use crate::want::policy::Policies;

/// The policies of a network.
#[derive(Debug, Default)]
pub(in crate::run::state) struct Scope {
    policies: Policies,
    /// Whose they are.
    namespaces: BTreeSet<Name>,
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

    /// Whether policies of a namespace are among them.
    pub(in crate::run::state) fn has(&self, namespace: &Name) -> bool {
        self.namespaces.contains(namespace)
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

    /// What a pod has on a network: its port, with its addresses.
    pub(crate) fn place_on(
        &self,
        id: &ObjectName,
        pod: &Pod,
        network: &Network,
    ) -> Option<(Name, &Assigned)> {
        let (attachment, whose, port, addresses) = match *network == Network::DEFAULT {
            true => {
                let own = Attachment::from(id.clone());
                (own, &pod.node, pod_port(id), &self.spaces.default.addresses)
            }
            false => {
                let mut held = self.networks.of(id);
                let (entry, _) = held.find(|(_, it)| *it == network)?;
                let (pod, entry) = (id.clone(), entry.clone());
                let own = Attachment { pod, entry };
                let port = attached_port(&own);
                let space = self.spaces.others.get(network)?;
                (own, network.name(), port, &space.addresses)
            }
        };
        let is_its = addresses.has(&attachment, (&pod.uid, whose));
        let own = addresses.of(&attachment).filter(|_| is_its)?;
        Some((port.into(), own))
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

    /// A network has policies as soon as a definition says that it is primary: before it has a pod.
    fn set_scopes(&mut self) {
        let live = self.networks.live.iter();
        let primary = live.filter(|(_, shape)| shape.role == Role::Primary);
        let mut wanted: BTreeMap<Network, BTreeSet<Name>> = primary
            .map(|(it, _)| (it.clone(), BTreeSet::new()))
            .collect();
        for ((namespace, _), definition) in &self.cluster.definitions {
            if let Ok((network, shape)) = &definition.network
                && self.networks.live.get(network).unwrap_or(shape).role == Role::Primary
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
        for (network, scope) in std::mem::take(&mut self.scopes) {
            match wanted.contains_key(&network) {
                true => drop(self.scopes.insert(network, scope)),
                false => {
                    let subjects = scope.policies.subjects();
                    self.dirty.extend(subjects.map(|it| it.key(&network)));
                }
            }
        }
        for (network, namespaces) in wanted {
            let scope = self.scopes.entry(network).or_insert_with_key(|network| {
                let mut policies = Policies::on(network.clone(), self.policies.has_tiers());
                for (key, content) in self.policies.tiered() {
                    policies.set_tiered(key.clone(), Some(content.clone()));
                }
                let namespaces = BTreeSet::new();
                Scope {
                    policies,
                    namespaces,
                }
            });
            let former = std::mem::replace(&mut scope.namespaces, namespaces);
            for namespace in former.symmetric_difference(&scope.namespaces) {
                let is_new = scope.namespaces.contains(namespace);
                for (name, policy) in self.policies.of(namespace) {
                    let id = (namespace.clone(), name.clone());
                    scope.policies.set(id, is_new.then(|| policy.clone()));
                }
            }
        }
    }
}
