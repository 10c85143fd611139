//! Compares wanted rows with the replica; the difference is the transaction.

mod error;
mod members;
mod status;

use std::collections::{BTreeMap, HashMap, HashSet};

use podwire_ovs::nb::{KEY, Table};
use podwire_ovs::replica::{Db, Row as Found};
use podwire_ovs::transact::{Columns, Condition, Mutation, Transaction};
use podwire_ovs::value::{Atom, RowName, Uuid, Value};
use podwire_ovs::vswitch::{StringMap, set_keys};
use smol_str::SmolStr;

use crate::key::Key;
use crate::members::Member;
use crate::want::{Column, Row};
pub use error::DiffError;
use error::taken;
pub use status::{IN_SYNC, RowStatus};

/// Marks a row in external_ids as created by the controller.
const OWNER: (&str, &str) = ("podwire.io/owner", "controller");

/// A transaction that is extended key by key.
#[derive(Debug)]
pub struct Plan<'db> {
    db: &'db Db,
    adopt: bool,
    transaction: Transaction,
    /// Each with its key.
    inserted: HashMap<(Table, String), (RowName, SmolStr)>,
    /// What is added to columns of references or members, and what is removed: one operation for
    /// each column, because for each operation the database copies it.
    changes: BTreeMap<(Table, &'static str, Target), BTreeMap<Element, ElementChange>>,
    /// The approximate size of the members that were added, in bytes of JSON.
    added: usize,
}

/// An element of such a column.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Element {
    Row(Target),
    Text(SmolStr),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ElementChange {
    Added,
    Removed,
}

/// A row that others can refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    There(Uuid),
    Inserted(RowName),
}

impl<'db> Plan<'db> {
    /// An empty plan. With `adopt`, somebody else's row with a wanted name is taken over.
    pub fn new(db: &'db Db, adopt: bool) -> Self {
        Self {
            db,
            adopt,
            transaction: Transaction::new(),
            inserted: HashMap::new(),
            changes: BTreeMap::new(),
            added: 0,
        }
    }

