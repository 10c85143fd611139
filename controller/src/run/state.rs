//! The controller's state and its work queue. No IO: objects and rows in; a transaction and writes
//! out.

mod begin;
mod claims;
mod gateways;
mod groups;
mod late;
mod learn;
mod networks;
mod refused;
mod unread;
mod users;
mod wanted;
mod written;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use podwire_cluster::claims::Refused;
use podwire_ovs::client::{Changed, Client as Ovsdb};
use podwire_ovs::nb::{KEY, Table};
use podwire_ovs::replica::Row as Found;
use podwire_ovs::transact::Transaction;
use podwire_ovs::value::{Atom, Uuid};
use tokio::time::Instant;

use super::kinds::KINDS;
use super::latency::Timer;
use super::watch::ListState;
use crate::cluster::{Cluster, Name, ObjectName};
use crate::config::Rules;
use crate::diff::Plan;
use crate::ipam::{Joins, Layout, Space, Spaces};
use crate::key::{Key, Of};
use crate::members::{Group, Members};
use crate::names::pod_port;
use crate::progress::Progress;
use crate::want::policy::{METER, Policies};
use crate::want::protect;
use crate::write::Write;
pub use begin::Contradiction;
pub(crate) use begin::check;
use groups::Unswept;
use networks::{Networks, Scopes, everywhere};
pub(crate) use networks::{in_rows, shared};
pub(crate) use refused::is_refusal;
use wanted::{Effects, Wanted};

/// The approximate maximum of the members that a transaction adds, in bytes of JSON. The database
/// takes a transaction of 4 MiB.
const ADDED: usize = 1 << 20;
/// How long a step may compare before it looks for what is new.
const STEP: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(crate) struct State {
    pub(crate) cluster: Cluster,
    pub(crate) policies: Policies,
    /// Those of other networks.
    scopes: Scopes,
    /// Whose they are may differ.
    scopes_changed: bool,
    /// What is known of each of [`KINDS`].
    kinds: Vec<ListState>,
    rules: Rules,
    spaces: Spaces,
    pub(crate) networks: Networks,
    /// The addresses of gateway routers.
    joins: Joins,
    /// The addresses that services can't have.
    refused: BTreeMap<ObjectName, Refused>,
    /// Whether that may have changed.
    claims_changed: bool,
    dirty: BTreeSet<Key>,
    /// Pods that have come since they were last compared.
    new_pods: BTreeSet<Key>,
    /// To be processed when what they depend on is listed.
    held: BTreeSet<Key>,
    /// To be processed again at a certain time.
    retries: BTreeSet<(Instant, Key)>,
    /// Objects that were never read: nothing of theirs is changed.
    unreadable: BTreeSet<Key>,
    /// The services of slices that could not be read at the start, until these have endpoints.
    unread_slices: BTreeMap<ObjectName, Name>,
    /// To be processed again when something changes that they may depend on.
    blocked: BTreeSet<Key>,
    /// The [`KEY`] of each row: nothing else tells the owner of a deleted one.
    rows: HashMap<Uuid, Name>,
    /// The load balancers of each switch and of the group, to notice removed ones.
    balancers: HashMap<Uuid, HashSet<Uuid>>,
    pub(crate) members: Members,
    /// Namespaces that are gone, until when their groups stay.
    resting: BTreeMap<Name, Instant>,
    /// Groups whose members in the database may be others.
    unswept: Unswept,
    /// Groups that this controller has written, until their change is seen.
    own_groups: HashSet<Group>,
    /// Changes on their way to the database.
    pub(super) timer: Timer,
    /// Keys whose rows the database refuses, with what it said, and how often in a row.
    refused_rows: HashMap<Key, (String, u32)>,
    /// The last warning for each key.
    warned: HashMap<Key, String>,
    /// Writes in flight to the API server.
    under_way: HashSet<(Key, Write)>,
    /// The version of an object after the last write, until the watch reports it.
    written: HashMap<Key, u64>,
}

