use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

use super::{ColumnType, Index, ReplicaError, Row, Schema, TableSpec};
use crate::value::{Atom, Uuid, Value};

/// The rows of one table, with their indexes always up to date.
#[derive(Debug)]
pub(crate) struct Table {
    spec: TableSpec,
    /// The watched columns' types; `None` if the server's schema lacks the column.
    types: Vec<Option<ColumnType>>,
    rows: HashMap<Uuid, Box<[Value]>>,
    indexes: Vec<IndexTable>,
    /// The size of all cells, by [`Value::weight`].
    weight: usize,
}

#[derive(Debug)]
struct IndexTable {
    column: usize,
    key: Option<&'static str>,
    rows: HashMap<Atom, Filed>,
}

/// The rows under one value. Most indexes are by name, and a tree for each name would take more
/// memory than the rows.
#[derive(Debug)]
enum Filed {
    One(Uuid),
    Many(BTreeSet<Uuid>),
}

impl Table {
    pub(super) fn new(spec: TableSpec) -> Self {
        let indexes = spec.indexes.iter().filter_map(|&index| {
            let (column, key) = match index {
                Index::Column(column) => (column, None),
                Index::Key(column, key) => (column, Some(key)),
            };
            let column = spec.columns.iter().position(|&name| name == column)?;
            Some(IndexTable {
                column,
                key,
                rows: HashMap::new(),
            })
        });
        Self {
            indexes: indexes.collect(),
            types: vec![None; spec.columns.len()],
            rows: HashMap::new(),
            weight: 0,
            spec,
        }
    }

    pub(crate) fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// The watched columns that the server has.
    pub(crate) fn served_columns(&self) -> impl Iterator<Item = &'static str> {
        self.spec
            .columns
            .iter()
            .zip(&self.types)
            .filter_map(|(&name, column_type)| column_type.map(|_| name))
    }

    /// Sets the columns' types. If they differ from the earlier ones, drops all rows and returns
    /// their uuids.
    pub(super) fn set_schema(&mut self, schema: &Schema) -> Result<Vec<Uuid>, ReplicaError> {
        if !schema.has_table(self.spec.name) {
            return Err(ReplicaError::NoTable(self.spec.name));
        }
        let types: Vec<_> = self
            .spec
            .columns
            .iter()
            .map(|column| schema.column(self.spec.name, column))
            .collect();
        if types == self.types {
            return Ok(Vec::new());
        }
        self.types = types;
        for index in &mut self.indexes {
            index.rows.clear();
        }
        self.weight = 0;
        Ok(self.rows.drain().map(|(uuid, _)| uuid).collect())
    }

    pub(super) fn column(&self, name: &str) -> Option<usize> {
        self.spec.columns.iter().position(|&column| column == name)
    }

    /// The type of a column, by its number; `None` if the server lacks it.
    pub(super) fn column_type(&self, column: usize) -> Option<ColumnType> {
        self.types[column]
    }

    /// A row in which no column was ever set.
    pub(super) fn default_row(&self) -> Box<[Value]> {
        self.types
            .iter()
            .map(|column_type| column_type.map_or_else(Value::empty, |known| known.default_value()))
            .collect()
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The rows' approximate size in memory, in bytes.
    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    pub(super) fn row(&self, uuid: Uuid) -> Option<Row<'_>> {
        self.rows.get(&uuid).map(|cells| Row {
            uuid,
            table: self,
            cells,
        })
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|(&uuid, cells)| Row {
            uuid,
            table: self,
            cells,
        })
    }

    pub(super) fn uuids(&self) -> impl Iterator<Item = Uuid> {
        self.rows.keys().copied()
    }

    pub(super) fn find(
        &self,
        index: Index,
        value: &Atom,
    ) -> impl Iterator<Item = Row<'_>> + use<'_> {
        let at = self
            .spec
            .indexes
            .iter()
            .position(|&declared| declared == index);
        let uuids = at
            .and_then(|at| self.indexes.get(at))
            .and_then(|index| index.rows.get(value));
        uuids
            .into_iter()
            .flat_map(Filed::iter)
            .filter_map(|uuid| self.row(uuid))
    }

    /// The values under which `index` has a row.
    pub(super) fn filed(&self, index: Index, uuid: Uuid) -> impl Iterator<Item = &Atom> {
        let at = self
            .spec
            .indexes
            .iter()
            .position(|&declared| declared == index);
        let index = at.and_then(|at| self.indexes.get(at));
        index
            .zip(self.rows.get(&uuid))
            .into_iter()
            .flat_map(|(index, cells)| filed_under(index.key, &cells[index.column]))
    }

    /// Inserts or replaces a row; false if it existed unchanged.
    pub(super) fn put(&mut self, uuid: Uuid, cells: Box<[Value]>) -> bool {
        let Some(old) = self.rows.get(&uuid) else {
            for index in &mut self.indexes {
                index.add(uuid, &cells[index.column]);
            }
            self.weight += weigh(&cells);
            self.rows.insert(uuid, cells);
            return true;
        };
        if *old == cells {
            return false;
        }
        for index in &mut self.indexes {
            if old[index.column] != cells[index.column] {
                index.remove(uuid, &old[index.column]);
                index.add(uuid, &cells[index.column]);
            }
        }
        self.weight = self.weight - weigh(old) + weigh(&cells);
        self.rows.insert(uuid, cells);
        true
    }

    /// Removes a row; false if there is none.
    pub(super) fn remove(&mut self, uuid: Uuid) -> bool {
        let Some(cells) = self.rows.remove(&uuid) else {
            return false;
        };
        self.weight -= weigh(&cells);
        for index in &mut self.indexes {
            index.remove(uuid, &cells[index.column]);
        }
        true
    }

    /// Sets cells of a row; false if there is no such row.
    pub(super) fn set(&mut self, uuid: Uuid, cells: Vec<(usize, Value)>) -> bool {
        let Some(row) = self.rows.get_mut(&uuid) else {
            return false;
        };
        for (column, change) in cells {
            let diffed = self.types[column].is_some_and(|column_type| column_type.is_diffed());
            for index in self
                .indexes
                .iter_mut()
                .filter(|index| index.column == column)
            {
                if diffed {
                    index.toggle(uuid, &row[column], &change)
                } else {
                    index.remove(uuid, &row[column])
                }
            }
            if diffed {
                self.weight = self
                    .weight
                    .saturating_add_signed(apply_difference(&mut row[column], change));
                continue;
            }
            self.weight = self.weight - row[column].weight() + change.weight();
            row[column] = change;
            for index in self
                .indexes
                .iter_mut()
                .filter(|index| index.column == column)
            {
                index.add(uuid, &row[column]);
            }
        }
        true
    }
}

