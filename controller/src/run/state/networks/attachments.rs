//! A pod's attachments to networks beside the default one: its ports, addresses and entries there.

use std::collections::{BTreeMap, BTreeSet};

use podwire_cluster::networks::OtherNetworks;
use podwire_ovs::nb::Table;
use podwire_ovs::replica::{Db, Row as Found};
use serde_json::Value;
use tokio::time::Instant;

use super::super::State;
use super::super::begin::{UID, addresses_in};
use super::super::wanted::{Effects, Problem};
use super::shared;
use crate::cluster::network::{Selection, Selections, Topology};
use crate::cluster::{Name, ObjectName, Pod};
use crate::diff::Plan;
use crate::ipam::{self, AddressError, FormerAddresses};
use crate::key::{Attachment, Key, Network};
use crate::names::attached_port;
use crate::want::{self, network as rows};

/// A pod's rows and entries; `None` is an entry that goes.
type Attached = (Vec<want::Row>, BTreeMap<Name, Option<Value>>);

impl State {
    /// The rows of a pod on other networks than the default one, and its entries there; `None` is
    /// one that goes.
    pub(in crate::run::state) fn attachments(
        &mut self,
        id: &ObjectName,
        primary: Option<&(Selection, Network)>,
        plan: &Plan<'_>,
        effects: &mut Effects,
    ) -> Result<Attached, Problem> {
        let now = Instant::now().into_std();
        let (mut all, mut entries) = (Vec::new(), BTreeMap::new());
        // Most pods are on the default network alone.
        let asks = |pod: &&Pod| {
            primary.is_some()
                || pod.selections != Selections::default()
                || pod.other_networks != OtherNetworks::None
        };
        let pod = self.cluster.pods.get(id).filter(asks).cloned();
        self.detach(id, pod.as_ref(), now);
        let Some(pod) = &pod else {
            return Ok((all, entries));
        };
        let mut problems: Vec<String> = pod
            .selections
            .problem
            .iter()
            .map(|it| (**it).into())
            .collect();
        let mut names = BTreeSet::new();
        let asked = pod.selections.all.iter().map(|it| (it, None));
        let primary_first = primary.map(|(it, network)| (it, Some(network)));
        for (selection, of_primary) in primary_first.into_iter().chain(asked) {
            let attachment = Attachment::of(id, &selection.entry);
            let network = of_primary
                .cloned()
                .or_else(|| self.network_of(&attachment, selection, &mut problems));
            let Some(network) = network else {
                continue;
            };
            if of_primary.is_none() && self.is_primary(&network) {
                problems.push(format!(
                    "{}: a primary network has the pods of its namespaces, which do not ask for it",
                    selection.entry
                ));
                continue;
            }
            match self.attach(&attachment, pod, (selection, &network), plan, now) {
                Ok((row, _)) if !names.insert(row.name.clone()) => {
                    problems.push(format!(
                        "{}: another has a port of its name",
                        selection.entry
                    ));
                }
                Ok((row, entry)) => {
                    all.push(row);
                    entries.insert(selection.entry.clone(), Some(entry));
                }
                // Its port on the default network would not be locked. What exists stays.
                Err((problem, until)) if of_primary.is_some() => {
                    return Err(Problem {
                        reason: "NoAttachment",
                        message: match &*problem {
                            "" => problem,
                            problem => format!("{}: {problem}", selection.entry),
                        },
                        until,
                    });
                }
                Err((problem, until)) => {
                    if !problem.is_empty() {
                        problems.push(format!("{}: {problem}", selection.entry));
                    }
                    let again = effects.again.get_or_insert(None);
                    *again = match (*again, until) {
                        (Some(before), Some(until)) => Some(before.min(until)),
                        (before, until) => before.or(until),
                    };
                }
            }
        }
        // Those of networks that it is no longer on.
        for entry in pod.other_networks.all().into_keys() {
            let is_ours = self
                .cluster
                .definitions
                .contains_key(&definition_of(&entry));
            let of_primary = primary.map(|(it, _)| it);
            let mut asked = of_primary.into_iter().chain(&pod.selections.all);
            let is_asked = asked.any(|it| it.entry == *entry);
            if is_ours && !is_asked && pod.selections.problem.is_none() {
                entries.insert(entry.into(), None);
            }
        }
        if !problems.is_empty() {
            effects.warning = Some(("NoAttachment", problems.join("; ")));
        }
        Ok((all, entries))
    }

    /// Frees the addresses that a pod no longer has: it is gone, was replaced, or asks for less.
    pub(in crate::run::state) fn detach(
        &mut self,
        id: &ObjectName,
        pod: Option<&Pod>,
        now: std::time::Instant,
    ) {
        let Some(held) = self.networks.held.get(id).cloned() else {
            return;
        };
        for (entry, network) in held {
            let attachment = Attachment::of(id, &entry);
            let keeps = pod.is_some_and(|pod| {
                let mut asked = pod.selections.all.iter();
                let is_asked = asked.any(|it| it.entry == entry);
                let space = self.spaces.others.get(&network);
                let part = self.part(&network, &pod.node);
                let has = space.is_some_and(|it| it.addresses.has(&attachment, (&pod.uid, part)));
                // An annotation that can't be read takes nothing away.
                has && (is_asked || self.is_primary(&network) || pod.selections.problem.is_some())
            });
            if keeps {
                continue;
            }
            if let Some(space) = self.spaces.others.get_mut(&network) {
                space.addresses.release(&attachment, now);
            }
            if let Some(held) = self.networks.held.get_mut(id) {
                held.remove(&entry);
                if held.is_empty() {
                    self.networks.held.remove(id);
                }
            }
            self.leave(id, &network);
            self.dirty.insert(shared(&network));
            let definition = definition_of(&entry);
            self.mark_owners(&definition);
            self.mark_multi(&definition);
            self.scopes_changed |= self.scopes.contains_key(&network);
            if self.is_primary(&network) {
                self.mark_services_of(&id.0);
            }
            self.unblock();
        }
    }