    /// The replica for the comparison.
    pub fn db(&self) -> &'db Db {
        self.db
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.transaction.len() + self.changes.len()
    }

    /// The approximate size of the members that are added, in bytes of JSON.
    pub fn added(&self) -> usize {
        self.added
    }

    /// Whether there are no operations.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a row with this name is inserted.
    pub fn inserts(&self, table: Table, name: &str) -> bool {
        self.inserted.contains_key(&(table, name.to_owned()))
    }

    /// The transaction.
    pub fn into_transaction(mut self) -> Transaction {
        for ((table, column, holder), elements) in self.changes {
            let all = |change| {
                let changed = elements.iter().filter(move |(_, it)| **it == change);
                Value::set(changed.map(|(element, _)| element.clone()))
            };
            let holder = || Condition::equal("_uuid", Value::from(holder));
            let added = all(ElementChange::Added);
            if !added.is_empty() {
                self.transaction
                    .mutate(table.name(), holder(), Mutation::insert(column, added))
                    .expect_count(1);
            }
            let removed = all(ElementChange::Removed);
            if !removed.is_empty() {
                let removal = Mutation::delete(column, removed);
                self.transaction.mutate(table.name(), holder(), removal);
            }
        }
        self.transaction
    }

    /// Adds a meter of dropped packets a second, unless there is one with its name: that stays as
    /// it is, whoever made it.
    pub fn add_meter(&mut self, name: &str, rate: i64) {
        let place = (Table::Meter, name.to_owned());
        let is_there = self.db.nb_named(Table::Meter, name).next().is_some();
        if is_there || self.inserted.contains_key(&place) {
            return;
        }
        let band = Columns::new().set("action", "drop").set("rate", rate);
        let band = self.transaction.insert("Meter_Band", band);
        let columns = Columns::new()
            .set("name", name)
            .set("unit", "pktps")
            .set("fair", true)
            .set("bands", band)
            .set("external_ids", Value::map([OWNER]));
        let meter = self.transaction.insert(Table::Meter.name(), columns);
        self.inserted.insert(place, (meter, SmolStr::default()));
    }

    /// Whether a row exists, or will, that podwire's rows may refer to.
    pub fn has(&self, table: Table, name: &str) -> bool {
        self.resolve(table, name).is_ok()
    }

    /// Whether a key can have a row with a name: nobody else has.
    ///
    /// # Errors
    /// [`DiffError::Foreign`].
    pub fn may_have(&self, key: &Key, table: Table, name: &str) -> Result<(), DiffError> {
        let key = key.to_string();
        let is_own = |row: &Found<'db>| row.map("external_ids").str(KEY) == Some(&key);
        let mut named = self.db.nb_named(table, name);
        match self.adopt || named.all(|row| is_own(&row)) {
            true => Ok(()),
            false => Err(DiffError::Foreign {
                table: table.name(),
                name: name.to_owned(),
            }),
        }
    }

    /// Adds the operations that bring a key's rows in line, and its members. The rows and groups
    /// that they belong to must exist, or be in this plan. `gone` are the members that nobody
    /// contributes any longer. With `keeps`, other rows of the key stay.
    ///
    /// # Errors
    /// See [`DiffError`].
    pub fn compare<'m>(
        &mut self,
        key: &Key,
        wanted: &[Row],
        (members, gone): (impl Iterator<Item = &'m Member> + Clone, &[Member]),
        keeps: bool,
    ) -> Result<(), DiffError> {
        let mut there = self.rows_of(key);
        let whose = key;
        let key = SmolStr::from(key.to_string());
        // First check whether everything can be done, then write: a key is processed wholly or not
        // at all.
        let mut pairs = Vec::new();
        let mut own: HashSet<(Table, &str)> = HashSet::new();
        for row in wanted {
            let found = self.find(&there, row)?;
            if let Some(found) = &found {
                there.remove(&(row.table, found.uuid()));
            }
            for parent in &row.parents {
                if !own.contains(&(parent.table, &*parent.name)) {
                    self.resolve(parent.table, &parent.name)?;
                }
            }
            own.insert((row.table, &row.name));
            pairs.push((row, found));
        }
        own.clear();
        for (row, _) in &pairs {
            for (_, column) in &row.columns {
                match column {
                    Column::Reference(table, name) if own.contains(&(*table, &**name)) => {}
                    _ => drop(self.value(column)?),
                }
            }
            own.insert((row.table, &row.name));
        }
        let is_others = |it: &&Member| !own.contains(&(it.group.table, &*it.group.name));
        for Member { group, .. } in members.clone().filter(is_others) {
            self.resolve(group.table, &group.name)?;
            self.may_join(whose, group.table, &group.name)?;
        }
        for (row, found) in pairs {
            match found {
                Some(found) => self.adapt(&key, row, found)?,
                None => self.insert(&key, row)?,
            }
        }
        for ((table, _), row) in there.into_iter().filter(|_| !keeps) {
            self.remove(table, row);
        }
        for member in members {
            self.join(&member.group, &member.member);
        }
        for member in gone {
            if let Some((holder, element)) = self.member(&member.group, &member.member) {
                self.leave(&member.group, holder, element);
            }
        }
        Ok(())
    }

    /// The rows that a key has in the database.
    fn rows_of(&self, key: &Key) -> BTreeMap<(Table, Uuid), Found<'db>> {
        let tables = key.of.tables().iter();
        let key = SmolStr::from(key.to_string());
        let of_table = |&table| {
            let rows = self.db.nb_of_object(table, key.clone());
            rows.map(move |row| ((table, row.uuid()), row))
        };
        tables.flat_map(of_table).collect()
    }

    /// The present row for a wanted one.
    fn find(
        &self,
        there: &BTreeMap<(Table, Uuid), Found<'db>>,
        row: &Row,
    ) -> Result<Option<Found<'db>>, DiffError> {
        let mut own = there.iter().filter(|((table, _), _)| *table == row.table);
        if !row.table.is_named() {
            let same = own.find(|(_, found)| self.differing(row, found).next().is_none());
            return Ok(same.map(|(_, found)| *found));
        }
        if let Some((_, found)) = own.find(|(_, found)| found.str("name") == Some(&row.name)) {
            return Ok(Some(*found));
        }
        let found = self.db.nb_named(row.table, &row.name).next();
        match found {
            // Only its name could show its owner.
            Some(found) if row.table == Table::LoadBalancerGroup || self.adopt => Ok(Some(found)),
            Some(found) if is_own(&found) => Err(taken(
                row.table,
                &row.name,
                found.map("external_ids").str(KEY),
            )),
            Some(_) => Err(DiffError::Foreign {
                table: row.table.name(),
                name: row.name.clone(),
            }),
            None => Ok(None),
        }
    }

    fn adapt(&mut self, key: &str, row: &Row, found: Found<'db>) -> Result<(), DiffError> {
        let uuid = found.uuid();
        let columns = self
            .differing(row, &found)
            .map(|(name, column)| Ok((*name, self.value(column)?)))
            .collect::<Result<Vec<_>, DiffError>>()?;
        if !columns.is_empty() {
            let columns = columns
                .into_iter()
                .fold(Columns::new(), |all, (name, value)| all.set(name, value));
            self.transaction
                .update(row.table.name(), Condition::uuid(uuid), columns)
                .expect_count(1);
        }
        let mut ids = external_ids(key, row);
        ids.retain(|name, value| found.map("external_ids").str(name) != Some(value));
        if !ids.is_empty() && row.table != Table::LoadBalancerGroup {
            let table = row.table.name();
            set_keys(&mut self.transaction, table, uuid, "external_ids", &ids);
        }
        let mut missing = Vec::new();
        for parent in &row.parents {
            let holder = self.resolve(parent.table, &parent.name)?;
            missing.push((parent.table, parent.column, holder));
        }
        for &(table, column) in parents(row.table) {
            for holder in self.db.nb_parents(table, column, uuid) {
                let link = (table, column, Target::There(holder.uuid()));
                match missing.iter().position(|wanted| *wanted == link) {
                    Some(there) => drop(missing.swap_remove(there)),
                    None => self.unlink(table, column, holder.uuid(), of_row(uuid)),
                }
            }
        }
        for link in missing {
            self.link(link, Target::There(uuid));
        }
        Ok(())
    }

    fn insert(&mut self, key: &str, row: &Row) -> Result<(), DiffError> {
        let mut columns = Columns::new();
        if row.table.is_named() {
            columns = columns.set("name", &row.name);
        }
        if row.table != Table::LoadBalancerGroup {
            columns = columns.set("external_ids", Value::map(external_ids(key, row)));
        }
        for (name, column) in &row.columns {
            let value = self.value(column)?;
            if !value.is_empty() {
                columns = columns.set(*name, value);
            }
        }
        let inserted = self.transaction.insert(row.table.name(), columns);
        self.inserted
            .insert((row.table, row.name.clone()), (inserted, key.into()));
        for parent in &row.parents {
            let holder = self.resolve(parent.table, &parent.name)?;
            let link = (parent.table, parent.column, holder);
            self.link(link, Target::Inserted(inserted));
        }
        Ok(())
    }

    /// Removes a row. A row that is no root is removed with the only reference to it.
    fn remove(&mut self, table: Table, row: Found<'db>) {
        if table.is_root() {
            self.transaction
                .delete(table.name(), Condition::uuid(row.uuid()));
            return;
        }
        for &(parent, column) in parents(table) {
            for holder in self.db.nb_parents(parent, column, row.uuid()) {
                self.unlink(parent, column, holder.uuid(), of_row(row.uuid()));
            }
        }
    }

    fn link(&mut self, link: (Table, &'static str, Target), child: Target) {
        let changes = self.changes.entry(link).or_default();
        changes.insert(Element::Row(child), ElementChange::Added);
    }

    fn unlink(&mut self, table: Table, column: &'static str, holder: Uuid, element: Element) {
        let holder = (table, column, Target::There(holder));
        let changes = self.changes.entry(holder).or_default();
        changes.insert(element, ElementChange::Removed);
    }

    /// The columns of a row that differ.
    fn differing<'r>(
        &self,
        row: &'r Row,
        found: &Found<'db>,
    ) -> impl Iterator<Item = &'r (&'static str, Column)> {
        row.columns.iter().filter(move |(name, column)| {
            let is = found.column(name);
            match column {
                Column::Value(value) => is != Some(value),
                Column::Reference(table, name) => {
                    let referred = self.db.nb_named(*table, name).next();
                    let referred = referred.map(|row| Value::from(row.uuid()));
                    referred.is_none() || is != referred.as_ref()
                }
            }
        })
    }

    fn value(&self, column: &Column) -> Result<Value, DiffError> {
        Ok(match column {
            Column::Value(value) => value.clone(),
            Column::Reference(table, name) => self.resolve(*table, name)?.into(),
        })
    }

    /// The row with a name that others may refer to. Somebody else's row may have the same name,
    /// and must not be changed.
    fn referred(&self, table: Table, name: &str) -> Option<Found<'db>> {
        let may_refer =
            |row: &Found<'db>| table == Table::LoadBalancerGroup || self.adopt || is_own(row);
        self.db.nb_named(table, name).find(may_refer)
    }

    fn resolve(&self, table: Table, name: &str) -> Result<Target, DiffError> {
        let inserted = self.inserted.get(&(table, name.to_owned()));
        if let Some((inserted, _)) = inserted {
            return Ok(Target::Inserted(*inserted));
        }
        if let Some(row) = self.referred(table, name) {
            return Ok(Target::There(row.uuid()));
        }
        let is_foreign = self.db.nb_named(table, name).next().is_some();
        let (table, name) = (table.name(), name.to_owned());
        Err(match is_foreign {
            true => DiffError::Foreign { table, name },
            false => DiffError::Missing { table, name },
        })
    }
}

