//! What the controller knows and what it still has to look at. No IO: objects and rows in; a
//! transaction and writes out.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ipnet::IpNet;
use podwire_ovs::client::{Changed, Client as Ovsdb};
use podwire_ovs::nb::{KEY, Table};
use podwire_ovs::replica::{Db, Row as Found};
use podwire_ovs::transact::Transaction;
use podwire_ovs::value::Uuid;
use tokio::time::Instant;

use crate::cluster::{Cluster, Key, Pod};
use crate::diff::Plan;
use crate::ipam::{self, AddressError, Addresses, ClusterSubnet, SubnetError, Subnets};
use crate::want;
use crate::watch::Change;
use crate::write::Write;

pub(super) struct State {
    pub(super) cluster: Cluster,
    subnets: Subnets,
    addresses: Addresses,
    adopt: bool,
    dirty: BTreeSet<Key>,
    /// To be looked at again at a certain time.
    retries: BTreeSet<(Instant, Key)>,
    /// To be looked at again when something changes that they may depend on.
    blocked: BTreeSet<Key>,
    /// Whose each row is: the object of one that was deleted is known by nothing else.
    rows: HashMap<(&'static str, Uuid), Key>,
    /// What people were warned of when the key was last looked at.
    warned: HashMap<Key, String>,
    /// That of the key which is looked at now.
    warned_before: Option<String>,
    /// What is on its way to the API server.
    writing: HashMap<Key, Vec<Write>>,
    /// Nodes whose network will be there when the pass is done.
    prepared: BTreeSet<String>,
}

/// A part of a pass.
#[derive(Default)]
pub(super) struct Step {
    pub(super) keys: Vec<Key>,
    pub(super) transaction: Transaction,
    pub(super) writes: Vec<(Key, Write)>,
}

impl State {
    pub(super) fn new(networks: Vec<ClusterSubnet>, adopt: bool) -> Self {
        Self {
            cluster: Cluster::default(),
            subnets: Subnets::new(networks),
            addresses: Addresses::default(),
            adopt,
            dirty: BTreeSet::new(),
            retries: BTreeSet::new(),
            blocked: BTreeSet::new(),
            rows: HashMap::new(),
            warned: HashMap::new(),
            warned_before: None,
            writing: HashMap::new(),
            prepared: BTreeSet::new(),
        }
    }

    /// Takes a change of an object.
    pub(super) fn learn(&mut self, change: Change) {
        let key = match change {
            Change::Node(name, node) => {
                let is_new = !self.cluster.nodes.contains_key(&name);
                if is_new || node.is_none() {
                    self.mark_pods_of(&name);
                }
                let known = self.cluster.nodes.get(&name);
                let is_old = known.zip(node.as_ref()).is_some_and(|(known, node)| {
                    known.uid == node.uid && node.version < known.version
                });
                if is_old {
                    return;
                }
                set(&mut self.cluster.nodes, name.clone(), node);
                Key::Node(name)
            }
            Change::Pod((namespace, name), pod) => {
                if pod.is_none() {
                    self.unblock();
                }
                let pod_name = (namespace.clone(), name.clone());
                let known = self.cluster.pods.get(&pod_name);
                let is_old = known.zip(pod.as_ref()).is_some_and(|(known, pod)| {
                    known.uid == pod.uid && pod.version < known.version
                });
                if is_old {
                    return;
                }
                set(&mut self.cluster.pods, pod_name, pod);
                Key::Pod(namespace, name)
            }
            Change::Service((namespace, name), service) => {
                let service_name = (namespace.clone(), name.clone());
                set(&mut self.cluster.services, service_name, service);
                Key::Service(namespace, name)
            }
            Change::Slice(name, slice) => {
                let key = Key::Service(name.0.clone(), name.1.clone());
                set(&mut self.cluster.slices, name, slice);
                key
            }
            Change::Listed => return,
        };
        self.dirty.insert(key);
    }