    /// The network of an attachment: that which it is on, or that of its definition.
    fn network_of(
        &self,
        attachment: &Attachment,
        selection: &Selection,
        problems: &mut Vec<String>,
    ) -> Option<Network> {
        let held = self.networks.held.get(&attachment.pod);
        if let Some(network) = held.and_then(|held| held.get(&attachment.entry)) {
            return Some(network.clone());
        }
        // Another plugin's, or none: the runtime says so.
        let definition = self.cluster.definitions.get(&selection.definition)?;
        let refused = self.networks.refused.get(&selection.definition);
        let problem = match (&definition.network, refused) {
            (Ok((network, _)), None) => return Some(network.clone()),
            (Err(problem), _) | (Ok(_), Some(problem)) => problem,
        };
        let (namespace, name) = &selection.definition;
        problems.push(format!(
            "NetworkAttachmentDefinition {namespace}/{name}: {problem}"
        ));
        None
    }

    fn attach(
        &mut self,
        attachment: &Attachment,
        pod: &Pod,
        (selection, network): (&Selection, &Network),
        plan: &Plan<'_>,
        now: std::time::Instant,
    ) -> Result<(want::Row, Value), (String, Option<Instant>)> {
        let port = attached_port(attachment);
        let own = Key::pod(attachment.pod.clone());
        let free = plan.may_have(&own, Table::LogicalSwitchPort, &port);
        free.map_err(|error| (error.to_string(), None))?;
        let missing = || (format!("network {} is not there yet", network.name()), None);
        let shape = self.networks.live.get(network).cloned();
        let shape = shape.ok_or_else(missing)?;
        let held = self.networks.held.get(&attachment.pod);
        let is_new = held.is_none_or(|it| !it.contains_key(&attachment.entry));
        // Its policies are made in the next pass: until then it would be open. And which ones are
        // for it, and whether its definition is refused, shows when all definitions are listed.
        let is_unknown = is_new && self.is_key_held(&shared(network));
        if is_unknown || self.networks.turned.contains(network) {
            return Err((String::new(), None));
        }
        self.take_part((network, &shape), &pod.node)
            .map_err(|problem| (problem, None))?;
        let switch = rows::switch(network, &shape, &pod.node);
        if !plan.has(Table::LogicalSwitch, &switch) {
            return Err(match shape.topology {
                // That of its node is on its way.
                Topology::Layer3 => (String::new(), None),
                Topology::Layer2 | Topology::Localnet => missing(),
            });
        }
        let space = self.spaces.others.get_mut(network).ok_or_else(missing)?;
        let whose = (&pod.uid, shape.part(network, &pod.node));
        let former = match space.addresses.has(attachment, whose) {
            true => Vec::new(),
            false => former_of(attachment, pod, plan.db(), self.rules.adopt),
        };
        let request = || selection.request.clone();
        let claimed = space
            .addresses
            .claim(attachment, whose, &former, request, now);
        let claimed = claimed.cloned().map_err(|error| match error {
            AddressError::Resting { until, .. } | AddressError::Released { until, .. } => {
                (error.to_string(), Some(until.into()))
            }
            error => (error.to_string(), None),
        })?;
        if is_new && self.is_primary(network) {
            self.mark_services_of(&attachment.pod.0);
        }
        self.hold(attachment, network);
        let connections = self.connections_on(&pod.node);
        let row = rows::port(attachment, pod, (network, &shape), &claimed, connections);
        Ok((row, rows::entry(&shape, &claimed, &selection.gateways)))
    }
}

/// The definition of an entry in a pod's annotation.
pub(in crate::run::state) fn definition_of(entry: &str) -> ObjectName {
    let mut parts = entry.splitn(3, '/');
    let mut next = || Name::from(parts.next().unwrap_or_default());
    (next(), next())
}

/// The attachment and the network of a pod's port; `None` for that on the default one.
pub(super) fn attachment_of(pod: &ObjectName, row: &Found<'_>) -> Option<(Attachment, Network)> {
    let ids = row.map("external_ids");
    let (entry, network) = (ids.str(rows::ATTACHMENT)?, ids.str(rows::NETWORK)?);
    let attachment = Attachment::of(pod, &entry.into());
    Some((attachment, Network::named(network)))
}

/// What an attachment had: by its port, then by its entry.
fn former_of(attachment: &Attachment, pod: &Pod, db: &Db, adopt: bool) -> Vec<FormerAddresses> {
    let name = attached_port(attachment);
    let own = Key::pod(attachment.pod.clone()).to_string();
    let rows = db.nb_named(Table::LogicalSwitchPort, &name);
    let rows = rows.filter(|row| {
        let is_own = super::super::key_of(row).is_some_and(|key| key == own);
        (adopt || is_own) && row.map("options").str(UID) == Some(&pod.uid)
    });
    let certain = rows.map(|row| FormerAddresses {
        recorded: addresses_in(&row),
        is_certain: true,
    });
    certain.chain(written(pod, &attachment.entry)).collect()
}

/// What the annotation says.
pub(super) fn written(pod: &Pod, entry: &str) -> Option<FormerAddresses> {
    let recorded = ipam::read_pod_network(pod.other_networks.all().get(entry)?);
    Some(FormerAddresses {
        recorded,
        is_certain: false,
    })
}
