//! Groups whose members several keys contribute, compared with those in the database.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use podwire_ovs::nb::Table;
use podwire_ovs::replica::{Db, Row as Found};
use podwire_ovs::value::{Uuid, Value};
use tokio::time::Instant;

use super::begin::{UID, ports};
use super::wanted::{Problem, Wanted};
use super::{State, owner_of};
use crate::cluster::policy::Direction;
use crate::cluster::{Cluster, Name};
use crate::diff::{DiffError, Plan};
use crate::key::{Key, Network, Of};
use crate::members::Group;
use crate::names::pod_port;
use crate::want::Row;
use crate::want::policy::{Subject, candidate, isolated, isolated_group};

/// When to look again for a group that is on its way.
const COMING: Duration = Duration::from_secs(1);

/// Groups to be compared as a whole.
#[derive(Debug)]
pub(super) enum Unswept {
    /// All of them: at the start, and when it is unknown what was written.
    All,
    /// These rows, which somebody changed.
    Some(BTreeSet<(Table, Uuid)>),
}

impl Default for Unswept {
    fn default() -> Self {
        Self::Some(BTreeSet::new())
    }
}

/// What names sets of peers.
const POLICIES: [Of; 5] = [
    Of::Policy,
    Of::MultiPolicy,
    Of::ClusterPolicy,
    Of::AdminPolicy,
    Of::BaselinePolicy,
];

/// The tables of groups.
fn tables() -> impl Iterator<Item = Table> {
    let all = Table::ALL.into_iter();
    all.filter(|table| table.members().is_some())
}

impl State {
    /// Adds to a plan what a key lacks.
    pub(super) fn compare(
        &mut self,
        plan: &mut Plan<'_>,
        key: &Key,
        Wanted { rows, members }: Wanted,
    ) -> Result<(), DiffError> {
        let gone = self.members.without(key, &members);
        let keeps = self.is_unknown(key);
        if key.of == Of::Pod && !rows.is_empty() {
            // Also without a policy: the pod would be open when one comes.
            for direction in Direction::BOTH {
                let group = isolated_group(&key.namespace, direction);
                plan.may_join(key, Table::PortGroup, &group)?;
            }
        }
        plan.compare(key, &rows, (members.iter(), &gone), keeps)?;
        self.members.set(key, members);
        // A group that is new, or was removed and is made anew. Those that are there are compared
        // by the sweep, which leaves out what this controller has written itself.
        for row in rows.iter().filter(|row| row.table.members().is_some()) {
            if plan.inserts(row.table, &row.name) {
                let group = self.join_all(plan, row.table, row.name.as_str());
                // Pods that rows show on it, and that are compared later, must not be open until
                // then.
                if key.of == Of::Cluster
                    && key.network != Network::DEFAULT
                    && group == isolated(&key.network, "").group
                {
                    for pod in self.networks.holders(&key.network) {
                        plan.join(&group, &pod_port(pod).into());
                    }
                }
            }
        }
        Ok(())
    }

    /// A set that is made begins with its members: otherwise each of its pods would join it by an
    /// operation of its own.
    pub(super) fn fill(&mut self, plan: &Plan<'_>, set: &Key, rows: &[Row]) {
        let is_there = |row: &Row| plan.has(row.table, &row.name);
        if rows.iter().all(is_there) {
            return;
        }
        let Cluster {
            pods, namespaces, ..
        } = &self.cluster;
        let Some(policies) = self.policies_on(&set.network) else {
            return;
        };
        let mut found = Vec::new();
        for subject in policies.pods_of(&set.name, pods, namespaces) {
            let Subject::Pod(id) = &subject else {
                continue;
            };
            let Some(pod) = pods.get(id) else {
                continue;
            };
            let own = self.places(id, pod);
            for (.., own) in own.filter(|(network, ..)| *network == set.network) {
                let pod = candidate(id, pod, namespaces);
                let places = policies.places(&set.name, &pod, &own.ips());
                found.extend(places.into_iter().map(|it| (Key::pod(id.clone()), it)));
            }
        }
        for (key, place) in found {
            self.members.add(&key, place);
        }
    }

    /// Adds what all keys contribute to a group, which it returns.
    fn join_all(&self, plan: &mut Plan<'_>, table: Table, name: &str) -> Group {
        let name = name.into();
        let group = Group { table, name };
        for member in self.members.of(&group) {
            plan.join(&group, member);
        }
        group
    }

    /// Has all groups compared: with the key that this returns.
    pub(crate) fn sweep_all(&mut self) -> Key {
        self.unswept = Unswept::All;
        self.own_groups.clear();
        Key::only(Of::Members)
    }