impl IndexTable {
    fn add(&mut self, uuid: Uuid, value: &Value) {
        for atom in filed_under(self.key, value) {
            self.insert(atom.clone(), uuid);
        }
    }

    fn remove(&mut self, uuid: Uuid, value: &Value) {
        for atom in filed_under(self.key, value) {
            self.take_out(atom, uuid);
        }
    }

    /// Applies a difference to `old` without a look at unchanged elements.
    fn toggle(&mut self, uuid: Uuid, old: &Value, difference: &Value) {
        match (self.key, old, difference) {
            (Some(key), Value::Map(old), Value::Map(difference)) => {
                let Some(new) = difference.get(key) else {
                    return;
                };
                let old = old.get(key);
                if let Some(old) = old {
                    self.take_out(old, uuid);
                }
                if old != Some(new) {
                    self.insert(new.clone(), uuid);
                }
            }
            (None, old, difference) => {
                for atom in difference.atoms() {
                    if contains(old, atom) {
                        self.take_out(atom, uuid);
                    } else {
                        self.insert(atom.clone(), uuid);
                    }
                }
            }
            (Some(_), ..) => {}
        }
    }

    fn insert(&mut self, atom: Atom, uuid: Uuid) {
        match self.rows.entry(atom) {
            Entry::Vacant(vacant) => {
                vacant.insert(Filed::One(uuid));
            }
            Entry::Occupied(mut filed) => filed.get_mut().insert(uuid),
        }
    }

    fn take_out(&mut self, atom: &Atom, uuid: Uuid) {
        let is_last = match self.rows.get_mut(atom) {
            Some(Filed::One(only)) => *only == uuid,
            Some(Filed::Many(uuids)) => {
                uuids.remove(&uuid);
                uuids.is_empty()
            }
            None => false,
        };
        if is_last {
            self.rows.remove(atom);
        }
    }
}

impl Filed {
    fn insert(&mut self, uuid: Uuid) {
        match self {
            Self::One(only) => *self = Self::Many(BTreeSet::from([*only, uuid])),
            Self::Many(uuids) => {
                uuids.insert(uuid);
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = Uuid> {
        let (one, many) = match self {
            Self::One(uuid) => (Some(*uuid), None),
            Self::Many(uuids) => (None, Some(uuids)),
        };
        one.into_iter().chain(many.into_iter().flatten().copied())
    }
}

fn filed_under<'a>(
    key: Option<&str>,
    value: &'a Value,
) -> impl Iterator<Item = &'a Atom> + use<'a> {
    let under_key = key.and_then(|key| value.as_map()?.get(key));
    let elements = key.is_none().then(|| value.atoms());
    under_key.into_iter().chain(elements.into_iter().flatten())
}

fn contains(value: &Value, atom: &Atom) -> bool {
    match value {
        Value::Atom(only) => only == atom,
        Value::Set(set) => set.contains(atom),
        Value::Map(_) => false,
    }
}

/// Applies a difference as `ovsdb_datum_apply_diff` in lib/ovsdb-data.c does: an element of a set
/// is added or removed; an entry of a map is removed if it exists with that value, and set
/// otherwise. Returns by how much the value's size grew. For a set, the cost depends on the
/// difference alone, since a bridge has as many ports as a node has pods.
fn apply_difference(value: &mut Value, difference: Value) -> isize {
    let old = std::mem::replace(value, Value::empty());
    match (old, difference) {
        (Value::Map(old), Value::Map(difference)) => {
            let before = old.weight();
            let merged = old.merged(difference);
            let growth = merged.weight().cast_signed() - before.cast_signed();
            *value = Value::Map(merged);
            growth
        }
        (old, difference) => {
            let mut set = old.into_set();
            let mut growth = 0;
            for atom in difference.into_set() {
                let weight = atom.weight().cast_signed();
                if set.remove(&atom) {
                    growth -= weight;
                } else {
                    set.insert(atom);
                    growth += weight;
                }
            }
            *value = Value::from_set(set);
            growth
        }
    }
}

pub(super) fn weigh(cells: &[Value]) -> usize {
    ROW_WEIGHT + cells.iter().map(Value::weight).sum::<usize>()
}

/// Uuid, table slot and a few index entries of a row.
const ROW_WEIGHT: usize = 256;
