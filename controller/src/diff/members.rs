//! Members of groups that several keys share.

use std::collections::btree_map::Entry;

use podwire_ovs::nb::{KEY, Table};
use podwire_ovs::replica::Row as Found;
use podwire_ovs::value::{Atom, Value};
use smol_str::SmolStr;

use super::{DiffError, Element, ElementChange, Plan, Target, taken};
use crate::key::{Key, Of};
use crate::members::Group;

/// The size of a reference, in bytes of JSON.
const REFERENCE: usize = 48;

impl<'db> Plan<'db> {
    /// Adds a member to a group. A port that does not exist is added by its own key.
    pub fn join(&mut self, group: &Group, member: &SmolStr) {
        let (Some(column), Some((holder, element))) =
            (group.table.members(), self.member(group, member))
        else {
            return;
        };
        let is_there = self.has_member(group, holder, &element);
        let place = (group.table, column, holder);
        if !is_there {
            self.added += match &element {
                Element::Text(text) => text.len() + 3,
                Element::Row(_) => REFERENCE,
            };
            let changes = self.changes.entry(place).or_default();
            changes.insert(element, ElementChange::Added);
        } else if let Entry::Occupied(mut changes) = self.changes.entry(place) {
            changes.get_mut().remove(&element);
            if changes.get().is_empty() {
                changes.remove();
            }
        }
    }

    /// Whether a key can be in a port group, if that is there: it is not one of another namespace,
    /// whose name was chosen so that the groups have one name.
    ///
    /// # Errors
    /// [`DiffError::Taken`].
    pub fn may_join(&self, key: &Key, table: Table, name: &str) -> Result<(), DiffError> {
        if key.of != Of::Pod || table != Table::PortGroup {
            return Ok(());
        }
        let inserted = self.inserted.get(&(table, name.to_owned()));
        let owner = match inserted {
            Some((_, key)) => Some(key.as_str()),
            None => self
                .referred(table, name)
                .and_then(|row| row.map("external_ids").str(KEY)),
        };
        let is_its = |owner: Key| match owner.of {
            Of::Namespace => owner.name == key.namespace,
            Of::Policy => owner.namespace == key.namespace,
            _ => true,
        };
        match owner {
            Some(owner) if !Key::parse(owner).is_some_and(is_its) => {
                Err(taken(table, name, Some(owner)))
            }
            // One without a key is not there, or is being taken over.
            _ => Ok(()),
        }
    }

    /// The groups that are made, or get other members.
    pub fn groups(&self) -> Vec<Group> {
        let named = |(table, name): (Table, &str)| {
            let name = name.into();
            table.members().is_some().then_some(Group { table, name })
        };
        let made = self.inserted.keys().map(|(table, name)| (*table, &**name));
        let changed = self.changes.keys().filter_map(|(table, column, holder)| {
            let is_group = table.members() == Some(*column);
            let Target::There(uuid) = holder else {
                return None;
            };
            let row = self.db.row(table.name(), *uuid).filter(|_| is_group)?;
            Some((*table, row.str("name")?))
        });
        made.chain(changed).filter_map(named).collect()
    }

    /// Removes the members of a group in the database that are not `wanted`.
    pub fn leave_all_but(&mut self, table: Table, row: Found<'db>, wanted: impl Fn(&str) -> bool) {
        let Some(column) = table.members() else {
            return;
        };
        for (name, element) in self.elements(table, row).collect::<Vec<_>>() {
            if name.is_some_and(|name| !wanted(name)) {
                self.unlink(table, column, row.uuid(), element);
            }
        }
    }

    /// The members of a group in the database, with the names of those that have one.
    pub(super) fn elements(
        &self,
        table: Table,
        row: Found<'db>,
    ) -> impl Iterator<Item = (Option<&'db str>, Element)> {
        let (db, ports) = (self.db, Table::LogicalSwitchPort.name());
        let members = table.members().and_then(|column| row.column(column));
        let atoms = members.into_iter().flat_map(Value::atoms);
        atoms.filter_map(move |atom| match atom {
            Atom::String(text) => Some((Some(&**text), Element::Text(text.clone()))),
            Atom::Uuid(uuid) => {
                let name = db.row(ports, *uuid).and_then(|port| port.str("name"));
                Some((name, Element::Row(Target::There(*uuid))))
            }
            _ => None,
        })
    }

    pub(super) fn leave(&mut self, group: &Group, holder: Target, element: Element) {
        let Some(column) = group.table.members() else {
            return;
        };
        if let Target::There(uuid) = holder
            && self.has_member(group, holder, &element)
        {
            self.unlink(group.table, column, uuid, element);
        }
    }

    /// A group, and what it calls a member; `None` if one of them does not exist.
    pub(super) fn member(&self, group: &Group, member: &SmolStr) -> Option<(Target, Element)> {
        let holder = self.resolve(group.table, &group.name).ok()?;
        let element = match group.table {
            Table::PortGroup => Element::Row(self.resolve(Table::LogicalSwitchPort, member).ok()?),
            _ => Element::Text(member.clone()),
        };
        Some((holder, element))
    }

    fn has_member(&self, group: &Group, holder: Target, element: &Element) -> bool {
        let (Target::There(uuid), Some(column)) = (holder, group.table.members()) else {
            return false;
        };
        let row = self.db.row(group.table.name(), uuid);
        let members = row.and_then(|row| row.column(column));
        members.is_some_and(|members| members.contains(&element.clone().into()))
    }
}
