//! Parses monitor updates from JSON directly into changes of known tables.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::{Db, ReplicaError, Table};
use crate::value::{Uuid, Value, each_entry};

/// The kind of monitor that feeds a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MonitorMethod {
    /// `monitor_cond` and `update2` (ovsdb-server(7)): differences only.
    Conditional,
    /// `monitor` and `update` (RFC 7047 §4.1.5, §4.1.6), which every server supports: whole rows.
    Plain,
}

/// A change of a row.
#[derive(Debug)]
pub(crate) enum RowChange {
    /// The row exists, with these cells.
    Put(Box<[Value]>),
    /// Some cells differ, each with a new value or a difference, as its column's type determines.
    Set(Vec<(usize, Value)>),
    Removed,
}

pub(crate) type RowChanges = Vec<(usize, Uuid, RowChange)>;

impl Db {
    /// Parses `<table-updates>` or `<table-updates2>`. Applies nothing.
    pub(crate) fn parse(
        &self,
        method: MonitorMethod,
        json: &str,
    ) -> Result<RowChanges, ReplicaError> {
        let mut changes = Vec::new();
        let mut deserializer = serde_json::Deserializer::from_str(json);
        TableUpdates {
            db: self,
            method,
            changes: &mut changes,
        }
        .deserialize(&mut deserializer)?;
        deserializer.end()?;
        Ok(changes)
    }
}

struct TableUpdates<'a> {
    db: &'a Db,
    method: MonitorMethod,
    changes: &'a mut RowChanges,
}

struct TableUpdate<'a> {
    table: &'a Table,
    number: usize,
    method: MonitorMethod,
    changes: &'a mut RowChanges,
}

struct RowUpdate<'a> {
    table: &'a Table,
    method: MonitorMethod,
}

/// Columns as `(number, value)`, each value in its column's type.
struct Cells<'a> {
    table: &'a Table,
    difference: bool,
}

macro_rules! deserialize_map {
    ($seed:ident, $value:ty) => {
        impl<'de> DeserializeSeed<'de> for $seed<'_> {
            type Value = $value;

            fn deserialize<D: Deserializer<'de>>(
                self,
                deserializer: D,
            ) -> Result<$value, D::Error> {
                deserializer.deserialize_map(self)
            }
        }
    };
}

deserialize_map!(TableUpdates, ());
deserialize_map!(TableUpdate, ());
deserialize_map!(RowUpdate, RowChange);
deserialize_map!(Cells, Vec<(usize, Value)>);

impl<'de> Visitor<'de> for TableUpdates<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of table updates")
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<(), M::Error> {
        let Self {
            db,
            method,
            changes,
        } = self;
        each_entry(map, |name, map| {
            let number = db.table_number(name).ok_or_else(|| {
                de::Error::custom(format_args!("table {name:?} was not asked for"))
            })?;
            map.next_value_seed(TableUpdate {
                table: &db.tables[number],
                number,
                method,
                changes,
            })
        })
    }
}

impl<'de> Visitor<'de> for TableUpdate<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of row updates")
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<(), M::Error> {
        let Self {
            table,
            number,
            method,
            changes,
        } = self;
        each_entry(map, |uuid, map| {
            let uuid = uuid.parse().map_err(de::Error::custom)?;
            let change = map.next_value_seed(RowUpdate { table, method })?;
            changes.push((number, uuid, change));
            Ok(())
        })
    }
}

impl<'de> Visitor<'de> for RowUpdate<'_> {
    type Value = RowChange;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a row update")
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<RowChange, M::Error> {
        let Self { table, method } = self;
        let mut change = None;
        each_entry(map, |kind, map| {
            match (method, kind) {
                (MonitorMethod::Conditional, "initial" | "insert")
                | (MonitorMethod::Plain, "new") => {
                    let mut row = table.default_row();
                    for (column, value) in map.next_value_seed(Cells {
                        table,
                        difference: false,
                    })? {
                        row[column] = value;
                    }
                    change = Some(RowChange::Put(row));
                }
                (MonitorMethod::Conditional, "modify") => {
                    change = Some(RowChange::Set(map.next_value_seed(Cells {
                        table,
                        difference: true,
                    })?));
                }
                (MonitorMethod::Conditional, "delete") | (MonitorMethod::Plain, "old") => {
                    map.next_value::<IgnoredAny>()?;
                    // A modified row has both "old" and "new", in either order.
                    change.get_or_insert(RowChange::Removed);
                }
                _ => {
                    return Err(de::Error::custom(format_args!(
                        "a row update of unknown kind {kind:?}"
                    )));
                }
            }
            Ok(())
        })?;
        change.ok_or_else(|| de::Error::custom("an empty row update"))
    }
}

impl<'de> Visitor<'de> for Cells<'_> {
    type Value = Vec<(usize, Value)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of columns")
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Self::Value, M::Error> {
        let Self { table, difference } = self;
        let mut cells = Vec::new();
        each_entry(map, |name, map| {
            let column = table
                .column(name)
                .and_then(|column| Some((column, table.column_type(column)?)));
            let (column, column_type) = column.ok_or_else(|| {
                de::Error::custom(format_args!("column {name:?} was not asked for"))
            })?;
            let value = map.next_value()?;
            let checked = match difference && column_type.is_diffed() {
                true => column_type.check_difference(&value),
                false => column_type.check(&value),
            };
            checked
                .map_err(|mismatch| de::Error::custom(format_args!("column {name}: {mismatch}")))?;
            cells.push((column, value));
            Ok(())
        })?;
        Ok(cells)
    }
}
