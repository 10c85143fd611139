//! Rows of the switch's database, read and written.

use std::collections::BTreeMap;

use podwire_ovs::replica::{Db, Row};
use podwire_ovs::transact::{self, Condition, Mutation, Transaction};
use podwire_ovs::value::{Atom, Uuid};
use podwire_ovs::vswitch::{StringMap, set_keys, unset_keys};

/// Changes of one column of a row.
#[derive(Debug, Default)]
pub(super) struct Columns<'a> {
    set: StringMap,
    unset: Vec<&'a str>,
}

impl<'a> Columns<'a> {
    /// Sets a key, or removes it.
    pub(super) fn put(&mut self, key: &'a str, value: Option<String>) {
        match value {
            Some(value) => drop(self.set.insert(key.to_owned(), value)),
            None => self.unset.push(key),
        }
    }

    pub(super) fn write(
        &self,
        change: &mut Transaction,
        table: &'static str,
        row: Uuid,
        column: &'static str,
    ) {
        if !self.set.is_empty() {
            set_keys(change, table, row, column, &self.set);
        }
        if !self.unset.is_empty() {
            unset_keys(change, table, row, column, &self.unset);
        }
    }
}

/// Adds a port with one interface and this name to a bridge.
pub(super) fn add_port(
    transaction: &mut Transaction,
    bridge: Uuid,
    name: &str,
    interface: transact::Columns,
    port: transact::Columns,
) {
    let interface = transaction.insert("Interface", interface.set("name", name));
    let port = port.set("name", name).set("interfaces", interface);
    let port = transaction.insert("Port", port);
    let added = Mutation::insert("ports", port);
    transaction
        .mutate("Bridge", Condition::uuid(bridge), added)
        .expect_count(1);
}

/// A row's external_ids.
pub(crate) fn strings(row: &Row<'_>) -> BTreeMap<String, String> {
    let text = |atom: &Atom| atom.as_str().map(str::to_owned);
    let entries = row.map("external_ids").iter();
    entries
        .filter_map(|(key, value)| Some((text(key)?, text(value)?)))
        .collect()
}

pub(super) fn interface_of(db: &Db, port: Uuid) -> Option<Row<'_>> {
    let interface = db.row("Port", port)?.references("interfaces").next()?;
    db.row("Interface", interface)
}

pub(super) fn mtu_request(row: &Row<'_>) -> Option<u32> {
    row.integer("mtu_request")
        .and_then(|mtu| mtu.try_into().ok())
}