/// Whether a row says that the controller made it.
fn is_own(row: &Found<'_>) -> bool {
    row.map("external_ids").str(OWNER.0) == Some(OWNER.1)
}

impl From<Target> for Atom {
    fn from(target: Target) -> Self {
        match target {
            Target::There(uuid) => Self::from(uuid),
            Target::Inserted(name) => Self::from(name),
        }
    }
}

impl From<Element> for Atom {
    fn from(element: Element) -> Self {
        match element {
            Element::Row(target) => target.into(),
            Element::Text(text) => Self::String(text),
        }
    }
}

fn of_row(uuid: Uuid) -> Element {
    Element::Row(Target::There(uuid))
}

fn external_ids(key: &str, row: &Row) -> StringMap {
    let own = [(OWNER.0, OWNER.1.to_owned()), (KEY, key.to_owned())];
    own.into_iter()
        .chain(row.external_ids.iter().cloned())
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// The columns that refer to a table's rows; they keep them alive, except for load balancers, which
/// are roots.
fn parents(table: Table) -> &'static [(Table, &'static str)] {
    match table {
        Table::LogicalSwitchPort => &[(Table::LogicalSwitch, "ports")],
        Table::LogicalRouterPort => &[(Table::LogicalRouter, "ports")],
        Table::GatewayChassis => &[(Table::LogicalRouterPort, "gateway_chassis")],
        Table::StaticRoute => &[(Table::LogicalRouter, "static_routes")],
        Table::RouterPolicy => &[(Table::LogicalRouter, "policies")],
        Table::Nat => &[(Table::LogicalRouter, "nat")],
        Table::Qos => &[(Table::LogicalSwitch, "qos_rules")],
        Table::LoadBalancer => &[
            (Table::LoadBalancerGroup, "load_balancer"),
            (Table::LogicalSwitch, "load_balancer"),
        ],
        Table::Acl => &[(Table::PortGroup, "acls")],
        Table::LogicalSwitch
        | Table::LogicalRouter
        | Table::LoadBalancerGroup
        | Table::PortGroup
        | Table::AddressSet
        | Table::Meter
        | Table::Copp => &[],
    }
}
