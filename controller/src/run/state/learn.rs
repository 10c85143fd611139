//! What the watches tell: each kind's objects, and which keys depend on them.

use std::collections::BTreeMap;

use podwire_cluster::Labels;
use podwire_cluster::claims::API_SERVER;
use podwire_cluster::service::{Service, Slice};
use podwire_ovs::nb::Table;
use podwire_ovs::replica::Db;
use tokio::time::Instant;

use super::{State, everywhere};
use crate::cluster::logging::Logging;
use crate::cluster::multi::MultiPolicy;
use crate::cluster::policy::Policy;
use crate::cluster::tiered::Tiered;
use crate::cluster::{Cluster, Name, Node, ObjectName, Pod, of_namespace};
use crate::key::{Key, Network, Of};
use crate::run::kinds::KINDS;
use crate::run::watch::{Change, ListState};

impl State {
    /// Applies a change.
    pub(crate) fn learn(&mut self, change: Change) {
        match change {
            Change::Object(reported, learn) => {
                learn(self);
                self.timer.learned(reported);
            }
            Change::Unreadable(key) => {
                if self.uid(&key).is_none() {
                    self.claims_changed |= key.of == Of::Service;
                    self.unreadable.insert(key);
                }
            }
            Change::Kind(number, known) => {
                if let Some(kind) = self.kinds.get_mut(number) {
                    *kind = known;
                }
                self.dirty.append(&mut self.held);
                self.unblock();
                self.dirty
                    .extend(self.cluster.user_networks.keys().cloned());
            }
        }
    }

    /// Whether such keys can't be processed yet, because what they depend on is not listed.
    pub(crate) fn is_held(&self, of: Of) -> bool {
        let mut kinds = KINDS.iter().zip(&self.kinds);
        kinds.any(|(kind, known)| *known == ListState::Listing && kind.holds().contains(&of))
    }

    /// Whether this key can't be processed yet. Other networks than the default one depend on
    /// their definitions.
    pub(super) fn is_key_held(&self, key: &Key) -> bool {
        let is_other = key.network != Network::DEFAULT;
        let of = |all: &[Of]| all.iter().any(|of| self.is_held(*of));
        self.is_held(key.of)
            // Primary ones depend on services, too.
            || (is_other && of(&[Of::Definition, Of::Service]))
            // So do the services that their pods reach, and the members of those's sets.
            || (matches!(key.of, Of::Service | Of::Members)
                && self.has_primaries()
                && of(&[Of::Definition, Of::Pod, Of::Service]))
            || (key.of == Of::Members && !self.networks.live.is_empty() && of(&[Of::Definition]))
    }

    pub(crate) fn learn_node(&mut self, name: Name, node: Option<Node>) {
        let known = self.cluster.nodes.get(&name);
        let limit = |it: &Node| it.is_unlimited;
        let is_other = known.is_some() != node.is_some();
        if is_other || known.map(limit) != node.as_ref().map(limit) {
            self.mark_pods_of(&name);
        }
        if is_other {
            self.mark_local_services();
        }
        let key = Key::node(name.clone());
        let known = self.cluster.nodes.get(&name);
        let known = known.map(|it| (it.uid.clone(), it.version));
        if self.is_old(&key, known, node.as_ref().map(|it| (&it.uid, it.version))) {
            return;
        }
        set(&mut self.cluster.nodes, name.clone(), node);
        self.mark_exits_on(&name);
        self.mark_parts_on(&name);
        if self.rules.has_gateways {
            self.dirty.insert(Key::gateway(name));
        }
        self.claims_changed = true;
        self.changed(key);
    }

