//! Tunnels to other nodes, on the tunnel bridge.

use std::collections::BTreeMap;

use podwire_ovs::replica::Db;
use podwire_ovs::transact::{Columns, Condition, Mutation, Transaction};
use podwire_ovs::value::{Uuid, Value};
use podwire_ovs::vswitch::StringMap;
use serde::{Deserialize, Serialize};

use super::rows::{add_port, interface_of, strings};
use super::{Actual, Change, Item, Kind, State, View, transaction};
use crate::{MARK, TUNNEL};

/// The virtual network of podwire's tunnels (RFC 8926, VNI), which distinguishes them from OVN's:
/// "pw".
const TUNNEL_KEY: &str = "28791";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tunnel {
    /// The name of port and interface.
    pub(crate) name: String,
    /// The node at the other end.
    pub(crate) node: String,
    pub(crate) remote: String,
}

/// A row of `Port` with the `Interface` that is a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedTunnel {
    port: Uuid,
    interface: Uuid,
    remote: Option<String>,
    key: Option<String>,
    /// The node at the other end.
    node: String,
    protected: bool,
}

impl ObservedTunnel {
    /// Ports on the tunnel bridge that have podwire's mark, by name.
    pub(crate) fn all(db: &Db) -> BTreeMap<String, Self> {
        let mut bridges = db.rows("Bridge");
        let bridge = bridges.find(|row| row.str("name") == Some(TUNNEL));
        let ports = bridge.into_iter().flat_map(|row| row.references("ports"));
        let ours = ports.filter_map(|port| {
            let (row, interface) = (db.row("Port", port)?, interface_of(db, port)?);
            let node = strings(&interface).remove(MARK)?;
            let options = interface.map("options");
            let option = |key| options.str(key).map(str::to_owned);
            let seen = Self {
                port,
                interface: interface.uuid(),
                remote: option("remote_ip"),
                key: option("key"),
                node,
                protected: row.column("protected").and_then(|it| it.as_bool()) == Some(true),
            };
            Some((row.str("name")?.to_owned(), seen))
        });
        ours.collect()
    }
}

impl Kind for Tunnel {
    fn identity(&self) -> String {
        format!("tunnel {}", self.name)
    }

    fn details(&self) -> String {
        format!(" to {} of node {}", self.remote, self.node)
    }

    fn state(&self, view: &View<'_>) -> State {
        let switch = &view.actual.switch;
        let seen = match switch.tunnels.get(&self.name) {
            None if !switch.bridges.contains_key(TUNNEL) => {
                return State::Waits(format!("bridge {TUNNEL}"));
            }
            None => return view.of_switch(State::Missing),
            Some(seen) => seen,
        };
        let mut differences = Vec::new();
        if seen.remote.as_ref() != Some(&self.remote) {
            let remote = seen.remote.as_deref().unwrap_or("nowhere");
            differences.push(format!("to {remote}"));
        }
        if seen.key.as_deref() != Some(TUNNEL_KEY) {
            differences.push(format!("key {}", seen.key.as_deref().unwrap_or("none")));
        }
        if seen.node != self.node {
            differences.push(format!("of node {}", seen.node));
        }
        if !seen.protected {
            differences.push("not protected".to_owned());
        }
        view.of_switch(State::of(&differences))
    }

    fn make(&self, actual: &Actual) -> Vec<Change> {
        let switch = &actual.switch;
        let options = StringMap::from([
            ("remote_ip".to_owned(), self.remote.clone()),
            ("key".to_owned(), TUNNEL_KEY.to_owned()),
        ]);
        let ids = StringMap::from([(MARK.to_owned(), self.node.clone())]);
        let columns = Columns::new()
            .set("type", "geneve")
            .set("options", Value::map(&options))
            .set("external_ids", Value::map(&ids));
        // Packets from one node are for this one, and are not forwarded to others.
        let alone = Columns::new().set("protected", true);
        let mut change = Transaction::new();
        match (switch.tunnels.get(&self.name), switch.bridges.get(TUNNEL)) {
            (Some(seen), _) => {
                let interface = Condition::uuid(seen.interface);
                change
                    .update("Interface", interface, columns)
                    .expect_count(1);
                change.update("Port", Condition::uuid(seen.port), alone);
            }
            (None, Some(bridge)) => {
                add_port(&mut change, bridge.uuid, &self.name, columns, alone);
            }
            (None, None) => return Vec::new(),
        }
        transaction(Some(change))
    }

    fn remove(&self, actual: &Actual) -> Vec<Change> {
        let switch = &actual.switch;
        let there = switch
            .bridges
            .get(TUNNEL)
            .zip(switch.tunnels.get(&self.name));
        transaction(there.map(|(bridge, seen)| {
            let mut change = Transaction::new();
            let gone = Mutation::delete("ports", seen.port);
            change.mutate("Bridge", Condition::uuid(bridge.uuid), gone);
            change
        }))
    }

    /// A bridge is removed with its tunnels.
    fn marked(view: &View<'_>) -> Vec<Item> {
        let switch = &view.actual.switch;
        let keeps_bridge = view.items.iter().any(|it| matches!(it, Item::Bridge(_)));
        let tunnels = switch.tunnels.iter();
        tunnels
            .filter(|_| switch.answers && keeps_bridge)
            .map(|(name, _)| {
                Item::Tunnel(Self {
                    name: name.clone(),
                    ..Self::default()
                })
            })
            .collect()
    }
}
