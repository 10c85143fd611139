//! Networks beside the default one: which exist, and which pods are on them. What exists is known
//! by its rows: a definition that is gone, or that was changed into what can't be while pods are on
//! its network, changes nothing for them.

mod attachments;
mod exits;
mod parts;
mod policies;
mod primary;

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use podwire_cluster::address::overlap;
use podwire_daemon::output::some;
use podwire_ovs::nb::Table;
use podwire_ovs::replica::Db;
use tokio::time::Instant;

pub(super) use self::attachments::definition_of;
use self::attachments::{attachment_of, written};
use self::policies::Scope;
pub(super) use self::policies::{Scopes, everywhere};
use super::State;
use super::begin::{NODE, UID, addresses_in, by_age, ports};
use super::wanted::{Effects, Wanted};
use crate::cluster::network::{Definition, Role, Shape, Topology};
use crate::cluster::user::Stored;
use crate::cluster::{Name, ObjectName, Pod};
use crate::diff::Plan;
use crate::ipam::{FormerAddresses, JOIN, Layout, Request, Space};
use crate::key::{Attachment, Key, Network, Of};
use crate::names::prefix;
use crate::want::policy::{asking, boundary, isolation};
use crate::want::{self, network as rows};

/// So many pods are named.
const NAMED: usize = 5;

/// The networks that exist, and who is on them.
#[derive(Debug, Default)]
pub(crate) struct Networks {
    pub(crate) live: BTreeMap<Network, Shape>,
    /// Definitions that are not, or not wholly, what their network is: why.
    refused: BTreeMap<ObjectName, String>,
    /// The network of each attachment with addresses.
    held: BTreeMap<ObjectName, BTreeMap<Name, Network>>,
    /// The pods on each primary network, by their nodes.
    exits: BTreeMap<Network, BTreeMap<Name, BTreeSet<ObjectName>>>,
    /// Networks that are gone, or have no parts any more: nodes' annotations may have entries.
    former: BTreeSet<Network>,
    /// The pods that ask for a definition.
    asking: BTreeMap<ObjectName, BTreeSet<ObjectName>>,
    /// Networks that have got another role, and not yet the policies of that.
    turned: BTreeSet<Network>,
}

impl Networks {
    /// The networks of a pod's attachments.
    pub(crate) fn of(&self, pod: &ObjectName) -> impl Iterator<Item = (&Name, &Network)> {
        self.held.get(pod).into_iter().flatten()
    }

    /// The pods that ask for a definition.
    pub(crate) fn asking(&self, definition: &ObjectName) -> impl Iterator<Item = &ObjectName> {
        self.asking.get(definition).into_iter().flatten()
    }

    /// All attachments with addresses, by pod and entry.
    pub(crate) fn held(&self) -> impl Iterator<Item = (&ObjectName, &BTreeMap<Name, Network>)> {
        self.held.iter()
    }

    /// The pods on a network.
    pub(crate) fn holders<'a>(
        &'a self,
        network: &'a Network,
    ) -> impl Iterator<Item = &'a ObjectName> {
        let on = move |all: &BTreeMap<Name, Network>| all.values().any(|it| it == network);
        let all = self.held.iter().filter(move |(_, it)| on(it));
        all.map(|(pod, _)| pod)
    }
}

/// The networks that rows know.
pub(crate) fn in_rows(db: &Db) -> Vec<(Network, Shape)> {
    let rows = [Table::LogicalSwitch, Table::LogicalRouter].map(|it| db.rows(it.name()));
    let known = rows.into_iter().flatten().filter_map(|row| {
        let key = super::owner_of(&row);
        let key = key.filter(|key| key.of == Of::Cluster && key.network != Network::DEFAULT);
        let shape = row.map("external_ids").str(rows::SHAPE)?;
        Some((key?.network, serde_json::from_str(shape).ok()?))
    });
    known.collect()
}

/// The key of what all nodes of a network share.
pub(crate) fn shared(network: &Network) -> Key {
    Key::only(Of::Cluster).on(network.clone())
}

fn asked(pod: Option<&Pod>) -> BTreeSet<ObjectName> {
    let all = pod.into_iter().flat_map(|pod| &pod.selections.all);
    all.map(|it| it.definition.clone()).collect()
}

