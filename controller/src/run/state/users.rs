//! Users' networks: the definitions that are made for them, and what is said of them.

use std::collections::BTreeSet;

use podwire_apiserver::object::Object as _;
use podwire_cluster::api;
use podwire_daemon::output::some;
use serde_json::{Value, json};

use super::State;
use super::networks::{definition_of, named};
use super::wanted::Effects;
use crate::cluster::user::{ALLOCATED, CREATED, Condition, Spec, Stored, UserNetwork};
use crate::cluster::user::{FINALIZER, without};
use crate::cluster::{Name, ObjectName, guard};
use crate::key::{Key, Of};
use crate::run::kinds::KINDS;
use crate::run::watch::ListState;
use crate::write::{Change, Write};

/// So many namespaces are named: a condition's message is limited, to 32,768 bytes.
const NAMED: usize = 100;

/// What was found out about the definitions of a user's network.
#[derive(Default)]
struct Found {
    /// The namespaces in which they are as they should be.
    there: Vec<Name>,
    /// Those that others are removing.
    going: Vec<String>,
    /// Whether something is on its way.
    is_pending: bool,
    /// Those that are left, of its own.
    left: usize,
    /// The reason of the Event, and what is wrong.
    problems: Vec<(&'static str, String)>,
}

impl State {
    pub(crate) fn learn_user_network(&mut self, key: Key, network: Option<UserNetwork>) {
        super::learn::set(&mut self.cluster.user_networks, key.clone(), network);
        self.changed(key);
    }

    /// What is stored of a definition.
    pub(super) fn learn_stored(&mut self, id: &ObjectName, stored: Option<Stored>) {
        let (namespace, name) = id;
        self.mark_owners(id);
        match stored {
            Some(stored) => {
                let all = self.cluster.stored.entry(name.clone()).or_default();
                all.insert(namespace.clone(), stored);
            }
            None => {
                if let Some(all) = self.cluster.stored.get_mut(name) {
                    all.remove(namespace);
                    if all.is_empty() {
                        self.cluster.stored.remove(name);
                    }
                }
            }
        }
        self.mark_owners(id);
    }

    /// Marks the users' networks that a definition belongs to, or that would have one of its name.
    pub(super) fn mark_owners(&mut self, id: &ObjectName) {
        let (namespace, name) = id;
        let stored = self
            .cluster
            .stored
            .get(name)
            .and_then(|all| all.get(namespace));
        let owner = stored.and_then(|it| Some(it.owner.as_ref()?.key.clone()));
        let own = Key::object(Of::UserNetwork, id.clone());
        let shared = Key::named(Of::ClusterUserNetwork, name.clone());
        let named = [own, shared].into_iter();
        let named = named.filter(|key| self.cluster.user_networks.contains_key(key));
        self.dirty.extend(named.chain(owner));
    }

    /// Whether a namespace is being deleted.
    pub(crate) fn learn_deleted(&mut self, name: &Name, is_deleted: bool) {
        let is_new = match is_deleted {
            true => self.cluster.deleted.insert(name.clone()),
            false => self.cluster.deleted.remove(name),
        };
        if is_new {
            self.mark_cluster_user_networks();
        }
    }

    /// Namespaces have changed.
    pub(super) fn mark_cluster_user_networks(&mut self) {
        let all = self.cluster.user_networks.keys();
        let shared = all.filter(|key| key.of == Of::ClusterUserNetwork);
        self.dirty.extend(shared.cloned());
    }

    /// Has the definitions of a user's network made, changed and removed, and says how that is.
    pub(super) fn define(&self, key: &Key, effects: &mut Effects) {
        let network = self.cluster.user_networks.get(key);
        let mut found = Found::default();
        let spec = network.map(|it| (it, it.spec.as_ref()));
        let asked = match spec {
            Some((network, Ok(spec))) if !network.is_deleted => {
                self.make_definitions(key, (network, spec), &mut found, effects)
            }
            _ => BTreeSet::new(),
        };
        self.remove_definitions(key, &asked, &mut found, effects);
        let Some((network, spec)) = spec else {
            return;
        };
        let finalizers = match (network.is_deleted, network.is_kept()) {
            (true, true) if found.left == 0 => Some(json!(without(&network.finalizers))),
            (false, false) if spec.is_ok() => {
                let own = [FINALIZER.to_owned()];
                Some(network.finalizers.iter().chain(&own).cloned().collect())
            }
            _ => None,
        };
        if let Some(finalizers) = finalizers {
            let mut metadata = guard(&network.uid, self.version(key, network.version));
            metadata["finalizers"] = finalizers;
            let patch = json!({ "metadata": metadata });
            effects.writes.push(Write::Object {
                target: key.clone(),
                change: Change::patch(&patch),
            });
            // What it has then is said when that is reported.
            found.is_pending = true;
        }
        if let Err(mistake) = spec {
            found.problems.push(("NetworkMistake", mistake.clone()));
        }
        if let Some(conditions) = self.conditions_of(key, network, &found)
            && let Some(conditions) = network.conditions(&conditions)
        {
            effects.writes.push(Write::Conditions {
                uid: network.uid.clone(),
                version: self.version(key, network.version),
                value: Value::from(conditions).to_string().into(),
            });
        }
        let texts: Vec<&str> = found.problems.iter().map(|(_, text)| &**text).collect();
        let first = found.problems.first();
        effects.warning = first.map(|(reason, _)| (*reason, texts.join("; ")));
    }

