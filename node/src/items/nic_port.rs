//! A spare NIC in a bridge that carries a physical network.

use std::collections::BTreeMap;

use podwire_ovs::replica::Db;
use podwire_ovs::transact::{Columns, Condition, Mutation, Transaction};
use podwire_ovs::value::{Uuid, Value};
use podwire_ovs::vswitch::{StringMap, set_keys};
use serde::{Deserialize, Serialize};

use super::rows::{add_port, strings};
use super::{Actual, Change, Item, Kind, State, View, transaction};
use crate::{MADE, MARK};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NicPort {
    pub(crate) nic: String,
    pub(crate) bridge: String,
}

/// A row of `Port` with the `Interface` of a link that is not a pod's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedNic {
    port: Uuid,
    interface: Uuid,
    /// Its bridge.
    bridge: (String, Uuid),
    mark: Option<String>,
}

impl ObservedNic {
    /// Those of all bridges, by name.
    pub(crate) fn all(db: &Db) -> BTreeMap<String, Self> {
        let nics = db.rows("Interface").filter_map(|row| {
            let mut ids = strings(&row);
            let kind = row.str("type").unwrap_or_default();
            if !["", "system"].contains(&kind) || ids.contains_key("sandbox") {
                return None;
            }
            let name = row.str("name")?;
            let port = db.port_by_name(name)?.uuid();
            let bridge = db.bridge_of_port(port)?;
            let seen = Self {
                port,
                interface: row.uuid(),
                bridge: (bridge.name().to_owned(), bridge.uuid()),
                mark: ids.remove(MARK),
            };
            Some((name.to_owned(), seen))
        });
        nics.collect()
    }

    /// Whether podwire has put it in this bridge.
    pub(crate) fn is_ours_in(&self, bridge: &str) -> bool {
        self.mark.is_some() && self.bridge.0 == bridge
    }
}

impl Kind for NicPort {
    fn identity(&self) -> String {
        format!("NIC {}", self.nic)
    }

    fn details(&self) -> String {
        format!(" in {}", self.bridge)
    }

    fn state(&self, view: &View<'_>) -> State {
        let Self { nic, bridge } = self;
        let Actual { switch, links, .. } = view.actual;
        if !links.contains_key(nic) {
            return State::Waits(format!("link {nic}"));
        }
        let Some(seen) = switch.nics.get(nic) else {
            return match switch.bridges.contains_key(bridge) {
                true => view.of_switch(State::Missing),
                false => State::Waits(format!("bridge {bridge}")),
            };
        };
        let on = &seen.bridge.0;
        if on != bridge && seen.mark.is_none() {
            let command = format!("ovs-vsctl del-port {on} {nic}");
            return State::Foreign(format!("it is in {on}: remove it there ({command})"));
        }
        if seen.mark.is_none() && !view.made(self.clone()) {
            return State::Foreign(format!(
                "it bears no mark of podwire: remove it (ovs-vsctl del-port {bridge} {nic})"
            ));
        }
        let mut differences = Vec::new();
        if on != bridge {
            differences.push(format!("in {on}"));
        }
        if seen.mark.is_none() {
            differences.push("without our mark".to_owned());
        }
        view.of_switch(State::of(&differences))
    }

    fn make(&self, actual: &Actual) -> Vec<Change> {
        let switch = &actual.switch;
        let Some(bridge) = switch.bridges.get(&self.bridge) else {
            return Vec::new();
        };
        let seen = switch.nics.get(&self.nic);
        let ids = StringMap::from([(MARK.to_owned(), MADE.to_owned())]);
        let mut change = Transaction::new();
        match seen {
            Some(seen) => {
                set_keys(
                    &mut change,
                    "Interface",
                    seen.interface,
                    "external_ids",
                    &ids,
                );
                if seen.bridge.1 != bridge.uuid {
                    let (from, to) = (seen.bridge.1, bridge.uuid);
                    let gone = Mutation::delete("ports", seen.port);
                    change.mutate("Bridge", Condition::uuid(from), gone);
                    let added = Mutation::insert("ports", seen.port);
                    change.mutate("Bridge", Condition::uuid(to), added);
                }
            }
            None => {
                let columns = Columns::new().set("external_ids", Value::map(&ids));
                add_port(&mut change, bridge.uuid, &self.nic, columns, Columns::new());
            }
        }
        transaction(Some(change))
    }

    fn remove(&self, actual: &Actual) -> Vec<Change> {
        let Some(seen) = actual.switch.nics.get(&self.nic) else {
            return Vec::new();
        };
        let mut change = Transaction::new();
        let gone = Mutation::delete("ports", seen.port);
        change.mutate("Bridge", Condition::uuid(seen.bridge.1), gone);
        transaction(Some(change))
    }

    fn marked(view: &View<'_>) -> Vec<Item> {
        let switch = &view.actual.switch;
        let nics = switch.nics.iter();
        let ours = nics.filter(|(_, seen)| switch.answers && seen.mark.is_some());
        ours.map(|(nic, seen)| {
            Item::NicPort(Self {
                nic: nic.clone(),
                bridge: seen.bridge.0.clone(),
            })
        })
        .collect()
    }
}
