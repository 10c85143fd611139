//! The rows made of a policy, beside those in the database.

use std::collections::BTreeSet;

use podwire_ovs::nb::Table;
use podwire_ovs::value::Value;
use serde::Serialize;

use crate::cluster::{Name, ObjectName};
use crate::diff::{Plan, Seen};
use crate::key::{Key, Of};
use crate::members::Group;
use crate::tools::View;
use crate::want::policy::PeerSet;
use crate::want::{Column, Row};

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

pub(super) const IN_SYNC: &str = "in sync";

impl RowState {
    pub(super) fn is_in_sync(&self) -> bool {
        let has_members = |it: &MembersState| it.missing.is_empty() && it.superfluous.is_empty();
        self.state == IN_SYNC && self.members.as_ref().is_none_or(has_members)
    }
}

/// Those of a policy, of its namespace's isolated pods, and of the sets of its peers.
pub(super) fn of(view: &View, id: &ObjectName, adopt: bool) -> Rows {
    let policies = &view.state.policies;
    let namespace = Key::named(Of::Namespace, id.0.clone());
    let own = Key::object(Of::Policy, id.clone());
    let mut all = vec![
        (namespace, view.state.namespace_rows(&id.0), None),
        (own, view.state.policy_rows(id), None),
    ];
    all.extend(policies.sets_of(id).map(|set| {
        let id = set.id();
        let rows = policies.peers_rows(&id);
        (Key::named(Of::Peers, id), rows, Some(set))
    }));
    view.ovsdb.read(|db| {
        let plan = Plan::new(db, adopt);
        let mut found = Rows {
            rows: Vec::new(),
            superfluous: 0,
        };
        for (key, rows, set) in all {
            let (seen, superfluous) = plan.seen(&key, &rows);
            found.superfluous += superfluous;
            for (row, (state, there)) in rows.iter().zip(seen) {
                let members = row.table.members().map(|_| {
                    let there = there.map(|there| plan.members_of(row.table, there));
                    members(view, row, &there.unwrap_or_default())
                });
                let (state, differs) = match state {
                    Seen::InSync => (IN_SYNC, Vec::new()),
                    Seen::Missing => ("missing", Vec::new()),
                    Seen::Differs(columns) => ("differs", columns),
                    Seen::Foreign => ("foreign", Vec::new()),
                };
                found.rows.push(RowState {
                    table: row.table.name(),
                    name: name(row),
                    content: content(row, set),
                    members,
                    state,
                    differs,
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
    let id = |key: &str| {
        let mut ids = row.external_ids.iter();
        ids.find(|(name, _)| *name == key)
            .map(|(_, value)| value.clone())
    };
    match (row.table, set, id("direction"), id("port-name"), id("port")) {
        (Table::Acl, ..) => {
            let action = format!("{} {}", text(row, "priority"), text(row, "action"));
            format!("{action}: {}", text(row, "match"))
        }
        (_, Some(set), ..) => set.to_string(),
        (_, _, Some(direction), ..) => format!("the namespace's pods isolated for {direction}"),
        (_, _, _, Some(name), Some(port)) => format!("selected pods with {name} = {port}"),
        _ => "selected pods".to_owned(),
    }
}

/// A column as text.
fn text(row: &Row, column: &str) -> String {
    let mut columns = row.columns.iter();
    match columns.find(|(name, _)| *name == column) {
        Some((_, Column::Value(value))) => shown(value),
        _ => String::new(),
    }
}

fn shown(value: &Value) -> String {
    let atoms: Vec<String> = value.atoms().map(ToString::to_string).collect();
    atoms.join(", ")
}