impl State {
    pub(crate) fn learn_definition(
        &mut self,
        id: ObjectName,
        object: Option<(Option<Definition>, Stored)>,
    ) {
        let (definition, stored) = object.unzip();
        let definition = definition.flatten();
        self.learn_stored(&id, stored);
        if self.cluster.definitions.get(&id) == definition.as_ref() {
            return;
        }
        let before = self.cluster.definitions.get(&id).cloned();
        let both = before.iter().chain(&definition);
        let networks = both.filter_map(|it| Some(shared(&it.network.as_ref().ok()?.0)));
        let keys: Vec<Key> = networks.collect();
        self.dirty.extend(keys);
        self.networks.refused.remove(&id);
        self.mark_refused();
        self.mark_asking(&id);
        let of = |it: &Definition| it.network.as_ref().map(|(_, it)| it.role) == Ok(Role::Primary);
        let is_primary = before.iter().chain(&definition).any(of);
        super::learn::set(&mut self.cluster.definitions, id.clone(), definition);
        self.scopes_changed = true;
        self.mark_multi(&id);
        if is_primary {
            self.mark_open_sets();
            self.mark_primary(&id.0);
        }
        self.changed(Key::object(Of::Definition, id));
    }

    /// A pod has changed: which definitions it asks for.
    pub(super) fn pod_asks(&mut self, id: &ObjectName, pod: Option<&Pod>) {
        let before = asked(self.cluster.pods.get(id));
        let after = asked(pod);
        for gone in before.difference(&after) {
            if let Some(pods) = self.networks.asking.get_mut(gone) {
                pods.remove(id);
                if pods.is_empty() {
                    self.networks.asking.remove(gone);
                }
            }
            self.mark_owners(gone);
        }
        for new in after.difference(&before) {
            let pods = self.networks.asking.entry(new.clone()).or_default();
            pods.insert(id.clone());
        }
    }

    fn mark_asking(&mut self, definition: &ObjectName) {
        let pods = self.networks.asking.get(definition).into_iter().flatten();
        self.dirty.extend(pods.cloned().map(Key::pod));
    }

    /// What was in the way of refused networks may be gone.
    pub(super) fn mark_refused(&mut self) {
        let refused = self.networks.refused.keys();
        let defined = refused.filter_map(|id| self.cluster.definitions.get(id));
        let defined = defined.filter_map(|it| Some(shared(&it.network.as_ref().ok()?.0)));
        let keys: Vec<Key> = defined.collect();
        self.dirty.extend(keys);
    }

    /// The keys of networks, by definitions and rows.
    pub(super) fn mark_networks(&mut self) {
        let defined = self.cluster.definitions.values();
        let defined = defined.filter_map(|it| Some(&it.network.as_ref().ok()?.0));
        let keys: Vec<Key> = defined
            .chain(self.networks.live.keys())
            .map(shared)
            .collect();
        self.dirty.extend(keys);
        let all: Vec<Network> = self.networks.exits.keys().cloned().collect();
        for network in all {
            self.mark_exits_of(&network);
        }
    }

    /// Learns networks and attachments from the rows.
    pub(super) fn hold_networks(&mut self, db: &Db, now: std::time::Instant) {
        for (network, shape) in in_rows(db) {
            self.open(network, shape, db);
        }
        if self.networks.live.is_empty() {
            return;
        }
        let mut claims = Vec::new();
        for key in self.unreadable.iter().filter(|key| key.of == Of::Pod) {
            claims.push((key.id(), None));
        }
        for (id, pod) in by_age(&self.cluster) {
            claims.push((id.clone(), Some(pod.uid.clone())));
        }
        for (id, uid) in claims {
            for row in ports(&id, db, self.rules.adopt) {
                let is_its = uid.is_none() || row.map("options").str(UID) == uid.as_deref();
                let Some((attachment, network)) = attachment_of(&id, &row).filter(|_| is_its)
                else {
                    continue;
                };
                let option = |name| Name::from(row.map("options").str(name).unwrap_or_default());
                let of_row = (&option(UID), &option(NODE));
                let former = FormerAddresses {
                    recorded: addresses_in(&row),
                    is_certain: true,
                };
                self.claim(&attachment, &network, of_row, &[former], now);
            }
        }
        for row in db.rows(Table::LogicalSwitchPort.name()) {
            let key = super::owner_of(&row);
            let Some(id) = key.filter(|key| key.of == Of::Pod).map(|key| key.id()) else {
                continue;
            };
            if let Some((attachment, network)) = attachment_of(&id, &row)
                && let Some(space) = self.spaces.others.get_mut(&network)
                && let Some(shape) = self.networks.live.get(&network)
            {
                let node = row.map("options").str(NODE).unwrap_or_default().into();
                let part = shape.part(&network, &node);
                space
                    .addresses
                    .rest(&attachment, part, &addresses_in(&row), now);
            }
        }
    }

