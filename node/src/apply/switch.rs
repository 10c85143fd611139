//! The switch's rows. Each transaction that changes a row writes beside it, as our mark, how it
//! was.

use std::collections::BTreeMap;

use podwire_ovs::transact::{Columns, Condition, Mutation, Transaction};
use podwire_ovs::value::{Uuid, Value};
use podwire_ovs::vswitch::{BridgeSpec, StringMap, add_bridge, set_keys, unset_keys};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{ApplyError, DATABASE_LIMIT, Machine, fault};
use crate::diff::Step;
use crate::observe::{MAPPINGS, Observed, PortSeen};
use crate::plan::{Bridge, Item, Owned, Port, Ssl, Tunnel};
use crate::{CONFIG, LINK, MADE, MAPPING, MARK, TUNNEL};

/// The virtual network of our tunnels (RFC 8926, VNI), by which they are told from OVN's: "pw".
const TUNNEL_KEY: &str = "28791";

/// The mark of a port that we took over: what cleanup puts back.
#[derive(Debug, Serialize, Deserialize)]
struct TakenOver {
    kind: String,
    iface_id: Option<String>,
    mac: Option<String>,
    mtu_request: Option<u32>,
}

/// What changes in a column of the switch's own row.
#[derive(Debug, Default)]
struct Changes<'a> {
    set: StringMap,
    unset: Vec<&'a str>,
}

impl<'a> Changes<'a> {
    /// A key is to have a value, or not to be there.
    fn put(&mut self, key: &'a str, value: Option<String>) {
        match value {
            Some(value) => drop(self.set.insert(key.to_owned(), value)),
            None => self.unset.push(key),
        }
    }

    /// These keys are ours.
    fn mark(&mut self, owned: &Owned) {
        let mark = serde_json::to_string(owned).ok();
        self.put(MARK, mark.filter(|_| !owned.is_empty()));
    }

    fn write(&self, transaction: &mut Transaction, root: Uuid, column: &'static str) {
        if !self.set.is_empty() {
            set_keys(transaction, "Open_vSwitch", root, column, &self.set);
        }
        if !self.unset.is_empty() {
            unset_keys(transaction, "Open_vSwitch", root, column, &self.unset);
        }
    }
}