    /// Learns from objects and rows who has which addresses, and marks everything. What is there
    /// goes before what is new, and of two nodes with one subnet the older keeps it.
    pub(super) fn begin(&mut self, ovsdb: &Ovsdb) {
        let mut nodes: Vec<_> = self.cluster.nodes.iter().collect();
        nodes.sort_by_key(|(name, node)| (node.created, *name));
        for (name, node) in nodes {
            let had = node.subnets.as_deref().map(ipam::read_node_subnets);
            // A conflict is found again, and told, when the node is looked at.
            let _ = self.subnets.keep(name, &had.unwrap_or_default());
            self.addresses.set_node(name, self.subnets.of(name));
        }
        ovsdb.read(|db| {
            let now = Instant::now().into_std();
            for (name, pod) in &self.cluster.pods {
                let had = addresses_before(name, pod, db);
                if !had.is_empty() {
                    // One that can't keep its own gets another when it is looked at.
                    let _ = self.addresses.claim(name, (&pod.uid, &pod.node), &had, now);
                }
            }
            for table in Table::ALL {
                let rows = db.rows(table.name());
                let rows = rows.filter_map(|row| Some(((table.name(), row.uuid()), key_of(&row)?)));
                self.rows.extend(rows);
            }
        });
        self.mark_all();
    }

    /// Takes a change of rows, whoever made it.
    pub(super) fn rows_changed(&mut self, ovsdb: &Ovsdb, changed: &Changed) {
        ovsdb.read(|db| {
            for &(table, uuid) in &changed.rows {
                let is = db.row(table, uuid).and_then(|row| key_of(&row));
                let was = match &is {
                    Some(key) => self.rows.insert((table, uuid), key.clone()),
                    None => self.rows.remove(&(table, uuid)),
                };
                self.dirty.extend(is.into_iter().chain(was));
            }
        });
        self.unblock();
        if changed.resynced {
            self.mark_all();
        }
    }

    pub(super) fn is_clean(&self) -> bool {
        self.dirty.is_empty()
    }

    pub(super) fn take_dirty(&mut self) -> BTreeSet<Key> {
        std::mem::take(&mut self.dirty)
    }

    /// Compares keys, until their operations are enough for a transaction.
    pub(super) fn step(&mut self, ovsdb: &Ovsdb, keys: &mut BTreeSet<Key>, most: usize) -> Step {
        let mut step = Step::default();
        let adopt = self.adopt;
        ovsdb.read(|db| {
            let mut plan = Plan::new(db, adopt);
            while plan.len() < most
                && let Some(key) = keys.pop_first()
            {
                self.warned_before = self.warned.remove(&key);
                let written = step.writes.len();
                let wanted = self.wanted(&key, db, &mut step.writes);
                let compared = wanted.and_then(|rows| {
                    let compared = plan.compare(&key, &rows);
                    compared.map_err(|error| Problem::blocked("RowConflict", error.to_string()))
                });
                match compared {
                    Ok(()) => step.keys.push(key),
                    Err(problem) => {
                        self.withdraw(&key, step.writes.split_off(written), &mut step.writes);
                        self.take_problem(key, problem, &mut step.writes);
                    }
                }
            }
            step.transaction = plan.into_transaction();
        });
        step
    }

    /// The rows that an object should have; on the way it gets its addresses, and what is to be
    /// written about it is added to `writes`.
    fn wanted(
        &mut self,
        key: &Key,
        db: &Db,
        writes: &mut Vec<(Key, Write)>,
    ) -> Result<Vec<want::Row>, Problem> {
        match key {
            Key::Cluster => Ok(want::cluster()),
            Key::Node(name) => self.wanted_of_node(name, writes),
            Key::Pod(namespace, name) => self.wanted_of_pod(namespace, name, db, writes),
            Key::Service(namespace, name) => {
                let id = (namespace.clone(), name.clone());
                let service = self.cluster.services.get(&id);
                Ok(service.map_or_else(Vec::new, |service| {
                    let slices: Vec<_> = self.cluster.slices_of(namespace, name).collect();
                    want::service(namespace, name, service, slices.iter().copied())
                }))
            }
        }
    }

