//! The switch's rows, from the replica of its database.

use podwire_ovs::client::{Client, State, TlsKeys};
use podwire_ovs::replica::{Db, Row, TableSpec};
use podwire_ovs::value::Atom;
use podwire_ovs::vswitch;

use super::{BridgeSeen, PortSeen, SslSeen, SwitchSeen, TunnelSeen};
use crate::southbound::Chassis;
use crate::{CONFIG, LINK, MAPPING, MARK, TUNNEL, southbound};

/// The watched tables: those that the agent watches, with the requested MAC address of an interface
/// and whether a port is protected.
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
                "options",
            ];
        } else if table.name == "Port" {
            table.columns = &["name", "interfaces", "external_ids", "protected"];
        }
    }
    tables.push(TableSpec {
        name: "SSL",
        columns: &["private_key", "certificate", "ca_cert", "external_ids"],
        indexes: &[],
    });
    tables.retain(|table| !matches!(table.name, "QoS" | "Queue"));
    tables
}

impl SwitchSeen {
    /// The keys that ovn-controller uses.
    pub(crate) fn tls(&self) -> Option<TlsKeys> {
        self.ssl.as_ref().map(|ssl| ssl.keys.clone())
    }

    /// This machine in the southbound database, from ovn-controller's settings.
    pub(crate) fn chassis(&self) -> Option<Chassis> {
        Some(Chassis {
            name: self.keys.get("system-id")?.clone(),
            remote: self.keys.get("ovn-remote")?.clone(),
            tls: self.tls(),
        })
    }

    pub(crate) fn of(client: &Client, southbound: Option<&Client>) -> Self {
        let mut seen = client.read(|db| {
            let root = db.rows("Open_vSwitch").next();
            let mut keys = root.map(|row| strings(&row)).unwrap_or_default();
            let mappings = keys.get(MAPPINGS).map(|text| mappings(text));
            keys.extend(mappings.unwrap_or_default());
            keys.extend(root.iter().flat_map(config));
            let mark = keys.get(MARK);
            let owned = mark.and_then(|mark| serde_json::from_str(mark).ok());
            let bridges = db.rows("Bridge").filter_map(|row| bridge_seen(db, &row));
            Self {
                root: root.map(|row| row.uuid()),
                owned: owned.unwrap_or_default(),
                bridges: bridges.collect(),
                tunnels: tunnels(db),
                ssl: db.rows("SSL").next().map(|row| ssl_seen(&row)),
                port: db.port_by_name(LINK).map(|port| port_seen(db, port.uuid())),
                keys,
                ..Self::default()
            }
        });
        seen.answers = client.state() == State::Synced;
        seen.ends = southbound
            .filter(|client| client.state() == State::Synced)
            .map(southbound::ends);
        let file = std::fs::read_to_string("/etc/openvswitch/system-id.conf");
        let file = file.ok().map(|text| text.trim().to_owned());
        seen.system_id = file
            .filter(|text| !text.is_empty())
            .or_else(|| seen.keys.get("system-id").cloned());
        seen
    }
}

/// The key of the bridges of physical networks.
pub(crate) const MAPPINGS: &str = "ovn-bridge-mappings";

/// Its entries, each as a separate key.
fn mappings(text: &str) -> Vec<(String, String)> {
    let entries = text
        .split(',')
        .filter_map(|entry| entry.trim().split_once(':'));
    entries
        .map(|(network, bridge)| (format!("{MAPPING}{network}"), bridge.to_owned()))
        .collect()
}

/// ovs-vswitchd's tuning, each setting as a separate key. Others' keys may change all the time.
fn config(root: &Row<'_>) -> Vec<(String, String)> {
    let keys = ["n-handler-threads", "n-revalidator-threads"].into_iter();
    let config = root.map("other_config");
    keys.filter_map(|key| Some((format!("{CONFIG}{key}"), config.str(key)?.to_owned())))
        .collect()
}

fn ssl_seen(row: &Row<'_>) -> SslSeen {
    let path = |column| row.str(column).unwrap_or_default().into();
    SslSeen {
        uuid: row.uuid(),
        keys: TlsKeys {
            private_key: path("private_key"),
            certificate: path("certificate"),
            ca_certificate: path("ca_cert"),
        },
        ours: strings(row).contains_key(MARK),
    }
}

fn bridge_seen(db: &Db, row: &Row<'_>) -> Option<(String, BridgeSeen)> {
    let name = row.str("name")?;
    let local = interface_of(db, db.port_by_name(name)?.uuid());
    let kind = row.str("datapath_type").filter(|kind| !kind.is_empty());
    let seen = BridgeSeen {
        uuid: row.uuid(),
        datapath: kind.unwrap_or("system").to_owned(),
        mac: row.map("other_config").str("hwaddr").map(str::to_owned),
        local: local.map(|row| row.uuid()),
        mtu_request: local.and_then(|row| mtu_request(&row)),
        ours: strings(row).contains_key(MARK),
    };
    Some((name.to_owned(), seen))
}

fn tunnels(db: &Db) -> std::collections::BTreeMap<String, TunnelSeen> {
    let bridge = db
        .rows("Bridge")
        .find(|row| row.str("name") == Some(TUNNEL));
    let ports = bridge.into_iter().flat_map(|row| row.references("ports"));
    let ours = ports.filter_map(|port| {
        let (row, interface) = (db.row("Port", port)?, interface_of(db, port)?);
        let node = strings(&interface).remove(MARK)?;
        let seen = TunnelSeen {
            port,
            interface: interface.uuid(),
            remote: interface.map("options").str("remote_ip").map(str::to_owned),
            node,
            protected: row.column("protected").and_then(|it| it.as_bool()) == Some(true),
        };
        Some((row.str("name")?.to_owned(), seen))
    });
    ours.collect()
}

fn interface_of(db: &Db, port: podwire_ovs::value::Uuid) -> Option<Row<'_>> {
    let interface = db.row("Port", port)?.references("interfaces").next()?;
    db.row("Interface", interface)
}

fn mtu_request(row: &Row<'_>) -> Option<u32> {
    row.integer("mtu_request")
        .and_then(|mtu| mtu.try_into().ok())
}

fn port_seen(db: &Db, uuid: podwire_ovs::value::Uuid) -> PortSeen {
    let interface = interface_of(db, uuid);
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
        mtu_request: interface.and_then(|row| mtu_request(&row)),
        mark: ids.get(MARK).cloned(),
        error: text("error"),
    }
}

/// Number of pods with ports, which have a sandbox.
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