/// A part of a pass.
#[derive(Default)]
pub(crate) struct Step {
    pub(crate) keys: Vec<Key>,
    pub(crate) transaction: Transaction,
    /// It is there for its fence alone, and changes nothing.
    pub(crate) is_fence: bool,
    /// To be written after the transaction is committed.
    pub(crate) writes: Vec<(Key, Write)>,
    /// The groups that it makes, or changes the members of.
    pub(crate) groups: Vec<Group>,
    /// The new ports of pods.
    pub(crate) ports: Vec<String>,
    /// Chassis to remove from the southbound database first, each with its former node: the row
    /// that identifies it is removed with the transaction.
    pub(crate) chassis: Vec<(Key, String)>,
}

impl State {
    pub(crate) fn new(rules: Rules) -> Self {
        Self {
            kinds: vec![ListState::default(); KINDS.len()],
            spaces: Spaces {
                default: Space::new(rules.networks.clone(), Layout::Nodes, rules.rest),
                others: BTreeMap::new(),
            },
            rules,
            ..Self::default()
        }
    }

    /// Applies a change of rows, by whomever.
    pub(crate) fn rows_changed(&mut self, ovsdb: &Ovsdb, changed: &Changed) {
        let is_switch = |table| table == Table::LogicalSwitch.name();
        let mut switches_changed = false;
        let mut others_changed = false;
        let mut parts = BTreeSet::new();
        ovsdb.read(|db| {
            if changed.resynced {
                self.learn_tiers(db);
            }
            for &(table, uuid) in &changed.rows {
                let row = db.row(table, uuid);
                self.group_changed(table, uuid, row);
                if table == Table::Meter.name() {
                    self.meter_changed();
                }
                if is_switch(table) || table == Table::LoadBalancerGroup.name() {
                    self.balancers_changed(row, uuid);
                }
                let is = row.and_then(|row| key_of(&row));
                let was = match &is {
                    Some(key) => self.rows.insert(uuid, key.clone()),
                    None => self.rows.remove(&uuid),
                };
                switches_changed |= is_switch(table) && is != was;
                others_changed |= is.is_none() && was.is_none() && row.is_none();
                let keys = is.iter().chain(&was).filter_map(|key| Key::parse(key));
                for key in keys.collect::<Vec<_>>() {
                    self.mark_gateway(&key);
                    if key.of == Of::Node {
                        parts.insert(key.network.clone());
                    }
                    self.dirty.insert(key);
                }
            }
        });
        if switches_changed {
            self.mark_local_services();
        }
        for network in parts {
            self.mark_switches(&network);
        }
        if others_changed {
            self.mark_refused();
        }
        self.unblock();
        if changed.resynced {
            self.mark_all();
        }
    }

    /// Marks the services whose load balancers were removed from a group or a switch: their own
    /// rows don't show it.
    fn balancers_changed(&mut self, row: Option<Found<'_>>, uuid: Uuid) {
        let is: HashSet<Uuid> = row
            .into_iter()
            .flat_map(|row| row.references("load_balancer"))
            .collect();
        let was = match is.is_empty() {
            true => self.balancers.remove(&uuid),
            false => self.balancers.insert(uuid, is.clone()),
        };
        let lost = was.into_iter().flatten().filter(|it| !is.contains(it));
        let keys = lost.filter_map(|it| Key::parse(self.rows.get(&it)?));
        self.dirty.extend(keys);
    }

    /// Counts the objects.
    pub(crate) fn count(&self, progress: &mut Progress) {
        progress.nodes = self.cluster.nodes.len() as u64;
        progress.pods = self.cluster.pods.len() as u64;
        progress.services = self.cluster.services.len() as u64;
        progress.problems = (self.warned.len() + self.refused_rows.len()) as u64;
        progress.retries = self.retries.len() as u64;
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.dirty.is_empty()
    }

    /// Whether nothing is left, not even for later.
    pub(crate) fn is_done(&self) -> bool {
        let is_listing = self.kinds.contains(&ListState::Listing);
        self.is_clean() && self.held.is_empty() && !is_listing
    }