impl Machine {
    /// Writes the switch's own keys, and which of them are ours with what each was before.
    pub(super) async fn write_keys(
        &mut self,
        steps: &[&Step],
        observed: &Observed,
    ) -> Result<(), ApplyError> {
        let Some(root) = observed.switch.root else {
            return Ok(());
        };
        let mut owned = self.owned.clone();
        let mut keys = Changes::default();
        let mut config = Changes::default();
        let seen = &observed.switch.keys;
        let mut mappings: BTreeMap<&str, String> = seen
            .iter()
            .filter_map(|(key, bridge)| Some((key.strip_prefix(MAPPING)?, bridge.clone())))
            .collect();
        let maps = |step: &&Step| {
            let (Step::Make(item) | Step::Remove(item)) = step;
            matches!(item, Item::Key { key, .. } if key.starts_with(MAPPING))
        };
        let changes_mappings = steps.iter().any(maps);
        for step in steps {
            let (key, value) = match step {
                Step::Make(Item::Key { key, value, .. }) => {
                    let was = observed.key(key).map(str::to_owned);
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
            // Another's entry may come meanwhile.
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
        keys.write(&mut transaction, root, "external_ids");
        config.write(&mut transaction, root, "other_config");
        self.transact(transaction).await
    }

    /// Writes down that something elsewhere, which keeps no maker, is ours, or is no more.
    pub(super) async fn own(
        &mut self,
        key: String,
        ours: bool,
        observed: &Observed,
    ) -> Result<(), ApplyError> {
        let Some(root) = observed.switch.root else {
            return Ok(());
        };
        match ours {
            true => drop(self.owned.insert(key, None)),
            false => drop(self.owned.remove(&key)),
        }
        let mut keys = Changes::default();
        keys.mark(&self.owned);
        let mut transaction = Transaction::new();
        keys.write(&mut transaction, root, "external_ids");
        self.transact(transaction).await
    }

    /// Makes the row of TLS keys, or brings it to what is wanted.
    pub(super) async fn write_ssl(
        &mut self,
        wanted: &Ssl,
        observed: &Observed,
    ) -> Result<(), ApplyError> {
        let Some(root) = observed.switch.root else {
            return Ok(());
        };
        let ids = StringMap::from([(MARK.to_owned(), MADE.to_owned())]);
        let columns = Columns::new()
            .set("private_key", wanted.private_key.as_str())
            .set("certificate", wanted.certificate.as_str())
            .set("ca_cert", wanted.ca_cert.as_str())
            .set("external_ids", Value::map(&ids));
        let mut transaction = Transaction::new();
        match &observed.switch.ssl {
            Some(seen) => {
                transaction
                    .update("SSL", Condition::uuid(seen.uuid), columns)
                    .expect_count(1);
            }
            None => {
                let row = transaction.insert("SSL", columns);
                let columns = Columns::new().set("ssl", row);
                transaction
                    .update("Open_vSwitch", Condition::uuid(root), columns)
                    .expect_count(1);
            }
        }
        self.transact(transaction).await
    }

    /// Removes the row of TLS keys.
    pub(super) async fn remove_ssl(&mut self, observed: &Observed) -> Result<(), ApplyError> {
        let Some(root) = observed.switch.root else {
            return Ok(());
        };
        let mut transaction = Transaction::new();
        let columns = Columns::new().set("ssl", Value::empty());
        transaction.update("Open_vSwitch", Condition::uuid(root), columns);
        self.transact(transaction).await
    }

    /// Makes the management port, or brings its row to what is wanted.
    pub(super) async fn write_port(
        &mut self,
        wanted: &Port,
        observed: &Observed,
    ) -> Result<(), ApplyError> {
        let mut transaction = Transaction::new();
        let ids = StringMap::from([
            ("iface-id".to_owned(), wanted.iface_id.clone()),
            (MARK.to_owned(), mark(observed.switch.port.as_ref())),
        ]);
        let columns = Columns::new()
            .set("type", "internal")
            .set("mac", wanted.mac.as_str())
            .set("mtu_request", wanted.mtu);
        match observed
            .switch
            .port
            .as_ref()
            .and_then(|port| port.interface)
        {
            Some(interface) => {
                transaction
                    .update("Interface", Condition::uuid(interface), columns)
                    .expect_count(1);
                set_keys(
                    &mut transaction,
                    "Interface",
                    interface,
                    "external_ids",
                    &ids,
                );
            }
            None => {
                let Some(bridge) = observed.switch.bridges.get(&wanted.bridge) else {
                    return Ok(());
                };
                let interface = columns.set("external_ids", Value::map(&ids));
                add_port(
                    &mut transaction,
                    bridge.uuid,
                    LINK,
                    interface,
                    Columns::new(),
                );
            }
        }
        self.transact(transaction).await
    }

    /// Removes the management port, or gives it back as it was when we took it over.
    pub(super) async fn remove_port(&mut self, observed: &Observed) -> Result<(), ApplyError> {
        let Some(port) = &observed.switch.port else {
            return Ok(());
        };
        let mut transaction = Transaction::new();
        let mark = port.mark.as_deref().unwrap_or_default();
        match (serde_json::from_str::<TakenOver>(mark), port.interface) {
            (Ok(was), Some(interface)) => {
                let columns = Columns::new()
                    .set("type", was.kind.as_str())
                    .set("mac", optional(was.mac))
                    .set("mtu_request", optional(was.mtu_request));
                transaction.update("Interface", Condition::uuid(interface), columns);
                let mut gone = vec![MARK];
                let back = was.iface_id.map(|id| ("iface-id".to_owned(), id));
                if back.is_none() {
                    gone.push("iface-id");
                }
                unset_keys(
                    &mut transaction,
                    "Interface",
                    interface,
                    "external_ids",
                    &gone,
                );
                let back: BTreeMap<String, String> = back.into_iter().collect();
                if !back.is_empty() {
                    set_keys(
                        &mut transaction,
                        "Interface",
                        interface,
                        "external_ids",
                        &back,
                    );
                }
            }
            _ => {
                if let Some((_, bridge)) = &port.bridge {
                    transaction.mutate(
                        "Bridge",
                        Condition::uuid(*bridge),
                        Mutation::delete("ports", port.uuid),
                    );
                }
            }
        }
        self.transact(transaction).await
    }

    /// Makes the bridge for tunnels, or brings its rows to what is wanted.
    pub(super) async fn write_bridge(
        &mut self,
        wanted: &Bridge,
        observed: &Observed,
    ) -> Result<(), ApplyError> {
        let config = StringMap::from([
            ("hwaddr".to_owned(), wanted.mac.clone()),
            // In seconds, the most that there is: what is forgotten goes to every node.
            ("mac-aging-time".to_owned(), "3600".to_owned()),
        ]);
        let Some(seen) = observed.switch.bridges.get(&wanted.name) else {
            let Some(root) = observed.switch.root else {
                return Ok(());
            };
            let spec = BridgeSpec {
                name: wanted.name.clone(),
                datapath_type: Some(wanted.datapath.clone()),
                fail_mode: Some("standalone".to_owned()),
                other_config: config,
                external_ids: StringMap::from([(MARK.to_owned(), MADE.to_owned())]),
                mtu_request: Some(wanted.mtu),
            };
            return self.transact(add_bridge(root, &spec).transaction).await;
        };
        let mut transaction = Transaction::new();
        set_keys(
            &mut transaction,
            "Bridge",
            seen.uuid,
            "other_config",
            &config,
        );
        if let Some(local) = seen.local {
            let columns = Columns::new().set("mtu_request", wanted.mtu);
            transaction.update("Interface", Condition::uuid(local), columns);
        }
        self.transact(transaction).await
    }

    /// Removes a bridge with all that is on it.
    pub(super) async fn remove_bridge(
        &mut self,
        bridge: &Bridge,
        observed: &Observed,
    ) -> Result<(), ApplyError> {
        let (Some(seen), Some(root)) = (
            observed.switch.bridges.get(&bridge.name),
            observed.switch.root,
        ) else {
            return Ok(());
        };
        let mut transaction = Transaction::new();
        let gone = Mutation::delete("bridges", seen.uuid);
        transaction.mutate("Open_vSwitch", Condition::uuid(root), gone);
        self.transact(transaction).await
    }

    /// Makes a tunnel, or brings its rows to what is wanted.
    pub(super) async fn write_tunnel(
        &mut self,
        wanted: &Tunnel,
        observed: &Observed,
    ) -> Result<(), ApplyError> {
        let mut transaction = Transaction::new();
        let options = StringMap::from([
            ("remote_ip".to_owned(), wanted.remote.to_string()),
            ("key".to_owned(), TUNNEL_KEY.to_owned()),
        ]);
        let ids = StringMap::from([(MARK.to_owned(), wanted.node.clone())]);
        let columns = Columns::new()
            .set("type", "geneve")
            .set("options", Value::map(&options))
            .set("external_ids", Value::map(&ids));
        // What comes from one node is for this one, and goes to no other.
        let alone = Columns::new().set("protected", true);
        match observed.switch.tunnels.get(&wanted.name) {
            Some(seen) => {
                let interface = Condition::uuid(seen.interface);
                transaction
                    .update("Interface", interface, columns)
                    .expect_count(1);
                transaction.update("Port", Condition::uuid(seen.port), alone);
            }
            None => {
                let Some(bridge) = observed.switch.bridges.get(TUNNEL) else {
                    return Ok(());
                };
                add_port(&mut transaction, bridge.uuid, &wanted.name, columns, alone);
            }
        }
        self.transact(transaction).await
    }

    /// Removes the tunnel to a node that is gone.
    pub(super) async fn remove_tunnel(
        &mut self,
        tunnel: &Tunnel,
        observed: &Observed,
    ) -> Result<(), ApplyError> {
        let switch = &observed.switch;
        let (Some(seen), Some(bridge)) =
            (switch.tunnels.get(&tunnel.name), switch.bridges.get(TUNNEL))
        else {
            return Ok(());
        };
        let mut transaction = Transaction::new();
        let gone = Mutation::delete("ports", seen.port);
        transaction.mutate("Bridge", Condition::uuid(bridge.uuid), gone);
        self.transact(transaction).await
    }

    async fn transact(&mut self, transaction: Transaction) -> Result<(), ApplyError> {
        self.counts.ovsdb += 1;
        let deadline = Instant::now() + DATABASE_LIMIT;
        self.client.transact(&transaction, deadline).await?;
        fault();
        Ok(())
    }
}

/// Adds a port of this name with one interface to a bridge.
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

/// What the mark of a port is to be, by how it was found.
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

fn optional<A: Into<podwire_ovs::value::Atom>>(atom: Option<A>) -> Value {
    Value::set(atom)
}
