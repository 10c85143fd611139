//! The switch's rows, from the replica of its database.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cluster::networks::PRIMARY_INTERFACE;
use podwire_ovs::client::{Client, State};
use podwire_ovs::replica::{Db, TableSpec};
use podwire_ovs::vswitch::{self, BridgeMappings};

use crate::items::{
    BridgePorts, ObservedBridge, ObservedNic, ObservedPort, ObservedSsl, ObservedSwitch,
    ObservedTunnel, ObservedUplink, keys_seen,
};
use crate::southbound;

/// A column that came to the schema with the limit of each zone (Open vSwitch 3.3), and that nobody
/// changes while pods come and go.
const DEFAULT_LIMIT: &str = "ct_zone_default_limit";

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
            table.columns = &["name", "interfaces", "external_ids", "protected", "tag"];
        }
    }
    tables.push(TableSpec::of(
        "SSL",
        &["private_key", "certificate", "ca_cert", "external_ids"],
    ));
    tables.push(TableSpec::of("Datapath", &[DEFAULT_LIMIT]));
    tables.retain(|table| !matches!(table.name, "QoS" | "Queue"));
    tables
}

/// podwire's part of Open vSwitch's database, from the replica.
pub(crate) fn switch(client: &Client, southbound: Option<&Client>) -> ObservedSwitch {
    let mut seen = client.read(|db| {
        let root = db.rows("Open_vSwitch").next();
        let (keys, owned) = root.as_ref().map(keys_seen).unwrap_or_default();
        let bridges = db.rows("Bridge");
        ObservedSwitch {
            root: root.map(|row| row.uuid()),
            bridges: bridges
                .filter_map(|row| ObservedBridge::of(db, &row))
                .collect(),
            tunnels: ObservedTunnel::all(db),
            uplink: ObservedUplink::find(db),
            gateway: BridgePorts::of(db),
            ssl: db.rows("SSL").next().map(|row| ObservedSsl::of(&row)),
            ports: ObservedPort::all(db),
            networks: networks(db),
            limits_connections: root.map(|_| db.has_column("Datapath", DEFAULT_LIMIT)),
            locked: locked(db),
            nics: ObservedNic::all(db),
            keys,
            owned,
            ..ObservedSwitch::default()
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

/// The physical networks that it connects.
fn networks(db: &Db) -> BTreeSet<String> {
    let mappings = BridgeMappings::of(db);
    let entries = mappings.entries();
    let there = entries.filter(|(_, bridge)| db.bridge_by_name(bridge).is_some());
    there.map(|(network, _)| network.to_owned()).collect()
}

/// The addresses of pods on the default network that have another primary one.
fn locked(db: &Db) -> BTreeSet<IpAddr> {
    let mut addresses = Vec::new();
    let mut sandboxes = BTreeSet::new();
    for row in db.rows("Interface") {
        let ids = row.map("external_ids");
        let Some(sandbox) = ids.str("sandbox") else {
            continue;
        };
        match ids.str("pod-if-name") {
            Some(PRIMARY_INTERFACE) => drop(sandboxes.insert(sandbox)),
            _ if ids.get("k8s.ovn.org/nad").is_some() => {}
            _ => addresses.extend(ids.str("ip_addresses").map(|own| (sandbox, own))),
        }
    }
    let own = addresses.iter().filter(|(it, _)| sandboxes.contains(it));
    let nets = own.flat_map(|(_, own)| own.split(','));
    nets.filter_map(|net| Some(net.parse::<IpNet>().ok()?.addr()))
        .collect()
}

/// Number of pods with ports, which have a sandbox.
pub(super) fn pods(client: &Client) -> usize {
    client.read(|db| {
        let interfaces = db.rows("Interface");
        interfaces
            .filter(|row| row.map("external_ids").get("sandbox").is_some())
            .count()
    })
}