    pub(crate) fn take_dirty(&mut self) -> BTreeSet<Key> {
        self.refresh_policies();
        let dirty = std::mem::take(&mut self.dirty);
        if !self.kinds.contains(&ListState::Listing) {
            return dirty;
        }
        let (held, free): (BTreeSet<_>, _) =
            dirty.into_iter().partition(|key| self.is_key_held(key));
        self.held.extend(held);
        free
    }

    /// Puts back keys for which there was no time.
    pub(crate) fn requeue(&mut self, mut keys: BTreeSet<Key>) {
        self.dirty.append(&mut keys);
    }

    /// Compares keys, until there are enough operations for a transaction, or some time has passed;
    /// without a maximum, all of them.
    pub(crate) fn step(
        &mut self,
        ovsdb: &Ovsdb,
        keys: &mut BTreeSet<Key>,
        most: Option<usize>,
    ) -> Step {
        let mut step = Step::default();
        ovsdb.read(|db| {
            let mut plan = Plan::new(db, self.rules.adopt);
            let began = Instant::now();
            let has_room = |plan: &Plan| {
                most.is_none_or(|most| {
                    plan.len() < most && plan.added() < ADDED && began.elapsed() < STEP
                })
            };
            while has_room(&plan)
                && let Some(key) = self.next_key(keys)
            {
                if self.unreadable.contains(&key) {
                    continue;
                }
                // Those in a transaction with it would be refused, too.
                let is_alone = self.refused_rows.contains_key(&key);
                if is_alone && !step.keys.is_empty() {
                    keys.insert(key);
                    break;
                }
                if key.of == Of::Members {
                    self.sweep(&mut plan);
                    step.keys.push(key);
                    continue;
                }
                let before = self.warned.remove(&key);
                let mut effects = Effects::default();
                let wanted = self.wanted(&key, &plan, &mut effects);
                let compared = wanted.and_then(|wanted| {
                    let compared = self.compare(&mut plan, &key, wanted);
                    compared.map_err(|error| self.conflict_of(&error))
                });
                if compared.is_ok() && self.logs(&key) {
                    let (name, rate) = METER;
                    plan.add_meter(name, rate);
                }
                if compared.is_ok() && key == Key::only(Of::Cluster) {
                    for (name, rate) in protect::meters() {
                        plan.add_meter(&name, rate);
                    }
                }
                let mut is_done = compared.is_ok();
                if let Err(problem) = &compared {
                    // Nothing is written about an object that has no rows.
                    effects = Effects::default();
                    effects.warning = Some((problem.reason, problem.message.clone()));
                    effects.warning.take_if(|(_, message)| message.is_empty());
                    // The port of a pod that this one replaces would outlive its addresses. No row
                    // can be in the way of that. Its own port stays: the pod may be running.
                    if key.of == Of::Pod && !self.has_port(&key, db) {
                        let nothing = Wanted::default();
                        is_done = self.compare(&mut plan, &key, nothing).is_ok();
                    }
                }
                let warning = effects
                    .warning
                    .and_then(|it| self.warning(&key, it, before));
                let writes = effects.writes.into_iter().chain(warning);
                step.writes.extend(writes.map(|write| (key.clone(), write)));
                let chassis = effects.chassis.into_iter().map(|name| (key.clone(), name));
                step.chassis.extend(chassis);
                let again = compared.err().map(|problem| problem.until);
                match again.or(effects.again) {
                    Some(Some(until)) => drop(self.retries.insert((until, key.clone()))),
                    Some(None) => drop(self.blocked.insert(key.clone())),
                    None => {}
                }
                if is_done {
                    step.keys.push(key);
                }
                if is_alone {
                    break;
                }
            }
            let pods = step.keys.iter().filter(|key| key.of == Of::Pod);
            let ports = pods.map(|key| pod_port(&key.id()));
            let is_new = |port: &String| plan.inserts(Table::LogicalSwitchPort, port);
            step.ports = ports.filter(is_new).collect();
            step.groups = plan.groups();
            step.transaction = plan.into_transaction();
        });
        step
    }