    pub(crate) fn learn_pod(&mut self, id: ObjectName, pod: Option<Pod>) {
        let key = Key::pod(id.clone());
        let known = self.cluster.pods.get(&id);
        let known = known.map(|it| (it.uid.clone(), it.version));
        if self.is_old(&key, known, pod.as_ref().map(|it| (&it.uid, it.version))) {
            return;
        }
        let former = self.cluster.pods.get(&id);
        // Its version changes with everything, also with what nobody here looks at.
        let same = |(one, other): (&Pod, &Pod)| {
            let version = one.version;
            *one == Pod {
                version,
                ..other.clone()
            }
        };
        if !former.zip(pod.as_ref()).is_some_and(same) {
            self.timer.changed("pod");
        }
        let is_same = former
            .zip(pod.as_ref())
            .is_some_and(|(one, other)| one.uid == other.uid);
        if pod.is_some() && !is_same {
            self.new_pods.insert(key.clone());
        }
        let before = former.map(|pod| &pod.selected);
        let after = pod.as_ref().map(|pod| &pod.selected);
        for policies in everywhere(&mut self.policies, &mut self.scopes) {
            policies.pod_changed(before, after);
        }
        self.pod_asks(&id, pod.as_ref());
        set(&mut self.cluster.pods, id, pod);
        self.changed(key);
    }

    pub(crate) fn learn_namespace(
        &mut self,
        name: Name,
        namespace: Option<(Labels, Option<Logging>)>,
    ) {
        let (labels, logging) = namespace.unzip();
        self.learn_logging(&name, logging.flatten());
        if self.cluster.namespaces.get(&name) == labels.as_ref() {
            return;
        }
        let pods = of_namespace(&self.cluster.pods, &name);
        let pods = pods.map(|(id, _)| Key::pod(id.clone()));
        self.dirty.extend(pods);
        self.timer.changed("namespace");
        if labels.is_none() || !self.cluster.namespaces.contains_key(&name) {
            self.dirty.insert(Key::named(Of::Namespace, name.clone()));
        }
        match labels {
            Some(_) => drop(self.resting.remove(&name)),
            None => {
                let until = Instant::now() + self.rules.rest;
                self.resting.insert(name.clone(), until);
            }
        }
        let changed = name.clone();
        set(&mut self.cluster.namespaces, name, labels);
        self.mark_cluster_user_networks();
        self.mark_primary(&changed);
        for policies in everywhere(&mut self.policies, &mut self.scopes) {
            policies.namespace_changed();
        }
    }

    fn learn_logging(&mut self, name: &Name, logging: Option<Logging>) {
        if self.cluster.logging.get(name) == logging.as_ref() {
            return;
        }
        self.timer.changed("namespace");
        self.mark_namespace(name);
        set(&mut self.cluster.logging, name.clone(), logging);
    }

    /// Has the rows of a namespace's policies compared.
    fn mark_namespace(&mut self, name: &Name) {
        let policies = self.policies.of(name).map(|(policy, _)| policy.clone());
        for policy in policies {
            let key = Key::object(Of::Policy, (name.clone(), policy));
            let scopes = self.scopes.iter().filter(|(_, it)| it.has(name));
            let keys = scopes.map(|(network, _)| key.clone().on(network.clone()));
            self.dirty.extend(keys);
            self.dirty.insert(key);
        }
        self.dirty.insert(Key::named(Of::Namespace, name.clone()));
    }

    /// A meter was changed: whoever needs it makes it anew if it is gone.
    pub(super) fn meter_changed(&mut self) {
        let logging = self.cluster.logging.iter().filter(|(_, it)| it.is_on());
        let namespaces = logging.map(|(name, _)| Key::named(Of::Namespace, name.clone()));
        let tiered = self.cluster.tiered.keys().filter(|key| self.logs(key));
        let keys: Vec<Key> = namespaces.chain(tiered.cloned()).collect();
        self.dirty.extend(keys);
        self.dirty.insert(Key::only(Of::Cluster));
    }

    pub(crate) fn learn_policy(&mut self, id: ObjectName, policy: Option<Policy>) {
        if self.policies.get(&id) != policy.as_ref() {
            self.timer.changed("policy");
        }
        for scope in self.scopes.values_mut() {
            scope.learn(&id, policy.as_ref());
        }
        self.policies.set(id.clone(), policy);
        self.changed(Key::object(Of::Policy, id));
    }

    pub(crate) fn learn_multi(&mut self, id: ObjectName, policy: Option<MultiPolicy>) {
        if self.cluster.multi.get(&id) != policy.as_ref() {
            self.timer.changed("policy");
        }
        for scope in self.scopes.values_mut() {
            scope.learn_multi(&id, policy.as_ref());
        }
        self.scopes_changed = true;
        set(&mut self.cluster.multi, id.clone(), policy);
        self.changed(Key::object(Of::MultiPolicy, id));
    }