    /// Claims what an attachment has.
    fn claim(
        &mut self,
        attachment: &Attachment,
        network: &Network,
        (uid, node): (&Name, &Name),
        former: &[FormerAddresses],
        now: std::time::Instant,
    ) {
        let Some(space) = self.spaces.others.get_mut(network) else {
            return;
        };
        let Some(shape) = self.networks.live.get(network) else {
            return;
        };
        let whose = (uid, shape.part(network, node));
        let request = || Ok(Request::default());
        let claimed = space
            .addresses
            .claim(attachment, whose, former, request, now);
        if claimed.is_ok() {
            self.hold(attachment, network);
        }
    }

    fn hold(&mut self, attachment: &Attachment, network: &Network) {
        let held = self
            .networks
            .held
            .entry(attachment.pod.clone())
            .or_default();
        held.insert(attachment.entry.clone(), network.clone());
        self.enter(&attachment.pod, network);
    }

    /// Lets a network exist with this shape. Its addresses are those that pods have by their
    /// annotations, if it did not exist.
    fn open(&mut self, network: Network, shape: Shape, db: &Db) {
        let mut excluded = shape.exclude_subnets.clone();
        excluded.extend(shape.routers().map(|it| IpNet::from(it.addr())));
        self.scopes_changed = true;
        let layout = match shape.topology {
            Topology::Layer3 => Layout::Nodes,
            Topology::Layer2 | Topology::Localnet => Layout::Shared { excluded },
        };
        let is_new = !self.spaces.others.contains_key(&network);
        let space = self
            .spaces
            .others
            .entry(network.clone())
            .or_insert_with(|| Space::new(Vec::new(), layout.clone(), self.rules.rest));
        space.addresses.set_layout(layout);
        space.subnets.set_networks(shape.divided());
        if shape.topology != Topology::Layer3 {
            space.addresses.set_node(network.name(), &shape.subnets);
        }
        self.networks.live.insert(network.clone(), shape);
        if !is_new {
            return;
        }
        self.hold_parts(&network, db);
        let definitions = self.cluster.definitions.iter();
        let own =
            definitions.filter(|(_, it)| matches!(&it.network, Ok((of, _)) if *of == network));
        let pods = own
            .filter_map(|(id, _)| self.networks.asking.get(id))
            .flatten();
        let mut pods: Vec<(i64, &ObjectName, &Pod)> = pods
            .filter_map(|id| {
                Some((
                    self.cluster.pods.get(id)?.created,
                    id,
                    &self.cluster.pods[id],
                ))
            })
            .collect();
        pods.sort_by_key(|(created, id, _)| (*created, *id));
        let now = Instant::now().into_std();
        let mut claims = Vec::new();
        for (_, id, pod) in pods {
            for selection in &pod.selections.all {
                let is_its = self.cluster.definitions.get(&selection.definition);
                let is_its =
                    is_its.is_some_and(|it| matches!(&it.network, Ok((of, _)) if *of == network));
                let former = written(pod, &selection.entry).filter(|_| is_its);
                let attachment = Attachment::of(id, &selection.entry);
                let whose = (pod.uid.clone(), pod.node.clone());
                claims.extend(former.map(|it| (attachment, whose, it)));
            }
        }
        for (attachment, (uid, node), former) in claims {
            if let Some(space) = self.spaces.others.get(&network)
                && let Some(shape) = self.networks.live.get(&network)
                && space
                    .addresses
                    .is_free(shape.part(&network, &node), std::slice::from_ref(&former))
            {
                self.claim(&attachment, &network, (&uid, &node), &[former], now);
            }
        }
    }