    /// The next key to compare. What others depend on comes first; of pods, those that are new.
    fn next_key(&mut self, keys: &mut BTreeSet<Key>) -> Option<Key> {
        if keys.first()?.of == Of::Pod {
            while let Some(new) = self.new_pods.pop_first() {
                if keys.remove(&new) {
                    return Some(new);
                }
            }
        }
        keys.pop_first()
    }

    /// Warns once about each problem.
    fn warning(
        &mut self,
        key: &Key,
        (reason, message): (&'static str, String),
        before: Option<String>,
    ) -> Option<Write> {
        self.warned.insert(key.clone(), message.clone());
        if before.as_ref() == Some(&message) {
            return None;
        }
        tracing::warn!(%key, message, "can't be done");
        Some(Write::Warning {
            uid: self.uid(key).unwrap_or_default().into(),
            reason,
            message: message.into(),
        })
    }

    /// Marks keys to be processed again.
    pub(crate) fn failed(&mut self, keys: impl IntoIterator<Item = Key>, at: Instant) {
        for key in keys {
            if key.of == Of::Pod {
                for space in self.spaces.all_mut() {
                    space.addresses.rest_again(&key.id(), at.into_std());
                }
            }
            self.retries.insert((at, key));
        }
        let members = self.sweep_all();
        self.retries.insert((at, members));
    }

    pub(crate) fn next_retry(&self) -> Option<Instant> {
        self.retries.first().map(|(at, _)| *at)
    }

    pub(crate) fn retry(&mut self, now: Instant) {
        self.resting.retain(|_, until| *until > now);
        while self.retries.first().is_some_and(|(at, _)| *at <= now) {
            self.dirty
                .extend(self.retries.pop_first().map(|(_, key)| key));
        }
    }

    fn mark_all(&mut self) {
        self.sweep_all();
        self.mark_networks();
        self.mark_gateways();
        self.dirty.extend(self.cluster.keys());
        for network in self.networks_of(&Name::default()) {
            let subjects = self.policies_on(&network).map(Policies::subjects);
            let keys: Vec<Key> = subjects
                .into_iter()
                .flatten()
                .map(|it| it.key(&network))
                .collect();
            self.dirty.extend(keys);
        }
        let keys = self.rows.values().filter_map(|key| Key::parse(key));
        self.dirty.extend(keys);
    }

    fn mark_pods_of(&mut self, node: &str) {
        let pods = self
            .cluster
            .pods
            .iter()
            .filter(|(_, pod)| pod.node == *node);
        let keys = pods.map(|(id, _)| Key::pod(id.clone()));
        self.dirty.extend(keys);
        self.unblock();
    }

    /// How many connections a pod on a node can have; 0 is no limit.
    fn connections_on(&self, node: &str) -> u32 {
        let known = self.cluster.nodes.get(node);
        match known.is_some_and(|it| it.is_unlimited) {
            true => 0,
            false => self.rules.pod_connections,
        }
    }

    /// Marks the services with load balancers of single nodes.
    fn mark_local_services(&mut self) {
        let services = self.cluster.services.iter();
        let local = services.filter(|(_, service)| service.is_internal_local);
        let keys = local.map(|(id, _)| Key::service(id.clone()));
        self.dirty.extend(keys);
    }

    /// Frees the addresses of a pod that is gone or was replaced.
    fn release(&mut self, pod: &ObjectName) {
        let addresses = &mut self.spaces.default.addresses;
        let now = Instant::now().into_std();
        let Some(node) = addresses.release(&pod.clone().into(), now) else {
            return;
        };
        self.unblock();
        let is_gone = !self.cluster.nodes.contains_key(&node);
        if is_gone || self.rules.use_pod_cidrs {
            // It can now have other subnets, or none.
            self.dirty.insert(Key::node(node));
        }
    }

    fn unblock(&mut self) {
        self.dirty.append(&mut self.blocked);
    }
}

/// Whose row it is.
fn owner_of(row: &Found<'_>) -> Option<Key> {
    Key::parse(&key_of(row)?)
}

fn key_of(row: &Found<'_>) -> Option<Name> {
    match row.map("external_ids").get(KEY)? {
        Atom::String(key) => Some(key.clone()),
        _ => None,
    }
}
