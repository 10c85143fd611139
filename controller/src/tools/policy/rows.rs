//! The rows made of a policy, beside those in the database.

use std::collections::BTreeSet;

use itertools::Itertools as _;
use podwire_ovs::nb::Table;
use serde::Serialize;

use crate::cluster::Name;
use crate::diff::{IN_SYNC, Plan};
use crate::key::{Key, Network, Of};
use crate::members::Group;
use crate::tools::View;
use crate::want::Row;
use crate::want::policy::{PeerSet, tiered_door, tiered_pods_group};

/// A row that a policy needs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RowState {
    pub(super) table: &'static str,
    pub(super) name: String,
    /// What it is for, or does.
    pub(super) content: String,
    /// Of a group or set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) members: Option<MembersState>,
    pub(super) state: &'static str,
    /// The columns in which the database's row differs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) differs: Vec<&'static str>,
}

/// The members that a group should have, and those that it has.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MembersState {
    pub(super) wanted: usize,
    pub(super) missing: Vec<String>,
    pub(super) superfluous: Vec<String>,
}

pub(super) struct Rows {
    pub(super) rows: Vec<RowState>,
    /// The number of rows that should not be there.
    pub(super) superfluous: usize,
}

impl RowState {
    pub(super) fn is_in_sync(&self) -> bool {
        let has_members = |it: &MembersState| it.missing.is_empty() && it.superfluous.is_empty();
        self.state == IN_SYNC && self.members.as_ref().is_none_or(has_members)
    }
}

/// Those of a policy, of what it needs beside its own, and of the sets of its peers.
pub(super) fn of(view: &View, key: &Key, adopt: bool) -> Rows {
    let state = &view.state;
    let mut all = match key.of {
        Of::Policy => {
            let namespace = Key::named(Of::Namespace, key.namespace.clone());
            vec![(namespace, state.namespace_rows(&key.namespace), None)]
        }
        _ => {
            let door = if state.policy_rows(key).is_empty() {
                Vec::new()
            } else {
                tiered_door()
            };
            vec![(Key::only(Of::Cluster), door, None)]
        }
    };
    for network in state.networks_of(&key.namespace) {
        let on = |key: Key| key.on(network.clone());
        let own = on(key.clone());
        let rows = state.policy_rows(&own);
        all.push((own, rows, None));
        if let Some(policies) = state.policies_on(&network) {
            all.extend(policies.sets_of(key).map(|set| {
                let id = set.id(&network);
                let rows = policies.peers_rows(&id);
                (on(Key::named(Of::Peers, id)), rows, Some(set))
            }));
        }
    }
    view.ovsdb.read(|db| {
        let plan = Plan::new(db, adopt);
        let mut found = Rows {
            rows: Vec::new(),
            superfluous: 0,
        };
        for (key, rows, set) in all {
            let (seen, superfluous) = plan.statuses(&key, &rows);
            // The others of the cluster are not for policies.
            found.superfluous += if key.of == Of::Cluster {
                0
            } else {
                superfluous
            };
            for (row, (state, there)) in rows.iter().zip(seen) {
                let members = row.table.members().map(|_| {
                    let there = there.map(|there| plan.members_of(row.table, there));
                    members(view, row, &there.unwrap_or_default())
                });
                found.rows.push(RowState {
                    table: row.table.name(),
                    name: name(row),
                    content: match key.network == Network::DEFAULT {
                        true => content(row, set),
                        false => {
                            let content = content(row, set);
                            format!("{content}, on network {}", key.network.name())
                        }
                    },
                    members,
                    state: state.word(),
                    differs: state.columns(),
                });
            }
        }
        found
    })
}

fn members(view: &View, row: &Row, there: &BTreeSet<Name>) -> MembersState {
    let group = Group {
        table: row.table,
        name: row.name.as_str().into(),
    };
    let wanted: BTreeSet<&Name> = view.state.members.of(&group).collect();
    let missing = wanted.iter().filter(|it| !there.contains(**it));
    let superfluous = there.iter().filter(|it| !wanted.contains(*it));
    MembersState {
        wanted: wanted.len(),
        missing: missing.map(ToString::to_string).collect(),
        superfluous: superfluous.map(ToString::to_string).collect(),
    }
}

fn name(row: &Row) -> String {
    match row.table {
        Table::Acl => text(row, "name"),
        _ => row.name.clone(),
    }
}

fn content(row: &Row, set: Option<&PeerSet>) -> String {
    let mut ids = row.external_ids.iter();
    let direction = ids.find(|(name, _)| *name == "direction");
    match (row.table, set, direction) {
        (Table::Acl, ..) => {
            let action = format!("{} {}", text(row, "priority"), text(row, "action"));
            format!("{action}: {}", text(row, "match"))
        }
        (_, Some(set), _) => set.to_string(),
        _ if row.name == *tiered_pods_group() => {
            "pods of all policies of the whole cluster".to_owned()
        }
        (_, _, Some((_, it))) => format!("the namespace's pods isolated for {it}"),
        _ => "selected pods".to_owned(),
    }
}

/// A column as text.
fn text(row: &Row, column: &str) -> String {
    let value = row.value(column);
    value.map_or_else(String::new, |it| it.atoms().join(", "))
}