    /// The rows that all nodes share.
    pub(super) fn wanted_of_network(&mut self, network: &Network, plan: &Plan<'_>) -> Wanted {
        let present = self.networks.live.get(network).cloned();
        let mut definitions: Vec<(i64, ObjectName, Shape)> = Vec::new();
        for (id, definition) in &self.cluster.definitions {
            if let Ok((name, shape)) = &definition.network
                && name == network
            {
                definitions.push((definition.created, id.clone(), shape.clone()));
            }
        }
        definitions.sort_by(|one, other| (one.0, &one.1).cmp(&(other.0, &other.1)));
        let holders: Vec<ObjectName> = self.networks.holders(network).cloned().collect();
        let first = definitions.first().cloned();
        let mut refusal = None;
        let shape = match (present.clone(), first.as_ref().map(|it| &it.2)) {
            (Some(_), None) if holders.is_empty() => None,
            (present, None) => present,
            (Some(present), Some(asked)) if !holders.is_empty() => {
                let fields = present.fixed(asked);
                match fields.is_empty() {
                    true => Some(asked.clone()),
                    false => {
                        refusal = Some(in_use(&fields, &holders));
                        Some(present)
                    }
                }
            }
            (_, Some(asked)) => Some(asked.clone()),
        };
        let conflict = shape
            .as_ref()
            .and_then(|shape| self.conflict(network, shape, plan));
        let is_blocked = conflict.is_some() && present.is_none();
        let mut refused = BTreeMap::new();
        for (_, id, of) in &definitions {
            let is_first = first.as_ref().is_some_and(|first| first.1 == *id);
            let differs = shape
                .as_ref()
                .map(|shape| shape.differing(of))
                .unwrap_or_default();
            let problem = match (&conflict, &refusal) {
                (Some(conflict), _) => Some(conflict.clone()),
                (None, Some(refusal)) if is_first => Some(refusal.clone()),
                _ if !differs.is_empty() => Some(format!(
                    "its network {} is defined by another NetworkAttachmentDefinition with other \
                     {}: make them equal, or give it another name",
                    network.name(),
                    differs.join(", ")
                )),
                _ => None,
            };
            refused.extend(problem.map(|problem| (id.clone(), problem)));
        }
        for (_, id, _) in &definitions {
            let (is, was) = (refused.remove(id), self.networks.refused.remove(id));
            if is != was {
                self.dirty.insert(Key::object(Of::Definition, id.clone()));
                self.mark_owners(id);
            }
            self.networks.refused.extend(is.map(|is| (id.clone(), is)));
        }
        let shape = shape.filter(|_| !is_blocked);
        if self.scopes.get(network).is_some_and(Scope::has_rested) {
            self.scopes_changed = true;
            self.dirty.insert(shared(network));
        }
        let is_changed = shape != present;
        if is_changed {
            self.mark_exits_of(network);
        }
        if let (Some(before), Some(after)) = (&present, &shape)
            && before.role != after.role
        {
            self.networks.turned.insert(network.clone());
            self.mark_open_sets();
        }
        match &shape {
            Some(shape) => {
                // With nobody on it, it is another network.
                if present
                    .as_ref()
                    .is_some_and(|it| !it.fixed(shape).is_empty())
                {
                    self.spaces.others.remove(network);
                }
                if is_changed {
                    self.open(network.clone(), shape.clone(), plan.db());
                }
            }
            None => {
                self.spaces.others.remove(network);
                self.networks.live.remove(network);
                if is_changed {
                    self.scopes_changed = true;
                    self.mark_open_sets();
                    self.mark_refused();
                }
            }
        }
        if is_changed {
            self.mark_parts_of(network, present.as_ref());
            for (_, id, _) in &definitions {
                self.mark_asking(id);
                self.mark_owners(id);
            }
            self.dirty.extend(holders.into_iter().map(Key::pod));
        }
        let rows = shape.map(|shape| self.rows_of_network(network, &shape));
        rows.unwrap_or_default().into()
    }

    /// Whether a network's pods are on a physical one.
    pub(super) fn is_physical(&self, network: &Network) -> bool {
        let shape = self.networks.live.get(network);
        shape.is_some_and(|it| it.topology == Topology::Localnet)
    }

    fn rows_of_network(&self, network: &Network, shape: &Shape) -> Vec<want::Row> {
        let mut all = want::network::network(network, shape);
        if shape.role == Role::Primary {
            all.extend(want::primary::router(network, shape));
            let open = self.open_ports();
            let has_tiers = self.policies.has_tiers();
            all.extend(isolation(network, &open, has_tiers));
            all.extend(boundary(network, has_tiers));
        }
        if shape.topology == Topology::Localnet {
            all.extend(asking(network, self.policies.has_tiers()));
        }
        all
    }