    fn wanted_of_node(
        &mut self,
        name: &str,
        writes: &mut Vec<(Key, Write)>,
    ) -> Result<Vec<want::Row>, Problem> {
        let key = Key::Node(name.to_owned());
        let Some(node) = self.cluster.nodes.get(name).cloned() else {
            self.subnets.release(name);
            self.addresses.set_node(name, &[]);
            return Ok(Vec::new());
        };
        let had = node.subnets.as_deref().map(ipam::read_node_subnets);
        let had = had.unwrap_or_default();
        if let Err(error @ SubnetError::Taken { .. }) = self.subnets.keep(name, &had) {
            let problem = Problem::blocked("SubnetConflict", error.to_string());
            self.warn(&key, &problem, writes);
        }
        self.subnets
            .complete(name)
            .map_err(|error| Problem::blocked("NoSubnet", error.to_string()))?;
        let subnets = self.subnets.of(name).to_vec();
        if self.addresses.set_node(name, &subnets) {
            self.mark_pods_of(name);
        }
        if had != subnets {
            let (uid, value) = (node.uid.clone(), ipam::write_node_subnets(&subnets));
            self.write(&key, Write::Annotation { uid, value }, writes);
        }
        if !node.network_available {
            self.prepared.insert(name.to_owned());
        }
        Ok(want::node(name, &node, &subnets))
    }

    fn wanted_of_pod(
        &mut self,
        namespace: &str,
        name: &str,
        db: &Db,
        writes: &mut Vec<(Key, Write)>,
    ) -> Result<Vec<want::Row>, Problem> {
        let id = (namespace.to_owned(), name.to_owned());
        let now = Instant::now().into_std();
        let Some(pod) = self.cluster.pods.get(&id) else {
            self.addresses.release(&id, now);
            return Ok(Vec::new());
        };
        let had = addresses_before(&id, pod, db);
        let whose = (&*pod.uid, &*pod.node);
        let claimed = match self.addresses.claim(&id, whose, &had, now) {
            Ok(claimed) => claimed,
            // When it has one its pods are looked at; when it can't have one, that is said of it.
            Err(AddressError::NoSubnet(_)) => return Ok(Vec::new()),
            Err(error @ AddressError::Resting { until, .. }) => {
                return Err(Problem::until(until.into(), "NoAddress", error.to_string()));
            }
            Err(error @ AddressError::Full { .. }) => {
                return Err(Problem::blocked("NoAddress", error.to_string()));
            }
        };
        let rows = want::pod(namespace, name, pod, claimed);
        let is_written = pod
            .networks
            .as_deref()
            .is_some_and(|annotation| ipam::pod_networks_say(annotation, claimed));
        if !is_written && let Some(value) = ipam::write_pod_networks(claimed) {
            let (key, uid) = (Key::Pod(id.0, id.1), pod.uid.clone());
            self.write(&key, Write::Annotation { uid, value }, writes);
        }
        Ok(rows)
    }

    /// These are to be looked at again.
    pub(super) fn failed(&mut self, keys: Vec<Key>, at: Instant) {
        for key in keys {
            self.writing.remove(&key);
            if let Key::Node(name) = &key {
                self.prepared.remove(name);
            }
            self.retries.insert((at, key));
        }
    }

    /// What could only be written when the pass was done.
    pub(super) fn after_pass(&mut self) -> Vec<(Key, Write)> {
        let mut writes = Vec::new();
        for name in std::mem::take(&mut self.prepared) {
            self.write(&Key::Node(name), Write::NetworkAvailable, &mut writes);
        }
        writes
    }

    /// The object says what was written, though the watch may tell so only later, and may tell what
    /// was before first.
    pub(super) fn was_written(&mut self, key: &Key, write: &Write, version: u64) {
        self.was_refused(key, write);
        match (key, write) {
            (Key::Node(name), write) => {
                let Some(node) = self.cluster.nodes.get_mut(name) else {
                    return;
                };
                node.version = node.version.max(version);
                match write {
                    Write::Annotation { uid, value } if *uid == node.uid => {
                        node.subnets = Some(value.clone());
                    }
                    Write::NetworkAvailable => node.network_available = true,
                    _ => {}
                }
            }
            (Key::Pod(namespace, name), Write::Annotation { uid, value }) => {
                let id = (namespace.clone(), name.clone());
                let pod = self.cluster.pods.get_mut(&id);
                if let Some(pod) = pod.filter(|pod| pod.uid == *uid) {
                    pod.version = pod.version.max(version);
                    pod.networks = Some(value.clone());
                }
            }
            _ => {}
        }
    }

    /// A write is over, and nothing of it is there.
    pub(super) fn was_refused(&mut self, key: &Key, write: &Write) {
        if let Some(writing) = self.writing.get_mut(key) {
            writing.retain(|other| other != write);
            if writing.is_empty() {
                self.writing.remove(key);
            }
        }
    }

    pub(super) fn next_retry(&self) -> Option<Instant> {
        self.retries.first().map(|(at, _)| *at)
    }

