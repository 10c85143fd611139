//! The switch's rows. Each transaction that changes a row also records its former state in
//! podwire's mark.

use std::collections::BTreeMap;
use std::path::Path;

use podwire_ovs::client::TlsKeys;
use podwire_ovs::transact::{Columns, Condition, Mutation, Transaction};
use podwire_ovs::value::{Uuid, Value};
use podwire_ovs::vswitch::{BridgeSpec, StringMap, add_bridge, set_keys, unset_keys};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{ApplyError, DATABASE_LIMIT, Machine, fault};
use crate::actual::{Actual, MAPPINGS, Owned, PortSeen, SwitchSeen};
use crate::diff::Step;
use crate::plan::{Bridge, Item, Port, Tunnel};
use crate::{CONFIG, LINK, MADE, MAPPING, MARK, TUNNEL};

/// The virtual network of podwire's tunnels (RFC 8926, VNI), which distinguishes them from OVN's:
/// "pw".
const TUNNEL_KEY: &str = "28791";

/// The mark of a port that was taken over: what cleanup restores.
#[derive(Debug, Serialize, Deserialize)]
struct TakenOver {
    kind: String,
    iface_id: Option<String>,
    mac: Option<String>,
    mtu_request: Option<u32>,
}

/// Changes of one column of a row.
#[derive(Debug, Default)]
struct Changes<'a> {
    set: StringMap,
    unset: Vec<&'a str>,
}

impl<'a> Changes<'a> {
    /// Sets a key, or removes it.
    fn put(&mut self, key: &'a str, value: Option<String>) {
        match value {
            Some(value) => drop(self.set.insert(key.to_owned(), value)),
            None => self.unset.push(key),
        }
    }

    /// Marks these keys as podwire's.
    fn mark(&mut self, owned: &Owned) {
        let mark = serde_json::to_string(owned).ok();
        self.put(MARK, mark.filter(|_| !owned.is_empty()));
    }

