//! Open vSwitch's own database (ovs-vswitchd.conf.db(5)): its tables as types, lookups in them, and
//! the transactions that create and remove ports and bridges.
//!
//! Every transaction keeps what others wrote: sets and maps are changed by mutation, an element or
//! a key at a time, and no map of an existing row is ever written as a whole.

mod mappings;
mod operations;
mod rows;

use crate::replica::{Db, Index, Row, TableSpec};
use crate::value::Uuid;

pub use mappings::{BridgeMappings, chassis_entry};
pub use operations::{
    AddBridge, AddPort, BridgeSpec, PortRows, PortSpec, QosSpec, QueueSpec, StringMap, add_bridge,
    add_port, del_ports, del_qos, set_keys, unset_keys,
};
pub use rows::{Bridge, Interface, OpenVSwitch, Port, Qos, Queue};

/// The database's name.
pub const DATABASE: &str = "Open_vSwitch";

const BY_NAME: Index = Index::Column("name");
/// Finds rows of `Interface` by their logical port.
pub const BY_IFACE_ID: Index = Index::Key("external_ids", "iface-id");
const BY_POD_MAC: Index = Index::Key("external_ids", "attached_mac");
const BY_MAC: Index = Index::Column("mac_in_use");
const BY_SANDBOX: Index = Index::Key("external_ids", "sandbox");
const BY_PORT: Index = Index::Column("ports");
const BY_INTERFACE: Index = Index::Column("interfaces");
const BY_QOS: Index = Index::Column("qos");

/// Tables, each with its columns and indexes.
macro_rules! table_specs {
    ($($name:literal [$($column:literal),+] by [$($index:expr),*];)+) => {
        vec![$(TableSpec {
            name: $name,
            columns: &[$($column),+],
            indexes: &[$($index),*],
        }),+]
    };
}

/// What a replica of this database watches: the columns that [`rows`](self) reads and the indexes
/// that the lookups below use.
pub fn tables() -> Vec<TableSpec> {
    table_specs! {
        "Open_vSwitch"
            ["bridges", "external_ids", "other_config", "datapath_types"] by [];
        "Bridge"
            ["name", "ports", "datapath_type", "datapath_id", "external_ids", "other_config",
             "fail_mode"]
            by [BY_NAME, BY_PORT];
        "Port"
            ["name", "interfaces", "external_ids", "other_config", "qos", "tag", "trunks",
             "vlan_mode"]
            by [BY_NAME, BY_INTERFACE, BY_QOS];
        "Interface"
            ["name", "type", "ofport", "error", "external_ids", "other_config", "mac_in_use", "mtu",
             "mtu_request", "ingress_policing_rate", "ingress_policing_burst", "options"]
            by [BY_NAME, BY_IFACE_ID, BY_SANDBOX, BY_POD_MAC, BY_MAC];
        "QoS" ["type", "queues", "other_config", "external_ids"] by [BY_SANDBOX];
        "Queue" ["dscp", "other_config", "external_ids"] by [];
    }
}