    pub(super) fn retry(&mut self, now: Instant) {
        while self.retries.first().is_some_and(|(at, _)| *at <= now) {
            self.dirty
                .extend(self.retries.pop_first().map(|(_, key)| key));
        }
    }

    fn mark_all(&mut self) {
        self.dirty.extend(self.cluster.keys());
        self.dirty.extend(self.rows.values().cloned());
    }

    fn mark_pods_of(&mut self, node: &str) {
        let pods = self.cluster.pods.iter().filter(|(_, pod)| pod.node == node);
        let keys = pods.map(|((namespace, name), _)| Key::Pod(namespace.clone(), name.clone()));
        self.dirty.extend(keys);
        self.unblock();
    }

    fn unblock(&mut self) {
        self.dirty.append(&mut self.blocked);
    }

    /// Adds a write, unless it is on its way already.
    fn write(&mut self, key: &Key, write: Write, writes: &mut Vec<(Key, Write)>) {
        let writing = self.writing.entry(key.clone()).or_default();
        if !writing.contains(&write) {
            writing.push(write.clone());
            writes.push((key.clone(), write));
        }
    }

    fn take_problem(&mut self, key: Key, problem: Problem, writes: &mut Vec<(Key, Write)>) {
        self.warn(&key, &problem, writes);
        match problem.until {
            Some(until) => drop(self.retries.insert((until, key))),
            None => drop(self.blocked.insert(key)),
        }
    }

    /// Announces nothing of an object that has no rows: of its writes only warnings remain.
    fn withdraw(&mut self, key: &Key, new: Vec<(Key, Write)>, writes: &mut Vec<(Key, Write)>) {
        if let Key::Node(name) = key {
            self.prepared.remove(name);
        }
        for (key, write) in new {
            match write {
                Write::Warning { .. } => writes.push((key, write)),
                _ => self.was_refused(&key, &write),
            }
        }
    }

    /// Warns people once of each thing.
    fn warn(&mut self, key: &Key, problem: &Problem, writes: &mut Vec<(Key, Write)>) {
        let message = problem.message.clone();
        self.warned.insert(key.clone(), message.clone());
        if self.warned_before.as_ref() == Some(&message) {
            return;
        }
        tracing::warn!(%key, message, "can't be done");
        let uid = match key {
            Key::Node(name) => self.cluster.nodes.get(name).map(|node| &node.uid),
            Key::Pod(namespace, name) => {
                let id = (namespace.clone(), name.clone());
                self.cluster.pods.get(&id).map(|pod| &pod.uid)
            }
            Key::Cluster | Key::Service(..) => None,
        };
        let (uid, reason) = (uid.cloned().unwrap_or_default(), problem.reason);
        let warning = Write::Warning {
            uid,
            reason,
            message,
        };
        self.write(key, warning, writes);
    }
}

/// Why an object's rows can't be as wanted now.
struct Problem {
    reason: &'static str,
    message: String,
    /// When to look again; without a time, when something changes.
    until: Option<Instant>,
}

impl Problem {
    fn blocked(reason: &'static str, message: String) -> Self {
        Self {
            reason,
            message,
            until: None,
        }
    }

    fn until(until: Instant, reason: &'static str, message: String) -> Self {
        Self {
            until: Some(until),
            ..Self::blocked(reason, message)
        }
    }
}

/// The addresses that a pod had: by its annotation, else by its logical port, where a crash came
/// between the two.
fn addresses_before((namespace, name): &(String, String), pod: &Pod, db: &Db) -> Vec<IpNet> {
    if let Some(annotation) = &pod.networks {
        return ipam::read_pod_networks(annotation);
    }
    let key = Key::Pod(namespace.clone(), name.clone()).to_string();
    let rows = db.nb_of_object(Table::LogicalSwitchPort, &key);
    let addresses = rows
        .filter(|row| row.map("options").str("iface-id-ver") == Some(&pod.uid))
        .filter_map(|row| row.str("addresses"));
    addresses
        .flat_map(str::split_whitespace)
        .filter_map(|word| word.parse().ok())
        .map(|address: std::net::IpAddr| address.into())
        .collect()
}

fn key_of(row: &Found<'_>) -> Option<Key> {
    Key::parse(row.map("external_ids").str(KEY)?)
}

fn set<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}
