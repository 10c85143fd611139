//! The switch's rows, from the replica of its database.

use podwire_ovs::client::{Client, State};
use podwire_ovs::replica::{Db, Row, TableSpec};
use podwire_ovs::value::Atom;
use podwire_ovs::vswitch;

use super::{PortSeen, SwitchSeen};
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

impl SwitchSeen {
    pub(crate) fn of(client: &Client) -> Self {
        let mut seen = client.read(|db| {
            let root = db.rows("Open_vSwitch").next();
            let keys = root.map(|row| strings(&row)).unwrap_or_default();
            let mark = keys.get(MARK);
            let owned = mark.and_then(|mark| serde_json::from_str(mark).ok());
            let bridges = db.rows("Bridge");
            Self {
                root: root.map(|row| row.uuid()),
                owned: owned.unwrap_or_default(),
                bridges: bridges
                    .filter_map(|row| Some((row.str("name")?.to_owned(), row.uuid())))
                    .collect(),
                port: db.port_by_name(LINK).map(|port| port_seen(db, port.uuid())),
                keys,
                ..Self::default()
            }
        });
        seen.answers = client.state() == State::Synced;
        let file = std::fs::read_to_string("/etc/openvswitch/system-id.conf");
        let file = file.ok().map(|text| text.trim().to_owned());
        seen.system_id = file
            .filter(|text| !text.is_empty())
            .or_else(|| seen.keys.get("system-id").cloned());
        seen
    }
}

fn port_seen(db: &Db, uuid: podwire_ovs::value::Uuid) -> PortSeen {
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

/// How many pods have ports: those bear a sandbox.
pub(super) fn pods(client: &Client) -> usize {
    client.read(|db| {
        let interfaces = db.rows("Interface");
        interfaces
            .filter(|row| strings(row).contains_key("sandbox"))
            .count()
    })
}

fn strings(row: &Row<'_>) -> std::collections::BTreeMap<String, String> {
    let text = |atom: &Atom| atom.as_str().map(str::to_owned);
    let entries = row.map("external_ids").iter();
    entries
        .filter_map(|(key, value)| Some((text(key)?, text(value)?)))
        .collect()
}
