//! The switch's rows, from the replica of its database.

use podwire_ovs::client::Client;
use podwire_ovs::replica::{Db, Row, TableSpec};
use podwire_ovs::value::Atom;
use podwire_ovs::vswitch;

use super::{Observed, PortSeen};
use crate::{LINK, MARK};

/// What is watched: what the agent watches, and the MAC address that an interface is to have.
pub(crate) fn tables() -> Vec<TableSpec> {
    let mut tables = vswitch::tables();
    for table in &mut tables {
        if table.name == "Interface" {
            table.columns = &[
                "name",
                "type",
                "ofport",
                "error",
                "external_ids",
                "mac",
                "mac_in_use",
                "mtu_request",
            ];
        }
    }
    tables.retain(|table| !matches!(table.name, "QoS" | "Queue"));
    tables
}

impl Observed {
    pub(super) fn see_switch(&mut self, client: &Client) {
        client.read(|db| {
            let root = db.rows("Open_vSwitch").next();
            self.root = root.map(|row| row.uuid());
            self.keys = root.map(|row| strings(&row)).unwrap_or_default();
            self.owned = self
                .keys
                .get(MARK)
                .and_then(|mark| serde_json::from_str(mark).ok())
                .unwrap_or_default();
            let bridges = db.rows("Bridge");
            self.bridges = bridges
                .filter_map(|row| Some((row.str("name")?.to_owned(), row.uuid())))
                .collect();
            self.port = db.port_by_name(LINK).map(|port| seen(db, port.uuid()));
            self.pods = pods(db);
        });
        let file = std::fs::read_to_string("/etc/openvswitch/system-id.conf");
        let file = file.ok().map(|text| text.trim().to_owned());
        self.system_id = file
            .filter(|text| !text.is_empty())
            .or_else(|| self.keys.get("system-id").cloned());
    }
}

fn seen(db: &Db, uuid: podwire_ovs::value::Uuid) -> PortSeen {
    let row = db.row("Port", uuid);
    let interface = row.and_then(|row| row.references("interfaces").next());
    let interface = interface.and_then(|uuid| db.row("Interface", uuid));
    let text = |column| {
        let text = interface.and_then(|row| row.str(column));
        text.map(str::to_owned)
    };
    let ids = interface.map(|row| strings(&row)).unwrap_or_default();
    PortSeen {
        uuid,
        interface: interface.map(|row| row.uuid()),
        bridge: db.bridge_of_port(uuid).and_then(|bridge| {
            let row = db.row("Bridge", bridge.uuid())?;
            Some((row.str("name")?.to_owned(), row.uuid()))
        }),
        kind: text("type").unwrap_or_default(),
        iface_id: ids.get("iface-id").cloned(),
        mac: text("mac"),
        mtu_request: interface
            .and_then(|row| row.integer("mtu_request"))
            .and_then(|mtu| mtu.try_into().ok()),
        mark: ids.get(MARK).cloned(),
        error: text("error"),
    }
}

/// Pods' ports: those that bear a sandbox.
fn pods(db: &Db) -> usize {
    db.rows("Interface")
        .filter(|row| strings(row).contains_key("sandbox"))
        .count()
}

fn strings(row: &Row<'_>) -> std::collections::BTreeMap<String, String> {
    let text = |atom: &Atom| atom.as_str().map(str::to_owned);
    let entries = row.map("external_ids").iter();
    entries
        .filter_map(|(key, value)| Some((text(key)?, text(value)?)))
        .collect()
}