    /// Makes the definitions that a user's network should have, or changes them. The result are
    /// their namespaces.
    fn make_definitions(
        &self,
        key: &Key,
        (network, spec): (&UserNetwork, &Spec),
        found: &mut Found,
        effects: &mut Effects,
    ) -> BTreeSet<Name> {
        let namespaces: BTreeSet<Name> = match &spec.namespaces {
            None => [key.namespace.clone()].into(),
            Some(selector) => {
                let all = self.cluster.namespaces.iter();
                let selected = all.filter(|(name, labels)| {
                    selector.matches(labels) && !self.cluster.deleted.contains(*name)
                });
                selected.map(|(name, _)| name.clone()).collect()
            }
        };
        let (api, kind) = (
            api::NetworkAttachmentDefinition::API,
            api::NetworkAttachmentDefinition::KIND,
        );
        let mut kinds = KINDS.iter().zip(&self.kinds);
        if kinds.any(|(it, known)| *known == ListState::Absent && it.kind() == kind) {
            let problem = format!("the API server has no {kind} ({api}): install it");
            found.problems.push(("NetworkConflict", problem));
            return namespaces;
        }
        for namespace in &namespaces {
            let id = (namespace.clone(), key.name.clone());
            let change = match self.stored(&id) {
                None => Change::create(&spec.definition(&id, key, &network.uid)),
                // That of a former network of this name goes when nobody uses it.
                Some(stored) if stored.is_deleted && is_former(stored, key, &network.uid) => {
                    let users = self.users(&id);
                    match users.is_empty() {
                        true => found.is_pending = true,
                        false => {
                            let problem = format!(
                                "NetworkAttachmentDefinition {}/{} of a former network of this \
                                 name stays: pods use it: {}",
                                id.0,
                                id.1,
                                named(&users)
                            );
                            found.problems.push(("NetworkInUse", problem));
                        }
                    }
                    continue;
                }
                Some(stored) if !is_own(stored, key, &network.uid) => {
                    let (namespace, name) = &id;
                    let problem = format!(
                        "NetworkAttachmentDefinition {namespace}/{name} is somebody else's: \
                         remove it, or give this network another name"
                    );
                    found.problems.push(("NetworkConflict", problem));
                    continue;
                }
                // Removed by hand. It takes nothing from pods, and is made again.
                Some(stored) if stored.is_deleted && stored.is_kept() => {
                    Change::patch(&stored.release())
                }
                Some(stored) if stored.is_deleted => {
                    found.going.push(format!("{namespace}/{}", key.name));
                    continue;
                }
                Some(stored) => match spec.changes(&id, stored) {
                    Some(patch) => Change::patch(&patch),
                    None => {
                        found.there.push(namespace.clone());
                        continue;
                    }
                },
            };
            found.is_pending = true;
            effects.writes.push(Write::Object {
                target: Key::object(Of::Definition, id),
                change,
            });
        }
        namespaces
    }

    /// Removes the definitions that a user's network should not have, when no pod uses them. What
    /// one has that has got a mistake stays.
    fn remove_definitions(
        &self,
        key: &Key,
        asked: &BTreeSet<Name>,
        found: &mut Found,
        effects: &mut Effects,
    ) {
        let network = self.cluster.user_networks.get(key);
        let is_wrong = network.is_some_and(|it| it.spec.is_err() && !it.is_deleted);
        let all = self.cluster.stored.get(&key.name).into_iter().flatten();
        for (namespace, stored) in all.filter(|(_, stored)| is_of(stored, key)) {
            let is_own = network.is_some_and(|it| is_own(stored, key, &it.uid));
            if is_own && (is_wrong || asked.contains(namespace)) {
                continue;
            }
            found.left += usize::from(is_own);
            let id = (namespace.clone(), key.name.clone());
            let users = self.users(&id);
            if !users.is_empty() {
                let why = match network.is_some_and(|it| it.is_deleted) {
                    true => "it is being deleted",
                    false if self.cluster.deleted.contains(namespace) => {
                        "its namespace is being deleted"
                    }
                    false => "spec.namespaceSelector no longer selects the namespace",
                };
                let problem = format!(
                    "NetworkAttachmentDefinition {namespace}/{} stays, although {why}: pods use \
                     it: {}",
                    key.name,
                    named(&users)
                );
                if is_own {
                    found.problems.push(("NetworkInUse", problem));
                }
                continue;
            }
            let change = match (stored.is_deleted, stored.is_kept()) {
                (true, true) => Change::patch(&stored.release()),
                (false, _) if is_own => Change::Delete(stored.uid.clone()),
                // Of a network that is gone: Kubernetes collects it.
                _ => continue,
            };
            effects.writes.push(Write::Object {
                target: Key::object(Of::Definition, id),
                change,
            });
        }
    }