    pub(crate) fn learn_tiered(&mut self, key: Key, policy: Option<Tiered>) {
        let before = self.waits_for_namespaces();
        // Its conditions change, too, and nobody waits for those.
        let known = self.cluster.tiered.get(&key).map(Tiered::said);
        if known != policy.as_ref().map(Tiered::said) {
            self.timer.changed("cluster-policy");
        }
        set(&mut self.cluster.tiered, key.clone(), policy);
        self.apply_tiered(&key);
        if self.waits_for_namespaces() != before {
            let Cluster {
                pods, namespaces, ..
            } = &self.cluster;
            let is_known = |id: &ObjectName| namespaces.contains_key(&id.0);
            let waiting = pods.keys().filter(|id| !is_known(id));
            self.dirty.extend(waiting.cloned().map(Key::pod));
        }
        self.changed(key);
    }

    /// Whether a policy may select pods by their namespaces: pods have no ports then before their
    /// namespaces are known.
    pub(super) fn waits_for_namespaces(&self) -> bool {
        let mut tiered = self.cluster.tiered.values();
        self.policies.has_tiers() && tiered.any(|it| it.content.is_ok())
    }

    fn apply_tiered(&mut self, key: &Key) {
        let policy = self.cluster.tiered.get(key);
        let policy = policy.filter(|_| self.policies.has_tiers());
        let content = policy.and_then(|it| it.content.clone().ok());
        for scope in self.scopes.values_mut() {
            scope.learn_tiered(key, content.as_ref());
        }
        self.policies.set_tiered(key.clone(), content);
    }

    /// Learns whether the database has tiers of ACLs.
    pub(super) fn learn_tiers(&mut self, db: &Db) {
        let has_tiers = db.has_column(Table::Acl.name(), "tier");
        if has_tiers == self.policies.has_tiers() {
            return;
        }
        for policies in everywhere(&mut self.policies, &mut self.scopes) {
            policies.set_has_tiers(has_tiers);
        }
        let keys: Vec<Key> = self.cluster.tiered.keys().cloned().collect();
        for key in keys {
            self.apply_tiered(&key);
        }
    }

    /// Marks what differs since policies changed, or what they depend on.
    pub(super) fn refresh_policies(&mut self) {
        let Cluster {
            pods, namespaces, ..
        } = &self.cluster;
        let changed = self.policies.refresh(pods, namespaces);
        let changed = changed.into_iter().map(|it| it.key(&Network::DEFAULT));
        self.dirty.extend(changed);
        self.refresh_scopes();
    }

    /// The uid of an object; `None` if it does not exist.
    pub(super) fn uid(&self, key: &Key) -> Option<&str> {
        match key.of {
            Of::Policy => Some(self.policies.get(&key.id())?.uid.as_str()),
            _ => self.cluster.uid(key),
        }
    }

    pub(crate) fn learn_service(&mut self, id: ObjectName, service: Option<Service>) {
        let ips = |it: &Service| it.cluster_ips.clone();
        if self.cluster.services.get(&id).map(ips) != service.as_ref().map(ips) {
            self.mark_refused();
        }
        set(&mut self.cluster.services, id.clone(), service);
        self.mark_open(&id);
        self.mark_exposed(&id.0);
        self.claims_changed = true;
        self.changed(Key::service(id));
    }

    pub(crate) fn learn_slice(&mut self, id: ObjectName, slice: Option<(Name, Slice)>) {
        self.unread_slices.remove(&id);
        let services = self.cluster.slices.set(id, slice);
        let is_server = |(ns, name): &ObjectName| (&**ns, &**name) == API_SERVER;
        self.claims_changed |= services.iter().any(is_server);
        for id in &services {
            self.mark_open(id);
            let service = self.cluster.services.get(id);
            if service.is_some_and(Service::is_exposed) {
                self.mark_exposed(&id.0);
            }
        }
        self.dirty.extend(services.into_iter().map(Key::service));
    }

    /// An object that can be read has changed.
    pub(super) fn changed(&mut self, key: Key) {
        self.unreadable.remove(&key);
        self.dirty.insert(key);
    }
}

pub(super) fn set<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}
