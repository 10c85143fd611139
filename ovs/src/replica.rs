//! The watched part of a database, in memory and indexed.
//!
//! A [`Db`] is built from [`TableSpec`]s and fed by a monitor: a snapshot at every connection, then
//! updates. A snapshot is compared with what is known, so that after a reconnect only real
//! differences count as changes. The cost of an update depends on the rows in it, not on the number
//! of rows; lookups use a uuid or a declared [`Index`].

mod apply;
mod parse;
mod schema;
mod table;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::value::{Atom, Map, Uuid, Value};

pub use parse::MonitorMethod;
pub use schema::{AtomType, ColumnType, Schema};
pub(crate) use table::Table;

/// A table to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSpec {
    /// The table's name. A server without it in its schema is refused.
    pub name: &'static str,
    /// The columns to watch. A column that the server's (older) schema lacks reads as absent.
    pub columns: &'static [&'static str],
    /// The ways to find rows, other than by uuid.
    pub indexes: &'static [Index],
}

impl TableSpec {
    /// A table without indexes.
    pub const fn of(name: &'static str, columns: &'static [&'static str]) -> Self {
        let indexes = &[];
        Self {
            name,
            columns,
            indexes,
        }
    }
}

/// The rows of a table that a replica watches, where not all: those whose column is this. The
/// server selects them, so a row whose column changes appears or disappears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Only {
    /// The table.
    pub table: &'static str,
    /// Its column.
    pub column: &'static str,
    /// What it is in those rows.
    pub is: bool,
}

/// A way to find rows. An index over a column of references finds the rows that refer to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Index {
    /// By each element of this column.
    Column(&'static str),
    /// By the value under a key of this map column.
    Key(&'static str, &'static str),
}

/// A replica of the watched tables.
#[derive(Debug)]
pub struct Db {
    tables: Vec<Table>,
    /// The maximum approximate size of all rows.
    limit: usize,
}

/// One row of the replica.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    uuid: Uuid,
    table: &'a Table,
    cells: &'a [Value],
}

/// The rows that an update or a snapshot really changed, each with its table's number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub(crate) rows: Vec<(usize, Uuid)>,
}

/// What the server sent contradicts its schema or the rows it sent before.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The schema is invalid.
    #[error("the database schema: {0}")]
    Schema(serde_json::Error),
    /// The schema lacks a watched table.
    #[error("the database schema has no table {0}")]
    NoTable(&'static str),
    /// An update is invalid, or a value has another type than its column.
    #[error("a monitor update: {0}")]
    Update(#[from] serde_json::Error),
    /// The rows would exceed the size limit.
    #[error("the watched rows take more than the {0} bytes allowed")]
    TooLarge(usize),
    /// A change to a row that was never inserted.
    #[error("a monitor update to row {uuid} of {table}, which is not known")]
    UnknownRow {
        /// The table.
        table: &'static str,
        /// The row.
        uuid: Uuid,
    },
}

impl Db {
    /// An empty replica. It takes updates once it knows a schema, see [`Self::set_schema`].
    pub fn new(specs: &[TableSpec]) -> Self {
        Self {
            tables: specs.iter().cloned().map(Table::new).collect(),
            limit: usize::MAX,
        }
    }

    /// With a limit on the approximate size of all rows, in bytes.
    #[must_use]
    pub fn with_limit(self, bytes: usize) -> Self {
        Self {
            limit: bytes,
            ..self
        }
    }

    /// The row of a table with this uuid.
    pub fn row(&self, table: &str, uuid: Uuid) -> Option<Row<'_>> {
        self.table(table)?.row(uuid)
    }

    /// All rows of a table, in no order.
    pub fn rows(&self, table: &str) -> impl Iterator<Item = Row<'_>> {
        self.table(table).into_iter().flat_map(Table::rows)
    }

    /// Whether a column is watched, and the server's schema has it.
    pub fn has_column(&self, table: &str, column: &str) -> bool {
        self.table(table)
            .is_some_and(|table| table.served_columns().any(|it| it == column))
    }

    /// How many rows a table has.
    pub fn len(&self, table: &str) -> usize {
        self.table(table).map_or(0, Table::len)
    }

    /// The rows that `index` has under `value`, in the order of their uuids; none if the table
    /// lacks that index.
    pub fn find(
        &self,
        table: &str,
        index: Index,
        value: impl Into<Atom>,
    ) -> impl Iterator<Item = Row<'_>> {
        let value = value.into();
        self.table(table)
            .into_iter()
            .flat_map(move |table| table.find(index, &value))
    }

    /// The values under which `index` has a row of the table with this number.
    pub(crate) fn filed(
        &self,
        table: usize,
        index: Index,
        row: Uuid,
    ) -> impl Iterator<Item = &Atom> {
        self.tables[table].filed(index, row)
    }

    /// The changed rows, each with the name of its table.
    pub fn changed<'a>(
        &self,
        changes: &'a Changes,
    ) -> impl Iterator<Item = (&'static str, Uuid)> + use<'a, '_> {
        changes
            .rows
            .iter()
            .map(|&(table, uuid)| (self.tables[table].spec().name, uuid))
    }

    pub(crate) fn table_number(&self, name: &str) -> Option<usize> {
        self.tables
            .iter()
            .position(|table| table.spec().name == name)
    }

    fn table(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.spec().name == name)
    }
}

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// How many rows changed.
    pub fn len(&self) -> usize {
        self.rows.len()
    }
}

impl<'a> Row<'a> {
    /// The row's `_uuid`.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// A column's value; `None` if the column is not watched, or the server's schema lacks it.
    pub fn column(&self, name: &str) -> Option<&'a Value> {
        self.cells.get(self.table.column(name)?)
    }

    /// The column's string, if it has exactly one.
    pub fn str(&self, column: &str) -> Option<&'a str> {
        self.column(column)?.as_str()
    }

    /// The column's integer, if it has exactly one.
    pub fn integer(&self, column: &str) -> Option<i64> {
        self.column(column)?.as_integer()
    }

    /// The column's boolean, if it has exactly one.
    pub fn bool(&self, column: &str) -> Option<bool> {
        self.column(column)?.as_bool()
    }

    /// The column's map; an absent one is empty.
    pub fn map(&self, column: &str) -> &'a Map {
        static EMPTY: Map = Map::EMPTY;
        self.column(column)
            .and_then(Value::as_map)
            .unwrap_or(&EMPTY)
    }

    /// The rows that the column refers to.
    pub fn references(&self, column: &str) -> impl Iterator<Item = Uuid> + use<'a> {
        self.column(column)
            .into_iter()
            .flat_map(|value| value.atoms().filter_map(Atom::as_uuid))
    }
}

/// The non-empty columns: what an error shows of a row.
impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table.spec().name, self.uuid)?;
        for (name, value) in self
            .table
            .spec()
            .columns
            .iter()
            .zip(self.cells)
            .filter(|(_, value)| !value.is_empty())
        {
            write!(f, " {name}={value}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
