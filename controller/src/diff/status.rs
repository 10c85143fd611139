//! How wanted rows are in the database, for people.

use std::collections::BTreeSet;

use podwire_ovs::nb::Table;
use podwire_ovs::replica::Row as Found;

use super::Plan;
use crate::cluster::Name;
use crate::key::Key;
use crate::want::Row;

/// How a wanted row is in the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowStatus {
    /// As it should be.
    InSync,
    /// Not at all.
    Missing,
    /// With others' content in these columns; without any, its owner or its place is another.
    Differs(Vec<&'static str>),
    /// Somebody else's row has its name.
    Foreign,
}

/// [`RowStatus::InSync`] as a word.
pub const IN_SYNC: &str = "in sync";

impl RowStatus {
    /// For people and programs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::InSync => IN_SYNC,
            Self::Missing => "missing",
            Self::Differs(_) => "differs",
            Self::Foreign => "foreign",
        }
    }

    /// The columns in which it differs.
    pub fn columns(self) -> Vec<&'static str> {
        match self {
            Self::Differs(columns) => columns,
            _ => Vec::new(),
        }
    }
}

impl<'db> Plan<'db> {
    /// How each of a key's rows is in the database, with the row; and the number of rows that the
    /// key has there and should not have.
    pub fn statuses(
        &self,
        key: &Key,
        wanted: &[Row],
    ) -> (Vec<(RowStatus, Option<Found<'db>>)>, usize) {
        let mut there = self.rows_of(key);
        let key = key.to_string();
        let mut statuses = Vec::new();
        for row in wanted {
            let found = match self.find(&there, row) {
                Ok(found) => found,
                Err(_) => {
                    statuses.push((RowStatus::Foreign, None));
                    continue;
                }
            };
            let Some(found) = found else {
                statuses.push((RowStatus::Missing, None));
                continue;
            };
            there.remove(&(row.table, found.uuid()));
            // What a leader would do about it.
            let mut plan = Plan::new(self.db, self.adopt);
            let is_same = plan.adapt(&key, row, found).is_ok() && plan.is_empty();
            let state = match is_same {
                true => RowStatus::InSync,
                false => {
                    let columns = self.differing(row, &found).map(|(name, _)| *name);
                    RowStatus::Differs(columns.collect())
                }
            };
            statuses.push((state, Some(found)));
        }
        (statuses, there.len())
    }

    /// The names of the members that a group has in the database.
    pub fn members_of(&self, table: Table, row: Found<'db>) -> BTreeSet<Name> {
        let elements = self.elements(table, row);
        elements
            .filter_map(|(name, _)| name)
            .map(Name::from)
            .collect()
    }
}