    /// The pods that use a definition: they ask for it, or are on its network by it.
    pub(crate) fn users(&self, id: &ObjectName) -> Vec<ObjectName> {
        let asking = self.networks.asking(id);
        let on = self.networks.held().filter(|(_, entries)| {
            let mut entries = entries.keys();
            entries.any(|entry| definition_of(entry) == *id)
        });
        let all: BTreeSet<&ObjectName> = asking.chain(on.map(|(pod, _)| pod)).collect();
        all.into_iter().cloned().collect()
    }

    /// The user's network that a definition is made for.
    pub(crate) fn owner(&self, id: &ObjectName) -> Option<&Key> {
        Some(&self.stored(id)?.owner.as_ref()?.key)
    }

    /// What is wrong with a user's network.
    pub(crate) fn problem_of(&self, key: &Key) -> Option<String> {
        let mut effects = Effects::default();
        self.define(key, &mut effects);
        effects.warning.map(|(_, text)| text)
    }

    fn stored(&self, (namespace, name): &ObjectName) -> Option<&Stored> {
        self.cluster.stored.get(name)?.get(namespace)
    }

    /// What is said of a user's network; `None` while that is not known.
    fn conditions_of(
        &self,
        key: &Key,
        network: &UserNetwork,
        found: &Found,
    ) -> Option<Vec<Condition>> {
        let created = |holds, reason, message| Condition {
            name: CREATED,
            holds,
            reason,
            message,
        };
        let texts: Vec<&str> = found.problems.iter().map(|(_, text)| &**text).collect();
        let created = match &texts[..] {
            [] if network.is_deleted || found.is_pending => return None,
            [] if !found.going.is_empty() => created(
                false,
                "NetworkAttachmentDefinitionDeleted",
                format!(
                    "NetworkAttachmentDefinition {} is being deleted",
                    found.going.join(", ")
                ),
            ),
            [] => created(
                true,
                "NetworkAttachmentDefinitionCreated",
                match key.of {
                    Of::UserNetwork => "NetworkAttachmentDefinition has been created".to_owned(),
                    _ => format!(
                        "NetworkAttachmentDefinition has been created in following namespaces: \
                         [{}]",
                        listed(&found.there)
                    ),
                },
            ),
            problems => created(false, "SyncError", problems.join("; ")),
        };
        if !created.holds || found.there.is_empty() {
            return Some(vec![created]);
        }
        let allocated = self.allocation(key, network, found)?;
        Some(vec![created, allocated])
    }

    /// Whether the network is as its definitions want it; `None` while that is not known.
    fn allocation(&self, key: &Key, network: &UserNetwork, found: &Found) -> Option<Condition> {
        let ids = found.there.iter().map(|it| (it.clone(), key.name.clone()));
        let mut refusals = ids.filter_map(|id| {
            let definition = self.cluster.definitions.get(&id);
            let mistake = definition.and_then(|it| it.network.as_ref().err());
            let refusal = mistake.cloned().or_else(|| self.refusal(&id))?;
            Some(format!(
                "NetworkAttachmentDefinition {}/{}: {refusal}",
                id.0, id.1
            ))
        });
        let spec = network.spec.as_ref().ok()?;
        let (holds, reason, message) = match refusals.next() {
            Some(refusal) => (false, "NetworkConflict", refusal),
            None if self.networks.live.contains_key(&spec.network) => {
                let message = "the network's rows are in the northbound database";
                (true, ALLOCATED, message.to_owned())
            }
            None => return None,
        };
        Some(Condition {
            name: ALLOCATED,
            holds,
            reason,
            message,
        })
    }
}

fn is_of(stored: &Stored, key: &Key) -> bool {
    stored.owner.as_ref().is_some_and(|it| it.key == *key)
}

fn is_own(stored: &Stored, key: &Key, uid: &str) -> bool {
    is_of(stored, key) && stored.owner.as_ref().is_some_and(|it| it.uid == uid)
}

fn is_former(stored: &Stored, key: &Key, uid: &str) -> bool {
    is_of(stored, key) && !is_own(stored, key, uid)
}

/// Of many namespaces some, for a message of limited length.
fn listed(namespaces: &[Name]) -> String {
    some(namespaces, NAMED, ", ", " and ")
}