    fn write(
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

impl Machine {
    /// Writes the switch's own keys, and records which of them are podwire's with their former
    /// values.
    pub(super) async fn write_keys(
        &mut self,
        steps: &[Step],
        actual: &Actual,
    ) -> Result<(), ApplyError> {
        let Some(root) = actual.switch.root else {
            return Ok(());
        };
        let mut owned = self.owned.clone();
        let mut keys = Changes::default();
        let mut config = Changes::default();
        let seen = &actual.switch.keys;
        let mut mappings: BTreeMap<&str, String> = seen
            .iter()
            .filter_map(|(key, bridge)| Some((key.strip_prefix(MAPPING)?, bridge.clone())))
            .collect();
        let maps =
            |step: &Step| matches!(step.item(), Item::Key { key, .. } if key.starts_with(MAPPING));
        let changes_mappings = steps.iter().any(maps);
        for step in steps {
            let (key, value) = match step {
                Step::Make(Item::Key { key, value, .. }) => {
                    let was = actual.key(key).map(str::to_owned);
                    owned.entry(key.clone()).or_insert(was);
                    (key, Some(value.clone()))
                }
                Step::Remove(Item::Key { key, .. }) => (key, owned.remove(key).flatten()),
                _ => continue,
            };
            if let Some(key) = key.strip_prefix(CONFIG) {
                config.put(key, value);
                continue;
            }
            match (key.strip_prefix(MAPPING), value) {
                (Some(network), Some(bridge)) => drop(mappings.insert(network, bridge)),
                (Some(network), None) => drop(mappings.remove(network)),
                (None, value) => keys.put(key, value),
            }
        }
        let mut transaction = Transaction::new();
        if changes_mappings {
            // Another program's entry may have been added meanwhile.
            if let Some(seen) = seen.get(MAPPINGS) {
                let same = StringMap::from([(MAPPINGS.to_owned(), seen.clone())]);
                let same = Condition::includes("external_ids", Value::map(&same));
                transaction.guard("Open_vSwitch", same);
            }
            let entries = mappings.iter();
            let entries: Vec<String> = entries
                .map(|(net, bridge)| format!("{net}:{bridge}"))
                .collect();
            let entries = entries.join(",");
            keys.put(MAPPINGS, Some(entries).filter(|it| !it.is_empty()));
        }
        self.owned.clone_from(&owned);
        keys.mark(&owned);
        keys.write(&mut transaction, "Open_vSwitch", root, "external_ids");
        config.write(&mut transaction, "Open_vSwitch", root, "other_config");
        self.transact(Some(transaction)).await
    }

    /// Records that something elsewhere, which can't be marked, is podwire's, or no longer is.
    pub(super) async fn own(
        &mut self,
        key: String,
        ours: bool,
        actual: &Actual,
    ) -> Result<(), ApplyError> {
        let Some(root) = actual.switch.root else {
            return Ok(());
        };
        match ours {
            true => drop(self.owned.insert(key, None)),
            false => drop(self.owned.remove(&key)),
        }
        let mut keys = Changes::default();
        keys.mark(&self.owned);
        let mut transaction = Transaction::new();
        keys.write(&mut transaction, "Open_vSwitch", root, "external_ids");
        self.transact(Some(transaction)).await
    }

    /// Sends a transaction; nothing if what it would change does not exist.
    pub(super) async fn transact(&mut self, change: Option<Transaction>) -> Result<(), ApplyError> {
        let Some(change) = change else {
            return Ok(());
        };
        self.counts.ovsdb += 1;
        let deadline = Instant::now() + DATABASE_LIMIT;
        self.client.transact(&change, deadline).await?;
        fault();
        Ok(())
    }
}

/// Creates the row of TLS keys, or updates it.
pub(super) fn write_ssl(wanted: &TlsKeys, switch: &SwitchSeen) -> Option<Transaction> {
    let root = switch.root?;
    let ids = StringMap::from([(MARK.to_owned(), MADE.to_owned())]);
    let path = |path: &Path| path.display().to_string();
    let columns = Columns::new()
        .set("private_key", path(&wanted.private_key))
        .set("certificate", path(&wanted.certificate))
        .set("ca_cert", path(&wanted.ca_certificate))
        .set("external_ids", Value::map(&ids));
    let mut change = Transaction::new();
    let changed = match &switch.ssl {
        Some(seen) => change.update("SSL", Condition::uuid(seen.uuid), columns),
        None => {
            let row = change.insert("SSL", columns);
            let columns = Columns::new().set("ssl", row);
            change.update("Open_vSwitch", Condition::uuid(root), columns)
        }
    };
    changed.expect_count(1);
    Some(change)
}

/// Removes the row of TLS keys.
pub(super) fn remove_ssl(switch: &SwitchSeen) -> Option<Transaction> {
    let mut change = Transaction::new();
    let columns = Columns::new().set("ssl", Value::empty());
    change.update("Open_vSwitch", Condition::uuid(switch.root?), columns);
    Some(change)
}

/// Creates the management port, or updates its row.
pub(super) fn write_port(wanted: &Port, switch: &SwitchSeen) -> Option<Transaction> {
    let ids = StringMap::from([
        ("iface-id".to_owned(), wanted.iface_id.clone()),
        (MARK.to_owned(), mark(switch.port.as_ref())),
    ]);
    let columns = Columns::new()
        .set("type", "internal")
        .set("mac", wanted.mac.as_str())
        .set("mtu_request", wanted.mtu);
    let mut change = Transaction::new();
    match switch.port.as_ref().and_then(|port| port.interface) {
        Some(interface) => {
            let row = Condition::uuid(interface);
            change.update("Interface", row, columns).expect_count(1);
            set_keys(&mut change, "Interface", interface, "external_ids", &ids);
        }
        None => {
            let bridge = switch.bridges.get(&wanted.bridge)?.uuid;
            let interface = columns.set("external_ids", Value::map(&ids));
            add_port(&mut change, bridge, LINK, interface, Columns::new());
        }
    }
    Some(change)
}

/// Removes the management port, or restores one that was taken over.
pub(super) fn remove_port(switch: &SwitchSeen) -> Option<Transaction> {
    let port = switch.port.as_ref()?;
    let mark = port.mark.as_deref().unwrap_or_default();
    let mut change = Transaction::new();
    match (serde_json::from_str::<TakenOver>(mark), port.interface) {
        (Ok(was), Some(interface)) => {
            let columns = Columns::new()
                .set("type", was.kind.as_str())
                .set("mac", Value::set(was.mac))
                .set("mtu_request", Value::set(was.mtu_request));
            change.update("Interface", Condition::uuid(interface), columns);
            let mut ids = Changes::default();
            ids.put(MARK, None);
            ids.put("iface-id", was.iface_id);
            ids.write(&mut change, "Interface", interface, "external_ids");
        }
        _ => {
            let (_, bridge) = port.bridge.as_ref()?;
            let gone = Mutation::delete("ports", port.uuid);
            change.mutate("Bridge", Condition::uuid(*bridge), gone);
        }
    }
    Some(change)
}

/// Creates the tunnel bridge, or updates its rows.
pub(super) fn write_bridge(wanted: &Bridge, switch: &SwitchSeen) -> Option<Transaction> {
    let config = StringMap::from([
        ("hwaddr".to_owned(), wanted.mac.clone()),
        // In seconds, the maximum: packets to a forgotten address go to every node.
        ("mac-aging-time".to_owned(), "3600".to_owned()),
    ]);
    let Some(seen) = switch.bridges.get(&wanted.name) else {
        let spec = BridgeSpec {
            name: wanted.name.clone(),
            datapath_type: Some(wanted.datapath.clone()),
            fail_mode: Some("standalone".to_owned()),
            other_config: config,
            external_ids: StringMap::from([(MARK.to_owned(), MADE.to_owned())]),
            mtu_request: Some(wanted.mtu),
        };
        return Some(add_bridge(switch.root?, &spec).transaction);
    };
    let mut change = Transaction::new();
    set_keys(&mut change, "Bridge", seen.uuid, "other_config", &config);
    if let Some(local) = seen.local {
        let columns = Columns::new().set("mtu_request", wanted.mtu);
        change.update("Interface", Condition::uuid(local), columns);
    }
    Some(change)
}

/// Removes a bridge with all that is on it.
pub(super) fn remove_bridge(bridge: &Bridge, switch: &SwitchSeen) -> Option<Transaction> {
    let mut change = Transaction::new();
    let gone = Mutation::delete("bridges", switch.bridges.get(&bridge.name)?.uuid);
    change.mutate("Open_vSwitch", Condition::uuid(switch.root?), gone);
    Some(change)
}

/// Creates a tunnel, or updates its rows.
pub(super) fn write_tunnel(wanted: &Tunnel, switch: &SwitchSeen) -> Option<Transaction> {
    let options = StringMap::from([
        ("remote_ip".to_owned(), wanted.remote.to_string()),
        ("key".to_owned(), TUNNEL_KEY.to_owned()),
    ]);
    let ids = StringMap::from([(MARK.to_owned(), wanted.node.clone())]);
    let columns = Columns::new()
        .set("type", "geneve")
        .set("options", Value::map(&options))
        .set("external_ids", Value::map(&ids));
    // Packets from one node are for this one, and are not forwarded to others.
    let alone = Columns::new().set("protected", true);
    let mut change = Transaction::new();
    match switch.tunnels.get(&wanted.name) {
        Some(seen) => {
            let interface = Condition::uuid(seen.interface);
            change
                .update("Interface", interface, columns)
                .expect_count(1);
            change.update("Port", Condition::uuid(seen.port), alone);
        }
        None => {
            let bridge = switch.bridges.get(TUNNEL)?.uuid;
            add_port(&mut change, bridge, &wanted.name, columns, alone);
        }
    }
    Some(change)
}

/// Removes the tunnel to a node that was deleted.
pub(super) fn remove_tunnel(tunnel: &Tunnel, switch: &SwitchSeen) -> Option<Transaction> {
    let mut change = Transaction::new();
    let gone = Mutation::delete("ports", switch.tunnels.get(&tunnel.name)?.port);
    let bridge = Condition::uuid(switch.bridges.get(TUNNEL)?.uuid);
    change.mutate("Bridge", bridge, gone);
    Some(change)
}

/// Adds a port with one interface and this name to a bridge.
fn add_port(
    transaction: &mut Transaction,
    bridge: Uuid,
    name: &str,
    interface: Columns,
    port: Columns,
) {
    let interface = transaction.insert("Interface", interface.set("name", name));
    let port = port.set("name", name).set("interfaces", interface);
    let port = transaction.insert("Port", port);
    let added = Mutation::insert("ports", port);
    transaction
        .mutate("Bridge", Condition::uuid(bridge), added)
        .expect_count(1);
}

/// The mark of a port, which depends on its former state.
fn mark(seen: Option<&PortSeen>) -> String {
    match seen {
        None => MADE.to_owned(),
        Some(port) => port.mark.clone().unwrap_or_else(|| {
            let was = TakenOver {
                kind: port.kind.clone(),
                iface_id: port.iface_id.clone(),
                mac: port.mac.clone(),
                mtu_request: port.mtu_request,
            };
            serde_json::to_string(&was).unwrap_or_default()
        }),
    }
}