/// Lookups in a replica of [`tables`]. All use an index, whatever the number of ports.
impl Db {
    /// The only row of `Open_vSwitch`; None before `ovs-vsctl init` has created it.
    pub fn open_vswitch(&self) -> Option<OpenVSwitch<'_>> {
        self.rows("Open_vSwitch").next().map(OpenVSwitch)
    }

    /// A bridge by uuid.
    pub fn bridge(&self, uuid: Uuid) -> Option<Bridge<'_>> {
        self.row("Bridge", uuid).map(Bridge)
    }

    /// A bridge by name.
    pub fn bridge_by_name(&self, name: &str) -> Option<Bridge<'_>> {
        self.find("Bridge", BY_NAME, name).next().map(Bridge)
    }

    /// The bridge that a port is on.
    pub fn bridge_of_port(&self, port: Uuid) -> Option<Bridge<'_>> {
        self.find("Bridge", BY_PORT, port).next().map(Bridge)
    }

    /// A port by uuid.
    pub fn port(&self, uuid: Uuid) -> Option<Port<'_>> {
        self.row("Port", uuid).map(Port)
    }

    /// A port by name.
    pub fn port_by_name(&self, name: &str) -> Option<Port<'_>> {
        self.find("Port", BY_NAME, name).next().map(Port)
    }

    /// The port of an interface.
    pub fn port_of_interface(&self, interface: Uuid) -> Option<Port<'_>> {
        self.find("Port", BY_INTERFACE, interface).next().map(Port)
    }

    /// The ports that use a QoS row.
    pub fn ports_with_qos(&self, qos: Uuid) -> impl Iterator<Item = Port<'_>> {
        self.find("Port", BY_QOS, qos).map(Port)
    }

    /// An interface by uuid.
    pub fn interface(&self, uuid: Uuid) -> Option<Interface<'_>> {
        self.row("Interface", uuid).map(Interface)
    }

    /// An interface by name.
    pub fn interface_by_name(&self, name: &str) -> Option<Interface<'_>> {
        self.find("Interface", BY_NAME, name).next().map(Interface)
    }

    /// The interfaces with this `external_ids:iface-id`. There should be at most one.
    pub fn interfaces_with(&self, iface_id: &str) -> impl Iterator<Item = Interface<'_>> {
        self.find("Interface", BY_IFACE_ID, iface_id).map(Interface)
    }

    /// The interfaces with this `external_ids:sandbox` (the container id).
    pub fn interfaces_with_sandbox(&self, sandbox: &str) -> impl Iterator<Item = Interface<'_>> {
        self.find("Interface", BY_SANDBOX, sandbox).map(Interface)
    }

    /// The interfaces that have a MAC address, or whose pods have it (`external_ids:attached_mac`).
    pub fn interfaces_with_mac(&self, mac: &str) -> impl Iterator<Item = Interface<'_>> {
        let of_pod = self.find("Interface", BY_POD_MAC, mac);
        let own = self.find("Interface", BY_MAC, mac);
        of_pod.chain(own).map(Interface)
    }

    /// All interfaces, in any order.
    pub fn interfaces(&self) -> impl Iterator<Item = Interface<'_>> {
        self.rows("Interface").map(Interface)
    }

    /// A QoS row.
    pub fn qos(&self, uuid: Uuid) -> Option<Qos<'_>> {
        self.row("QoS", uuid).map(Qos)
    }

    /// All QoS rows, in any order.
    pub fn all_qos(&self) -> impl Iterator<Item = Qos<'_>> {
        self.rows("QoS").map(Qos)
    }

    /// The QoS rows with this `external_ids:sandbox` (the container id).
    pub fn qos_with_sandbox(&self, sandbox: &str) -> impl Iterator<Item = Qos<'_>> {
        self.find("QoS", BY_SANDBOX, sandbox).map(Qos)
    }

    /// A queue.
    pub fn queue(&self, uuid: Uuid) -> Option<Queue<'_>> {
        self.row("Queue", uuid).map(Queue)
    }

    /// The rows that [`del_ports`] removes with a port: its bridge and, of its QoS row and that
    /// row's queues, those that are `ours`. Another's QoS row may serve several ports. `None` if no
    /// bridge has the port.
    pub fn port_rows(&self, port: Uuid, ours: impl Fn(&Row<'_>) -> bool) -> Option<PortRows> {
        let bridge = self.bridge_of_port(port)?.uuid();
        let qos = self
            .port(port)
            .and_then(|port| self.qos(port.qos()?))
            .filter(|qos| ours(&qos.0));
        let queues = qos
            .iter()
            .flat_map(|qos| qos.queues())
            .filter(|(_, queue)| self.queue(*queue).is_some_and(|queue| ours(&queue.0)));
        Some(PortRows {
            bridge,
            port,
            queues: queues.map(|(_, queue)| queue).collect(),
            qos: qos.map(|qos| qos.uuid()),
        })
    }
}