    /// Has a row compared if it is a group. Of what this controller has written itself, only the
    /// number of members is looked at: otherwise each pod would cost as much as its groups have
    /// members.
    pub(super) fn group_changed(&mut self, table: &str, uuid: Uuid, row: Option<Found<'_>>) {
        let Some((table, row)) = tables().find(|it| it.name() == table).zip(row) else {
            return;
        };
        let group = Group {
            table,
            name: row.str("name").unwrap_or_default().into(),
        };
        let members = table.members().and_then(|column| row.column(column));
        let count = members.map_or(0, Value::len);
        if self.own_groups.remove(&group) && count == self.members.count(&group) {
            return;
        }
        if let Unswept::Some(rows) = &mut self.unswept {
            rows.insert((table, uuid));
        }
        self.dirty.insert(Key::only(Of::Members));
    }

    /// These groups were written.
    pub(crate) fn groups_written(&mut self, groups: Vec<Group>) {
        self.own_groups.extend(groups);
    }

    /// Removes the members that no key contributes, and adds those that are missing.
    pub(super) fn sweep(&mut self, plan: &mut Plan<'_>) {
        let db = plan.db();
        let rows: Vec<(Table, Found<'_>)> = match std::mem::take(&mut self.unswept) {
            Unswept::All => {
                let all =
                    tables().flat_map(|table| db.rows(table.name()).map(move |it| (table, it)));
                all.collect()
            }
            Unswept::Some(rows) => {
                let rows = rows.into_iter();
                rows.filter_map(|(table, uuid)| Some((table, db.row(table.name(), uuid)?)))
                    .collect()
            }
        };
        if rows.is_empty() {
            return;
        }
        let kept = self.kept_members(plan);
        for (table, row) in rows {
            // Nothing of an object that can't be read is changed: its pods are not known.
            let Some(owner) = owner_of(&row) else {
                continue;
            };
            let Some(name) = row.str("name").filter(|_| !self.is_unknown(&owner)) else {
                continue;
            };
            let group = self.join_all(plan, table, name);
            let is_wanted =
                |member: &str| self.members.contains(&group, member) || kept.contains(member);
            plan.leave_all_but(table, row, is_wanted);
        }
    }

    /// Whether a key is that of a pod that has a port, which is not that of a pod that it replaces.
    pub(super) fn has_port(&self, key: &Key, db: &Db) -> bool {
        if key.of != Of::Pod {
            return false;
        }
        let id = key.id();
        let Some(pod) = self.cluster.pods.get(&id) else {
            return false;
        };
        let mut rows = ports(&id, db, self.rules.adopt).into_iter();
        rows.any(|row| row.map("options").str(UID) == Some(&pod.uid))
    }

    /// Why a key's rows can't be compared. Nothing is said while what is missing is on its way.
    pub(super) fn conflict_of(&self, error: &DiffError) -> Problem {
        let is_made_by = |table: &str, key: &Key| {
            let mut tables = key.of.tables().iter();
            key.of != Of::Pod && tables.any(|it| it.name() == table)
        };
        let is_coming = match error {
            DiffError::Missing { table, .. } => {
                let retries = self.retries.iter().map(|(_, key)| key);
                let mut coming = retries.chain(&self.held);
                coming.any(|key| is_made_by(table, key) && !self.refused_rows.contains_key(key))
            }
            DiffError::Foreign { .. } | DiffError::Taken { .. } => false,
        };
        let message = match is_coming {
            true => String::new(),
            false => error.to_string(),
        };
        Problem {
            until: is_coming.then(|| Instant::now() + COMING),
            ..Problem::blocked("RowConflict", message)
        }
    }

    /// Whether it is not known what a key should have, because an object can't be read.
    pub(super) fn is_unknown(&self, key: &Key) -> bool {
        let mut unread = self.unreadable.iter();
        match key.of {
            Of::Namespace => unread.any(|it| it.of == Of::Policy && it.namespace == key.name),
            Of::Peers => unread.any(|it| POLICIES.contains(&it.of)),
            // Those of a MultiNetworkPolicy, or of a NetworkPolicy.
            Of::Policy if key.network != Network::DEFAULT => {
                let of = [Of::MultiPolicy, Of::Policy];
                unread.any(|it| of.contains(&it.of) && it.id() == key.id())
            }
            _ => self.unreadable.contains(&key.clone().on(Network::DEFAULT)),
        }
    }

    /// The names and addresses of ports whose pods can't be read, or compared: they stay where they
    /// are.
    fn kept_members(&self, plan: &Plan<'_>) -> HashSet<Name> {
        let db = plan.db();
        let unread = self.unreadable.iter().filter(|key| key.of == Of::Pod);
        let waiting = self
            .blocked
            .iter()
            .chain(self.retries.iter().map(|(_, key)| key));
        let waiting = waiting.filter(|key| self.has_port(key, db));
        let rows = unread
            .chain(waiting)
            .flat_map(|key| db.nb_of_object(Table::LogicalSwitchPort, key.to_string()));
        let names = rows.flat_map(|row| {
            let all = ["addresses", "port_security"].map(|column| row.str(column));
            let words = all.into_iter().flatten().flat_map(str::split_whitespace);
            row.str("name").into_iter().chain(words)
        });
        names.map(Name::from).collect()
    }
}