    /// Why a network can't have its rows: others have their names.
    fn conflict(&self, network: &Network, shape: &Shape, plan: &Plan<'_>) -> Option<String> {
        let own = prefix(network.name());
        let clashes = |it: &&Network| *it != network && prefix(it.name()) == own;
        let first = match self.networks.live.contains_key(network) {
            // What exists wins.
            true => None,
            false => self.networks.live.keys().find(clashes).or_else(|| {
                let defined = self.cluster.definitions.iter();
                let defined = defined.filter_map(|(id, it)| {
                    let (of, _) = it.network.as_ref().ok()?;
                    (prefix(of.name()) == own).then_some(((it.created, id), of))
                });
                let (_, oldest) = defined.min_by_key(|(age, _)| *age)?;
                Some(oldest).filter(clashes)
            }),
        };
        if let Some(other) = first {
            return Some(format!(
                "name of its spec.config: {} and {} would have rows of the same names: choose \
                 another",
                network.name(),
                other.name()
            ));
        }
        if let Some(problem) = self.unreachable(shape) {
            return Some(problem);
        }
        let key = shared(network);
        let rows = self.rows_of_network(network, shape);
        let mut named = rows.iter().filter(|row| row.table.is_named());
        named.find_map(|row| {
            let free = plan.may_have(&key, row.table, &row.name);
            free.err().map(|error| error.to_string())
        })
    }

    /// Why pods would not reach what they should by a network's subnets.
    fn unreachable(&self, shape: &Shape) -> Option<String> {
        let of_pods = self.pods_networks();
        let join = JOIN.iter().filter_map(|it| it.parse::<IpNet>().ok());
        let taken = of_pods.iter().copied().map(|it| (it, "--cluster-subnets"));
        let taken = taken.chain(join.map(|it| (it, "the networks of its routers")));
        let addresses = self.cluster.services.values().flat_map(|service| {
            let own = service.cluster_ips.iter().copied();
            own.map(|it| (IpNet::from(it), "the cluster IPs of services"))
        });
        for (net, of) in taken.chain(addresses) {
            if let Some(own) = shape.subnets.iter().find(|it| overlap(it, &net)) {
                return Some(format!(
                    "subnets of its spec.config: {own} overlaps with {net} ({of}): choose another"
                ));
            }
        }
        let is_there = |own: &IpNet| {
            let mut of_pods = of_pods.iter();
            of_pods.any(|it| it.addr().is_ipv4() == own.addr().is_ipv4())
        };
        let mut subnets = shape.subnets.iter();
        let other = subnets.find(|it| !is_there(it));
        let other = other.filter(|_| shape.role == Role::Primary && !of_pods.is_empty())?;
        Some(format!(
            "subnets of its spec.config: {other} is of a family that --cluster-subnets lacks, so \
             that a primary network would have no services by it: leave it out"
        ))
    }

    /// Why a definition is not, or not wholly, what its network is.
    pub(crate) fn refusal(&self, id: &ObjectName) -> Option<String> {
        let known = self.cluster.definitions.contains_key(id);
        let refused = self.networks.refused.get(id).filter(|_| known);
        refused.cloned().or_else(|| self.no_primary(id))
    }

    /// What is said of a definition.
    pub(super) fn check_definition(&self, id: &ObjectName, effects: &mut Effects) {
        let definition = self.cluster.definitions.get(id);
        let mistake = definition.and_then(|it| it.network.as_ref().err());
        let mut held = self.networks.held.values().flat_map(BTreeMap::keys);
        effects.warning = match (mistake, self.refusal(id)) {
            (Some(mistake), _) if held.any(|entry| definition_of(entry) == *id) => {
                let stays = "its network stays what it was while pods are on it";
                Some(("NetworkMistake", format!("{mistake}; {stays}")))
            }
            (Some(mistake), _) => Some(("NetworkMistake", mistake.clone())),
            (None, Some(refused)) => Some(("NetworkConflict", refused)),
            (None, None) => None,
        };
    }
}

fn in_use(fields: &[&str], holders: &[ObjectName]) -> String {
    format!(
        "{} of its spec.config can't be changed while pods are on the network, which stays what it \
         was: delete {}, or change it back",
        fields.join(", "),
        named(holders)
    )
}

/// Pods, for a message.
pub(super) fn named(pods: &[ObjectName]) -> String {
    let pods = pods.iter();
    let pods: Vec<_> = pods.map(|(of, name)| format!("{of}/{name}")).collect();
    some(&pods, NAMED, ", ", " and ")
}
